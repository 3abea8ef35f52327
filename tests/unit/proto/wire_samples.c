#include "tests/unit/proto/wire_samples.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/limits.h"

/* Small, medium, huge and special numbers alike. */
static uint64_t any64(fg_rng *rng)
{
    return fg_rng_next(rng) >> fg_rng_below(rng, 64);
}

static uint32_t any32(fg_rng *rng)
{
    return (uint32_t)(fg_rng_next(rng) >> (32 + fg_rng_below(rng, 32)));
}

static uint32_t up_to(fg_rng *rng, uint32_t max)
{
    return (uint32_t)fg_rng_below(rng, (uint64_t)max + 1);
}

static const char *word(fg_rng *rng, fg_arena *arena, uint32_t least, uint32_t most, char low,
                        char high)
{
    uint32_t length = least + up_to(rng, most - least);
    char *text = fg_arena_alloc(arena, length + 1);
    for (uint32_t i = 0; i < length; i++) {
        do {
            text[i] = (char)(low + (char)up_to(rng, (uint32_t)(high - low)));
        } while (text[i] == '#');
    }
    return text;
}

static fg_wire_peer any_peer(fg_rng *rng, fg_arena *arena)
{
    return (fg_wire_peer){ .name = word(rng, arena, 1, FG_LIMIT_NAME_BYTES, 0x21, 0x7E),
                           .epoch = any64(rng) };
}

static const void *any_bytes(fg_rng *rng, fg_arena *arena, uint32_t length)
{
    unsigned char *bytes = fg_arena_alloc(arena, length);
    for (uint32_t i = 0; i < length; i++) {
        bytes[i] = (unsigned char)fg_rng_next(rng);
    }
    return bytes;
}

static const uint32_t *any_numbers(fg_rng *rng, fg_arena *arena, uint32_t count, uint32_t max)
{
    uint32_t *numbers = fg_arena_array(arena, count, sizeof *numbers);
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = max == UINT32_MAX ? any32(rng) : up_to(rng, max);
    }
    return numbers;
}

static float fraction(fg_rng *rng)
{
    return (float)fg_rng_below(rng, 1001) / 1000.0f;
}

static float any_number(fg_rng *rng)
{
    return ((float)up_to(rng, 2000) - 1000.0f) / 250.0f;
}

static const float *any_floats(fg_rng *rng, fg_arena *arena, uint32_t count)
{
    float *floats = fg_arena_array(arena, count, sizeof *floats);
    for (uint32_t i = 0; i < count; i++) {
        floats[i] = any_number(rng);
    }
    return floats;
}

static const fg_bias *any_biases(fg_rng *rng, fg_arena *arena, uint32_t count)
{
    fg_bias *biases = fg_arena_array(arena, count, sizeof *biases);
    for (uint32_t i = 0; i < count; i++) {
        biases[i] = (fg_bias){ .id = any32(rng), .bias = any_number(rng) };
    }
    return biases;
}

/* Often none. */
static const fg_logprobs *any_logprobs(fg_rng *rng, fg_arena *arena)
{
    fg_logprobs *logprobs = fg_arena_alloc(arena, sizeof *logprobs);
    *logprobs = (fg_logprobs){ .chosen = -any_number(rng), .count = up_to(rng, FG_LOGPROBS_MAX) };
    for (uint32_t i = 0; i < logprobs->count; i++) {
        logprobs->likely[i] = (fg_likely){ .id = any32(rng), .logprob = any_number(rng) };
    }
    return up_to(rng, 2) == 0 ? logprobs : NULL;
}

