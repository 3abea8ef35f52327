#include "tests/unit/router/queue_line.h"

#include <string.h>

#include "tests/support/test.h"

fg_queue_options line_options(void)
{
    return (fg_queue_options){ .requests_max = ITEMS_MAX,
                               .tokens_max = 1ull << 40,
                               .live_max = ITEMS_MAX,
                               .ahead_max = 4,
                               .pass_max = 3 };
}

void line_open(line *l, const fg_queue_options *options)
{
    memset(l, 0, sizeof *l);
    l->now_ns = 100 * S;
    cr_assert_eq(fg_queue_create(options, &l->queue, NULL), FG_OK);
}

void line_close(line *l)
{
    fg_queue_check(l->queue);
    fg_queue_destroy(l->queue);
}

fg_queue_item *line_make(line *l, uint64_t tenant, int32_t priority, uint32_t cost)
{
    fg_queue_item *item = &l->items[l->count];
    cr_assert(l->count < ITEMS_MAX);
    *item = (fg_queue_item){ .id = ++l->count,
                             .tenant = tenant,
                             .queued_ns = l->now_ns,
                             .priority = priority,
                             .tokens = cost,
                             .cost = cost };
    return item;
}

fg_queue_item *line_add(line *l, uint64_t tenant, int32_t priority, uint32_t cost)
{
    fg_queue_item *item = line_make(l, tenant, priority, cost);
    cr_assert_eq(fg_queue_push(l->queue, item), FG_OK);
    return item;
}

uint64_t line_serve(line *l)
{
    fg_queue_item *item = fg_queue_peek(l->queue, l->now_ns);
    if (item != NULL) {
        fg_queue_take(l->queue, item);
    }
    return item != NULL ? item->id : 0;
}

fg_queue_item *line_free_item(line *l)
{
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        if (l->items[i].place == FG_QUEUE_OUT) {
            return &l->items[i];
        }
    }
    return NULL;
}
