/*
 * ZeroMQ ROUTER (server) and DEALER (client) on the libuv loop.
 *
 * ZMQ_FD is edge-like: it says "look again", and looking or sending takes the hint away. So the watches
 * only wake the loop; a hook drains both sockets before every sleep and keeps the loop awake while
 * ZMQ_EVENTS still shows input.
 *
 * Who went away is read from the socket monitor (it names a file descriptor within a millisecond of the
 * peer's death) and from the descriptor that each message came by. A lost peer's last frames may still
 * lie in the socket, so it is `ending` until everything that had arrived is delivered. ZeroMQ's thread
 * tells the monitor of an end before it hands over the last batch, so a socket that is dry at once says
 * nothing yet.
 *
 * An empty frame is the bus's own greeting and no application frame. A client sends one first on every
 * connection and says on_up when the server has answered it. Without HANDOVER the ROUTER leaves a client
 * that comes back before its old connection was cleaned up connected but mute, for ever; a client whose
 * greeting stays unanswered connects again.
 *
 * With keys (bus_guard.h) each frame carries its sender's public key, put there by ZeroMQ after the
 * handshake. A peer is one identity with one key.
 */
#include "common/net/bus_zmq.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/bus.h"

enum {
    DRAIN_MAX = 256, /* frames a turn: HTTP and timers get their share of the loop */
    LINGER_MS = 100, /* the last frames of an orderly end; a stalled peer costs no more than this */
};

/* From the monitor's word to the last batch: microseconds, unless that thread just lost its core. */
#define LAST_BATCH_NS (5ull * 1000 * 1000)

/* --- peers of a server --- */

static fg_zmq_peer *find_peer(fg_zmq_bus *bus, const char *identity, size_t length, uint64_t hash)
{
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        fg_zmq_peer *peer = &bus->peers[i];
        if (peer->hash == hash && peer->length == length && length > 0 &&
            memcmp(peer->identity, identity, length) == 0) {
            return peer;
        }
    }
    return NULL;
}

static fg_zmq_peer *add_peer(fg_zmq_bus *bus, const char *identity, size_t length, uint64_t hash,
                             int fd)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_zmq_peer *peer = &bus->peers[i];
        if (peer->length == 0) {
            *peer = (fg_zmq_peer){ .length = length, .hash = hash, .fd = fd };
            memcpy(peer->identity, identity, length);
            bus->peers_top = i + 1 > bus->peers_top ? i + 1 : bus->peers_top;
            return peer;
        }
    }
    return NULL;
}

static void forget_peer(fg_zmq_peer *peer)
{
    *peer = (fg_zmq_peer){ .fd = -1 };
}

static void end_peer(fg_zmq_bus *bus, fg_zmq_peer *peer)
{
    uint32_t handle = (uint32_t)(peer - bus->peers);
    forget_peer(peer);
    bus->base.events.on_down(bus->base.events.ctx, handle);
}

/* --- frames --- */

/* The descriptor that a message came by; -1 when unknown. */
static int source_fd(zmq_msg_t *message)
{
    return zmq_msg_get(message, ZMQ_SRCFD);
}

/* Takes the rest of a message that has more parts than it may have. */
static void skip_parts(fg_zmq_bus *bus)
{
    int more = 1;
    while (more) {
        zmq_msg_t part;
        zmq_msg_init(&part);
        more = zmq_msg_recv(&part, bus->socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&part);
        zmq_msg_close(&part);
    }
}