static fg_wire_params any_sampling(fg_rng *rng, fg_arena *arena)
{
    bool embeds = up_to(rng, 3) == 0;
    uint32_t most = embeds ? 1 : up_to(rng, FG_LIMIT_CONTEXT_TOKENS);
    uint32_t biases = up_to(rng, 3) == 0 ? up_to(rng, FG_LIMIT_BIASES) : 0;
    uint32_t grammar = up_to(rng, 3) == 0 ? up_to(rng, 300) : 0;
    bool traced = up_to(rng, 1) == 1;
    return (fg_wire_params){ .temperature = 2 * fraction(rng),
                             .top_p = fraction(rng),
                             .min_p = fraction(rng),
                             .top_k = any32(rng),
                             .seed = any64(rng),
                             .repetition_penalty = 3 * fraction(rng),
                             .frequency_penalty = any_number(rng),
                             .presence_penalty = any_number(rng),
                             .min_tokens = up_to(rng, most),
                             .biases = any_biases(rng, arena, biases),
                             .bias_count = biases,
                             .grammar_kind = up_to(rng, 5),
                             .grammar = any_bytes(rng, arena, grammar),
                             .grammar_bytes = grammar,
                             .want_logprobs = up_to(rng, FG_LOGPROBS_MAX + 1),
                             .want_scores = up_to(rng, FG_LOGPROBS_MAX + 1),
                             .want_embedding = embeds,
                             .max_tokens = most,
                             .ignore_eos = up_to(rng, 1) == 1,
                             .want_digests = up_to(rng, 1) == 1,
                             .priority = (int32_t)up_to(rng, 2) - 1,
                             .cache_mode = up_to(rng, FG_CACHE_DISABLE),
                             .salt_low = fg_rng_next(rng),
                             .salt_high = fg_rng_next(rng),
                             .family = any64(rng),
                             .trace_high = traced ? fg_rng_next(rng) | 1 : 0,
                             .trace_low = traced ? fg_rng_next(rng) : 0,
                             .pin_ms = up_to(rng, FG_LIMIT_PIN_MS),
                             .pull = up_to(rng, 1) == 1,
                             .trace_span = traced ? fg_rng_next(rng) | 1 : 0 };
}

static void sample_hello(fg_msg *msg, fg_rng *rng, fg_arena *arena)
{
    static const uint32_t types[] = { FG_F32, FG_F16, FG_BF16, FG_I8 };
    msg->hello = (fg_wire_hello){
        .protocol = FG_PROTOCOL_VERSION,
        .self = any_peer(rng, arena),
        .roles = 1 + up_to(rng, 2),
        .able = FG_ROLE_PREFILL | FG_ROLE_DECODE,
        .speed = { .prefill_ns_base = any64(rng),
                   .prefill_ns_per_token = any64(rng),
                   .prefill_ps_per_kv = any64(rng),
                   .step_ns_base = any64(rng),
                   .step_ns_per_row = any64(rng),
                   .push_ns_per_block = any64(rng) },
        .pid = any64(rng),
        .fingerprint_low = fg_rng_next(rng),
        .fingerprint_high = fg_rng_next(rng),
        .numerics_class = word(rng, arena, 0, 128, 0x20, 0x7E),
        .layer_count = up_to(rng, 200),
        .kv_head_count = up_to(rng, 64),
        .head_dim = up_to(rng, 256),
        .block_size = up_to(rng, 64),
        .kv_dtype = types[up_to(rng, 3)],
        .kv_layout = up_to(rng, 9),
        .block_count = up_to(rng, FG_LIMIT_BLOCKS),
        .max_seqs = up_to(rng, FG_LIMIT_LIVE_REQUESTS),
        .context_max = up_to(rng, FG_LIMIT_CONTEXT_TOKENS),
        .link_record_bytes = up_to(rng, 500),
    };
    msg->hello.link_record = any_bytes(rng, arena, (uint32_t)msg->hello.link_record_bytes);
}

