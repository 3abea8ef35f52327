/*
 * bench_room [ROUNDS] [PROMPT_TOKENS] [RUNNING] [LOAD] [RECORDER_MB] [GUESSES] - processor time that a worker's own bookkeeping takes
 * per step, by number of running requests: one step booked, the next one planned, built, checked by the
 * engine and begun, tokens encoded and given to a `send` that drops them, and one tick of the timer. The
 * engine is the simulated one, two steps are in flight, and its computing lies outside of what is timed.
 *
 *   decode    every request decodes; nobody comes or goes
 *   sampled   likewise, every token with its own temperature, seed and digest
 *   churn     answers of 64 tokens or more, an arrival for each that ends (at most 8 a step); all that an
 *             arrival and an end take is in the time
 *   cold      decode, with the caches of the processor swept before each step, as a model would
 *
 * RECORDER_MB: of a flight recorder, 0 for none. GUESSES: --draft-max, 0 for none; the prompt is looked through for each token. Thread CPU time, the median of ROUNDS batches of steps and the lowest. "engine's checks" is the part of
 * fg_engine_begin. Goal: 20 us + 0.3 us a request; floor: 60 us + 1.0 us a request.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/dtype.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/engine_sim.h"
#include "common/worker/worker.h"
#include "common/worker/worker_records.h"

enum {
    RUNNING_MAX = 4096,
    BLOCK_SIZE = 16,
    VOCAB = 50000,
    BATCH_STEPS = 16,
    ROUNDS_MAX = 200,
    CHURN_TOKENS = 64,
    CHURN_ARRIVALS = 8, /* in a step, at most: answers are longer where more would end */
    SETTLE_STEPS = 600, /* a plan admits 16 at most, and a chunk is computed in a step */
    STEP_NS = 20000000,
    CACHE_BYTES = 64 << 20,
};

typedef enum load_kind { DECODE, SAMPLED, CHURN, COLD, LOADS } load_kind;
static const char *const load_names[] = { "decode", "sampled", "churn", "cold" };

static uint32_t recorder_mb, guesses;

typedef struct bench {
    fg_engine engine; /* what the worker sees: times begin, and passes on */
    fg_engine *sim;
    fg_worker *worker;
    void *arena;
    uint64_t now_ns, next_request, ended;
    uint64_t begin_ns;
    uint64_t sent_bytes;
    bool time_begin;
    load_kind load;
    uint32_t running, prompt_count, max_tokens;
    uint32_t *prompt;
    uint8_t *sweep;
    fg_flight *flight;
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_room: %s failed\n", what);
        exit(1);
    }
}

static uint64_t cpu_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

/* ---- the engine between worker and simulation ---- */

static bench *bench_of(fg_engine *engine)
{
    return (bench *)(void *)((uint8_t *)engine - offsetof(bench, engine));
}

static fg_status pass_begin(fg_engine *engine, fg_step *step, fg_error *err)
{
    bench *b = bench_of(engine);
    if (!b->time_begin) {
        return fg_engine_begin(b->sim, step, err);
    }
    uint64_t at = cpu_ns();
    fg_status status = fg_engine_begin(b->sim, step, err);
    b->begin_ns += cpu_ns() - at;
    return status;
}

static fg_step *pass_poll(fg_engine *engine)
{
    return fg_engine_poll(bench_of(engine)->sim);
}

static void pass_close(fg_engine *engine)
{
    fg_engine_close(bench_of(engine)->sim);
}

static const fg_engine_ops pass_ops = { .begin = pass_begin,
                                        .poll = pass_poll,
                                        .close = pass_close };

/* ---- the router's side ---- */

static fg_status drop(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    (void)bytes;
    ((bench *)ctx)->sent_bytes += size_bytes;
    return FG_OK;
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
    (void)ctx;
    (void)epoch;
    must(false, "staying connected");
}

static bool is_end(void *ctx, uint32_t token)
{
    (void)ctx;
    (void)token;
    return false;
}

static void on_step(void *ctx, const fg_trace_step *step)
{
    ((bench *)ctx)->ended += step->finished;
}

static void give(bench *b, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    must(fg_wire_encode(msg, &frame), "encoding");
    fg_worker_on_frame(b->worker, 0, frame.data, frame.size);
    fg_buf_deinit(&frame);
}

static uint32_t churn_tokens(uint32_t running)
{
    return running / CHURN_ARRIVALS > CHURN_TOKENS ? running / CHURN_ARRIVALS : CHURN_TOKENS;
}

