/* What a flight record needs besides calls: the options, and all that is known when the worker is at rest, so that one
 * can be made again that goes on from there. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/worker/worker_internal.h"
#include "common/worker/worker_records.h"

/* All that decides what the worker does next, but for its peers, pins, pool, prefix cache and tier. */
typedef struct rest_record {
    fg_digest128 secret;
    uint64_t epoch, up_ns, reconnect_at_ns;
    uint64_t load_sequence, load_sent_ns, load_period_ns, news_sequence;
    uint64_t next_ticket, next_arrival, step_number, plans;
    uint64_t ended[FG_WORKER_ENDED_MAX];
    uint32_t ended_next, roles, refusals;
    uint32_t joined, up, stalled, draining, load_dirty;
    fg_cost cost;
    fg_asking asking;
    fg_worker_stats stats;
} rest_record;

typedef struct peer_record {
    uint64_t epoch, broken_ns;
    uint32_t index, pad;
    char name[FG_LIMIT_NAME_BYTES + 8];
} peer_record;

typedef struct pin_record { /* block ids follow, uint32_t each */
    uint64_t until_ns;
    uint32_t count, pad;
} pin_record;

/* ---- out ---- */

/* Where there are several routers a record has no beginning but the process's. */
static bool at_rest(const fg_worker *worker)
{
    return worker->router_count == 1 &&
           worker->preempted.count + worker->waiting.count + worker->running.count +
                   worker->others.count + worker->closing.count + worker->in_flight ==
               0 &&
           fg_worker_news_at_rest(worker, 0);
}

/* What is known of so many blocks would leave no room for what happens: such a record has no beginning but the process's. */
static bool fits(const fg_worker *worker)
{
    const fg_tier *tier = worker->options.tier;
    size_t bytes = sizeof(rest_record) + worker->peer_count * sizeof(peer_record) +
                   fg_pool_state_bytes(worker->pool) + fg_prefix_state_bytes(worker->prefix) +
                   (tier != NULL ? fg_tier_state_bytes(tier) : 0);
    return bytes < fg_flight_room(worker->options.flight) / 4 * 3;
}

static void note_peers(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->peer_count; i++) {
        const fg_worker_peer *from = &worker->peers[i];
        peer_record peer = { .epoch = from->epoch,
                             .broken_ns = from->broken_ns,
                             .index = from->index };
        memcpy(peer.name, from->name, strlen(from->name));
        fg_flight_note(worker->options.flight, FG_WORK_PEER, &peer, sizeof peer);
    }
}

static void note_pins(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->pin_count; i++) {
        const fg_worker_pin_record *from = &worker->pins[i];
        pin_record pin = { .until_ns = from->until_ns, .count = from->count };
        fg_flight_note_with(worker->options.flight, FG_WORK_PIN, &pin, sizeof pin, from->blocks,
                            from->count * sizeof *from->blocks);
    }
}

static void note_blocks(fg_worker *worker)
{
    fg_flight *flight = worker->options.flight;
    const fg_tier *tier = worker->options.tier;
    void *data = fg_flight_open(flight, FG_WORK_POOL, fg_pool_state_bytes(worker->pool));
    if (data != NULL) {
        fg_pool_state_get(worker->pool, data);
        fg_flight_commit(flight);
    }
    data = fg_flight_open(flight, FG_WORK_PREFIX, fg_prefix_state_bytes(worker->prefix));
    if (data != NULL) {
        fg_prefix_state_get(worker->prefix, data);
        fg_flight_commit(flight);
    }
    data = tier != NULL ? fg_flight_open(flight, FG_WORK_TIER, fg_tier_state_bytes(tier)) : NULL;
    if (data != NULL) {
        fg_tier_state_get(tier, data);
        fg_flight_commit(flight);
    }
}

