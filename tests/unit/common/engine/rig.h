/*
 * rig - drives an engine for tests: requests in ragged batches, one step at a time or with the next one
 * begun before the last was polled, so that the answers of both can be compared. Allocates nothing.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_ENGINE_RIG_H
#define FORGE_TESTS_UNIT_COMMON_ENGINE_RIG_H

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/base/thread.h"
#include "common/engine/engine_sim.h"
#include "common/engine/runner.h"
#include "tests/support/test.h"

enum { RIG_SEQS = 4, RIG_TOKENS = 256, RIG_AREAS = FG_ENGINE_STEPS_MAX + 1 };

/* An engine, and how to wait until its oldest step may have ended. */
typedef struct driver {
    fg_engine *engine;
    void (*wait)(void *ctx);
    void *ctx;
} driver;

/* A prompt, and the tokens wanted after it. */
typedef struct request {
    const uint32_t *prompt;
    uint32_t prompt_count;
    uint32_t wanted;
    fg_sampling sampling;
    const uint32_t *block_ids;
    uint32_t block_count;

    uint32_t position;       /* tokens planned */
    uint32_t planned;        /* tokens whose choice is planned */
    const fg_step_seq *last; /* the item that chooses the newest of them */
    uint64_t last_step;      /* the step it is in */
    uint32_t emitted;
    uint32_t tokens[RIG_TOKENS];
    uint64_t digests[RIG_TOKENS];
} request;

/* What one step points to, until the step after it was polled. */
typedef struct area {
    fg_step step;
    fg_step_seq items[RIG_SEQS];
    request *owners[RIG_SEQS];
} area;

static inline fg_step *rig_poll(const driver *d)
{
    fg_step *step;
    while ((step = fg_engine_poll(d->engine)) == NULL) {
        d->wait(d->ctx);
    }
    return step;
}

static inline void rig_step(const driver *d, fg_step *step)
{
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_begin(d->engine, step, &err), FG_OK, "%s", err.text);
    cr_assert(rig_poll(d) == step);
}

/* The request's part of step `index`; false when it has nothing to run. */
static inline bool plan_item(request *r, uint64_t index, bool ahead, uint32_t chunk,
                             fg_step_seq *item)
{
    if (r->planned == r->wanted) {
        return false;
    }
    uint32_t left = r->position < r->prompt_count ? r->prompt_count - r->position : 0;
    *item = (fg_step_seq){ .first_position = r->position,
                           .token_count = left == 0 ? 1 : (left < chunk ? left : chunk),
                           .block_ids = r->block_ids,
                           .block_count = r->block_count,
                           .sampling = r->sampling };
    if (left > 0) {
        item->tokens = r->prompt + r->position;
    } else if (ahead && r->last_step + 1 == index) {
        item->follows = r->last; /* `tokens` stays NULL: nobody reads it */
    } else {
        item->tokens = &r->tokens[r->planned - 1];
    }
    r->position += item->token_count;
    item->sample = r->position >= r->prompt_count;
    item->want_digest = item->sample;
    if (item->sample) {
        r->last = item;
        r->last_step = index;
        r->planned++;
    }
    return true;
}

static inline void plan_step(request *requests, uint32_t count, uint64_t index, bool ahead,
                             fg_rng *rng, area *a)
{
    a->step = (fg_step){ .seqs = a->items };
    for (uint32_t i = 0; i < count; i++) {
        /* Now and then a request sits a step out, so that its token is known when it goes on. */
        bool skip = count > 1 && fg_rng_below(rng, 8) == 0;
        uint32_t chunk = 1 + (uint32_t)fg_rng_below(rng, 12);
        uint32_t at = a->step.seq_count;
        if (!skip && plan_item(&requests[i], index, ahead, chunk, &a->items[at])) {
            a->owners[at] = &requests[i];
            a->step.seq_count++;
        }
    }
}

static inline bool all_planned(const request *requests, uint32_t count)
{
    bool all = true;
    for (uint32_t i = 0; i < count; i++) {
        all &= requests[i].planned == requests[i].wanted;
    }
    return all;
}

/* Runs the requests to their end, with one step in flight or (ahead) with two; returns the steps. */
static inline uint64_t rig_drive(const driver *d, request *requests, uint32_t count, bool ahead,
                                 uint64_t seed)
{
    fg_rng rng = { .state = seed };
    area areas[RIG_AREAS];
    uint64_t begun = 0;
    uint64_t polled = 0;
    uint64_t in_flight_max = ahead ? FG_ENGINE_STEPS_MAX : 1;
    while (polled < begun || !all_planned(requests, count)) {
        while (begun - polled < in_flight_max && !all_planned(requests, count)) {
            area *a = &areas[begun % RIG_AREAS];
            plan_step(requests, count, begun, ahead, &rng, a);
            fg_error err = { 0 };
            cr_assert_eq(fg_engine_begin(d->engine, &a->step, &err), FG_OK, "%s", err.text);
            begun++;
        }
        area *a = &areas[polled % RIG_AREAS];
        cr_assert(rig_poll(d) == &a->step, "steps end in the order of their beginning");
        for (uint32_t i = 0; i < a->step.seq_count; i++) {
            request *r = a->owners[i];
            if (a->items[i].sample) {
                r->tokens[r->emitted] = a->items[i].token_out;
                r->digests[r->emitted++] = a->items[i].digest_out;
            }
        }
        polled++;
    }
    return polled;
}

