/* The bus over ZeroMQ: real sockets, raw hostile peers included. */
#include "tests/support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/net/bus.h"
#include "common/net/loop.h"
#include "tests/unit/common/net/bus_end.h"

#ifdef FG_TEST_PLAIN
/* ThreadSanitizer: libzmq's strings live in libstdc++, as little instrumented as itself and used by nobody
 * else here; and the peers that die open a bus, with threads, after their fork. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_options(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libstdc++.so\n";
}
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}
#endif

/* The deadline ends a test that would wait for ever, and no more: one of them waits 5 s for heartbeats, and a
 * busy machine may take several times as long over everything. */
enum { DEADLINE_MS = 60000 };

/* --- a loop with a tick --- */

typedef struct world {
    fg_loop *loop;
    fg_timer *tick;
    uint64_t started_ms;
    end server;
    end clients[PEERS];
    char directory[64];
} world;

static void on_tick(void *ctx)
{
}

static uint64_t now_ms(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ms(&clock);
}

static void open_world(world *w, const char *endpoint)
{
    fg_error err;
    memset(w, 0, sizeof *w);
    cr_assert_eq(fg_loop_create(&w->loop, &err), FG_OK);
    cr_assert_eq(fg_timer_start(w->loop, 2, 2, on_tick, NULL, &w->tick), FG_OK);
    fg_bus_events events = events_of(&w->server);
    fg_status status = fg_bus_listen_zmq(w->loop, endpoint, &events, &w->server.bus, &err);
    cr_assert_eq(status, FG_OK, "%s", err.text);
    w->started_ms = now_ms();
}

static void join(world *w, int index, const char *identity)
{
    fg_error err;
    fg_bus_events events = events_of(&w->clients[index]);
    fg_status status = fg_bus_connect_zmq(w->loop, fg_bus_endpoint(w->server.bus), identity,
                                          &events, &w->clients[index].bus, &err);
    cr_assert_eq(status, FG_OK, "%s", err.text);
}

static void close_world(world *w)
{
    for (int i = 0; i < PEERS; i++) {
        fg_bus_close(w->clients[i].bus);
    }
    fg_bus_close(w->server.bus);
    fg_timer_close(w->tick);
    fg_loop_destroy(w->loop);
}

static void turn(world *w)
{
    fg_loop_run_once(w->loop, true);
    cr_assert(now_ms() - w->started_ms < DEADLINE_MS, "no end within the deadline");
}

#define WAIT(w, condition)                                                                         \
    do {                                                                                           \
        while (!(condition)) {                                                                     \
            turn(w);                                                                               \
        }                                                                                          \
    } while (0)

static void talk_both_ways(const char *endpoint)
{
    world w;
    open_world(&w, endpoint);
    w.server.echo = true;
    join(&w, 0, "decode-1#7");
    WAIT(&w, w.clients[0].up == 1);
    cr_assert_eq(w.server.up, 0, "the server hears of a peer with its first frame");
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "hello", 5), FG_OK);
    WAIT(&w, w.clients[0].frames == 1);
    cr_assert_eq(w.server.up, 1);
    cr_assert_str_eq(w.server.identity, "decode-1#7");
    cr_assert_str_eq(w.clients[0].text, "hello");
    cr_assert_eq(fg_bus_dropped(w.server.bus), 0);
    close_world(&w);
}

Test(bus_zmq, frames_go_both_ways_over_tcp)
{
    talk_both_ways("tcp://127.0.0.1:*");
}

Test(bus_zmq, frames_go_both_ways_over_ipc)
{
    char directory[] = "/tmp/forge-bus-XXXXXX", endpoint[96], path[96];
    cr_assert_not_null(mkdtemp(directory));
    snprintf(endpoint, sizeof endpoint, "ipc://%s/bus", directory);
    talk_both_ways(endpoint);
    snprintf(path, sizeof path, "%s/bus", directory);
    unlink(path);
    cr_assert_eq(rmdir(directory), 0);
}

