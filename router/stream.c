#include "router/stream.h"

#include <stdio.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "common/model/stop.h"

/* One write carries at most this much text and this many tokens, so that it fits into the queue of an
 * exchange however its text is escaped. */
enum { PIECE_BYTES = 4096, PIECE_TOKENS = 256 };

/* The status that access logs use for a client that left before its answer. */
enum { CLIENT_CLOSED = 499 };

typedef struct fg_stream fg_stream;

/* Which list a stream is on. */
typedef enum place { AT_REST, WITH_NEWS, BLOCKED } place;

struct fg_stream {
    fg_streams *owner;
    fg_stream *next, *previous; /* all streams */
    fg_stream *list_next, *list_previous;
    place place;

    fg_http_exchange *exchange;
    const char *route;
    fg_request request; /* with its arena */
    fg_stop *stop;
    fg_detok detok;

    uint64_t dispatch_id;
    bool dispatched;      /* the workers have it: on_end or cancel must follow */
    fg_finish finish;     /* NONE while running */
    fg_api_error failure; /* when finish is ERROR */

    fg_buf text;    /* shown, not yet written */
    fg_buf ids;     /* uint32_t each, where asked for; not yet written */
    fg_buf digests; /* uint64_t each, beside ids */
    uint64_t rolling_digest;
    uint32_t completion_tokens;

    bool answered;   /* the status line has gone out */
    bool role_named; /* the first chunk has gone out */
    bool gone;       /* the client has left */
    bool writing;    /* inside flush: closing waits until it returns */

    uint64_t started_ns;
    uint64_t last_token_ns;
};

typedef struct list {
    fg_stream *first, *last;
} list;

struct fg_streams {
    fg_streams_options options;
    fg_stream *all;
    uint32_t count;
    list news;
    list blocked;
    fg_buf chunk;  /* what is being written */
    char *scratch; /* one token's characters */
    size_t scratch_bytes;
    bool strip_leading_space; /* encoding puts a space in front, so a text of its own loses it */
};

static list *list_of(fg_stream *stream)
{
    return stream->place == WITH_NEWS ? &stream->owner->news : &stream->owner->blocked;
}

static void move_to(fg_stream *stream, place to)
{
    if (stream->place == to) {
        return;
    }
    if (stream->place != AT_REST) {
        list *from = list_of(stream);
        *(stream->list_previous ? &stream->list_previous->list_next : &from->first) =
            stream->list_next;
        *(stream->list_next ? &stream->list_next->list_previous : &from->last) =
            stream->list_previous;
        stream->list_next = stream->list_previous = NULL;
    }
    stream->place = to;
    if (to != AT_REST) {
        list *into = list_of(stream);
        stream->list_previous = into->last;
        *(into->last ? &into->last->list_next : &into->first) = stream;
        into->last = stream;
    }
}

void fg_stream_explain(fg_status status, const char *text, fg_api_error *error_out)
{
    switch (status) {
    case FG_BAD_INPUT:
        fg_api_refuse(error_out, status, 400, NULL, "context_length_exceeded", "%s", text);
        break;
    case FG_AGAIN:
        fg_api_refuse(error_out, status, 429, NULL, "overloaded", "%s", text);
        break;
    case FG_PEER_LOST:
        fg_api_refuse(error_out, status, 503, NULL, "no_worker", "%s", text);
        break;
    case FG_TIMEOUT:
        fg_api_refuse(error_out, status, 503, NULL, "timeout", "%s", text);
        break;
    case FG_CANCELLED:
        fg_api_refuse(error_out, status, 503, NULL, "cancelled", "%s", text);
        break;
    default:
        fg_api_refuse(error_out, status, 500, NULL, NULL, "%s", text);
        break;
    }
}

void fg_stream_reply_error(fg_streams *streams, fg_http_exchange *exchange, const char *route,
                           const fg_api_error *error)
{
    if (error->http_status == 429 || error->http_status == 503) {
        uint32_t wait_s = fg_dispatch_retry_after(streams->options.dispatch);
        char text[16];
        snprintf(text, sizeof text, "%u", wait_s == 0 ? 1 : wait_s);
        fg_http_add_header(exchange, "retry-after", text);
    }
    fg_buf_clear(&streams->chunk);
    fg_api_render_error(&streams->chunk, error);
    fg_meter_http(streams->options.meter, route, error->http_status);
    fg_http_reply(exchange, error->http_status, "application/json",
                  streams->chunk.data == NULL ? "" : streams->chunk.data, streams->chunk.size);
}

