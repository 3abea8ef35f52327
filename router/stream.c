#include "router/stream.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/stream_internal.h"
#include "router/tracing.h"

/* The status that access logs use for a client that left before its answer. */
enum { CLIENT_CLOSED = 499 };

static fg_stream_list *list_of(fg_stream *stream)
{
    return stream->place == FG_STREAM_WITH_NEWS ? &stream->owner->news : &stream->owner->blocked;
}

void fg_stream_move(fg_stream *stream, fg_stream_place to)
{
    if (stream->place == to) {
        return;
    }
    if (stream->place != FG_STREAM_AT_REST) {
        fg_stream_list *from = list_of(stream);
        *(stream->list_previous ? &stream->list_previous->list_next : &from->first) =
            stream->list_next;
        *(stream->list_next ? &stream->list_next->list_previous : &from->last) =
            stream->list_previous;
        stream->list_next = stream->list_previous = NULL;
    }
    stream->place = to;
    if (to != FG_STREAM_AT_REST) {
        fg_stream_list *into = list_of(stream);
        stream->list_previous = into->last;
        *(into->last ? &into->last->list_next : &into->first) = stream;
        into->last = stream;
    }
}

void fg_stream_has_news(fg_stream *stream)
{
    fg_streams *owner = stream->owner;
    bool first = owner->news.first == NULL;
    fg_stream_move(stream, FG_STREAM_WITH_NEWS);
    if (first) {
        owner->options.on_news(owner->options.ctx);
    }
}

void fg_stream_fail(fg_stream *stream, fg_status status, const char *text)
{
    stream->failed = true;
    fg_stream_explain(status, text, &stream->failure);
}

void fg_stream_gather(fg_stream *stream, size_t bytes)
{
    stream->gathered_bytes += bytes;
    stream->owner->gathered_bytes += bytes;
}

bool fg_stream_ended(const fg_stream *stream)
{
    for (uint32_t i = 0; i < stream->request.choice_count && !stream->failed; i++) {
        if (stream->choices[i].finish == FG_FINISH_NONE) {
            return false;
        }
    }
    return true;
}

void fg_stream_explain(fg_status status, const char *text, fg_api_error *error_out)
{
    /* The workers' words for a request that asked for a cached prompt where there was none. */
    static const char cache_miss[] = "prefix cache";
    switch (status) {
    case FG_BAD_INPUT:
        if (strncmp(text, cache_miss, sizeof cache_miss - 1) == 0) {
            fg_api_refuse(error_out, status, 409, "prefix_cache", "prefix_cache_miss", "%s", text);
        } else {
            fg_api_refuse(error_out, status, 400, NULL, "context_length_exceeded", "%s", text);
        }
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

/* An HTTP exchange as a sink. One that ends is dead at once: its user pointer is cleared first. */

static void exchange_reply(void *ctx, int http_status, uint32_t wait_s, const char *body,
                           size_t body_bytes)
{
    fg_http_exchange *exchange = ctx;
    fg_http_set_user(exchange, NULL);
    if (wait_s > 0) {
        char text[16];
        snprintf(text, sizeof text, "%u", wait_s);
        fg_http_add_header(exchange, "retry-after", text);
    }
    fg_http_reply(exchange, http_status, "application/json", body, body_bytes);
}

static void exchange_begin(void *ctx)
{
    fg_http_exchange *exchange = ctx;
    fg_http_add_header(exchange, "cache-control", "no-cache");
    fg_http_add_header(exchange, "x-accel-buffering", "no");
    fg_http_stream_begin(exchange, 200, "text/event-stream; charset=utf-8");
}

static fg_status exchange_write(void *ctx, const void *bytes, size_t size_bytes)
{
    return fg_http_stream_write(ctx, bytes, size_bytes);
}

static void exchange_end(void *ctx)
{
    fg_http_set_user(ctx, NULL);
    fg_http_stream_end(ctx);
}

void fg_stream_reply_error(fg_streams *streams, fg_http_exchange *exchange, const char *route,
                           const fg_api_error *error)
{
    const fg_buf *chunk = &streams->chunk;
    uint32_t wait_s = fg_stream_render_error(streams, error);
    fg_meter_http(streams->options.meter, route, error->http_status);
    exchange_reply(exchange, error->http_status, wait_s, chunk->data == NULL ? "" : chunk->data,
                   chunk->size);
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

static void let_go_of_all(fg_stream *stream)
{
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        fg_choice_let_go(&stream->choices[i], FG_FINISH_CANCELLED);
    }
}

static void release(fg_stream *stream)
{
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        fg_choice_deinit(&stream->choices[i]);
    }
    fg_stream_scores_give(stream);
    stream->owner->gathered_bytes -= stream->gathered_bytes;
    fg_mem_free(stream);
}

/* How the request ended, for the books: several choices have ended by length when one has. */
static fg_finish finish_of(const fg_stream *stream)
{
    fg_finish finish = FG_FINISH_STOP;
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        if (stream->choices[i].finish == FG_FINISH_LENGTH) {
            finish = FG_FINISH_LENGTH;
        }
    }
    return stream->gone ? FG_FINISH_CANCELLED : stream->failed ? FG_FINISH_ERROR : finish;
}

