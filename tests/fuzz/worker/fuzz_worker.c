/*
 * Any bytes as what a hostile router says to two real workers, each message well formed and otherwise as it
 * likes: tickets of one given to the other, to nobody or twice, peers that do not exist, losses that are
 * none, requests that come again. Steps, transfers and time go on in between. The books of both are
 * recounted after each step, and when both have left and everything has settled, no block is missing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/engine/engine_sim.h"
#include "common/worker/worker.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

enum {
    WORKERS = 2,
    BLOCKS = 24,
    BLOCK_SIZE = 4,
    VOCAB = 50,
    EOS = 3,
    CONTEXT = 80,
    STEPS_MAX = 400
};

typedef struct side {
    struct world *world;
    char name[4];
    uint64_t epoch; /* of its connection */
    void *arena;
    fg_engine *engine;
    fg_link *link;
    fg_worker *worker;
    struct {
        uint64_t ticket;
        uint32_t first, count, blocks[BLOCKS];
    } ticket; /* the newest that it gave */
} side;

typedef struct world {
    const uint8_t *bytes;
    size_t size, at;
    uint64_t now_ns;
    fg_kv_layout layout;
    fg_link_hub *hub;
    fg_arena *inbox;
    side sides[WORKERS];
    bool foreign; /* a PREFILL named blocks that nobody gave for it: what they hold is spoilt */
} world;

static uint8_t next(world *w)
{
    return w->at < w->size ? w->bytes[w->at++] : 0;
}

/* ---- the workers' surroundings ---- */

static fg_status hear(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    side *s = ctx;
    fg_msg msg;
    fg_error err;
    fg_arena_reset(s->world->inbox);
    fg_status status = fg_wire_decode(bytes, size_bytes, s->world->inbox, &msg, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    if (msg.kind == FG_MSG_HELLO) {
        s->epoch = msg.hello.self.epoch;
    } else if (msg.kind == FG_MSG_TICKET && msg.ticket.granted && !msg.ticket.local) {
        FG_ASSERT(msg.ticket.block_count > 0 && msg.ticket.block_count <= BLOCKS);
        s->ticket.ticket = msg.ticket.ticket;
        s->ticket.first = msg.ticket.first_block;
        s->ticket.count = msg.ticket.block_count;
        memcpy(s->ticket.blocks, msg.ticket.blocks, msg.ticket.block_count * sizeof(uint32_t));
    }
    return FG_OK;
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
}

static bool is_end(void *ctx, uint32_t token)
{
    return token == EOS;
}

static void to_commit(void *ctx, const fg_link_commit *commit)
{
    fg_link_events events = fg_worker_link_events(((side *)ctx)->worker);
    events.on_commit(events.ctx, commit);
}

static void to_fenced(void *ctx, uint64_t ticket)
{
    fg_link_events events = fg_worker_link_events(((side *)ctx)->worker);
    events.on_fenced(events.ctx, ticket);
}

static void to_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    fg_link_events events = fg_worker_link_events(((side *)ctx)->worker);
    events.on_answer(events.ctx, ticket, bad, bad_count);
}

static void to_drained(void *ctx, uint64_t ticket, fg_status why)
{
    fg_link_events events = fg_worker_link_events(((side *)ctx)->worker);
    events.on_drained(events.ctx, ticket, why);
}

static void open_side(world *w, uint32_t index)
{
    side *s = &w->sides[index];
    *s = (side){ .world = w, .epoch = 5 };
    snprintf(s->name, sizeof s->name, "w%u", index);
    fg_link_options link = { .block_bytes = w->layout.block_bytes,
                             .block_count = BLOCKS,
                             .events = { to_commit, to_fenced, to_answer, to_drained, s } };
    FG_ASSERT(fg_link_open_mem(w->hub, s->name, 5, &link, &s->link, NULL) == FG_OK);
    fg_engine_sim_options engine = { .layout = w->layout,
                                     .arena = fg_link_arena(s->link),
                                     .block_count = BLOCKS,
                                     .limits = { 16, 4, CONTEXT },
                                     .vocab_size = VOCAB,
                                     .eos_token = EOS,
                                     .manual = true };
    FG_ASSERT(fg_engine_open_sim(&engine, &s->engine, NULL) == FG_OK);
    uint32_t draft_max = next(w) % (1 + FG_LOOKAHEAD_MAX);
    fg_worker_options options = { .name = s->name,
                                  .epoch = 5,
                                  .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                  .clock = fg_clock_manual(&w->now_ns),
                                  .engine = s->engine,
                                  .link = s->link,
                                  .layout = w->layout,
                                  .block_count = BLOCKS,
                                  .context_max = CONTEXT,
                                  .vocab_size = VOCAB,
                                  .limits = { .step_tokens_max = 16,
                                              .chunk_tokens_max = 8,
                                              .seqs_max = 4,
                                              .block_size = BLOCK_SIZE,
                                              .draft = FG_DRAFT_FIXED,
                                              .draft_max = draft_max },
                                  .overlap = next(w) & 1,
                                  .prefix_cache = next(w) & 1,
                                  .local_prefill_max = next(w) % 16,
                                  .prefill = fg_prefill_policy(),
                                  .decode = fg_decode_policy(),
                                  .is_end = is_end,
                                  .send = hear,
                                  .reconnect = reconnect,
                                  .ctx = s };
    FG_ASSERT(fg_worker_create(&options, &s->worker, NULL) == FG_OK);
}