/* Puts a stream on the list of those with news, from dispatch's callbacks. */
static void has_news(fg_stream *stream)
{
    fg_streams *owner = stream->owner;
    bool first = owner->news.first == NULL;
    move_to(stream, WITH_NEWS);
    if (first) {
        owner->options.on_news(owner->options.ctx);
    }
}

static bool wants_tokens(const fg_stream *stream)
{
    return stream->request.return_token_ids || stream->request.logits_digest;
}

static void fail(fg_stream *stream, fg_status status, const char *text)
{
    stream->finish = FG_FINISH_ERROR;
    fg_stream_explain(status, text, &stream->failure);
}

/* Shows a token's characters, as far as no stop string can begin in them. */
static void add_text(fg_stream *stream, size_t length)
{
    fg_streams *owner = stream->owner;
    if (length > 0 && fg_stop_push(stream->stop, owner->scratch, length, &stream->text)) {
        stream->finish = FG_FINISH_STOP;
    }
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest)
{
    fg_stream *stream = ctx;
    if (stream->finish != FG_FINISH_NONE) {
        return; /* ended in this very turn; the flush will tell dispatch */
    }
    FG_ASSERT(index == stream->completion_tokens, "token out of order");
    fg_streams *owner = stream->owner;
    uint64_t now = fg_clock_now_ns(&owner->options.clock);
    if (stream->completion_tokens == 0) {
        fg_meter_first_token(owner->options.meter, now - stream->started_ns);
    } else {
        fg_meter_next_token(owner->options.meter, now - stream->last_token_ns);
    }
    stream->last_token_ns = now;
    stream->completion_tokens++;
    if (wants_tokens(stream)) {
        fg_buf_append(&stream->ids, &id, sizeof id);
        fg_buf_append(&stream->digests, &digest, sizeof digest);
    }
    if (stream->request.params.ignore_eos || !fg_tokenizer_is_end(owner->options.tokenizer, id)) {
        add_text(stream, fg_detok_push(&stream->detok, owner->options.tokenizer, id, owner->scratch,
                                       owner->scratch_bytes));
    }
    if (stream->text.failed || stream->ids.failed || stream->digests.failed) {
        fail(stream, FG_CANCELLED,
             stream->request.stream ? "the client reads too slowly"
                                    : "out of memory for the answer");
    }
    has_news(stream);
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text)
{
    fg_stream *stream = ctx;
    stream->dispatched = false;
    if (stream->finish == FG_FINISH_NONE) {
        /* What was held back, half a character or the beginning of a stop string, is shown now. */
        add_text(stream, fg_detok_finish(&stream->detok, stream->owner->scratch,
                                         stream->owner->scratch_bytes));
        if (stream->finish == FG_FINISH_NONE) {
            fg_stop_finish(stream->stop, &stream->text);
            stream->finish = finish;
        }
        if (finish != FG_FINISH_STOP && finish != FG_FINISH_LENGTH) {
            fail(stream, status == FG_OK ? FG_BROKEN : status,
                 text == NULL ? "the request ended unexpectedly" : text);
        }
    }
    has_news(stream);
}

static void release(fg_stream *stream)
{
    fg_stop_destroy(stream->stop);
    fg_buf_deinit(&stream->text);
    fg_buf_deinit(&stream->ids);
    fg_buf_deinit(&stream->digests);
    fg_mem_free(stream);
}

/* Tells dispatch that nobody waits any more, unless it knows. */
static void let_go(fg_stream *stream, fg_finish reason)
{
    if (stream->dispatched) {
        stream->dispatched = false;
        fg_dispatch_cancel(stream->owner->options.dispatch, stream->dispatch_id, reason);
    }
}