Test(bus_zmq, sends_are_checked)
{
    world w;
    open_world(&w, "tcp://127.0.0.1:*");
    join(&w, 0, "a#1");
    static char large[FG_LIMIT_FRAME_BYTES + 1];
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "", 0), FG_BAD_INPUT);
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, large, sizeof large), FG_BAD_INPUT);
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 1, "x", 1), FG_PEER_LOST);
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "x", 1), FG_PEER_LOST);
    cr_assert_eq(fg_bus_send(w.server.bus, FG_LIMIT_WORKERS, "x", 1), FG_PEER_LOST);
    /* The largest frame passes. */
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, large, FG_LIMIT_FRAME_BYTES), FG_OK);
    WAIT(&w, w.server.frames == 1);
    cr_assert_eq(w.server.last_size, FG_LIMIT_FRAME_BYTES);
    close_world(&w);
}

/* --- the edge-trigger trap --- */

enum { BURST = 100000 };

typedef struct burst {
    char endpoint[128];
    int count;
} burst;

/* A client on a thread and loop of its own, sending as fast as its queue takes. */
static void *send_burst(void *ctx)
{
    const burst *b = ctx;
    fg_loop *loop = NULL;
    fg_timer *tick = NULL;
    fg_error err;
    end e = { 0 };
    fg_bus_events events = events_of(&e);
    if (fg_loop_create(&loop, &err) != FG_OK ||
        fg_timer_start(loop, 1, 1, on_tick, NULL, &tick) != FG_OK ||
        fg_bus_connect_zmq(loop, b->endpoint, "burst#1", &events, &e.bus, &err) != FG_OK) {
        return NULL;
    }
    for (uint32_t i = 0; i < (uint32_t)b->count;) {
        if (fg_bus_send(e.bus, 0, &i, sizeof i) == FG_OK) {
            i++;
        } else {
            fg_loop_run_once(loop, true);
        }
    }
    while (e.frames == 0) { /* the server's word that it has them all */
        fg_loop_run_once(loop, true);
    }
    fg_bus_close(e.bus);
    fg_timer_close(tick);
    fg_loop_destroy(loop);
    return NULL;
}

Test(bus_zmq, burst_of_100000_arrives_whole_and_in_order)
{
    world w;
    pthread_t thread;
    burst b = { .count = BURST };
    open_world(&w, "tcp://127.0.0.1:*");
    /* No tick on this side: a hint that is lost stalls the test. */
    fg_timer_close(w.tick);
    cr_assert_eq(fg_timer_start(w.loop, DEADLINE_MS, 0, on_tick, NULL, &w.tick), FG_OK);
    snprintf(b.endpoint, sizeof b.endpoint, "%s", fg_bus_endpoint(w.server.bus));
    cr_assert_eq(pthread_create(&thread, NULL, send_burst, &b), 0);
    w.started_ms = now_ms();
    WAIT(&w, w.server.frames == BURST);
    cr_log_info("%d frames in %d ms", BURST, (int)(now_ms() - w.started_ms));
    cr_assert(w.server.in_order);
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "all", 3), FG_OK);
    pthread_join(thread, NULL);
    close_world(&w);
}

/* --- peers that stall and die --- */

/* What a child process does: it sends `frames` frames as a client, then leaves, or stays and never reads. */
typedef struct order {
    char endpoint[128], identity[32];
    int frames;
    bool leaves;
} order;

typedef struct child {
    pid_t pid;
    int orders;    /* the writing end of its pipe */
    int connected; /* the reading end of another: a byte comes once the server has accepted it */
} child;

static void obey(const order *o, int connected)
{
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_DEALER);
    void *monitor = zmq_socket(context, ZMQ_PAIR);
    zmq_socket_monitor(socket, "inproc://events", ZMQ_EVENT_HANDSHAKE_SUCCEEDED);
    zmq_connect(monitor, "inproc://events");
    zmq_setsockopt(socket, ZMQ_ROUTING_ID, o->identity, strlen(o->identity));
    int few = 10;
    zmq_setsockopt(socket, ZMQ_RCVHWM, &few, sizeof few);
    zmq_connect(socket, o->endpoint);
    for (int i = 0; i < o->frames; i++) {
        zmq_send(socket, "ready", 5, 0);
    }
    char event[8];
    if (o->leaves) {
        zmq_close(monitor);
        zmq_close(socket);
        zmq_ctx_term(context); /* waits until all is sent */
        _exit(0);
    }
    if (zmq_recv(monitor, event, sizeof event, 0) > 0 && write(connected, "", 1) != 1) {
        _exit(1);
    }
}

/* Before this process opens a bus: a child inherits whatever lock one of ZeroMQ's threads holds at the
 * fork, an allocator's for instance, and nobody who would release it. It gets its order later, and it ends
 * with its parent, or a test that fails would leave it behind with the test's output open. */