/* A prompt of its own for each, so that nothing is shared. */
static void ask(bench *b)
{
    uint64_t request = ++b->next_request;
    for (uint32_t i = 0; i < b->prompt_count; i++) {
        b->prompt[i] = (uint32_t)((request * 2654435761u + i * 40503u) % VOCAB);
    }
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = request, .attempt = 1 };
    msg.prefill.tokens = b->prompt;
    msg.prefill.token_count = b->prompt_count;
    msg.prefill.sampling = (fg_wire_params){ .top_p = 1.0f,
                                             .max_tokens = b->max_tokens,
                                             .ignore_eos = true,
                                             .priority = FG_PRIORITY_NORMAL,
                                             .cache_mode = FG_CACHE_AUTO };
    if (b->load == SAMPLED) {
        msg.prefill.sampling.temperature = 0.8f;
        msg.prefill.sampling.seed = request;
        msg.prefill.sampling.want_digests = true;
    }
    if (b->load == CHURN) { /* so that they do not all end in one step */
        uint32_t tokens = churn_tokens(b->running);
        msg.prefill.sampling.max_tokens =
            request <= b->running ? (uint32_t)(request % tokens) + SETTLE_STEPS / 2 : tokens;
    }
    give(b, &msg);
}

/* ---- one worker ---- */

static void open_flight(bench *b, fg_worker_options *options, uint32_t megabytes)
{
    fg_work_options preface = fg_work_put_options(options);
    fg_flight_options flight = { .bytes = (size_t)megabytes << 20,
                                 .shape = fg_work_shape(),
                                 .process = "bench",
                                 .directory = ".",
                                 .preface = &preface,
                                 .preface_bytes = sizeof preface };
    must(fg_flight_create(&flight, &b->flight, NULL) == FG_OK, "recorder");
    options->flight = b->flight;
}

static void open_bench(bench *b, load_kind load, uint32_t running, uint32_t prompt, uint32_t steps)
{
    *b = (bench){ .engine = { .ops = &pass_ops, .numerics_class = "sim/k1/kv-f16/tp1" },
                  .now_ns = 1000000000u,
                  .load = load,
                  .running = running,
                  .prompt_count = prompt,
                  .max_tokens = steps + SETTLE_STEPS };
    fg_error err = { 0 };
    fg_kv_layout layout;
    must(fg_kv_layout_init(&layout, 1, 1, 8, BLOCK_SIZE, FG_F16, &err) == FG_OK, "layout");
    uint32_t context = prompt + b->max_tokens;
    uint32_t blocks = (running + 64) * (context / BLOCK_SIZE + 1);
    b->arena = fg_mem_array(blocks, layout.block_bytes);
    b->prompt = fg_mem_array(prompt, sizeof *b->prompt);
    b->sweep = load == COLD ? fg_mem_array(CACHE_BYTES, 1) : NULL;
    must(b->arena != NULL && b->prompt != NULL && (load != COLD || b->sweep != NULL), "memory");
    uint32_t budget = RUNNING_MAX + 4096;
    fg_engine_sim_options sim = { .layout = layout,
                                  .arena = b->arena,
                                  .block_count = blocks,
                                  .limits = { budget, RUNNING_MAX, context },
                                  .vocab_size = VOCAB,
                                  .eos_token = UINT32_MAX,
                                  .manual = true,
                                  .quick = true,
                                  .step_ns = { .base = 1000000, .decode_row = 1000 } };
    must(fg_engine_open_sim(&sim, &b->sim, &err) == FG_OK, "engine");
    fg_worker_options options = { .name = "bench",
                                  .epoch = 1,
                                  .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                  .clock = fg_clock_manual(&b->now_ns),
                                  .engine = &b->engine,
                                  .layout = layout,
                                  .block_count = blocks,
                                  .context_max = context,
                                  .vocab_size = VOCAB,
                                  .limits = { .step_tokens_max = budget,
                                              .chunk_tokens_max = 512,
                                              .seqs_max = RUNNING_MAX,
                                              .block_size = BLOCK_SIZE,
                                              .draft_max = guesses,
                                              .watermark_blocks = blocks / 100 },
                                  .overlap = true,
                                  .prefix_cache = true,
                                  .trace = fg_trace_create("bench", 4096, 4096),
                                  .is_end = is_end,
                                  .on_step = on_step,
                                  .send = drop,
                                  .reconnect = reconnect,
                                  .ctx = b };
    if (recorder_mb > 0) {
        open_flight(b, &options, recorder_mb);
    }
    must(fg_worker_create(&options, &b->worker, &err) == FG_OK, "worker");
}

static void close_bench(bench *b)
{
    fg_trace *trace = fg_worker_config(b->worker)->trace;
    fg_worker_destroy(b->worker);
    fg_engine_close(&b->engine);
    fg_trace_destroy(trace);
    fg_flight_destroy(b->flight);
    fg_mem_free(b->arena);
    fg_mem_free(b->prompt);
    fg_mem_free(b->sweep);
}

static void sweep_caches(bench *b)
{
    for (size_t i = 0; i < CACHE_BYTES; i += 64) {
        b->sweep[i]++;
    }
    __asm__ volatile("" ::"r"(b->sweep) : "memory");
}

