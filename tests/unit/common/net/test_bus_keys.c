/* The bus with keys, over real loopback sockets: who is heard, who is not, and who is told why. */
#include <stdarg.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/net/bus.h"
#include "common/net/bus_guard.h"
#include "common/net/loop.h"
#include "tests/unit/common/net/key_rig.h"

#ifdef FG_TEST_PLAIN
/* ThreadSanitizer: libzmq's strings live in libstdc++, as little instrumented as itself. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libstdc++.so\n";
}
#endif

enum { DEADLINE_MS = 60000, CLIENTS = 4 };

typedef struct end {
    fg_bus *bus;
    int up, down;
    size_t frames;
    uint32_t peer;
    char identity[128], text[64];
} end;

typedef struct world {
    key_rig rig;
    fg_loop *loop;
    fg_timer *tick;
    uint64_t started_ms;
    end server, clients[CLIENTS];
    fg_keys *keys[CLIENTS];
} world;

static void on_up(void *ctx, uint32_t peer, const char *identity)
{
    end *e = ctx;
    e->up++;
    e->peer = peer;
    snprintf(e->identity, sizeof e->identity, "%s", identity);
}

static void on_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    end *e = ctx;
    e->frames++;
    e->peer = peer;
    snprintf(e->text, sizeof e->text, "%.*s", (int)size_bytes, (const char *)bytes);
}

static void on_down(void *ctx, uint32_t peer)
{
    ((end *)ctx)->down++;
}

static fg_bus_events events_of(end *e)
{
    return (fg_bus_events){ on_up, on_frame, on_down, e };
}

static void on_tick(void *ctx)
{
}

static uint64_t now_ms(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ms(&clock);
}

static void listen_with(world *w, const fg_keys *keys)
{
    fg_error err;
    fg_bus_events events = events_of(&w->server);
    fg_bus_zmq_options options = { .endpoint = "tcp://127.0.0.1:*", .keys = keys };
    fg_status status = fg_bus_open_zmq(w->loop, &options, &events, &w->server.bus, &err);
    cr_assert_eq(status, FG_OK, "%s", err.text);
}

/* A server whose list is: worker 0, bound to "bound"; worker 1 for any name. */
static void open_world(world *w, bool with_keys)
{
    fg_error err;
    char list[300];
    memset(w, 0, sizeof *w);
    rig_make(&w->rig);
    cr_assert_eq(fg_loop_create(&w->loop, &err), FG_OK);
    cr_assert_eq(fg_timer_start(w->loop, 2, 2, on_tick, NULL, &w->tick), FG_OK);
    snprintf(list, sizeof list, "public %s bound\npublic %s\n", w->rig.workers[0].public_key,
             w->rig.workers[1].public_key);
    w->rig.server = rig_open(&w->rig, w->rig.router.secret_key, "allowed", list);
    listen_with(w, with_keys ? w->rig.server : NULL);
    w->started_ms = now_ms();
}

/* own NULL: without keys. */
static void join(world *w, int index, const char *identity, const fg_key_pair *own,
                 const fg_key_pair *trusted)
{
    fg_error err;
    fg_bus_events events = events_of(&w->clients[index]);
    w->keys[index] = own != NULL ? rig_client(&w->rig, own, trusted) : NULL;
    fg_bus_zmq_options options = { .endpoint = fg_bus_endpoint(w->server.bus),
                                   .identity = identity,
                                   .keys = w->keys[index] };
    fg_status status = fg_bus_open_zmq(w->loop, &options, &events, &w->clients[index].bus, &err);
    cr_assert_eq(status, FG_OK, "%s", err.text);
}

