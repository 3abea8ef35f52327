/* The HTTP front over real loopback sockets: event streams, slow, silent and vanishing clients, drain,
 * and failures from inside. */
#include "tests/unit/common/net/http_world.h"

/* --- streams --- */

Test(http, stream_is_chunked_and_the_connection_goes_on)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, "GET /stream HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    fg_http_set_user(w.pending, &w);
    cr_assert_eq(fg_http_user(w.pending), &w);
    cr_assert_eq(fg_http_stream_write(w.pending, "data: 1\n\n", 9), FG_OK);
    cr_assert_eq(fg_http_stream_write(w.pending, "", 0), FG_OK);
    cr_assert_eq(fg_http_stream_write(w.pending, "data: 2\n\n", 9), FG_OK);
    fg_http_stream_end(w.pending);
    puts_all(&w, fd, "GET /after HTTP/1.1\r\n" H "\r\n");
    read_until(&w, fd, &reply, "GET /after");
    cr_assert_not_null(strstr(reply.data, "Transfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n"
                                          "9\r\ndata: 2\n\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"),
                       "%s", reply.data);
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

/* Writes until the server says FG_AGAIN; returns how many events were taken. */
static size_t fill_stream(world *w, const char *event, size_t size_bytes)
{
    size_t count = 0;
    for (;;) {
        fg_status status = fg_http_stream_write(w->pending, event, size_bytes);
        if (status == FG_AGAIN) {
            return count;
        }
        cr_assert_eq(status, FG_OK);
        count++;
        cr_assert(count < 100000, "nothing bounds the stream");
    }
}