static child make_child(void)
{
    int ends[2], news[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(pipe(news), 0);
    pid_t parent = getpid();
    child c = { .pid = fork(), .orders = ends[1], .connected = news[0] };
    cr_assert(c.pid >= 0);
    if (c.pid > 0) {
        close(ends[0]);
        close(news[1]);
        return c;
    }
    order o;
    close(ends[1]);
    close(news[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || read(ends[0], &o, sizeof o) != (ssize_t)sizeof o) {
        _exit(1);
    }
    obey(&o, news[1]);
    for (;;) {
        pause();
    }
}

static void start_child(const child *c, const char *endpoint, const char *identity, int frames,
                        bool leaves)
{
    order o = { .frames = frames, .leaves = leaves };
    snprintf(o.endpoint, sizeof o.endpoint, "%s", endpoint);
    snprintf(o.identity, sizeof o.identity, "%s", identity);
    cr_assert_eq(write(c->orders, &o, sizeof o), (ssize_t)sizeof o);
}

static void await_end(const child *c)
{
    int status;
    waitpid(c->pid, &status, 0);
    close(c->orders);
    close(c->connected);
}

static void reap(const child *c)
{
    kill(c->pid, SIGKILL);
    await_end(c);
}

Test(bus_zmq, killed_peer_is_noticed_at_once_and_its_frames_come_first)
{
    world w;
    child victim = make_child(), next = make_child();
    open_world(&w, "tcp://127.0.0.1:*");
    start_child(&victim, fg_bus_endpoint(w.server.bus), "victim#1", 1000, false);
    WAIT(&w, w.server.up == 1);
    /* Most of its frames are still under way when it dies. */
    WAIT(&w, w.server.frames > 0);
    size_t before = w.server.frames;
    reap(&victim);
    uint64_t killed_ms = now_ms();
    WAIT(&w, w.server.down == 1);
    cr_log_info("noticed after %d ms", (int)(now_ms() - killed_ms));
    cr_assert(w.server.frames >= before);
    size_t frames = w.server.frames;
    for (int i = 0; i < 20; i++) {
        turn(&w);
    }
    cr_assert_eq(w.server.frames, frames, "nothing comes after on_down");
    cr_assert_eq(w.server.up, 1);
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "x", 1), FG_PEER_LOST);
    /* Its handle is free for the next. */
    start_child(&next, fg_bus_endpoint(w.server.bus), "victim#2", 1, false);
    WAIT(&w, w.server.up == 2);
    cr_assert_eq(w.server.last_peer, 0);
    reap(&next);
    close_world(&w);
}

Test(bus_zmq, last_frames_of_the_dead_come_before_on_down)
{
    world w;
    child hasty[3] = { make_child(), make_child(), make_child() };
    open_world(&w, "tcp://127.0.0.1:*");
    /* The loop does not run before all of them have sent everything and are gone, so that their ends are
     * known before their first frames are read. */
    for (int i = 0; i < 3; i++) {
        char identity[16];
        snprintf(identity, sizeof identity, "hasty#%d", i);
        start_child(&hasty[i], fg_bus_endpoint(w.server.bus), identity, 2000, true);
        await_end(&hasty[i]);
    }
    WAIT(&w, w.server.down == 3);
    cr_assert_eq(w.server.frames, 6000);
    cr_assert_eq(w.server.up, 3);
    for (int i = 0; i < 20; i++) {
        turn(&w);
    }
    cr_assert_eq(w.server.frames, 6000);
    close_world(&w);
}

Test(bus_zmq, stalled_peer_fills_its_own_queue_only)
{
    world w;
    child stalled = make_child();
    open_world(&w, "tcp://127.0.0.1:*");
    start_child(&stalled, fg_bus_endpoint(w.server.bus), "deaf#1", 1, false);
    WAIT(&w, w.server.frames == 1);
    uint32_t deaf = w.server.last_peer;
    join(&w, 0, "good#1");
    WAIT(&w, w.clients[0].up == 1);
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "hi", 2), FG_OK);
    WAIT(&w, w.server.frames == 2);
    uint32_t good = w.server.last_peer;
    static char bytes[16384];
    int sent = 0;
    fg_status status = FG_OK;
    while (status == FG_OK) {
        status = fg_bus_send(w.server.bus, deaf, bytes, sizeof bytes);
        sent += status == FG_OK;
        cr_assert(sent < 1000000, "nothing bounds the queue");
    }
    cr_assert_eq(status, FG_AGAIN);
    cr_assert(sent >= (int)FG_LIMIT_BUS_QUEUE, "%d", sent);
    /* The other one notices nothing. */
    for (size_t i = 1; i <= 100; i++) {
        cr_assert_eq(fg_bus_send(w.server.bus, good, "news", 4), FG_OK);
        WAIT(&w, w.clients[0].frames == i);
    }
    /* Stopped for good, its heartbeats end. */
    kill(stalled.pid, SIGSTOP);
    WAIT(&w, w.server.down == 1);
    cr_assert_eq(w.server.last_peer, deaf);
    reap(&stalled);
    close_world(&w);
}

