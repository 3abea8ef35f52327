/*
 * bus_guard - the keys of one end of the ZeroMQ bus. For bus_zmq.c and its tests only; owned by the bus,
 * on the loop's thread.
 *
 * A server's guard answers ZeroMQ's question whether a key may come (ZAP, RFC 27): ZeroMQ's own thread asks
 * over inproc, the loop answers. ZeroMQ lets everybody in when nobody answers at that address, so the guard
 * is there before the endpoint is bound and until it is gone, and the bus asks again about each frame: one
 * that carries no key of the list is dropped, however it got in.
 */
#ifndef FORGE_COMMON_NET_BUS_GUARD_H
#define FORGE_COMMON_NET_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/net/keys.h"

typedef struct fg_bus_guard fg_bus_guard;

/* Puts the keys into a ROUTER (server) or DEALER socket, before it is bound or connected. */
fg_status fg_bus_guard_arm(void *socket, const fg_keys *keys, bool server, fg_error *err);

/* `context`: ZeroMQ's. The keys are borrowed until close. */
fg_status fg_bus_guard_open(void *context, const fg_keys *keys, fg_bus_guard **guard_out,
                            fg_error *err);
void fg_bus_guard_close(fg_bus_guard *guard);   /* after the guarded socket; NULL is fine */
void *fg_bus_guard_socket(fg_bus_guard *guard); /* readable: call serve */
bool fg_bus_guard_serve(fg_bus_guard *guard);   /* answers some questions; true: there are more */

/* May this frame be read? `key` as ZeroMQ attached it (NULL: none), `identity` "name#epoch". Counts and logs
 * a refusal. */
bool fg_bus_guard_admits(fg_bus_guard *guard, const char *key, const char *identity, size_t length);
/* Is the key still in the list, under this identity? Counts nothing. */
bool fg_bus_guard_knows(const fg_bus_guard *guard, const char *key, const char *identity);
void fg_bus_guard_counts(const fg_bus_guard *guard, uint64_t *unknown_key_out,
                         uint64_t *other_name_out);

/* What a failed handshake (an event of the socket's monitor) means, in words for the operator. NULL: nothing
 * that keys explain. */
const char *fg_bus_guard_explain(uint16_t event, int32_t value, bool server, bool has_keys);

/* --- what was said lately, so that a flood of strangers is a few lines of log --- */

enum { FG_GUARD_NOTES = 64 };
#define FG_GUARD_NOTE_NS (60ull * 1000 * 1000 * 1000)

typedef struct fg_guard_notes {
    struct {
        char key[FG_KEY_TEXT_BYTES + 1]; /* "": free */
        uint64_t at_ns;
    } items[FG_GUARD_NOTES];
} fg_guard_notes;

/* True when this key was not noted within the last minute; notes it. With FG_GUARD_NOTES others noted
 * within the minute: false. */
bool fg_guard_notes_due(fg_guard_notes *notes, const char *key, uint64_t now_ns);

#endif
