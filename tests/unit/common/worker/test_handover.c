/* A worker that is handed a prompt or hands one over, where a plan's copies, a cancellation, damage in the
 * tier or a lost peer come in between; and whom choices that wait for each other hold up. */
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/log.h"
#include "common/engine/engine_sim.h"
#include "common/link/link.h"
#include "common/worker/worker.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

enum { VOCAB = 50, BS = 4, TOKENS_MAX = 600, STEP_MAX = 256, SEQS_MAX = 8, REQUESTS_MAX = 8 };
enum { BLOCKS_MAX = 64 };

/* Prompts are known by the distance between their tokens; no two of these share a block. */
enum { EVICTED = 3, PASSING = 7, FILLER = 11, ARRIVING = 13, OLDEST = 17 };

typedef struct asked {
    uint32_t tokens[TOKENS_MAX]; /* prompt, then what has come */
    uint32_t prompt_count, count;
    bool done, broken;
    fg_finish finish;
    char text[160];
} asked;

/* A worker of both roles, and a link that plays the worker at the other end. The router's part is the
 * test's: every token that comes is compared with what its prompt alone would have given. */
typedef struct bench {
    uint64_t now_ns;
    uint32_t blocks, block_size, context_max;
    fg_kv_layout layout;
    fg_link_hub *hub;
    fg_link *link, *peer;
    fg_tier *tier;
    fg_engine *engine;
    fg_worker *worker;
    fg_arena *inbox;
    asked asked[REQUESTS_MAX];
    bool breaks;                                            /* the model breaks down */
    uint64_t ticket;                                        /* of the last TICKET; 0: none came */
    uint32_t ticket_blocks[BLOCKS_MAX], ticket_block_count; /* the first of them; all */
} bench;

/* ---- what the worker says ---- */

static void hear_token(bench *b, uint64_t id, uint32_t token)
{
    asked *it = &b->asked[id];
    fg_sampling greedy = { .top_p = 1.0f };
    uint32_t want =
        fg_engine_sim_expected(it->tokens, it->count, VOCAB, UINT32_MAX, &greedy, 0).token;
    cr_assert_eq(token, want, "request %u: token %u is %u instead of %u", (unsigned)id,
                 it->count - it->prompt_count, token, want);
    it->tokens[it->count++] = token;
}

static void hear_ticket(bench *b, const fg_msg *msg)
{
    cr_assert(msg->ticket.granted);
    uint32_t count = msg->ticket.block_count;
    b->ticket = msg->ticket.ticket;
    b->ticket_block_count = count;
    memcpy(b->ticket_blocks, msg->ticket.blocks,
           (count < BLOCKS_MAX ? count : BLOCKS_MAX) * sizeof *b->ticket_blocks);
}

static fg_status hear(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    bench *b = ctx;
    fg_msg msg;
    fg_error err = { 0 };
    fg_arena_reset(b->inbox);
    cr_assert_eq(fg_wire_decode(bytes, size_bytes, b->inbox, &msg, &err), FG_OK, "%s", err.text);
    if (msg.kind == FG_MSG_FIRST) {
        hear_token(b, msg.request, msg.first.id);
    } else if (msg.kind == FG_MSG_TICKET) {
        hear_ticket(b, &msg);
    } else if (msg.kind == FG_MSG_DONE) {
        asked *it = &b->asked[msg.request];
        cr_assert(!it->done, "request %u ends twice", (unsigned)msg.request);
        it->done = true;
        it->finish = msg.done.finish;
        it->broken = msg.done.broken;
        strncpy(it->text, msg.done.text, sizeof it->text - 1);
    }
    for (uint32_t i = 0; msg.kind == FG_MSG_TOKENS && i < msg.tokens.count; i++) {
        hear_token(b, msg.tokens.tokens[i].request, msg.tokens.tokens[i].id);
    }
    return FG_OK;
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
}

static bool is_end(void *ctx, uint32_t token)
{
    return false;
}

/* ---- links ---- */

/* The worker's link is open before the worker is, so its news goes by way of the bench. */
static void to_worker_commit(void *ctx, const fg_link_commit *commit)
{
    fg_link_events events = fg_worker_link_events(((bench *)ctx)->worker);
    events.on_commit(events.ctx, commit);
}