static void close_world(world *w)
{
    for (int i = 0; i < CLIENTS; i++) {
        fg_bus_close(w->clients[i].bus);
        fg_keys_close(w->keys[i]);
    }
    fg_bus_close(w->server.bus);
    fg_timer_close(w->tick);
    fg_loop_destroy(w->loop);
    rig_remove(&w->rig);
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

static fg_bus_refusals refusals(const end *e)
{
    fg_bus_refusals counts;
    fg_bus_zmq_refusals(e->bus, &counts);
    return counts;
}

static void talk(world *w, int index, const char *text)
{
    size_t before = w->server.frames;
    WAIT(w, w->clients[index].up > 0);
    cr_assert_eq(fg_bus_send(w->clients[index].bus, 0, text, strlen(text)), FG_OK);
    WAIT(w, w->server.frames > before);
    cr_assert_str_eq(w->server.text, text);
}

Test(bus_keys, right_keys_talk_both_ways)
{
    world w;
    open_world(&w, true);
    join(&w, 0, "bound#1", &w.rig.workers[0], &w.rig.router);
    join(&w, 1, "any#1", &w.rig.workers[1], &w.rig.router);
    talk(&w, 0, "hello");
    cr_assert_str_eq(w.server.identity, "bound#1");
    cr_assert_eq(fg_bus_send(w.server.bus, w.server.peer, "back", 4), FG_OK);
    WAIT(&w, w.clients[0].frames == 1);
    cr_assert_str_eq(w.clients[0].text, "back");
    talk(&w, 1, "me too");
    fg_bus_refusals counts = refusals(&w.server);
    cr_assert_eq(counts.unknown_key + counts.other_name + counts.handshake, 0);
    close_world(&w);
}

/* --- strangers --- */

typedef struct stranger_case {
    const char *name, *identity;
    int own;     /* of the workers; -1: none, RIG_WORKERS: the stranger's */
    bool server; /* does the server have keys? */
    bool wrong_router;
    bool unknown, other, handshake; /* what the server counts */
    bool told;                      /* the client counts a failed handshake */
} stranger_case;

static const stranger_case strangers[] = {
    { "unknown key", "x#1", RIG_WORKERS, true, false, true, false, false, true },
    { "known key, other router", "x#1", 1, true, true, false, false, true, true },
    { "no keys", "x#1", -1, true, false, false, false, true, true },
    { "keys, server without", "x#1", 1, false, false, false, false, true, true },
    { "bound key, other name", "other#1", 0, true, false, false, true, false, false },
    { "bound key, longer name", "bound2#1", 0, true, false, false, true, false, false },
    { "bound key, name with a second epoch", "bound#1#2", 0, true, false, false, true, false,
      false },
    { "free key, bound name", "bound#9", 1, true, false, false, true, false, false },
};

static void refuse_one(const stranger_case *c)
{
    world w;
    open_world(&w, c->server);
    const fg_key_pair *own = c->own < 0              ? NULL
                             : c->own == RIG_WORKERS ? &w.rig.stranger
                                                     : &w.rig.workers[c->own];
    join(&w, 1, c->identity, own, c->wrong_router ? &w.rig.stranger : &w.rig.router);
    cr_assert_eq(fg_bus_send(w.clients[1].bus, 0, "let me in", 9), FG_OK);
    for (;;) {
        fg_bus_refusals counts = refusals(&w.server);
        bool server_knows = (counts.unknown_key > 0) == c->unknown &&
                            (counts.other_name > 0) == c->other &&
                            (counts.handshake > 0) == c->handshake;
        if (server_knows && (!c->told || refusals(&w.clients[1]).handshake > 0)) {
            break;
        }
        turn(&w);
    }
    cr_log_info("%s: refused after %d ms", c->name, (int)(now_ms() - w.started_ms));
    /* Others are served meanwhile, and the refused one is not heard later either. */
    join(&w, 0, "bound#7", c->server ? &w.rig.workers[0] : NULL, &w.rig.router);
    talk(&w, 0, "hello");
    for (int i = 0; i < 100; i++) {
        turn(&w);
    }
    cr_assert_eq(w.server.up, 1, "%s", c->name);
    cr_assert_eq(w.server.frames, 1, "%s", c->name);
    cr_assert_str_eq(w.server.identity, "bound#7", "%s", c->name);
    cr_assert_eq(w.clients[1].up, 0, "%s", c->name);
    close_world(&w);
}

Test(bus_keys, strangers_are_never_heard_and_learn_why)
{
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++) {
        refuse_one(&strangers[i]);
    }
}

Test(bus_keys, refused_client_does_not_hammer)
{
    world w;
    open_world(&w, true);
    join(&w, 0, "x#1", &w.rig.stranger, &w.rig.router);
    join(&w, 1, "y#1", NULL, NULL);
    uint64_t start_ms = now_ms();
    WAIT(&w, refusals(&w.server).unknown_key > 0 && refusals(&w.clients[1]).handshake > 0);
    while (now_ms() - start_ms < 500) {
        turn(&w);
    }
    /* One a second each. Left to ZeroMQ, the one without keys comes every 50 to 100 ms or never again, by
     * which end hangs up first. */
    uint64_t most = 2 + (now_ms() - start_ms) / 1000;
    fg_bus_refusals counts = refusals(&w.server);
    cr_assert(counts.unknown_key <= most, "%d attempts", (int)counts.unknown_key);
    cr_assert(counts.handshake <= most, "%d attempts", (int)counts.handshake);
    close_world(&w);
}

