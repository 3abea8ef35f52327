#include "kernels/cpu/op_clock.h"

#include "common/base/clock.h"

fg_op_clock *fg_op_clock_now;

void fg_op_clock_set(fg_op_clock *clock)
{
    fg_op_clock_now = clock;
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
    fg_op_clock_now->ns[kind] += fg_op_clock_read_ns() - began_ns;
    fg_op_clock_now->calls[kind]++;
}