static void give(side *s, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    FG_ASSERT(fg_wire_encode(msg, &frame));
    fg_worker_on_frame(s->worker, 0, frame.data, frame.size);
    fg_buf_deinit(&frame);
}

static void join(side *s)
{
    fg_worker_on_up(s->worker, 0);
    give(s, &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 800 } });
}

static void introduce(world *w, side *to, const side *about, uint8_t how)
{
    fg_buf record;
    fg_buf_init(&record, 1 << 16);
    FG_ASSERT(fg_link_describe(about->link, &record));
    fg_msg msg = { .kind = FG_MSG_PEER };
    msg.peer.peer = (fg_wire_peer){ .name = about->name, .epoch = about->epoch + (how & 1) };
    msg.peer.link_record = record.data;
    msg.peer.link_record_bytes = how & 2 ? next(w) % (record.size + 1) : record.size;
    give(to, &msg);
    fg_buf_deinit(&record);
}

/* ---- what the router says of requests ---- */

static void ask(world *w, side *s, const side *other, bool reserve)
{
    static const uint32_t tokens[CONTEXT] = { 7, 8, 9, 10, 11, 12, 13, 14, 7, 8, 9, 10 };
    uint8_t which = next(w), length = next(w), how = next(w);
    fg_msg msg = { .kind = reserve ? FG_MSG_RESERVE : FG_MSG_PREFILL,
                   .request = which % 8,
                   .attempt = which / 8 % 4 };
    uint32_t count = 1 + length % (CONTEXT - 1);
    fg_wire_params params = { .top_p = 1,
                              .max_tokens = how % 20,
                              .seed = which / 32,
                              .want_scores = length >= 0xA0 ? 1 + which % 3 : 0,
                              .family = how & 64,
                              .ignore_eos = how & 1,
                              .cache_mode = how >= 0xC0 ? how % 3 : FG_CACHE_AUTO,
                              .priority = how >> 2 & 1 };
    fg_wire_peer peer = { .name = how & 2 ? "nobody" : other->name, .epoch = other->epoch };
    uint32_t said = (uint32_t)(how & 32 ? length % 20 : 0);
    said = said < params.max_tokens ? said : params.max_tokens;
    if (reserve) {
        msg.reserve.writer = peer;
        msg.reserve.said = tokens;
        msg.reserve.said_count = said;
        msg.reserve.tokens = tokens;
        msg.reserve.token_count = count;
        msg.reserve.sampling = params;
    } else {
        uint32_t all = fg_kv_blocks_for(count, BLOCK_SIZE);
        msg.prefill.tokens = tokens;
        msg.prefill.token_count = count;
        msg.prefill.said = tokens;
        msg.prefill.said_count = said;
        msg.prefill.sampling = params;
        msg.prefill.has_ticket = (how & 8) != 0;
        w->foreign = w->foreign || msg.prefill.has_ticket;
        msg.prefill.target = peer;
        msg.prefill.ticket = other->ticket.ticket + (how >= 0xE0);
        msg.prefill.blocks = other->ticket.blocks;
        msg.prefill.block_count = how & 16 ? all : other->ticket.count;
        msg.prefill.first_block = how & 16 ? 0 : other->ticket.first;
    }
    give(s, &msg);
}

/* The way it is meant, so that the deeper states are found. */
static void hand_over(world *w, side *from, side *to)
{
    static const uint32_t tokens[CONTEXT] = { 7, 8, 9, 10, 11 };
    uint8_t which = next(w), length = next(w);
    fg_msg msg = { .kind = FG_MSG_RESERVE, .request = which % 8, .attempt = which / 8 % 4 };
    fg_wire_params params = { .top_p = 1, .max_tokens = 2 + length % 7, .ignore_eos = true };
    params.want_scores = length >= 0xA0 ? 2 : 0;
    uint64_t before = to->ticket.ticket;
    msg.reserve.writer = (fg_wire_peer){ .name = from->name, .epoch = from->epoch };
    msg.reserve.tokens = tokens;
    msg.reserve.token_count = 1 + length % 40;
    msg.reserve.sampling = params;
    give(to, &msg);
    if (to->ticket.ticket == before) {
        return;
    }
    msg = (fg_msg){ .kind = FG_MSG_PREFILL, .request = msg.request, .attempt = msg.attempt };
    msg.prefill.tokens = tokens;
    msg.prefill.token_count = 1 + length % 40;
    msg.prefill.sampling = params;
    msg.prefill.has_ticket = true;
    msg.prefill.target = (fg_wire_peer){ .name = to->name, .epoch = to->epoch };
    msg.prefill.ticket = to->ticket.ticket;
    msg.prefill.blocks = to->ticket.blocks;
    msg.prefill.block_count = to->ticket.count;
    msg.prefill.first_block = to->ticket.first;
    give(from, &msg);
}

