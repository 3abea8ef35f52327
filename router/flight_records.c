/* What a flight record needs besides calls: the options, and all that is known when the dispatcher is at rest,
 * so that one can be made again that goes on from there. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/dispatch_internal.h"
#include "router/flight_records.h"

/* ---- at rest ---- */

/* All that decides what the dispatcher does next, but for its members, the debts of tenants, and the residency
 * tree, whose answers are noted instead. */
typedef struct rest_record {
    uint64_t next_id, prompt_tokens, served_ns;
    uint64_t created_ns, ticked_ns, nobody_since_ns;
    fg_rng dice;
    double mean_answer;
    fg_rate ended_rate, prompt_rate;
    uint32_t was_complete, was_cleared;
    fg_queue_memory queue;
    fg_dispatch_stats stats;
} rest_record;

typedef struct identity_record {
    uint32_t peer, pad;
    char text[FG_IDENTITY_BYTES];
} identity_record;

typedef struct member_record {
    fg_reg_worker worker;
    uint32_t layer_count, kv_head_count, head_dim, kv_dtype, kv_layout, pad;
    char numerics_class[FG_LIMIT_CLASS_BYTES + 8];
} member_record;
_Static_assert(sizeof(member_record) ==
                   offsetof(member_record, numerics_class) + FG_LIMIT_CLASS_BYTES + 8,
               "no gap at the end: all of it is written");

void fg_dispatch_note_rest(fg_dispatch *dispatch)
{
    fg_flight *flight = dispatch->options.flight;
    fg_flight_rest(flight);
    rest_record rest = { .next_id = dispatch->next_id,
                         .prompt_tokens = dispatch->prompt_tokens,
                         .served_ns = dispatch->served_ns,
                         .created_ns = dispatch->created_ns,
                         .ticked_ns = dispatch->ticked_ns,
                         .nobody_since_ns = dispatch->nobody_since_ns,
                         .dice = dispatch->dice,
                         .mean_answer = dispatch->mean_answer,
                         .ended_rate = dispatch->ended_rate,
                         .prompt_rate = dispatch->prompt_rate,
                         .was_complete = dispatch->was_complete,
                         .was_cleared = dispatch->was_cleared,
                         .stats = dispatch->stats };
    fg_queue_memory_get(dispatch->queue, &rest.queue);
    fg_flight_note(flight, FG_RECORD_REST, &rest, sizeof rest);
    for (uint32_t peer = 0; peer < FG_LIMIT_WORKERS; peer++) {
        if (dispatch->identities[peer][0] != '\0') {
            identity_record identity = { .peer = peer };
            memcpy(identity.text, dispatch->identities[peer], sizeof identity.text);
            fg_flight_note(flight, FG_RECORD_IDENTITY, &identity, sizeof identity);
        }
    }
    fg_queue_debt debt;
    const fg_queue_flow *flow = NULL;
    while (fg_queue_debt_next(dispatch->queue, &flow, &debt)) {
        fg_flight_note(flight, FG_RECORD_DEBT, &debt, sizeof debt);
    }
    const char *class;
    const fg_wire_hello *shape = fg_registry_shape(dispatch->registry, &class);
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        member_record member = { .worker = *fg_registry_at(dispatch->registry, i),
                                 .layer_count = shape->layer_count,
                                 .kv_head_count = shape->kv_head_count,
                                 .head_dim = shape->head_dim,
                                 .kv_dtype = shape->kv_dtype,
                                 .kv_layout = shape->kv_layout };
        member.worker.link_record = NULL;
        snprintf(member.numerics_class, sizeof member.numerics_class, "%s", class);
        fg_flight_note(flight, FG_RECORD_MEMBER, &member, sizeof member);
    }
}

static fg_status damaged(fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "it is damaged: what was known at its beginning is nonsense");
}

static fg_status restore_rest(fg_dispatch *dispatch, const rest_record *rest, fg_error *err)
{
    if (rest->stats.live != 0 || rest->stats.queued != 0) {
        return damaged(err);
    }
    dispatch->next_id = rest->next_id;
    dispatch->prompt_tokens = rest->prompt_tokens;
    dispatch->served_ns = rest->served_ns;
    dispatch->created_ns = rest->created_ns;
    dispatch->ticked_ns = rest->ticked_ns;
    dispatch->nobody_since_ns = rest->nobody_since_ns;
    dispatch->dice = rest->dice;
    dispatch->mean_answer = rest->mean_answer;
    dispatch->ended_rate = rest->ended_rate;
    dispatch->prompt_rate = rest->prompt_rate;
    dispatch->was_complete = rest->was_complete != 0;
    dispatch->was_cleared = rest->was_cleared != 0;
    dispatch->stats = rest->stats;
    fg_queue_tell_memory(dispatch->queue, &rest->queue);
    return FG_OK;
}

