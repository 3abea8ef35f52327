#include "kernels/cpu/op_clock.h"

#include "common/base/clock.h"
#include "common/base/team.h"

fg_op_clock *fg_op_clock_now;

void fg_op_clock_set(fg_op_clock *clock)
{
    fg_op_clock_now = clock;
    fg_team_wait_ns = clock == NULL ? NULL : &clock->waited_ns;
}

const char *fg_op_kind_name(fg_op_kind kind)
{
    static const char *const names[] = { "embed",     "norm",        "linear",  "rope and store",
                                         "attention", "gate and up", "quantize" };
    return names[kind];
}

uint64_t fg_op_clock_read_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

void fg_op_clock_add(fg_op_kind kind, uint64_t began_ns)
{
    fg_op_clock *clock = fg_op_clock_now;
    clock->ns[kind] += fg_op_clock_read_ns() - began_ns;
    clock->calls[kind]++;
    /* Nobody waits between operations: what is not yet counted is this one's. */
    uint64_t counted_ns = 0;
    for (fg_op_kind other = 0; other < FG_OP_KIND_COUNT; other++) {
        counted_ns += clock->barrier_ns[other];
    }
    clock->barrier_ns[kind] += clock->waited_ns - counted_ns;
}
