#include "proto/wire_internal.h"

#include <string.h>

#include "common/base/limits.h"
#include "forge.pb-c.h"

/* Every message that can be a body, so that encoding needs no heap: one lives on the stack. */
typedef union body {
    Forge__Wire__Hello hello;
    Forge__Wire__Welcome welcome;
    Forge__Wire__Refuse refuse;
    Forge__Wire__Load load;
    Forge__Wire__PeerRecord peer;
    Forge__Wire__PeerLost peer_lost;
    Forge__Wire__Reserve reserve;
    Forge__Wire__Ticket ticket;
    Forge__Wire__Prefill prefill;
    Forge__Wire__First first;
    Forge__Wire__Pushed pushed;
    Forge__Wire__Tokens tokens;
    Forge__Wire__Done done;
    Forge__Wire__Cancel cancel;
    Forge__Wire__Drain drain;
    Forge__Wire__Clear clear;
    Forge__Wire__News news;
    Forge__Wire__Resync resync;
    Forge__Wire__Role role;
    Forge__Wire__Scores scores;
} body;

typedef struct builder {
    Forge__Wire__Frame frame;
    body body;
    Forge__Wire__Peer peer;
    Forge__Wire__Params params;
    Forge__Wire__Logprobs logprobs;
    uint32_t shown; /* of one token */
    float chosen;
} builder;

/* protobuf-c's structs hold mutable pointers, also for packing, which only reads. */
static void *unconst(const void *pointer)
{
    return (void *)(uintptr_t)pointer;
}

static ProtobufCBinaryData binary(const void *bytes, size_t size_bytes)
{
    return (ProtobufCBinaryData){ .len = size_bytes, .data = unconst(bytes) };
}

static ProtobufCBinaryData text_of(const char *text)
{
    return binary(text, text == NULL ? 0 : strlen(text));
}

/* A text for people is cut at the limit, between two characters, rather than refused. */
static ProtobufCBinaryData prose_of(const char *text)
{
    ProtobufCBinaryData data = text_of(text);
    if (data.len > WIRE_TEXT_MAX) {
        data.len = WIRE_TEXT_MAX;
        while (data.len > WIRE_TEXT_MAX - 4 && (text[data.len] & 0xC0) == 0x80) {
            data.len--;
        }
    }
    return data;
}

static Forge__Wire__Peer *peer_of(builder *b, const fg_wire_peer *peer)
{
    forge__wire__peer__init(&b->peer);
    b->peer.name = text_of(peer->name);
    b->peer.epoch = peer->epoch;
    return &b->peer;
}

static Forge__Wire__Params *params_of(builder *b, const fg_wire_params *params)
{
    Forge__Wire__Params *to = &b->params;
    forge__wire__params__init(to);
    to->temperature = params->temperature;
    to->top_p = params->top_p;
    to->min_p = params->min_p;
    to->top_k = params->top_k;
    to->seed = params->seed;
    to->max_tokens = params->max_tokens;
    to->ignore_eos = params->ignore_eos;
    to->repetition_penalty = params->repetition_penalty;
    to->frequency_penalty = params->frequency_penalty;
    to->presence_penalty = params->presence_penalty;
    to->min_tokens = params->min_tokens;
    to->biases = unconst(params->biases);
    to->n_biases = params->bias_count;
    to->grammar_kind = params->grammar_kind;
    to->grammar = binary(params->grammar, params->grammar_bytes);
    to->want_logprobs = params->want_logprobs;
    to->want_scores = params->want_scores;
    to->want_embedding = params->want_embedding;
    to->want_digests = params->want_digests;
    to->priority = params->priority;
    to->cache_mode = params->cache_mode;
    to->salt_low = params->salt_low;
    to->salt_high = params->salt_high;
    to->family = params->family;
    to->trace_high = params->trace_high;
    to->trace_low = params->trace_low;
    to->trace_span = params->trace_span;
    to->pin_ms = params->pin_ms;
    to->pull = params->pull;
    return to;
}

