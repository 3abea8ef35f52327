/*
 * Activations in super-groups (kernels/ops.h, FG_FORM_SUPERS): every instruction set makes the same of them, each number
 * is within half a step, and groups beside them say the same.
 */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/kernel_data.h"

enum {
    ROWS = 19,
    SUPERS = 3,
    COLUMNS = SUPERS * FG_QUANT_SUPER,
    GROUPS = FG_QUANT_SUPER_GROUPS,
    BOTH = FG_FORM_SUPERS | FG_FORM_QUANTS
};

/* Groups of all magnitudes that a shift tells apart, and of some that it does not. */
static void fill(fg_rng *rng, fg_activations *a)
{
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
        size_t group = i / FG_QUANT_GROUP;
        a->values[i] = random_float(rng, ldexpf(40.0f, -(int)(group % 11 % 7)));
    }
}

static void forget(fg_activations *a)
{
    memset(a->quants, 0x55, (size_t)ROWS * COLUMNS);
    memset(a->groups, 0x55, (size_t)ROWS * SUPERS * GROUPS * sizeof *a->groups);
    memset(a->supers, 0, (size_t)ROWS * SUPERS * sizeof *a->supers);
}

static int32_t sum_of(const int8_t *quants, int first, int count)
{
    int32_t sum = 0;
    for (int i = first; i < first + count; i++) {
        sum += quants[i];
    }
    return sum;
}

/* What is said of group g of the row's super-group. */
static void check_group(const fg_activations *a, size_t super, int g)
{
    const fg_quant_super *s = &a->supers[super];
    size_t at = super * FG_QUANT_SUPER + (size_t)g * FG_QUANT_GROUP;
    const int8_t *quants = a->quants + at;
    int32_t shift = s->shifts[g], peak = 0;
    float step = s->scale * (float)(1 << shift);
    cr_assert(shift >= 0 && shift <= FG_QUANT_SHIFT_MAX);
    for (int i = 0; i < FG_QUANT_GROUP; i++) {
        float error = fabsf(a->values[at + (size_t)i] - (float)quants[i] * step);
        cr_assert(quants[i] >= -127 && error <= 0.5001f * step + 1e-30f,
                  "super-group %zu, group %d", super, g);
        peak = abs(quants[i]) > peak ? abs(quants[i]) : peak;
    }
    cr_assert(shift == 0 || peak >= 63, "super-group %zu, group %d: shift %d, quants to %d", super,
              g, shift, peak);
    cr_assert_eq(s->halves[g][0], sum_of(quants, 0, 16) * (1 << shift));
    cr_assert_eq(s->halves[g][1], sum_of(quants, 16, 16) * (1 << shift));
    cr_assert_eq(s->sums[g], sum_of(quants, 0, 32) * (1 << shift));
    const fg_quant_group *group = &a->groups[super * GROUPS + (size_t)g];
    cr_assert_eq(group->scale, step);
    cr_assert_eq(group->sums[0], sum_of(quants, 0, 16));
    cr_assert_eq(group->sums[1], sum_of(quants, 16, 16));
    cr_assert_eq(group->negated, -sum_of(quants, 0, 32));
    cr_assert_eq(group->offset, step * (float)sum_of(quants, 0, 32));
}

/* The same arrays by each instruction set, one thread and two, alone and with groups beside them. */
static void check_everywhere(fg_activations *a)
{
    size_t quant_bytes = (size_t)ROWS * COLUMNS;
    size_t super_bytes = (size_t)ROWS * SUPERS * sizeof *a->supers;
    size_t group_bytes = (size_t)ROWS * SUPERS * GROUPS * sizeof *a->groups;
    int8_t *quants = NULL;
    fg_quant_super *supers = NULL;
    fg_quant_group *groups = NULL;
    for (size_t i = 0; i < TEST_ISAS * 2; i++) {
        test_device device;
        if (!open_test_device(test_isas[i / 2], 1 + i % 2, &device)) {
            continue;
        }
        forget(a);
        fg_op_prepare(device.stream, a, FG_FORM_SUPERS, ROWS);
        if (quants == NULL) {
            quants = fg_mem_dup(a->quants, quant_bytes);
            supers = fg_mem_dup(a->supers, super_bytes);
        }
        cr_assert(memcmp(a->quants, quants, quant_bytes) == 0, "isa %s", test_isas[i / 2]);
        cr_assert(memcmp(a->supers, supers, super_bytes) == 0, "isa %s", test_isas[i / 2]);
        forget(a);
        fg_op_prepare(device.stream, a, BOTH, ROWS);
        groups = groups == NULL ? fg_mem_dup(a->groups, group_bytes) : groups;
        cr_assert(memcmp(a->quants, quants, quant_bytes) == 0, "isa %s", test_isas[i / 2]);
        cr_assert(memcmp(a->supers, supers, super_bytes) == 0, "isa %s", test_isas[i / 2]);
        cr_assert(memcmp(a->groups, groups, group_bytes) == 0, "isa %s", test_isas[i / 2]);
        close_test_device(&device);
    }
    fg_mem_free(quants);
    fg_mem_free(supers);
    fg_mem_free(groups);
}

