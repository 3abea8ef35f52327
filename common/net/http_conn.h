/*
 * http_conn - one HTTP connection: reads, feeds the parser, queues output, keeps the deadlines. Internal
 * to http; owned by the loop thread.
 *
 *   READING -> BUSY            a whole request came: handler.on_request
 *   BUSY -> FLUSHING           fg_http_conn_end: the reply has ended, its last bytes are on their way
 *   READING -> FLUSHING        a refusal was written
 *   FLUSHING -> READING        all written, the connection is kept
 *   FLUSHING -> LINGERING      all written, FIN sent: reads and forgets until the client has closed too,
 *                              because closing with unread input would destroy the reply on its way
 *   any -> CLOSED              client gone, deadline, fg_http_close
 */
#ifndef FORGE_COMMON_NET_HTTP_CONN_H
#define FORGE_COMMON_NET_HTTP_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/net/http.h"
#include "common/net/http_parse.h"

typedef struct fg_http_conn fg_http_conn;

/* What the connections of one server share; a member of the server. */
typedef struct fg_http_shared {
    struct fg_loop *loop;
    fg_http_limits limits;
    fg_http_handler handler;
    fg_http_conn *conns;
    fg_http_conn *reserve; /* takes a connection off the listener when memory is short */
    void *waiting;         /* the listener, when even the reserve was in use */
    uint32_t open_count;   /* handles that still need this struct: connections, and the listener */
    uint32_t conn_count;
    uint32_t refusals_max; /* connections beyond the limit that are told so at one time */
    uint64_t refused_count, told_at_ms;
    uint32_t exchange_count;
    size_t held_bytes;   /* requests being received, of all connections */
    size_t unread_bytes; /* replies that wait for their clients, likewise */
    bool draining;
    fg_buf scratch; /* a reply's head, while it is written */
    char *read_buffer;
    void (*released)(struct fg_http_shared *shared); /* open_count has become 0 */
} fg_http_shared;

struct fg_http_exchange {
    fg_http_conn *conn;
    const fg_http_parser *parser;
    void *user;
    fg_buf headers;
    bool has_begun;  /* stream_begin was called */
    bool is_chunked; /* towards HTTP/1.1 */
};

typedef struct fg_http_piece {
    const void *bytes;
    size_t size_bytes;
} fg_http_piece;

/* Takes the waiting connection of `listener` (a uv_stream_t). */
void fg_http_conn_accept(fg_http_shared *shared, void *listener);
/* Closes connections that have no request under way. */
void fg_http_conn_drain(fg_http_shared *shared);
/* Closes all; no callbacks. */
void fg_http_conn_close_all(fg_http_shared *shared);
/* Memory for one connection: shared->reserve. NULL when out of memory; fg_mem_free it. */
fg_http_conn *fg_http_conn_reserve(void);
fg_http_shared *fg_http_conn_shared(fg_http_conn *conn);
/* One handle less. */
void fg_http_shared_unref(fg_http_shared *shared);

/* Writes what the socket takes and queues a copy of the rest. FG_CANCELLED: the client is gone;
 * on_gone follows from the loop. */
fg_status fg_http_conn_write(fg_http_conn *conn, const fg_http_piece *pieces, size_t piece_count);
/* The reply cannot be made: the connection ends, and on_gone follows from the loop. */
void fg_http_conn_break(fg_http_conn *conn);
size_t fg_http_conn_queued(const fg_http_conn *conn);
/* Decides whether the connection outlives this reply; call it once, for the reply's head. */
bool fg_http_conn_keep(fg_http_conn *conn);
/* The reply has ended; frees the exchange. */
void fg_http_conn_end(fg_http_conn *conn);

/* Appends status line and common headers. */
void fg_http_append_head(fg_buf *out, int status, const char *content_type, bool keep_alive);

#endif