static void fill_hello(builder *b, const fg_wire_hello *hello)
{
    Forge__Wire__Hello *to = &b->body.hello;
    forge__wire__hello__init(to);
    b->frame.version = hello->protocol;
    to->self = peer_of(b, &hello->self);
    to->roles = hello->roles;
    to->pid = hello->pid;
    to->fingerprint_low = hello->fingerprint_low;
    to->fingerprint_high = hello->fingerprint_high;
    to->numerics_class = text_of(hello->numerics_class);
    to->layer_count = hello->layer_count;
    to->kv_head_count = hello->kv_head_count;
    to->head_dim = hello->head_dim;
    to->block_size = hello->block_size;
    to->kv_dtype = hello->kv_dtype;
    to->kv_layout = hello->kv_layout;
    to->block_count = hello->block_count;
    to->max_seqs = hello->max_seqs;
    to->context_max = hello->context_max;
    to->link_record = binary(hello->link_record, hello->link_record_bytes);
    to->able = hello->able;
    to->prefill_ns_base = hello->speed.prefill_ns_base;
    to->prefill_ns_per_token = hello->speed.prefill_ns_per_token;
    to->prefill_ps_per_kv = hello->speed.prefill_ps_per_kv;
    to->step_ns_base = hello->speed.step_ns_base;
    to->step_ns_per_row = hello->speed.step_ns_per_row;
    to->push_ns_per_block = hello->speed.push_ns_per_block;
    b->frame.hello = to;
    b->frame.body_case = FORGE__WIRE__FRAME__BODY_HELLO;
}

static void fill_load(builder *b, const fg_wire_load *load)
{
    Forge__Wire__Load *to = &b->body.load;
    forge__wire__load__init(to);
    to->total = load->total;
    to->free = load->free;
    to->cached = load->cached;
    to->held = load->held;
    to->pinned = load->pinned;
    to->quarantined = load->quarantined;
    to->running = load->running;
    to->waiting = load->waiting;
    to->steps = load->steps;
    to->busy_ns = load->busy_ns;
    to->sequence = load->sequence;
    to->cache_query_tokens = load->cache_query_tokens;
    to->cache_hit_tokens = load->cache_hit_tokens;
    to->evicted_blocks = load->evicted_blocks;
    to->preemptions = load->preemptions;
    to->swapped_blocks = load->swapped_blocks;
    to->restored_blocks = load->restored_blocks;
    to->tier_blocks = load->tier_blocks;
    to->news_sequence = load->news_sequence;
    b->frame.load = to;
    b->frame.body_case = FORGE__WIRE__FRAME__BODY_LOAD;
}