static void to_worker_fenced(void *ctx, uint64_t ticket)
{
    fg_link_events events = fg_worker_link_events(((bench *)ctx)->worker);
    events.on_fenced(events.ctx, ticket);
}

static void to_worker_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    fg_link_events events = fg_worker_link_events(((bench *)ctx)->worker);
    events.on_answer(events.ctx, ticket, bad, bad_count);
}

static void to_worker_drained(void *ctx, uint64_t ticket, fg_status why)
{
    fg_link_events events = fg_worker_link_events(((bench *)ctx)->worker);
    events.on_drained(events.ctx, ticket, why);
}

static void no_commit(void *ctx, const fg_link_commit *commit)
{
}

static void no_fenced(void *ctx, uint64_t ticket)
{
}

static void no_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
}

static void no_drained(void *ctx, uint64_t ticket, fg_status why)
{
}

static fg_link *open_link(bench *b, const char *name, uint64_t epoch, fg_link_events events)
{
    fg_link *link;
    fg_error err = { 0 };
    fg_link_options options = { .block_bytes = b->layout.block_bytes,
                                .block_count = b->blocks,
                                .transport = "auto",
                                .host = "",
                                .events = events };
    cr_assert_eq(fg_link_open_mem(b->hub, name, epoch, &options, &link, &err), FG_OK, "%s",
                 err.text);
    return link;
}

static void pump(bench *b)
{
    for (int i = 0; i < 8; i++) {
        fg_link_progress(b->peer);
        fg_link_progress(b->link);
    }
}

/* ---- what the worker hears ---- */

static void give(bench *b, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    cr_assert(fg_wire_encode(msg, &frame));
    b->now_ns += 1000;
    fg_worker_on_frame(b->worker, 0, frame.data, frame.size);
    fg_buf_deinit(&frame);
    fg_worker_check(b->worker);
}

static bool step(bench *b)
{
    bool did = fg_engine_sim_complete(b->engine);
    b->now_ns += 10000000;
    fg_worker_on_engine(b->worker);
    fg_worker_check(b->worker);
    return did;
}

static void run(bench *b)
{
    for (int steps = 0; step(b); steps++) {
        cr_assert(steps < 2000, "this never ends");
    }
}

static fg_worker_stats stats_of(const bench *b)
{
    fg_worker_stats stats;
    fg_worker_stats_get(b->worker, &stats);
    return stats;
}

/* Writes the prompt of a request that is about to be sent. */
static asked *prepare(bench *b, uint64_t id, uint32_t distance, uint32_t count)
{
    asked *it = &b->asked[id];
    *it = (asked){ .prompt_count = count, .count = count };
    for (uint32_t i = 0; i < count; i++) {
        it->tokens[i] = (i + 1) * distance % VOCAB;
    }
    return it;
}

static fg_msg prefill(bench *b, uint64_t id, uint32_t distance, uint32_t count, uint32_t max_tokens)
{
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = id, .attempt = 1 };
    msg.prefill.tokens = prepare(b, id, distance, count)->tokens;
    msg.prefill.token_count = count;
    msg.prefill.sampling = rig_greedy(max_tokens);
    return msg;
}

/* A prompt of 13 tokens whose KV the worker hands to the peer. */
static void give_sender(bench *b, uint64_t id, uint32_t cache_mode)
{
    static const uint32_t targets[] = { 5, 6, 7, 8 };
    fg_msg msg = prefill(b, id, EVICTED, 13, 4);
    msg.prefill.sampling.cache_mode = cache_mode;
    msg.prefill.has_ticket = true;
    msg.prefill.target = (fg_wire_peer){ "peer", 1 };
    msg.prefill.ticket = 77;
    msg.prefill.blocks = targets;
    msg.prefill.block_count = 4;
    give(b, &msg);
}

static void give_cancel(bench *b, uint64_t id)
{
    give(b, &(fg_msg){ .kind = FG_MSG_CANCEL, .request = id, .attempt = 1 });
}

