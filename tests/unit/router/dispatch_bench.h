/*
 * dispatch_bench - a dispatcher whose bus, clock, workers and owner are played by the test. The
 * workers that bench_join adds have blocks of 4 tokens, 10 of them, 4 slots and 100 tokens of context.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_DISPATCH_BENCH_H
#define FORGE_TESTS_UNIT_ROUTER_DISPATCH_BENCH_H

#include "common/base/arena.h"
#include "router/dispatch.h"

enum { SENT_MAX = 128, P = 10, D = 11 }; /* bus handles of a prefill and a decode worker */

typedef struct bench {
    uint64_t now_ns;
    fg_dispatch *dispatch;
    fg_arena *inbox;
    struct {
        uint32_t peer;
        fg_msg msg;
    } sent[SENT_MAX];
    uint32_t sent_count;
    uint32_t dropped[16], dropped_count;
    uint32_t tokens[64], token_count, end_count;
    fg_finish finish;
    fg_status status;
    char text[200];
    fg_dispatch_report report; /* of the last request that ended */
    fg_wire_params params;     /* of the next request, but for max_tokens */
    uint64_t tenant;           /* likewise */
    uint32_t refuse_peer;      /* its queue of frames is full */
    uint64_t cancel_on_token;  /* a request to cancel from inside on_token */
} bench;

fg_dispatch_options bench_options(bench *b);
void bench_open(bench *b);
void bench_open_with(bench *b, const fg_dispatch_options *options);
/* Checks the books first. */
void bench_close(bench *b);
/* A frame from a worker. */
void bench_give(bench *b, uint32_t peer, const fg_msg *msg);
/* What bench_join's workers say of themselves. */
fg_wire_hello bench_hello(const char *name, uint32_t roles);
void bench_join(bench *b, uint32_t peer, const char *name, uint32_t roles);
/* P and D, with what was sent so far forgotten. */
void bench_join_pair(bench *b);
/* Keeps what a request is told in `b`. */
fg_dispatch_sink bench_sink(bench *b);
fg_status bench_start(bench *b, uint32_t prompt, uint32_t max_tokens, uint64_t *id);
/* Time goes by as in a process: with a tick now and then. */
void bench_pass(bench *b, uint32_t ms);
/* The first such message to `peer`, or NULL. */
const fg_msg *bench_sent(const bench *b, uint32_t peer, fg_msg_kind kind);
uint32_t bench_sent_count(const bench *b, uint32_t peer, fg_msg_kind kind);
/* What D and P say about a request, in its first attempt unless told. */
void bench_ticket(bench *b, uint64_t id, uint32_t attempt);
void bench_first(bench *b, uint64_t id, uint32_t token);
void bench_token(bench *b, uint64_t id, uint32_t index, uint32_t value);
void bench_done(bench *b, uint32_t peer, uint64_t id, fg_finish finish, uint32_t generated);
/* The same of any attempt. */
void bench_first_of(bench *b, uint64_t id, uint32_t attempt, uint32_t token, uint64_t digest);
void bench_token_of(bench *b, uint64_t id, uint32_t attempt, uint32_t index, uint32_t value,
                    uint64_t digest);
void bench_done_of(bench *b, uint32_t peer, uint64_t id, uint32_t attempt, fg_finish finish,
                   uint32_t generated);

#endif
