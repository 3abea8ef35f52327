/*
 * bench_dispatch [REQUESTS] - what the router itself adds to a request, without tokenizing and sockets:
 * from fg_dispatch_start to the frame in its worker's queue. Names of the prompt's blocks, lookup, score,
 * booking, encoding. Fleets of 8, 32, 128 and 256 workers, half of them for prompts; 200 system prompts
 * of 2,048 tokens that 8 workers each have; a request is one of these and a tail of its own. CPU time.
 *
 * Nobody answers, so requests stay where they are until they are cancelled: with few of them at a time the
 * fleet keeps up, and a call is one decision; with many most wait, and a call looks at the newcomer, then
 * places whatever came due meanwhile. Goal: p99 of a decision below 100 us at 128 workers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/block_key.h"
#include "proto/wire.h"
#include "router/dispatch.h"

enum {
    BLOCK = 16,
    SYSTEMS = 200,
    SYSTEM_TOKENS = 2048,
    SYSTEM_BLOCKS = SYSTEM_TOKENS / BLOCK,
    HOLDERS = 8,
    LIVE = 512,
    TICK = 67, /* requests between two ticks: 20 ms */
    PROMPT_MAX = SYSTEM_TOKENS + 1024,
};

typedef struct bench {
    uint64_t now_ns;
    fg_dispatch *dispatch;
    fg_rng rng;
    uint32_t *systems;
    fg_buf frame;
    uint32_t ended;
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_dispatch: %s failed\n", what);
        exit(1);
    }
}

static fg_status keep(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    return FG_OK;
}

static void drop(void *ctx, uint32_t peer)
{
    must(false, "keeping a worker");
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    must(finish == FG_FINISH_LENGTH, text);
    ((bench *)ctx)->ended++;
}

/* Of this thread: on a machine that does other things too, wall time shows those. */
static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void give(bench *b, uint32_t peer, const fg_msg *msg)
{
    fg_buf_clear(&b->frame);
    must(fg_wire_encode(msg, &b->frame), "encoding");
    fg_dispatch_on_frame(b->dispatch, peer, b->frame.data, b->frame.size);
}

static const fg_digest128 fingerprint = { 1, 2 }, secret = { 3, 4 };

static void join(bench *b, uint32_t peer, uint32_t roles)
{
    char name[32], identity[40];
    snprintf(name, sizeof name, "w%u", peer);
    snprintf(identity, sizeof identity, "%s#1", name);
    fg_dispatch_on_up(b->dispatch, peer, identity);
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION,
                                 .self = { .name = name, .epoch = 1 },
                                 .roles = roles,
                                 .able = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                 .fingerprint_low = fingerprint.low,
                                 .fingerprint_high = fingerprint.high,
                                 .numerics_class = "bench",
                                 .layer_count = 1,
                                 .kv_head_count = 1,
                                 .head_dim = 8,
                                 .block_size = BLOCK,
                                 .kv_dtype = 1,
                                 .block_count = 100000,
                                 .max_seqs = 256,
                                 .context_max = 100000,
                                 .speed = { .prefill_ns_base = 1000000,
                                            .prefill_ns_per_token = 20000,
                                            .step_ns_base = 10000000,
                                            .step_ns_per_row = 100000,
                                            .push_ns_per_block = 20000 },
                                 .link_record = "r",
                                 .link_record_bytes = 1 };
    give(b, peer, &msg);
}

static void tell(bench *b, uint32_t peer, uint64_t sequence, uint32_t system)
{
    uint64_t keys[SYSTEM_BLOCKS];
    fg_block_namer namer = { .secret = secret,
                             .identity = fg_block_identity(fingerprint, "bench", 1),
                             .block_size = BLOCK };
    fg_digest128 parent = fg_block_root(&namer, 0, 0);
    uint64_t root = parent.low;
    for (uint32_t i = 0; i < SYSTEM_BLOCKS; i++) {
        parent = fg_block_key(&namer, parent, i,
                              b->systems + (size_t)system * SYSTEM_TOKENS + (size_t)i * BLOCK);
        keys[i] = parent.low;
    }
    fg_wire_news row = {
        .change = FG_NEWS_STORED, .parent = root, .keys = keys, .key_count = SYSTEM_BLOCKS
    };
    fg_msg msg = { .kind = FG_MSG_NEWS };
    msg.news.sequence = sequence;
    msg.news.rows = &row;
    msg.news.count = 1;
    give(b, peer, &msg);
}

static void set_up(bench *b, uint32_t workers, fg_place_policy policy)
{
    *b = (bench){ .now_ns = 1, .rng = { 9 } };
    b->systems = fg_mem_array((size_t)SYSTEMS * SYSTEM_TOKENS, sizeof *b->systems);
    must(b->systems != NULL, "memory");
    for (uint32_t i = 0; i < SYSTEMS * SYSTEM_TOKENS; i++) {
        b->systems[i] = (uint32_t)fg_rng_below(&b->rng, 50000);
    }
    fg_buf_init(&b->frame, 0);
    fg_place_options place = fg_place_defaults();
    place.pull = 1.5; /* as `forge serve` has it */
    place.policy = policy;
    fg_dispatch_options options = {
        .clock = fg_clock_manual(&b->now_ns),
        .fingerprint = fingerprint,
        .cache_key = secret,
        .router_epoch = 1,
        .lease_ms = 100000,
        .limits = { .queued_max = 1000, .queued_tokens_max = 100000000, .live_max = 4000 },
        .place = place,
        .send = keep,
        .drop = drop,
        .ctx = b,
    };
    must(fg_dispatch_create(&options, &b->dispatch, NULL) == FG_OK, "creating a dispatcher");
    fg_dispatch_tick(b->dispatch);
    for (uint32_t i = 0; i < workers; i++) {
        join(b, i, i % 2 == 0 ? FG_ROLE_PREFILL : FG_ROLE_DECODE);
    }
    uint64_t *sequences = fg_mem_array(workers, sizeof *sequences);
    fg_msg reset = { .kind = FG_MSG_NEWS };
    fg_wire_news row = { .change = FG_NEWS_RESET };
    reset.news.rows = &row;
    reset.news.count = 1;
    for (uint32_t i = 0; i < workers; i++) {
        reset.news.sequence = ++sequences[i];
        give(b, i, &reset);
    }
    for (uint32_t s = 0; s < SYSTEMS; s++) {
        for (uint32_t h = 0; h < HOLDERS; h++) {
            uint32_t peer = (uint32_t)fg_rng_below(&b->rng, workers);
            tell(b, peer, ++sequences[peer], s);
        }
    }
    fg_mem_free(sequences);
}

