#include "proto/wire_internal.h"

#include <string.h>

#include "common/base/limits.h"
#include "common/base/utf8.h"
#include "forge.pb-c.h"

/* One decoding: where things go, and the first thing that went wrong. */
typedef struct decoder {
    fg_arena *arena;
    fg_error *err;
    fg_status status;
} decoder;

/* What protobuf-c allocates from: NULL from it says "cannot unpack", so the cause is kept here. */
typedef struct unpacker {
    fg_arena *arena;
    bool failed;
} unpacker;

static void *arena_alloc(void *ctx, size_t size_bytes)
{
    unpacker *from = ctx;
    void *memory = fg_arena_alloc(from->arena, size_bytes);
    from->failed = from->failed || memory == NULL;
    return memory;
}

static void arena_free(void *ctx, void *memory)
{
    /* The arena drops everything at once. */
}

static void out_of_memory(decoder *d)
{
    if (d->status == FG_OK) {
        d->status = fg_fail(d->err, FG_AGAIN, "no memory to decode a frame");
    }
}

/* A NUL-terminated copy; a text with a NUL inside is refused, for it would read as a shorter one.
 * */
static char *text_in(decoder *d, const char *field, const ProtobufCBinaryData *data)
{
    if (data->len > 0 && memchr(data->data, '\0', data->len) != NULL && d->status == FG_OK) {
        d->status = fg_fail(d->err, FG_BAD_INPUT, "field %s holds a NUL", field);
    }
    char *copy = fg_arena_alloc(d->arena, data->len + 1);
    if (copy == NULL) {
        out_of_memory(d);
    } else if (data->len > 0) {
        memcpy(copy, data->data, data->len);
    }
    return copy;
}

/* A text for people, fit for a log line: what is not UTF-8 becomes '?', what is a control ' '. */
static char *prose_in(decoder *d, const char *field, const ProtobufCBinaryData *data)
{
    if (data->len > WIRE_TEXT_MAX) {
        if (d->status == FG_OK) {
            d->status = fg_fail(d->err, FG_BAD_INPUT, "field %s is longer than %d bytes", field,
                                WIRE_TEXT_MAX);
        }
        return NULL;
    }
    char *text = fg_arena_alloc(d->arena, data->len + 1);
    if (text == NULL) {
        out_of_memory(d);
        return NULL;
    }
    if (data->len > 0) {
        memcpy(text, data->data, data->len);
    }
    for (size_t at = 0; at < data->len;) {
        size_t step = fg_utf8_length(text + at, data->len - at);
        if (step == 0) {
            text[at] = '?';
        } else if (step == 1 && ((unsigned char)text[at] < 0x20 || text[at] == 0x7F)) {
            text[at] = ' ';
        }
        at += step == 0 ? 1 : step;
    }
    return text;
}

static fg_wire_peer peer_in(decoder *d, const char *field, const Forge__Wire__Peer *peer)
{
    if (peer == NULL) {
        return (fg_wire_peer){ .name = "" };
    }
    return (fg_wire_peer){ .name = text_in(d, field, &peer->name), .epoch = peer->epoch };
}

/* The count of a repeated field, which the frame's size bounds far below 2^32. */
static uint32_t count_in(size_t count)
{
    return (uint32_t)count;
}

static const fg_bias *biases_in(decoder *d, const Forge__Wire__Params *params)
{
    fg_bias *biases = fg_arena_array(d->arena, params->n_biases, sizeof *biases);
    if (biases == NULL) {
        out_of_memory(d);
    } else if (params->n_biases > 0) {
        memcpy(biases, params->biases, params->n_biases * sizeof *biases);
    }
    return biases;
}