/* Opens the peer's link of that epoch, and PEER introduces it. */
static void meet(bench *b, uint64_t epoch)
{
    b->peer = open_link(b, "peer", epoch,
                        (fg_link_events){ no_commit, no_fenced, no_answer, no_drained, NULL });
    fg_buf record;
    fg_buf_init(&record, 0);
    cr_assert(fg_link_describe(b->peer, &record));
    fg_msg msg = { .kind = FG_MSG_PEER };
    msg.peer.peer = (fg_wire_peer){ "peer", epoch };
    msg.peer.link_record = record.data;
    msg.peer.link_record_bytes = record.size;
    give(b, &msg);
    fg_buf_deinit(&record);
}

/* The worker's link as the peer knows it. */
static uint32_t meet_back(bench *b)
{
    uint32_t index;
    fg_error err = { 0 };
    fg_buf record;
    fg_buf_init(&record, 0);
    cr_assert(fg_link_describe(b->link, &record));
    cr_assert_eq(fg_link_add_peer(b->peer, "own", 1, 1, record.data, record.size, &index, &err),
                 FG_OK, "%s", err.text);
    fg_buf_deinit(&record);
    return index;
}

/* ---- the bench ---- */

/* As of a real clock, no two readings are the same. */
static uint64_t passing(void *ctx)
{
    return ((bench *)ctx)->now_ns++;
}

static bool is_broken(void *ctx, const fg_step_seq *seq)
{
    return ((bench *)ctx)->breaks;
}

static uint32_t routers = 1; /* of which the first one speaks */

static void open_worker(bench *b, bool overlap)
{
    fg_error err = { 0 };
    fg_worker_options options = { .name = "own",
                                  .epoch = 1,
                                  .router_count = routers,
                                  .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                  .clock = { passing, b },
                                  .engine = b->engine,
                                  .link = b->link,
                                  .layout = b->layout,
                                  .block_count = b->blocks,
                                  .context_max = b->context_max,
                                  .vocab_size = VOCAB,
                                  .limits = { .step_tokens_max = STEP_MAX,
                                              .chunk_tokens_max = STEP_MAX,
                                              .seqs_max = SEQS_MAX,
                                              .block_size = b->block_size },
                                  .overlap = overlap,
                                  .prefix_cache = true,
                                  .tier = b->tier,
                                  .prefill = fg_prefill_policy(),
                                  .decode = fg_decode_policy(),
                                  .is_end = is_end,
                                  .send = hear,
                                  .reconnect = reconnect,
                                  .ctx = b };
    cr_assert_eq(fg_worker_create(&options, &b->worker, &err), FG_OK, "%s", err.text);
    fg_worker_on_up(b->worker, 0);
    give(b, &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 800 } });
    cr_assert(fg_worker_joined(b->worker));
}

static void open_bench_of(bench *b, uint32_t block_size, uint32_t context_max, uint32_t blocks,
                          uint32_t slots, bool overlap)
{
    *b = (bench){ .now_ns = 1000000000u,
                  .blocks = blocks,
                  .block_size = block_size,
                  .context_max = context_max };
    fg_log_set_level(FG_LOG_OFF);
    fg_error err = { 0 };
    b->inbox = fg_arena_create(1 << 20);
    cr_assert_eq(fg_kv_layout_init(&b->layout, 1, 1, 8, block_size, FG_F16, &err), FG_OK);
    b->hub = fg_link_hub_create(&(fg_link_hub_options){ 0 });
    b->link = open_link(b, "own", 1,
                        (fg_link_events){ to_worker_commit, to_worker_fenced, to_worker_answer,
                                          to_worker_drained, b });
    fg_tier_options tier = { .block_bytes = b->layout.block_bytes,
                             .block_count = slots,
                             .block_size = block_size };
    cr_assert_eq(fg_tier_open(&tier, &b->tier, &err), FG_OK, "%s", err.text);
    fg_engine_sim_options engine = {
        .layout = b->layout,
        .arena = fg_link_arena(b->link),
        .block_count = blocks,
        .tier_arena = fg_tier_arena(b->tier),
        .tier_block_count = slots,
        .limits = { STEP_MAX, SEQS_MAX, context_max },
        .vocab_size = VOCAB,
        .eos_token = UINT32_MAX,
        .manual = true,
        .is_broken = is_broken,
        .ctx = b,
        /* A chunk is slow enough that no plan puts one behind a step that runs. */
        .step_ns = { .base = 1000000, .prefill_token = 5000000, .decode_row = 1000000 }
    };
    cr_assert_eq(fg_engine_open_sim(&engine, &b->engine, &err), FG_OK, "%s", err.text);
    open_worker(b, overlap);
    meet(b, 1);
}

