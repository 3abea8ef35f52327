#include "common/net/http_conn.h"

#include <string.h>

#include <uv.h>

#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/loop.h"

enum {
    READ_BYTES = 64 * 1024,       /* the shared read buffer */
    READ_AHEAD_MAX = 64 * 1024,   /* pipelined input kept while a reply is pending */
    HELD_MAX = 512 * 1024 * 1024, /* requests being received, of all connections together */
    TELL_MS = 10000,              /* between two lines of the log about refused connections */
    REQUESTS_MAX = 10000,         /* on one connection */
    PIECES_MAX = 3,
    KEEP_BYTES = 16 * 1024, /* larger queues are given back when empty */
    LINGER_MS = 1000,
    TCP_KEEPALIVE_S = 60, /* finds the dead when we have nothing to send */
};

typedef enum conn_state { READING, BUSY, FLUSHING, LINGERING, CLOSED } conn_state;

/* What the timer waits for. */
typedef enum deadline_kind { NONE, NOW, IDLE, HEAD, BODY, STALL, LINGER } deadline_kind;

struct fg_http_conn {
    uv_tcp_t tcp;
    uv_timer_t timer;
    uv_write_t write;
    uv_shutdown_t shutdown;
    int open_handles;
    fg_http_shared *shared;
    fg_http_conn *next, *previous;
    conn_state state;
    deadline_kind deadline;
    fg_http_parser *parser;
    fg_http_exchange *exchange; /* BUSY */
    size_t held_bytes;          /* of shared->held_bytes */
    size_t unread_bytes;        /* of shared->unread_bytes */
    uint32_t request_count;
    bool keep_alive;       /* of the reply in progress */
    bool pumping;          /* inside pump(): nobody else takes requests off the input */
    bool broken;           /* a write has failed; the timer says so to the handler */
    bool saw_end;          /* the client's FIN came while output was still going out */
    bool paused;           /* reading is off: too much read ahead */
    fg_buf in;             /* pipelined input */
    fg_buf out;            /* output waiting behind `flying` */
    fg_buf flying;         /* output that libuv holds */
    uint64_t queued_total; /* bytes ever put into `out` */
    uint64_t taken_total;  /* those of them that the client had taken ... */
    uint64_t taken_at_ms;  /* ... when it was last seen to take any */
};

static void arm(fg_http_conn *conn);
static void pump(fg_http_conn *conn, const char *bytes, size_t size_bytes);
static void finish_flush(fg_http_conn *conn);
static void pause_or_resume(fg_http_conn *conn);

static uv_stream_t *stream(fg_http_conn *conn)
{
    return (uv_stream_t *)&conn->tcp;
}

/* --- end of life --- */

void fg_http_shared_unref(fg_http_shared *shared)
{
    if (--shared->open_count == 0) {
        shared->released(shared);
    }
}

static void free_exchange(fg_http_conn *conn, fg_http_exchange *exchange)
{
    conn->shared->exchange_count--;
    fg_buf_deinit(&exchange->headers);
    fg_mem_free(exchange);
}

static void handle_closed(uv_handle_t *handle)
{
    fg_http_conn *conn = handle->data;
    if (--conn->open_handles > 0) {
        return;
    }
    fg_http_shared *shared = conn->shared;
    fg_http_parser_destroy(conn->parser);
    fg_buf_deinit(&conn->in);
    fg_buf_deinit(&conn->out);
    fg_buf_deinit(&conn->flying);
    if (shared->reserve == NULL) {
        *conn = (fg_http_conn){ 0 };
        shared->reserve = conn;
    } else {
        fg_mem_free(conn);
    }
    void *waiting = shared->waiting;
    shared->waiting = NULL;
    if (waiting != NULL) {
        fg_http_conn_accept(shared, waiting);
    }
    fg_http_shared_unref(shared);
}