static fg_wire_params params_in(decoder *d, const Forge__Wire__Params *params)
{
    if (params == NULL) {
        if (d->status == FG_OK) {
            d->status = fg_fail(d->err, FG_BAD_INPUT, "field sampling is missing");
        }
        return (fg_wire_params){ 0 };
    }
    return (fg_wire_params){
        .temperature = params->temperature,
        .top_p = params->top_p,
        .min_p = params->min_p,
        .top_k = params->top_k,
        .seed = params->seed,
        .max_tokens = params->max_tokens,
        .ignore_eos = params->ignore_eos,
        .repetition_penalty = params->repetition_penalty,
        .frequency_penalty = params->frequency_penalty,
        .presence_penalty = params->presence_penalty,
        .min_tokens = params->min_tokens,
        .biases = params->n_biases > 0 ? biases_in(d, params) : NULL,
        .bias_count = count_in(params->n_biases),
        .grammar_kind = params->grammar_kind,
        .grammar = (const char *)params->grammar.data,
        .grammar_bytes = params->grammar.len,
        .want_logprobs = params->want_logprobs,
        .want_scores = params->want_scores,
        .want_embedding = params->want_embedding,
        .want_digests = params->want_digests,
        .priority = params->priority,
        .cache_mode = params->cache_mode,
        .salt_low = params->salt_low,
        .salt_high = params->salt_high,
        .family = params->family,
        .trace_high = params->trace_high,
        .trace_low = params->trace_low,
        .trace_span = params->trace_span,
        .pin_ms = params->pin_ms,
        .pull = params->pull,
    };
}

static void read_hello(decoder *d, const Forge__Wire__Frame *frame, fg_wire_hello *to)
{
    const Forge__Wire__Hello *from = frame->hello;
    to->protocol = frame->version;
    to->self = peer_in(d, "hello.self.name", from->self);
    if (frame->version != FG_PROTOCOL_VERSION) {
        /* Another version's HELLO is read only as far as a REFUSE needs it. */
        to->numerics_class = "";
        return;
    }
    to->roles = from->roles;
    to->pid = from->pid;
    to->fingerprint_low = from->fingerprint_low;
    to->fingerprint_high = from->fingerprint_high;
    to->numerics_class = text_in(d, "hello.numerics_class", &from->numerics_class);
    to->layer_count = from->layer_count;
    to->kv_head_count = from->kv_head_count;
    to->head_dim = from->head_dim;
    to->block_size = from->block_size;
    to->kv_dtype = from->kv_dtype;
    to->kv_layout = from->kv_layout;
    to->block_count = from->block_count;
    to->max_seqs = from->max_seqs;
    to->context_max = from->context_max;
    to->link_record = from->link_record.data;
    to->link_record_bytes = from->link_record.len;
    to->able = from->able;
    to->speed = (fg_wire_speed){ .prefill_ns_base = from->prefill_ns_base,
                                 .prefill_ns_per_token = from->prefill_ns_per_token,
                                 .prefill_ps_per_kv = from->prefill_ps_per_kv,
                                 .step_ns_base = from->step_ns_base,
                                 .step_ns_per_row = from->step_ns_per_row,
                                 .push_ns_per_block = from->push_ns_per_block };
}

static void read_load(const Forge__Wire__Load *from, fg_wire_load *to)
{
    *to = (fg_wire_load){
        .total = from->total,
        .free = from->free,
        .cached = from->cached,
        .held = from->held,
        .pinned = from->pinned,
        .quarantined = from->quarantined,
        .running = from->running,
        .waiting = from->waiting,
        .steps = from->steps,
        .busy_ns = from->busy_ns,
        .sequence = from->sequence,
        .cache_query_tokens = from->cache_query_tokens,
        .cache_hit_tokens = from->cache_hit_tokens,
        .evicted_blocks = from->evicted_blocks,
        .preemptions = from->preemptions,
        .swapped_blocks = from->swapped_blocks,
        .restored_blocks = from->restored_blocks,
        .tier_blocks = from->tier_blocks,
        .news_sequence = from->news_sequence,
    };
}

static void read_prefill(decoder *d, const Forge__Wire__Prefill *from, fg_msg *msg)
{
    msg->prefill.tokens = from->tokens;
    msg->prefill.token_count = count_in(from->n_tokens);
    msg->prefill.said = from->said;
    msg->prefill.said_count = count_in(from->n_said);
    msg->prefill.sampling = params_in(d, from->sampling);
    msg->prefill.has_ticket = from->has_ticket;
    msg->prefill.target = peer_in(d, "prefill.target.name", from->target);
    msg->prefill.ticket = from->ticket;
    msg->prefill.first_block = from->first_block;
    msg->prefill.blocks = from->blocks;
    msg->prefill.block_count = count_in(from->n_blocks);
}