/* What a call took, and how many requests it placed. */
typedef struct sample {
    uint64_t took, placed;
} sample;

static int by_took(const void *a, const void *b)
{
    const sample *x = a, *y = b;
    return x->took < y->took ? -1 : x->took > y->took;
}

/* What is measured, and what was seen. */
typedef struct result {
    uint32_t workers, at_once, count; /* requests at a time, and in all */
    fg_place_policy policy;
    sample *samples;
    uint64_t ticks_ns; /* CPU time of all ticks */
    fg_dispatch_stats stats;
} result;

static void report(result *r)
{
    double took = (double)r->ticks_ns, placed = (double)r->stats.placed;
    qsort(r->samples, r->count, sizeof *r->samples, by_took);
    for (uint32_t i = 0; i < r->count; i++) {
        took += (double)r->samples[i].took;
    }
    const sample *late = &r->samples[r->count - 1 - r->count / 100];
    printf("| %u | %s | %u | %.1f | %.1f | %llu | %.1f | %.1f | %.2f |\n", r->workers,
           fg_place_policy_name(r->policy), r->at_once, (double)r->samples[r->count / 2].took / 1e3,
           (double)late->took / 1e3, (unsigned long long)late->placed,
           (double)r->samples[r->count - 1].took / 1e3, took / 1e3 / placed,
           (double)r->stats.placed_split / placed);
}

/* One request after the other; the oldest of so many is cancelled for each new one. */
static void run(uint32_t workers, fg_place_policy policy, uint32_t at_once, uint32_t count)
{
    static uint64_t live[LIVE];
    static uint32_t prompts[LIVE][PROMPT_MAX];
    bench b;
    memset(live, 0, sizeof live);
    set_up(&b, workers, policy);
    result r = { .workers = workers, .at_once = at_once, .count = count, .policy = policy };
    r.samples = fg_mem_array(count, sizeof *r.samples);
    must(r.samples != NULL, "memory");
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i % at_once, tail = 16 + (uint32_t)fg_rng_below(&b.rng, 1000);
        uint32_t *prompt = prompts[at];
        if (live[at] != 0) {
            fg_dispatch_cancel(b.dispatch, live[at], FG_FINISH_CANCELLED, NULL);
        }
        memcpy(prompt, b.systems + fg_rng_below(&b.rng, SYSTEMS) * SYSTEM_TOKENS,
               SYSTEM_TOKENS * sizeof *prompt);
        for (uint32_t t = 0; t < tail; t++) {
            prompt[SYSTEM_TOKENS + t] = (uint32_t)fg_rng_below(&b.rng, 50000);
        }
        fg_dispatch_job job = { .tokens = prompt,
                                .token_count = SYSTEM_TOKENS + tail,
                                .params = { .top_p = 1, .max_tokens = 200 },
                                .sink = { .on_token = on_token, .on_end = on_end, .ctx = &b } };
        fg_error err;
        uint64_t placed = r.stats.placed, from = now();
        fg_status status = fg_dispatch_start(b.dispatch, &job, &live[at], &err);
        r.samples[i].took = now() - from;
        must(status == FG_OK, err.text);
        fg_dispatch_stats_get(b.dispatch, &r.stats);
        r.samples[i].placed = r.stats.placed - placed;
        b.now_ns += 300000;
        if (i % TICK == 0) {
            from = now();
            fg_dispatch_tick(b.dispatch);
            r.ticks_ns += now() - from;
        }
    }
    report(&r);
    for (uint32_t i = 0; i < at_once; i++) {
        fg_dispatch_cancel(b.dispatch, live[i], FG_FINISH_CANCELLED, NULL);
    }
    fg_dispatch_destroy(b.dispatch);
    fg_buf_deinit(&b.frame);
    fg_mem_free(b.systems);
    fg_mem_free(r.samples);
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20000;
    fg_log_set_level(FG_LOG_OFF);
    if (count == 0) {
        fprintf(stderr, "usage: bench_dispatch [REQUESTS]\n");
        return 2;
    }
    printf("| workers | routing | at once | p50 us | p99 us | placed in that call | longest us | "
           "us a placement | split |\n"
           "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n");
    static const uint32_t fleets[] = { 8, 32, 128, 256 };
    for (size_t i = 0; i < sizeof fleets / sizeof *fleets; i++) {
        run(fleets[i], FG_PLACE_COST, fleets[i] / 4, count);
        run(fleets[i], FG_PLACE_COST, LIVE, count);
    }
    run(128, FG_PLACE_ROUND_ROBIN, LIVE, count);
    return 0;
}