static void close_conn(fg_http_conn *conn)
{
    fg_http_shared *shared = conn->shared;
    if (conn->state == CLOSED) {
        return;
    }
    conn->state = CLOSED;
    shared->held_bytes -= conn->held_bytes;
    conn->held_bytes = 0;
    shared->unread_bytes -= conn->unread_bytes;
    conn->unread_bytes = 0;
    shared->conn_count--;
    if (conn->next != NULL) {
        conn->next->previous = conn->previous;
    }
    if (conn->previous != NULL) {
        conn->previous->next = conn->next;
    } else {
        shared->conns = conn->next;
    }
    uv_close((uv_handle_t *)&conn->tcp, handle_closed);
    uv_close((uv_handle_t *)&conn->timer, handle_closed);
}

/* The client is gone, or has to go. */
static void lose_client(fg_http_conn *conn)
{
    fg_http_exchange *exchange = conn->exchange;
    conn->exchange = NULL;
    close_conn(conn);
    if (exchange != NULL) {
        conn->shared->handler.on_gone(conn->shared->handler.ctx, exchange);
        free_exchange(conn, exchange);
    }
}

/* --- output --- */

size_t fg_http_conn_queued(const fg_http_conn *conn)
{
    return conn->state == CLOSED
               ? 0
               : conn->out.size + uv_stream_get_write_queue_size((const uv_stream_t *)&conn->tcp);
}

static void give_back(fg_buf *buf)
{
    fg_buf_clear(buf);
    if (buf->capacity > KEEP_BYTES) {
        fg_buf_deinit(buf);
    }
}

static void count_unread(fg_http_conn *conn)
{
    size_t unread = conn->out.size + conn->flying.size;
    conn->shared->unread_bytes += unread - conn->unread_bytes;
    conn->unread_bytes = unread;
}

static void start_write(fg_http_conn *conn);

static void on_written(uv_write_t *write, int status)
{
    fg_http_conn *conn = write->data;
    give_back(&conn->flying);
    if (conn->state == CLOSED) {
        return;
    }
    count_unread(conn);
    if (status < 0) {
        lose_client(conn);
        return;
    }
    if (conn->out.size > 0) {
        start_write(conn);
    }
    if (conn->state == FLUSHING && fg_http_conn_queued(conn) == 0) {
        finish_flush(conn);
        return;
    }
    arm(conn);
}

/* Hands `out` to libuv, which works on it alone; meanwhile the other buffer collects. */
static void start_write(fg_http_conn *conn)
{
    fg_buf swap = conn->flying;
    conn->flying = conn->out;
    conn->out = swap;
    uv_buf_t buf = uv_buf_init(conn->flying.data, (unsigned)conn->flying.size);
    conn->write.data = conn;
    if (uv_write(&conn->write, stream(conn), &buf, 1, on_written) != 0) {
        give_back(&conn->flying);
        conn->broken = true;
    }
}

fg_status fg_http_conn_write(fg_http_conn *conn, const fg_http_piece *pieces, size_t piece_count)
{
    uv_buf_t bufs[PIECES_MAX];
    size_t skip = 0;
    if (conn->state == CLOSED || conn->broken) {
        return FG_CANCELLED;
    }
    for (size_t i = 0; i < piece_count; i++) {
        bufs[i] = uv_buf_init((char *)pieces[i].bytes, (unsigned)pieces[i].size_bytes);
    }
    if (fg_http_conn_queued(conn) == 0) {
        int wrote = uv_try_write(stream(conn), bufs, (unsigned)piece_count);
        if (wrote < 0 && wrote != UV_EAGAIN) {
            conn->broken = true;
            arm(conn);
            return FG_CANCELLED;
        }
        skip = wrote > 0 ? (size_t)wrote : 0;
    }
    for (size_t i = 0; i < piece_count; i++) {
        size_t taken = skip < bufs[i].len ? skip : bufs[i].len;
        skip -= taken;
        if (taken < bufs[i].len) {
            fg_buf_append(&conn->out, bufs[i].base + taken, bufs[i].len - taken);
            conn->queued_total += bufs[i].len - taken;
        }
    }
    count_unread(conn);
    if (conn->out.failed || conn->shared->unread_bytes > conn->shared->limits.unread_bytes) {
        conn->broken = true; /* no memory for it: half a reply is worse than a cut one */
    } else if (conn->out.size > 0 && conn->flying.size == 0) {
        start_write(conn);
    }
    if (conn->broken || fg_http_conn_queued(conn) > 0) {
        arm(conn);
    }
    return conn->broken ? FG_CANCELLED : FG_OK;
}