static void sample_load(fg_msg *msg, fg_rng *rng)
{
    msg->load = (fg_wire_load){
        .total = up_to(rng, FG_LIMIT_BLOCKS),
        .free = up_to(rng, FG_LIMIT_BLOCKS),
        .cached = up_to(rng, 99),
        .held = up_to(rng, 99),
        .pinned = up_to(rng, 99),
        .quarantined = up_to(rng, 99),
        .running = any32(rng),
        .waiting = any32(rng),
        .steps = any64(rng),
        .busy_ns = any64(rng),
        .sequence = any64(rng),
        .cache_query_tokens = any64(rng),
        .cache_hit_tokens = any64(rng),
        .evicted_blocks = any64(rng),
        .preemptions = any64(rng),
        .swapped_blocks = any64(rng),
        .restored_blocks = any64(rng),
        .tier_blocks = up_to(rng, FG_LIMIT_BLOCKS),
        .news_sequence = any64(rng),
    };
}

static void sample_tokens(fg_msg *msg, fg_rng *rng, fg_arena *arena, uint32_t count)
{
    fg_wire_token *tokens = fg_arena_array(arena, count, sizeof *tokens);
    bool digests = up_to(rng, 1) == 1, logprobs = count < 4096 && up_to(rng, 1) == 1;
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (fg_wire_token){ .request = any64(rng),
                                     .attempt = any32(rng),
                                     .choice = up_to(rng, 8),
                                     .index = up_to(rng, FG_LIMIT_CONTEXT_TOKENS),
                                     .id = any32(rng),
                                     .digest = digests ? fg_rng_next(rng) : 0,
                                     .logprobs = logprobs ? any_logprobs(rng, arena) : NULL };
    }
    msg->tokens.tokens = tokens;
    msg->tokens.count = count;
}

static void sample_scores(fg_msg *msg, fg_rng *rng, fg_arena *arena, uint32_t count)
{
    fg_scores *scores = &msg->scores.scores;
    *scores = (fg_scores){ .count = count, .likely_count = up_to(rng, FG_LOGPROBS_MAX) };
    scores->chosen = fg_arena_array(arena, count, sizeof *scores->chosen);
    scores->ranks = fg_arena_array(arena, count, sizeof *scores->ranks);
    size_t likely = (size_t)count * scores->likely_count;
    scores->likely = fg_arena_array(arena, likely, sizeof *scores->likely);
    for (uint32_t i = 0; i < count; i++) {
        scores->chosen[i] = -any_number(rng);
        scores->ranks[i] = any32(rng);
    }
    for (size_t i = 0; i < likely; i++) {
        scores->likely[i] = (fg_likely){ .id = any32(rng), .logprob = any_number(rng) };
    }
    msg->scores.first = 1 + up_to(rng, FG_LIMIT_CONTEXT_TOKENS - 2);
}

static void sample_news(fg_msg *msg, fg_rng *rng, fg_arena *arena, uint32_t size_max)
{
    uint32_t count = up_to(rng, size_max < 200 ? size_max : 200);
    fg_wire_news *rows = fg_arena_array(arena, count, sizeof *rows);
    for (uint32_t i = 0; i < count; i++) {
        rows[i].change = (fg_wire_change)(FG_NEWS_RESET + (int)up_to(rng, 3));
        rows[i].tier = up_to(rng, 1);
        rows[i].parent = fg_rng_next(rng);
        if (rows[i].change == FG_NEWS_STORED || rows[i].change == FG_NEWS_REMOVED) {
            rows[i].key_count = 1 + up_to(rng, size_max);
            uint64_t *keys = fg_arena_array(arena, rows[i].key_count, sizeof *keys);
            for (uint32_t k = 0; k < rows[i].key_count; k++) {
                keys[k] = fg_rng_next(rng);
            }
            rows[i].keys = keys;
        }
    }
    msg->news.sequence = 1 + (any64(rng) >> 1);
    msg->news.rows = rows;
    msg->news.count = count;
}

/* Mostly none. */
static uint32_t any_said(fg_rng *rng, const fg_wire_params *params, uint32_t size_max)
{
    uint32_t most = params->max_tokens < size_max ? params->max_tokens : size_max;
    return up_to(rng, 2) == 0 ? up_to(rng, most) : 0;
}