static fg_status restore_member(fg_dispatch *dispatch, const member_record *member, fg_error *err)
{
    const fg_reg_worker *from = &member->worker;
    size_t record_bytes = from->link_record_bytes;
    if (memchr(from->name, '\0', sizeof from->name) == NULL || from->peer >= FG_LIMIT_WORKERS ||
        memchr(member->numerics_class, '\0', sizeof member->numerics_class) == NULL ||
        from->prefills != 0 || from->decodes != 0 || record_bytes > FG_LIMIT_FRAME_BYTES ||
        fg_registry_by_peer(dispatch->registry, from->peer) != NULL) {
        return damaged(err);
    }
    fg_wire_hello hello = { .protocol = FG_PROTOCOL_VERSION,
                            .self = { from->name, from->epoch },
                            .roles = from->roles,
                            .fingerprint_low = dispatch->options.fingerprint.low,
                            .fingerprint_high = dispatch->options.fingerprint.high,
                            .numerics_class = member->numerics_class,
                            .layer_count = member->layer_count,
                            .kv_head_count = member->kv_head_count,
                            .head_dim = member->head_dim,
                            .kv_dtype = member->kv_dtype,
                            .kv_layout = member->kv_layout,
                            .block_size = from->block_size,
                            .block_count = from->block_count,
                            .max_seqs = from->max_seqs,
                            .context_max = from->context_max };
    fg_reg_worker *worker;
    void *zeros = fg_mem_alloc(record_bytes + 1);
    fg_status status = zeros == NULL ? fg_fail(err, FG_AGAIN, "out of memory") : FG_OK;
    if (status == FG_OK) {
        hello.link_record = zeros;
        hello.link_record_bytes = record_bytes;
        status =
            fg_registry_join(dispatch->registry, &hello, from->peer, from->joined_ns, &worker, err);
    }
    fg_mem_free(zeros);
    if (status != FG_OK) {
        return status;
    }
    void *record = worker->link_record;
    *worker = *from;
    worker->link_record = record;
    fg_residency_join(dispatch->residency, worker->peer, worker->epoch);
    return FG_OK;
}

fg_status fg_dispatch_restore(fg_dispatch *dispatch, const fg_flight_record *record, fg_error *err)
{
    const void *bytes = fg_flight_bytes(record);
    if (record->kind == FG_RECORD_REST && record->bytes == sizeof(rest_record)) {
        return restore_rest(dispatch, bytes, err);
    }
    if (record->kind == FG_RECORD_IDENTITY && record->bytes == sizeof(identity_record)) {
        const identity_record *identity = bytes;
        if (identity->peer >= FG_LIMIT_WORKERS ||
            memchr(identity->text, '\0', sizeof identity->text) == NULL) {
            return damaged(err);
        }
        memcpy(dispatch->identities[identity->peer], identity->text, sizeof identity->text);
        return FG_OK;
    }
    if (record->kind == FG_RECORD_DEBT && record->bytes == sizeof(fg_queue_debt)) {
        fg_queue_tell_debt(dispatch->queue, bytes);
        return FG_OK;
    }
    if (record->kind == FG_RECORD_MEMBER && record->bytes == sizeof(member_record)) {
        return restore_member(dispatch, bytes, err);
    }
    return damaged(err);
}

/* ---- the preface ---- */

uint64_t fg_record_shape(void)
{
    const uint64_t sizes[] = { FG_FLIGHT_VERSION,         FG_PROTOCOL_VERSION,
                               FG_RECORD_CALLS,           sizeof(rest_record),
                               sizeof(identity_record),   sizeof(member_record),
                               sizeof(fg_record_options), sizeof(fg_record_start),
                               sizeof(fg_record_sent),    sizeof(fg_residency_hit) };
    return fg_hash64(sizes, sizeof sizes, 0);
}

