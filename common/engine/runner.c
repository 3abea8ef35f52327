#include "common/engine/runner.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/engine/tp.h"

struct fg_runner_signal {
    fg_signal signal;
};

static void on_done(void *ctx)
{
    struct fg_runner_signal *done = ctx;
    fg_signal_raise(&done->signal);
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value == 0 ? fallback : value;
}

static fg_status open_model(const fg_runner_options *options, fg_runner *runner, fg_error *err)
{
    fg_status status =
        options->path != NULL
            ? fg_weights_open(options->path, &runner->weights, err)
            : fg_weights_open_memory(options->bytes, options->size_bytes, &runner->weights, err);
    if (status != FG_OK) {
        return status;
    }
    status = fg_hparams_read(runner->weights, &runner->hparams, err);
    if (status != FG_OK) {
        return status;
    }
    const fg_hparams *h = &runner->hparams;
    uint32_t kv_dtype = fg_engine_kv_dtype(options->device, options->kv_dtype, h);
    return fg_kv_layout_init(&runner->layout, h->layer_count, h->kv_head_count, h->head_dim,
                             or_default(options->block_size, 16), kv_dtype, err);
}

static fg_status take_blocks(const fg_runner_options *options, uint32_t context_max,
                             uint32_t seqs_max, fg_runner *runner, fg_error *err)
{
    runner->blocks_per_seq = fg_kv_blocks_for(context_max, runner->layout.block_size);
    runner->block_count = or_default(options->block_count, runner->blocks_per_seq * seqs_max);
    runner->arena_bytes = (size_t)runner->block_count * runner->layout.block_bytes;
    if (options->tp != NULL && options->tp->size > 1) {
        (void)fg_shared_create(runner->arena_bytes, true, &runner->shared, err);
        runner->arena = runner->shared.memory;
    } else {
        runner->arena = fg_mem_map(runner->arena_bytes);
    }
    runner->block_ids = fg_mem_array(runner->block_count, sizeof(uint32_t));
    runner->done = fg_mem_alloc(sizeof *runner->done);
    if (runner->arena == NULL || runner->block_ids == NULL || runner->done == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u blocks", runner->block_count);
    }
    for (uint32_t i = 0; i < runner->block_count; i++) {
        runner->block_ids[i] = options->reverse_blocks ? runner->block_count - 1 - i : i;
    }
    return FG_OK;
}

fg_status fg_runner_open(const fg_runner_options *options, fg_runner *runner, fg_error *err)
{
    memset(runner, 0, sizeof *runner);
    fg_status status = open_model(options, runner, err);
    if (status != FG_OK) {
        goto close;
    }
    uint32_t context_max = or_default(options->context_max, runner->hparams.context_length);
    uint32_t seqs_max = or_default(options->seqs_max, 1);
    status = take_blocks(options, context_max, seqs_max, runner, err);
    if (status != FG_OK) {
        goto close;
    }
    fg_engine_options engine = {
        .weights = runner->weights,
        .hparams = &runner->hparams,
        .layout = runner->layout,
        .arena = runner->arena,
        .block_count = runner->block_count,
        .limits = { .step_tokens_max = or_default(options->step_tokens_max, 512),
                    .step_seqs_max = seqs_max,
                    .context_max = context_max },
        .thread_count = or_default(options->thread_count, 1),
        .share = options->share,
        .tp = options->tp,
        .draft = options->draft,
        .device = options->device,
        .cpu_isa = options->cpu_isa == NULL ? "auto" : options->cpu_isa,
        .on_done = on_done,
        .ctx = runner->done,
    };
    status = fg_engine_open_model(&engine, &runner->engine, err);
    if (status != FG_OK) {
        goto close;
    }
    return FG_OK;

close:
    fg_runner_close(runner);
    return status;
}

void fg_runner_close(fg_runner *runner)
{
    fg_engine_close(runner->engine);
    fg_mem_free(runner->done);
    fg_mem_free(runner->block_ids);
    if (runner->shared.memory != NULL) {
        fg_shared_close(&runner->shared);
    } else {
        fg_mem_unmap(runner->arena, runner->arena_bytes);
    }
    if (runner->weights != NULL) {
        fg_weights_close(runner->weights);
    }
    memset(runner, 0, sizeof *runner);
}

fg_step_seq fg_runner_seq(const fg_runner *runner, uint32_t seq, const uint32_t *tokens,
                          uint32_t position, uint32_t count)
{
    return (fg_step_seq){ .tokens = tokens,
                          .token_count = count,
                          .first_position = position,
                          .block_ids = runner->block_ids + (size_t)seq * runner->blocks_per_seq,
                          .block_count = runner->blocks_per_seq,
                          .sampling = { .top_p = 1.0f } };
}

fg_step *fg_runner_wait(fg_runner *runner)
{
    /* A step that has ended before is seen by the poll; one that ends later raises the signal. */
    for (;;) {
        uint32_t seen = fg_signal_count(&runner->done->signal);
        fg_step *step = fg_engine_poll(runner->engine);
        if (step != NULL) {
            return step;
        }
        fg_signal_wait(&runner->done->signal, seen);
    }
}

fg_status fg_runner_step(fg_runner *runner, fg_step *step, fg_error *err)
{
    fg_status status = fg_engine_begin(runner->engine, step, err);
    if (status == FG_OK) {
        FG_ASSERT(fg_runner_wait(runner) == step, "the only step in flight");
    }
    return status;
}

fg_status fg_runner_prompt(fg_runner *runner, uint32_t seq, const uint32_t *tokens, uint32_t count,
                           uint32_t chunk, fg_step_seq *last, fg_error *err)
{
    for (uint32_t at = 0; at < count;) {
        uint32_t size = count - at < chunk ? count - at : chunk;
        fg_step_seq part = fg_runner_seq(runner, seq, tokens + at, at, size);
        if (at + size == count) {
            part.sample = last->sample;
            part.want_digest = last->want_digest;
            part.logits_out = last->logits_out;
            part.sampling = last->sampling;
            part.choice = last->choice;
        }
        fg_step step = { .seqs = &part, .seq_count = 1 };
        fg_status status = fg_runner_step(runner, &step, err);
        if (status != FG_OK) {
            return status;
        }
        at += size;
        if (at == count) {
            *last = part;
        }
    }
    return FG_OK;
}