/* One step; its processor time without the engine's. */
static uint64_t step(bench *b)
{
    must(fg_engine_sim_complete(b->sim), "finding a step to compute");
    b->now_ns += STEP_NS;
    if (b->load == COLD) {
        sweep_caches(b);
    }
    uint64_t at = cpu_ns();
    uint64_t ended = b->ended;
    fg_worker_on_engine(b->worker);
    fg_worker_tick(b->worker);
    for (; b->load == CHURN && ended < b->ended; ended++) {
        ask(b);
    }
    return cpu_ns() - at;
}

static uint64_t median(uint64_t *values, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        for (uint32_t j = i; j > 0 && values[j] < values[j - 1]; j--) {
            uint64_t swap = values[j];
            values[j] = values[j - 1];
            values[j - 1] = swap;
        }
    }
    return values[count / 2];
}

/* Two reads of the clock, which every measured span holds once. */
static uint64_t clock_cost_ns(void)
{
    uint64_t values[101];
    for (int i = 0; i < 101; i++) {
        uint64_t at = cpu_ns();
        values[i] = cpu_ns() - at;
    }
    return median(values, 101);
}

static uint64_t batch_ns(bench *b)
{
    uint64_t sum = 0;
    for (int i = 0; i < BATCH_STEPS; i++) {
        sum += step(b);
    }
    return sum / BATCH_STEPS;
}

static void settle(bench *b)
{
    fg_worker_on_up(b->worker, 0);
    give(b,
         &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 2000 } });
    for (uint32_t i = 0; i < b->running; i++) {
        ask(b);
    }
    fg_worker_stats stats = { 0 };
    for (uint32_t steps = 0; steps < SETTLE_STEPS; steps++) {
        step(b);
        fg_worker_stats_get(b->worker, &stats);
        bool settled = stats.running == b->running && stats.waiting == 0 &&
                       stats.prompt_tokens >= (uint64_t)b->running * b->prompt_count;
        if (b->load == CHURN ? b->ended >= b->running + 8u : settled) {
            return;
        }
    }
    must(b->load == CHURN, "settling");
}

static void measure(load_kind load, uint32_t running, uint32_t prompt, uint32_t rounds)
{
    bench b;
    open_bench(&b, load, running, prompt, (2 * rounds + 2) * BATCH_STEPS);
    settle(&b);
    uint64_t clock_ns = clock_cost_ns();
    uint64_t times[ROUNDS_MAX] = { 0 };
    uint64_t sent = b.sent_bytes;
    batch_ns(&b);
    sent = b.sent_bytes - sent;
    for (uint32_t i = 0; i < rounds; i++) {
        times[i] = batch_ns(&b);
        times[i] -= times[i] > clock_ns ? clock_ns : times[i];
    }
    double middle = (double)median(times, rounds) * 1e-3;
    double least = (double)times[0] * 1e-3;
    b.time_begin = true;
    uint64_t checks[ROUNDS_MAX] = { 0 };
    for (uint32_t i = 0; i < rounds; i++) {
        b.begin_ns = 0;
        batch_ns(&b);
        checks[i] = b.begin_ns / BATCH_STEPS;
        checks[i] -= checks[i] > clock_ns ? clock_ns : checks[i];
    }
    double check = (double)median(checks, rounds) * 1e-3;
    double goal = 20 + 0.3 * running;
    double floor_us = 60 + 1.0 * running;
    printf("%-8s %8u %10.2f %10.2f %10.1f %10.2f %8.1f %8.1f %9.2f %10llu\n", load_names[load],
           running, middle, least, 1e3 * middle / running, check, goal, floor_us, middle / goal,
           (unsigned long long)sent / BATCH_STEPS);
    fflush(stdout);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    static const uint32_t counts[] = { 1, 16, 64, 256, 1024, 4096 };
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 9;
    uint32_t prompt = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 256;
    uint32_t only = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    recorder_mb = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    guesses = argc > 6 ? (uint32_t)strtoul(argv[6], NULL, 10) : 0;
    must(guesses <= FG_LOOKAHEAD_MAX, "reading GUESSES (0 to 8)");
    must(rounds >= 1 && rounds <= ROUNDS_MAX, "reading ROUNDS (1 to 200)");
    must(prompt >= 1 && prompt <= 65536, "reading PROMPT_TOKENS (1 to 65536)");
    must(only <= RUNNING_MAX, "reading RUNNING (at most 4096)");
    fg_log_set_level(FG_LOG_WARN);
    printf("%-8s %8s %10s %10s %10s %10s %8s %8s %9s %10s\n", "load", "running", "us/step",
           "lowest", "ns/request", "checks us", "goal us", "floor us", "of goal", "bytes/step");
    for (int load = 0; load < LOADS; load++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            if ((only == 0 || only == counts[i]) &&
                (argc <= 4 || strcmp(argv[4], load_names[load]) == 0)) {
                measure((load_kind)load, counts[i], prompt, rounds);
            }
        }
    }
    return 0;
}
