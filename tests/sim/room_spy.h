/*
 * room_spy - stands between a worker and its engine, passes everything on, and judges each step that is
 * begun: that it does something, keeps to the limits, and that nobody writes a block or a slot that
 * somebody else of this step, or of the one in flight before it, reads or writes.
 */
#ifndef FORGE_TESTS_SIM_ROOM_SPY_H
#define FORGE_TESTS_SIM_ROOM_SPY_H

#include "common/engine/engine.h"
#include "common/sched/sched.h"

typedef struct room_spy {
    fg_engine base; /* give this one to the worker */
    fg_engine *inner;
    fg_sched_limits limits;
    uint32_t block_count, slot_count;
    const fg_step *steps[FG_ENGINE_STEPS_MAX]; /* in flight, the oldest first */
    uint32_t in_flight;
    /* Per block: who writes it in the step being judged (item + 1, or SPY_COPY); per block and slot: in
     * whose table it was last seen, and which copy of the step writes or reads it. */
    uint32_t *writers, *seen, *slot_writers;
    uint32_t stamp;
    uint64_t begun, ahead; /* ahead: while another was in flight */
    bool verbose;          /* prints each step */
} room_spy;

/* `inner` stays the caller's. */
void room_spy_init(room_spy *spy, fg_engine *inner, const fg_sched_limits *limits,
                   uint32_t block_count, uint32_t slot_count);
void room_spy_deinit(room_spy *spy);

#endif
