#include "proto/wire_internal.h"

#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"

enum {
    LINK_RECORD_MAX = 1 << 16, /* a UCX worker address is 38..2000 bytes */
    STEP_TOKENS_MAX = 1 << 16, /* of one decode step */
    SHAPE_MAX = 1 << 16,       /* layers, heads, head size, block size */
    CHOICES_MAX = 1024,
    NEWS_ROWS_MAX = 1 << 16,
    NEWS_KEYS_MAX = 1 << 18, /* of all rows */
    LEASE_MS_MAX = 3600 * 1000,
    GRAMMAR_KIND_MAX = 6,
};

static fg_status too_large(const char *field, uint64_t value, fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "field %s is out of range: %llu", field,
                   (unsigned long long)value);
}

typedef struct bound {
    const char *field;
    uint64_t value;
    uint64_t max;
} bound;

static fg_status check_bounds(const bound *bounds, size_t count, fg_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (bounds[i].value > bounds[i].max) {
            return too_large(bounds[i].field, bounds[i].value, err);
        }
    }
    return FG_OK;
}

/* A peer's name is also a bus identity ("name#epoch") and a metric label. */
static fg_status check_name(const char *field, const char *name, fg_error *err)
{
    size_t length = name == NULL ? 0 : strlen(name);
    bool fine = length > 0 && length <= FG_LIMIT_NAME_BYTES;
    for (size_t i = 0; fine && i < length; i++) {
        fine = name[i] > 0x20 && name[i] < 0x7F && name[i] != '#';
    }
    if (!fine) {
        return fg_fail(err, FG_BAD_INPUT,
                       "field %s is not a name: 1 to %u printable characters without '#'", field,
                       FG_LIMIT_NAME_BYTES);
    }
    return FG_OK;
}

static fg_status check_word(const char *field, const char *word, fg_error *err)
{
    size_t length = word == NULL ? 0 : strlen(word);
    bool fine = length <= FG_LIMIT_CLASS_BYTES;
    for (size_t i = 0; fine && i < length; i++) {
        fine = word[i] >= 0x20 && word[i] < 0x7F;
    }
    return fine ? FG_OK
                : fg_fail(err, FG_BAD_INPUT, "field %s is not up to %u printable characters", field,
                          FG_LIMIT_CLASS_BYTES);
}

static fg_status check_record(const char *field, const void *record, size_t size_bytes,
                              fg_error *err)
{
    if (size_bytes > LINK_RECORD_MAX || (size_bytes > 0 && record == NULL)) {
        return too_large(field, size_bytes, err);
    }
    return FG_OK;
}

static fg_status check_hello(const fg_wire_hello *hello, fg_error *err)
{
    const bound bounds[] = {
        { "hello.layer_count", hello->layer_count, SHAPE_MAX },
        { "hello.kv_head_count", hello->kv_head_count, SHAPE_MAX },
        { "hello.head_dim", hello->head_dim, SHAPE_MAX },
        { "hello.block_size", hello->block_size, SHAPE_MAX },
        { "hello.block_count", hello->block_count, FG_LIMIT_BLOCKS },
        { "hello.max_seqs", hello->max_seqs, FG_LIMIT_LIVE_REQUESTS },
        { "hello.context_max", hello->context_max, FG_LIMIT_CONTEXT_TOKENS },
    };
    fg_status status = check_name("hello.self.name", hello->self.name, err);
    if (status == FG_OK && hello->protocol != FG_PROTOCOL_VERSION) {
        return FG_OK; /* nothing else of it is known, and nothing else was read */
    }
    if (status == FG_OK &&
        (hello->roles == 0 || (hello->roles & ~(uint32_t)(FG_ROLE_PREFILL | FG_ROLE_DECODE)))) {
        status = too_large("hello.roles", hello->roles, err);
    }
    if (status == FG_OK && ((hello->able & ~(uint32_t)(FG_ROLE_PREFILL | FG_ROLE_DECODE)) ||
                            (hello->roles & ~hello->able))) {
        status = too_large("hello.able", hello->able, err);
    }
    if (status == FG_OK && fg_dtype_kv_bytes(hello->kv_dtype) == 0) {
        status = too_large("hello.kv_dtype", hello->kv_dtype, err);
    }
    if (status == FG_OK) {
        status = check_word("hello.numerics_class", hello->numerics_class, err);
    }
    if (status == FG_OK) {
        status = check_bounds(bounds, sizeof bounds / sizeof bounds[0], err);
    }
    if (status == FG_OK) {
        status =
            check_record("hello.link_record", hello->link_record, hello->link_record_bytes, err);
    }
    return status;
}

