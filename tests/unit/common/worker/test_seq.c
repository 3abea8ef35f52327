#include "common/worker/seq.h"

#include "common/base/fault.h"
#include "tests/support/test.h"

Test(seq, lists_keep_their_order_and_count)
{
    fg_seq_list list = { 0 };
    fg_seq a = { 0 }, b = { 0 }, c = { 0 };
    fg_seq_append(&list, &a);
    fg_seq_append(&list, &b);
    fg_seq_append(&list, &c);
    fg_seq_unlink(&b);
    cr_assert(list.first == &a && a.next == &c && c.previous == &a && list.last == &c);
    fg_seq_unlink(&a);
    fg_seq_unlink(&c);
    cr_assert(list.first == NULL && list.last == NULL && list.count == 0);
    fg_seq_unlink(&c); /* not in a list: nothing happens */
    cr_assert_eq(list.count, 0u);
}

static bool create_once(void *ctx)
{
    fg_wire_sampling params = { .max_tokens = 9 };
    uint32_t prompt[] = { 1, 2, 3 };
    fg_seq *seq = fg_seq_create(1, 1, prompt, 3, &params, 4);
    bool ok = seq != NULL && fg_seq_open_ticket(seq, FG_SIDE_SENDER, 0, 7, 1);
    if (ok) {
        cr_assert(seq->block_max == 3 && seq->token_max == 12 && seq->tokens[2] == 3);
    }
    fg_seq_destroy(seq);
    return ok;
}

Test(seq, survives_each_failed_allocation)
{
    cr_assert(fg_fault_each(create_once, NULL) >= 2);
}
