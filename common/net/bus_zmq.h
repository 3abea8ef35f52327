/*
 * bus_zmq - the object of the ZeroMQ back end. For the bus_zmq*.c files only; owned by the loop's thread.
 *
 * bus_zmq_open.c makes it, bus_zmq.c runs it (frames, peers, the loop's hook, close), and bus_zmq_monitor.c
 * knows its connections: which ended, whose handshake failed, and when a client tries again.
 */
#ifndef FORGE_COMMON_NET_BUS_ZMQ_H
#define FORGE_COMMON_NET_BUS_ZMQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/limits.h"
#include "common/net/bus_guard.h"
#include "common/net/bus_internal.h"
#include "common/net/loop.h"

enum {
    FG_ZMQ_ENDPOINT_MAX = 256,
    FG_ZMQ_REASONS_MAX = 8, /* more than fg_bus_guard_explain knows */
};

typedef struct fg_zmq_peer {
    char identity[FG_BUS_IDENTITY_MAX + 1]; /* "" : this slot is free */
    size_t length;
    uint64_t hash;
    int fd; /* of its connection, -1 unknown */
    bool ending;
    uint64_t ending_at_ns; /* since when */
    bool barred;           /* its key is gone */
    char key[FG_KEY_TEXT_BYTES + 1];
    struct sockaddr_storage address; /* where it came from; tells whether `fd` is still its own */
    socklen_t address_bytes;         /* 0: unknown */
} fg_zmq_peer;

/* A connection that ended before a frame of it was read. */
typedef struct fg_zmq_lost {
    int fd;
    uint64_t at_ns;
} fg_zmq_lost;

typedef struct fg_zmq_bus {
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
    } said[FG_ZMQ_REASONS_MAX]; /* what was logged, and when */
    char endpoint[FG_ZMQ_ENDPOINT_MAX];
    bool is_server;
    bool delivering; /* inside the hook: close only marks */
    bool closed;
    /* server */
    fg_zmq_peer *peers; /* FG_LIMIT_WORKERS */
    uint32_t peers_top; /* slots ever used */
    bool some_ending;
    bool some_barred;
    fg_zmq_lost lost[FG_LIMIT_WORKERS];
    uint32_t lost_count;
    /* client */
    fg_timer *greeting_timer; /* runs from the handshake to the server's greeting */
    fg_timer *refused_timer;  /* runs from a failed handshake to the next attempt */
    bool up;
    bool ending;
    uint64_t ending_at_ns;
} fg_zmq_bus;

/* --- bus_zmq.c --- */

extern const fg_bus_ops fg_zmq_ops;

/* The loop's hook: delivers what has arrived. True: there is more. */
bool fg_zmq_before_sleep(void *bus);
fg_status fg_zmq_send_greeting(fg_zmq_bus *bus);

/* --- bus_zmq_monitor.c --- */

/* Before the endpoint is bound or connected, so that no connection is missed. */
fg_status fg_zmq_open_monitor(fg_zmq_bus *bus, fg_error *err);
void fg_zmq_read_monitor(fg_zmq_bus *bus); /* until it is dry */
/* A new peer came by its `fd`. Whoever else had that number has ended, and so has the peer itself when its
 * connection was reported lost before its first frame was read. */
void fg_zmq_settle_fd(fg_zmq_bus *bus, fg_zmq_peer *fresh);
/* A client's connection is over, and everything that had come by it is delivered: on_down, if it was up. */
void fg_zmq_end_connection(fg_zmq_bus *bus);

/* --- bus_zmq_open.c --- */

/* What a call of ZeroMQ returned, as a status; `otherwise` when neither memory nor descriptors are short. */
fg_status fg_zmq_status(int rc, const char *what, fg_status otherwise, fg_error *err);

#endif
