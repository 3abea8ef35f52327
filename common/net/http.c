#include "common/net/http.h"

#include <stdio.h>
#include <string.h>

#include <uv.h>

#include "common/base/descriptors.h"
#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/http_conn.h"
#include "common/net/loop.h"

enum {
    BACKLOG = 511,
    HOST_NAME_MAX_BYTES = 253, /* longest name of the DNS */
    READ_BUFFER_BYTES = 64 * 1024,
    REFUSALS_MAX = 64,
};

struct fg_http_server {
    fg_http_shared shared; /* first: the connections hold a pointer to it */
    uv_tcp_t listener;
    bool listening;
    uint16_t port;
};

static const struct {
    int status;
    const char *reason;
} reasons[] = {
    { 200, "OK" },
    { 204, "No Content" },
    { 400, "Bad Request" },
    { 401, "Unauthorized" },
    { 403, "Forbidden" },
    { 404, "Not Found" },
    { 405, "Method Not Allowed" },
    { 408, "Request Timeout" },
    { 409, "Conflict" },
    { 413, "Content Too Large" },
    { 414, "URI Too Long" },
    { 415, "Unsupported Media Type" },
    { 417, "Expectation Failed" },
    { 422, "Unprocessable Content" },
    { 429, "Too Many Requests" },
    { 431, "Request Header Fields Too Large" },
    { 500, "Internal Server Error" },
    { 501, "Not Implemented" },
    { 503, "Service Unavailable" },
    { 504, "Gateway Timeout" },
    { 505, "HTTP Version Not Supported" },
};

static const char *reason(int status)
{
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++) {
        if (reasons[i].status == status) {
            return reasons[i].reason;
        }
    }
    return "Unknown"; /* the phrase has no meaning, but the space before it must stand */
}

void fg_http_append_head(fg_buf *out, int status, const char *content_type, bool keep_alive)
{
    fg_buf_printf(out, "HTTP/1.1 %d %s\r\n", status, reason(status));
    if (content_type != NULL) {
        fg_buf_printf(out, "Content-Type: %s\r\n", content_type);
    }
    if (!keep_alive) {
        fg_buf_puts(out, "Connection: close\r\n");
    }
}

/* --- exchanges --- */

const char *fg_http_header(const fg_http_exchange *exchange, const char *name)
{
    return fg_http_parser_header(exchange->parser, name);
}

void fg_http_set_user(fg_http_exchange *exchange, void *user)
{
    exchange->user = user;
}

void *fg_http_user(const fg_http_exchange *exchange)
{
    return exchange->user;
}

void fg_http_add_header(fg_http_exchange *exchange, const char *name, const char *value)
{
    fg_buf *headers = &exchange->headers;
    FG_ASSERT(!exchange->has_begun, "the reply's head is already out");
    fg_buf_printf(headers, "%s: ", name);
    /* A value may echo the client's words: nothing in it may end the line. */
    for (const char *at = value; *at != '\0'; at++) {
        bool control = ((unsigned char)*at < 0x20 && *at != '\t') || *at == 0x7F;
        fg_buf_putc(headers, control ? ' ' : *at);
    }
    fg_buf_puts(headers, "\r\n");
}

/* The head of a reply, in the shared scratch buffer; `framing` is its last header line. */
static fg_buf *render_head(fg_http_exchange *exchange, int status, const char *content_type,
                           const char *framing, bool keep_alive)
{
    fg_http_shared *shared = fg_http_conn_shared(exchange->conn);
    fg_buf *head = &shared->scratch;
    fg_buf_clear(head);
    fg_http_append_head(head, status, content_type, keep_alive);
    if (exchange->headers.size > 0) {
        fg_buf_append(head, exchange->headers.data, exchange->headers.size);
    }
    fg_buf_puts(head, framing);
    fg_buf_puts(head, "\r\n");
    head->failed = head->failed || exchange->headers.failed;
    return head;
}

void fg_http_reply(fg_http_exchange *exchange, int status, const char *content_type,
                   const void *body, size_t body_bytes)
{
    fg_http_conn *conn = exchange->conn;
    char framing[48] = "";
    FG_ASSERT(!exchange->has_begun, "the reply has begun already");
    if (status != 204 && status != 304) {
        snprintf(framing, sizeof framing, "Content-Length: %zu\r\n", body_bytes);
    }
    fg_buf *head = render_head(exchange, status, content_type, framing, fg_http_conn_keep(conn));
    bool has_body = framing[0] != '\0' && !fg_http_parser_is_head(exchange->parser);
    fg_http_piece pieces[] = { { head->data, head->size }, { body, has_body ? body_bytes : 0 } };
    if (head->failed) {
        fg_http_conn_break(conn);
    } else {
        (void)fg_http_conn_write(conn, pieces, 2);
    }
    fg_http_conn_end(conn);
}

