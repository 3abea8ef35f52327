/*
 * fleet_internal - what fleet.c (requests, the router, what is seen) and fleet_node.c (workers and what
 * travels between processes) share. Private to the fleet.
 */
#ifndef FORGE_TESTS_SIM_FLEET_INTERNAL_H
#define FORGE_TESTS_SIM_FLEET_INTERNAL_H

#include "common/base/rng.h"
#include "common/link/link.h"
#include "common/net/bus.h"
#include "common/worker/worker.h"
#include "router/dispatch.h"
#include "tests/sim/fleet.h"
#include "tests/sim/timeline.h"

#define FG_FLEET_MS 1000000ull
enum { FG_FLEET_TICK_IDLE_MS = 100, FG_FLEET_VOCAB = 32000 };

typedef struct fg_fleet fg_fleet;

typedef struct fg_fleet_node {
    fg_fleet *fleet;
    char name[16];
    fg_fleet_role role;
    uint32_t roles;
    bool fast, stepping;
    double slow; /* its steps take so many times longer than the table says */
    uint32_t quiet_beats;
    uint64_t beat; /* only the beat of this number counts */
    uint64_t wire_free_ns;
    uint64_t busy_seen_ns; /* by the last sample */
    fg_bus *bus;
    fg_link *link;
    fg_engine *engine;
    fg_worker *worker;
    fg_link_events link_events;
} fg_fleet_node;

/* What a hub wants done later. */
typedef struct fg_fleet_parcel {
    fg_fleet *fleet;
    struct fg_fleet_parcel *next; /* among the free ones */
    fg_fleet_node *from, *to;     /* NULL: the router */
    void (*run)(void *arg);
    void (*end)(void *arg);
    void *arg;
} fg_fleet_parcel;

typedef struct fg_fleet_live {
    fg_fleet *fleet;
    uint32_t index;
    uint64_t last_ns;
    uint32_t *tokens;
    struct fg_fleet_live *next, **place; /* among all that are under way */
} fg_fleet_live;

struct fg_fleet {
    const fg_fleet_options *options;
    fg_fleet_setup setup;
    fg_timeline timeline;
    fg_rng rng;
    fg_bus_hub *bus_hub;
    fg_link_hub *link_hub;
    fg_bus *router_bus;
    fg_dispatch *dispatch;
    fg_kv_layout layout;
    fg_fleet_node *nodes;
    uint32_t node_count;
    fg_fleet_parcel *free_parcels;
    fg_fleet_live *lives;
    uint64_t push_ns, message_ns;
    uint64_t zero_ns;    /* when the first request comes */
    bool began, closing; /* closing: the links' words arrive nowhere */
    uint64_t sample_ns, busy_before[FG_FLEET_ROLES];
    uint32_t ended;
    uint64_t last_end_ns;
    fg_fleet_result *result; /* NULL: given away */
    fg_status broken;
    fg_error *err;
};

/* ---- fleet.c ---- */

/* A cluster before its first event. Callbacks know its address: it stays where it is until closed. */
fg_status fg_fleet_open(const fg_fleet_options *options, fg_fleet *fleet_out, fg_error *err);
void fg_fleet_close(fg_fleet *fleet);

/* ---- fleet_node.c ---- */

/* Out of memory is remembered in `broken`, and ends the run. */
void fg_fleet_push(fg_fleet *fleet, uint64_t at_ns, fg_timeline_fire *fire, uint64_t index);
/* The hubs' `defer`; ctx is the fleet. */
void fg_fleet_defer_frame(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                          void (*free_arg)(void *arg), void *arg);
void fg_fleet_defer_item(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                         void (*drop)(void *arg), void *arg);
fg_sched_limits fg_fleet_limits(const fg_fleet_setup *setup);
/* What it opened before a failure, fg_fleet_close_node closes. */
fg_status fg_fleet_open_node(fg_fleet *fleet, uint32_t index, fg_fleet_role role, bool slow,
                             fg_error *err);
void fg_fleet_close_node(fg_fleet *fleet, fg_fleet_node *node);

#endif
