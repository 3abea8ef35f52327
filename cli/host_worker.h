/*
 * host_worker - a worker inside a process: engine, KV arena, link, bus client and (for its own port)
 * status pages on one loop. Owned by the loop thread.
 */
#ifndef FORGE_CLI_HOST_WORKER_H
#define FORGE_CLI_HOST_WORKER_H

#include "cli/model.h"
#include "common/conf/options.h"
#include "common/net/bus.h"
#include "common/net/keys.h"
#include "common/net/loop.h"
#include "common/obs/flight.h"
#include "common/obs/metrics.h"
#include "common/obs/spans.h"
#include "common/obs/trace.h"

typedef struct fg_host_worker fg_host_worker;

/* What the process around it gives a worker. */
typedef struct fg_host_worker_place {
    uint32_t roles; /* FG_ROLE_* */
    fg_metrics *metrics;
    fg_trace *trace;     /* NULL: nobody looks */
    fg_spans *spans;     /* likewise */
    fg_start *start;     /* counts the time; NULL: nobody does */
    const fg_keys *keys; /* for ZeroMQ; borrowed; NULL: none */
    fg_bus_hub
        *hub; /* given: the router is in this process, no link; else ZeroMQ connects to --router,
                        and UCX links */
} fg_host_worker_place;

fg_status fg_host_worker_open(fg_loop *loop, const fg_serve_config *config,
                              const fg_loaded_model *model, const fg_host_worker_place *place,
                              fg_host_worker **worker_out, fg_error *err);
void fg_host_worker_close(fg_host_worker *worker);
void fg_host_worker_drain(fg_host_worker *worker);
/* Every sequence that still runs ends with an error, which the router is told. */
void fg_host_worker_abort(fg_host_worker *worker);
/* SIGUSR2: writes the flight record. */
void fg_host_worker_write_flight(fg_host_worker *worker);
/* NULL: none is kept. */
const fg_flight *fg_host_worker_flight(const fg_host_worker *worker);
bool fg_host_worker_idle(const fg_host_worker *worker);
bool fg_host_worker_joined(const fg_host_worker *worker);
uint32_t fg_host_worker_blocks(const fg_host_worker *worker);
const fg_engine *fg_host_worker_engine(const fg_host_worker *worker);
const char *fg_host_worker_class(const fg_host_worker *worker);

#endif