static fg_status check_load(const fg_wire_load *load, fg_error *err)
{
    const bound bounds[] = {
        { "load.total", load->total, FG_LIMIT_BLOCKS },
        { "load.free", load->free, FG_LIMIT_BLOCKS },
        { "load.cached", load->cached, FG_LIMIT_BLOCKS },
        { "load.held", load->held, FG_LIMIT_BLOCKS },
        { "load.pinned", load->pinned, FG_LIMIT_BLOCKS },
        { "load.quarantined", load->quarantined, FG_LIMIT_BLOCKS },
        { "load.tier_blocks", load->tier_blocks, FG_LIMIT_BLOCKS },
    };
    return check_bounds(bounds, sizeof bounds / sizeof bounds[0], err);
}

static fg_status check_fraction(const char *field, float value, float max, fg_error *err)
{
    if (!isfinite(value) || value < 0.0f || value > max) {
        return fg_fail(err, FG_BAD_INPUT, "field %s is out of range: %g", field, (double)value);
    }
    return FG_OK;
}

/* What changes logits: any numbers that are numbers. */
static fg_status check_shape(const fg_wire_params *params, fg_error *err)
{
    fg_status status =
        check_fraction("sampling.repetition_penalty", params->repetition_penalty, 1e6f, err);
    if (status == FG_OK) {
        status = check_fraction("sampling.frequency_penalty", fabsf(params->frequency_penalty),
                                1e6f, err);
    }
    if (status == FG_OK) {
        status =
            check_fraction("sampling.presence_penalty", fabsf(params->presence_penalty), 1e6f, err);
    }
    if (status == FG_OK && params->min_tokens > params->max_tokens) {
        status = too_large("sampling.min_tokens", params->min_tokens, err);
    }
    if (status == FG_OK && (params->bias_count > FG_LIMIT_BIASES ||
                            (params->bias_count > 0 && params->biases == NULL))) {
        status = too_large("sampling.biases (count)", params->bias_count, err);
    }
    for (uint32_t i = 0; status == FG_OK && i < params->bias_count; i++) {
        status = check_fraction("sampling.biases", fabsf(params->biases[i].bias), 1e6f, err);
    }
    if (status == FG_OK && (params->grammar_bytes > FG_LIMIT_GRAMMAR_BYTES ||
                            (params->grammar_bytes > 0 && params->grammar == NULL))) {
        status = too_large("sampling.grammar", params->grammar_bytes, err);
    }
    if (status == FG_OK && params->grammar_kind > GRAMMAR_KIND_MAX) {
        status = too_large("sampling.grammar_kind", params->grammar_kind, err);
    }
    if (status == FG_OK && params->want_logprobs > FG_LOGPROBS_MAX + 1) {
        status = too_large("sampling.want_logprobs", params->want_logprobs, err);
    }
    if (status == FG_OK && params->want_scores > FG_LOGPROBS_MAX + 1) {
        status = too_large("sampling.want_scores", params->want_scores, err);
    }
    if (status == FG_OK && params->want_embedding && params->max_tokens != 1) {
        status = fg_fail(err, FG_BAD_INPUT, "an embedding is not asked for beside %u tokens",
                         params->max_tokens);
    }
    return status;
}