static void complete(side *s)
{
    fg_engine_sim_complete(s->engine);
    fg_worker_on_engine(s->worker);
}

static void pass(world *w, uint64_t ns)
{
    w->now_ns += ns;
    for (uint32_t i = 0; i < WORKERS; i++) {
        fg_worker_tick(w->sides[i].worker);
    }
}

static void check(world *w)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        fg_worker_check(w->sides[i].worker);
        FG_ASSERT(w->foreign || fg_engine_sim_bad_slots(w->sides[i].engine) == 0);
    }
}

static void step(world *w)
{
    static const fg_msg_kind plain[] = { FG_MSG_CLEAR, FG_MSG_RESYNC, FG_MSG_ROLE, FG_MSG_REFUSE };
    uint8_t what = next(w);
    side *s = &w->sides[what >> 4 & 1], *other = &w->sides[1 - (what >> 4 & 1)];
    fg_msg msg = { .kind = plain[what >> 5 & 3], .role = { .roles = 1 + (what >> 5) % 3 } };
    switch (what % 16) {
    case 0:
        fg_worker_on_down(s->worker, 0);
        break;
    case 1:
        join(s);
        break;
    case 2:
        introduce(w, s, other, what >> 5);
        break;
    case 3:
        msg = (fg_msg){ .kind = FG_MSG_PEER_LOST };
        msg.peer_lost.peer = (fg_wire_peer){ other->name, other->epoch };
        give(s, &msg);
        break;
    case 4:
    case 5:
        ask(w, s, other, (what & 1) != 0);
        break;
    case 6:
    case 7:
        hand_over(w, s, other);
        break;
    case 8:
        msg = (fg_msg){ .kind = FG_MSG_CANCEL, .request = (what >> 5) % 8 };
        msg.attempt = next(w) % 4;
        give(s, &msg);
        break;
    case 9:
        if (msg.kind == FG_MSG_REFUSE) {
            msg = (fg_msg){ .kind = FG_MSG_REFUSE, .refuse = { "\x1b[2J" } };
        }
        give(s, &msg);
        break;
    case 10:
        pass(w, what >= 0xE0 ? 6000000000ull : (uint64_t)next(w) * 1000000);
        break;
    case 11:
    case 12:
        fg_link_progress(s->link);
        break;
    default:
        complete(s);
    }
}

static void settle(world *w, uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        for (uint32_t k = 0; k < WORKERS; k++) {
            complete(&w->sides[k]);
            fg_link_progress(w->sides[k].link);
        }
        pass(w, 600000000u);
    }
}

/* Both leave, an honest router has them again, and what runs, travels or is fenced comes to its end: a fence
 * is answered by who was introduced. */
static void close_world(world *w)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        fg_worker_on_down(w->sides[i].worker, 0);
    }
    settle(w, 40); /* it may have been refused often, and waits for longer each time */
    for (uint32_t i = 0; i < WORKERS; i++) {
        join(&w->sides[i]);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        introduce(w, &w->sides[i], &w->sides[1 - i], 0);
    }
    settle(w, 6);
    check(w);
    for (uint32_t i = 0; i < WORKERS; i++) {
        side *s = &w->sides[i];
        fg_worker_stats stats;
        fg_worker_stats_get(s->worker, &stats);
        FG_ASSERT(fg_worker_idle(s->worker) && stats.closing == 0, "%u close", stats.closing);
        FG_ASSERT(stats.pool.free + stats.pool.cached - stats.pool.promised == BLOCKS);
        FG_ASSERT(stats.leaked_blocks == 0);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        fg_worker_destroy(w->sides[i].worker);
        fg_engine_close(w->sides[i].engine);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        fg_link_close(w->sides[i].link);
    }
    fg_link_hub_destroy(w->hub);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static world w;
    fg_arena *inbox = w.inbox != NULL ? w.inbox : fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_log_set_level(FG_LOG_OFF);
    w = (world){ .bytes = bytes, .size = size_bytes, .now_ns = 1000000000u, .inbox = inbox };
    FG_ASSERT(fg_kv_layout_init(&w.layout, 1, 1, 8, BLOCK_SIZE, FG_F16, NULL) == FG_OK);
    fg_link_hub_options hub = { 0 };
    w.hub = fg_link_hub_create(&hub);
    for (uint32_t i = 0; i < WORKERS; i++) {
        open_side(&w, i);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        join(&w.sides[i]);
    }
    for (uint32_t i = 0; i < WORKERS; i++) {
        introduce(&w, &w.sides[i], &w.sides[1 - i], 0);
    }
    for (uint32_t i = 0; i < STEPS_MAX && w.at < w.size; i++) {
        step(&w);
        check(&w);
    }
    close_world(&w);
    return 0;
}