void fg_http_stream_begin(fg_http_exchange *exchange, int status, const char *content_type)
{
    fg_http_conn *conn = exchange->conn;
    FG_ASSERT(!exchange->has_begun, "the reply has begun already");
    exchange->is_chunked = !fg_http_parser_is_http10(exchange->parser);
    /* Without chunks the end of the connection is the end of the stream; HTTP/1.0 is never kept. */
    fg_buf *head = render_head(exchange, status, content_type,
                               exchange->is_chunked ? "Transfer-Encoding: chunked\r\n" : "",
                               fg_http_conn_keep(conn));
    exchange->has_begun = true;
    fg_http_piece piece = { head->data, head->size };
    if (head->failed) {
        fg_http_conn_break(conn);
    } else {
        (void)fg_http_conn_write(conn, &piece, 1);
    }
}

fg_status fg_http_stream_write(fg_http_exchange *exchange, const void *bytes, size_t size_bytes)
{
    fg_http_conn *conn = exchange->conn;
    FG_ASSERT(exchange->has_begun, "stream_begin comes first");
    if (size_bytes == 0 || fg_http_parser_is_head(exchange->parser)) {
        return FG_OK; /* an empty chunk would end the stream */
    }
    char size_line[24];
    int size_length = snprintf(size_line, sizeof size_line, "%zx\r\n", size_bytes);
    fg_http_piece pieces[] = { { size_line, (size_t)size_length },
                               { bytes, size_bytes },
                               { "\r\n", 2 } };
    size_t queued = fg_http_conn_queued(conn);
    size_t limit = fg_http_conn_shared(conn)->limits.stream_bytes;
    /* One event larger than the limit may still be queued alone, or it could never be sent. */
    if (queued > 0 && (queued >= limit || size_bytes > limit - queued)) {
        return FG_AGAIN;
    }
    return exchange->is_chunked ? fg_http_conn_write(conn, pieces, 3)
                                : fg_http_conn_write(conn, pieces + 1, 1);
}

void fg_http_stream_end(fg_http_exchange *exchange)
{
    fg_http_conn *conn = exchange->conn;
    FG_ASSERT(exchange->has_begun, "stream_begin comes first");
    fg_http_piece last = { "0\r\n\r\n", 5 };
    if (exchange->is_chunked && !fg_http_parser_is_head(exchange->parser)) {
        (void)fg_http_conn_write(conn, &last, 1);
    }
    fg_http_conn_end(conn);
}

size_t fg_http_stream_queued(const fg_http_exchange *exchange)
{
    return fg_http_conn_queued(exchange->conn);
}

/* --- the server --- */

static void free_server(fg_http_shared *shared)
{
    fg_http_server *server = (fg_http_server *)shared;
    fg_buf_deinit(&shared->scratch);
    fg_mem_free(shared->read_buffer);
    fg_mem_free(shared->reserve);
    fg_mem_free(server);
}

static void listener_closed(uv_handle_t *handle)
{
    fg_http_server *server = handle->data;
    fg_http_shared_unref(&server->shared);
}

static void stop_listening(fg_http_server *server)
{
    if (server->listening) {
        server->listening = false;
        server->shared.waiting = NULL;
        uv_close((uv_handle_t *)&server->listener, listener_closed);
    }
}

static void on_connection(uv_stream_t *listener, int status)
{
    fg_http_server *server = listener->data;
    /* Out of descriptors: libuv has taken the connection with its spare one and closed it. */
    if (status == 0) {
        fg_http_conn_accept(&server->shared, listener);
    }
}

static fg_status listen_failed(int rc, const char *host, uint16_t port, fg_error *err)
{
    fg_status status = rc == UV_ENOMEM || rc == UV_EMFILE ? FG_AGAIN : FG_BAD_INPUT;
    return fg_fail(err, status, "http: cannot listen on %s port %u: %s", host, port,
                   uv_strerror(rc));
}

/* Numeric addresses are taken as they are; only a name asks the resolver. */
static int resolve(uv_loop_t *loop, const char *host, uint16_t port,
                   struct sockaddr_storage *address_out)
{
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)address_out) == 0 ||
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)address_out) == 0) {
        return 0;
    }
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    uv_getaddrinfo_t request;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int rc = uv_getaddrinfo(loop, &request, NULL, host, service, &hints);
    if (rc == 0) {
        memcpy(address_out, request.addrinfo->ai_addr, request.addrinfo->ai_addrlen);
        uv_freeaddrinfo(request.addrinfo);
    }
    return rc;
}

static int bind_and_listen(fg_http_server *server, const struct sockaddr_storage *address)
{
    int rc = fg_fault_hit() ? UV_ENOMEM
                            : uv_tcp_bind(&server->listener, (const struct sockaddr *)address, 0);
    if (rc == 0) {
        rc = fg_fault_hit() ? UV_ENOMEM
                            : uv_listen((uv_stream_t *)&server->listener, BACKLOG, on_connection);
    }
    struct sockaddr_storage bound;
    int size = sizeof bound;
    if (rc == 0) {
        rc = uv_tcp_getsockname(&server->listener, (struct sockaddr *)&bound, &size);
    }
    if (rc == 0) {
        server->port =
            ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                              : ((struct sockaddr_in *)&bound)->sin_port);
    }
    return rc;
}