static fg_status check_params(const fg_wire_params *params, fg_error *err)
{
    fg_status status = check_shape(params, err);
    if (status == FG_OK) {
        status = check_fraction("sampling.temperature", params->temperature, 1e6f, err);
    }
    if (status == FG_OK) {
        status = check_fraction("sampling.top_p", params->top_p, 1.0f, err);
    }
    if (status == FG_OK) {
        status = check_fraction("sampling.min_p", params->min_p, 1.0f, err);
    }
    if (status == FG_OK && params->max_tokens > FG_LIMIT_CONTEXT_TOKENS) {
        status = too_large("sampling.max_tokens", params->max_tokens, err);
    }
    if (status == FG_OK &&
        (params->priority < FG_PRIORITY_HIGH || params->priority > FG_PRIORITY_LOW)) {
        status = fg_fail(err, FG_BAD_INPUT, "field sampling.priority is out of range: %d",
                         params->priority);
    }
    if (status == FG_OK && params->pin_ms > FG_LIMIT_PIN_MS) {
        status = too_large("sampling.pin_ms", params->pin_ms, err);
    }
    if (status == FG_OK && params->cache_mode > FG_CACHE_DISABLE) {
        status = too_large("sampling.cache_mode", params->cache_mode, err);
    }
    if (status == FG_OK &&
        (params->trace_span != 0) != ((params->trace_high | params->trace_low) != 0)) {
        status = fg_fail(err, FG_BAD_INPUT, "field sampling.trace_span and the trace id: %s",
                         params->trace_span != 0 ? "the id is zero" : "an id without a span");
    }
    return status;
}

static fg_status check_work(const uint32_t *tokens, uint32_t token_count,
                            const fg_wire_params *params, fg_error *err)
{
    if (token_count == 0 || token_count > FG_LIMIT_CONTEXT_TOKENS || tokens == NULL) {
        return too_large("tokens (count)", token_count, err);
    }
    return check_params(params, err);
}

/* Tokens of an answer, which follow the prompt. */
static fg_status check_said(const uint32_t *said, uint32_t said_count, uint32_t token_count,
                            const fg_wire_params *params, fg_error *err)
{
    if (said_count > params->max_tokens || said_count > FG_LIMIT_CONTEXT_TOKENS - token_count ||
        (said_count > 0 && said == NULL)) {
        return too_large("said (count)", said_count, err);
    }
    return FG_OK;
}

static fg_status check_reserve(const fg_msg *msg, fg_error *err)
{
    fg_status status = check_name("reserve.writer.name", msg->reserve.writer.name, err);
    if (status == FG_OK) {
        status =
            check_work(msg->reserve.tokens, msg->reserve.token_count, &msg->reserve.sampling, err);
    }
    return status != FG_OK ? status
                           : check_said(msg->reserve.said, msg->reserve.said_count,
                                        msg->reserve.token_count, &msg->reserve.sampling, err);
}

static fg_status check_blocks(const uint32_t *blocks, uint32_t block_count, uint32_t first_block,
                              fg_error *err)
{
    if (block_count > FG_LIMIT_BLOCKS || (block_count > 0 && blocks == NULL)) {
        return too_large("blocks (count)", block_count, err);
    }
    if (first_block > FG_LIMIT_BLOCKS) {
        return too_large("first_block", first_block, err);
    }
    for (uint32_t i = 0; i < block_count; i++) {
        if (blocks[i] >= FG_LIMIT_BLOCKS) {
            return too_large("blocks", blocks[i], err);
        }
    }
    return FG_OK;
}

static fg_status check_prefill(const fg_msg *msg, fg_error *err)
{
    fg_status status =
        check_work(msg->prefill.tokens, msg->prefill.token_count, &msg->prefill.sampling, err);
    if (status == FG_OK) {
        status = check_said(msg->prefill.said, msg->prefill.said_count, msg->prefill.token_count,
                            &msg->prefill.sampling, err);
    }
    if (status == FG_OK && msg->prefill.has_ticket) {
        status = check_name("prefill.target.name", msg->prefill.target.name, err);
    }
    if (status == FG_OK) {
        status = check_blocks(msg->prefill.blocks, msg->prefill.block_count,
                              msg->prefill.first_block, err);
    }
    return status;
}