static void fill_join(builder *b, const fg_msg *msg)
{
    Forge__Wire__Frame *frame = &b->frame;
    switch (msg->kind) {
    case FG_MSG_WELCOME:
        frame->welcome = &b->body.welcome;
        forge__wire__welcome__init(frame->welcome);
        frame->welcome->router_epoch = msg->welcome.router_epoch;
        frame->welcome->lease_ms = msg->welcome.lease_ms;
        frame->welcome->cache_key_low = msg->welcome.cache_key_low;
        frame->welcome->cache_key_high = msg->welcome.cache_key_high;
        frame->body_case = FORGE__WIRE__FRAME__BODY_WELCOME;
        break;
    case FG_MSG_REFUSE:
        frame->refuse = &b->body.refuse;
        forge__wire__refuse__init(frame->refuse);
        frame->refuse->reason = prose_of(msg->refuse.reason);
        frame->body_case = FORGE__WIRE__FRAME__BODY_REFUSE;
        break;
    case FG_MSG_PEER:
        frame->peer = &b->body.peer;
        forge__wire__peer_record__init(frame->peer);
        frame->peer->peer = peer_of(b, &msg->peer.peer);
        frame->peer->pid = msg->peer.pid;
        frame->peer->link_record = binary(msg->peer.link_record, msg->peer.link_record_bytes);
        frame->body_case = FORGE__WIRE__FRAME__BODY_PEER;
        break;
    case FG_MSG_PEER_LOST:
        frame->peer_lost = &b->body.peer_lost;
        forge__wire__peer_lost__init(frame->peer_lost);
        frame->peer_lost->peer = peer_of(b, &msg->peer_lost.peer);
        frame->body_case = FORGE__WIRE__FRAME__BODY_PEER_LOST;
        break;
    case FG_MSG_CLEAR:
        frame->clear = &b->body.clear;
        forge__wire__clear__init(frame->clear);
        frame->body_case = FORGE__WIRE__FRAME__BODY_CLEAR;
        break;
    case FG_MSG_RESYNC:
        frame->resync = &b->body.resync;
        forge__wire__resync__init(frame->resync);
        frame->body_case = FORGE__WIRE__FRAME__BODY_RESYNC;
        break;
    case FG_MSG_ROLE:
        frame->role = &b->body.role;
        forge__wire__role__init(frame->role);
        frame->role->roles = msg->role.roles;
        frame->body_case = FORGE__WIRE__FRAME__BODY_ROLE;
        break;
    default:
        FG_ASSERT(msg->kind == FG_MSG_DRAIN, "kind %d", (int)msg->kind);
        frame->drain = &b->body.drain;
        forge__wire__drain__init(frame->drain);
        frame->body_case = FORGE__WIRE__FRAME__BODY_DRAIN;
        break;
    }
}

static void fill_prefill(builder *b, const fg_msg *msg)
{
    Forge__Wire__Prefill *to = &b->body.prefill;
    forge__wire__prefill__init(to);
    to->tokens = unconst(msg->prefill.tokens);
    to->n_tokens = msg->prefill.token_count;
    to->said = unconst(msg->prefill.said);
    to->n_said = msg->prefill.said_count;
    to->sampling = params_of(b, &msg->prefill.sampling);
    to->has_ticket = msg->prefill.has_ticket;
    if (msg->prefill.has_ticket) {
        to->target = peer_of(b, &msg->prefill.target);
        to->ticket = msg->prefill.ticket;
        to->first_block = msg->prefill.first_block;
        to->blocks = unconst(msg->prefill.blocks);
        to->n_blocks = msg->prefill.block_count;
    }
    b->frame.prefill = to;
    b->frame.body_case = FORGE__WIRE__FRAME__BODY_PREFILL;
}

static void fill_placing(builder *b, const fg_msg *msg)
{
    Forge__Wire__Frame *frame = &b->frame;
    switch (msg->kind) {
    case FG_MSG_RESERVE:
        frame->reserve = &b->body.reserve;
        forge__wire__reserve__init(frame->reserve);
        frame->reserve->writer = peer_of(b, &msg->reserve.writer);
        frame->reserve->tokens = unconst(msg->reserve.tokens);
        frame->reserve->n_tokens = msg->reserve.token_count;
        frame->reserve->said = unconst(msg->reserve.said);
        frame->reserve->n_said = msg->reserve.said_count;
        frame->reserve->sampling = params_of(b, &msg->reserve.sampling);
        frame->body_case = FORGE__WIRE__FRAME__BODY_RESERVE;
        break;
    case FG_MSG_TICKET:
        frame->ticket = &b->body.ticket;
        forge__wire__ticket__init(frame->ticket);
        frame->ticket->granted = msg->ticket.granted;
        frame->ticket->local = msg->ticket.local;
        frame->ticket->ticket = msg->ticket.ticket;
        frame->ticket->first_block = msg->ticket.first_block;
        frame->ticket->blocks = unconst(msg->ticket.blocks);
        frame->ticket->n_blocks = msg->ticket.block_count;
        frame->body_case = FORGE__WIRE__FRAME__BODY_TICKET;
        break;
    default:
        fill_prefill(b, msg);
        break;
    }
}