static void close_stream(fg_stream *stream)
{
    fg_streams *owner = stream->owner;
    let_go(stream, FG_FINISH_CANCELLED);
    if (stream->gone) {
        stream->finish = FG_FINISH_CANCELLED;
        if (!stream->answered) {
            fg_meter_http(owner->options.meter, stream->route, CLIENT_CLOSED);
        }
    }
    fg_meter_end(owner->options.meter, stream->finish,
                 fg_clock_now_ns(&owner->options.clock) - stream->started_ns);
    move_to(stream, AT_REST);
    *(stream->previous ? &stream->previous->next : &owner->all) = stream->next;
    if (stream->next != NULL) {
        stream->next->previous = stream->previous;
    }
    owner->count--;
    fg_arena_destroy(stream->request.arena);
    release(stream);
}

/* SPM vocabularies put a space in front of a text; asked by encoding one that has none. */
static fg_status ask_leading_space(const fg_tokenizer *tokenizer, bool *added_out, fg_error *err)
{
    uint32_t ids[8];
    size_t count = 0;
    size_t length = 0;
    fg_encode_options options = { 0 };
    fg_status status = fg_tokenizer_encode(tokenizer, "a", 1, options, ids, 8, &count, err);
    if (status != FG_OK) {
        return status;
    }
    const char *piece = count == 0 ? "" : fg_tokenizer_piece(tokenizer, ids[0], false, &length);
    *added_out = length > 0 && piece[0] == ' ';
    return FG_OK;
}

fg_status fg_streams_create(const fg_streams_options *options, fg_streams **streams_out,
                            fg_error *err)
{
    fg_streams *streams = fg_mem_alloc(sizeof *streams);
    if (streams == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the streams");
    }
    streams->options = *options;
    fg_status status = ask_leading_space(options->tokenizer, &streams->strip_leading_space, err);
    if (status != FG_OK) {
        goto free_streams;
    }
    /* With what is pending of a character (detok needs 8 bytes, its end up to 16). */
    streams->scratch_bytes = fg_tokenizer_piece_max(options->tokenizer) + 64;
    streams->scratch = fg_mem_alloc(streams->scratch_bytes);
    if (streams->scratch == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for the streams");
        goto free_streams;
    }
    fg_buf_init(&streams->chunk, 0);
    *streams_out = streams;
    return FG_OK;

free_streams:
    fg_mem_free(streams);
    return status;
}

void fg_streams_destroy(fg_streams *streams)
{
    if (streams == NULL) {
        return;
    }
    while (streams->all != NULL) {
        streams->all->gone = true;
        close_stream(streams->all);
    }
    fg_buf_deinit(&streams->chunk);
    fg_mem_free(streams->scratch);
    fg_mem_free(streams);
}

/* A continuing answer's text is bounded by what its tokens can spell; a stream's by its reader. */
static size_t text_limit(const fg_streams *streams, const fg_request *request)
{
    size_t piece = fg_tokenizer_piece_max(streams->options.tokenizer) + 16;
    size_t all = ((size_t)request->params.max_tokens + 1) * piece;
    return request->stream && all > FG_LIMIT_STREAM_BYTES ? FG_LIMIT_STREAM_BYTES : all;
}

static fg_status prepare(fg_streams *streams, fg_stream *stream, const fg_request *request,
                         fg_error *err)
{
    stream->owner = streams;
    stream->request = *request;
    fg_buf_init(&stream->text, text_limit(streams, request));
    size_t token_max = (size_t)request->params.max_tokens + 1;
    fg_buf_init(&stream->ids, token_max * sizeof(uint32_t));
    fg_buf_init(&stream->digests, token_max * sizeof(uint64_t));
    /* An answer to nothing but BOS, or to a chat, is a text of its own, not a continuation. */
    bool after_bos = request->token_count == 1 &&
                     request->tokens[0] == fg_tokenizer_bos(streams->options.tokenizer);
    fg_detok_init(&stream->detok,
                  streams->strip_leading_space && (request->kind == FG_API_CHAT || after_bos));
    return fg_stop_create(request->stops, request->stop_lengths, request->stop_count, &stream->stop,
                          err);
}