void fg_http_conn_break(fg_http_conn *conn)
{
    conn->broken = true;
    arm(conn);
}

static void after_shutdown(uv_shutdown_t *shutdown, int status)
{
}

/* All of a reply has gone out. */
static void finish_flush(fg_http_conn *conn)
{
    if (conn->keep_alive && !conn->saw_end && !conn->shared->draining) {
        conn->state = READING;
        conn->deadline = NONE; /* each request has deadlines of its own */
        fg_http_parser_reset(conn->parser);
        if (!conn->pumping) {
            pump(conn, NULL, 0);
        }
        return;
    }
    if (conn->saw_end || uv_shutdown(&conn->shutdown, stream(conn), after_shutdown) != 0) {
        close_conn(conn);
        return;
    }
    conn->state = LINGERING;
    fg_buf_deinit(&conn->in);
    pause_or_resume(conn);
    arm(conn);
}

bool fg_http_conn_keep(fg_http_conn *conn)
{
    conn->keep_alive = fg_http_parser_keep_alive(conn->parser) && !conn->shared->draining &&
                       conn->request_count < REQUESTS_MAX && !fg_http_parser_in_body(conn->parser);
    return conn->keep_alive;
}

void fg_http_conn_end(fg_http_conn *conn)
{
    fg_http_exchange *exchange = conn->exchange;
    if (exchange == NULL) {
        return; /* answered from within on_gone: nobody is there */
    }
    conn->exchange = NULL;
    free_exchange(conn, exchange);
    if (conn->state == CLOSED) {
        return;
    }
    conn->state = FLUSHING;
    if (!conn->pumping) {
        arm(conn); /* the next request, if any, is taken from the loop, not from inside this call */
    }
}

/* --- refusals --- */

static void refuse(fg_http_conn *conn, int status, const char *message)
{
    static const char form[] = "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,"
                               "\"code\":null}}";
    fg_buf body;
    fg_buf *head = &conn->shared->scratch;
    fg_buf_init(&body, 0);
    fg_buf_printf(&body, form, message, status >= 500 ? "server_error" : "invalid_request_error");
    fg_buf_clear(head);
    fg_http_append_head(head, status, "application/json", false);
    fg_buf_printf(head, "Content-Length: %zu\r\n\r\n", body.size);
    bool is_head = fg_http_parser_is_head(conn->parser);
    fg_http_piece pieces[] = { { head->data, head->size }, { body.data, is_head ? 0 : body.size } };
    conn->keep_alive = false;
    conn->state = FLUSHING;
    if (head->failed || body.failed) {
        conn->broken = true;
    } else {
        (void)fg_http_conn_write(conn, pieces, 2);
    }
    fg_buf_deinit(&body);
    fg_buf_clear(&conn->in);
    const fg_http_handler *handler = &conn->shared->handler;
    if (handler->on_refused != NULL) {
        handler->on_refused(handler->ctx, status);
    }
    if (conn->pumping) {
        return; /* pump goes on from here */
    }
    arm(conn);
}

/* --- input --- */

static void count_held(fg_http_conn *conn)
{
    size_t held = fg_http_parser_held(conn->parser) + conn->in.capacity;
    conn->shared->held_bytes += held - conn->held_bytes;
    conn->held_bytes = held;
}

