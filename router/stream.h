/*
 * stream - turns the tokens of one request into text and events for one HTTP exchange. Owned by the
 * loop thread.
 *
 *   tokens -> whole characters -> stop strings -> pending text -> chunks (or one answer at the end)
 *
 *   RUNNING --on_end, stop string, slow reader--> ENDED --all written--> closed
 *   RUNNING, ENDED --client gone--> closed
 *
 * A token only adds to its stream's pending text and puts the stream on the list of those with news.
 * fg_streams_flush, called once per turn of the loop, writes each one's news as one chunk: tokens that
 * arrive together travel together, and neither dispatch nor HTTP is ever called from inside dispatch's
 * own callback. A client that does not read leaves its text pending, up to FG_LIMIT_STREAM_BYTES; then
 * its request is cancelled. No other stream notices.
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

typedef struct fg_streams_options {
    const fg_tokenizer *tokenizer;
    fg_dispatch *dispatch;
    fg_meter *meter; /* may be NULL */
    fg_clock clock;
    /* A stream has news, and none had before: call fg_streams_flush soon, but not from here. */
    void (*on_news)(void *ctx);
    void *ctx;
} fg_streams_options;

/* FG_AGAIN: out of memory. What the options point at outlives the streams. */
fg_status fg_streams_create(const fg_streams_options *options, fg_streams **streams_out,
                            fg_error *err);
/* Cancels and frees what is still open without touching its exchange: the server is closed first. */
void fg_streams_destroy(fg_streams *streams);

/* Starts the request on the workers and answers `exchange` from then on; the exchange's user pointer
 * becomes the stream's. On FG_OK it takes ownership of request->arena; otherwise the caller keeps it,
 * answers the exchange, and *error_out says what. */
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
