/*
 * bus - framed bytes to a named peer, with a full-queue answer. Owned by the loop thread; callbacks
 * run on it, never from inside a call of this header.
 *
 * A server (the router) has many peers, known by identity "name#epoch" and a small handle; a client (a
 * worker) has one peer, handle 0: the server. A stalled peer never stalls the others.
 */
#ifndef FORGE_COMMON_NET_BUS_H
#define FORGE_COMMON_NET_BUS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct fg_loop;
struct fg_keys;
typedef struct fg_bus fg_bus;

typedef struct fg_bus_events {
    /* Server: the first frame of a new identity is about to be delivered. Handles are the smallest free
     * numbers, below FG_LIMIT_WORKERS. Client: connected, and the server answers to this identity. */
    void (*on_up)(void *ctx, uint32_t peer, const char *identity);
    /* One whole frame, at most FG_LIMIT_FRAME_BYTES; valid during the call. */
    void (*on_frame)(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes);
    /* The connection ended or its heartbeats stopped. The handle is free after this call (server);
     * a client keeps trying and says on_up again. */
    void (*on_down)(void *ctx, uint32_t peer);
    void *ctx;
} fg_bus_events;

/* FG_AGAIN: that peer's queue is full. FG_PEER_LOST: no such peer. FG_BAD_INPUT: empty, or larger than
 * FG_LIMIT_FRAME_BYTES. Copies the bytes, never blocks. */
fg_status fg_bus_send(fg_bus *bus, uint32_t peer, const void *bytes, size_t size_bytes);
/* Server: forgets a peer; later frames of its identity come as a new on_up. */
void fg_bus_drop(fg_bus *bus, uint32_t peer);
/* May be called from a callback; no callback follows. NULL is fine. */
void fg_bus_close(fg_bus *bus);
/* Frames refused on arrival: no valid identity, several parts, empty, no room for one more peer. */
uint64_t fg_bus_dropped(const fg_bus *bus);
/* Server: the endpoint really bound ("tcp://127.0.0.1:39021"). */
const char *fg_bus_endpoint(const fg_bus *bus);

/* ZeroMQ ROUTER (server) and DEALER (client): bus_zmq.c. A server endpoint may end in ":*".
 *
 * With keys the bus is encrypted and both ends prove who they are (CURVE): a server hears only clients whose
 * key is in its list, under the name that the list binds to the key; a client speaks only to the server whose
 * key it has. Both ends need keys or neither; a handshake that fails is logged with its reason, a client
 * tries again, a few times a second at most. */
typedef struct fg_bus_zmq_options {
    const char *endpoint;
    const char *identity;       /* "name#epoch"; NULL: a server */
    const struct fg_keys *keys; /* common/net/keys.h; borrowed until closed; NULL: none */
} fg_bus_zmq_options;
fg_status fg_bus_open_zmq(struct fg_loop *loop, const fg_bus_zmq_options *options,
                          const fg_bus_events *events, fg_bus **bus_out, fg_error *err);
/* Server: the list has changed. Nothing more is heard from or sent to a peer whose key is gone, its
 * connection is ended, and on_down follows. */
void fg_bus_zmq_rekey(fg_bus *bus);
/* Whom the keys kept out; handshakes that failed before a key was shown. */
typedef struct fg_bus_refusals {
    uint64_t unknown_key, other_name, handshake;
} fg_bus_refusals;
void fg_bus_zmq_refusals(const fg_bus *bus, fg_bus_refusals *refusals_out);
/* The same without keys. */
fg_status fg_bus_listen_zmq(struct fg_loop *loop, const char *endpoint, const fg_bus_events *events,
                            fg_bus **bus_out, fg_error *err);
/* A client may send at once, but only what is sent after on_up is sure to go to a server that answers. */
fg_status fg_bus_connect_zmq(struct fg_loop *loop, const char *endpoint, const char *identity,
                             const fg_bus_events *events, fg_bus **bus_out, fg_error *err);

/* In one process: bus_mem.c. A hub has one server and any number of clients. `defer` as in link.h: NULL
 * queues frames until fg_bus_hub_deliver; a simulator schedules, loses or doubles them (run may be called
 * more than once; free(arg) exactly once at the end). */
typedef struct fg_bus_hub fg_bus_hub;
typedef struct fg_bus_hub_options {
    void (*defer)(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                  void (*free_arg)(void *arg), void *arg);
    void *ctx;
    struct fg_loop
        *loop; /* when set and defer is NULL: frames are delivered on the loop's next turn */
} fg_bus_hub_options;
fg_status fg_bus_hub_create(const fg_bus_hub_options *options, fg_bus_hub **hub_out, fg_error *err);
void fg_bus_hub_destroy(fg_bus_hub *hub);
size_t fg_bus_hub_deliver(fg_bus_hub *hub); /* delivers what is queued; returns how many frames */
fg_status fg_bus_listen_mem(fg_bus_hub *hub, const fg_bus_events *events, fg_bus **bus_out,
                            fg_error *err);
fg_status fg_bus_connect_mem(fg_bus_hub *hub, const char *identity, const fg_bus_events *events,
                             fg_bus **bus_out, fg_error *err);
/* Cuts one client off: both ends see on_down (deferred like frames); queued frames are lost. After its
 * on_down the client comes back by itself (another on_up, deferred too). A client that is closed sends
 * what it had queued, then the server sees on_down. */
void fg_bus_hub_cut(fg_bus_hub *hub, const char *identity);

#endif