static Forge__Wire__Logprobs *one_logprobs(builder *b, const fg_logprobs *from)
{
    Forge__Wire__Logprobs *to = &b->logprobs;
    forge__wire__logprobs__init(to);
    b->shown = from->count + 1;
    b->chosen = from->chosen;
    to->shown = &b->shown;
    to->chosen = &b->chosen;
    to->n_shown = to->n_chosen = 1;
    to->likely = unconst(from->likely);
    to->n_likely = from->count;
    return to;
}

static void fill_scores(builder *b, const fg_msg *msg)
{
    const fg_scores *from = &msg->scores.scores;
    Forge__Wire__Scores *to = &b->body.scores;
    forge__wire__scores__init(to);
    to->first = msg->scores.first;
    to->likely_count = from->likely_count;
    to->chosen = from->chosen;
    to->rank = from->ranks;
    to->n_chosen = to->n_rank = from->count;
    to->likely = (uint64_t *)(void *)from->likely;
    to->n_likely = (size_t)from->count * from->likely_count;
    b->frame.scores = to;
    b->frame.body_case = FORGE__WIRE__FRAME__BODY_SCORES;
}

static void fill_progress(builder *b, const fg_msg *msg)
{
    Forge__Wire__Frame *frame = &b->frame;
    switch (msg->kind) {
    case FG_MSG_SCORES:
        fill_scores(b, msg);
        break;
    case FG_MSG_FIRST:
        frame->first = &b->body.first;
        forge__wire__first__init(frame->first);
        frame->first->choice = msg->first.choice;
        frame->first->id = msg->first.id;
        frame->first->digest = msg->first.digest;
        frame->first->queue_ns = msg->first.queue_ns;
        frame->first->compute_ns = msg->first.compute_ns;
        frame->first->cached_tokens = msg->first.cached_tokens;
        frame->first->chunks = msg->first.chunks;
        frame->first->share_ns = msg->first.share_ns;
        frame->first->embedding = unconst(msg->first.embedding);
        frame->first->n_embedding = msg->first.embedding_count;
        if (msg->first.logprobs != NULL) {
            frame->first->logprobs = one_logprobs(b, msg->first.logprobs);
        }
        frame->body_case = FORGE__WIRE__FRAME__BODY_FIRST;
        break;
    case FG_MSG_PUSHED:
        frame->pushed = &b->body.pushed;
        forge__wire__pushed__init(frame->pushed);
        frame->pushed->blocks = msg->pushed.blocks;
        frame->pushed->bytes = msg->pushed.bytes;
        frame->pushed->transport = text_of(msg->pushed.transport);
        frame->pushed->exposed_ns = msg->pushed.exposed_ns;
        frame->pushed->retries = msg->pushed.retries;
        frame->body_case = FORGE__WIRE__FRAME__BODY_PUSHED;
        break;
    case FG_MSG_DONE:
        frame->done = &b->body.done;
        forge__wire__done__init(frame->done);
        frame->done->finish = (uint32_t)msg->done.finish;
        frame->done->text = prose_of(msg->done.text);
        frame->done->generated = msg->done.generated;
        frame->done->preemptions = msg->done.preemptions;
        frame->done->refused = msg->done.refused;
        frame->done->broken = msg->done.broken;
        frame->body_case = FORGE__WIRE__FRAME__BODY_DONE;
        break;
    default:
        FG_ASSERT(msg->kind == FG_MSG_CANCEL, "kind %d", (int)msg->kind);
        frame->cancel = &b->body.cancel;
        forge__wire__cancel__init(frame->cancel);
        frame->body_case = FORGE__WIRE__FRAME__BODY_CANCEL;
        break;
    }
}

/* What a token's logprobs are in columns, and packed. */
static size_t likely_in(const fg_msg *msg)
{
    size_t count = 0;
    for (uint32_t i = 0; i < msg->tokens.count; i++) {
        const fg_logprobs *logprobs = msg->tokens.tokens[i].logprobs;
        count += logprobs == NULL ? 0 : logprobs->count;
    }
    return count;
}

