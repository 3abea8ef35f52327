/*
 * ZeroMQ ROUTER (server) and DEALER (client) on the libuv loop.
 *
 * ZMQ_FD is edge-like: it says "look again", and looking or sending takes the hint away. So the watches
 * only wake the loop; a hook drains both sockets before every sleep and keeps the loop awake while
 * ZMQ_EVENTS still shows input.
 *
 * Who went away is read from the socket monitor (it names a file descriptor within a millisecond of the
 * peer's death) and from the descriptor that each message came by. A lost peer's last frames may still
 * lie in the socket, so it is `ending` until everything that had arrived is delivered.
 *
 * An empty frame is the bus's own greeting and no application frame. A client sends one first on every
 * connection and says on_up when the server has answered it. Without HANDOVER the ROUTER leaves a client
 * that comes back before its old connection was cleaned up connected but mute, for ever; a client whose
 * greeting stays unanswered connects again.
 *
 * With keys (bus_guard.h) each frame carries its sender's public key, put there by ZeroMQ after the
 * handshake. A peer is one identity with one key.
 */
#include "common/net/bus.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/bus_guard.h"
#include "common/net/bus_internal.h"
#include "common/net/loop.h"

enum {
    DRAIN_MAX = 256, /* frames a turn: HTTP and timers get their share of the loop */
    ENDPOINT_MAX = 256,
    HANDSHAKE_FAILED = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    MONITOR_EVENTS = ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILED,
    HEARTBEAT_MS = 300,
    /* Only for a network that went away: a dead process closes its socket, and silence is judged by the
     * router's leases. Longer than a pause of a host, which ends no connection by itself. */
    HEARTBEAT_TIMEOUT_MS = 5000,
    HANDSHAKE_MS = 2000,
    RECONNECT_MS = 50,
    RECONNECT_MAX_MS = 500,
    GREETING_MS = 1000, /* an unanswered greeting: connect again */
    REASONS_MAX = 8,    /* more than fg_bus_guard_explain knows */
    REFUSED_MS =
        1000, /* a failed handshake: ZeroMQ itself gives up, or tries every RECONNECT_MS, by who hung up first */
    LINGER_MS = 100, /* the last frames of an orderly end; a stalled peer costs no more than this */
};

#define SAY_AGAIN_NS (60ull * 1000 * 1000 * 1000)

typedef struct zmq_peer {
    char identity[FG_BUS_IDENTITY_MAX + 1]; /* "" : this slot is free */
    size_t length;
    uint64_t hash;
    int fd; /* of its connection, -1 unknown */
    bool ending;
    bool barred; /* its key is gone */
    char key[FG_KEY_TEXT_BYTES + 1];
    struct sockaddr_storage address; /* where it came from; tells whether `fd` is still its own */
    socklen_t address_bytes;         /* 0: unknown */
} zmq_peer;

typedef struct zmq_bus {
    fg_bus base;
    fg_loop *loop;
    void *context;
    void *socket;
    void *monitor;
    fg_watch *socket_watch;
    fg_watch *monitor_watch;
    fg_watch *guard_watch;
    fg_hook *hook;
    const fg_keys *keys; /* NULL: none */
    fg_bus_guard *guard; /* of a server with keys */
    uint64_t handshakes_failed;
    struct {
        const char *why; /* of fg_bus_guard_explain; NULL: free */
        uint64_t at_ns;
    } said[REASONS_MAX]; /* what was logged, and when */
    char endpoint[ENDPOINT_MAX];
    bool is_server;
    bool delivering; /* inside the hook: close only marks */
    bool closed;
    /* server */
    zmq_peer *peers;    /* FG_LIMIT_WORKERS */
    uint32_t peers_top; /* slots ever used */
    bool some_ending;
    bool some_barred;
    int lost_fds
        [FG_LIMIT_WORKERS]; /* ended before a frame of theirs was read; until the socket is dry */
    uint32_t lost_count;
    /* client */
    fg_timer *greeting_timer; /* runs from the handshake to the server's greeting */
    fg_timer *refused_timer;  /* runs from a failed handshake to the next attempt */
    bool up;
    bool ending;
} zmq_bus;