static fg_status check_first(const fg_msg *msg, fg_error *err)
{
    const bound bounds[] = {
        { "first.choice", msg->first.choice, CHOICES_MAX },
        { "first.cached_tokens", msg->first.cached_tokens, FG_LIMIT_CONTEXT_TOKENS },
        { "first.chunks", msg->first.chunks, FG_LIMIT_CONTEXT_TOKENS },
        { "first.embedding (count)", msg->first.embedding_count, FG_WIRE_EMBEDDING_MAX },
    };
    fg_status status = check_bounds(bounds, sizeof bounds / sizeof bounds[0], err);
    if (status == FG_OK && msg->first.embedding_count > 0 && msg->first.embedding == NULL) {
        status = fg_fail(err, FG_BAD_INPUT, "an embedding without numbers");
    }
    for (uint32_t i = 0; status == FG_OK && i < msg->first.embedding_count; i++) {
        if (!isfinite(msg->first.embedding[i])) {
            status = fg_fail(err, FG_BAD_INPUT, "number %u of an embedding is not finite", i);
        }
    }
    return status;
}

static fg_status check_scores(const fg_msg *msg, fg_error *err)
{
    const fg_scores *scores = &msg->scores.scores;
    const bound bounds[] = {
        { "scores.first", msg->scores.first, FG_LIMIT_CONTEXT_TOKENS - 1 },
        { "scores (count)", scores->count, FG_WIRE_SCORES_MAX },
        { "scores.likely_count", scores->likely_count, FG_LOGPROBS_MAX },
    };
    if (msg->scores.first == 0 || scores->count == 0) {
        return too_large(msg->scores.first == 0 ? "scores.first" : "scores (count)", 0, err);
    }
    if (scores->chosen == NULL || scores->ranks == NULL ||
        (scores->likely_count > 0 && scores->likely == NULL)) {
        return fg_fail(err, FG_BAD_INPUT, "scores without columns");
    }
    return check_bounds(bounds, sizeof bounds / sizeof bounds[0], err);
}

static fg_status check_pushed(const fg_msg *msg, fg_error *err)
{
    if (msg->pushed.blocks > FG_LIMIT_BLOCKS) {
        return too_large("pushed.blocks", msg->pushed.blocks, err);
    }
    return check_word("pushed.transport", msg->pushed.transport, err);
}

static fg_status check_tokens(const fg_msg *msg, fg_error *err)
{
    if (msg->tokens.count > STEP_TOKENS_MAX ||
        (msg->tokens.count > 0 && msg->tokens.tokens == NULL)) {
        return too_large("tokens (count)", msg->tokens.count, err);
    }
    for (uint32_t i = 0; i < msg->tokens.count; i++) {
        const fg_wire_token *token = &msg->tokens.tokens[i];
        if (token->choice > CHOICES_MAX) {
            return too_large("tokens.choice", token->choice, err);
        }
        if (token->index > FG_LIMIT_CONTEXT_TOKENS) {
            return too_large("tokens.index", token->index, err);
        }
    }
    return FG_OK;
}

