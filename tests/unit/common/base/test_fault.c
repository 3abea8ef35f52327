#include "common/base/fault.h"

#include "tests/support/test.h"

/* Three steps, of which each may fail; `wrong` makes it answer against the facts. */
static bool three_steps(void *ctx)
{
    const char *wrong = ctx;
    bool fine = !fg_fault_hit() && !fg_fault_hit() && !fg_fault_hit();
    return *wrong == '+' ? true : *wrong == '-' ? false : fine;
}

Test(fault, each_walks_through_every_step)
{
    cr_assert_eq(fg_fault_each(three_steps, ""), 3);
    cr_assert(!fg_fault_hit());
}

Test(fault, each_finds_a_success_that_hides_a_fault)
{
    cr_assert_eq(fg_fault_each(three_steps, "+"), -1);
}

Test(fault, each_finds_a_failure_without_a_fault)
{
    cr_assert_eq(fg_fault_each(three_steps, "-"), -1);
}

Test(fault, fires_once_on_the_nth_step)
{
    fg_fault_arm(3);
    cr_assert(!fg_fault_hit() && !fg_fault_hit() && !fg_fault_fired());
    cr_assert(fg_fault_hit() && fg_fault_fired() && !fg_fault_hit());
    fg_fault_arm(0);
    cr_assert(!fg_fault_fired());
}
