/*
 * bench_queue [ROUNDS] - the time that one request's way through the waiting line takes: push, peek, take
 * and remove, with so many waiting, of so many tenants. Requests come with all priorities and costs. Best
 * of ROUNDS batches, since everything that disturbs only adds.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/queue.h"

enum { ITEMS_MAX = FG_LIMIT_LIVE_REQUESTS, TURNS = 200000, ROUNDS_MAX = 1000 };

typedef struct bench {
    fg_queue *queue;
    fg_queue_item *items;
    fg_rng rng;
    uint32_t tenants;
    uint64_t now_ns, next_id;
} bench;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_queue: %s failed\n", what);
        exit(1);
    }
}

static uint64_t clock_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static void push(bench *b, fg_queue_item *item)
{
    uint64_t drawn = fg_rng_next(&b->rng);
    b->now_ns += 100000;
    *item = (fg_queue_item){ .id = ++b->next_id,
                             .tenant = fg_hash_mix(1 + drawn % b->tenants),
                             .queued_ns = b->now_ns,
                             .give_up_ns = b->now_ns + (drawn >> 40),
                             .priority = (int32_t)((drawn >> 32) % 3) - 1,
                             .tokens = 1,
                             .cost = 1 + (uint32_t)(drawn >> 24) % 4096 };
    must(fg_queue_push(b->queue, item) == FG_OK, "push");
}

static double best_ns(bench *b, uint32_t waiting, int rounds)
{
    fg_queue_options options = { .requests_max = ITEMS_MAX,
                                 .tokens_max = ITEMS_MAX,
                                 .live_max = ITEMS_MAX };
    must(fg_queue_create(&options, &b->queue, NULL) == FG_OK, "memory");
    for (uint32_t i = 0; i < waiting; i++) {
        push(b, &b->items[i]);
    }
    double best = 1e30;
    for (int r = 0; r < rounds; r++) {
        uint64_t start = clock_ns();
        for (uint32_t i = 0; i < TURNS; i++) {
            fg_queue_item *item = fg_queue_peek(b->queue, b->now_ns);
            fg_queue_take(b->queue, item);
            fg_queue_remove(b->queue, item, item->cost);
            push(b, item);
        }
        double ns = (double)(clock_ns() - start) / TURNS;
        best = ns < best ? ns : best;
    }
    fg_queue_check(b->queue);
    fg_queue_destroy(b->queue);
    return best;
}

int main(int argc, char **argv)
{
    static const uint32_t waits[] = { 1, 100, ITEMS_MAX };
    static const uint32_t tenants[] = { 1, 10, 100, 1000, 10000 };
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    must(rounds >= 1 && rounds <= ROUNDS_MAX, "reading ROUNDS (1 to 1000)");
    bench b = { .items = fg_mem_array(ITEMS_MAX, sizeof *b.items) };
    must(b.items != NULL, "memory");
    printf("%8s %8s %12s\n", "waiting", "tenants", "ns/request");
    for (size_t w = 0; w < sizeof waits / sizeof *waits; w++) {
        for (size_t t = 0; t < sizeof tenants / sizeof *tenants; t++) {
            b.rng.state = 1;
            b.tenants = tenants[t];
            b.now_ns = 1000000000;
            double ns = best_ns(&b, waits[w], rounds);
            printf("%8u %8u %12.0f\n", waits[w], tenants[t], ns);
        }
    }
    fg_mem_free(b.items);
    return 0;
}