/* --- the list changes --- */

static void reload(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void reload(world *w, const char *format, ...)
{
    char list[400];
    fg_error err;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(list, sizeof list, format, arguments);
    va_end(arguments);
    rig_write(&w->rig, "allowed", list, 0644);
    cr_assert_eq(fg_keys_reload(w->rig.server, &err), FG_OK, "%s", err.text);
    fg_bus_zmq_rekey(w->server.bus);
}

Test(bus_keys, removed_key_is_cut_off_at_once_and_may_come_back)
{
    world w;
    open_world(&w, true);
    join(&w, 0, "bound#1", &w.rig.workers[0], &w.rig.router);
    join(&w, 1, "any#1", &w.rig.workers[1], &w.rig.router);
    talk(&w, 0, "hello");
    uint32_t gone = w.server.peer;
    talk(&w, 1, "hello too");
    uint32_t stays = w.server.peer;
    /* A frame that is on its way when the key goes is not delivered. */
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "late", 4), FG_OK);
    reload(&w, "public %s\n", w.rig.workers[1].public_key);
    cr_assert_eq(w.server.down, 0, "never from inside the call");
    cr_assert_eq(fg_bus_send(w.server.bus, gone, "x", 1), FG_PEER_LOST);
    cr_assert_eq(fg_bus_send(w.server.bus, stays, "x", 1), FG_OK);
    WAIT(&w, w.server.down == 1 && w.clients[0].down == 1);
    cr_log_info("its connection ended after %d ms", (int)(now_ms() - w.started_ms));
    WAIT(&w, refusals(&w.clients[0]).handshake > 0);
    cr_assert_eq(w.server.frames, 2);
    talk(&w, 1, "still here");
    reload(&w, "public %s\npublic %s bound\n", w.rig.workers[1].public_key,
           w.rig.workers[0].public_key);
    WAIT(&w, w.clients[0].up == 2);
    talk(&w, 0, "back");
    cr_assert_eq(w.server.down, 1);
    close_world(&w);
}

Test(bus_keys, added_key_may_come_and_rebound_one_is_cut_off)
{
    world w;
    open_world(&w, true);
    join(&w, 0, "new#1", &w.rig.workers[2], &w.rig.router);
    join(&w, 1, "any#1", &w.rig.workers[1], &w.rig.router);
    talk(&w, 1, "hello");
    WAIT(&w, refusals(&w.server).unknown_key > 0);
    reload(&w, "public %s new\npublic %s elsewhere\n", w.rig.workers[2].public_key,
           w.rig.workers[1].public_key);
    WAIT(&w, w.server.down == 1);
    talk(&w, 0, "hello");
    cr_assert_str_eq(w.server.identity, "new#1");
    close_world(&w);
}

/* Whoever gets past ZeroMQ's question is asked again: a socket with CURVE that nobody guards. */
Test(bus_keys, frame_without_a_key_is_not_admitted)
{
    world w;
    fg_bus_guard *guard;
    fg_error err;
    uint64_t unknown, other;
    open_world(&w, true);
    void *context = zmq_ctx_new();
    cr_assert_eq(fg_bus_guard_open(context, w.rig.server, &guard, &err), FG_OK);
    cr_assert(!fg_bus_guard_admits(guard, NULL, "bound#1", 7));
    cr_assert(!fg_bus_guard_admits(guard, "", "bound#1", 7));
    cr_assert(!fg_bus_guard_admits(guard, w.rig.stranger.public_key, "bound#1", 7));
    cr_assert(!fg_bus_guard_admits(guard, w.rig.workers[0].public_key, "bound2#1", 8));
    cr_assert(!fg_bus_guard_admits(guard, w.rig.workers[1].public_key, "bound#1", 7));
    cr_assert(fg_bus_guard_admits(guard, w.rig.workers[0].public_key, "bound#1", 7));
    cr_assert(fg_bus_guard_admits(guard, w.rig.workers[1].public_key, "free", 4));
    fg_bus_guard_counts(guard, &unknown, &other);
    cr_assert_eq(unknown, 3);
    cr_assert_eq(other, 2);
    fg_bus_guard_close(guard);
    zmq_ctx_term(context);
    close_world(&w);
}