static void start_exchange(fg_http_conn *conn)
{
    fg_http_shared *shared = conn->shared;
    fg_http_exchange *exchange = fg_mem_alloc(sizeof *exchange);
    if (exchange == NULL) {
        refuse(conn, 503, "out of memory");
        return;
    }
    exchange->conn = conn;
    exchange->parser = conn->parser;
    fg_buf_init(&exchange->headers, READ_BYTES);
    conn->exchange = exchange;
    conn->state = BUSY;
    conn->request_count++;
    shared->exchange_count++;
    shared->handler.on_request(shared->handler.ctx, exchange, fg_http_parser_request(conn->parser));
    if (conn->state ==
        BUSY) { /* a request that waits for its turn is received, and its body read */
        fg_http_parser_drop_body(conn->parser);
        count_held(conn);
    }
}

static void send_continue(fg_http_conn *conn)
{
    static const char reply[] = "HTTP/1.1 100 Continue\r\n\r\n";
    fg_http_piece piece = { reply, sizeof reply - 1 };
    (void)fg_http_conn_write(conn, &piece, 1);
}

/* A body that nobody wants is not waited for: its request is answered now. */
static void on_head(fg_http_conn *conn, bool all_taken)
{
    const fg_http_handler *handler = &conn->shared->handler;
    if (handler->wants_body != NULL &&
        !handler->wants_body(handler->ctx, fg_http_parser_request(conn->parser),
                             fg_http_parser_header(conn->parser, "authorization"))) {
        start_exchange(conn);
    } else if (all_taken && fg_http_parser_waits(conn->parser)) {
        send_continue(conn);
    }
}

/* Parses and serves as much of the bytes as may be served now; returns how many were taken. */
static size_t serve(fg_http_conn *conn, const char *bytes, size_t size_bytes)
{
    size_t at = 0;
    while (at < size_bytes && conn->state == READING && !conn->broken) {
        size_t used;
        fg_http_step step = fg_http_parser_feed(conn->parser, bytes + at, size_bytes - at, &used);
        at += used;
        count_held(conn);
        if (conn->shared->held_bytes > HELD_MAX) {
            refuse(conn, 503, "too many requests are being received");
        } else if (step == FG_HTTP_HEAD) {
            on_head(conn, at == size_bytes);
        } else if (step == FG_HTTP_READY) {
            start_exchange(conn);
        } else if (step == FG_HTTP_REFUSED) {
            fg_http_refusal refusal = fg_http_parser_refusal(conn->parser);
            refuse(conn, refusal.status, refusal.message);
        }
        if (conn->state == FLUSHING && fg_http_conn_queued(conn) == 0 && !conn->broken) {
            finish_flush(conn);
        }
    }
    return conn->state == LINGERING ? size_bytes : at;
}

static void on_read(uv_stream_t *handle, ssize_t count, const uv_buf_t *buf);

static void lend_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    fg_http_conn *conn = handle->data;
    *buf = uv_buf_init(conn->shared->read_buffer, READ_BYTES);
}

/* Reading goes on while a reply is pending, to see the client leave; but what is kept is bounded. */
static void pause_or_resume(fg_http_conn *conn)
{
    bool full = conn->in.size >= READ_AHEAD_MAX;
    if (full && !conn->paused) {
        uv_read_stop(stream(conn));
        conn->paused = true;
    } else if (!full && conn->paused && !conn->saw_end) {
        conn->paused = uv_read_start(stream(conn), lend_buffer, on_read) != 0;
        conn->broken = conn->broken || conn->paused;
    }
}

/* New input (or none, when a reply has just ended), after what had been kept. */
static void pump(fg_http_conn *conn, const char *bytes, size_t size_bytes)
{
    bool from_kept = conn->in.size > 0;
    if (from_kept) {
        fg_buf_append(&conn->in, bytes, size_bytes);
        bytes = conn->in.data;
        size_bytes = conn->in.size;
    }
    conn->pumping = true;
    size_t taken = serve(conn, bytes, size_bytes);
    conn->pumping = false;
    if (conn->state == CLOSED) {
        return;
    }
    if (conn->state == BUSY || (conn->state == FLUSHING && conn->keep_alive)) {
        if (from_kept) {
            fg_buf_consume(&conn->in, taken);
        } else {
            fg_buf_append(&conn->in, bytes + taken, size_bytes - taken);
        }
    } else {
        give_back(&conn->in);
    }
    conn->broken = conn->broken || conn->in.failed;
    count_held(conn);
    pause_or_resume(conn);
    arm(conn);
}