/* Points those of all tokens into `scratch`, where somebody asked. */
static void fill_logprobs(builder *b, const fg_msg *msg, unsigned char *scratch)
{
    Forge__Wire__Logprobs *to = &b->logprobs;
    size_t count = msg->tokens.count;
    forge__wire__logprobs__init(to);
    to->likely = (uint64_t *)(void *)scratch;
    fg_likely *likely = (fg_likely *)(void *)scratch;
    to->shown = (uint32_t *)(void *)(likely + likely_in(msg));
    to->chosen = (float *)(void *)(to->shown + count);
    for (size_t i = 0; i < count; i++) {
        const fg_logprobs *from = msg->tokens.tokens[i].logprobs;
        to->shown[i] = from == NULL ? 0 : from->count + 1;
        if (from != NULL) {
            to->chosen[to->n_chosen++] = from->chosen;
            memcpy(likely + to->n_likely, from->likely, from->count * sizeof *likely);
            to->n_likely += from->count;
        }
    }
    to->n_shown = count;
    b->body.tokens.logprobs = to->n_chosen > 0 ? to : NULL;
}

/* Points the columns into `scratch`, which holds TOKEN_COLUMNS_BYTES for each token, and 8 for each of its likely ones. */
enum { TOKEN_COLUMNS_BYTES = 2 * 8 + 4 * 4 + 2 * 4 };

static void fill_tokens(builder *b, const fg_msg *msg, unsigned char *scratch)
{
    Forge__Wire__Tokens *to = &b->body.tokens;
    size_t count = msg->tokens.count;
    bool has_digests = false;
    forge__wire__tokens__init(to);
    to->n_request = to->n_attempt = to->n_choice = to->n_index = to->n_id = count;
    to->request = (uint64_t *)(void *)scratch;
    to->digest = to->request + count;
    to->attempt = (uint32_t *)(void *)(to->digest + count);
    to->choice = to->attempt + count;
    to->index = to->choice + count;
    to->id = to->index + count;
    for (size_t i = 0; i < count; i++) {
        const fg_wire_token *token = &msg->tokens.tokens[i];
        to->request[i] = token->request;
        to->attempt[i] = token->attempt;
        to->choice[i] = token->choice;
        to->index[i] = token->index;
        to->id[i] = token->id;
        to->digest[i] = token->digest;
        has_digests = has_digests || token->digest != 0;
    }
    to->n_digest = has_digests ? count : 0;
    size_t so_far = count * (2 * sizeof(uint64_t) + 4 * sizeof(uint32_t));
    fill_logprobs(b, msg, scratch + so_far);
    b->frame.tokens = to;
    b->frame.body_case = FORGE__WIRE__FRAME__BODY_TOKENS;
}

static size_t news_keys(const fg_msg *msg)
{
    size_t count = 0;
    for (uint32_t i = 0; i < msg->news.count; i++) {
        count += msg->news.rows[i].key_count;
    }
    return count;
}

/* Points the columns into `scratch`, which holds NEWS_ROW_BYTES for each row and 8 for each key. */
enum { NEWS_ROW_BYTES = 8 + 3 * 4 };

static void fill_news(builder *b, const fg_msg *msg, unsigned char *scratch)
{
    Forge__Wire__News *to = &b->body.news;
    size_t count = msg->news.count;
    forge__wire__news__init(to);
    to->sequence = msg->news.sequence;
    to->n_change = to->n_tier = to->n_parent = to->n_key_count = count;
    to->parent = (uint64_t *)(void *)scratch;
    to->keys = to->parent + count;
    to->n_keys = news_keys(msg);
    to->change = (uint32_t *)(void *)(to->keys + to->n_keys);
    to->tier = to->change + count;
    to->key_count = to->tier + count;
    uint64_t *keys = to->keys;
    for (size_t i = 0; i < count; i++) {
        const fg_wire_news *row = &msg->news.rows[i];
        to->change[i] = (uint32_t)row->change;
        to->tier[i] = row->tier;
        to->parent[i] = row->parent;
        to->key_count[i] = row->key_count;
        if (row->key_count > 0) {
            memcpy(keys, row->keys, row->key_count * sizeof *keys);
        }
        keys += row->key_count;
    }
    b->frame.news = to;
    b->frame.body_case = FORGE__WIRE__FRAME__BODY_NEWS;
}