Test(bus_zmq, dropped_peer_comes_back_as_a_new_one)
{
    world w;
    open_world(&w, "tcp://127.0.0.1:*");
    join(&w, 0, "a#1");
    fg_bus_send(w.clients[0].bus, 0, "1", 1);
    WAIT(&w, w.server.frames == 1);
    fg_bus_drop(w.server.bus, 0);
    fg_bus_drop(w.server.bus, 200);
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "x", 1), FG_PEER_LOST);
    fg_bus_send(w.clients[0].bus, 0, "2", 1);
    WAIT(&w, w.server.frames == 2);
    cr_assert_eq(w.server.up, 2);
    cr_assert_eq(w.server.down, 0);
    close_world(&w);
}

/* The system gives the lowest free number: whoever connects after an end has the number of what ended. */
Test(bus_zmq, connection_with_the_number_of_one_that_ended_is_another_one)
{
    world w;
    child first = make_child(), second = make_child();
    open_world(&w, "tcp://127.0.0.1:*");
    start_child(&first, fg_bus_endpoint(w.server.bus), "first#1", 1, false);
    WAIT(&w, w.server.frames == 1);
    fg_bus_drop(w.server.bus, 0);
    /* The loop stands still from the end of the one until the other is there. No lower number gets free. */
    kill(first.pid, SIGKILL);
    waitpid(first.pid, NULL, 0);
    start_child(&second, fg_bus_endpoint(w.server.bus), "second#1", 1, false);
    char byte;
    cr_assert_eq(read(second.connected, &byte, 1), 1);
    WAIT(&w, w.server.frames == 2);
    for (uint64_t start_ms = now_ms(); now_ms() - start_ms < 50;) {
        turn(&w);
    }
    cr_assert_eq(w.server.up, 2);
    cr_assert_eq(w.server.down, 0, "it is connected");
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "welcome", 7), FG_OK);
    reap(&second);
    WAIT(&w, w.server.down == 1);
    close(first.orders);
    close(first.connected);
    close_world(&w);
}

Test(bus_zmq, client_waits_for_its_server_and_outlives_it)
{
    world w;
    fg_error err;
    char endpoint[128];
    open_world(&w, "tcp://127.0.0.1:*");
    snprintf(endpoint, sizeof endpoint, "%s", fg_bus_endpoint(w.server.bus));
    fg_bus_close(w.server.bus);
    w.server.bus = NULL;
    fg_bus_events client_events = events_of(&w.clients[0]);
    cr_assert_eq(
        fg_bus_connect_zmq(w.loop, endpoint, "a#1", &client_events, &w.clients[0].bus, &err),
        FG_OK);
    /* What is sent before there is a connection waits, up to the limit. */
    uint32_t sent = 0;
    while (fg_bus_send(w.clients[0].bus, 0, &sent, sizeof sent) == FG_OK) {
        sent++;
        cr_assert(sent <= FG_LIMIT_BUS_QUEUE);
    }
    cr_assert(sent >= FG_LIMIT_BUS_QUEUE - 1, "%u", sent);
    fg_bus_events server_events = events_of(&w.server);
    cr_assert_eq(fg_bus_listen_zmq(w.loop, endpoint, &server_events, &w.server.bus, &err), FG_OK,
                 "%s", err.text);
    WAIT(&w, w.server.frames == sent && w.clients[0].up == 1);
    cr_assert(w.server.in_order);
    /* The server goes and comes back. */
    for (int round = 1; round <= 3; round++) {
        fg_bus_close(w.server.bus);
        WAIT(&w, w.clients[0].down == round);
        /* Said to nobody: lost with the connection it was meant for, or kept for the next. */
        cr_assert_eq(fg_bus_listen_zmq(w.loop, endpoint, &server_events, &w.server.bus, &err),
                     FG_OK, "%s", err.text);
        WAIT(&w, w.clients[0].up == round + 1);
        size_t before = w.server.frames;
        fg_bus_send(w.clients[0].bus, 0, "hello again", 11);
        WAIT(&w, w.server.frames == before + 1);
    }
    close_world(&w);
}

