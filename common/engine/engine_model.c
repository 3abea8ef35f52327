/*
 * The engine that computes. Its thread sleeps until a step is given, runs it and says so. While a device with memory of
 * its own runs a step, the thread looks for the next one, and has the device begin it behind that one where it can
 * (fg_forward_begin_next), so that the device does not wait for the host between them. Between loop
 * and engine lies a ring of FG_ENGINE_STEPS_MAX steps; three counts that only grow say where each is:
 *
 *   polled <= ended <= begun <= polled + FG_ENGINE_STEPS_MAX
 *
 *   free ---begin---> queued or running ---run_step---> ended ---poll---> free
 *   n = begun          n < begun                        n < ended         n < polled
 *
 * begin writes step n's place, then `begun` (release), then raises `wake`; the engine thread runs what
 * lies between `ended` and `begun`, in order, then writes `ended` (release) and calls on_done; poll reads
 * `ended` (acquire). `polled` is the loop thread's own: a place is written again only after it was
 * polled, when the engine thread has long read it. Each side writes its count before it wakes the other,
 * and the other looks at the counts again before it sleeps, so no wake-up is lost.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/core_share.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/engine/draft_model.h"
#include "common/engine/engine_internal.h"
#include "common/engine/forward.h"
#include "common/engine/tp.h"

typedef struct model_engine {
    fg_engine base;
    fg_engine_bounds bounds;
    fg_tp *tp; /* NULL: the only rank */
    fg_forward *forward;
    fg_draft_model *draft; /* NULL: none */
    fg_core_share *share;
    void (*on_done)(void *ctx);
    void *ctx;
    fg_step *steps[FG_ENGINE_STEPS_MAX]; /* step n at n % FG_ENGINE_STEPS_MAX */
    _Atomic uint64_t begun;              /* written by the loop thread */
    _Atomic uint64_t ended;              /* written by the engine thread */
    uint64_t polled;                     /* the loop thread's */
    fg_engine_items before;              /* the loop thread's */
    _Atomic bool stop;
    fg_signal wake; /* raised after `begun` or `stop` was written */
    pthread_t thread;
} model_engine;

/* Gives the forward pass a step that is not begun yet. */
static void begin_step(model_engine *engine, fg_step *step, uint64_t began_ns)
{
    step->copy_ns_out = 0;
    if (step->copy_count > 0) {
        fg_clock clock = fg_clock_real();
        fg_forward_copy(engine->forward, step);
        step->copy_ns_out = fg_clock_now_ns(&clock) - began_ns;
    }
    fg_forward_begin(engine->forward, step);
}

/* While step `at` is in flight: begins the one after it as soon as that was given, or not at all. */
static void begin_next(model_engine *engine, uint64_t at)
{
    while (fg_forward_goes_ahead(engine->forward) && fg_forward_is_begun(engine->forward) &&
           !atomic_load_explicit(&engine->stop, memory_order_acquire)) {
        if (atomic_load_explicit(&engine->begun, memory_order_acquire) > at + 1) {
            fg_step *next = engine->steps[(at + 1) % FG_ENGINE_STEPS_MAX];
            next->copy_ns_out = 0;
            (void)fg_forward_begin_next(engine->forward, next);
            return;
        }
        if (!fg_forward_is_running(engine->forward)) {
            return;
        }
        fg_thread_relax();
    }
}

static void run_step(model_engine *engine, uint64_t at)
{
    fg_step *step = engine->steps[at % FG_ENGINE_STEPS_MAX];
    fg_clock clock = fg_clock_real();
    /* Of one that was begun behind another: when that one had ended. */
    step->began_ns_out = fg_clock_now_ns(&clock);
    if (engine->share != NULL) {
        fg_core_share_begin(engine->share);
    }
    if (!fg_forward_is_begun(engine->forward)) {
        begin_step(engine, step, step->began_ns_out);
    }
    begin_next(engine, at);
    fg_forward_end(engine->forward, step);
    step->compute_ns_out = fg_clock_now_ns(&clock) - step->began_ns_out;
    step->drafted_out = (fg_step_drafted){ 0 };
    if (step->ask_count > 0) {
        fg_draft_model_round(engine->draft, step);
    }
}

/* Runs whatever was begun, until there is nothing more or the engine is to stop and the device has nothing left. */
static void run_steps(model_engine *engine)
{
    uint64_t ended = atomic_load_explicit(&engine->ended, memory_order_relaxed);
    while (ended != atomic_load_explicit(&engine->begun, memory_order_acquire) &&
           (!atomic_load_explicit(&engine->stop, memory_order_acquire) ||
            fg_forward_is_begun(engine->forward))) {
        run_step(engine, ended);
        ended++;
        atomic_store_explicit(&engine->ended, ended, memory_order_release);
        if (engine->on_done != NULL) {
            engine->on_done(engine->ctx);
        }
    }
    if (engine->share != NULL) {
        fg_core_share_end(engine->share);
    }
}