void fg_worker_note_rest(fg_worker *worker)
{
    if (!at_rest(worker) || !fits(worker)) {
        return;
    }
    fg_flight *flight = worker->options.flight;
    fg_flight_rest(flight);
    rest_record rest = { .secret = worker->secret_name,
                         .epoch = worker->routers[0].epoch,
                         .up_ns = worker->routers[0].up_ns,
                         .reconnect_at_ns = worker->routers[0].reconnect_at_ns,
                         .load_sequence = worker->routers[0].load_sequence,
                         .load_sent_ns = worker->routers[0].load_sent_ns,
                         .load_period_ns = worker->routers[0].load_period_ns,
                         .news_sequence = fg_worker_news_sequence(worker, 0),
                         .next_ticket = worker->next_ticket - worker->first_ticket,
                         .next_arrival = worker->next_arrival,
                         .step_number = worker->step_number,
                         .plans = worker->plans,
                         .ended_next = worker->ended_next,
                         .roles = worker->routers[0].roles,
                         .refusals = worker->routers[0].refusals,
                         .joined = worker->routers[0].joined,
                         .up = worker->routers[0].up,
                         .stalled = worker->routers[0].stalled,
                         .draining = worker->draining,
                         .load_dirty = worker->load_dirty || worker->routers[0].load_dirty,
                         .cost = worker->cost,
                         .asking = worker->asking,
                         .stats = worker->stats };
    memcpy(rest.ended, worker->ended, sizeof rest.ended);
    fg_flight_note(flight, FG_WORK_REST, &rest, sizeof rest);
    note_peers(worker);
    note_pins(worker);
    note_blocks(worker);
}

/* ---- in ---- */

static fg_status damaged(fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "it is damaged: what was known at its beginning is nonsense");
}

static void restore_rest(fg_worker *worker, const rest_record *rest)
{
    fg_prefix_set_secret(worker->prefix, rest->secret);
    worker->routers[0].epoch = rest->epoch;
    worker->routers[0].up_ns = rest->up_ns;
    worker->routers[0].reconnect_at_ns = rest->reconnect_at_ns;
    worker->routers[0].load_sequence = rest->load_sequence;
    worker->routers[0].load_sent_ns = rest->load_sent_ns;
    worker->routers[0].load_period_ns = rest->load_period_ns;
    fg_worker_news_go_on(worker, 0, rest->news_sequence);
    worker->next_ticket = rest->next_ticket;
    worker->next_arrival = rest->next_arrival;
    worker->step_number = rest->step_number;
    worker->plans = rest->plans;
    memcpy(worker->ended, rest->ended, sizeof rest->ended);
    worker->ended_next = rest->ended_next;
    worker->routers[0].roles = rest->roles;
    worker->routers[0].refusals = rest->refusals;
    worker->routers[0].joined = rest->joined != 0;
    worker->routers[0].up = rest->up != 0;
    worker->routers[0].stalled = rest->stalled != 0;
    worker->draining = rest->draining != 0;
    worker->load_dirty = rest->load_dirty != 0;
    worker->cost = rest->cost;
    worker->asking = rest->asking;
    worker->stats = rest->stats;
}

static fg_status restore_peer(fg_worker *worker, const peer_record *from, fg_error *err)
{
    size_t length = strnlen(from->name, sizeof from->name);
    if (worker->peer_count == FG_LIMIT_WORKERS || length > FG_LIMIT_NAME_BYTES ||
        !fg_worker_has_link(worker)) {
        return damaged(err);
    }
    fg_worker_peer *peer = &worker->peers[worker->peer_count++];
    memcpy(peer->name, from->name, length + 1);
    peer->epoch = from->epoch;
    peer->broken_ns = from->broken_ns;
    peer->index = from->index;
    return FG_OK;
}

