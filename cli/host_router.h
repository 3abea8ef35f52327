/*
 * host_router - a router inside a process: bus server, dispatcher and HTTP front on one loop. Owned by
 * the loop thread.
 */
#ifndef FORGE_CLI_HOST_ROUTER_H
#define FORGE_CLI_HOST_ROUTER_H

#include "cli/model.h"
#include "common/base/clock.h"
#include "common/conf/options.h"
#include "common/net/bus.h"
#include "common/net/api_keys.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/obs/metrics.h"
#include "common/obs/spans.h"
#include "common/obs/trace.h"

typedef struct fg_host_router fg_host_router;

/* What the process around it gives a router. */
typedef struct fg_host_router_place {
    fg_metrics *metrics;
    fg_trace *trace;             /* NULL: nobody looks */
    fg_spans *spans;             /* likewise */
    fg_keys *keys;               /* for ZeroMQ; borrowed; NULL: none */
    const fg_api_keys *api_keys; /* that clients must show; borrowed; NULL: nobody is asked */
    fg_bus_hub *hub; /* given: workers are in this process; else ZeroMQ listens on --control */
} fg_host_router_place;

fg_status fg_host_router_open(fg_loop *loop, const fg_serve_config *config,
                              const fg_loaded_model *model, const fg_host_router_place *place,
                              fg_host_router **router_out, fg_error *err);
void fg_host_router_close(fg_host_router *router);
uint16_t fg_host_router_port(const fg_host_router *router);
/* Whether a request would be taken now. */
bool fg_host_router_ready(const fg_host_router *router);
/* "" with a hub. */
const char *fg_host_router_control(const fg_host_router *router);
/* With keys, at SIGHUP: reads the list of the keys again; workers that are no longer in it are cut off. */
void fg_host_router_reload_keys(fg_host_router *router);
/* SIGUSR2: writes the flight record. */
void fg_host_router_write_flight(fg_host_router *router);
/* Stops being ready; idle is true when every answer has ended. */
void fg_host_router_drain(fg_host_router *router);
/* Every request that still runs ends with an error. */
void fg_host_router_abort(fg_host_router *router);
bool fg_host_router_idle(const fg_host_router *router);

#endif