static fg_status zmq_status(int rc, const char *what, fg_status otherwise, fg_error *err)
{
    if (rc >= 0) {
        return FG_OK;
    }
    int code = zmq_errno();
    fg_status status = code == ENOMEM || code == EMFILE ? FG_AGAIN : otherwise;
    return fg_fail(err, status, "%s: %s", what, zmq_strerror(code));
}

/* --- peers of a server --- */

static zmq_peer *find_peer(zmq_bus *bus, const char *identity, size_t length, uint64_t hash)
{
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        zmq_peer *peer = &bus->peers[i];
        if (peer->hash == hash && peer->length == length && length > 0 &&
            memcmp(peer->identity, identity, length) == 0) {
            return peer;
        }
    }
    return NULL;
}

static zmq_peer *add_peer(zmq_bus *bus, const char *identity, size_t length, uint64_t hash, int fd)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        zmq_peer *peer = &bus->peers[i];
        if (peer->length == 0) {
            *peer = (zmq_peer){ .length = length, .hash = hash, .fd = fd };
            memcpy(peer->identity, identity, length);
            bus->peers_top = i + 1 > bus->peers_top ? i + 1 : bus->peers_top;
            return peer;
        }
    }
    return NULL;
}

static void forget_peer(zmq_peer *peer)
{
    *peer = (zmq_peer){ .fd = -1 };
}

static void end_peer(zmq_bus *bus, zmq_peer *peer)
{
    uint32_t handle = (uint32_t)(peer - bus->peers);
    forget_peer(peer);
    bus->base.events.on_down(bus->base.events.ctx, handle);
}

/* --- the client's connection --- */

static fg_status send_greeting(zmq_bus *bus)
{
    return zmq_send(bus->socket, "", 0, ZMQ_DONTWAIT) < 0 ? FG_AGAIN : FG_OK;
}

/* Leaves the connection with what was queued for it, and makes a fresh one. */
static void connect_again(zmq_bus *bus)
{
    fg_timer_close(bus->greeting_timer);
    bus->greeting_timer = NULL;
    zmq_disconnect(bus->socket, bus->endpoint);
    if (zmq_connect(bus->socket, bus->endpoint) == 0) {
        send_greeting(bus);
    }
}

static void greeting_unanswered(void *ctx)
{
    connect_again(ctx);
}

static void try_after_refusal(void *ctx)
{
    zmq_bus *bus = ctx;
    fg_timer_close(bus->refused_timer);
    bus->refused_timer = NULL;
    connect_again(bus);
}

static void end_connection(zmq_bus *bus)
{
    bus->ending = false;
    if (bus->refused_timer == NULL) {
        connect_again(bus);
    }
    if (bus->up) {
        bus->up = false;
        bus->base.events.on_down(bus->base.events.ctx, 0);
    }
}

/* --- the monitor --- */

static void note_disconnect(zmq_bus *bus, int fd)
{
    if (!bus->is_server) {
        bus->ending = true;
        return;
    }
    bool known = false;
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        if (bus->peers[i].length > 0 && bus->peers[i].fd == fd) {
            bus->peers[i].ending = true;
            bus->some_ending = true;
            known = true;
        }
    }
    if (!known && bus->lost_count < FG_LIMIT_WORKERS) {
        bus->lost_fds[bus->lost_count++] = fd;
    }
}

/* Each reason is logged once a minute: whoever can connect can fail as often as he likes. */
static bool is_news(zmq_bus *bus, const char *why)
{
    fg_clock clock = fg_clock_real();
    uint64_t now_ns = fg_clock_now_ns(&clock);
    int i = 0;
    while (i < REASONS_MAX && bus->said[i].why != NULL && bus->said[i].why != why) {
        i++;
    }
    if (i == REASONS_MAX ||
        (bus->said[i].why == why && now_ns - bus->said[i].at_ns < SAY_AGAIN_NS)) {
        return false;
    }
    bus->said[i].why = why;
    bus->said[i].at_ns = now_ns;
    return true;
}

