/* Making a ZeroMQ bus: its sockets, their options, and what wakes the loop for them. */
#include "common/net/bus_zmq.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/net/bus.h"

enum {
    HEARTBEAT_MS = 300,
    /* Only for a network that went away: a dead process closes its socket, and silence is judged by the
     * router's leases. Longer than a pause of a host, which ends no connection by itself. */
    HEARTBEAT_TIMEOUT_MS = 5000,
    HANDSHAKE_MS = 2000,
    RECONNECT_MS = 50,
    RECONNECT_MAX_MS = 500,
};

fg_status fg_zmq_status(int rc, const char *what, fg_status otherwise, fg_error *err)
{
    if (rc >= 0) {
        return FG_OK;
    }
    int code = zmq_errno();
    fg_status status = code == ENOMEM || code == EMFILE ? FG_AGAIN : otherwise;
    return fg_fail(err, status, "%s: %s", what, zmq_strerror(code));
}

static fg_status set_options(fg_zmq_bus *bus, const char *endpoint, const char *identity,
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
            return fg_zmq_status(-1, "socket option", FG_BROKEN, err);
        }
    }
    /* Without a bound one hostile frame could announce any size. */
    int64_t frame_max = FG_LIMIT_FRAME_BYTES;
    if (zmq_setsockopt(bus->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max) != 0) {
        return fg_zmq_status(-1, "socket option", FG_BROKEN, err);
    }
    if (bus->is_server) {
        /* Mandatory: an unknown or full peer is an error, not a silent loss. HANDOVER stays off: nobody
         * takes over the name of a live peer. */
        int mandatory = 1;
        return fg_zmq_status(
            zmq_setsockopt(bus->socket, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory),
            "socket option", FG_BROKEN, err);
    }
    return fg_zmq_status(zmq_setsockopt(bus->socket, ZMQ_ROUTING_ID, identity, strlen(identity)),
                         "socket identity", FG_BROKEN, err);
}

static fg_status open_sockets(fg_zmq_bus *bus, const char *endpoint, const char *identity,
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
    return fg_zmq_open_monitor(bus, err);
}

static void woken(void *ctx)
{
    /* The loop is awake now; fg_zmq_before_sleep runs before it sleeps again. */
}

static fg_status watch_socket(fg_zmq_bus *bus, void *socket, fg_watch **watch_out, fg_error *err)
{
    int fd = -1;
    size_t size = sizeof fd;
    if (zmq_getsockopt(socket, ZMQ_FD, &fd, &size) != 0) {
        return fg_zmq_status(-1, "socket descriptor", FG_BROKEN, err);
    }
    fg_status status = fg_watch_start(bus->loop, fd, woken, bus, watch_out);
    return status == FG_OK ? FG_OK : fg_fail(err, status, "bus: cannot watch a socket");
}

static fg_status attach(fg_zmq_bus *bus, fg_error *err)
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
    status = fg_hook_start(bus->loop, fg_zmq_before_sleep, bus, &bus->hook);
    return status == FG_OK ? FG_OK : fg_fail(err, status, "bus: out of memory");
}

static fg_status bind_endpoint(fg_zmq_bus *bus, const char *endpoint, fg_error *err)
{
    char what[FG_ZMQ_ENDPOINT_MAX + 16];
    snprintf(what, sizeof what, "bind %s", endpoint);
    fg_status status = fg_zmq_status(zmq_bind(bus->socket, endpoint), what, FG_BAD_INPUT, err);
    size_t size = sizeof bus->endpoint;
    if (status == FG_OK) {
        status = fg_zmq_status(zmq_getsockopt(bus->socket, ZMQ_LAST_ENDPOINT, bus->endpoint, &size),
                               "bound endpoint", FG_BROKEN, err);
    }
    return status;
}

static fg_status connect_endpoint(fg_zmq_bus *bus, const char *endpoint, fg_error *err)
{
    char what[FG_ZMQ_ENDPOINT_MAX + 16];
    snprintf(what, sizeof what, "connect %s", endpoint);
    snprintf(bus->endpoint, sizeof bus->endpoint, "%s", endpoint);
    fg_status status = fg_zmq_status(zmq_connect(bus->socket, endpoint), what, FG_BAD_INPUT, err);
    return status == FG_OK ? fg_zmq_send_greeting(bus) : status;
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
    if (strlen(endpoint) >= FG_ZMQ_ENDPOINT_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "bus: endpoint longer than %d bytes",
                       FG_ZMQ_ENDPOINT_MAX - 1);
    }
    if (!port_valid(endpoint)) {
        return fg_fail(err, FG_BAD_INPUT, "bus: %s: port is beyond 65535", endpoint);
    }
    if (identity != NULL && !fg_bus_identity_valid(identity, strlen(identity))) {
        return fg_fail(err, FG_BAD_INPUT, "bus: identity must be 1 to %d printable characters",
                       FG_BUS_IDENTITY_MAX);
    }
    fg_zmq_bus *bus = fg_mem_alloc(sizeof *bus);
    if (bus == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    bus->base.ops = &fg_zmq_ops;
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
        bus->base.ops->close(&bus->base);
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
