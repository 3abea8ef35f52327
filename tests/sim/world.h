/*
 * world - a whole cluster in one thread: the real dispatcher, workers and hand-over code over a
 * simulated clock, bus, link and model, driven by one seed.
 *
 * Time moves from event to event. Frames of one connection stay in order but take random time; frames
 * are doubled and come again late; workers crash, freeze, lose their connection and come back; arrived
 * blocks are damaged. After each event the books of everybody are recounted.
 */
#ifndef FORGE_TESTS_SIM_WORLD_H
#define FORGE_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_options {
    uint64_t seed;
    bool faults;
    bool verbose;
} sim_options;

typedef struct sim_report {
    uint64_t events, tokens;
    uint32_t requests, finished, failed, cancelled, refused;
    uint32_t crashes, freezes, cuts, flips, doubled;
    uint64_t push_retries, stale_dropped, retried;
    uint64_t hit_tokens, preemptions, swapped, forks,
        remapped; /* of workers, summed at their end */
    double simulated_s;
} sim_report;

/* Runs one world to its end. Aborts (naming the seed) when a rule is broken. */
void sim_run(const sim_options *options, sim_report *report_out);

#endif
