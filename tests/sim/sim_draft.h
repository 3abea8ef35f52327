/*
 * sim_draft - a draft model for simulated engines: a second one that knows the same answers and says something else now
 * and then, as often as a seed says. Its KV is checked as the other's: what a stale slot makes it say is wrong too.
 */
#ifndef FORGE_TESTS_SIM_SIM_DRAFT_H
#define FORGE_TESTS_SIM_SIM_DRAFT_H

#include "common/engine/drafter.h"
#include "common/engine/engine_sim.h"

typedef struct fg_sim_draft fg_sim_draft;

/* For an engine with these options. Half of all seeds give it few blocks, or a short context. */
fg_sim_draft *fg_sim_draft_open(const fg_engine_sim_options *target, uint64_t seed);
/* Its books are compared before. */
void fg_sim_draft_close(fg_sim_draft *draft);
fg_drafter *fg_sim_draft_drafter(fg_sim_draft *draft);
uint32_t fg_sim_draft_context(const fg_sim_draft *draft);

#endif