Test(bus_zmq, client_that_comes_back_at_once_is_not_left_mute)
{
    world w;
    fg_error err;
    fg_loop *other;
    fg_timer *tick;
    child before = make_child();
    open_world(&w, "tcp://127.0.0.1:*");
    /* While the server's loop stands still, a peer sends, goes away and connects again: the ROUTER still
     * holds the name for what it has not read. */
    start_child(&before, fg_bus_endpoint(w.server.bus), "a#1", 1000, true);
    await_end(&before);
    cr_assert_eq(fg_loop_create(&other, &err), FG_OK);
    cr_assert_eq(fg_timer_start(other, 1, 1, on_tick, NULL, &tick), FG_OK);
    end *client = &w.clients[0];
    fg_bus_events events = events_of(client);
    cr_assert_eq(fg_bus_connect_zmq(other, fg_bus_endpoint(w.server.bus), "a#1", &events,
                                    &client->bus, &err),
                 FG_OK);
    for (uint64_t start_ms = now_ms(); now_ms() - start_ms < 100;) {
        fg_loop_run_once(other, true);
    }
    w.started_ms = now_ms();
    while (client->up == 0) {
        fg_loop_run_once(other, false);
        turn(&w);
    }
    cr_log_info("answered after %d ms", (int)(now_ms() - w.started_ms));
    fg_bus_send(client->bus, 0, "back", 4);
    WAIT(&w, strcmp(w.server.text, "back") == 0);
    cr_assert_eq(w.server.frames, 1001);
    cr_assert_eq(w.server.down, 1);
    cr_assert_eq(w.server.up, 2);
    fg_bus_close(client->bus);
    client->bus = NULL;
    fg_timer_close(tick);
    fg_loop_destroy(other);
    close_world(&w);
}

/* --- hostile peers --- */

typedef struct part {
    const char *bytes;
    size_t size_bytes;
    bool more;
} part;

Test(bus_zmq, malformed_messages_are_dropped_and_counted)
{
    static const struct {
        const char *name, *identity;
        size_t identity_bytes;
        part parts[3];
    } cases[] = {
        { "two parts", "ok#1", 4, { { "a", 1, true }, { "b", 1, false } } },
        { "empty, then body", "ok#2", 4, { { "", 0, true }, { "b", 1, false } } },
        { "three parts", "ok#3", 4, { { "a", 1, true }, { "", 0, true }, { "c", 1, false } } },
        { "identity with space", "a b", 3, { { "a", 1, false } } },
        { "identity with newline", "a\nb", 3, { { "a", 1, false } } },
        { "identity with high byte", "\xC3\xA4", 2, { { "a", 1, false } } },
        { "identity with NUL inside", "a\0b", 3, { { "a", 1, false } } },
        { "identity too long",
          "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
          "890123456",
          97,
          { { "a", 1, false } } },
        { "identity made by the router", "", 0, { { "a", 1, false } } },
    };
    world w;
    open_world(&w, "tcp://127.0.0.1:*");
    void *context = zmq_ctx_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        void *socket = zmq_socket(context, ZMQ_DEALER);
        int none = 0;
        zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
        if (cases[i].identity_bytes > 0) {
            zmq_setsockopt(socket, ZMQ_ROUTING_ID, cases[i].identity, cases[i].identity_bytes);
        }
        cr_assert_eq(zmq_connect(socket, fg_bus_endpoint(w.server.bus)), 0);
        for (int p = 0; p < 3; p++) {
            const part *one = &cases[i].parts[p];
            if (one->bytes != NULL) {
                zmq_send(socket, one->bytes, one->size_bytes, one->more ? ZMQ_SNDMORE : 0);
            }
        }
        WAIT(&w, fg_bus_dropped(w.server.bus) == i + 1);
        zmq_close(socket);
    }
    zmq_ctx_term(context);
    cr_assert_eq(w.server.up, 0);
    cr_assert_eq(w.server.frames, 0);
    /* A good peer is served as before. */
    join(&w, 0, "good#1");
    fg_bus_send(w.clients[0].bus, 0, "hi", 2);
    WAIT(&w, w.server.frames == 1);
    close_world(&w);
}

