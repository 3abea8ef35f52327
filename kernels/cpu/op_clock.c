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
    static const char *const names[] = { "embed",          "norm",           "linear",
                                         "rope and store", "attention",      "gate and up",
                                         "quantize",       "choose experts", "down of experts" };
    return names[kind];
}

static uint64_t now_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

uint64_t fg_op_clock_start(void)
{
    fg_op_clock_now->waited_before_ns = fg_op_clock_now->waited_ns;
    return now_ns();
}

void fg_op_clock_add(fg_op_kind kind, uint64_t began_ns)
{
    fg_op_clock *clock = fg_op_clock_now;
    clock->ns[kind] += now_ns() - began_ns;
    clock->calls[kind]++;
    clock->barrier_ns[kind] += clock->waited_ns - clock->waited_before_ns;
}
