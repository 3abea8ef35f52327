/*
 * Any bytes as what hostile workers say to a real dispatcher, each message well formed and otherwise as they
 * like: capacities, speeds, counters and news that are lies, answers of any kind in any state, about their
 * own requests and those of others. Clients come and cancel, roles change, time passes. The books are
 * recounted after each step; a request ends once, its tokens come in order, and when all workers have
 * fallen silent every request comes to an end.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "router/dispatch.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

enum { PEERS = 6, OWNERS = 24, HEARD = 32, PROMPT_MAX = 600, ROWS = 12, STEPS_MAX = 600, BOTH = 3 };

typedef struct owner {
    struct world *world;
    bool live;
    uint64_t id;
    uint32_t next_token, max_tokens;
    uint32_t next_score, scores; /* positions of its prompt: the next one, and behind the last */
    uint8_t cancels_at;          /* at this token, from inside on_token; 0: never */
} owner;

typedef struct world {
    const uint8_t *bytes;
    size_t size, at;
    uint64_t now_ns;
    fg_dispatch *dispatch;
    fg_arena *inbox;
    fg_buf out;
    owner owners[OWNERS];
    struct {
        uint64_t request;
        uint32_t attempt;
    } heard[HEARD]; /* what the router has asked of somebody */
    uint32_t heard_count;
    uint32_t deaf; /* bit set of peers that take no frames */
} world;

static uint32_t tokens[PROMPT_MAX];

static uint8_t next(world *w)
{
    return w->at < w->size ? w->bytes[w->at++] : 0;
}

/* Small numbers as they are, the ends of the scale for others. */
static uint64_t wild(world *w)
{
    static const uint64_t ends[] = {
        1ull << 16, 1ull << 20, (1ull << 22) - 1, 1000000,          1ull << 31,
        UINT32_MAX, 1ull << 32, 1ull << 53,       1ull << 62,       INT64_MAX,
        1ull << 63, UINT64_MAX, UINT64_MAX - 1,   1000000000000ull, 4096,
        1024
    };
    uint8_t byte = next(w);
    return byte < 0xE0 ? byte : ends[byte % 16];
}

/* The decoder lets no more than `max` through. */
static uint32_t upto(world *w, uint32_t max)
{
    uint64_t value = wild(w);
    return value < max ? (uint32_t)value : max;
}

/* ---- the bus and the owners ---- */

static fg_status keep(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    world *w = ctx;
    fg_msg msg;
    fg_error err;
    fg_arena_reset(w->inbox);
    fg_status status = fg_wire_decode(bytes, size_bytes, w->inbox, &msg, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    if (w->deaf >> peer & 1) {
        return FG_AGAIN;
    }
    if (msg.kind == FG_MSG_RESERVE || msg.kind == FG_MSG_PREFILL) {
        uint32_t at = w->heard_count++ % HEARD;
        w->heard[at].request = msg.request;
        w->heard[at].attempt = msg.attempt;
    }
    return FG_OK;
}

static void drop(void *ctx, uint32_t peer)
{
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
    owner *o = ctx;
    FG_ASSERT(o->live && index == o->next_token && index < o->max_tokens);
    FG_ASSERT(o->next_score == o->scores, "a token before the prompt's scores");
    o->next_token++;
    if (o->cancels_at != 0 && o->next_token == o->cancels_at) {
        o->live = false;
        FG_ASSERT(fg_dispatch_cancel(o->world->dispatch, o->id, FG_FINISH_STOP, NULL));
    }
}

static void on_scores(void *ctx, uint32_t first, const fg_scores *scores)
{
    owner *o = ctx;
    FG_ASSERT(o->live && o->next_token == 0 && first == o->next_score && scores->count > 0 &&
              first + scores->count <= o->scores);
    o->next_score += scores->count;
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    owner *o = ctx;
    FG_ASSERT(o->live && finish != FG_FINISH_NONE && finish != FG_FINISH_HANDED_OVER);
    o->live = false;
}

/* ---- what workers say ---- */

static void give(world *w, uint32_t peer, const fg_msg *msg)
{
    fg_buf_clear(&w->out);
    FG_ASSERT(fg_wire_encode(msg, &w->out));
    fg_dispatch_on_frame(w->dispatch, peer, w->out.data, w->out.size);
}

static void join(world *w, uint32_t peer)
{
    static const uint32_t block_sizes[] = { 4, 4, 4, 16, 1, 1u << 16 };
    static const char *const classes[] = { "c", "c", "c", "\" class=\"", "" };
    char name[8], identity[16];
    uint8_t how = next(w);
    snprintf(name, sizeof name, "w\"%u", how < 0xF0 ? peer : 0);
    snprintf(identity, sizeof identity, "%s#1", name);
    fg_dispatch_on_up(w->dispatch, peer, identity);
    uint32_t able = 1 + next(w) % 3, roles = 1 + how % 3;
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION - (how == 0xEF),
                                 .self = { .name = name, .epoch = 1 },
                                 .roles = roles,
                                 .able = roles | able,
                                 .pid = how,
                                 .fingerprint_low = 1,
                                 .numerics_class = classes[how % 5],
                                 .layer_count = 1,
                                 .kv_head_count = 1,
                                 .head_dim = 8,
                                 .block_size = block_sizes[next(w) % 6],
                                 .kv_dtype = 1,
                                 .block_count = upto(w, FG_LIMIT_BLOCKS),
                                 .max_seqs = upto(w, FG_LIMIT_LIVE_REQUESTS),
                                 .context_max = upto(w, FG_LIMIT_CONTEXT_TOKENS),
                                 .link_record = "r",
                                 .link_record_bytes = how % 7 != 0 };
    msg.hello.speed = (fg_wire_speed){ wild(w), wild(w), wild(w), wild(w), wild(w), wild(w) };
    give(w, peer, &msg);
}