static fg_status check_news(const fg_msg *msg, fg_error *err)
{
    uint64_t keys = 0;
    if (msg->news.count > NEWS_ROWS_MAX || (msg->news.count > 0 && msg->news.rows == NULL)) {
        return too_large("news (rows)", msg->news.count, err);
    }
    if (msg->news.sequence == 0) {
        return too_large("news.sequence", msg->news.sequence, err);
    }
    for (uint32_t i = 0; i < msg->news.count; i++) {
        const fg_wire_news *row = &msg->news.rows[i];
        bool has_keys = row->change == FG_NEWS_STORED || row->change == FG_NEWS_REMOVED;
        keys += row->key_count;
        if (row->change < FG_NEWS_RESET || row->change > FG_NEWS_CLEARED) {
            return too_large("news.change", (uint64_t)row->change, err);
        }
        if (row->tier > 1) {
            return too_large("news.tier", row->tier, err);
        }
        if (has_keys != (row->key_count > 0) || (has_keys && row->keys == NULL)) {
            return too_large("news.key_count", row->key_count, err);
        }
    }
    return keys <= NEWS_KEYS_MAX ? FG_OK : too_large("news.keys (count)", keys, err);
}

fg_status fg_wire_check(const fg_msg *msg, fg_error *err)
{
    fg_status status;
    switch (msg->kind) {
    case FG_MSG_HELLO:
        return check_hello(&msg->hello, err);
    case FG_MSG_WELCOME:
        if (msg->welcome.lease_ms == 0 || msg->welcome.lease_ms > LEASE_MS_MAX) {
            return too_large("welcome.lease_ms", msg->welcome.lease_ms, err);
        }
        return FG_OK;
    case FG_MSG_LOAD:
        return check_load(&msg->load, err);
    case FG_MSG_PEER:
        status = check_name("peer.peer.name", msg->peer.peer.name, err);
        return status != FG_OK ? status
                               : check_record("peer.link_record", msg->peer.link_record,
                                              msg->peer.link_record_bytes, err);
    case FG_MSG_PEER_LOST:
        return check_name("peer_lost.peer.name", msg->peer_lost.peer.name, err);
    case FG_MSG_RESERVE:
        return check_reserve(msg, err);
    case FG_MSG_TICKET:
        if (msg->ticket.local && !msg->ticket.granted) {
            return fg_fail(err, FG_BAD_INPUT, "field ticket.local needs ticket.granted");
        }
        return check_blocks(msg->ticket.blocks, msg->ticket.block_count, msg->ticket.first_block,
                            err);
    case FG_MSG_PREFILL:
        return check_prefill(msg, err);
    case FG_MSG_SCORES:
        return check_scores(msg, err);
    case FG_MSG_FIRST:
        return check_first(msg, err);
    case FG_MSG_PUSHED:
        return check_pushed(msg, err);
    case FG_MSG_TOKENS:
        return check_tokens(msg, err);
    case FG_MSG_DONE:
        if (msg->done.finish <= FG_FINISH_NONE || msg->done.finish > FG_FINISH_HANDED_OVER) {
            return too_large("done.finish", msg->done.finish, err);
        }
        if ((msg->done.refused || msg->done.broken) && msg->done.finish != FG_FINISH_ERROR) {
            return fg_fail(err, FG_BAD_INPUT, "field done.%s belongs to an error only",
                           msg->done.refused ? "refused" : "broken");
        }
        return FG_OK;
    case FG_MSG_NEWS:
        return check_news(msg, err);
    case FG_MSG_ROLE:
        if (msg->role.roles == 0 ||
            (msg->role.roles & ~(uint32_t)(FG_ROLE_PREFILL | FG_ROLE_DECODE))) {
            return too_large("role.roles", msg->role.roles, err);
        }
        return FG_OK;
    case FG_MSG_RESYNC:
    case FG_MSG_REFUSE:
    case FG_MSG_CANCEL:
    case FG_MSG_DRAIN:
    case FG_MSG_CLEAR:
        return FG_OK;
    }
    return too_large("kind", msg->kind, err);
}

const char *fg_msg_name(fg_msg_kind kind)
{
    static const char *const names[] = { "none",  "hello",     "welcome", "refuse", "load",
                                         "peer",  "peer_lost", "reserve", "ticket", "prefill",
                                         "first", "pushed",    "tokens",  "done",   "cancel",
                                         "drain", "clear",     "news",    "resync", "role",
                                         "scores" };
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}