Test(http, slow_reader_gets_everything_and_a_full_queue_is_said)
{
    world w;
    fg_buf reply;
    fg_http_limits limits = { .stream_bytes = 64 * 1024 };
    open_world(&w, &limits);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, "GET /stream HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    char event[1024];
    memset(event, 'e', sizeof event);
    memcpy(event, "data:", 5);
    size_t count = fill_stream(&w, event, sizeof event);
    cr_assert(fg_http_stream_queued(w.pending) <= 64 * 1024 + 16);
    cr_assert(fg_http_stream_queued(w.pending) > 62 * 1024);
    /* A reader that wakes up makes room again. */
    for (int round = 0; round < 3; round++) {
        while (fg_http_stream_queued(w.pending) > 0) {
            cr_assert(take(fd, &reply));
            turn(&w);
        }
        count += fill_stream(&w, event, sizeof event);
    }
    fg_http_stream_end(w.pending);
    read_to_end(&w, fd, &reply);
    cr_assert_eq((size_t)count_text(reply.data, "data:"), count);
    cr_assert_str_eq(reply.data + reply.size - 7, "\r\n0\r\n\r\n");
    cr_assert_eq(w.gone, 0);
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, stalled_reader_is_cut_and_others_are_not)
{
    world w;
    fg_buf reply;
    fg_http_limits limits = { .stream_bytes = 64 * 1024, .stall_ms = 50 };
    open_world(&w, &limits);
    fg_buf_init(&reply, 0);
    int stalled = dial(&w);
    puts_all(&w, stalled, "GET /stream HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    char event[1024] = { 0 };
    fill_stream(&w, event, sizeof event);
    while (w.gone == 0) {
        int fd = dial(&w);
        puts_all(&w, fd, GET "\r\n");
        fg_buf_clear(&reply);
        read_until(&w, fd, &reply, "GET /?");
        close(fd);
    }
    cr_assert_null(w.pending);
    cr_assert_eq(fg_http_exchange_count(w.server), 0);
    /* A whole reply that nobody reads is cut too, though its exchange has ended. */
    int unread = dial(&w);
    puts_all(&w, unread, "GET /later HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    size_t large = 32 * MIB;
    char *body = calloc(1, large);
    fg_http_reply(w.pending, 200, "text/plain", body, large);
    uint64_t start_ms = now_ms();
    while (now_ms() - start_ms < 200) {
        turn(&w);
    }
    fg_buf_clear(&reply);
    while (take(unread, &reply)) {
        turn(&w);
    }
    cr_assert(reply.size < large);
    cr_assert_eq(w.gone, 1, "its exchange had ended");
    free(body);
    close(unread);
    close(stalled);
    fg_buf_deinit(&reply);
    close_world(&w);
}

/* A reply of `large` bytes to whoever reads nothing. */
static int leave_unread(world *w, const char *body, size_t large)
{
    int fd = dial(w);
    w->pending = NULL;
    puts_all(w, fd, "GET /later HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    while (w->pending == NULL) {
        turn(w);
    }
    fg_http_reply(w->pending, 200, "text/plain", body, large);
    return fd;
}

Test(http, replies_that_nobody_reads_are_limited_together)
{
    enum { CLIENTS = 8, LARGE = 16 * MIB };
    world w;
    fg_buf reply;
    int fds[CLIENTS], whole = 0;
    char *body = calloc(1, LARGE);
    fg_http_limits limits = { .unread_bytes = 4 * LARGE };
    open_world(&w, &limits);
    fg_buf_init(&reply, 0);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = leave_unread(&w, body, LARGE);
    }
    for (int i = 0; i < CLIENTS; i++) {
        fg_buf_clear(&reply);
        while (take(fds[i], &reply)) {
            turn(&w);
        }
        whole += reply.size > LARGE;
        close(fds[i]);
    }
    cr_assert(whole >= 2 && whole <= 6, "%d of %d are whole", whole, CLIENTS);
    /* There is room again, for as many. */
    int again = leave_unread(&w, body, LARGE);
    fg_buf_clear(&reply);
    while (take(again, &reply)) {
        turn(&w);
    }
    cr_assert_gt(reply.size, (size_t)LARGE);
    close(again);
    free(body);
    fg_buf_deinit(&reply);
    close_world(&w);
}

/* --- clients that leave --- */

Test(http, leaving_client_is_noticed_while_its_reply_is_pending)
{
    static const struct {
        const char *name, *request;
        bool half; /* closes only its sending side */
    } cases[] = {
        { "before the reply", "GET /later HTTP/1.1\r\n" H "\r\n", false },
        { "half closed", "GET /later HTTP/1.1\r\n" H "\r\n", true },
        { "in a stream", "GET /stream HTTP/1.1\r\n" H "\r\n", false },
        { "with a request waiting", "GET /later HTTP/1.1\r\n" H "\r\n" GET "\r\n", false },
    };
    world w;
    open_world(&w, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        w.gone = 0;
        w.requests = 0;
        int fd = dial(&w);
        puts_all(&w, fd, cases[i].request);
        while (w.pending == NULL) {
            turn(&w);
        }
        if (cases[i].half) {
            shutdown(fd, SHUT_WR);
        } else {
            close(fd);
        }
        while (w.gone == 0) {
            turn(&w);
        }
        cr_assert_null(w.pending, "%s", cases[i].name);
        cr_assert_eq(w.requests, 1, "%s", cases[i].name);
        if (cases[i].half) {
            close(fd);
        }
    }
    cr_assert_eq(fg_http_exchange_count(w.server), 0);
    close_world(&w);
}

Test(http, a_request_that_waits_for_its_reply_holds_no_body)
{
    world w;
    open_world(&w, NULL);
    int fd = dial(&w);
    puts_all(&w, fd, "POST /later HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello");
    while (w.pending == NULL) {
        turn(&w);
    }
    cr_assert(w.body_bytes == 5 && w.request->body_bytes == 0);
    cr_assert_str_eq(w.request->path, "/later", "all else is still there");
    close(fd);
    close_world(&w);
}

Test(http, half_closing_client_gets_a_reply_that_was_ready)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, GET "\r\n");
    shutdown(fd, SHUT_WR);
    read_to_end(&w, fd, &reply);
    cr_assert_eq(status_of(&reply), 200);
    cr_assert_not_null(strstr(reply.data, "GET /? []"));
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, write_to_a_lost_client_says_so_and_then_on_gone)
{
    world w;
    open_world(&w, NULL);
    int fd = dial(&w);
    puts_all(&w, fd, "GET /stream HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    struct linger hard = { 1, 0 };
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
    /* Without a turn of the loop between, only the write can notice. */
    fg_status status = FG_OK;
    for (int i = 0; i < 3 && status == FG_OK; i++) {
        status = fg_http_stream_write(w.pending, "x", 1);
    }
    cr_assert_eq(status, FG_CANCELLED);
    cr_assert_eq(w.gone, 0, "never from inside a call");
    while (w.gone == 0) {
        turn(&w);
    }
    close_world(&w);
}

/* --- the server's own end, and its limits --- */

Test(http, drain_lets_the_busy_finish)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int idle = dial(&w);
    int busy = dial(&w);
    puts_all(&w, busy, "GET /later HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    fg_http_drain(w.server);
    read_to_end(&w, idle, &reply);
    cr_assert_eq(reply.size, 0);
    fg_http_reply(w.pending, 200, "text/plain", "bye", 3);
    read_to_end(&w, busy, &reply);
    cr_assert_not_null(strstr(reply.data, "Connection: close\r\n"));
    cr_assert_not_null(strstr(reply.data, "bye"));
    close(idle);
    close(busy);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, close_in_the_middle_leaves_nothing)
{
    world w;
    open_world(&w, NULL);
    int fds[4];
    static const char *const requests[] = { "", "GET / HT", "GET /later HTTP/1.1\r\n" H "\r\n",
                                            POST "Content-Length: 9\r\n\r\nabc" };
    for (int i = 0; i < 4; i++) {
        fds[i] = dial(&w);
        puts_all(&w, fds[i], requests[i]);
    }
    while (w.pending == NULL) {
        turn(&w);
    }
    close_world(&w);
    cr_assert_eq(w.gone, 0);
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
}

Test(http, too_many_connections_are_refused_politely)
{
    world w;
    fg_buf reply;
    fg_http_limits limits = { .connections = 2 };
    open_world(&w, &limits);
    fg_buf_init(&reply, 0);
    int first = dial(&w);
    int second = dial(&w);
    int third = dial(&w);
    puts_all(&w, third, GET "\r\n");
    read_to_end(&w, third, &reply);
    cr_assert_eq(status_of(&reply), 503);
    cr_assert_eq(w.requests, 0);
    /* Room again when one has left. */
    close(third);
    close(second);
    int status = 503;
    while (status == 503) {
        int fd = dial(&w);
        puts_all(&w, fd, GET "\r\n");
        fg_buf_clear(&reply);
        read_until(&w, fd, &reply, "\r\n\r\n");
        status = status_of(&reply);
        close(fd);
        turn(&w);
    }
    cr_assert_eq(status, 200);
    close(first);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, few_descriptors_are_few_connections_and_who_is_refused_is_counted)
{
    enum { FEW = 40 };
    world w;
    fg_buf reply;
    struct rlimit before, few;
    int fds[FEW];
    fg_buf_init(&reply, 0);
    int lowest = dup(0);
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = (rlim_t)lowest + FEW;
    setrlimit(RLIMIT_NOFILE, &few);
    open_world(&w, NULL);
    setrlimit(RLIMIT_NOFILE, &before);
    for (int i = 0; i < FEW; i++) {
        fds[i] = dial(&w);
    }
    while (fg_http_refused_count(w.server) < FEW / 4) {
        turn(&w);
    }
    puts_all(&w, fds[0], GET "\r\n");
    read_until(&w, fds[0], &reply, "GET /?");
    read_to_end(&w, fds[FEW - 1], &reply);
    for (int i = 0; i < FEW; i++) {
        close(fds[i]);
    }
    close(lowest);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, out_of_descriptors_is_survived)
{
    world w;
    fg_buf reply;
    struct rlimit before, few;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int lost = dial(&w);
    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = (rlim_t)lost + 1; /* every descriptor up to this one is taken */
    setrlimit(RLIMIT_NOFILE, &few);
    while (take(lost, &reply)) {
        turn(&w); /* accepted with the spare descriptor and closed: the loop does not spin on it */
    }
    setrlimit(RLIMIT_NOFILE, &before);
    close(lost);
    int fd = dial(&w);
    puts_all(&w, fd, GET "\r\n");
    read_until(&w, fd, &reply, "GET /?");
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, bad_listen_addresses_are_explained)
{
    fg_loop *loop;
    fg_http_server *server;
    fg_error err;
    fg_http_handler handler = { .on_request = on_request, .on_gone = on_gone };
    char long_host[300];
    memset(long_host, '1', sizeof long_host - 1);
    long_host[sizeof long_host - 1] = '\0';
    const char *hosts[] = { long_host, "256.1.1.1", "192.0.2.1", "no such host" };
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        err.text[0] = '\0';
        cr_assert_eq(fg_http_listen(loop, hosts[i], 0, NULL, &handler, &server, &err), FG_BAD_INPUT,
                     "%s", hosts[i]);
        cr_assert_neq(err.text[0], '\0');
    }
    fg_loop_destroy(loop);
}

