#include "tests/unit/router/dispatch_bench.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/support/test.h"

static fg_status keep(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    bench *b = ctx;
    fg_error err = { 0 };
    if (peer == b->refuse_peer) {
        return FG_AGAIN;
    }
    cr_assert(b->sent_count < SENT_MAX);
    b->sent[b->sent_count].peer = peer;
    cr_assert_eq(fg_wire_decode(bytes, size_bytes, b->inbox, &b->sent[b->sent_count++].msg, &err),
                 FG_OK, "%s", err.text);
    return FG_OK;
}

static void drop(void *ctx, uint32_t peer)
{
    bench *b = ctx;
    b->dropped[b->dropped_count++ % 16] = peer;
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
    bench *b = ctx;
    cr_assert_eq(index, b->token_count);
    b->tokens[b->token_count++] = id;
    if (b->cancel_on_token != 0) {
        fg_dispatch_cancel(b->dispatch, b->cancel_on_token, FG_FINISH_STOP, NULL);
    }
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    bench *b = ctx;
    cr_assert_not_null(report);
    b->end_count++;
    b->finish = finish;
    b->status = status;
    b->report = *report;
    snprintf(b->text, sizeof b->text, "%s", text);
}

fg_dispatch_options bench_options(bench *b)
{
    fg_place_options place = fg_place_defaults();
    place.split = FG_PLACE_ALWAYS;
    return (fg_dispatch_options){
        .place = place,
        .residency_bytes = 1 << 20,
        .clock = fg_clock_manual(&b->now_ns),
        .fingerprint = { 1, 2 },
        .cache_key = { 0xC0FFEE, 0xBEEF },
        .router_epoch = 77,
        .lease_ms = 1000,
        .limits = { .queued_max = 2, .queued_tokens_max = 1000, .live_max = 100 },
        .send = keep,
        .drop = drop,
        .ctx = b
    };
}

void bench_open_with(bench *b, const fg_dispatch_options *options)
{
    fg_log_set_level(FG_LOG_OFF);
    *b = (bench){ .now_ns = 1000000000u, .params = { .top_p = 1.0f } };
    b->inbox = fg_arena_create(1 << 20);
    cr_assert_eq(fg_dispatch_create(options, &b->dispatch, NULL), FG_OK);
    fg_dispatch_tick(b->dispatch);
}

void bench_open(bench *b)
{
    fg_dispatch_options options = bench_options(b);
    bench_open_with(b, &options);
}

void bench_close(bench *b)
{
    fg_dispatch_check(b->dispatch);
    fg_dispatch_destroy(b->dispatch);
    fg_arena_destroy(b->inbox);
}

void bench_give(bench *b, uint32_t peer, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    cr_assert(fg_wire_encode(msg, &frame));
    fg_dispatch_on_frame(b->dispatch, peer, frame.data, frame.size);
    fg_dispatch_check(b->dispatch);
    fg_buf_deinit(&frame);
}

fg_wire_hello bench_hello(const char *name, uint32_t roles)
{
    return (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION,
                            .self = { .name = name, .epoch = 1 },
                            .roles = roles,
                            .able = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                            .fingerprint_low = 1,
                            .fingerprint_high = 2,
                            .numerics_class = "c",
                            .layer_count = 1,
                            .kv_head_count = 1,
                            .head_dim = 8,
                            .block_size = 4,
                            .kv_dtype = 1,
                            .block_count = 10,
                            .max_seqs = 4,
                            .context_max = 100,
                            .link_record = "r",
                            .link_record_bytes = 1 };
}

void bench_join(bench *b, uint32_t peer, const char *name, uint32_t roles)
{
    fg_msg msg = { .kind = FG_MSG_HELLO, .hello = bench_hello(name, roles) };
    char identity[40];
    snprintf(identity, sizeof identity, "%s#1", name);
    fg_dispatch_on_up(b->dispatch, peer, identity);
    bench_give(b, peer, &msg);
}

void bench_join_pair(bench *b)
{
    bench_join(b, P, "p", FG_ROLE_PREFILL);
    bench_join(b, D, "d", FG_ROLE_DECODE);
    b->sent_count = 0;
}

fg_dispatch_sink bench_sink(bench *b)
{
    return (fg_dispatch_sink){ .on_token = on_token, .on_end = on_end, .ctx = b };
}

fg_status bench_start(bench *b, uint32_t prompt, uint32_t max_tokens, uint64_t *id)
{
    static const uint32_t tokens[200] = { 5 };
    fg_dispatch_job job = { .tokens = tokens,
                            .token_count = prompt,
                            .params = b->params,
                            .tenant = b->tenant,
                            .sink = bench_sink(b) };
    fg_error err;
    job.params.max_tokens = max_tokens;
    return fg_dispatch_start(b->dispatch, &job, id, &err);
}

void bench_pass(bench *b, uint32_t ms)
{
    for (uint32_t i = 0; i < ms / 100; i++) {
        b->now_ns += 100000000u;
        fg_dispatch_tick(b->dispatch);
    }
}

const fg_msg *bench_sent(const bench *b, uint32_t peer, fg_msg_kind kind)
{
    for (uint32_t i = 0; i < b->sent_count; i++) {
        if (b->sent[i].peer == peer && b->sent[i].msg.kind == kind) {
            return &b->sent[i].msg;
        }
    }
    return NULL;
}

uint32_t bench_sent_count(const bench *b, uint32_t peer, fg_msg_kind kind)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->sent_count; i++) {
        count += b->sent[i].peer == peer && b->sent[i].msg.kind == kind;
    }
    return count;
}

void bench_ticket(bench *b, uint64_t id, uint32_t attempt)
{
    fg_msg msg = { .kind = FG_MSG_TICKET, .request = id, .attempt = attempt };
    static const uint32_t blocks[] = { 3, 1 };
    msg.ticket.granted = true;
    msg.ticket.ticket = 99;
    msg.ticket.blocks = blocks;
    msg.ticket.block_count = 2;
    bench_give(b, D, &msg);
}

void bench_first_of(bench *b, uint64_t id, uint32_t attempt, uint32_t token, uint64_t digest)
{
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = id, .attempt = attempt };
    msg.first.id = token;
    msg.first.digest = digest;
    bench_give(b, P, &msg);
}

void bench_token_of(bench *b, uint64_t id, uint32_t attempt, uint32_t index, uint32_t value,
                    uint64_t digest)
{
    fg_wire_token one = {
        .request = id, .attempt = attempt, .index = index, .id = value, .digest = digest
    };
    fg_msg msg = { .kind = FG_MSG_TOKENS };
    msg.tokens.tokens = &one;
    msg.tokens.count = 1;
    bench_give(b, D, &msg);
}

void bench_done_of(bench *b, uint32_t peer, uint64_t id, uint32_t attempt, fg_finish finish,
                   uint32_t generated)
{
    fg_msg msg = { .kind = FG_MSG_DONE, .request = id, .attempt = attempt };
    msg.done.finish = finish;
    msg.done.text = finish == FG_FINISH_ERROR ? "broken" : "";
    msg.done.generated = generated;
    bench_give(b, peer, &msg);
}

void bench_first(bench *b, uint64_t id, uint32_t token)
{
    bench_first_of(b, id, 1, token, 0);
}

void bench_token(bench *b, uint64_t id, uint32_t index, uint32_t value)
{
    bench_token_of(b, id, 1, index, value, 0);
}

void bench_done(bench *b, uint32_t peer, uint64_t id, fg_finish finish, uint32_t generated)
{
    bench_done_of(b, peer, id, 1, finish, generated);
}