static void note_failed_handshake(zmq_bus *bus, uint16_t event, int32_t value)
{
    const char *why = fg_bus_guard_explain(event, value, bus->is_server, bus->keys != NULL);
    /* Without memory for the timer the next attempt is ZeroMQ's own. */
    if (!bus->is_server && bus->refused_timer == NULL &&
        fg_timer_start(bus->loop, REFUSED_MS, 0, try_after_refusal, bus, &bus->refused_timer) ==
            FG_OK) {
        zmq_disconnect(bus->socket, bus->endpoint);
    }
    if (why == NULL) {
        return;
    }
    bus->handshakes_failed++;
    if (is_news(bus, why)) {
        fg_log(bus->is_server ? FG_LOG_WARN : FG_LOG_ERROR, "bus",
               "event=handshake_failed endpoint=%s total=%" PRIu64 " why=\"%s\"", bus->endpoint,
               bus->handshakes_failed, why);
    }
}

static void note_handshake(zmq_bus *bus, int fd)
{
    fg_timer_close(bus->refused_timer);
    bus->refused_timer = NULL;
    if (!bus->is_server) {
        memset(bus->said, 0, sizeof bus->said);
    }
    if (!bus->is_server && bus->greeting_timer == NULL) {
        /* Without memory for the timer only the cure of a mute connection is lost. */
        (void)fg_timer_start(bus->loop, GREETING_MS, 0, greeting_unanswered, bus,
                             &bus->greeting_timer);
    }
    /* The number is in use again. */
    for (uint32_t i = bus->lost_count; i-- > 0;) {
        if (bus->lost_fds[i] == fd) {
            bus->lost_fds[i] = bus->lost_fds[--bus->lost_count];
        }
    }
}

/* A new peer came by `fd`. Whoever else had that number has ended, and so has the peer itself when its
 * connection was reported lost before its first frame was read. */
static void settle_fd(zmq_bus *bus, zmq_peer *fresh)
{
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        if (&bus->peers[i] != fresh && bus->peers[i].length > 0 && bus->peers[i].fd == fresh->fd &&
            fresh->fd >= 0) {
            bus->peers[i].ending = true;
            bus->some_ending = true;
        }
    }
    for (uint32_t i = 0; i < bus->lost_count; i++) {
        if (bus->lost_fds[i] == fresh->fd) {
            fresh->ending = true;
            bus->some_ending = true;
        }
    }
}

/* Reads the monitor dry. An event is two parts: {uint16 event, uint32 value}, then the address. */
static void read_monitor(zmq_bus *bus)
{
    for (;;) {
        unsigned char head[6];
        char address[ENDPOINT_MAX];
        int size = zmq_recv(bus->monitor, head, sizeof head, ZMQ_DONTWAIT);
        if (size < 0) {
            return;
        }
        (void)zmq_recv(bus->monitor, address, sizeof address, ZMQ_DONTWAIT);
        uint16_t event;
        int32_t value;
        memcpy(&event, head, sizeof event);
        memcpy(&value, head + sizeof event, sizeof value);
        if (event == ZMQ_EVENT_DISCONNECTED) {
            note_disconnect(bus, value);
        } else if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            note_handshake(bus, value);
        } else if (event & HANDSHAKE_FAILED) {
            note_failed_handshake(bus, event, value);
        }
    }
}

/* --- frames --- */

/* The descriptor that a message came by; -1 when unknown. */
static int source_fd(zmq_msg_t *message)
{
    return zmq_msg_get(message, ZMQ_SRCFD);
}