/* Logprobs of `count` tokens, each NULL where nobody asked; NULL: of none. */
static const fg_logprobs **logprobs_in(decoder *d, const Forge__Wire__Logprobs *from, size_t count)
{
    size_t shown = 0, likely = 0;
    if (from == NULL || d->status != FG_OK) {
        return NULL;
    }
    bool fits = from->n_shown == count;
    for (size_t i = 0; fits && i < count; i++) {
        fits = from->shown[i] <= FG_LOGPROBS_MAX + 1;
        shown += from->shown[i] > 0;
        likely += from->shown[i] > 0 ? from->shown[i] - 1 : 0;
    }
    if (!fits || shown != from->n_chosen || likely != from->n_likely) {
        d->status = fg_fail(d->err, FG_BAD_INPUT, "columns of logprobs do not fit each other");
        return NULL;
    }
    const fg_logprobs **rows = fg_arena_array(d->arena, count, sizeof *rows);
    fg_logprobs *next = fg_arena_array(d->arena, shown, sizeof *next);
    if (rows == NULL || next == NULL) {
        out_of_memory(d);
        return NULL;
    }
    shown = likely = 0;
    for (size_t i = 0; i < count; i++) {
        rows[i] = from->shown[i] > 0 ? next : NULL;
        if (from->shown[i] > 0) {
            next->chosen = from->chosen[shown++];
            next->count = from->shown[i] - 1;
            if (next->count > 0) {
                memcpy(next->likely, from->likely + likely, next->count * sizeof *next->likely);
            }
            likely += next->count;
            next++;
        }
    }
    return rows;
}

static void read_scores(decoder *d, const Forge__Wire__Scores *from, fg_msg *msg)
{
    static fg_likely none; /* a pointer that may be moved */
    size_t count = from->n_chosen;
    if (from->n_rank != count || from->likely_count > FG_LOGPROBS_MAX ||
        from->n_likely != count * from->likely_count) {
        if (d->status == FG_OK) {
            d->status = fg_fail(d->err, FG_BAD_INPUT, "columns of scores do not fit each other");
        }
        return;
    }
    msg->scores.first = from->first;
    msg->scores.scores =
        (fg_scores){ .chosen = from->chosen,
                     .ranks = from->rank,
                     .likely = from->n_likely > 0 ? (fg_likely *)(void *)from->likely : &none,
                     .count = count_in(count),
                     .likely_count = from->likely_count };
}

static void read_tokens(decoder *d, const Forge__Wire__Tokens *from, fg_msg *msg)
{
    size_t count = from->n_request;
    if (from->n_attempt != count || from->n_choice != count || from->n_index != count ||
        from->n_id != count || (from->n_digest != 0 && from->n_digest != count)) {
        if (d->status == FG_OK) {
            d->status = fg_fail(d->err, FG_BAD_INPUT, "columns of tokens differ in length");
        }
        return;
    }
    fg_wire_token *tokens = fg_arena_array(d->arena, count, sizeof *tokens);
    if (tokens == NULL) {
        out_of_memory(d);
        return;
    }
    const fg_logprobs **logprobs = logprobs_in(d, from->logprobs, count);
    for (size_t i = 0; i < count; i++) {
        tokens[i] = (fg_wire_token){
            .request = from->request[i],
            .attempt = from->attempt[i],
            .choice = from->choice[i],
            .index = from->index[i],
            .id = from->id[i],
            .digest = from->n_digest == 0 ? 0 : from->digest[i],
            .logprobs = logprobs == NULL ? NULL : logprobs[i],
        };
    }
    msg->tokens.tokens = tokens;
    msg->tokens.count = count_in(count);
}