Test(bus_keys, malformed_questions_are_answered_no)
{
    static const struct {
        const char *name;
        int parts, change; /* which part is spoilt; -1: none */
        bool fine;
    } cases[] = {
        { "as ZeroMQ asks", 7, -1, true }, { "version", 7, 0, false },
        { "domain", 7, 2, false },         { "mechanism", 7, 5, false },
        { "short key", 7, 6, false },      { "one part", 1, -1, false },
        { "six parts", 6, -1, false },     { "eight parts", 8, -1, false },
    };
    world w;
    fg_bus_guard *guard;
    fg_error err;
    open_world(&w, true);
    void *context = zmq_ctx_new();
    cr_assert_eq(fg_bus_guard_open(context, w.rig.server, &guard, &err), FG_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char key[FG_KEY_BYTES];
        cr_assert_not_null(zmq_z85_decode((uint8_t *)key, w.rig.workers[0].public_key));
        const struct {
            const char *bytes;
            size_t size_bytes;
        } parts[8] = { { "1.0", 3 }, { "1", 1 },     { "forge", 5 }, { "10.0.0.1", 8 },
                       { "", 0 },    { "CURVE", 5 }, { key, 32 },    { "more", 4 } };
        void *socket = zmq_socket(context, ZMQ_REQ);
        cr_assert_eq(zmq_connect(socket, "inproc://zeromq.zap.01"), 0);
        for (int p = 0; p < cases[i].parts; p++) {
            bool spoilt = p == cases[i].change;
            zmq_send(socket, spoilt ? "spoilt" : parts[p].bytes, spoilt ? 6 : parts[p].size_bytes,
                     p + 1 < cases[i].parts ? ZMQ_SNDMORE : 0);
        }
        char answer[6][64] = { "" };
        for (int p = 0; p < 6;) {
            fg_bus_guard_serve(guard);
            int size = zmq_recv(socket, answer[p], sizeof answer[p] - 1, ZMQ_DONTWAIT);
            p += size >= 0;
        }
        cr_assert_str_eq(answer[2], cases[i].fine ? "200" : "400", "%s", cases[i].name);
        cr_assert_str_eq(answer[4], cases[i].fine ? w.rig.workers[0].public_key : "", "%s",
                         cases[i].name);
        zmq_close(socket);
    }
    fg_bus_guard_close(guard);
    zmq_ctx_term(context);
    close_world(&w);
}

Test(bus_keys, log_hears_of_a_key_once_a_minute)
{
    fg_guard_notes notes = { 0 };
    char key[FG_KEY_TEXT_BYTES + 1];
    uint64_t minute = FG_GUARD_NOTE_NS;
    cr_assert(fg_guard_notes_due(&notes, "a", 5));
    cr_assert(!fg_guard_notes_due(&notes, "a", 5));
    cr_assert(!fg_guard_notes_due(&notes, "a", 4 + minute));
    cr_assert(fg_guard_notes_due(&notes, "a", 5 + minute));
    for (int i = 1; i < FG_GUARD_NOTES; i++) {
        snprintf(key, sizeof key, "key-%d", i);
        cr_assert(fg_guard_notes_due(&notes, key, 5 + minute));
    }
    cr_assert(!fg_guard_notes_due(&notes, "one too many", 5 + minute), "a flood stays quiet");
    cr_assert(fg_guard_notes_due(&notes, "one too many", 5 + 2 * minute));
}

typedef struct attempt {
    fg_loop *loop;
    const fg_keys *server, *client;
} attempt;

static bool try_open(void *ctx)
{
    attempt *a = ctx;
    fg_error err;
    end e = { 0 };
    fg_bus_events events = events_of(&e);
    fg_bus *server, *client = NULL;
    fg_bus_zmq_options options = { .endpoint = "tcp://127.0.0.1:*", .keys = a->server };
    if (fg_bus_open_zmq(a->loop, &options, &events, &server, &err) != FG_OK) {
        return false;
    }
    options = (fg_bus_zmq_options){ .endpoint = fg_bus_endpoint(server),
                                    .identity = "a#1",
                                    .keys = a->client };
    fg_status status = fg_bus_open_zmq(a->loop, &options, &events, &client, &err);
    fg_bus_close(status == FG_OK ? client : NULL);
    fg_bus_close(server);
    return status == FG_OK;
}

Test(bus_keys, constructors_survive_every_failure)
{
    world w;
    open_world(&w, true);
    w.keys[0] = rig_client(&w.rig, &w.rig.workers[0], &w.rig.router);
    attempt a = { w.loop, w.rig.server, w.keys[0] };
    int faults = fg_fault_each(try_open, &a);
    cr_assert(faults >= 15, "%d", faults);
    close_world(&w);
}