static void tell_load(world *w, uint32_t peer)
{
    fg_msg msg = { .kind = FG_MSG_LOAD };
    msg.load = (fg_wire_load){ .free = upto(w, FG_LIMIT_BLOCKS),
                               .quarantined = upto(w, FG_LIMIT_BLOCKS),
                               .running = (uint32_t)wild(w),
                               .steps = wild(w),
                               .sequence = wild(w),
                               .news_sequence = wild(w) };
    msg.load.busy_ns = msg.load.cache_hit_tokens = msg.load.steps;
    give(w, peer, &msg);
}

static void tell_news(world *w, uint32_t peer)
{
    static uint64_t keys[ROWS * 16];
    fg_wire_news rows[ROWS];
    fg_msg msg = { .kind = FG_MSG_NEWS };
    msg.news.sequence = wild(w) + 1 > 1 ? wild(w) + 1 : 1;
    msg.news.sequence += msg.news.sequence == 0;
    msg.news.rows = rows;
    msg.news.count = next(w) % (ROWS + 1);
    for (uint32_t i = 0; i < msg.news.count; i++) {
        uint8_t how = next(w);
        uint64_t *own = keys + i * 16, first = wild(w);
        bool has_keys = how % 4 == 1 || how % 4 == 2;
        rows[i] = (fg_wire_news){ .change = (fg_wire_change)(1 + how % 4),
                                  .tier = how >> 2 & 1,
                                  .parent = how & 8 ? wild(w) : first - 1,
                                  .keys = own,
                                  .key_count = has_keys ? 1 + (how >> 4) : 0 };
        for (uint32_t k = 0; k < rows[i].key_count; k++) {
            own[k] = how & 4 ? first : first + k;
        }
    }
    give(w, peer, &msg);
}

/* Often the newest, sometimes an attempt that is over or not begun. */
static void name_request(world *w, fg_msg *msg)
{
    uint8_t which = next(w);
    uint32_t at = w->heard_count - 1 - which % 16 % (w->heard_count > 0 ? w->heard_count : 1);
    msg->request = w->heard[at % HEARD].request + (which >= 0xF8);
    msg->attempt = w->heard[at % HEARD].attempt + (which >> 4 == 14) - (which >> 4 == 13);
}

static void tell_tokens(world *w, uint32_t peer)
{
    fg_wire_token rows[ROWS];
    fg_msg msg = { .kind = FG_MSG_TOKENS }, about = { 0 };
    uint8_t how = next(w);
    uint32_t index = upto(w, FG_LIMIT_CONTEXT_TOKENS - ROWS);
    name_request(w, &about);
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = (fg_wire_token){ .request = about.request,
                                   .attempt = about.attempt,
                                   .index = index + (how & 16 ? i : 0),
                                   .id = how };
        if (how & 32) {
            name_request(w, &about);
        }
    }
    msg.tokens.tokens = rows;
    msg.tokens.count = how % ROWS;
    give(w, peer, &msg);
}