static void open_bench(bench *b, uint32_t blocks, uint32_t slots, bool overlap)
{
    open_bench_of(b, BS, TOKENS_MAX, blocks, slots, overlap);
}

/* Nothing may run any more: checks that every block came back. */
static void close_bench(bench *b)
{
    fg_worker_stats stats = stats_of(b);
    cr_assert(fg_worker_idle(b->worker));
    cr_assert_eq(stats.closing, 0u);
    cr_assert_eq(stats.pool.pinned, 0u);
    cr_assert_eq(stats.pool.quarantined, 0u);
    cr_assert_eq(stats.pool.free + stats.pool.cached - stats.pool.promised, b->blocks);
    cr_assert_eq(fg_engine_sim_bad_slots(b->engine), 0u);
    fg_worker_destroy(b->worker);
    fg_engine_close(b->engine);
    fg_tier_close(b->tier);
    fg_link_close(b->peer);
    fg_link_close(b->link);
    fg_link_hub_destroy(b->hub);
    fg_arena_destroy(b->inbox);
}

static void ask(bench *b, uint64_t id, uint32_t distance, uint32_t count, uint32_t max_tokens)
{
    fg_msg msg = prefill(b, id, distance, count, max_tokens);
    give(b, &msg);
    run(b);
    cr_assert_eq(b->asked[id].count, count + max_tokens);
}

/* Requests 1 and 2: the first one's 13 tokens are cached, and the second needs the whole pool, which
 * drives them into the tier and leaves nothing itself. */
static void evict_into_the_tier(bench *b)
{
    ask(b, 1, EVICTED, 13, 1);
    fg_msg msg = prefill(b, 2, PASSING, b->blocks * BS - 1, 1);
    msg.prefill.sampling.cache_mode = FG_CACHE_DISABLE;
    give(b, &msg);
    run(b);
    cr_assert_eq(stats_of(b).tier.stored, 3u);
    cr_assert_eq(stats_of(b).pool.free, b->blocks);
}

/* ---- the tests ---- */

/* RESERVE for 12 tokens. */
static void reserve(bench *b, uint64_t id)
{
    fg_msg msg = { .kind = FG_MSG_RESERVE, .request = id, .attempt = 1 };
    msg.reserve.writer = (fg_wire_peer){ "peer", 1 };
    msg.reserve.tokens = prepare(b, id, ARRIVING, 12)->tokens;
    msg.reserve.token_count = 12;
    msg.reserve.sampling = rig_greedy(4);
    give(b, &msg);
    cr_assert(b->ticket != 0);
}

/* Its writer writes at once. */
static void receive_at_once(bench *b, uint64_t id)
{
    reserve(b, id);
    uint32_t sources[BLOCKS_MAX] = { 0 };
    memset(fg_link_arena(b->peer), 0x5a, b->layout.block_bytes);
    cr_assert_eq(fg_link_push(b->peer, meet_back(b), b->ticket, 0, sources, b->ticket_blocks,
                              b->ticket_block_count),
                 FG_OK);
    pump(b);
}

/* Room for the prompt that is in the tier is made by copying the oldest one there. Who asked for it is
 * cancelled while the engine has not yet come to these copies; the blocks that they read must not be the
 * next writer's. */
Test(worker_handover, a_block_being_copied_to_the_tier_is_not_given_to_a_remote_writer)
{
    static bench b;
    open_bench(&b, 16, 3, false);
    evict_into_the_tier(&b);
    ask(&b, 3, OLDEST, 13, 1);
    ask(&b, 4, FILLER, 52, 1);
    cr_assert_eq(stats_of(&b).pool.cached, 16u);
    fg_msg msg = prefill(&b, 5, EVICTED, 13, 1);
    give(&b, &msg);
    give_cancel(&b, 5);
    receive_at_once(&b, 6);
    run(&b); /* only now are the copies made */
    give_cancel(&b, 6);
    pump(&b);
    run(&b);
    cr_assert_eq(stats_of(&b).tier_hit_tokens, 0u);
    ask(&b, 7, OLDEST, 13, 3);
    cr_assert_eq(stats_of(&b).tier_hit_tokens, 12u, "it comes back from the tier");
    cr_assert_eq(stats_of(&b).damaged_blocks, 0u);
    close_bench(&b);
}

