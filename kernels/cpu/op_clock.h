/*
 * op_clock - where a step's time goes, by kind of operation, on the thread that runs the operations; for
 * `forge bench step`. Off it costs each operation one branch. Set while no operation runs.
 */
#ifndef FORGE_KERNELS_CPU_OP_CLOCK_H
#define FORGE_KERNELS_CPU_OP_CLOCK_H

#include <stddef.h>
#include <stdint.h>

typedef enum fg_op_kind {
    FG_OP_KIND_EMBED,
    FG_OP_KIND_NORM,
    FG_OP_KIND_LINEAR,
    FG_OP_KIND_ROPE,
    FG_OP_KIND_ATTEND,
    FG_OP_KIND_GATED,
    FG_OP_KIND_QUANTIZE,
    FG_OP_KIND_CHOOSE,
    FG_OP_KIND_ADD,
    FG_OP_KIND_COUNT
} fg_op_kind;

/* Sums since the caller cleared them. */
typedef struct fg_op_clock {
    uint64_t ns[FG_OP_KIND_COUNT];
    uint64_t calls[FG_OP_KIND_COUNT];
    /* Of ns: waiting for other members at the ends of runs. */
    uint64_t barrier_ns[FG_OP_KIND_COUNT];
    /* All of that, between operations too, summed by the team; and before the operation that runs. */
    uint64_t waited_ns;
    uint64_t waited_before_ns;
} fg_op_clock;

extern fg_op_clock *fg_op_clock_now; /* use fg_op_clock_set */

/* NULL: off. The team's waiting is summed up meanwhile. */
void fg_op_clock_set(fg_op_clock *clock);
const char *fg_op_kind_name(fg_op_kind kind);

uint64_t fg_op_clock_start(void);
void fg_op_clock_add(fg_op_kind kind, uint64_t began_ns);

/* Around an operation: uint64_t began_ns = fg_op_clock_begin(); ...; fg_op_clock_end(kind, began_ns). */
static inline uint64_t fg_op_clock_begin(void)
{
    return fg_op_clock_now == NULL ? 0 : fg_op_clock_start();
}

static inline void fg_op_clock_end(fg_op_kind kind, uint64_t began_ns)
{
    if (fg_op_clock_now != NULL) {
        fg_op_clock_add(kind, began_ns);
    }
}

#endif
