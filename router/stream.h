/*
 * stream - turns the tokens of one request into text and events for whoever waits for them. Owned by
 * the loop thread.
 *
 *   each choice:  tokens -> whole characters -> stop strings -> pending text
 *   the stream:   pending text of its choices -> chunks in turn, or one answer at the end -> sink
 *
 *   RUNNING --all choices ended, one failed, slow reader--> ENDED --all written--> closed
 *   RUNNING, ENDED --nobody waits any more--> closed
 *
 * A request of n choices is n requests for dispatch, started together or not at all. Choice i has the
 * seed of choice 0 plus i, so it is what a single request with that seed would be. One that fails
 * takes the others with it.
 *
 * A token only adds to its choice's pending text and puts the stream on the list of those with news.
 * fg_streams_flush, called once per turn of the loop, writes each one's news, at most one chunk per
 * choice where its reader keeps up: tokens that arrive together travel together, and neither dispatch
 * nor HTTP is ever called from inside dispatch's own callback. A client that does not read leaves its
 * text pending, up to FG_LIMIT_STREAM_BYTES; then its request is cancelled. No other stream notices.
 *
 * What is answered as a whole is gathered first: numbers of embeddings, logprobs of tokens and prompts. As long as that of
 * all streams is more than FG_LIMIT_GATHERED_BYTES, or would be with a new one's, new ones of that kind are refused; text
 * is too little to count.
 */
#ifndef FORGE_ROUTER_STREAM_H
#define FORGE_ROUTER_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/model/tokenizer.h"
#include "common/net/http.h"
#include "router/api.h"
#include "router/dispatch.h"
#include "router/meter.h"
#include "router/request.h"

typedef struct fg_streams fg_streams; /* all streams of one front */
typedef struct fg_stream fg_stream;   /* one request's way out */

typedef struct fg_streams_options {
    const fg_tokenizer *tokenizer;
    fg_dispatch *dispatch;
    fg_meter *meter; /* may be NULL */
    fg_spans *spans; /* gets the spans of traced requests; may be NULL */
    fg_clock clock;
    size_t gathered_bytes_max; /* 0: FG_LIMIT_GATHERED_BYTES */
    /* A stream has news, and none had before: call fg_streams_flush soon, but not from here. */
    void (*on_news)(void *ctx);
    void *ctx;
} fg_streams_options;

/* FG_AGAIN: out of memory. What the options point at outlives the streams. */
fg_status fg_streams_create(const fg_streams_options *options, fg_streams **streams_out,
                            fg_error *err);
/* Cancels and frees what is still open without a word to its sink: the server is closed first. */
void fg_streams_destroy(fg_streams *streams);

/* Where a stream ends: an HTTP exchange, or a place in the answer of a batch. Called by flush and
 * retry only. */
typedef struct fg_stream_sink {
    /* The whole answer; the stream is gone when this returns. `wait_s`: when trying again may help;
     * 0: never. */
    void (*reply)(void *ctx, int http_status, uint32_t wait_s, const char *body, size_t body_bytes);
    /* An event stream: begin, writes as fg_http_stream_write answers them, end. NULL where requests
     * with `stream` are refused. After `end` the stream is gone. */
    void (*begin)(void *ctx);
    fg_status (*write)(void *ctx, const void *bytes, size_t size_bytes);
    void (*end)(void *ctx);
    void *ctx;
    const char *route; /* under which it is counted as an HTTP answer; NULL: it is none */
} fg_stream_sink;

/* Starts the request on the workers; its answer goes to `sink` from then on. On FG_OK it takes
 * ownership of request->arena, and *stream_out is valid until the sink was told the end. Otherwise
 * the caller keeps the arena, nothing runs, and *error_out says why; FG_AGAIN: try later. */
fg_status fg_stream_open_to(fg_streams *streams, const fg_stream_sink *sink,
                            const fg_request *request, fg_stream **stream_out,
                            fg_api_error *error_out);
/* Nobody waits for it any more: it is cancelled and closed without a word. May be called from inside
 * the sink's write. */
void fg_stream_cancel(fg_stream *stream);

/* As fg_stream_open_to, for an exchange, whose user pointer becomes the stream's. */
fg_status fg_stream_open(fg_streams *streams, fg_http_exchange *exchange, const char *route,
                         const fg_request *request, fg_api_error *error_out);
/* For on_gone. Nothing happens for an exchange without a stream. */
void fg_stream_gone(fg_streams *streams, fg_http_exchange *exchange);

/* Writes the news of every stream that has some. */
void fg_streams_flush(fg_streams *streams);
/* True while some reader is too slow: fg_streams_retry should be called soon. */
bool fg_streams_blocked(const fg_streams *streams);
/* Tries the slow readers again. */
void fg_streams_retry(fg_streams *streams);

uint32_t fg_streams_count(const fg_streams *streams);

/* Answers an exchange that has no stream with an error, with Retry-After where trying again helps. */
void fg_stream_reply_error(fg_streams *streams, fg_http_exchange *exchange, const char *route,
                           const fg_api_error *error);
/* What an error of dispatch means to a client. */
void fg_stream_explain(fg_status status, const char *text, fg_api_error *error_out);

#endif