const char *fg_record_name(uint32_t kind)
{
    static const char *const names[] = {
        [FG_RECORD_UP] = "up",
        [FG_RECORD_FRAME] = "frame",
        [FG_RECORD_TOKENS] = "tokens",
        [FG_RECORD_FIRST] = "first",
        [FG_RECORD_TICKET] = "ticket",
        [FG_RECORD_SCORES] = "scores",
        [FG_RECORD_BAD_FRAME] = "bad_frame",
        [FG_RECORD_DOWN] = "down",
        [FG_RECORD_TICK] = "tick",
        [FG_RECORD_START] = "start",
        [FG_RECORD_CANCEL] = "cancel",
        [FG_RECORD_ROLE] = "role",
        [FG_RECORD_CLEAR] = "clear",
        [FG_RECORD_ABORT] = "abort",
        [FG_RECORD_REST] = "rest",
        [FG_RECORD_IDENTITY] = "known",
        [FG_RECORD_MEMBER] = "member",
        [FG_RECORD_DEBT] = "debt",
        [FG_RECORD_KEYS] = "keys",
        [FG_RECORD_SPAN] = "span",
        [FG_RECORD_HITS] = "hits",
        [FG_RECORD_HEAT] = "heat",
        [FG_RECORD_NEWS] = "news",
        [FG_RECORD_LOST] = "lost",
        [FG_RECORD_SENT] = "sent",
        [FG_RECORD_DROPPED] = "dropped",
        [FG_RECORD_ENDED] = "ended",
        [FG_RECORD_ANSWERED] = "answered",
    };
    const char *name = kind < sizeof names / sizeof *names ? names[kind] : NULL;
    return name != NULL ? name : "unknown";
}

bool fg_record_put_options(const fg_dispatch_options *options, fg_buf *out)
{
    fg_record_options record = { .fingerprint = options->fingerprint,
                                 .router_epoch = options->router_epoch,
                                 .limits = options->limits,
                                 .place = options->place,
                                 .residency_bytes = options->residency_bytes,
                                 .lease_ms = options->lease_ms,
                                 .stuck_ms = options->stuck_ms,
                                 .queue_ahead = options->queue_ahead,
                                 .tenant_running_max = options->tenant_running_max,
                                 .wait_for_prefill_count = options->wait_for_prefill_count,
                                 .wait_for_decode_count = options->wait_for_decode_count };
    bool ok = fg_buf_append(out, &record, sizeof record);
    for (uint32_t i = 0; ok && i < options->wait_for_prefill_count; i++) {
        ok = fg_buf_append(out, options->wait_for_prefill[i],
                           strlen(options->wait_for_prefill[i]) + 1);
    }
    for (uint32_t i = 0; ok && i < options->wait_for_decode_count; i++) {
        ok = fg_buf_append(out, options->wait_for_decode[i],
                           strlen(options->wait_for_decode[i]) + 1);
    }
    return ok && out->size <= FG_FLIGHT_PREFACE_BYTES;
}

static bool take_names(const char **at, const char *end, uint32_t count, const char **names_out)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *nul = memchr(*at, '\0', (size_t)(end - *at));
        if (nul == NULL) {
            return false;
        }
        names_out[i] = *at;
        *at = nul + 1;
    }
    return true;
}

fg_status fg_record_get_options(const void *preface, size_t size_bytes, const char **prefill_names,
                                const char **decode_names, fg_dispatch_options *options_out,
                                fg_error *err)
{
    const fg_record_options *record = preface;
    const char *at = (const char *)(record + 1), *end = (const char *)preface + size_bytes;
    if (size_bytes < sizeof *record || record->wait_for_prefill_count > FG_LIMIT_WORKERS ||
        record->wait_for_decode_count > FG_LIMIT_WORKERS ||
        (uint32_t)record->place.policy > (uint32_t)FG_PLACE_TWO_CHOICES ||
        (uint32_t)record->place.split > (uint32_t)FG_PLACE_UNSPLIT ||
        record->limits.live_max == 0 || record->limits.live_max > FG_LIMIT_LIVE_REQUESTS ||
        record->residency_bytes > (uint64_t)1 << 40 || record->queue_ahead > FG_QUEUE_AHEAD_MAX ||
        !take_names(&at, end, record->wait_for_prefill_count, prefill_names) ||
        !take_names(&at, end, record->wait_for_decode_count, decode_names) || at != end) {
        return fg_fail(err, FG_BAD_INPUT, "it is damaged: its options are nonsense");
    }
    *options_out = (fg_dispatch_options){ .fingerprint = record->fingerprint,
                                          .router_epoch = record->router_epoch,
                                          .limits = record->limits,
                                          .place = record->place,
                                          .residency_bytes = record->residency_bytes,
                                          .lease_ms = record->lease_ms,
                                          .stuck_ms = record->stuck_ms,
                                          .queue_ahead = record->queue_ahead,
                                          .tenant_running_max = record->tenant_running_max,
                                          .wait_for_prefill = prefill_names,
                                          .wait_for_prefill_count = record->wait_for_prefill_count,
                                          .wait_for_decode = decode_names,
                                          .wait_for_decode_count = record->wait_for_decode_count };
    return FG_OK;
}
