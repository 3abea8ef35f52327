/*
 * http - strict HTTP/1.1 requests in; replies and event streams out, bounded. Owned by the loop thread.
 *
 * One exchange at a time per connection: while a reply is pending the parser is paused, so pipelined
 * requests are answered in order. An exchange lives until its reply has ended or `on_gone` has been
 * called, whichever is first; after that its pointer is dead.
 */
#ifndef FORGE_COMMON_NET_HTTP_H
#define FORGE_COMMON_NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct fg_loop;
typedef struct fg_http_server fg_http_server;
typedef struct fg_http_exchange fg_http_exchange;

typedef struct fg_http_request {
    const char *method; /* "GET", "POST", "HEAD", ... */
    const char *path;   /* decoded, without the query */
    const char *query;  /* after '?', "" if none */
    const char *body;
    size_t body_bytes;
} fg_http_request;

typedef struct fg_http_handler {
    /* A whole, valid request. `request` is valid until the exchange ends, its body only until this
     * returns. The handler replies now or later, exactly once (reply, or stream_begin .. stream_end). */
    void (*on_request)(void *ctx, fg_http_exchange *exchange, const fg_http_request *request);
    /* The head of a request with a body has come, and its Authorization header (NULL: none). False: the body is not
     * received, and on_request is called without it; the connection closes after the answer. NULL: all are wanted. */
    bool (*wants_body)(void *ctx, const fg_http_request *request, const char *authorization);
    /* The client went away (or stalled past its deadline) before the reply had ended. */
    void (*on_gone)(void *ctx, fg_http_exchange *exchange);
    /* A connection was answered without a request: what came was none, or there was no room for it. NULL: nobody
     * asks. Nothing may be called from here. */
    void (*on_refused)(void *ctx, int status);
    void *ctx;
} fg_http_handler;

typedef struct fg_http_limits { /* 0: the default of base/limits.h; tests make them small */
    size_t header_bytes, header_count, body_bytes, connections, stream_bytes, unread_bytes;
    uint64_t header_ms, body_ms, idle_ms, stall_ms;
} fg_http_limits;

/* Port 0 picks one. Where fewer descriptors are left than connections are allowed, fewer are allowed, and
 * the log says so: beyond them the system would close connections without a word to anybody. */
fg_status fg_http_listen(struct fg_loop *loop, const char *host, uint16_t port,
                         const fg_http_limits *limits, const fg_http_handler *handler,
                         fg_http_server **server_out, fg_error *err);
uint16_t fg_http_port(const fg_http_server *server);
/* Stops accepting; idle connections close, busy ones close after their reply. */
void fg_http_drain(fg_http_server *server);
/* Closes everything; no on_gone calls. */
void fg_http_close(fg_http_server *server);
uint32_t fg_http_exchange_count(const fg_http_server *server); /* exchanges in progress */

/* Connections that were turned away because there were too many. */
uint64_t fg_http_refused_count(const fg_http_server *server);

/* The value of a request header (lower-case name), NULL when absent. */
const char *fg_http_header(const fg_http_exchange *exchange, const char *name);
/* The handler's own pointer, for on_gone. */
void fg_http_set_user(fg_http_exchange *exchange, void *user);
void *fg_http_user(const fg_http_exchange *exchange);
/* Adds a header to the coming reply (before reply or stream_begin); copied. */
void fg_http_add_header(fg_http_exchange *exchange, const char *name, const char *value);
/* A whole reply. Copies the body. Content-Length, Date-free, HEAD handled. */
void fg_http_reply(fg_http_exchange *exchange, int status, const char *content_type,
                   const void *body, size_t body_bytes);
/* A streamed reply (chunked; Connection: close towards HTTP/1.0). */
void fg_http_stream_begin(fg_http_exchange *exchange, int status, const char *content_type);
/* FG_AGAIN: the client reads too slowly and stream_bytes would be exceeded; nothing was queued, try
 * later. FG_CANCELLED: the client is gone. */
fg_status fg_http_stream_write(fg_http_exchange *exchange, const void *bytes, size_t size_bytes);
void fg_http_stream_end(fg_http_exchange *exchange);
/* Bytes queued and not yet taken by the client. */
size_t fg_http_stream_queued(const fg_http_exchange *exchange);

#endif