static void on_end(fg_http_conn *conn)
{
    if (conn->state == FLUSHING) {
        /* The reply is complete and on its way: a client that closes only its sending side gets it. */
        conn->saw_end = true;
        conn->paused = true;
        uv_read_stop(stream(conn));
        return;
    }
    lose_client(conn);
}

static void on_read(uv_stream_t *handle, ssize_t count, const uv_buf_t *buf)
{
    fg_http_conn *conn = handle->data;
    if (count == 0 || conn->state == CLOSED) {
        return;
    }
    if (count == UV_EOF) {
        on_end(conn);
    } else if (count < 0) {
        lose_client(conn);
    } else if (conn->state == READING) {
        pump(conn, buf->base, (size_t)count);
    } else if (conn->state == BUSY || (conn->state == FLUSHING && conn->keep_alive)) {
        fg_buf_append(&conn->in, buf->base, (size_t)count);
        conn->broken = conn->broken || conn->in.failed;
        count_held(conn);
        pause_or_resume(conn);
        if (conn->broken) {
            arm(conn);
        }
    }
}

/* --- deadlines --- */

static void check_stall(fg_http_conn *conn)
{
    uint64_t now_ms = uv_now(conn->tcp.loop);
    uint64_t taken = conn->queued_total - fg_http_conn_queued(conn);
    if (taken != conn->taken_total) {
        conn->taken_total = taken;
        conn->taken_at_ms = now_ms;
    } else if (now_ms - conn->taken_at_ms >= conn->shared->limits.stall_ms) {
        lose_client(conn);
    }
}

static void on_timer(uv_timer_t *timer)
{
    fg_http_conn *conn = timer->data;
    switch (conn->deadline) {
    case NOW:
        conn->deadline = NONE;
        if (conn->broken) {
            lose_client(conn);
        } else if (conn->state == FLUSHING) {
            finish_flush(conn);
        }
        break;
    case STALL:
        check_stall(conn);
        break;
    case HEAD:
    case BODY:
        refuse(conn, 408, "the request did not arrive in time");
        break;
    default:
        close_conn(conn);
        break;
    }
}

static deadline_kind next_deadline(const fg_http_conn *conn)
{
    if (conn->broken) {
        return NOW;
    }
    switch (conn->state) {
    case READING:
        if (!fg_http_parser_started(conn->parser)) {
            return IDLE;
        }
        return fg_http_parser_in_body(conn->parser) ? BODY : HEAD;
    case BUSY:
        return fg_http_conn_queued(conn) > 0 ? STALL : NONE;
    case FLUSHING:
        return fg_http_conn_queued(conn) > 0 ? STALL : NOW;
    case LINGERING:
        return LINGER;
    case CLOSED:
        break;
    }
    return NONE;
}

/* Sets the timer when what is waited for has changed; more bytes of the same do not move a deadline. */
static void arm(fg_http_conn *conn)
{
    deadline_kind deadline = next_deadline(conn);
    if (conn->state == CLOSED || deadline == conn->deadline) {
        return;
    }
    const fg_http_limits *limits = &conn->shared->limits;
    uint64_t first_ms = 0, period_ms = 0;
    conn->deadline = deadline;
    switch (deadline) {
    case NONE:
        uv_timer_stop(&conn->timer);
        return;
    case NOW:
        break;
    case IDLE:
        first_ms = limits->idle_ms;
        break;
    case HEAD:
        first_ms = limits->header_ms;
        break;
    case BODY:
        first_ms = limits->body_ms;
        break;
    case STALL:
        period_ms = first_ms = limits->stall_ms / 4 + 1;
        conn->taken_total = conn->queued_total - fg_http_conn_queued(conn);
        conn->taken_at_ms = uv_now(conn->tcp.loop);
        break;
    case LINGER:
        first_ms = LINGER_MS;
        break;
    }
    uv_timer_start(&conn->timer, on_timer, first_ms, period_ms);
}