static void apply_limits(fg_http_limits *limits, const fg_http_limits *given)
{
    static const fg_http_limits defaults = {
        .header_bytes = FG_LIMIT_HTTP_HEADER_BYTES,
        .header_count = FG_LIMIT_HTTP_HEADER_COUNT,
        .body_bytes = FG_LIMIT_HTTP_BODY_BYTES,
        .connections = FG_LIMIT_HTTP_CONNECTIONS,
        .stream_bytes = FG_LIMIT_STREAM_BYTES,
        .unread_bytes = FG_LIMIT_UNREAD_BYTES,
        .header_ms = FG_LIMIT_HTTP_HEADER_MS,
        .body_ms = FG_LIMIT_HTTP_BODY_MS,
        .idle_ms = FG_LIMIT_HTTP_IDLE_MS,
        .stall_ms = FG_LIMIT_STREAM_STALL_MS,
    };
    *limits = given != NULL ? *given : defaults;
#define USE_DEFAULT(name) limits->name = limits->name == 0 ? defaults.name : limits->name
    USE_DEFAULT(header_bytes);
    USE_DEFAULT(header_count);
    USE_DEFAULT(body_bytes);
    USE_DEFAULT(connections);
    USE_DEFAULT(stream_bytes);
    USE_DEFAULT(unread_bytes);
    USE_DEFAULT(header_ms);
    USE_DEFAULT(body_ms);
    USE_DEFAULT(idle_ms);
    USE_DEFAULT(stall_ms);
#undef USE_DEFAULT
}

/* Of the descriptors that are left a quarter is for others: workers, links, files. */
static void fit_descriptors(fg_http_shared *shared)
{
    uint32_t limit, left = fg_descriptors_free(&limit);
    size_t wanted = shared->limits.connections, room = left - left / 4;
    shared->refusals_max = left / 8 < REFUSALS_MAX ? left / 8 : REFUSALS_MAX;
    if (wanted + shared->refusals_max <= room) {
        return;
    }
    shared->limits.connections =
        room > shared->refusals_max ? room - shared->refusals_max : 1; /* to say that it is so */
    fg_warn(
        "http",
        "event=few_descriptors limit=%u connections=%zu wanted=%zu why=\"raise the limit: ulimit "
        "-Hn, or LimitNOFILE= of systemd\"",
        limit, shared->limits.connections, wanted);
}

static fg_http_server *make_server(fg_loop *loop, const fg_http_limits *limits,
                                   const fg_http_handler *handler)
{
    fg_http_server *server = fg_mem_alloc(sizeof *server);
    if (server == NULL) {
        return NULL;
    }
    fg_http_shared *shared = &server->shared;
    shared->loop = loop;
    shared->handler = *handler;
    shared->released = free_server;
    apply_limits(&shared->limits, limits);
    fit_descriptors(shared);
    shared->read_buffer = fg_mem_alloc(READ_BUFFER_BYTES);
    shared->reserve = fg_http_conn_reserve();
    fg_buf_init(&shared->scratch, 0);
    if (shared->read_buffer == NULL || shared->reserve == NULL) {
        free_server(shared);
        return NULL;
    }
    return server;
}

fg_status fg_http_listen(fg_loop *loop, const char *host, uint16_t port,
                         const fg_http_limits *limits, const fg_http_handler *handler,
                         fg_http_server **server_out, fg_error *err)
{
    struct sockaddr_storage address = { 0 };
    /* libuv has cut longer names and so resolved another host (CVE-2024-24806). */
    if (strlen(host) > HOST_NAME_MAX_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "http: host name is longer than %d bytes",
                       HOST_NAME_MAX_BYTES);
    }
    int rc = resolve(fg_loop_native(loop), host, port, &address);
    if (rc != 0) {
        return listen_failed(rc, host, port, err);
    }
    fg_http_server *server = make_server(loop, limits, handler);
    if (server == NULL) {
        return fg_fail(err, FG_AGAIN, "http: out of memory");
    }
    uv_tcp_init(fg_loop_native(loop), &server->listener);
    server->listener.data = server;
    server->listening = true;
    server->shared.open_count = 1;
    rc = bind_and_listen(server, &address);
    if (rc != 0) {
        stop_listening(server);
        return listen_failed(rc, host, port, err);
    }
    *server_out = server;
    return FG_OK;
}

uint16_t fg_http_port(const fg_http_server *server)
{
    return server->port;
}

void fg_http_drain(fg_http_server *server)
{
    server->shared.draining = true;
    /* The server stays until fg_http_close, whoever closes first. */
    if (server->listening) {
        server->shared.open_count++;
        stop_listening(server);
    }
    fg_http_conn_drain(&server->shared);
}

void fg_http_close(fg_http_server *server)
{
    if (server == NULL) {
        return;
    }
    bool drained = !server->listening;
    stop_listening(server);
    fg_http_conn_close_all(&server->shared);
    if (drained) {
        fg_http_shared_unref(&server->shared);
    }
}

uint32_t fg_http_exchange_count(const fg_http_server *server)
{
    return server->shared.exchange_count;
}

uint64_t fg_http_refused_count(const fg_http_server *server)
{
    return server->shared.refused_count;
}
