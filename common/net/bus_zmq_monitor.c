/*
 * What the bus knows of its connections: ZeroMQ's socket monitor, and when a client connects again.
 *
 * A client has at most one of two timers: `greeting_timer` from the handshake until the server's greeting,
 * `refused_timer` from a failed handshake until the next attempt. Meanwhile it is disconnected.
 */
#include "common/net/bus_zmq.h"

#include <inttypes.h>
#include <string.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"

enum {
    HANDSHAKE_FAILED = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                       ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
    MONITOR_EVENTS = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                     HANDSHAKE_FAILED,
    GREETING_MS = 1000, /* an unanswered greeting: connect again */
    /* A failed handshake: left alone, ZeroMQ gives up or tries every 50 ms, by which end hung up first. */
    REFUSED_MS = 1000,
};

#define SAY_AGAIN_NS (60ull * 1000 * 1000 * 1000)

/* --- the client's connection --- */

/* Leaves the connection with what was queued for it, and makes a fresh one. */
static void connect_again(fg_zmq_bus *bus)
{
    fg_timer_close(bus->greeting_timer);
    bus->greeting_timer = NULL;
    zmq_disconnect(bus->socket, bus->endpoint);
    if (zmq_connect(bus->socket, bus->endpoint) == 0) {
        fg_zmq_send_greeting(bus);
    }
}

static void greeting_unanswered(void *ctx)
{
    connect_again(ctx);
}

static void try_after_refusal(void *ctx)
{
    fg_zmq_bus *bus = ctx;
    fg_timer_close(bus->refused_timer);
    bus->refused_timer = NULL;
    connect_again(bus);
}

void fg_zmq_end_connection(fg_zmq_bus *bus)
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

static uint64_t now_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static void note_ending(fg_zmq_bus *bus, fg_zmq_peer *peer)
{
    if (!peer->ending) {
        peer->ending = true;
        peer->ending_at_ns = now_ns();
    }
    bus->some_ending = true;
}

static void note_disconnect(fg_zmq_bus *bus, int fd)
{
    if (!bus->is_server) {
        bus->ending = true;
        bus->ending_at_ns = now_ns();
        return;
    }
    bool known = false;
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        if (bus->peers[i].length > 0 && bus->peers[i].fd == fd) {
            note_ending(bus, &bus->peers[i]);
            known = true;
        }
    }
    if (!known && bus->lost_count < FG_LIMIT_WORKERS) {
        bus->lost[bus->lost_count++] = (fg_zmq_lost){ .fd = fd, .at_ns = now_ns() };
    }
}

/* Each reason is logged once a minute: whoever can connect can fail as often as he likes. */
static bool is_news(fg_zmq_bus *bus, const char *why)
{
    uint64_t at_ns = now_ns();
    int i = 0;
    while (i < FG_ZMQ_REASONS_MAX && bus->said[i].why != NULL && bus->said[i].why != why) {
        i++;
    }
    if (i == FG_ZMQ_REASONS_MAX ||
        (bus->said[i].why == why && at_ns - bus->said[i].at_ns < SAY_AGAIN_NS)) {
        return false;
    }
    bus->said[i].why = why;
    bus->said[i].at_ns = at_ns;
    return true;
}

static void note_failed_handshake(fg_zmq_bus *bus, uint16_t event, int32_t value)
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

/* A server's new connection: what was lost with its number before is another one. */
static void note_accepted(fg_zmq_bus *bus, int fd)
{
    for (uint32_t i = bus->lost_count; i-- > 0;) {
        if (bus->lost[i].fd == fd) {
            bus->lost[i] = bus->lost[--bus->lost_count];
        }
    }
}

/* The event does not tell whose handshake it was: libzmq 4.3.4 gives 0 for the descriptor. */
static void note_handshake(fg_zmq_bus *bus)
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
}

void fg_zmq_settle_fd(fg_zmq_bus *bus, fg_zmq_peer *fresh)
{
    for (uint32_t i = 0; i < bus->peers_top; i++) {
        if (&bus->peers[i] != fresh && bus->peers[i].length > 0 && bus->peers[i].fd == fresh->fd &&
            fresh->fd >= 0) {
            note_ending(bus, &bus->peers[i]);
        }
    }
    for (uint32_t i = 0; i < bus->lost_count; i++) {
        if (bus->lost[i].fd == fresh->fd) {
            note_ending(bus, fresh);
        }
    }
}

/* Reads the monitor dry. An event is two parts: {uint16 event, uint32 value}, then the address. */
void fg_zmq_read_monitor(fg_zmq_bus *bus)
{
    for (;;) {
        unsigned char head[6];
        char address[FG_ZMQ_ENDPOINT_MAX];
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
            note_handshake(bus);
        } else if (event == ZMQ_EVENT_ACCEPTED) {
            note_accepted(bus, value);
        } else if (event & HANDSHAKE_FAILED) {
            note_failed_handshake(bus, event, value);
        }
    }
}

fg_status fg_zmq_open_monitor(fg_zmq_bus *bus, fg_error *err)
{
    fg_status status =
        fg_zmq_status(zmq_socket_monitor(bus->socket, "inproc://monitor", MONITOR_EVENTS),
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
    return fg_zmq_status(zmq_connect(bus->monitor, "inproc://monitor"), "socket monitor", FG_BROKEN,
                         err);
}