static void trace_end(const fg_stream *stream, const fg_api_usage *usage, uint64_t now)
{
    const fg_request *request = &stream->request;
    fg_tracing_end end = { .route = stream->sink.route,
                           .id = request->id,
                           .model = request->model,
                           .began_ns = stream->started_ns,
                           .ended_ns = now,
                           .prompt_tokens = (uint32_t)fg_request_prompt_tokens(request),
                           .cached_tokens = usage->cached_tokens,
                           .choices = request->choice_count,
                           .completion_tokens = usage->completion_tokens,
                           .finish = fg_tracing_finish_name(finish_of(stream)),
                           .http_status = stream->gone     ? CLIENT_CLOSED
                                          : stream->failed ? stream->failure.http_status
                                                           : 200 };
    fg_tracing_end_request(stream->owner->options.spans, &request->trace, &end);
}

static void close_stream(fg_stream *stream)
{
    fg_streams *owner = stream->owner;
    let_go_of_all(stream);
    if (stream->gone && !stream->answered) {
        fg_stream_count_http(stream, CLIENT_CLOSED);
    }
    fg_api_usage usage = fg_stream_usage(stream);
    uint64_t now = fg_clock_now_ns(&owner->options.clock);
    trace_end(stream, &usage, now);
    fg_meter_end(owner->options.meter, finish_of(stream), now - stream->started_ns,
                 usage.cached_tokens);
    fg_stream_move(stream, FG_STREAM_AT_REST);
    *(stream->previous ? &stream->previous->next : &owner->all) = stream->next;
    if (stream->next != NULL) {
        stream->next->previous = stream->previous;
    }
    owner->count--;
    fg_arena_destroy(stream->request.arena);
    release(stream);
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

/* What is known before of what a request's answer gathers. Alone it always has room. */
static fg_status find_room(const fg_streams *streams, const fg_request *request, size_t *bytes_out,
                           fg_api_error *error_out)
{
    size_t most = streams->options.gathered_bytes_max;
    size_t held = streams->gathered_bytes;
    most = most == 0 ? FG_LIMIT_GATHERED_BYTES : most;
    *bytes_out = fg_stream_scores_bytes(request);
    if (request->kind == FG_API_EMBEDDING) {
        *bytes_out += request->choice_count * fg_api_embedding_bytes(request);
    }
    bool grows = request->params.want_logprobs > 0 && !request->stream;
    if ((*bytes_out == 0 && !grows) || held == 0 || (held <= most && *bytes_out <= most - held)) {
        return FG_OK;
    }
    fg_api_refuse(error_out, FG_AGAIN, 429, NULL, "overloaded",
                  "answers that are being gathered take %zu MiB already: try again when some are "
                  "done",
                  held >> 20);
    error_out->wait_s = 1;
    return FG_AGAIN;
}

/* Makes a stream that nothing knows yet. */
static fg_status make(fg_streams *streams, const fg_stream_sink *sink, const fg_request *request,
                      fg_stream **stream_out, fg_api_error *error_out)
{
    fg_error err = { 0 };
    size_t choices_bytes = request->choice_count * sizeof(fg_choice);
    fg_stream *stream = fg_mem_alloc(sizeof *stream + choices_bytes);
    if (stream == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    stream->owner = streams;
    stream->sink = *sink;
    stream->request = *request;
    stream->started_ns = fg_clock_now_ns(&streams->options.clock);
    if (!fg_stream_scores_take(stream)) {
        fg_stream_scores_give(stream);
        fg_mem_free(stream);
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    for (uint32_t i = 0; i < request->choice_count; i++) {
        fg_status status = fg_choice_init(&stream->choices[i], stream, i, &err);
        if (status != FG_OK) {
            release(stream);
            return fg_api_refuse(error_out, status, status == FG_BAD_INPUT ? 400 : 503,
                                 status == FG_BAD_INPUT ? "stop" : NULL, NULL, "%s", err.text);
        }
    }
    *stream_out = stream;
    return FG_OK;
}

/* Why a choice was not taken, for the client: more of them than ever fit are no matter of time. */
static fg_status explain_start(fg_streams *streams, const fg_choice *choice, fg_status status,
                               const char *text, fg_api_error *error_out)
{
    fg_dispatch *dispatch = streams->options.dispatch;
    uint32_t count = choice->stream->request.choice_count;
    fg_stream_explain(status, text, error_out);
    error_out->wait_s = fg_dispatch_refused_s(dispatch);
    if (status != FG_AGAIN || count == 1 || choice->stream->request.kind == FG_API_EMBEDDING) {
        return status;
    }
    fg_dispatch_job job = fg_choice_job(choice);
    uint64_t most = fg_dispatch_at_once(dispatch, &job);
    if (count <= most) {
        return status;
    }
    bool list = fg_request_prompts(&choice->stream->request) > 1;
    return fg_api_refuse(error_out, FG_BAD_INPUT, 400, list ? "prompt" : "n", "invalid_value",
                         "%s %u; of requests like this one, workers and line (--queue-limit) have "
                         "room for %u at a time",
                         list ? "prompts times 'n' are" : "'n' is", count, (uint32_t)most);
}

/* Choices of one stream that dispatch has at a time. Those of an answer in text all start at once; a list of embeddings
 * leaves half of what room there is to others. */
enum { EMBEDDINGS_AT_ONCE = 64, EMBEDDING_TOKENS_AT_ONCE = 2048 };

static uint32_t window_of(const fg_stream *stream)
{
    if (stream->request.kind != FG_API_EMBEDDING || stream->request.choice_count == 1) {
        return stream->request.choice_count;
    }
    fg_dispatch_job job = fg_choice_job(&stream->choices[0]);
    uint64_t half = fg_dispatch_at_once(stream->owner->options.dispatch, &job) / 2;
    return half == 0 ? 1 : half < EMBEDDINGS_AT_ONCE ? (uint32_t)half : EMBEDDINGS_AT_ONCE;
}

static uint32_t running(const fg_stream *stream, uint64_t *tokens_out)
{
    uint32_t count = 0;
    *tokens_out = 0;
    for (uint32_t i = 0; i < stream->started; i++) {
        const fg_choice *choice = &stream->choices[i];
        count += choice->dispatched;
        *tokens_out += choice->dispatched ? fg_choice_prompt(choice).token_count : 0;
    }
    return count;
}

/* Starts as many of the choices as may run. Embeddings for which there is no room wait until others have ended. */
static fg_status start_choices(fg_stream *stream, fg_api_error *error_out)
{
    bool embeds = stream->request.kind == FG_API_EMBEDDING;
    uint32_t count = stream->request.choice_count;
    if (stream->started == count) {
        return FG_OK;
    }
    uint64_t tokens = 0; /* of those that run: whoever comes next waits for them */
    uint32_t busy = running(stream, &tokens);
    fg_error err = { 0 };
    fg_status status = FG_OK;
    while (stream->started < count && busy < stream->window &&
           (!embeds || tokens < EMBEDDING_TOKENS_AT_ONCE)) {
        fg_choice *choice = &stream->choices[stream->started];
        tokens += fg_choice_prompt(choice).token_count;
        status = fg_choice_start(choice, &err);
        if (status != FG_OK) {
            break;
        }
        stream->started++;
        busy++;
    }
    if (status == FG_OK || (status == FG_AGAIN && embeds && busy > 0)) {
        return FG_OK;
    }
    return explain_start(stream->owner, &stream->choices[stream->started], status, err.text,
                         error_out);
}

fg_status fg_stream_open_to(fg_streams *streams, const fg_stream_sink *sink,
                            const fg_request *request, fg_stream **stream_out,
                            fg_api_error *error_out)
{
    uint32_t most = request->kind == FG_API_EMBEDDING ? FG_LIMIT_EMBEDDINGS : FG_LIMIT_CHOICES;
    FG_ASSERT(request->choice_count >= 1 && request->choice_count <= most &&
              (!request->stream || sink->begin != NULL));
    fg_stream *stream = NULL;
    size_t gathered_bytes = 0;
    fg_status status = find_room(streams, request, &gathered_bytes, error_out);
    if (status == FG_OK) {
        status = make(streams, sink, request, &stream, error_out);
    }
    if (status != FG_OK) {
        return status;
    }
    fg_stream_gather(stream, gathered_bytes);
    stream->window = window_of(stream);
    status = start_choices(stream, error_out);
    if (status != FG_OK) {
        let_go_of_all(stream);
        release(stream);
        return status;
    }
    stream->next = streams->all;
    if (streams->all != NULL) {
        streams->all->previous = stream;
    }
    streams->all = stream;
    streams->count++;
    fg_meter_begin(streams->options.meter, (uint32_t)fg_request_prompt_tokens(request),
                   request->choice_count);
    *stream_out = stream;
    return FG_OK;
}

fg_status fg_stream_open(fg_streams *streams, fg_http_exchange *exchange, const char *route,
                         const fg_request *request, fg_api_error *error_out)
{
    fg_stream_sink sink = {
        .reply = exchange_reply,
        .begin = exchange_begin,
        .write = exchange_write,
        .end = exchange_end,
        .ctx = exchange,
        .route = route,
    };
    fg_stream *stream;
    fg_status status = fg_stream_open_to(streams, &sink, request, &stream, error_out);
    if (status == FG_OK) {
        fg_http_set_user(exchange, stream);
    }
    return status;
}

void fg_stream_cancel(fg_stream *stream)
{
    stream->gone = true;
    if (!stream->writing) {
        close_stream(stream);
    }
}

void fg_stream_gone(fg_streams *streams, fg_http_exchange *exchange)
{
    fg_stream *stream = fg_http_user(exchange);
    if (stream != NULL) {
        FG_ASSERT(stream->owner == streams, "a stream of another front");
        fg_debug("stream", "req=%s client gone tokens=%u", stream->request.id,
                 stream->choices[0].completion_tokens);
        fg_stream_cancel(stream);
    }
}

/* Dispatch learns what has ended here. True when some choice has shown a token. */
static bool settle(fg_stream *stream)
{
    bool begun = false;
    if (stream->failed) {
        let_go_of_all(stream);
    }
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        fg_choice *choice = &stream->choices[i];
        if (choice->finish == FG_FINISH_STOP) {
            fg_choice_let_go(choice, FG_FINISH_STOP);
        }
        begun = begun || choice->completion_tokens > 0;
    }
    return begun;
}

static void flush(fg_stream *stream)
{
    fg_stream_move(stream, FG_STREAM_AT_REST);
    if (!stream->failed && start_choices(stream, &stream->failure) != FG_OK) {
        stream->failed = true;
    }
    bool begun = settle(stream);
    bool ended = fg_stream_ended(stream);
    bool as_events =
        stream->request.stream && (stream->answered || begun || (ended && !stream->failed));
    stream->writing = true;
    if (as_events) {
        ended = fg_stream_write_events(stream);
        if (ended) {
            stream->sink.end(stream->sink.ctx);
        }
    } else if (ended) {
        fg_stream_write_answer(stream);
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
        fg_stream_move(streams->blocked.first, FG_STREAM_WITH_NEWS);
    }
    fg_streams_flush(streams);
}

uint32_t fg_streams_count(const fg_streams *streams)
{
    return streams->count;
}