static void answer(world *w, uint32_t peer, fg_msg_kind kind)
{
    static const uint32_t blocks[16] = { 3, 3, FG_LIMIT_BLOCKS - 1 };
    static float chosen[FG_WIRE_SCORES_MAX];
    static uint32_t ranks[FG_WIRE_SCORES_MAX];
    static fg_likely likely[FG_WIRE_SCORES_MAX * 2];
    fg_msg msg = { .kind = kind };
    name_request(w, &msg);
    uint8_t how = next(w);
    switch (kind) {
    case FG_MSG_TICKET:
        msg.ticket.granted = how % 4 != 0;
        msg.ticket.local = how % 4 == 1;
        msg.ticket.ticket = how;
        msg.ticket.first_block = upto(w, FG_LIMIT_BLOCKS);
        msg.ticket.blocks = blocks;
        msg.ticket.block_count = how >> 4;
        break;
    case FG_MSG_FIRST:
        msg.first.id = how;
        msg.first.queue_ns = wild(w);
        msg.first.compute_ns = wild(w);
        msg.first.cached_tokens = upto(w, FG_LIMIT_CONTEXT_TOKENS);
        msg.first.chunks = upto(w, FG_LIMIT_CONTEXT_TOKENS);
        break;
    case FG_MSG_SCORES:
        msg.scores.first = 1 + upto(w, FG_LIMIT_CONTEXT_TOKENS - 2);
        msg.scores.scores = (fg_scores){ .chosen = chosen,
                                         .ranks = ranks,
                                         .likely = likely,
                                         .count = 1 + upto(w, FG_WIRE_SCORES_MAX - 1),
                                         .likely_count = how % 3 };
        break;
    case FG_MSG_PUSHED:
        msg.pushed.blocks = upto(w, FG_LIMIT_BLOCKS);
        msg.pushed.bytes = wild(w);
        msg.pushed.transport = how & 1 ? "\" t=\"" : "a name that is longer than what is kept";
        msg.pushed.exposed_ns = wild(w);
        msg.pushed.retries = (uint32_t)wild(w);
        break;
    default:
        msg.done.finish = (fg_finish)(1 + how % 5);
        msg.done.text = how & 16 ? "\x1b[2J\" why=\"" : "";
        msg.done.generated = (uint32_t)wild(w);
        msg.done.preemptions = (uint32_t)wild(w);
        msg.done.refused = msg.done.finish == FG_FINISH_ERROR && how >= 0xE0;
    }
    give(w, peer, &msg);
}

/* ---- clients, operators, time ---- */

static void start(world *w)
{
    owner *o = w->owners;
    while (o < w->owners + OWNERS && o->live) {
        o++;
    }
    uint8_t how = next(w), tenant = next(w);
    if (o == w->owners + OWNERS) {
        return;
    }
    fg_dispatch_job job = {
        .tokens = tokens + (how & 3) * 8,
        .token_count = (uint32_t)(wild(w) % (PROMPT_MAX - 32)),
        .params = { .top_p = 1, .priority = how % 3 - 1 },
        .tenant = tenant % 4,
        .sink = { .on_token = on_token, .on_scores = on_scores, .on_end = on_end, .ctx = o }
    };
    job.params.max_tokens = upto(w, UINT32_MAX);
    job.params.cache_mode = how >> 2 & 1 ? FG_CACHE_DISABLE : FG_CACHE_AUTO;
    if (tenant & 0x80) {
        job.slo = (fg_admit_slo){ wild(w) * 1000000, wild(w) * 1000000 };
        job.deadline_ns = wild(w);
    }
    job.params.want_scores = how >= 0xA0 ? 1 + tenant % 3 : 0;
    bool asks = job.params.want_scores > 0 && job.token_count > 0;
    *o = (owner){ .world = w,
                  .max_tokens = job.params.max_tokens,
                  .next_score = 1,
                  .scores = asks ? job.token_count : 1,
                  .cancels_at = tenant & 0x40 ? tenant & 7 : 0 };
    fg_error err;
    o->live = fg_dispatch_start(w->dispatch, &job, &o->id, &err) == FG_OK;
}

static void pass(world *w, uint64_t ns)
{
    w->now_ns += ns;
    fg_dispatch_tick(w->dispatch);
}