/* A simulated engine whose steps end when somebody waits for them. */
enum { SIM_BLOCKS = 64, SIM_TIER = 8, SIM_BLOCK_SIZE = 16, SIM_VOCAB = 5000 };

typedef struct sim_rig {
    driver driver;
    fg_kv_layout layout;
    uint8_t arena[SIM_BLOCKS * 256];
    uint8_t tier[SIM_TIER * 256];
    uint32_t block_ids[SIM_BLOCKS];
} sim_rig;

static inline void sim_wait(void *ctx)
{
    cr_assert(fg_engine_sim_complete(ctx), "a step is in flight");
}

static inline void sim_rig_open(sim_rig *rig, bool quick)
{
    memset(rig, 0, sizeof *rig);
    cr_assert_eq(fg_kv_layout_init(&rig->layout, 1, 1, 4, SIM_BLOCK_SIZE, FG_F16, NULL), FG_OK);
    cr_assert(rig->layout.block_bytes * SIM_BLOCKS <= sizeof rig->arena);
    fg_engine_sim_options options = {
        .layout = rig->layout,
        .arena = rig->arena,
        .block_count = SIM_BLOCKS,
        .tier_arena = rig->tier,
        .tier_block_count = SIM_TIER,
        .limits = { .step_tokens_max = 64, .step_seqs_max = RIG_SEQS, .context_max = RIG_TOKENS },
        .vocab_size = SIM_VOCAB,
        .eos_token = UINT32_MAX,
        .manual = true,
        .quick = quick
    };
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_open_sim(&options, &rig->driver.engine, &err), FG_OK, "%s", err.text);
    rig->driver.wait = sim_wait;
    rig->driver.ctx = rig->driver.engine;
    for (uint32_t i = 0; i < SIM_BLOCKS; i++) {
        rig->block_ids[i] = (i * 37 + 5) % SIM_BLOCKS;
    }
}

/* A model with an engine of its own beside the runner's, whose end of steps can be waited for, and with
 * a tier. */
enum { MODEL_TIER = 4 };

typedef struct model_rig {
    driver driver;
    fg_runner runner; /* weights, arena and block tables */
    fg_signal done;   /* counts on_done */
    uint32_t seen;
    _Atomic int engine_thread_id;
    uint8_t *tier;
} model_rig;

static inline void model_on_done(void *ctx)
{
    model_rig *rig = ctx;
    atomic_store(&rig->engine_thread_id, (int)syscall(SYS_gettid));
    fg_signal_raise(&rig->done);
}

static inline void model_wait(void *ctx)
{
    model_rig *rig = ctx;
    rig->seen = fg_signal_wait(&rig->done, rig->seen);
}

static inline void model_rig_open(model_rig *rig, const fg_runner_options *options)
{
    memset(rig, 0, sizeof *rig);
    fg_error err = { 0 };
    cr_assert_eq(fg_runner_open(options, &rig->runner, &err), FG_OK, "%s", err.text);
    const fg_runner *runner = &rig->runner;
    rig->tier = fg_mem_array(MODEL_TIER, runner->layout.block_bytes);
    cr_assert_not_null(rig->tier);
    fg_engine_options engine = {
        .weights = runner->weights,
        .hparams = &runner->hparams,
        .layout = runner->layout,
        .arena = runner->arena,
        .block_count = runner->block_count,
        .tier_arena = rig->tier,
        .tier_block_count = MODEL_TIER,
        .limits = { .step_tokens_max = 64,
                    .step_seqs_max = options->seqs_max,
                    .context_max = options->context_max },
        .thread_count = options->thread_count == 0 ? 1 : options->thread_count,
        .cpu_isa = "auto",
        .on_done = model_on_done,
        .ctx = rig,
    };
    cr_assert_eq(fg_engine_open_model(&engine, &rig->driver.engine, &err), FG_OK, "%s", err.text);
    rig->driver.wait = model_wait;
    rig->driver.ctx = rig;
}

static inline void model_rig_close(model_rig *rig)
{
    fg_engine_close(rig->driver.engine);
    fg_mem_free(rig->tier);
    fg_runner_close(&rig->runner);
}

#endif