static void read_news(decoder *d, const Forge__Wire__News *from, fg_msg *msg)
{
    size_t count = from->n_change, keys = 0;
    bool fits = from->n_tier == count && from->n_parent == count && from->n_key_count == count;
    for (size_t i = 0; fits && i < count; i++) {
        keys += from->key_count[i];
    }
    if (!fits || keys != from->n_keys) {
        if (d->status == FG_OK) {
            d->status = fg_fail(d->err, FG_BAD_INPUT, "columns of news differ in length");
        }
        return;
    }
    fg_wire_news *rows = fg_arena_array(d->arena, count, sizeof *rows);
    if (rows == NULL) {
        out_of_memory(d);
        return;
    }
    const uint64_t *next = from->keys;
    for (size_t i = 0; i < count; i++) {
        /* An unknown number must not become an enum value before it was checked. */
        uint32_t change = from->change[i] > FG_NEWS_CLEARED ? 0 : from->change[i];
        rows[i] = (fg_wire_news){ .change = (fg_wire_change)change,
                                  .tier = from->tier[i],
                                  .parent = from->parent[i],
                                  .keys = next,
                                  .key_count = from->key_count[i] };
        if (from->key_count[i] > 0) { /* in a frame without keys there is no pointer to move */
            next += from->key_count[i];
        }
    }
    msg->news.sequence = from->sequence;
    msg->news.rows = rows;
    msg->news.count = count_in(count);
}

static void read_progress(decoder *d, const Forge__Wire__Frame *frame, fg_msg *msg)
{
    const fg_logprobs **logprobs;
    switch (msg->kind) {
    case FG_MSG_FIRST:
        msg->first.choice = frame->first->choice;
        msg->first.id = frame->first->id;
        msg->first.digest = frame->first->digest;
        msg->first.queue_ns = frame->first->queue_ns;
        msg->first.compute_ns = frame->first->compute_ns;
        msg->first.cached_tokens = frame->first->cached_tokens;
        msg->first.chunks = frame->first->chunks;
        msg->first.share_ns = frame->first->share_ns;
        msg->first.embedding = frame->first->embedding;
        msg->first.embedding_count = count_in(frame->first->n_embedding);
        logprobs = logprobs_in(d, frame->first->logprobs, 1);
        msg->first.logprobs = logprobs == NULL ? NULL : logprobs[0];
        break;
    case FG_MSG_SCORES:
        read_scores(d, frame->scores, msg);
        break;
    case FG_MSG_PUSHED:
        msg->pushed.blocks = frame->pushed->blocks;
        msg->pushed.bytes = frame->pushed->bytes;
        msg->pushed.transport = text_in(d, "pushed.transport", &frame->pushed->transport);
        msg->pushed.exposed_ns = frame->pushed->exposed_ns;
        msg->pushed.retries = frame->pushed->retries;
        break;
    case FG_MSG_DONE:
        /* An unknown number must not become an enum value before it was checked. */
        msg->done.finish = frame->done->finish > FG_FINISH_HANDED_OVER
                               ? FG_FINISH_NONE
                               : (fg_finish)frame->done->finish;
        msg->done.text = prose_in(d, "done.text", &frame->done->text);
        msg->done.generated = frame->done->generated;
        msg->done.preemptions = frame->done->preemptions;
        msg->done.refused = frame->done->refused;
        msg->done.broken = frame->done->broken;
        break;
    default:
        break;
    }
}