Test(supers, are_exact_everywhere_and_within_half_a_step)
{
    fg_rng rng = { .state = 41 };
    fg_activations a = make_activations(ROWS, COLUMNS);
    uint32_t seen[FG_QUANT_SHIFT_MAX + 1] = { 0 };
    fill(&rng, &a);
    memset(a.values, 0, 300 * sizeof(float)); /* a super-group of zeros, and a group of the next */
    a.values[COLUMNS] = 3e-39f;               /* a subnormal among larger ones */
    check_everywhere(&a);
    for (size_t i = 0; i < ROWS * SUPERS * GROUPS; i++) {
        check_group(&a, i / GROUPS, (int)(i % GROUPS));
        seen[a.supers[i / GROUPS].shifts[i % GROUPS]]++;
    }
    for (int shift = 0; shift <= FG_QUANT_SHIFT_MAX; shift++) {
        cr_assert(seen[shift] > 20, "shift %d: %u groups", shift, seen[shift]);
    }
    cr_assert_eq(a.supers[0].scale, 0.0f);
    free_activations(&a);
}

/* The largest number and neighbours of the powers of two below it, where a shift begins. */
Test(supers, a_shift_begins_where_the_one_before_ends)
{
    fg_activations a = make_activations(ROWS, COLUMNS);
    for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i++) {
        size_t group = i / FG_QUANT_GROUP;
        float peak = ldexpf(1.0f + (float)(group % 13) / 7.0f, (int)(i / COLUMNS) * 12 - 110);
        float below = ldexpf(peak, -(int)(group % GROUPS));
        float edge = group % 3 == 0   ? below
                     : group % 3 == 1 ? nextafterf(below, 0.0f)
                                      : nextafterf(below, INFINITY);
        a.values[i] = i % 2 == 0 ? edge : -0.5f * edge;
    }
    check_everywhere(&a);
    for (size_t i = 0; i < ROWS * SUPERS * GROUPS; i++) {
        check_group(&a, i / GROUPS, (int)(i % GROUPS));
    }
    free_activations(&a);
}

Test(supers, one_with_no_number_is_none_everywhere)
{
    static const float odd[] = { NAN, -NAN, INFINITY, -INFINITY };
    fg_rng rng = { .state = 42 };
    fg_activations a = make_activations(ROWS, COLUMNS);
    for (size_t i = 0; i < TEST_ISAS; i++) {
        test_device device;
        if (!open_test_device(test_isas[i], 1, &device)) {
            continue;
        }
        for (size_t at = 0; at < FG_QUANT_SUPER; at++) {
            fill(&rng, &a);
            a.values[COLUMNS + FG_QUANT_SUPER + at] = odd[at % 4];
            forget(&a);
            fg_op_prepare(device.stream, &a, BOTH, ROWS);
            for (size_t s = 0; s < ROWS * SUPERS; s++) {
                cr_assert_eq(isnan(a.supers[s].scale), s == SUPERS + 1, "isa %s, column %zu",
                             test_isas[i], at);
                cr_assert_eq(isnan(a.groups[s * GROUPS + at % GROUPS].scale), s == SUPERS + 1);
            }
            const int8_t *quants = a.quants + COLUMNS + FG_QUANT_SUPER;
            cr_assert(sum_of(quants, 0, FG_QUANT_SUPER) == 0 && quants[at] == 0);
        }
        close_test_device(&device);
    }
    free_activations(&a);
}
