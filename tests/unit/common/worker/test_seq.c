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

Test(seq, lines_are_sorted_and_equals_keep_their_order)
{
    fg_seq_list line = { 0 };
    fg_seq seqs[] = { { .rank = 5, .arrival = 1 },
                      { .rank = 3, .arrival = 2 },
                      { .rank = 5, .arrival = 3 },
                      { .rank = 1, .arrival = 4 } };
    for (size_t i = 0; i < 4; i++) {
        fg_seq_insert_by_rank(&line, &seqs[i]);
    }
    cr_assert(line.first == &seqs[3] && seqs[3].next == &seqs[1] && seqs[1].next == &seqs[0] &&
              seqs[0].next == &seqs[2] && line.last == &seqs[2]);
    while (line.first != NULL) {
        fg_seq_unlink(line.first);
    }
    for (size_t i = 4; i > 0; i--) { /* victims come back in order of arrival (P13) */
        fg_seq_insert_by_arrival(&line, &seqs[i - 1]);
    }
    cr_assert(line.first == &seqs[0] && line.last == &seqs[3] && line.count == 4);
}

static bool create_once(void *ctx)
{
    fg_wire_params params = { .max_tokens = 9 };
    uint32_t prompt[] = { 1, 2, 3 };
    fg_seq_ticket ticket = { .side = FG_SIDE_SENDER, .ticket = 7, .block_count = 1 };
    fg_seq *seq = fg_seq_create(1, 1, prompt, 3, &params, 4);
    bool ok = seq != NULL && fg_seq_open_ticket(seq, &ticket);
    if (ok) {
        cr_assert(seq->table.max == 3 && seq->token_max == 12 && seq->tokens[2] == 3);
    }
    fg_seq_destroy(seq);
    return ok;
}

Test(seq, survives_each_failed_allocation)
{
    cr_assert(fg_fault_each(create_once, NULL) >= 2);
}
