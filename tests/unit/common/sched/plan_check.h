/*
 * plan_check - what must hold of every plan, whatever the snapshot: written anew and slowly, so that it
 * shares no mistake with the planner.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_SCHED_PLAN_CHECK_H
#define FORGE_TESTS_UNIT_COMMON_SCHED_PLAN_CHECK_H

#include "common/sched/sched.h"

enum { CHECK_SEQS_MAX = 4096 };

/* NULL when all is well, else a sentence; what it speaks of is in the plan. */
const char *check_plan(const fg_sched_input *in, const fg_sched_plan *plan);

#endif