static void look(world *w)
{
    fg_json *json;
    fg_error err;
    fg_residency_check(fg_dispatch_residency(w->dispatch));
    for (uint32_t i = 0; i < 2; i++) {
        fg_buf_clear(&w->out);
        FG_ASSERT(i == 0 ? fg_dispatch_render_state(w->dispatch, &w->out)
                         : fg_dispatch_render_cache(w->dispatch, &w->out));
        fg_status status = fg_json_parse(w->out.data, w->out.size, &json, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
        fg_json_destroy(json);
    }
}

static void step(world *w)
{
    uint8_t what = next(w);
    uint32_t peer = what / 16 % PEERS;
    owner *o = &w->owners[what / 16];
    char name[8];
    switch (what % 16) {
    case 0:
        join(w, peer);
        break;
    case 1:
        fg_dispatch_on_down(w->dispatch, peer);
        break;
    case 2:
    case 3:
        start(w);
        break;
    case 4:
        if (o->live) {
            o->live = false;
            FG_ASSERT(fg_dispatch_cancel(w->dispatch, o->id, FG_FINISH_CANCELLED, NULL));
        }
        break;
    case 5:
        tell_load(w, peer);
        break;
    case 6:
        tell_news(w, peer);
        break;
    case 7:
    case 8:
        answer(w, peer, FG_MSG_TICKET);
        break;
    case 9:
        answer(w, peer, FG_MSG_FIRST);
        break;
    case 10:
        answer(w, peer, next(w) & 1 ? FG_MSG_SCORES : FG_MSG_PUSHED);
        break;
    case 11:
        answer(w, peer, FG_MSG_DONE);
        break;
    case 12:
        tell_tokens(w, peer);
        break;
    case 13:
        pass(w, what >= 0xE0 ? 60000000000ull : (uint64_t)next(w) * 5000000);
        break;
    case 14:
        snprintf(name, sizeof name, "w\"%u", peer);
        fg_dispatch_set_role(w->dispatch, name, next(w) % 5, NULL, NULL);
        break;
    default:
        if (what < 0x60) {
            give(w, peer, &(fg_msg){ .kind = FG_MSG_DRAIN });
        } else if (what < 0xA0) {
            w->deaf ^= 1u << peer;
        } else if (what < 0xD0) {
            look(w);
        } else {
            fg_dispatch_clear_cache(w->dispatch);
        }
    }
}

static void open_world(world *w)
{
    uint8_t how = next(w), more = next(w);
    fg_place_options place = fg_place_defaults();
    place.policy = (fg_place_policy)(how % 5);
    place.split = (fg_place_split)(how / 5 % 3);
    fg_dispatch_options options = {
        .clock = fg_clock_manual(&w->now_ns),
        .fingerprint = { .low = 1 },
        .cache_key = { 5, 6 },
        .router_epoch = how,
        .lease_ms = 1000,
        .stuck_ms = more & 1 ? 2000 : 0,
        .limits = { .queued_max = 8,
                    .queued_tokens_max = 2000,
                    .live_max = 20,
                    .tenant_queued_max = more & 2 ? 3 : 0,
                    .tenant_queued_tokens_max = more & 4 ? 900 : 0 },
        .place = place,
        .residency_bytes = FG_RESIDENCY_BYTES_MIN,
        .queue_ahead = more >> 3 & 15,
        .send = keep,
        .drop = drop,
        .ctx = w,
    };
    FG_ASSERT(fg_dispatch_create(&options, &w->dispatch, NULL) == FG_OK);
}

/* Nobody says anything any more: every lease runs out, and with them every hope. */
static void close_world(world *w)
{
    fg_dispatch_stats stats;
    for (uint32_t i = 0; i < 20; i++) {
        pass(w, 400000000u);
        fg_dispatch_check(w->dispatch);
    }
    fg_dispatch_stats_get(w->dispatch, &stats);
    FG_ASSERT(stats.live == 0 && fg_registry_count(fg_dispatch_registry(w->dispatch)) == 0);
    FG_ASSERT(stats.started == stats.finished + stats.failed + stats.cancelled);
    for (uint32_t i = 0; i < OWNERS; i++) {
        FG_ASSERT(!w->owners[i].live);
    }
    look(w);
    fg_dispatch_destroy(w->dispatch);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static world w;
    fg_arena *inbox = w.inbox != NULL ? w.inbox : fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_log_set_level(FG_LOG_OFF);
    for (uint32_t i = 0; i < PROMPT_MAX; i++) {
        tokens[i] = i;
    }
    fg_buf out = w.out;
    w = (world){ .bytes = bytes, .size = size_bytes, .now_ns = 1000000000u, .inbox = inbox };
    w.out = out;
    open_world(&w);
    for (uint32_t i = 0; i < STEPS_MAX && w.at < w.size; i++) {
        step(&w);
        fg_dispatch_check(w.dispatch);
    }
    close_world(&w);
    return 0;
}