static fg_status send_to(fg_zmq_bus *bus, const fg_zmq_peer *peer, const void *bytes,
                         size_t size_bytes)
{
    if (zmq_send(bus->socket, peer->identity, peer->length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        return zmq_errno() == EAGAIN ? FG_AGAIN : FG_PEER_LOST;
    }
    /* The ROUTER has found room for the whole message before it took the identity. */
    return zmq_send(bus->socket, bytes, size_bytes, ZMQ_DONTWAIT) < 0 ? FG_PEER_LOST : FG_OK;
}

fg_status fg_zmq_send_greeting(fg_zmq_bus *bus)
{
    return zmq_send(bus->socket, "", 0, ZMQ_DONTWAIT) < 0 ? FG_AGAIN : FG_OK;
}

/* A client begins a new connection: it greets first of all. An older one of this identity has ended, or
 * the ROUTER would not have let this frame through. */
static void on_greeting(fg_zmq_bus *bus, const char *identity, size_t length, uint64_t hash)
{
    fg_zmq_peer *old = find_peer(bus, identity, length, hash);
    if (old != NULL) {
        end_peer(bus, old);
        if (bus->closed) {
            return;
        }
    }
    fg_zmq_peer reply = { .length = length };
    memcpy(reply.identity, identity, length);
    (void)send_to(bus, &reply, "", 0);
}

/* What is kept to cut the connection of a peer with a key. */
static void note_key(fg_zmq_peer *peer, const char *key)
{
    snprintf(peer->key, sizeof peer->key, "%s", key);
    peer->address_bytes = sizeof peer->address;
    if (peer->fd < 0 ||
        getpeername(peer->fd, (struct sockaddr *)&peer->address, &peer->address_bytes) != 0) {
        peer->address_bytes = 0;
    }
}

static void on_server_frame(fg_zmq_bus *bus, const char *identity, size_t length, zmq_msg_t *body)
{
    uint64_t hash = fg_hash64(identity, length, 0);
    fg_zmq_peer *peer = find_peer(bus, identity, length, hash);
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
        fg_zmq_read_monitor(
            bus); /* what became of earlier connections is known before fg_zmq_settle_fd asks */
        peer = add_peer(bus, identity, length, hash, source_fd(body));
        if (peer == NULL) {
            fg_bus_count_dropped(&bus->base, "too many peers");
            return;
        }
        if (bus->guard != NULL) {
            note_key(peer, key);
        }
        fg_zmq_settle_fd(bus, peer);
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

static void on_client_frame(fg_zmq_bus *bus, zmq_msg_t *body)
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
static bool read_frame(fg_zmq_bus *bus)
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

/* The socket is dry: ends whoever was lost long enough ago for everything it had sent to be delivered. Each
 * has its own time, so that others who come and go put nobody's end off. */
static void end_lost(fg_zmq_bus *bus)
{
    fg_clock clock = fg_clock_real();
    uint64_t now_ns = fg_clock_now_ns(&clock);
    if (!bus->is_server) {
        if (bus->ending && now_ns - bus->ending_at_ns >= LAST_BATCH_NS) {
            fg_zmq_end_connection(bus);
        }
        return;
    }
    for (uint32_t i = bus->lost_count; i-- > 0;) {
        if (now_ns - bus->lost[i].at_ns >= LAST_BATCH_NS) {
            bus->lost[i] = bus->lost[--bus->lost_count];
        }
    }
    bool some_ending = false;
    bus->some_ending = false;
    for (uint32_t i = 0; i < bus->peers_top && !bus->closed; i++) {
        fg_zmq_peer *peer = &bus->peers[i];
        if (peer->length == 0 || !peer->ending) {
            continue;
        }
        if (now_ns - peer->ending_at_ns >= LAST_BATCH_NS) {
            end_peer(bus, peer);
        } else {
            some_ending = true;
        }
    }
    bus->some_ending |= some_ending;
}

/* Nothing that a barred peer has sent is delivered: it need not wait for the socket to be dry. */
static void end_barred(fg_zmq_bus *bus)
{
    bus->some_barred = false;
    for (uint32_t i = 0; i < bus->peers_top && !bus->closed; i++) {
        if (bus->peers[i].length > 0 && bus->peers[i].barred) {
            end_peer(bus, &bus->peers[i]);
        }
    }
}

static void destroy(fg_zmq_bus *bus)
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

bool fg_zmq_before_sleep(void *ctx)
{
    fg_zmq_bus *bus = ctx;
    bus->delivering = true;
    bool more_to_guard = bus->guard != NULL && fg_bus_guard_serve(bus->guard);
    if (has_input(bus->monitor)) {
        fg_zmq_read_monitor(bus);
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
    return bus->some_ending || bus->ending || more_to_guard || has_input(bus->socket) ||
           has_input(bus->monitor);
}

/* --- the calls of bus.h --- */

static fg_status zmq_bus_send(fg_bus *base, uint32_t peer, const void *bytes, size_t size_bytes)
{
    fg_zmq_bus *bus = (fg_zmq_bus *)base;
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
    fg_zmq_bus *bus = (fg_zmq_bus *)base;
    if (bus->is_server && peer < bus->peers_top) {
        forget_peer(&bus->peers[peer]);
    }
}

static void zmq_bus_close(fg_bus *base)
{
    fg_zmq_bus *bus = (fg_zmq_bus *)base;
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
    return ((const fg_zmq_bus *)base)->endpoint;
}

const fg_bus_ops fg_zmq_ops = { zmq_bus_send, zmq_bus_drop, zmq_bus_close, zmq_bus_endpoint };

/* Ends the TCP connection under ZeroMQ, whose own thread then cleans up. The descriptor is its own only as
 * long as the far end has the same address: a closed one may be somebody else's by now. */
static void cut_connection(const fg_zmq_peer *peer)
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
    fg_zmq_bus *bus = (fg_zmq_bus *)base;
    if (base->ops != &fg_zmq_ops || bus->guard == NULL) {
        return;
    }
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        fg_zmq_peer *peer = &bus->peers[i];
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
    const fg_zmq_bus *bus = (const fg_zmq_bus *)base;
    *refusals_out = (fg_bus_refusals){ 0 };
    if (base->ops == &fg_zmq_ops) {
        refusals_out->handshake = bus->handshakes_failed;
        if (bus->guard != NULL) {
            fg_bus_guard_counts(bus->guard, &refusals_out->unknown_key, &refusals_out->other_name);
        }
    }
}
