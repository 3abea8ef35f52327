/*
 * world_internal - what the files of the world share.
 *
 *   world.c          a run: what must hold after each event and in the end
 *   world_net.c      how long frames and copies take
 *   world_worker.c   the processes of the workers
 *   world_client.c   the processes of the routers and their clients, who know every answer beforehand
 *   world_fault.c    what is thrown at them
 *   world_history.c  what is printed
 */
#ifndef FORGE_TESTS_SIM_WORLD_INTERNAL_H
#define FORGE_TESTS_SIM_WORLD_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/rng.h"
#include "common/kv/layout.h"
#include "common/kv/tier.h"
#include "common/link/link.h"
#include "common/net/bus.h"
#include "common/worker/worker.h"
#include "router/dispatch.h"
#include "tests/sim/sim_draft.h"
#include "tests/sim/timeline.h"
#include "tests/sim/world.h"

enum {
    SIM_ROUTER = FG_SIM_WORKERS_MAX, /* the index of the first one's process */
    SIM_LINES = 8,                   /* connections of one worker that are remembered, by epoch */
    SIM_EOS = 3,
    SIM_TICK_NS = 10 * 1000 * 1000,
    SIM_LEASE_MS = 300,
};
#define SIM_MS 1000000ull

typedef struct fg_sim_world sim_world;
typedef fg_timeline_event sim_event;

/* Which way a frame goes. */
typedef enum sim_way { SIM_TO_SERVER, SIM_TO_CLIENT, SIM_WAYS } sim_way;

/* One way of one connection: frames of it stay in order. */
typedef struct sim_line {
    uint64_t epoch, last_ns;
} sim_line;

/* What can happen to any process. */
typedef struct sim_process {
    char name[16];
    uint64_t clock_ns;        /* what it takes for the time */
    uint64_t frozen_until_ns; /* handles nothing */
    uint64_t halted_until_ns; /* its clock stands still */
    uint32_t fail_nth;        /* allocation of its next turns that fails; 0: none */
} sim_process;

typedef struct sim_router {
    sim_process process;
    sim_world *world;
    uint32_t index;
    uint64_t life;
    fg_bus_hub *hub; /* its address: all of its processes' */
    fg_bus *bus;
    fg_dispatch *dispatch; /* NULL: it is dead */
    fg_flight *flight;     /* NULL: nobody looks */
} sim_router;

/* A worker's connection to one router. */
typedef struct sim_door {
    struct sim_worker *worker;
    uint32_t router;
    uint64_t epoch;
    fg_bus *bus;
} sim_door;

typedef struct sim_worker {
    sim_process process;
    sim_world *world;
    uint32_t index;
    uint32_t roles, block_count;
    uint64_t life; /* grows with each process; 0: none was started yet */
    bool alive, draining, engine_due;
    uint64_t drain_until_ns;
    sim_door doors[FG_SIM_ROUTERS_MAX];
    uint64_t step_ns; /* that a step takes at most, about */
    uint64_t slow_until_ns;
    uint64_t full_until_ns[SIM_WAYS];
    sim_line lines[SIM_WAYS][SIM_LINES];
    fg_rng ticks, frames[SIM_WAYS], copies;
    fg_tier *tier; /* NULL: none */
    void *arena;
    fg_link *link;
    fg_engine *engine;
    fg_sim_draft *draft; /* NULL: none */
    fg_worker *worker;
    fg_flight *flight; /* NULL: nobody looks */
    fg_link_events link_events;
} sim_worker;

typedef struct sim_request {
    sim_world *world;
    uint32_t index;
    fg_rng rng;
    uint32_t *tokens; /* prompt, then the answer */
    uint32_t prompt_count, count;
    uint32_t scored; /* tokens of the prompt that something was said of */
    bool embedded;
    uint32_t router; /* that it goes to, or went to */
    fg_dispatch_job job;
    uint64_t id;
    bool left_out;
    bool started, ended, refused, cancelled;
    fg_finish finish;
    uint8_t shown_state; /* for the history */
    uint32_t shown_attempt;
} sim_request;

