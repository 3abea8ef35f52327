#include "common/net/bus_guard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <zmq.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/bus_internal.h"

enum { SERVE_MAX = 64, PART_MAX = 256, PARTS = 7 };

static const char domain[] = "forge";

struct fg_bus_guard {
    const fg_keys *keys;
    void *socket; /* REP */
    fg_clock clock;
    fg_guard_notes notes;
    uint64_t unknown_key, other_name;
};

/* --- options and opening --- */

fg_status fg_bus_guard_arm(void *socket, const fg_keys *keys, bool server, fg_error *err)
{
    int on = 1;
    bool fine = zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, fg_keys_secret(keys),
                               FG_KEY_TEXT_BYTES + 1) == 0 &&
                zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, fg_keys_public(keys),
                               FG_KEY_TEXT_BYTES + 1) == 0;
    if (server) {
        fine = fine && zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &on, sizeof on) == 0 &&
               zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, domain, sizeof domain - 1) == 0;
    } else {
        fine = fine && zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, fg_keys_router(keys),
                                      FG_KEY_TEXT_BYTES + 1) == 0;
    }
    return fine ? FG_OK
                : fg_fail(err, FG_BROKEN, "bus: ZeroMQ does not take the keys: %s",
                          zmq_strerror(zmq_errno()));
}