static void sample_prefill(fg_msg *msg, fg_rng *rng, fg_arena *arena, uint32_t size_max)
{
    msg->prefill.token_count = 1 + up_to(rng, size_max);
    msg->prefill.tokens = any_numbers(rng, arena, msg->prefill.token_count, UINT32_MAX);
    msg->prefill.sampling = any_sampling(rng, arena);
    msg->prefill.said_count = any_said(rng, &msg->prefill.sampling, size_max);
    msg->prefill.said = any_numbers(rng, arena, msg->prefill.said_count, UINT32_MAX);
    msg->prefill.has_ticket = up_to(rng, 1) == 1;
    msg->prefill.target.name = "";
    if (msg->prefill.has_ticket) {
        msg->prefill.target = any_peer(rng, arena);
        msg->prefill.ticket = any64(rng);
        msg->prefill.first_block = up_to(rng, 100);
        msg->prefill.block_count = up_to(rng, size_max);
        msg->prefill.blocks =
            any_numbers(rng, arena, msg->prefill.block_count, FG_LIMIT_BLOCKS - 1);
    }
}

static void sample_progress(fg_msg *msg, fg_rng *rng, fg_arena *arena)
{
    switch (msg->kind) {
    case FG_MSG_FIRST:
        msg->first.choice = up_to(rng, 8);
        msg->first.id = any32(rng);
        msg->first.logprobs = any_logprobs(rng, arena);
        msg->first.digest = fg_rng_next(rng);
        msg->first.queue_ns = any64(rng);
        msg->first.compute_ns = any64(rng);
        msg->first.cached_tokens = up_to(rng, FG_LIMIT_CONTEXT_TOKENS);
        msg->first.chunks = up_to(rng, FG_LIMIT_CONTEXT_TOKENS);
        msg->first.share_ns = any64(rng);
        msg->first.embedding_count = up_to(rng, 2) == 0 ? up_to(rng, 5000) : 0;
        msg->first.embedding = any_floats(rng, arena, msg->first.embedding_count);
        break;
    case FG_MSG_PUSHED:
        msg->pushed.blocks = up_to(rng, 1000);
        msg->pushed.bytes = any64(rng);
        msg->pushed.transport = word(rng, arena, 0, 128, 0x20, 0x7E);
        msg->pushed.exposed_ns = any64(rng);
        msg->pushed.retries = any32(rng);
        break;
    case FG_MSG_DONE:
        msg->done.finish = (fg_finish)(1 + up_to(rng, FG_FINISH_HANDED_OVER - 1));
        msg->done.text = word(rng, arena, 0, 512, 0x20, 0x7E);
        msg->done.generated = any32(rng);
        msg->done.preemptions = any32(rng);
        msg->done.refused = msg->done.finish == FG_FINISH_ERROR && up_to(rng, 1) == 1;
        msg->done.broken = msg->done.finish == FG_FINISH_ERROR && up_to(rng, 1) == 1;
        break;
    default:
        break;
    }
}

