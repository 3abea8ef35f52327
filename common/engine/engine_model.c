/*
 * The engine that computes. Its thread sleeps until a step is given, runs it and says so:
 *
 *   IDLE -> RUNNING   begin, on the loop thread
 *   RUNNING -> DONE   the engine thread; then on_done
 *   DONE -> IDLE      poll, on the loop thread
 */
#include <stdatomic.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/engine/engine_internal.h"
#include "common/engine/forward.h"

typedef enum engine_state {
    IDLE,
    RUNNING,
    DONE,
} engine_state;

typedef struct model_engine {
    fg_engine base;
    fg_engine_bounds bounds;
    fg_forward *forward;
    fg_step *step; /* the engine thread's while RUNNING */
    void (*on_done)(void *ctx);
    void *ctx;
    _Atomic int state;
    _Atomic bool stop;
    fg_signal wake; /* raised after RUNNING or stop is set */
    pthread_t thread;
} model_engine;

static void run_step(model_engine *engine)
{
    fg_clock clock = fg_clock_real();
    uint64_t started_at_ns = fg_clock_now_ns(&clock);
    fg_forward_run(engine->forward, engine->step);
    engine->step->compute_ns_out = fg_clock_now_ns(&clock) - started_at_ns;
    atomic_store_explicit(&engine->state, DONE, memory_order_release);
    if (engine->on_done != NULL) {
        engine->on_done(engine->ctx);
    }
}

static void *engine_main(void *ctx)
{
    model_engine *engine = ctx;
    uint32_t seen = 0;
    for (;;) {
        seen = fg_signal_wait(&engine->wake, seen);
        if (atomic_load_explicit(&engine->state, memory_order_acquire) == RUNNING) {
            run_step(engine);
        }
        if (atomic_load_explicit(&engine->stop, memory_order_acquire)) {
            return NULL;
        }
    }
}

static fg_status model_begin(fg_engine *base, fg_step *step, fg_error *err)
{
    model_engine *engine = (model_engine *)base;
    if (atomic_load_explicit(&engine->state, memory_order_acquire) != IDLE) {
        return fg_fail(err, FG_AGAIN, "a step is in flight");
    }
    fg_status status = fg_engine_check_step(&engine->bounds, step, err);
    if (status != FG_OK) {
        return status;
    }
    engine->step = step;
    atomic_store_explicit(&engine->state, RUNNING, memory_order_release);
    fg_signal_raise(&engine->wake);
    return FG_OK;
}

static bool model_poll(fg_engine *base)
{
    model_engine *engine = (model_engine *)base;
    if (atomic_load_explicit(&engine->state, memory_order_acquire) != DONE) {
        return false;
    }
    atomic_store_explicit(&engine->state, IDLE, memory_order_release);
    return true;
}

static void model_close(fg_engine *base)
{
    model_engine *engine = (model_engine *)base;
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    fg_signal_raise(&engine->wake);
    fg_thread_join(engine->thread);
    fg_forward_destroy(engine->forward);
    fg_mem_free(engine);
}

static const fg_engine_ops model_ops = {
    .begin = model_begin,
    .poll = model_poll,
    .close = model_close,
};

fg_status fg_engine_open_model(const fg_engine_options *options, fg_engine **engine_out,
                               fg_error *err)
{
    model_engine *engine = fg_mem_alloc(sizeof *engine);
    if (engine == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the engine");
    }
    engine->base.ops = &model_ops;
    engine->bounds = (fg_engine_bounds){ .limits = options->limits,
                                         .vocab_size = options->hparams->vocab_size,
                                         .block_size = options->layout.block_size,
                                         .block_count = options->block_count };
    engine->on_done = options->on_done;
    engine->ctx = options->ctx;
    snprintf(engine->base.numerics_class, sizeof engine->base.numerics_class, "cpu/k1/kv-%s/tp1",
             fg_dtype_name(options->layout.dtype));
    fg_status status = fg_forward_create(options, &engine->forward, err);
    if (status != FG_OK) {
        goto free_engine;
    }
    if (!fg_thread_start(&engine->thread, engine_main, engine)) {
        status = fg_fail(err, FG_AGAIN, "the system gave no thread for the engine");
        goto destroy_forward;
    }
    *engine_out = &engine->base;
    return FG_OK;

destroy_forward:
    fg_forward_destroy(engine->forward);
free_engine:
    fg_mem_free(engine);
    return status;
}