fg_status fg_stream_open(fg_streams *streams, fg_http_exchange *exchange, const char *route,
                         const fg_request *request, fg_api_error *error_out)
{
    fg_error err = { 0 };
    fg_stream *stream = fg_mem_alloc(sizeof *stream);
    if (stream == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    fg_status status = prepare(streams, stream, request, &err);
    if (status != FG_OK) {
        fg_api_refuse(error_out, status, status == FG_BAD_INPUT ? 400 : 503,
                      status == FG_BAD_INPUT ? "stop" : NULL, NULL, "%s", err.text);
        goto free_stream;
    }
    stream->exchange = exchange;
    stream->route = route;
    stream->started_ns = fg_clock_now_ns(&streams->options.clock);
    fg_dispatch_job job = {
        .tokens = request->tokens,
        .token_count = request->token_count,
        .params = request->params,
        .sink = { .on_token = on_token, .on_end = on_end, .ctx = stream },
    };
    status = fg_dispatch_start(streams->options.dispatch, &job, &stream->dispatch_id, &err);
    if (status != FG_OK) {
        fg_stream_explain(status, err.text, error_out);
        goto free_stream;
    }
    stream->dispatched = true;
    stream->next = streams->all;
    if (streams->all != NULL) {
        streams->all->previous = stream;
    }
    streams->all = stream;
    streams->count++;
    fg_http_set_user(exchange, stream);
    fg_meter_begin(streams->options.meter, request->token_count);
    return FG_OK;

free_stream:
    release(stream);
    return status;
}

void fg_stream_gone(fg_streams *streams, fg_http_exchange *exchange)
{
    fg_stream *stream = fg_http_user(exchange);
    if (stream == NULL) {
        return;
    }
    FG_ASSERT(stream->owner == streams, "a stream of another front");
    stream->gone = true;
    fg_debug("stream", "req=%s client gone tokens=%u", stream->request.id,
             stream->completion_tokens);
    if (!stream->writing) {
        close_stream(stream);
    }
}

/* The next stretch of pending text, cut between characters, with the tokens that came with it. */
static fg_api_piece next_piece(const fg_stream *stream)
{
    size_t length = stream->text.size;
    size_t token_count = stream->ids.size / sizeof(uint32_t);
    if (stream->request.stream) {
        if (length > PIECE_BYTES) {
            length = PIECE_BYTES;
            while (length > PIECE_BYTES - 4 && (stream->text.data[length] & 0xC0) == 0x80) {
                length--;
            }
        }
        token_count = token_count > PIECE_TOKENS ? PIECE_TOKENS : token_count;
    }
    fg_api_piece piece = {
        .text = stream->text.size == 0 ? "" : stream->text.data,
        .text_length = length,
        .ids = (const uint32_t *)(const void *)stream->ids.data,
        .digests = (const uint64_t *)(const void *)stream->digests.data,
        .token_count = token_count,
        .rolling_digest = stream->rolling_digest,
    };
    for (size_t i = 0; i < token_count; i++) {
        piece.rolling_digest = fg_api_roll_digest(piece.rolling_digest, piece.digests[i]);
    }
    return piece;
}

/* Renders what is next into owner->chunk; nothing of the stream changes until it has been written. */
static bool compose(fg_stream *stream, fg_api_piece *piece_out, bool *last_out)
{
    fg_buf *out = &stream->owner->chunk;
    fg_buf_clear(out);
    fg_api_piece piece = next_piece(stream);
    bool all = piece.text_length == stream->text.size &&
               piece.token_count * sizeof(uint32_t) == stream->ids.size;
    bool last = all && stream->finish != FG_FINISH_NONE;
    bool failed = stream->finish == FG_FINISH_ERROR;
    if (!stream->role_named && stream->request.kind == FG_API_CHAT) {
        fg_api_event_role(out, &stream->request);
    }
    if (piece.text_length > 0 || piece.token_count > 0 || (last && !failed)) {
        fg_api_event_piece(out, &stream->request, &piece,
                           last && !failed ? stream->finish : FG_FINISH_NONE);
    }
    if (last && failed) {
        fg_api_event_error(out, &stream->failure);
    } else if (last && stream->request.include_usage) {
        fg_api_event_usage(out, &stream->request, stream->completion_tokens);
    }
    if (last) {
        fg_api_event_done(out);
    }
    *piece_out = piece;
    *last_out = last;
    return !out->failed;
}

/* Writes until nothing is left or the reader is full. True when the stream has ended. */
static bool write_events(fg_stream *stream)
{
    if (!stream->answered) {
        fg_http_add_header(stream->exchange, "cache-control", "no-cache");
        fg_http_add_header(stream->exchange, "x-accel-buffering", "no");
        fg_http_stream_begin(stream->exchange, 200, "text/event-stream; charset=utf-8");
        stream->answered = true;
        fg_meter_http(stream->owner->options.meter, stream->route, 200);
    }
    for (;;) {
        bool last;
        fg_api_piece piece;
        if (!compose(stream, &piece, &last)) {
            move_to(stream, BLOCKED); /* no memory now: as if the reader were slow */
            return false;
        }
        if (stream->owner->chunk.size == 0) {
            return false;
        }
        fg_status status = fg_http_stream_write(stream->exchange, stream->owner->chunk.data,
                                                stream->owner->chunk.size);
        if (status == FG_AGAIN) {
            move_to(stream, BLOCKED);
            return false;
        }
        if (status != FG_OK || stream->gone) {
            /* on_gone comes, or came during the write. */
            let_go(stream, FG_FINISH_CANCELLED);
            return false;
        }
        stream->role_named = true;
        stream->rolling_digest = piece.rolling_digest;
        fg_buf_consume(&stream->text, piece.text_length);
        fg_buf_consume(&stream->ids, piece.token_count * sizeof(uint32_t));
        fg_buf_consume(&stream->digests, piece.token_count * sizeof(uint64_t));
        if (last) {
            return true;
        }
    }
}

/* The whole answer, or an error with its own status: nothing has been sent before it. */
static void reply(fg_stream *stream)
{
    fg_streams *owner = stream->owner;
    stream->answered = true;
    if (stream->finish != FG_FINISH_ERROR) {
        fg_buf_clear(&owner->chunk);
        fg_api_piece answer = next_piece(stream);
        fg_api_render_answer(&owner->chunk, &stream->request, &answer, stream->finish,
                             stream->completion_tokens);
        if (owner->chunk.failed) {
            fail(stream, FG_CANCELLED, "out of memory for the answer");
        }
    }
    if (stream->finish == FG_FINISH_ERROR) {
        fg_stream_reply_error(owner, stream->exchange, stream->route, &stream->failure);
        return;
    }
    fg_meter_http(owner->options.meter, stream->route, 200);
    fg_http_reply(stream->exchange, 200, "application/json", owner->chunk.data, owner->chunk.size);
}

/* An exchange that ends is dead at once: its user pointer is cleared first. */
static void flush(fg_stream *stream)
{
    move_to(stream, AT_REST);
    bool ended = stream->finish != FG_FINISH_NONE;
    if (ended) {
        let_go(stream, stream->finish == FG_FINISH_STOP ? FG_FINISH_STOP : FG_FINISH_CANCELLED);
    }
    bool as_events = stream->request.stream && (stream->answered || stream->completion_tokens > 0 ||
                                                (ended && stream->finish != FG_FINISH_ERROR));
    stream->writing = true;
    if (as_events) {
        ended = write_events(stream);
        if (ended) {
            fg_http_set_user(stream->exchange, NULL);
            fg_http_stream_end(stream->exchange);
        }
    } else if (ended) {
        fg_http_set_user(stream->exchange, NULL);
        reply(stream);
    }
    stream->writing = false;
    if (ended || stream->gone) {
        close_stream(stream);
    }
}

void fg_streams_flush(fg_streams *streams)
{
    while (streams->news.first != NULL) {
        flush(streams->news.first);
    }
}

bool fg_streams_blocked(const fg_streams *streams)
{
    return streams->blocked.first != NULL;
}

void fg_streams_retry(fg_streams *streams)
{
    while (streams->blocked.first != NULL) {
        move_to(streams->blocked.first, WITH_NEWS);
    }
    fg_streams_flush(streams);
}

uint32_t fg_streams_count(const fg_streams *streams)
{
    return streams->count;
}