/* --- allocations that fail --- */

static bool try_listen(void *ctx)
{
    world *w = ctx;
    fg_error err;
    fg_http_handler handler = { .on_request = on_request, .on_gone = on_gone, .ctx = w };
    fg_http_server *server;
    if (fg_http_listen(w->loop, "127.0.0.1", 0, NULL, &handler, &server, &err) != FG_OK) {
        return false;
    }
    fg_http_close(server);
    return true;
}

Test(http, listen_survives_every_failure)
{
    world w = { 0 };
    fg_error err;
    cr_assert_eq(fg_loop_create(&w.loop, &err), FG_OK);
    int faults = fg_fault_each(try_listen, &w);
    cr_assert(faults >= 5, "%d", faults);
    fg_loop_destroy(w.loop);
}

/* A request under which the n-th allocation fails is answered or cut, never left hanging. */
Test(http, request_survives_every_failed_allocation)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    bool fired = true;
    int nth = 1;
    for (; fired; nth++) {
        int fd = dial(&w);
        fg_buf_reserve(&reply, 4096); /* ours must not be the one that fails */
        fg_buf_clear(&reply);
        fg_fault_arm((uint64_t)nth);
        puts_all(&w, fd, CHUNKED "3\r\nabc\r\n0\r\n\r\n");
        while (take(fd, &reply) && strstr(reply.data, "\r\n\r\n") == NULL) {
            turn(&w);
        }
        fired = fg_fault_fired();
        fg_fault_arm(0);
        int status = status_of(&reply);
        cr_assert(status == 0 || status == 200 || status == 503, "%d: %d", nth, status);
        cr_assert(fired || status == 200);
        close(fd);
    }
    cr_assert(nth > 5, "%d", nth);
    fg_buf_deinit(&reply);
    close_world(&w);
}