static void fill_body(builder *b, const fg_msg *msg)
{
    switch (msg->kind) {
    case FG_MSG_HELLO:
        fill_hello(b, &msg->hello);
        break;
    case FG_MSG_LOAD:
        fill_load(b, &msg->load);
        break;
    case FG_MSG_RESERVE:
    case FG_MSG_TICKET:
    case FG_MSG_PREFILL:
        fill_placing(b, msg);
        break;
    case FG_MSG_SCORES:
    case FG_MSG_FIRST:
    case FG_MSG_PUSHED:
    case FG_MSG_DONE:
    case FG_MSG_CANCEL:
        fill_progress(b, msg);
        break;
    default:
        fill_join(b, msg);
        break;
    }
}

/* Columns stand behind the frame in the same buffer: no heap once it has grown. NULL: it cannot. A packed
 * token takes at most 10 + 8 + 4 * 5 bytes, with logprobs 1 + 4 more and 8 for each likely one, a packed row of news
 * 8 + 3 * 5, a key 8. */
static unsigned char *columns_of(const fg_msg *msg, fg_buf *out)
{
    size_t frame_max, columns_bytes;
    if (msg->kind == FG_MSG_TOKENS) {
        size_t likely_bytes = likely_in(msg) * sizeof(fg_likely);
        frame_max = 96 + (size_t)msg->tokens.count * 43 + likely_bytes;
        columns_bytes = (size_t)msg->tokens.count * TOKEN_COLUMNS_BYTES + likely_bytes;
    } else {
        size_t keys = news_keys(msg);
        frame_max = 64 + (size_t)msg->news.count * 23 + keys * 8;
        columns_bytes = (size_t)msg->news.count * NEWS_ROW_BYTES + keys * 8;
    }
    char *place = fg_buf_reserve(out, frame_max + 16 + columns_bytes);
    return place == NULL ? NULL
                         : (unsigned char *)(((uintptr_t)place + frame_max + 15) & ~(uintptr_t)15);
}

bool fg_wire_encode(const fg_msg *msg, fg_buf *out)
{
    fg_error err = { 0 };
    builder b;
    fg_status status = fg_wire_check(msg, &err);
    FG_ASSERT(status == FG_OK, "%s: %s", fg_msg_name(msg->kind), err.text);
    forge__wire__frame__init(&b.frame);
    b.frame.version = FG_PROTOCOL_VERSION;
    b.frame.request = msg->request;
    b.frame.attempt = msg->attempt;
    if (msg->kind == FG_MSG_TOKENS || msg->kind == FG_MSG_NEWS) {
        unsigned char *columns = columns_of(msg, out);
        if (columns == NULL) {
            return false;
        }
        (msg->kind == FG_MSG_TOKENS ? fill_tokens : fill_news)(&b, msg, columns);
    } else {
        fill_body(&b, msg);
    }
    size_t size_bytes = protobuf_c_message_get_packed_size(&b.frame.base);
    FG_ASSERT(size_bytes <= FG_LIMIT_FRAME_BYTES, "a frame of %zu bytes", size_bytes);
    char *place = fg_buf_reserve(out, size_bytes);
    if (place == NULL) {
        return false;
    }
    protobuf_c_message_pack(&b.frame.base, (uint8_t *)place);
    out->size += size_bytes;
    out->data[out->size] = '\0';
    return true;
}