/* --- beginning of life --- */

fg_http_conn *fg_http_conn_reserve(void)
{
    return fg_mem_alloc(sizeof(fg_http_conn));
}

fg_http_shared *fg_http_conn_shared(fg_http_conn *conn)
{
    return conn->shared;
}

static fg_http_conn *make_conn(fg_http_shared *shared)
{
    fg_http_conn *conn = fg_mem_alloc(sizeof *conn);
    fg_http_parse_limits limits = { shared->limits.header_bytes, shared->limits.header_count,
                                    shared->limits.body_bytes };
    if (conn != NULL) {
        conn->parser = fg_http_parser_create(&limits);
        if (conn->parser == NULL) {
            fg_mem_free(conn);
            conn = NULL;
        }
    }
    return conn;
}

static void count_refusal(fg_http_shared *shared, uint64_t now_ms)
{
    if (shared->refused_count++ == 0 || now_ms - shared->told_at_ms >= TELL_MS) {
        shared->told_at_ms = now_ms;
        fg_warn("http", "event=connections_refused limit=%zu refused=%llu",
                shared->limits.connections, (unsigned long long)shared->refused_count);
    }
}

void fg_http_conn_accept(fg_http_shared *shared, void *listener)
{
    fg_http_conn *conn = make_conn(shared);
    bool in_need = conn == NULL;
    if (in_need) {
        /* libuv goes on listening only when what it accepted is taken: take it with the reserve. */
        conn = shared->reserve;
        shared->reserve = NULL;
        if (conn == NULL) {
            shared->waiting = listener;
            return;
        }
    }
    conn->shared = shared;
    conn->open_handles = 2;
    conn->next = shared->conns;
    if (conn->next != NULL) {
        conn->next->previous = conn;
    }
    shared->conns = conn;
    shared->conn_count++;
    shared->open_count++;
    uv_loop_t *loop = fg_loop_native(shared->loop);
    uv_tcp_init(loop, &conn->tcp);
    uv_timer_init(loop, &conn->timer);
    conn->tcp.data = conn;
    conn->timer.data = conn;
    bool too_many = shared->conn_count > shared->limits.connections;
    if (too_many) {
        count_refusal(shared, uv_now(loop));
    }
    if (uv_accept(listener, stream(conn)) != 0 || in_need || shared->draining ||
        shared->conn_count > shared->limits.connections + shared->refusals_max ||
        uv_read_start(stream(conn), lend_buffer, on_read) != 0) {
        close_conn(conn);
        return;
    }
    uv_tcp_nodelay(&conn->tcp, 1);
    uv_tcp_keepalive(&conn->tcp, 1, TCP_KEEPALIVE_S);
    if (too_many) {
        refuse(conn, 503, "too many connections");
    }
    arm(conn);
}

void fg_http_conn_drain(fg_http_shared *shared)
{
    fg_http_conn *next;
    for (fg_http_conn *conn = shared->conns; conn != NULL; conn = next) {
        next = conn->next;
        if (conn->state == READING && !fg_http_parser_started(conn->parser)) {
            close_conn(conn);
        }
    }
}

void fg_http_conn_close_all(fg_http_shared *shared)
{
    while (shared->conns != NULL) {
        fg_http_conn *conn = shared->conns;
        fg_http_exchange *exchange = conn->exchange;
        conn->exchange = NULL;
        close_conn(conn);
        if (exchange != NULL) {
            free_exchange(conn, exchange);
        }
    }
}