static void damage_tier(bench *b, uint32_t slots)
{
    uint8_t *bytes = fg_tier_arena(b->tier);
    for (uint32_t i = 0; i < slots; i++) {
        bytes[i * b->layout.block_bytes + 7] ^= 1;
    }
}

/* Another decode worker takes the index that the lost one had. A sender that waits in the line again and
 * was forgotten there would write into it. */
Test(worker_handover, a_preempted_sender_ends_with_its_peer)
{
    static bench b;
    open_bench(&b, 40, 30, true);
    evict_into_the_tier(&b);
    damage_tier(&b, 30);
    fg_msg msg = prefill(&b, 3, FILLER, 8, 100); /* decodes all the while */
    give(&b, &msg);
    for (int i = 0; i < 3; i++) {
        step(&b);
    }
    give_sender(&b, 4, FG_CACHE_AUTO);
    for (int i = 0; i < 20 && stats_of(&b).damaged_blocks == 0; i++) {
        step(&b);
    }
    cr_assert_eq(stats_of(&b).preempted, 1u, "the damage sends it back into the line");
    uint32_t index = fg_worker_find_peer(b.worker, "peer", 1);
    fg_msg lost = { .kind = FG_MSG_PEER_LOST };
    lost.peer_lost.peer = (fg_wire_peer){ "peer", 1 };
    give(&b, &lost);
    fg_link_hub_kill(b.hub, "peer", 1);
    pump(&b);
    fg_link_close(b.peer);
    meet(&b, 2);
    cr_assert_eq(fg_worker_find_peer(b.worker, "peer", 2), index, "the index is taken again");
    meet_back(&b);
    for (int i = 0; i < 30; i++) {
        step(&b);
        pump(&b);
        fg_worker_tick(b.worker);
    }
    const uint8_t *bytes = fg_link_arena(b.peer);
    for (size_t i = 0; i < b.blocks * b.layout.block_bytes; i++) {
        cr_assert_eq(bytes[i], 0, "block %zu was written", i / b.layout.block_bytes);
    }
    cr_assert(b.asked[4].done);
    cr_assert_eq(b.asked[4].finish, FG_FINISH_ERROR);
    cr_assert_eq(b.asked[4].count, b.asked[4].prompt_count);
    run(&b);
    close_bench(&b);
}

/* The tier has the prompt when the plan is made; the room that its blocks need evicts others into the
 * tier, which drives out the very blocks that they were to be fetched from. */
Test(worker_handover, force_that_finds_nothing_leaves_no_block_behind)
{
    static bench b;
    open_bench(&b, 16, 3, false);
    evict_into_the_tier(&b);
    ask(&b, 3, FILLER, 64, 1);
    give_sender(&b, 4, FG_CACHE_FORCE);
    for (int i = 0; i < 8; i++) {
        step(&b);
        pump(&b);
        fg_worker_tick(b.worker);
    }
    cr_assert(b.asked[4].done);
    cr_assert_eq(b.asked[4].finish, FG_FINISH_ERROR);
    cr_assert(strstr(b.asked[4].text, "prefix cache") != NULL, "%s", b.asked[4].text);
    close_bench(&b);
}

/* Nineteen choices are more than one plan weighs; they wait for the prompt of the first. */
Test(worker_handover, choices_that_wait_hold_up_nobody)
{
    enum { CHOICES = 19, OTHER = 60, PROMPT = 400 };
    static const uint32_t other[] = { 40, 41, 42, 43 };
    static rig r;
    uint32_t prompt[PROMPT];
    rig_open(&r, &(rig_options){
                     .blocks = 400, .block_size = 4, .seqs = 40, .step_tokens = 64, .chunk = 8 });
    for (uint32_t i = 0; i < PROMPT; i++) {
        prompt[i] = i * 7 % RIG_VOCAB;
    }
    for (uint32_t i = 0; i < CHOICES; i++) {
        fg_wire_params params = rig_greedy(2);
        params.family = 9;
        params.seed = i;
        rig_send(&r, 1 + i, prompt, PROMPT, &params);
    }
    fg_wire_params alone = rig_greedy(2);
    rig_send(&r, OTHER, other, 4, &alone);
    for (int i = 0; i < 3; i++) {
        rig_step(&r);
    }
    cr_assert(r.requests[OTHER].started);
    cr_assert(!r.requests[1].started, "the long prompt takes fifty steps");
    rig_run(&r);
    rig_close(&r);
}