Test(bus_zmq, oversized_frame_ends_its_connection_only)
{
    world w;
    open_world(&w, "tcp://127.0.0.1:*");
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_DEALER);
    int none = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_ROUTING_ID, "big#1", 5);
    zmq_connect(socket, fg_bus_endpoint(w.server.bus));
    zmq_send(socket, "hi", 2, 0);
    WAIT(&w, w.server.frames == 1);
    char *bytes = calloc(1, FG_LIMIT_FRAME_BYTES + 1);
    zmq_send(socket, bytes, FG_LIMIT_FRAME_BYTES + 1, 0);
    WAIT(&w, w.server.down == 1);
    cr_assert_eq(w.server.frames, 1);
    free(bytes);
    zmq_close(socket);
    zmq_ctx_term(context);
    close_world(&w);
}

Test(bus_zmq, name_of_a_live_peer_cannot_be_taken)
{
    world w;
    open_world(&w, "tcp://127.0.0.1:*");
    join(&w, 0, "owner#1");
    fg_bus_send(w.clients[0].bus, 0, "mine", 4);
    WAIT(&w, w.server.frames == 1);
    join(&w, 1, "owner#1");
    fg_bus_send(w.clients[1].bus, 0, "stolen", 6);
    for (int i = 0; i < 50; i++) {
        turn(&w);
    }
    cr_assert_eq(w.clients[1].up, 0);
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "for the owner", 13), FG_OK);
    WAIT(&w, w.clients[0].frames == 1);
    cr_assert_eq(w.server.up, 1);
    cr_assert_eq(w.server.down, 0);
    cr_assert_str_eq(w.server.text, "mine");
    close_world(&w);
}

Test(bus_zmq, close_is_allowed_in_a_callback)
{
    world w;
    open_world(&w, "tcp://127.0.0.1:*");
    w.server.close_on_frame = true;
    join(&w, 0, "a#1");
    fg_bus_send(w.clients[0].bus, 0, "1", 1);
    fg_bus_send(w.clients[0].bus, 0, "2", 1);
    WAIT(&w, w.server.bus == NULL);
    cr_assert_eq(w.server.frames, 1);
    close_world(&w);
}

Test(bus_zmq, bad_endpoints_and_identities_are_explained)
{
    static const char *const endpoints[] = { "",
                                             "nonsense",
                                             "tcp://",
                                             "tcp://127.0.0.1:99999",
                                             "tcp://192.0.2.1:1",
                                             "ipc:///nowhere/at/all" };
    fg_loop *loop;
    fg_bus *bus;
    fg_error err;
    end e = { 0 };
    fg_bus_events events = events_of(&e);
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
        err.text[0] = '\0';
        cr_assert_eq(fg_bus_listen_zmq(loop, endpoints[i], &events, &bus, &err), FG_BAD_INPUT, "%s",
                     endpoints[i]);
        cr_assert_neq(err.text[0], '\0');
    }
    cr_assert_eq(fg_bus_connect_zmq(loop, "tcp://127.0.0.1:1", "a b", &events, &bus, &err),
                 FG_BAD_INPUT);
    cr_assert_eq(fg_bus_connect_zmq(loop, "tcp://127.0.0.1:1", "", &events, &bus, &err),
                 FG_BAD_INPUT);
    fg_loop_destroy(loop);
}

static bool try_open_zmq(void *ctx)
{
    fg_loop *loop = ctx;
    fg_error err;
    end e = { 0 };
    fg_bus_events events = events_of(&e);
    fg_bus *server, *client;
    if (fg_bus_listen_zmq(loop, "tcp://127.0.0.1:*", &events, &server, &err) != FG_OK) {
        return false;
    }
    fg_status status =
        fg_bus_connect_zmq(loop, fg_bus_endpoint(server), "a#1", &events, &client, &err);
    fg_bus_close(status == FG_OK ? client : NULL);
    fg_bus_close(server);
    return status == FG_OK;
}

Test(bus_zmq, constructors_survive_every_failure)
{
    fg_loop *loop;
    fg_error err;
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    int faults = fg_fault_each(try_open_zmq, loop);
    cr_assert(faults >= 12, "%d", faults);
    fg_loop_destroy(loop);
}