fg_status fg_bus_guard_open(void *context, const fg_keys *keys, fg_bus_guard **guard_out,
                            fg_error *err)
{
    fg_bus_guard *guard = fg_mem_alloc(sizeof *guard);
    if (guard == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    guard->keys = keys;
    guard->clock = fg_clock_real();
    guard->socket = fg_fault_hit() ? NULL : zmq_socket(context, ZMQ_REP);
    int none = 0;
    if (guard->socket == NULL) {
        fg_mem_free(guard);
        return fg_fail(err, FG_AGAIN, "bus: no socket for the keys");
    }
    if (zmq_setsockopt(guard->socket, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_bind(guard->socket, "inproc://zeromq.zap.01") != 0) {
        fg_status status =
            fg_fail(err, FG_BROKEN, "bus: nobody would check keys: %s", zmq_strerror(zmq_errno()));
        fg_bus_guard_close(guard);
        return status;
    }
    *guard_out = guard;
    return FG_OK;
}

void fg_bus_guard_close(fg_bus_guard *guard)
{
    if (guard != NULL) {
        zmq_close(guard->socket);
        fg_mem_free(guard);
    }
}

void *fg_bus_guard_socket(fg_bus_guard *guard)
{
    return guard->socket;
}

/* --- notes --- */

bool fg_guard_notes_due(fg_guard_notes *notes, const char *key, uint64_t now_ns)
{
    int place = -1;
    for (int i = 0; i < FG_GUARD_NOTES; i++) {
        bool old =
            notes->items[i].key[0] == '\0' || now_ns - notes->items[i].at_ns >= FG_GUARD_NOTE_NS;
        if (!old && strcmp(notes->items[i].key, key) == 0) {
            return false;
        }
        place = old && place < 0 ? i : place;
    }
    if (place < 0) {
        return false;
    }
    snprintf(notes->items[place].key, sizeof notes->items[place].key, "%s", key);
    notes->items[place].at_ns = now_ns;
    return true;
}

/* A public key is no secret: with it in the log the operator can compare or allow it. */
static void say_unknown(fg_bus_guard *guard, const char *key, const char *from)
{
    guard->unknown_key++;
    if (fg_guard_notes_due(&guard->notes, key, fg_clock_now_ns(&guard->clock))) {
        fg_warn("bus",
                "event=key_refused key=%s from=%s total=%" PRIu64 " why=\"not in the allow-list\"",
                key, from, guard->unknown_key);
    }
}

/* --- the questions of ZeroMQ --- */

typedef struct request {
    char parts[PARTS][PART_MAX + 1];
    size_t sizes[PARTS];
    int count; /* PARTS + 1: more than there should be */
} request;

/* False: none is there. */
static bool read_request(fg_bus_guard *guard, request *out)
{
    out->count = 0;
    for (int more = 1; more;) {
        char part[PART_MAX + 1];
        int size = zmq_recv(guard->socket, part, PART_MAX, ZMQ_DONTWAIT);
        if (size < 0) {
            return false;
        }
        if (out->count < PARTS) {
            size_t kept = size <= PART_MAX ? (size_t)size : 0;
            memcpy(out->parts[out->count], part, kept);
            out->parts[out->count][kept] = '\0';
            out->sizes[out->count] = kept;
        }
        out->count += out->count <= PARTS;
        size_t length = sizeof more;
        if (zmq_getsockopt(guard->socket, ZMQ_RCVMORE, &more, &length) != 0) {
            return false;
        }
    }
    return true;
}

static bool part_is(const request *in, int index, const char *text)
{
    return in->sizes[index] == strlen(text) && memcmp(in->parts[index], text, strlen(text)) == 0;
}

static void send_part(fg_bus_guard *guard, const char *text, bool last)
{
    (void)zmq_send(guard->socket, text, strlen(text), ZMQ_DONTWAIT | (last ? 0 : ZMQ_SNDMORE));
}

/* Version, request, domain, address, identity, mechanism, key. The identity is the server's own; a peer's
 * name is only known from its frames. */
static void answer(fg_bus_guard *guard, const request *in)
{
    char key[FG_KEY_TEXT_BYTES + 1] = "";
    bool sound = in->count == PARTS && part_is(in, 0, "1.0") && part_is(in, 2, domain) &&
                 part_is(in, 5, "CURVE") && in->sizes[6] == FG_KEY_BYTES &&
                 zmq_z85_encode(key, (const uint8_t *)in->parts[6], FG_KEY_BYTES) != NULL;
    bool fine = sound && fg_keys_check(guard->keys, key, NULL) == FG_KEY_FINE;
    if (!fine) {
        say_unknown(guard, sound ? key : "none", in->count > 3 ? in->parts[3] : "unknown");
    }
    send_part(guard, "1.0", false);
    send_part(guard, in->count > 1 ? in->parts[1] : "", false);
    send_part(guard, fine ? "200" : "400", false);
    send_part(guard, fine ? "OK" : "key not allowed", false);
    send_part(guard, fine ? key : "", false);
    send_part(guard, "", true);
}

bool fg_bus_guard_serve(fg_bus_guard *guard)
{
    request in;
    int count = 0;
    while (count < SERVE_MAX && read_request(guard, &in)) {
        answer(guard, &in);
        count++;
    }
    return count == SERVE_MAX;
}

/* --- frames --- */

/* "name#epoch" without the epoch. */
static void name_of(const char *identity, size_t length, char name_out[FG_BUS_IDENTITY_MAX + 1])
{
    size_t end = length < FG_BUS_IDENTITY_MAX ? length : FG_BUS_IDENTITY_MAX;
    memcpy(name_out, identity, end);
    name_out[end] = '\0';
    char *hash = strrchr(name_out, '#');
    if (hash != NULL) {
        *hash = '\0';
    }
}

bool fg_bus_guard_knows(const fg_bus_guard *guard, const char *key, const char *identity)
{
    char name[FG_BUS_IDENTITY_MAX + 1];
    name_of(identity, strlen(identity), name);
    return fg_keys_check(guard->keys, key, name) == FG_KEY_FINE;
}

bool fg_bus_guard_admits(fg_bus_guard *guard, const char *key, const char *identity, size_t length)
{
    char name[FG_BUS_IDENTITY_MAX + 1];
    name_of(identity, length, name);
    fg_key_verdict verdict = fg_keys_check(guard->keys, key, name);
    if (verdict == FG_KEY_UNKNOWN) {
        say_unknown(guard, key != NULL ? key : "none", name);
    } else if (verdict == FG_KEY_OTHER_NAME) {
        guard->other_name++;
        if (fg_guard_notes_due(&guard->notes, key, fg_clock_now_ns(&guard->clock))) {
            fg_warn("bus",
                    "event=key_refused key=%s worker=%s total=%" PRIu64
                    " why=\"the allow-list binds this key or this name otherwise\"",
                    key, name, guard->other_name);
        }
    }
    return verdict == FG_KEY_FINE;
}

void fg_bus_guard_counts(const fg_bus_guard *guard, uint64_t *unknown_key_out,
                         uint64_t *other_name_out)
{
    *unknown_key_out = guard->unknown_key;
    *other_name_out = guard->other_name;
}

/* --- words for failed handshakes --- */

const char *fg_bus_guard_explain(uint16_t event, int32_t value, bool server, bool has_keys)
{
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
        /* A server has said itself whom it refused. */
        return server ? NULL
                      : "the router does not know this worker's key: add it to its file "
                        "`allowed` and send the router SIGHUP";
    }
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL &&
        value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
        return server ? (has_keys ? "a peer came without keys"
                                  : "a peer came with keys: give the "
                                    "router its own with --keys")
                      : (has_keys ? "the router has no keys: start it with --keys"
                                  : "the router wants keys: start this worker with --keys");
    }
    if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) {
        return server && has_keys ? "a peer does not have this router's public key, or is no peer"
                                  : "the other side does not speak as a peer would";
    }
    if (server) {
        return NULL;
    }
    /* A router with keys hangs up on one without before that one has read why, more often than not. */
    return has_keys
               ? "the router ended the handshake: this worker's file `router` may hold the key "
                 "of another router"
               : "the router ended the handshake: if it has keys, start this worker with --keys";
}