fg_msg wire_sample(fg_msg_kind kind, fg_rng *rng, fg_arena *arena, uint32_t size_max)
{
    fg_msg msg = { .kind = kind, .request = any64(rng), .attempt = any32(rng) };
    switch (kind) {
    case FG_MSG_HELLO:
        sample_hello(&msg, rng, arena);
        break;
    case FG_MSG_WELCOME:
        msg.welcome.router_epoch = any64(rng);
        msg.welcome.lease_ms = 1 + up_to(rng, 10000);
        msg.welcome.cache_key_low = fg_rng_next(rng);
        msg.welcome.cache_key_high = fg_rng_next(rng);
        break;
    case FG_MSG_REFUSE:
        msg.refuse.reason = word(rng, arena, 0, 512, 0x20, 0x7E);
        break;
    case FG_MSG_LOAD:
        sample_load(&msg, rng);
        break;
    case FG_MSG_PEER:
        msg.peer.peer = any_peer(rng, arena);
        msg.peer.pid = any64(rng);
        msg.peer.link_record_bytes = up_to(rng, 500);
        msg.peer.link_record = any_bytes(rng, arena, (uint32_t)msg.peer.link_record_bytes);
        break;
    case FG_MSG_PEER_LOST:
        msg.peer_lost.peer = any_peer(rng, arena);
        break;
    case FG_MSG_RESERVE:
        msg.reserve.writer = any_peer(rng, arena);
        msg.reserve.token_count = 1 + up_to(rng, size_max);
        msg.reserve.tokens = any_numbers(rng, arena, msg.reserve.token_count, UINT32_MAX);
        msg.reserve.sampling = any_sampling(rng, arena);
        msg.reserve.said_count = any_said(rng, &msg.reserve.sampling, size_max);
        msg.reserve.said = any_numbers(rng, arena, msg.reserve.said_count, UINT32_MAX);
        break;
    case FG_MSG_TICKET:
        msg.ticket.granted = up_to(rng, 1) == 1;
        msg.ticket.local = msg.ticket.granted && up_to(rng, 1) == 1;
        msg.ticket.ticket = any64(rng);
        msg.ticket.first_block = up_to(rng, 100);
        msg.ticket.block_count = up_to(rng, size_max);
        msg.ticket.blocks = any_numbers(rng, arena, msg.ticket.block_count, FG_LIMIT_BLOCKS - 1);
        break;
    case FG_MSG_PREFILL:
        sample_prefill(&msg, rng, arena, size_max);
        break;
    case FG_MSG_TOKENS:
        sample_tokens(&msg, rng, arena, up_to(rng, size_max));
        break;
    case FG_MSG_SCORES:
        sample_scores(
            &msg, rng, arena,
            1 + up_to(rng, size_max < FG_WIRE_SCORES_MAX ? size_max - 1 : FG_WIRE_SCORES_MAX - 1));
        break;
    case FG_MSG_NEWS:
        sample_news(&msg, rng, arena, size_max < 500 ? size_max : 500);
        break;
    case FG_MSG_ROLE:
        msg.role.roles = 1 + up_to(rng, 2);
        break;
    default:
        sample_progress(&msg, rng, arena);
        break;
    }
    return msg;
}

#define SAME(field)                                                                                \
    if (a->field != b->field) {                                                                    \
        return #field;                                                                             \
    }
#define SAME_TEXT(field)                                                                           \
    if (strcmp(a->field, b->field) != 0) {                                                         \
        return #field;                                                                             \
    }
#define SAME_ARRAY(field, size_bytes)                                                              \
    if ((size_bytes) > 0 && memcmp(a->field, b->field, (size_bytes)) != 0) {                       \
        return #field;                                                                             \
    }

static const char *sampling_difference(const fg_wire_params *a, const fg_wire_params *b)
{
    SAME(temperature)
    SAME(top_p)
    SAME(min_p)
    SAME(top_k)
    SAME(seed)
    SAME(repetition_penalty)
    SAME(frequency_penalty)
    SAME(presence_penalty)
    SAME(min_tokens)
    SAME(bias_count)
    SAME_ARRAY(biases, a->bias_count * sizeof *a->biases)
    SAME(grammar_kind)
    SAME(grammar_bytes)
    SAME_ARRAY(grammar, a->grammar_bytes)
    SAME(want_logprobs)
    SAME(want_scores)
    SAME(want_embedding)
    SAME(max_tokens)
    SAME(ignore_eos)
    SAME(want_digests)
    SAME(priority)
    SAME(cache_mode)
    SAME(salt_low)
    SAME(salt_high)
    SAME(family)
    SAME(trace_high)
    SAME(trace_low)
    SAME(trace_span)
    SAME(pin_ms)
    SAME(pull)
    return NULL;
}