/* It once compared the moment noted with the beginning of the tick, which lies before it. */
/* The writer of what was reserved may stand as well, for what other routers have reserved there. */
Test(worker_handover, of_several_routers_a_prompt_that_stands_for_long_is_given_back)
{
    for (routers = 1; routers <= 2; routers++) {
        static bench b;
        open_bench(&b, 6, 2, false);
        meet_back(&b);
        reserve(&b, 1);
        give_sender(&b, 2, FG_CACHE_AUTO); /* four blocks, where three are left */
        for (int ticks = 0; ticks < 30; ticks++) {
            cr_assert(!b.asked[2].done || ticks >= 20, "%u routers, tick %d: %s", routers, ticks,
                      b.asked[2].text);
            b.now_ns += 100000000;
            fg_worker_tick(b.worker);
        }
        cr_assert_eq(b.asked[2].done, routers == 2, "%u routers", routers);
        cr_assert(!b.asked[1].done);
        cr_assert(routers == 1 || b.asked[2].finish == FG_FINISH_ERROR);
        give_cancel(&b, 1);
        give_cancel(&b, 2);
        for (int i = 0; i < 30; i++) {
            step(&b);
            pump(&b);
            fg_worker_tick(b.worker);
        }
        close_bench(&b);
    }
}

Test(worker_handover, only_a_link_that_stays_broken_makes_its_worker_join_again)
{
    bench b;
    open_bench(&b, 8, 4, false);
    fg_link_hub_kill(b.hub, "peer", 1);
    pump(&b);
    for (int i = 0; i < 4; i++) {
        fg_worker_tick(b.worker);
        cr_assert(fg_worker_joined(b.worker), "tick %d", i);
        b.now_ns += 1000000000;
    }
    b.now_ns += 2000000000;
    fg_worker_tick(b.worker); /* notes it */
    fg_worker_tick(b.worker);
    cr_assert(!fg_worker_joined(b.worker));
    close_bench(&b);
}

/* Where the prefill worker was to choose the first token. */
Test(worker_handover, nothing_is_handed_over_of_a_prompt_that_the_model_breaks_at)
{
    static bench b;
    open_bench(&b, 16, 3, true);
    meet_back(&b);
    b.breaks = true;
    give_sender(&b, 1, FG_CACHE_AUTO);
    for (int i = 0; i < 8; i++) {
        step(&b);
        pump(&b);
        fg_worker_tick(b.worker);
    }
    const asked *it = &b.asked[1];
    cr_assert(it->done && it->broken && it->finish == FG_FINISH_ERROR);
    cr_assert(it->text[0] != '\0');
    cr_assert_eq(it->count, it->prompt_count, "no token came");
    cr_assert_eq(stats_of(&b).link_pushed_blocks, 0u);
    close_bench(&b);
}

/* It was once taken for a worker that is full, and so asked for again and again. */
Test(worker_handover, a_prompt_may_have_as_many_blocks_as_tokens)
{
    enum { MANY = 70000 };
    static bench b;
    static uint32_t tokens[MANY];
    open_bench_of(&b, 1, MANY + 8, MANY + 8, 3, false);
    fg_msg msg = { .kind = FG_MSG_RESERVE, .request = 1, .attempt = 1 };
    msg.reserve.writer = (fg_wire_peer){ "peer", 1 };
    msg.reserve.tokens = tokens;
    msg.reserve.token_count = MANY;
    msg.reserve.sampling = rig_greedy(4);
    give(&b, &msg);
    cr_assert(b.ticket != 0 && b.ticket_block_count == MANY);
    meet_back(&b);
    give_cancel(&b, 1);
    pump(&b);
    close_bench(&b);
}