static void *engine_main(void *ctx)
{
    model_engine *engine = ctx;
    uint32_t seen = 0;
    while (!atomic_load_explicit(&engine->stop, memory_order_acquire)) {
        seen = fg_signal_wait(&engine->wake, seen);
        run_steps(engine);
    }
    return NULL;
}

static fg_status model_begin(fg_engine *base, fg_step *step, fg_error *err)
{
    model_engine *engine = (model_engine *)base;
    uint64_t begun = atomic_load_explicit(&engine->begun, memory_order_relaxed);
    if (begun - engine->polled == FG_ENGINE_STEPS_MAX) {
        return fg_fail(err, FG_AGAIN, "%d steps are in flight", FG_ENGINE_STEPS_MAX);
    }
    fg_status status = fg_engine_check_step(&engine->bounds, &engine->before, step, err);
    if (status != FG_OK) {
        return status;
    }
    engine->before = (fg_engine_items){ .seqs = step->seqs, .count = step->seq_count };
    engine->steps[begun % FG_ENGINE_STEPS_MAX] = step;
    atomic_store_explicit(&engine->begun, begun + 1, memory_order_release);
    fg_signal_raise(&engine->wake);
    return FG_OK;
}

static fg_step *model_poll(fg_engine *base)
{
    model_engine *engine = (model_engine *)base;
    if (atomic_load_explicit(&engine->ended, memory_order_acquire) == engine->polled) {
        return NULL;
    }
    return engine->steps[engine->polled++ % FG_ENGINE_STEPS_MAX];
}

static void model_close(fg_engine *base)
{
    model_engine *engine = (model_engine *)base;
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    fg_signal_raise(&engine->wake);
    fg_thread_join(engine->thread);
    fg_tp_end(engine->tp);
    fg_draft_model_close(engine->draft);
    fg_forward_destroy(engine->forward);
    fg_tp_close(engine->tp);
    fg_mem_free(engine);
}

/* The forward pass, and the other ranks' where there are any: all load at the same time. */
static fg_status open_ranks(model_engine *engine, const fg_engine_options *options, fg_error *err)
{
    bool several = options->tp != NULL && options->tp->size > 1;
    fg_status status = several ? fg_tp_lead(options, &engine->tp, err) : FG_OK;
    if (status == FG_OK) {
        status = fg_forward_create(options, engine->tp, &engine->forward, err);
    }
    if (status == FG_OK && several) {
        status = fg_tp_wait_ready(engine->tp,
                                  fg_device_numerics(fg_forward_device(engine->forward)), err);
    }
    if (status == FG_OK && several) {
        status = fg_forward_open_comm(engine->forward, options->tp->way, err);
    }
    return status;
}

fg_forward_ahead fg_engine_model_went_ahead(const fg_engine *base)
{
    return fg_forward_went_ahead(((const model_engine *)base)->forward);
}

static void model_look(fg_engine *base)
{
    fg_tp_look(((model_engine *)base)->tp);
}

static const fg_engine_ops model_ops = {
    .look = model_look,
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
    engine->bounds =
        (fg_engine_bounds){ .limits = options->limits,
                            .vocab_size = options->hparams->vocab_size,
                            .block_size = options->layout.block_size,
                            .block_count = options->block_count,
                            .tier_block_count =
                                options->tier_arena == NULL ? 0 : options->tier_block_count };
    engine->share = options->share;
    engine->on_done = options->on_done;
    engine->ctx = options->ctx;
    engine->bounds.can_draft = options->draft != NULL;
    fg_status status = open_ranks(engine, options, err);
    if (status == FG_OK && options->draft != NULL) {
        status = fg_draft_model_open(options, &engine->draft, err);
    }
    if (status != FG_OK) {
        goto close;
    }
    const fg_device *device = fg_forward_device(engine->forward);
    engine->bounds.no_twins = !fg_device_is_host(device) || engine->tp != NULL;
    snprintf(engine->base.numerics_class, sizeof engine->base.numerics_class, "%s/kv-%s/tp1",
             fg_device_numerics(device), fg_dtype_name(options->layout.dtype));
    engine->base.start =
        (fg_engine_start){ .device = options->device == NULL ? "cpu" : options->device,
                           .isa = fg_device_isa(device),
                           .thread_count = fg_device_thread_count(device),
                           .rank_count = fg_tp_size(engine->tp),
                           .host_memory = !engine->bounds.no_twins,
                           .weights = fg_forward_weights(engine->forward) };
    if (engine->draft != NULL) {
        engine->base.start.draft_weights = fg_draft_model_weights(engine->draft);
    }
    if (!fg_thread_start(&engine->thread, engine_main, engine)) {
        status = fg_fail(err, FG_AGAIN, "the system gave no thread for the engine");
        goto close;
    }
    *engine_out = &engine->base;
    return FG_OK;

close:
    fg_draft_model_close(engine->draft);
    fg_tp_end(engine->tp);
    fg_forward_destroy(engine->forward);
    fg_tp_close(engine->tp);
    fg_mem_free(engine);
    return status;
}