static const char *hello_difference(const fg_wire_hello *a, const fg_wire_hello *b)
{
    SAME(protocol)
    SAME_TEXT(self.name)
    SAME(self.epoch)
    SAME(roles)
    SAME(able)
    SAME(speed.prefill_ns_base)
    SAME(speed.prefill_ns_per_token)
    SAME(speed.prefill_ps_per_kv)
    SAME(speed.step_ns_base)
    SAME(speed.step_ns_per_row)
    SAME(speed.push_ns_per_block)
    SAME(pid)
    SAME(fingerprint_low)
    SAME(fingerprint_high)
    SAME_TEXT(numerics_class)
    SAME(layer_count)
    SAME(kv_head_count)
    SAME(head_dim)
    SAME(block_size)
    SAME(kv_dtype)
    SAME(kv_layout)
    SAME(block_count)
    SAME(max_seqs)
    SAME(context_max)
    SAME(link_record_bytes)
    SAME_ARRAY(link_record, a->link_record_bytes)
    return NULL;
}

static const char *load_difference(const fg_wire_load *a, const fg_wire_load *b)
{
    SAME(total)
    SAME(free)
    SAME(cached)
    SAME(held)
    SAME(pinned)
    SAME(quarantined)
    SAME(running)
    SAME(waiting)
    SAME(steps)
    SAME(busy_ns)
    SAME(sequence)
    SAME(cache_query_tokens)
    SAME(cache_hit_tokens)
    SAME(evicted_blocks)
    SAME(preemptions)
    SAME(swapped_blocks)
    SAME(restored_blocks)
    SAME(tier_blocks)
    SAME(news_sequence)
    return NULL;
}

static const char *placing_difference(const fg_msg *a, const fg_msg *b)
{
    switch (a->kind) {
    case FG_MSG_RESERVE:
        SAME_TEXT(reserve.writer.name)
        SAME(reserve.writer.epoch)
        SAME(reserve.token_count)
        SAME_ARRAY(reserve.tokens, a->reserve.token_count * sizeof(uint32_t))
        SAME(reserve.said_count)
        SAME_ARRAY(reserve.said, a->reserve.said_count * sizeof(uint32_t))
        return sampling_difference(&a->reserve.sampling, &b->reserve.sampling);
    case FG_MSG_TICKET:
        SAME(ticket.granted)
        SAME(ticket.local)
        SAME(ticket.ticket)
        SAME(ticket.first_block)
        SAME(ticket.block_count)
        SAME_ARRAY(ticket.blocks, a->ticket.block_count * sizeof(uint32_t))
        return NULL;
    default:
        SAME(prefill.token_count)
        SAME_ARRAY(prefill.tokens, a->prefill.token_count * sizeof(uint32_t))
        SAME(prefill.said_count)
        SAME_ARRAY(prefill.said, a->prefill.said_count * sizeof(uint32_t))
        SAME(prefill.has_ticket)
        SAME_TEXT(prefill.target.name)
        SAME(prefill.target.epoch)
        SAME(prefill.ticket)
        SAME(prefill.first_block)
        SAME(prefill.block_count)
        SAME_ARRAY(prefill.blocks, a->prefill.block_count * sizeof(uint32_t))
        return sampling_difference(&a->prefill.sampling, &b->prefill.sampling);
    }
}

static const char *scores_difference(const fg_msg *a, const fg_msg *b)
{
    const fg_scores *scores = &a->scores.scores;
    SAME(scores.first)
    SAME(scores.scores.count)
    SAME(scores.scores.likely_count)
    SAME_ARRAY(scores.scores.chosen, scores->count * sizeof(float))
    SAME_ARRAY(scores.scores.ranks, scores->count * sizeof(uint32_t))
    SAME_ARRAY(scores.scores.likely,
               (size_t)scores->count * scores->likely_count * sizeof(fg_likely))
    return NULL;
}