static void read_body(decoder *d, const Forge__Wire__Frame *frame, fg_msg *msg)
{
    switch (msg->kind) {
    case FG_MSG_HELLO:
        read_hello(d, frame, &msg->hello);
        break;
    case FG_MSG_WELCOME:
        msg->welcome.router_epoch = frame->welcome->router_epoch;
        msg->welcome.lease_ms = frame->welcome->lease_ms;
        msg->welcome.cache_key_low = frame->welcome->cache_key_low;
        msg->welcome.cache_key_high = frame->welcome->cache_key_high;
        break;
    case FG_MSG_REFUSE:
        msg->refuse.reason = prose_in(d, "refuse.reason", &frame->refuse->reason);
        break;
    case FG_MSG_LOAD:
        read_load(frame->load, &msg->load);
        break;
    case FG_MSG_PEER:
        msg->peer.peer = peer_in(d, "peer.peer.name", frame->peer->peer);
        msg->peer.pid = frame->peer->pid;
        msg->peer.link_record = frame->peer->link_record.data;
        msg->peer.link_record_bytes = frame->peer->link_record.len;
        break;
    case FG_MSG_PEER_LOST:
        msg->peer_lost.peer = peer_in(d, "peer_lost.peer.name", frame->peer_lost->peer);
        break;
    case FG_MSG_RESERVE:
        msg->reserve.writer = peer_in(d, "reserve.writer.name", frame->reserve->writer);
        msg->reserve.tokens = frame->reserve->tokens;
        msg->reserve.token_count = count_in(frame->reserve->n_tokens);
        msg->reserve.said = frame->reserve->said;
        msg->reserve.said_count = count_in(frame->reserve->n_said);
        msg->reserve.sampling = params_in(d, frame->reserve->sampling);
        break;
    case FG_MSG_TICKET:
        msg->ticket.granted = frame->ticket->granted;
        msg->ticket.local = frame->ticket->local;
        msg->ticket.ticket = frame->ticket->ticket;
        msg->ticket.first_block = frame->ticket->first_block;
        msg->ticket.blocks = frame->ticket->blocks;
        msg->ticket.block_count = count_in(frame->ticket->n_blocks);
        break;
    case FG_MSG_PREFILL:
        read_prefill(d, frame->prefill, msg);
        break;
    case FG_MSG_TOKENS:
        read_tokens(d, frame->tokens, msg);
        break;
    case FG_MSG_NEWS:
        read_news(d, frame->news, msg);
        break;
    case FG_MSG_ROLE:
        msg->role.roles = frame->role->roles;
        break;
    default:
        read_progress(d, frame, msg);
        break;
    }
}

/* The oneof's cases follow fg_msg_kind, from field 16 on; 0 for none. */
static fg_msg_kind kind_of(Forge__Wire__Frame__BodyCase body_case)
{
    return body_case == FORGE__WIRE__FRAME__BODY__NOT_SET
               ? (fg_msg_kind)0
               : (fg_msg_kind)((int)body_case - FORGE__WIRE__FRAME__BODY_HELLO + FG_MSG_HELLO);
}
_Static_assert(FORGE__WIRE__FRAME__BODY_SCORES - FORGE__WIRE__FRAME__BODY_HELLO ==
                   FG_MSG_SCORES - FG_MSG_HELLO,
               "the frame's bodies and fg_msg_kind are in one order");

fg_status fg_wire_decode(const void *bytes, size_t size_bytes, fg_arena *arena, fg_msg *msg_out,
                         fg_error *err)
{
    if (size_bytes == 0 || size_bytes > FG_LIMIT_FRAME_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "frame of %zu bytes, allowed are 1 to %u", size_bytes,
                       FG_LIMIT_FRAME_BYTES);
    }
    fg_status status = fg_wire_scan(&forge__wire__frame__descriptor, bytes, size_bytes, err);
    if (status != FG_OK) {
        return status;
    }
    unpacker from = { .arena = arena };
    ProtobufCAllocator allocator = { arena_alloc, arena_free, &from };
    Forge__Wire__Frame *frame = forge__wire__frame__unpack(&allocator, size_bytes, bytes);
    if (frame == NULL && from.failed) {
        return fg_fail(err, FG_AGAIN, "no memory to decode a frame of %zu bytes", size_bytes);
    }
    if (frame == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "frame of %zu bytes does not unpack", size_bytes);
    }
    fg_msg msg = { .kind = kind_of(frame->body_case),
                   .request = frame->request,
                   .attempt = frame->attempt };
    if (frame->version != FG_PROTOCOL_VERSION && msg.kind != FG_MSG_HELLO) {
        return fg_fail(err, FG_BAD_INPUT, "protocol version %u, this is %u", frame->version,
                       FG_PROTOCOL_VERSION);
    }
    if ((int)msg.kind == 0) {
        return fg_fail(err, FG_BAD_INPUT, "frame without a known body");
    }
    decoder d = { .arena = arena, .err = err, .status = FG_OK };
    read_body(&d, frame, &msg);
    if (d.status != FG_OK) {
        return d.status;
    }
    status = fg_wire_check(&msg, err);
    if (status == FG_OK) {
        *msg_out = msg;
    }
    return status;
}