struct fg_sim_world {
    fg_sim_options options;
    fg_sim_report *report;
    fg_timeline time;
    fg_link_hub *link_hub;
    sim_router routers[FG_SIM_ROUTERS_MAX];
    uint32_t router_count;
    fg_dispatch_stats router_stats; /* of the routers that died, added up */
    fg_kv_layout layout;
    uint32_t
        vocab_size; /* small in every other world: texts repeat, and guesses at them are right now and then */
    sim_worker workers[FG_SIM_WORKERS_MAX];
    uint32_t worker_count;
    sim_request requests[FG_SIM_REQUESTS_MAX];
    uint32_t request_count;
    uint32_t enabled; /* kinds of faults */
    fg_rng fault_rngs[FG_SIM_FAULT_COUNT];
    uint64_t fault_gaps_ns[FG_SIM_FAULT_COUNT]; /* on average */
    uint32_t double_rate, spike_rate;           /* of ten thousand frames */
    bool may_fail;                              /* something happened that a request may die of */
    bool burst;                                 /* all requests come at once, and pools are small */
    bool quiet;                                 /* no more faults */
    uint32_t touched;                           /* processes called since the last check */
    uint64_t progress_ns;                       /* something moved that is no timer */
    uint64_t settled_ns;                        /* the last request ended */
    uint32_t cuts;
    fg_arena *inbox; /* for the history */
};

/* A stream of its own for each thing that is drawn. */
typedef enum sim_stream {
    SIM_STREAM_SHAPE,
    SIM_STREAM_REQUEST,
    SIM_STREAM_WORKER,
    SIM_STREAM_TICKS,
    SIM_STREAM_FRAMES,
    SIM_STREAM_COPIES = SIM_STREAM_FRAMES + SIM_WAYS,
    SIM_STREAM_FAULT,
    SIM_STREAM_ROUTER,
} sim_stream;

static inline fg_rng sim_rng(const sim_world *w, sim_stream stream, uint32_t index, uint64_t life)
{
    return (
        fg_rng){ fg_rng_counter(fg_hash_mix(w->options.seed) ^ life, (uint32_t)stream, index, 0) };
}

static inline uint64_t sim_below(fg_rng *rng, uint64_t bound)
{
    return fg_rng_below(rng, bound);
}

static inline bool sim_chance(fg_rng *rng, uint32_t per_thousand)
{
    return fg_rng_below(rng, 1000) < per_thousand;
}

static inline uint64_t sim_now(const sim_world *w)
{
    return w->time.now_ns;
}

/* world.c */
void sim_push(sim_world *w, const sim_event *event);
sim_process *sim_process_at(sim_world *w, uint64_t index);
/* Around every call into a process: its clock is set, its allocation fails, its books are due. */
void sim_enter(sim_world *w, sim_process *process);
void sim_leave(sim_world *w, sim_process *process);
/* A frozen process handles the event when it thaws: true, and the caller returns. */
bool sim_postponed(sim_world *w, const sim_event *event);

/* world_net.c */
void sim_defer_frame(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                     void (*free_arg)(void *arg), void *arg);
void sim_defer_link(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                    void (*drop)(void *arg), void *arg);
bool sim_queue_full(sim_world *w, sim_worker *s, sim_way way);
/* The worker behind a bus identity ("w1#2000") or a link's name ("w1"); NULL: none, or the router. */
sim_worker *sim_worker_named(sim_world *w, const char *identity);

/* world_worker.c */
void sim_build_cluster(sim_world *w);
void sim_start_worker(sim_world *w, sim_worker *s);
void sim_stop_worker(sim_world *w, sim_worker *s);

/* world_client.c */
void sim_build_routers(sim_world *w);
void sim_start_router(sim_router *router);
void sim_stop_router(sim_router *router); /* clients that wait come again, perhaps elsewhere */
void sim_close_router(sim_router *router);
/* It can be called now. */
bool sim_router_hears(const sim_router *router);
void sim_make_requests(sim_world *w);
bool sim_request_live(const sim_request *r);
/* Started or still to come. */
bool sim_request_open(const sim_request *r);

/* world_fault.c */
void sim_plan_faults(sim_world *w);
void sim_count_fault(sim_world *w, fg_sim_fault fault, const char *who, const char *detail);

/* world_history.c */
void sim_note(const sim_world *w, const char *who, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void sim_note_frame(const sim_world *w, const char *who, const char *what, const char *peer,
                    const void *bytes, size_t size_bytes);
/* Requests whose state at the router has changed. */
void sim_note_states(sim_world *w);
void sim_describe(const sim_world *w, FILE *out);

/* world_flight.c: NULL where the options want none. Closing runs the record again. */
fg_flight *sim_open_flight(sim_world *w, const fg_dispatch_options *options);
fg_flight *sim_open_worker_flight(sim_world *w, const fg_worker_options *options);
void sim_close_flight(sim_world *w, fg_flight *flight);

#endif