static const char *progress_difference(const fg_msg *a, const fg_msg *b)
{
    switch (a->kind) {
    case FG_MSG_FIRST:
        SAME(first.choice)
        SAME(first.id)
        SAME(first.digest)
        SAME(first.queue_ns)
        SAME(first.compute_ns)
        SAME(first.share_ns)
        SAME(first.cached_tokens)
        SAME(first.chunks)
        SAME(first.embedding_count)
        SAME_ARRAY(first.embedding, a->first.embedding_count * sizeof(float))
        return NULL;
    case FG_MSG_PUSHED:
        SAME(pushed.blocks)
        SAME(pushed.bytes)
        SAME_TEXT(pushed.transport)
        SAME(pushed.exposed_ns)
        SAME(pushed.retries)
        return NULL;
    case FG_MSG_DONE:
        SAME(done.finish)
        SAME_TEXT(done.text)
        SAME(done.generated)
        SAME(done.preemptions)
        SAME(done.refused)
        SAME(done.broken)
        return NULL;
    default:
        SAME(tokens.count)
        for (uint32_t i = 0; i < a->tokens.count; i++) {
            SAME(tokens.tokens[i].request)
            SAME(tokens.tokens[i].attempt)
            SAME(tokens.tokens[i].choice)
            SAME(tokens.tokens[i].index)
            SAME(tokens.tokens[i].id)
            SAME(tokens.tokens[i].digest)
        }
        return NULL;
    }
}

static const char *news_difference(const fg_msg *a, const fg_msg *b)
{
    SAME(news.sequence)
    SAME(news.count)
    for (uint32_t i = 0; i < a->news.count; i++) {
        SAME(news.rows[i].change)
        SAME(news.rows[i].tier)
        SAME(news.rows[i].parent)
        SAME(news.rows[i].key_count)
        SAME_ARRAY(news.rows[i].keys, a->news.rows[i].key_count * sizeof(uint64_t))
    }
    return NULL;
}

const char *wire_difference(const fg_msg *a, const fg_msg *b)
{
    SAME(kind)
    SAME(request)
    SAME(attempt)
    switch (a->kind) {
    case FG_MSG_HELLO:
        return hello_difference(&a->hello, &b->hello);
    case FG_MSG_WELCOME:
        SAME(welcome.router_epoch)
        SAME(welcome.lease_ms)
        SAME(welcome.cache_key_low)
        SAME(welcome.cache_key_high)
        return NULL;
    case FG_MSG_REFUSE:
        SAME_TEXT(refuse.reason)
        return NULL;
    case FG_MSG_LOAD:
        return load_difference(&a->load, &b->load);
    case FG_MSG_PEER:
        SAME_TEXT(peer.peer.name)
        SAME(peer.peer.epoch)
        SAME(peer.pid)
        SAME(peer.link_record_bytes)
        SAME_ARRAY(peer.link_record, a->peer.link_record_bytes)
        return NULL;
    case FG_MSG_PEER_LOST:
        SAME_TEXT(peer_lost.peer.name)
        SAME(peer_lost.peer.epoch)
        return NULL;
    case FG_MSG_RESERVE:
    case FG_MSG_TICKET:
    case FG_MSG_PREFILL:
        return placing_difference(a, b);
    case FG_MSG_SCORES:
        return scores_difference(a, b);
    case FG_MSG_FIRST:
    case FG_MSG_PUSHED:
    case FG_MSG_DONE:
    case FG_MSG_TOKENS:
        return progress_difference(a, b);
    case FG_MSG_NEWS:
        return news_difference(a, b);
    case FG_MSG_ROLE:
        SAME(role.roles)
        return NULL;
    case FG_MSG_CANCEL:
    case FG_MSG_DRAIN:
    case FG_MSG_CLEAR:
    case FG_MSG_RESYNC:
        return NULL;
    }
    return "kind";
}
