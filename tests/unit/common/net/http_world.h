/*
 * http_world - a server, its handler and raw clients on one loop and one thread, for the tests of http.
 * Each test program includes it once.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_NET_HTTP_WORLD_H
#define FORGE_TESTS_UNIT_COMMON_NET_HTTP_WORLD_H

#include "tests/support/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/net/http.h"
#include "common/net/http_parse.h"
#include "common/net/loop.h"

enum { DEADLINE_MS = 10000 };

/* Pieces of requests. */
#define H       "Host: x\r\n"
#define POST    "POST /echo HTTP/1.1\r\n" H
#define GET     "GET / HTTP/1.1\r\n" H
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"
#define MIB     (1024 * 1024)

typedef struct world {
    fg_loop *loop;
    fg_timer *tick; /* so that a turn of the loop never waits for ever */
    fg_http_server *server;
    fg_http_exchange *pending;      /* of "/later" and "/stream" */
    const fg_http_request *request; /* of "/later" */
    size_t body_bytes;              /* that it had when it came */
    int requests, gone;
    int refused, refused_status; /* how often, and the last one */
    int unwanted;                /* bodies */
    uint64_t started_ms;
} world;

__attribute__((unused)) static void on_tick(void *ctx)
{
}

__attribute__((unused)) static uint64_t now_ms(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ms(&clock);
}

__attribute__((unused)) static void on_request(void *ctx, fg_http_exchange *exchange,
                                               const fg_http_request *request)
{
    world *w = ctx;
    char text[512];
    w->requests++;
    if (strcmp(request->path, "/later") == 0) {
        w->pending = exchange;
        w->request = request;
        w->body_bytes = request->body_bytes;
        return;
    }
    if (strcmp(request->path, "/stream") == 0) {
        w->pending = exchange;
        fg_http_stream_begin(exchange, 200, "text/event-stream");
        return;
    }
    const char *probe = fg_http_header(exchange, "x-probe");
    snprintf(text, sizeof text, "%s %s?%s [%.*s] %s", request->method, request->path,
             request->query, (int)(request->body_bytes > 100 ? 100 : request->body_bytes),
             request->body, probe == NULL ? "-" : probe);
    fg_http_add_header(exchange, "X-Echo", "a\r\nb");
    fg_http_reply(exchange, 200, "text/plain", text, strlen(text));
}

/* Bodies of "/echo" are wanted from whoever says "Bearer yes". */
__attribute__((unused)) static bool wants_body(void *ctx, const fg_http_request *request,
                                               const char *authorization)
{
    world *w = ctx;
    bool wanted = strcmp(request->path, "/echo") != 0 ||
                  (authorization != NULL && strcmp(authorization, "Bearer yes") == 0);
    w->unwanted += !wanted;
    return wanted;
}

__attribute__((unused)) static void on_gone(void *ctx, fg_http_exchange *exchange)
{
    world *w = ctx;
    w->gone++;
    if (w->pending == exchange) {
        w->pending = NULL;
    }
}

__attribute__((unused)) static void on_refused(void *ctx, int status)
{
    world *w = ctx;
    w->refused++;
    w->refused_status = status;
}

__attribute__((unused)) static void open_choosy_world(world *w, const fg_http_limits *limits,
                                                      bool choosy)
{
    fg_error err;
    *w = (world){ 0 };
    fg_http_handler handler = { .on_request = on_request,
                                .wants_body = choosy ? wants_body : NULL,
                                .on_gone = on_gone,
                                .on_refused = on_refused,
                                .ctx = w };
    cr_assert_eq(fg_loop_create(&w->loop, &err), FG_OK);
    cr_assert_eq(fg_timer_start(w->loop, 2, 2, on_tick, NULL, &w->tick), FG_OK);
    fg_status status = fg_http_listen(w->loop, "127.0.0.1", 0, limits, &handler, &w->server, &err);
    cr_assert_eq(status, FG_OK, "%s", err.text);
    w->started_ms = now_ms();
}

__attribute__((unused)) static void open_world(world *w, const fg_http_limits *limits)
{
    open_choosy_world(w, limits, false);
}

__attribute__((unused)) static void close_world(world *w)
{
    fg_http_close(w->server);
    fg_timer_close(w->tick);
    fg_loop_destroy(w->loop);
}

__attribute__((unused)) static void turn(world *w)
{
    fg_loop_run_once(w->loop, true);
    cr_assert(now_ms() - w->started_ms < DEADLINE_MS, "no end within the deadline");
}

__attribute__((unused)) static int dial(const world *w)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(fg_http_port(w->server)) };
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert(fd >= 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Sends all, running the server while the socket is full. */
__attribute__((unused)) static void put(world *w, int fd, const char *bytes, size_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t count = send(fd, bytes, size_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            return; /* refused before the end */
        }
        if (count > 0) {
            bytes += count;
            size_bytes -= (size_t)count;
        } else {
            turn(w);
        }
    }
}

__attribute__((unused)) static void puts_all(world *w, int fd, const char *text)
{
    put(w, fd, text, strlen(text));
}

/* Takes what is there. False at the end of the connection. */
__attribute__((unused)) static bool take(int fd, fg_buf *out)
{
    char bytes[16384];
    ssize_t count;
    while ((count = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
        fg_buf_append(out, bytes, (size_t)count);
    }
    return count != 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

__attribute__((unused)) static void read_until(world *w, int fd, fg_buf *out, const char *text)
{
    while (out->data == NULL || strstr(out->data, text) == NULL) {
        bool open = take(fd, out);
        bool found = out->data != NULL && strstr(out->data, text) != NULL;
        cr_assert(open || found, "closed without '%s': %s", text,
                  out->data != NULL ? out->data : "");
        if (!found) {
            turn(w);
        }
    }
}

__attribute__((unused)) static void read_to_end(world *w, int fd, fg_buf *out)
{
    while (take(fd, out)) {
        turn(w);
    }
}

__attribute__((unused)) static int count_text(const char *haystack, const char *needle)
{
    /* Not strstr: under ASan each call reads megabytes to their end. */
    int count = 0;
    size_t length = strlen(needle);
    const char *end = haystack == NULL ? NULL : haystack + strlen(haystack);
    for (const char *at = haystack;
         at != NULL && (at = memmem(at, (size_t)(end - at), needle, length)) != NULL;
         at += length) {
        count++;
    }
    return count;
}

__attribute__((unused)) static int status_of(const fg_buf *reply)
{
    int status = 0;
    return reply->data != NULL && sscanf(reply->data, "HTTP/1.1 %d ", &status) == 1 ? status : 0;
}

#endif