static fg_status restore_pin(fg_worker *worker, const pin_record *from, size_t bytes, fg_error *err)
{
    const uint32_t *blocks = (const uint32_t *)(from + 1);
    if (bytes < sizeof *from || worker->pin_count == FG_WORKER_PINS_MAX || from->count == 0 ||
        from->count > worker->options.block_count - worker->pinned_blocks ||
        bytes != sizeof *from + from->count * sizeof *blocks) {
        return damaged(err);
    }
    for (uint32_t i = 0; i < from->count; i++) {
        if (blocks[i] >= worker->options.block_count) {
            return damaged(err);
        }
    }
    uint32_t *copy = fg_mem_dup(blocks, from->count * sizeof *blocks);
    if (copy == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    worker->pins[worker->pin_count++] =
        (fg_worker_pin_record){ .blocks = copy, .count = from->count, .until_ns = from->until_ns };
    worker->pinned_blocks += from->count;
    return FG_OK;
}

/* The pins, which come first, explain all references. */
static fg_status restore_pool(fg_worker *worker, const void *bytes, size_t size_bytes,
                              fg_error *err)
{
    uint32_t count = worker->options.block_count;
    bool ok = fg_pool_state_set(worker->pool, bytes, size_bytes);
    memset(worker->recount, 0, count * sizeof *worker->recount);
    fg_worker_recount_pins(worker, worker->recount);
    for (uint32_t i = 0; ok && i < count; i++) {
        ok = fg_pool_refs(worker->pool, i) == worker->recount[i];
    }
    return ok ? FG_OK : damaged(err);
}

fg_status fg_worker_restore(fg_worker *worker, const fg_flight_record *record, fg_error *err)
{
    const void *bytes = fg_flight_bytes(record);
    size_t size = record->bytes;
    fg_tier *tier = worker->options.tier;
    switch (record->kind) {
    case FG_WORK_REST:
        if (size == sizeof(rest_record)) {
            restore_rest(worker, bytes);
            return FG_OK;
        }
        return damaged(err);
    case FG_WORK_PEER:
        return size == sizeof(peer_record) ? restore_peer(worker, bytes, err) : damaged(err);
    case FG_WORK_PIN:
        return restore_pin(worker, bytes, size, err);
    case FG_WORK_POOL:
        return restore_pool(worker, bytes, size, err);
    case FG_WORK_PREFIX:
        return fg_prefix_state_set(worker->prefix, bytes, size) ? FG_OK : damaged(err);
    case FG_WORK_TIER:
        return tier != NULL && fg_tier_state_set(tier, bytes, size) ? FG_OK : damaged(err);
    default:
        return damaged(err);
    }
}

/* ---- the preface ---- */

uint64_t fg_work_shape(void)
{
    const uint64_t sizes[] = {
        FG_FLIGHT_VERSION,      FG_PROTOCOL_VERSION,   0x776F726B /* "work" */,
        FG_WORK_CALLS,          FG_ASKED_COUNT,        sizeof(rest_record),
        sizeof(peer_record),    sizeof(pin_record),    sizeof(fg_work_options),
        sizeof(fg_work_frame),  sizeof(fg_work_news),  sizeof(fg_work_step),
        sizeof(fg_work_sent),   sizeof(fg_work_began), sizeof(fg_work_linked),
        sizeof(fg_work_prompt), sizeof(fg_work_guess), sizeof(fg_work_ask)
    };
    return fg_hash64(sizes, sizeof sizes, 0);
}

const char *fg_work_name(uint32_t kind)
{
    static const char *const names[] = {
        [FG_WORK_UP] = "up",
        [FG_WORK_FRAME] = "frame",
        [FG_WORK_BAD_FRAME] = "bad_frame",
        [FG_WORK_DOWN] = "down",
        [FG_WORK_ENGINE] = "engine",
        [FG_WORK_TICK] = "tick",
        [FG_WORK_COMMIT] = "commit",
        [FG_WORK_FENCED] = "fenced",
        [FG_WORK_ANSWER] = "answer",
        [FG_WORK_DRAINED] = "drained",
        [FG_WORK_DRAIN] = "drain",
        [FG_WORK_ABORT] = "abort",
        [FG_WORK_CLEAR] = "clear",
        [FG_WORK_REST] = "rest",
        [FG_WORK_PEER] = "peer",
        [FG_WORK_PIN] = "pin",
        [FG_WORK_POOL] = "pool",
        [FG_WORK_PREFIX] = "prefix",
        [FG_WORK_TIER] = "tier",
        [FG_WORK_PROMPT] = "prompt",
        [FG_WORK_KEYS] = "keys",
        [FG_WORK_STEP] = "step",
        [FG_WORK_TRANSPORT] = "transport",
        [FG_WORK_GUESS] = "guess",
        [FG_WORK_SENT] = "sent",
        [FG_WORK_BEGAN] = "began",
        [FG_WORK_LINKED] = "link",
        [FG_WORK_RECONNECT] = "reconnect",
    };
    const char *name = kind < sizeof names / sizeof *names ? names[kind] : NULL;
    return name != NULL ? name : "unknown";
}

const char *fg_work_asked_name(uint32_t asked)
{
    static const char *const names[FG_ASKED_COUNT] = {
        [FG_ASKED_RECORD] = "describe",     [FG_ASKED_ADD_PEER] = "add_peer",
        [FG_ASKED_LOSE_PEER] = "lose_peer", [FG_ASKED_USABLE] = "usable",
        [FG_ASKED_EXPECT] = "expect",       [FG_ASKED_ANSWER] = "answer",
        [FG_ASKED_FENCE] = "fence",         [FG_ASKED_PREPARE] = "prepare",
        [FG_ASKED_PUSH] = "push",           [FG_ASKED_COMMIT] = "commit",
        [FG_ASKED_ABORT] = "abort",         [FG_ASKED_HOLD] = "hold",
        [FG_ASKED_RELEASE] = "release",
    };
    const char *name = asked < FG_ASKED_COUNT ? names[asked] : NULL;
    return name != NULL ? name : "unknown";
}

fg_work_options fg_work_put_options(const fg_worker_options *options)
{
    fg_work_options record;
    fg_tier_stats tier = { .total = 0 };
    if (options->tier != NULL) {
        fg_tier_stats_get(options->tier, &tier);
    }
    memset(&record, 0, sizeof record);
    record.fingerprint = options->fingerprint;
    record.epoch = options->epoch;
    record.pid = options->pid;
    record.speed = options->speed;
    record.layout = options->layout;
    record.limits = options->limits;
    record.roles = options->roles;
    record.block_count = options->block_count;
    record.context_max = options->context_max;
    record.vocab_size = options->vocab_size;
    record.embedding_length = options->embedding_length;
    record.local_prefill_max = options->local_prefill_max;
    record.tier_slots = tier.total;
    record.overlap = options->overlap;
    record.prefix_cache = options->prefix_cache;
    record.zero_copy = options->zero_copy;
    record.draft_context = options->draft_context;
    record.router_count = options->router_count > 1 ? options->router_count : 1;
    record.linked = options->link != NULL;
    record.hands_over = options->prefill != NULL && options->decode != NULL;
    snprintf(record.name, sizeof record.name, "%s", options->name);
    snprintf(record.numerics_class, sizeof record.numerics_class, "%s",
             fg_engine_numerics_class(options->engine));
    return record;
}

fg_status fg_work_get_options(const void *preface, size_t size_bytes,
                              const fg_work_options **record_out, fg_worker_options *options_out,
                              fg_error *err)
{
    const fg_work_options *record = preface;
    fg_kv_layout layout;
    if (size_bytes != sizeof *record || memchr(record->name, '\0', sizeof record->name) == NULL ||
        memchr(record->numerics_class, '\0', sizeof record->numerics_class) == NULL ||
        fg_kv_layout_init(&layout, record->layout.layer_count, record->layout.kv_head_count,
                          record->layout.head_dim, record->layout.block_size, record->layout.dtype,
                          err) != FG_OK ||
        record->block_count == 0 || record->block_count > FG_LIMIT_BLOCKS ||
        record->tier_slots > FG_LIMIT_BLOCKS || record->context_max > FG_LIMIT_CONTEXT_TOKENS ||
        record->draft_context > FG_LIMIT_CONTEXT_TOKENS || record->vocab_size == 0 ||
        record->embedding_length > FG_WIRE_EMBEDDING_MAX || record->router_count == 0 ||
        record->router_count > FG_WORKER_ROUTERS_MAX ||
        record->limits.seqs_max > FG_WORK_SEQS_MAX ||
        record->limits.step_tokens_max > FG_WORK_STEP_TOKENS_MAX ||
        (record->linked != 0 && record->hands_over == 0)) {
        return fg_fail(err, FG_BAD_INPUT, "it is damaged: its options are nonsense");
    }
    *record_out = record;
    *options_out = (fg_worker_options){ .name = record->name,
                                        .epoch = record->epoch,
                                        .router_count = record->router_count,
                                        .roles = record->roles,
                                        .speed = record->speed,
                                        .layout = layout,
                                        .block_count = record->block_count,
                                        .context_max = record->context_max,
                                        .vocab_size = record->vocab_size,
                                        .embedding_length = record->embedding_length,
                                        .limits = record->limits,
                                        .overlap = record->overlap != 0,
                                        .prefix_cache = record->prefix_cache != 0,
                                        .zero_copy = record->zero_copy != 0,
                                        .draft_context = record->draft_context,
                                        .local_prefill_max = record->local_prefill_max,
                                        .fingerprint = record->fingerprint,
                                        .pid = record->pid,
                                        .link_recorded = record->linked != 0 };
    return FG_OK;
}
