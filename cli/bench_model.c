#include "cli/bench_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/engine/tp.h"
#include "kernels/device.h"

enum { BLOCK_SIZE = 16 };

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static fg_status dtype_of(const char *name, uint32_t *dtype_out, fg_error *err)
{
    return fg_dtype_find_kv(name, dtype_out)
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT,
                         "--kv-dtype %.30s is not known: auto, f16, bf16, int8 or f32", name);
}

static fg_status find_isa(fg_bench_model *model, const char *isa, fg_error *err)
{
    if (!model->is_host) {
        fg_device_info info;
        if (isa != NULL && strcmp(isa, "auto") != 0) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--cpu-isa %.30s says nothing of %s, whose kernels are not the "
                           "processor's: leave it out",
                           isa, model->device);
        }
        fg_status status = fg_device_describe(model->device, &info, err);
        if (status == FG_OK) {
            snprintf(model->isa, sizeof model->isa, "%s", info.isa);
        }
        return status;
    }
    fg_device_options o = { .kind = model->device, .isa = isa, .thread_count = 1 };
    fg_device *device;
    fg_status status = fg_device_open(&o, &device, err);
    if (status == FG_OK) {
        snprintf(model->isa, sizeof model->isa, "%s", fg_device_isa(device));
        fg_device_close(device);
    }
    return status;
}

static fg_status open_runner(fg_bench_model *model, const fg_bench_model_options *options,
                             fg_error *err)
{
    uint32_t ranks = larger(options->ranks, 1);
    fg_tp_options tp = { .size = ranks, .devices = options->device, .way = options->way };
    fg_runner_options o = { .path = options->path,
                            .context_max = larger(options->prompt, options->context),
                            .seqs_max = larger(options->seqs, 1),
                            .step_tokens_max = larger(options->step_tokens, options->seqs),
                            .block_size = BLOCK_SIZE,
                            .thread_count = larger(model->threads / ranks, 1),
                            .cpu_isa = options->cpu_isa,
                            .tp = &tp,
                            .device = model->device };
    uint32_t each = fg_kv_blocks_for(options->context, BLOCK_SIZE);
    o.block_count = larger(fg_kv_blocks_for(options->prompt, BLOCK_SIZE), each * o.seqs_max);
    fg_status status = dtype_of(options->kv_dtype, &o.kv_dtype, err);
    if (status == FG_OK) {
        status = fg_runner_open(&o, &model->runner, err);
    }
    if (status == FG_OK && o.context_max > model->runner.hparams.context_length) {
        status = fg_fail(err, FG_BAD_INPUT,
                         "%u tokens are more than the %u that the model was trained for: smaller "
                         "--prompt, --depth or --generate",
                         o.context_max, model->runner.hparams.context_length);
    }
    if (status == FG_OK && model->is_host) {
        /* A page that is touched for the first time costs what the kernel, and in a virtual machine its host, wants.
         * Behind a GPU these are a mirror that nothing here reads. */
        memset(model->runner.arena, 0, model->runner.arena_bytes);
    }
    model->id_count = larger(o.context_max, o.seqs_max);
    return status;
}

fg_status fg_bench_model_open(fg_bench_model *model, const fg_bench_model_options *options,
                              fg_error *err)
{
    memset(model, 0, sizeof *model);
    if (options->path == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "name a model file: --model FILE");
    }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    model->threads = options->threads != 0 ? options->threads : cores > 0 ? (uint32_t)cores : 1;
    fg_status status =
        fg_tp_device(options->device, larger(options->ranks, 1), 0, model->device, err);
    if (status != FG_OK) {
        return status;
    }
    model->is_host = fg_device_kind_is_host(model->device);
    status = find_isa(model, options->cpu_isa, err);
    if (status == FG_OK) {
        status = open_runner(model, options, err);
    }
    if (status == FG_OK && model->is_host) {
        status = fg_peaks_open(model->threads, &model->peaks, err);
    }
    if (status != FG_OK) {
        return status;
    }
    model->cost = fg_bench_cost_of(model->runner.weights, &model->runner.hparams);
    if (options->ranks > 1) {
        model->cost.spared = (fg_bench_macs){ 0 };
    }
    model->ids = fg_mem_array(model->id_count, sizeof *model->ids);
    if (model->ids == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u tokens", model->id_count);
    }
    for (uint32_t i = 0; i < model->id_count; i++) {
        model->ids[i] = (uint32_t)((i * 7919ull + 17) % model->runner.hparams.vocab_size);
    }
    return FG_OK;
}

void fg_bench_model_close(fg_bench_model *model)
{
    fg_mem_free(model->ids);
    fg_peaks_close(model->peaks);
    fg_runner_close(&model->runner);
}

fg_step_seq fg_bench_model_item(const fg_bench_model *model, uint32_t seq, uint32_t count,
                                uint32_t position, uint32_t token_count)
{
    fg_step_seq item =
        fg_runner_seq(&model->runner, 0, model->ids + position, position, token_count);
    item.block_count = model->runner.block_count / count;
    item.block_ids = model->runner.block_ids + (size_t)seq * item.block_count;
    return item;
}

fg_status fg_bench_model_prompt(fg_bench_model *model, uint32_t seq, uint32_t count,
                                uint32_t tokens, uint32_t chunk, fg_error *err)
{
    fg_status status = FG_OK;
    for (uint32_t at = 0; status == FG_OK && at < tokens; at += chunk) {
        uint32_t size = tokens - at < chunk ? tokens - at : chunk;
        fg_step_seq item = fg_bench_model_item(model, seq, count, at, size);
        item.sample = at + size == tokens;
        fg_step step = { .seqs = &item, .seq_count = 1 };
        status = fg_runner_step(&model->runner, &step, err);
    }
    return status;
}