/* Takes the rest of a message that has more parts than it may have. */
static void skip_parts(zmq_bus *bus)
{
    int more = 1;
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        more = zmq_msg_recv(&part, bus->socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
}

static fg_status send_to(zmq_bus *bus, const zmq_peer *peer, const void *bytes, size_t size_bytes)
{
    if (zmq_send(bus->socket, peer->identity, peer->length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        return zmq_errno() == EAGAIN ? FG_AGAIN : FG_PEER_LOST;
    }
    /* The ROUTER has found room for the whole message before it took the identity. */
    return zmq_send(bus->socket, bytes, size_bytes, ZMQ_DONTWAIT) < 0 ? FG_PEER_LOST : FG_OK;
}

/* A client begins a new connection: it greets first of all. An older one of this identity has ended, or
 * the ROUTER would not have let this frame through. */
static void on_greeting(zmq_bus *bus, const char *identity, size_t length, uint64_t hash)
{
    zmq_peer *old = find_peer(bus, identity, length, hash);
    if (old != NULL) {
        end_peer(bus, old);
        if (bus->closed) {
            return;
        }
    }
    zmq_peer reply = { .length = length };
    memcpy(reply.identity, identity, length);
    (void)send_to(bus, &reply, "", 0);
}

/* What is kept to cut the connection of a peer with a key. */
static void note_key(zmq_peer *peer, const char *key)
{
    snprintf(peer->key, sizeof peer->key, "%s", key);
    peer->address_bytes = sizeof peer->address;
    if (peer->fd < 0 ||
        getpeername(peer->fd, (struct sockaddr *)&peer->address, &peer->address_bytes) != 0) {
        peer->address_bytes = 0;
    }
}

static void on_server_frame(zmq_bus *bus, const char *identity, size_t length, zmq_msg_t *body)
{
    uint64_t hash = fg_hash64(identity, length, 0);
    zmq_peer *peer = find_peer(bus, identity, length, hash);
    const char *key = bus->guard != NULL ? zmq_msg_gets(body, "User-Id") : "";
    bool same = peer != NULL && key != NULL && strcmp(key, peer->key) == 0;
    if (bus->guard != NULL && (!same || peer->barred) &&
        !fg_bus_guard_admits(bus->guard, key, identity, length)) {
        fg_bus_count_dropped(&bus->base, "no key for this name");
        return;
    }
    if (zmq_msg_size(body) == 0) {
        on_greeting(bus, identity, length, hash);
        return;
    }
    if (peer != NULL && (!same || (peer->ending && source_fd(body) != peer->fd))) {
        end_peer(bus, peer); /* came back without a greeting */
        peer = NULL;
    }
    if (peer == NULL && !bus->closed) {
        read_monitor(bus); /* what became of earlier connections is known before settle_fd asks */
        peer = add_peer(bus, identity, length, hash, source_fd(body));
        if (peer == NULL) {
            fg_bus_count_dropped(&bus->base, "too many peers");
            return;
        }
        if (bus->guard != NULL) {
            note_key(peer, key);
        }
        settle_fd(bus, peer);
        char name[FG_BUS_IDENTITY_MAX + 1];
        memcpy(name, peer->identity, sizeof name);
        bus->base.events.on_up(bus->base.events.ctx, (uint32_t)(peer - bus->peers), name);
    }
    /* on_up may have dropped the peer or closed the bus. */
    if (!bus->closed && peer->length > 0) {
        bus->base.events.on_frame(bus->base.events.ctx, (uint32_t)(peer - bus->peers),
                                  zmq_msg_data(body), zmq_msg_size(body));
    }
}

static void on_client_frame(zmq_bus *bus, zmq_msg_t *body)
{
    if (zmq_msg_size(body) > 0) {
        bus->base.events.on_frame(bus->base.events.ctx, 0, zmq_msg_data(body), zmq_msg_size(body));
        return;
    }
    fg_timer_close(bus->greeting_timer);
    bus->greeting_timer = NULL;
    if (!bus->up) {
        bus->up = true;
        bus->base.events.on_up(bus->base.events.ctx, 0, bus->endpoint);
    }
}

/* Takes one message. False: none is there. */
static bool read_frame(zmq_bus *bus)
{
    zmq_msg_t identity, body;
    bool valid = true;
    zmq_msg_init(&identity);
    zmq_msg_init(&body);
    if (bus->is_server) {
        if (zmq_msg_recv(&identity, bus->socket, ZMQ_DONTWAIT) < 0) {
            return false;
        }
        valid = zmq_msg_more(&identity) &&
                fg_bus_identity_valid(zmq_msg_data(&identity), zmq_msg_size(&identity));
    }
    if (!bus->is_server || zmq_msg_more(&identity)) {
        if (zmq_msg_recv(&body, bus->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&identity);
            return false;
        }
        if (zmq_msg_more(&body)) {
            skip_parts(bus);
            valid = false;
        }
    }
    if (!valid) {
        fg_bus_count_dropped(&bus->base, "no valid identity or several parts");
    } else if (bus->is_server) {
        on_server_frame(bus, zmq_msg_data(&identity), zmq_msg_size(&identity), &body);
    } else {
        on_client_frame(bus, &body);
    }
    zmq_msg_close(&identity);
    zmq_msg_close(&body);
    return true;
}

/* Everything that the lost had sent is delivered. */
static void end_lost(zmq_bus *bus)
{
    if (!bus->is_server) {
        if (bus->ending) {
            end_connection(bus);
        }
        return;
    }
    bus->some_ending = false;
    bus->lost_count = 0;
    for (uint32_t i = 0; i < bus->peers_top && !bus->closed; i++) {
        if (bus->peers[i].length > 0 && bus->peers[i].ending) {
            end_peer(bus, &bus->peers[i]);
        }
    }
}

/* Nothing that a barred peer has sent is delivered: it need not wait for the socket to be dry. */
static void end_barred(zmq_bus *bus)
{
    bus->some_barred = false;
    for (uint32_t i = 0; i < bus->peers_top && !bus->closed; i++) {
        if (bus->peers[i].length > 0 && bus->peers[i].barred) {
            end_peer(bus, &bus->peers[i]);
        }
    }
}

static void destroy(zmq_bus *bus)
{
    if (bus->socket != NULL) {
        int linger = LINGER_MS;
        zmq_setsockopt(bus->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(bus->socket);
    }
    if (bus->monitor != NULL) {
        zmq_close(bus->monitor);
    }
    fg_bus_guard_close(bus->guard);
    if (bus->context != NULL) {
        zmq_ctx_term(bus->context);
    }
    fg_mem_free(bus->peers);
    fg_mem_free(bus);
}

static bool has_input(void *socket)
{
    int events = 0;
    size_t size = sizeof events;
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

static bool before_sleep(void *ctx)
{
    zmq_bus *bus = ctx;
    bus->delivering = true;
    bool more_to_guard = bus->guard != NULL && fg_bus_guard_serve(bus->guard);
    if (has_input(bus->monitor)) {
        read_monitor(bus);
    }
    if (bus->some_barred) {
        end_barred(bus);
    }
    bool dry = !has_input(bus->socket);
    for (int i = 0; i < DRAIN_MAX && !dry && !bus->closed; i++) {
        dry = !read_frame(bus);
    }
    if (dry && !bus->closed && (bus->some_ending || bus->ending || bus->lost_count > 0)) {
        end_lost(bus);
    }
    bus->delivering = false;
    if (bus->closed) {
        destroy(bus);
        return false;
    }
    /* Looking, receiving and sending all take the descriptor's hint away: only ZMQ_EVENTS tells. */
    return more_to_guard || has_input(bus->socket) || has_input(bus->monitor);
}

static void woken(void *ctx)
{
    /* The loop is awake now; before_sleep runs before it sleeps again. */
}

/* --- the calls of bus.h --- */

static fg_status zmq_bus_send(fg_bus *base, uint32_t peer, const void *bytes, size_t size_bytes)
{
    zmq_bus *bus = (zmq_bus *)base;
    if (bus->is_server) {
        if (peer >= bus->peers_top || bus->peers[peer].length == 0 || bus->peers[peer].ending ||
            bus->peers[peer].barred) {
            return FG_PEER_LOST;
        }
        return send_to(bus, &bus->peers[peer], bytes, size_bytes);
    }
    if (peer != 0) {
        return FG_PEER_LOST;
    }
    return zmq_send(bus->socket, bytes, size_bytes, ZMQ_DONTWAIT) < 0 ? FG_AGAIN : FG_OK;
}

static void zmq_bus_drop(fg_bus *base, uint32_t peer)
{
    zmq_bus *bus = (zmq_bus *)base;
    if (bus->is_server && peer < bus->peers_top) {
        forget_peer(&bus->peers[peer]);
    }
}

static void zmq_bus_close(fg_bus *base)
{
    zmq_bus *bus = (zmq_bus *)base;
    FG_ASSERT(!bus->closed);
    bus->closed = true;
    fg_hook_close(bus->hook);
    fg_watch_close(bus->socket_watch);
    fg_watch_close(bus->monitor_watch);
    fg_watch_close(bus->guard_watch);
    fg_timer_close(bus->greeting_timer);
    fg_timer_close(bus->refused_timer);
    if (!bus->delivering) {
        destroy(bus);
    }
}

static const char *zmq_bus_endpoint(const fg_bus *base)
{
    return ((const zmq_bus *)base)->endpoint;
}

static const fg_bus_ops zmq_ops = { zmq_bus_send, zmq_bus_drop, zmq_bus_close, zmq_bus_endpoint };

/* Ends the TCP connection under ZeroMQ, whose own thread then cleans up. The descriptor is its own only as
 * long as the far end has the same address: a closed one may be somebody else's by now. */
static void cut_connection(const zmq_peer *peer)
{
    struct sockaddr_storage address = { 0 };
    socklen_t size = sizeof address;
    if (peer->address_bytes > 0 && getpeername(peer->fd, (struct sockaddr *)&address, &size) == 0 &&
        size == peer->address_bytes && memcmp(&address, &peer->address, size) == 0) {
        (void)shutdown(peer->fd, SHUT_RDWR);
    }
}

void fg_bus_zmq_rekey(fg_bus *base)
{
    zmq_bus *bus = (zmq_bus *)base;
    if (base->ops != &zmq_ops || bus->guard == NULL) {
        return;
    }
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        zmq_peer *peer = &bus->peers[i];
        if (peer->length > 0 && !fg_bus_guard_knows(bus->guard, peer->key, peer->identity)) {
            fg_warn("bus", "event=key_withdrawn peer=%s key=%s", peer->identity, peer->key);
            peer->barred = true;
            bus->some_barred = true;
            cut_connection(peer);
        }
    }
}

void fg_bus_zmq_refusals(const fg_bus *base, fg_bus_refusals *refusals_out)
{
    const zmq_bus *bus = (const zmq_bus *)base;
    *refusals_out = (fg_bus_refusals){ 0 };
    if (base->ops == &zmq_ops) {
        refusals_out->handshake = bus->handshakes_failed;
        if (bus->guard != NULL) {
            fg_bus_guard_counts(bus->guard, &refusals_out->unknown_key, &refusals_out->other_name);
        }
    }
}

/* --- construction --- */

static fg_status set_options(zmq_bus *bus, const char *endpoint, const char *identity,
                             fg_error *err)
{
    const struct {
        int option;
        int value;
    } options[] = {
        { ZMQ_LINGER, 0 },
        { ZMQ_SNDHWM, FG_LIMIT_BUS_QUEUE },
        { ZMQ_RCVHWM, FG_LIMIT_BUS_QUEUE },
        { ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS },
        { ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS },
        { ZMQ_HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS },
        { ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS },
        { ZMQ_RECONNECT_IVL, RECONNECT_MS },
        { ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS },
        { ZMQ_IPV6, strchr(endpoint, '[') != NULL },
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (zmq_setsockopt(bus->socket, options[i].option, &options[i].value, sizeof(int)) != 0) {
            return zmq_status(-1, "socket option", FG_BROKEN, err);
        }
    }
    /* Without a bound one hostile frame could announce any size. */
    int64_t frame_max = FG_LIMIT_FRAME_BYTES;
    if (zmq_setsockopt(bus->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max) != 0) {
        return zmq_status(-1, "socket option", FG_BROKEN, err);
    }
    if (bus->is_server) {
        /* Mandatory: an unknown or full peer is an error, not a silent loss. HANDOVER stays off: nobody
         * takes over the name of a live peer. */
        int mandatory = 1;
        return zmq_status(
            zmq_setsockopt(bus->socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory),
            "socket option", FG_BROKEN, err);
    }
    return zmq_status(zmq_setsockopt(bus->socket, ZMQ_ROUTING_ID, identity, strlen(identity)),
                      "socket identity", FG_BROKEN, err);
}

static fg_status open_sockets(zmq_bus *bus, const char *endpoint, const char *identity,
                              fg_error *err)
{
    bus->context = fg_fault_hit() ? NULL : zmq_ctx_new();
    if (bus->context == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: no memory for a context");
    }
    bus->socket =
        fg_fault_hit() ? NULL : zmq_socket(bus->context, bus->is_server ? ZMQ_ROUTER : ZMQ_DEALER);
    if (bus->socket == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: no socket");
    }
    fg_status status = set_options(bus, endpoint, identity, err);
    if (status == FG_OK && bus->keys != NULL) {
        status = fg_bus_guard_arm(bus->socket, bus->keys, bus->is_server, err);
    }
    if (status == FG_OK && bus->keys != NULL && bus->is_server) {
        status = fg_bus_guard_open(bus->context, bus->keys, &bus->guard, err);
    }
    if (status != FG_OK) {
        return status;
    }
    status = zmq_status(zmq_socket_monitor(bus->socket, "inproc://monitor", MONITOR_EVENTS),
                        "socket monitor", FG_BROKEN, err);
    if (status != FG_OK) {
        return status;
    }
    bus->monitor = fg_fault_hit() ? NULL : zmq_socket(bus->context, ZMQ_PAIR);
    if (bus->monitor == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: no monitor socket");
    }
    /* No high-water mark: a full monitor would block ZeroMQ's own thread. */
    int none = 0;
    zmq_setsockopt(bus->monitor, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(bus->monitor, ZMQ_LINGER, &none, sizeof none);
    return zmq_status(zmq_connect(bus->monitor, "inproc://monitor"), "socket monitor", FG_BROKEN,
                      err);
}

static fg_status watch_socket(zmq_bus *bus, void *socket, fg_watch **watch_out, fg_error *err)
{
    int fd = -1;
    size_t size = sizeof fd;
    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) != 0) {
        return zmq_status(-1, "socket descriptor", FG_BROKEN, err);
    }
    fg_status status = fg_watch_start(bus->loop, fd, woken, bus, watch_out);
    return status == FG_OK ? FG_OK : fg_fail(err, status, "bus: cannot watch a socket");
}

static fg_status attach(zmq_bus *bus, fg_error *err)
{
    fg_status status = watch_socket(bus, bus->socket, &bus->socket_watch, err);
    if (status != FG_OK) {
        return status;
    }
    status = watch_socket(bus, bus->monitor, &bus->monitor_watch, err);
    if (status == FG_OK && bus->guard != NULL) {
        status = watch_socket(bus, fg_bus_guard_socket(bus->guard), &bus->guard_watch, err);
    }
    if (status != FG_OK) {
        return status;
    }
    status = fg_hook_start(bus->loop, before_sleep, bus, &bus->hook);
    return status == FG_OK ? FG_OK : fg_fail(err, status, "bus: out of memory");
}

static fg_status bind_endpoint(zmq_bus *bus, const char *endpoint, fg_error *err)
{
    char what[ENDPOINT_MAX + 16];
    snprintf(what, sizeof what, "bind %s", endpoint);
    fg_status status = zmq_status(zmq_bind(bus->socket, endpoint), what, FG_BAD_INPUT, err);
    size_t size = sizeof bus->endpoint;
    if (status == FG_OK) {
        status = zmq_status(zmq_getsockopt(bus->socket, ZMQ_LAST_ENDPOINT, bus->endpoint, &size),
                            "bound endpoint", FG_BROKEN, err);
    }
    return status;
}

static fg_status connect_endpoint(zmq_bus *bus, const char *endpoint, fg_error *err)
{
    char what[ENDPOINT_MAX + 16];
    snprintf(what, sizeof what, "connect %s", endpoint);
    snprintf(bus->endpoint, sizeof bus->endpoint, "%s", endpoint);
    fg_status status = zmq_status(zmq_connect(bus->socket, endpoint), what, FG_BAD_INPUT, err);
    return status == FG_OK ? send_greeting(bus) : status;
}

/* ZeroMQ keeps the low 16 bits of a larger port number and so listens where nobody asked it to. */
static bool port_valid(const char *endpoint)
{
    const char *colon = strrchr(endpoint, ':');
    return strncmp(endpoint, "tcp://", 6) != 0 || colon == NULL ||
           strtoul(colon + 1, NULL, 10) <= 65535;
}

fg_status fg_bus_open_zmq(fg_loop *loop, const fg_bus_zmq_options *options,
                          const fg_bus_events *events, fg_bus **bus_out, fg_error *err)
{
    const char *endpoint = options->endpoint, *identity = options->identity;
    if (strlen(endpoint) >= ENDPOINT_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "bus: endpoint longer than %d bytes", ENDPOINT_MAX - 1);
    }
    if (!port_valid(endpoint)) {
        return fg_fail(err, FG_BAD_INPUT, "bus: %s: port is beyond 65535", endpoint);
    }
    if (identity != NULL && !fg_bus_identity_valid(identity, strlen(identity))) {
        return fg_fail(err, FG_BAD_INPUT, "bus: identity must be 1 to %d printable characters",
                       FG_BUS_IDENTITY_MAX);
    }
    zmq_bus *bus = fg_mem_alloc(sizeof *bus);
    if (bus == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    bus->base.ops = &zmq_ops;
    bus->base.events = *events;
    bus->loop = loop;
    bus->is_server = identity == NULL;
    bus->keys = options->keys;
    fg_status status = FG_OK;
    if (bus->is_server) {
        bus->peers = fg_mem_array(FG_LIMIT_WORKERS, sizeof *bus->peers);
        status = bus->peers == NULL ? fg_fail(err, FG_AGAIN, "bus: out of memory") : FG_OK;
    }
    if (status == FG_OK) {
        status = open_sockets(bus, endpoint, identity, err);
    }
    if (status == FG_OK) {
        status = attach(bus, err);
    }
    if (status == FG_OK) {
        status = bus->is_server ? bind_endpoint(bus, endpoint, err)
                                : connect_endpoint(bus, endpoint, err);
    }
    if (status != FG_OK) {
        zmq_bus_close(&bus->base);
        return status;
    }
    *bus_out = &bus->base;
    return FG_OK;
}

fg_status fg_bus_listen_zmq(fg_loop *loop, const char *endpoint, const fg_bus_events *events,
                            fg_bus **bus_out, fg_error *err)
{
    fg_bus_zmq_options options = { .endpoint = endpoint };
    return fg_bus_open_zmq(loop, &options, events, bus_out, err);
}

fg_status fg_bus_connect_zmq(fg_loop *loop, const char *endpoint, const char *identity,
                             const fg_bus_events *events, fg_bus **bus_out, fg_error *err)
{
    FG_ASSERT(identity != NULL, "a client has a name");
    fg_bus_zmq_options options = { .endpoint = endpoint, .identity = identity };
    return fg_bus_open_zmq(loop, &options, events, bus_out, err);
}
