/*
 * world - a whole cluster in one thread: the real dispatcher, workers and hand-over code over a
 * simulated clock, bus, link and model, driven by one seed.
 *
 * Time moves from event to event. Frames of one connection stay in order but take random time; what is
 * thrown at the processes is listed below. After each event the books of whoever was called are
 * recounted. A broken rule aborts the process, as it would abort a server: who wants to go on runs worlds
 * in a child (hunt.h).
 *
 * Whatever is drawn comes from streams of their own for each request, worker, connection and kind of
 * fault; so leaving some of them out leaves the draws of the others as they were.
 */
#ifndef FORGE_TESTS_SIM_WORLD_H
#define FORGE_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum fg_sim_fault {
    FG_SIM_CRASH,   /* a worker's process dies; another of its name comes later */
    FG_SIM_RESTART, /* the same, and the other comes at once */
    FG_SIM_FREEZE,  /* a worker or the router handles nothing for a while (SIGSTOP) */
    FG_SIM_CUT,     /* a worker's connection breaks and is made again */
    FG_SIM_FLIP,    /* a bit of a block that has arrived and was not checked yet */
    FG_SIM_DOUBLE,  /* a frame comes again, late and out of order */
    FG_SIM_SPIKE,   /* a frame, and those behind it, take up to 250 ms */
    FG_SIM_FULL,    /* the queue of frames from or to a worker is full for a while */
    FG_SIM_SLOW,    /* a worker's connection and link take a hundred times longer for a while */
    FG_SIM_TIGHT,   /* a pool of few blocks, from the start of the process */
    FG_SIM_ROUTER,  /* a router's process dies; clients and workers come again */
    FG_SIM_JUMP,    /* a clock stands still for a while, then jumps to what it should show */
    FG_SIM_ALLOC,   /* one allocation of a process fails */
    FG_SIM_DRAIN,   /* a worker is asked to go, ends what it has, and comes again */
    FG_SIM_FAULT_COUNT,
} fg_sim_fault;

#define FG_SIM_FAULTS_ALL ((1u << FG_SIM_FAULT_COUNT) - 1)

enum {
    FG_SIM_WORKERS_MAX = 5,
    FG_SIM_ROUTERS_MAX = 2,
    FG_SIM_REQUESTS_MAX = 48,
};

/* "crash", ...; the words of --no-fault. */
const char *fg_sim_fault_name(fg_sim_fault fault);

typedef struct fg_sim_options {
    uint64_t seed;
    /* Kinds of faults that may happen. Which of them do, and how often, the seed draws; `forced` makes
     * them all happen. A seed that is odd has none unless they are forced. */
    uint32_t faults;
    bool forced;
    uint64_t requests;        /* bit i: request i is made; the others are only drawn */
    uint32_t workers_max;     /* of those that the seed draws, the first */
    uint32_t routers_max;     /* likewise */
    uint32_t prompt_max;      /* tokens of a prompt; the rest is cut off */
    uint32_t answer_max;      /* max_tokens */
    uint32_t faults_until_ms; /* simulated; later there are none */
    uint64_t until;           /* stops after so many events, wherever it is; 0: at the end */
    size_t flight_bytes;      /* of each process's flight recorder, which is run again; 0: none */
    FILE *history;            /* one line per event; NULL: none */
} fg_sim_options;

/* Everything allowed, nothing left out. */
fg_sim_options fg_sim_options_default(uint64_t seed);

/* Sums; every member is a uint64_t. */
typedef struct fg_sim_report {
    uint64_t worlds, two_routers, events, simulated_ns, tokens;
    uint64_t requests, finished, failed, cancelled, refused;
    uint64_t again;   /* clients that came again after the router's death */
    uint64_t retried; /* placements, by the router */
    uint64_t push_retries, stale_dropped;
    uint64_t hit_tokens, preemptions, swapped, forks, remapped, direct, pulls, pulled;
    uint64_t drafted, accepted; /* guessed tokens */
    uint64_t role_changes, split, circles_avoided, resyncs, held;
    /* Flight records, of routers and of workers; those that began at rest. */
    uint64_t replayed, replayed_rest, replayed_workers, replayed_workers_rest, replayed_calls;
    uint64_t faults[FG_SIM_FAULT_COUNT];
} fg_sim_report;

void fg_sim_report_add(fg_sim_report *sum, const fg_sim_report *report);

/* Runs one world to its end. Aborts when a rule is broken; `report` is kept up to date, so that it may lie
 * in memory that outlives the process. */
void fg_sim_run(const fg_sim_options *options, fg_sim_report *report);

/* For tests of the simulator itself: a world in which connections were cut then counts a token of a
 * longer prompt as wrong. Nothing but a test sets it. */
extern bool fg_sim_planted;

#endif
