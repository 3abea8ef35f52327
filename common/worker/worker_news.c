/* What changes in a worker's prefix cache and tier, as each of its routers is told: live changes, and everything
 * from the start when it has joined or when the router has missed something. */
#include "common/worker/worker_internal.h"

#include "common/base/mem.h"

enum {
    ROWS_MAX = 512,
    KEYS_MAX = 2048,
    PAGE_BLOCKS = 1024, /* looked at for each frame of a retelling */
};

/* Changes that wait for the next frame. A retelling goes through the pool's blocks and the tier's slots in
 * order of their number, a page for each frame; changes meanwhile are told between the pages, in the order
 * in which they happen, so that whoever applies all frames in order ends with what is here. */
struct fg_worker_news {
    fg_wire_news rows[ROWS_MAX];
    uint64_t keys[KEYS_MAX];
    uint32_t row_count, key_count;
    uint64_t sequence; /* of the last frame */
    bool retelling;
    uint32_t next_block, next_slot;
};

fg_status fg_worker_news_create(fg_worker *worker, fg_error *err)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        worker->routers[i].news = fg_mem_alloc(sizeof *worker->routers[i].news);
        if (worker->routers[i].news == NULL) {
            return fg_fail(err, FG_AGAIN, "out of memory for cache news");
        }
    }
    return FG_OK;
}

void fg_worker_news_destroy(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        fg_mem_free(worker->routers[i].news);
    }
}

uint64_t fg_worker_news_sequence(const fg_worker *worker, uint32_t router)
{
    return worker->routers[router].news->sequence;
}

bool fg_worker_news_at_rest(const fg_worker *worker, uint32_t router)
{
    return worker->routers[router].news->row_count == 0 && !worker->routers[router].news->retelling;
}

void fg_worker_news_go_on(fg_worker *worker, uint32_t router, uint64_t sequence)
{
    worker->routers[router].news->sequence = sequence;
}

void fg_worker_news_tell(fg_worker *worker, uint32_t router)
{
    struct fg_worker_news *news = worker->routers[router].news;
    if (!worker->routers[router].joined || news->row_count == 0) {
        return;
    }
    fg_msg msg = { .kind = FG_MSG_NEWS };
    msg.news.sequence = ++news->sequence;
    msg.news.rows = news->rows;
    msg.news.count = news->row_count;
    news->row_count = 0;
    news->key_count = 0;
    fg_worker_send(worker, router, &msg);
}

static fg_wire_news *add_row(fg_worker *worker, uint32_t router, fg_wire_change change,
                             uint32_t tier)
{
    struct fg_worker_news *news = worker->routers[router].news;
    if (news->row_count == ROWS_MAX || news->key_count == KEYS_MAX) {
        fg_worker_news_tell(worker, router);
    }
    fg_wire_news *row = &news->rows[news->row_count++];
    *row = (fg_wire_news){ .change = change, .tier = tier, .keys = news->keys + news->key_count };
    return row;
}

/* The row that this change prolongs: the same change, and for a stored block its predecessor's run. */
static fg_wire_news *last_row(const fg_worker *worker, uint32_t router, fg_wire_change change,
                              uint32_t tier, uint64_t parent)
{
    struct fg_worker_news *news = worker->routers[router].news;
    fg_wire_news *row = news->row_count == 0 ? NULL : &news->rows[news->row_count - 1];
    bool prolongs = row != NULL && row->change == change && row->tier == tier &&
                    news->key_count < KEYS_MAX &&
                    (change == FG_NEWS_REMOVED || news->keys[news->key_count - 1] == parent);
    return prolongs ? row : NULL;
}

static void add_block(fg_worker *worker, uint32_t router, bool here, uint32_t tier, uint64_t parent,
                      uint64_t key)
{
    fg_wire_change change = here ? FG_NEWS_STORED : FG_NEWS_REMOVED;
    fg_wire_news *row = last_row(worker, router, change, tier, parent);
    if (row == NULL) {
        row = add_row(worker, router, change, tier);
        row->parent = here ? parent : 0;
    }
    worker->routers[router].news->keys[worker->routers[router].news->key_count++] = key;
    row->key_count++;
}

static void on_change(fg_worker *worker, bool here, uint32_t tier, fg_digest128 parent,
                      fg_digest128 key)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        if (worker->routers[i].joined) { /* else all is told when it has */
            add_block(worker, i, here, tier, parent.low, key.low);
        }
    }
}

void fg_worker_news_on_pool(void *ctx, bool here, fg_digest128 parent, fg_digest128 key)
{
    on_change(ctx, here, 0, parent, key);
}

void fg_worker_news_on_tier(void *ctx, bool here, fg_digest128 parent, fg_digest128 key)
{
    on_change(ctx, here, 1, parent, key);
}

void fg_worker_news_cleared(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        if (worker->routers[i].joined) {
            add_row(worker, i, FG_NEWS_CLEARED, 0);
        }
    }
}

void fg_worker_news_begin(fg_worker *worker, uint32_t router)
{
    worker->routers[router].news->sequence = 0;
    fg_worker_news_again(worker, router);
}

void fg_worker_news_again(fg_worker *worker, uint32_t router)
{
    struct fg_worker_news *news = worker->routers[router].news;
    news->row_count = 0; /* what was to be told is part of what is told now */
    news->key_count = 0;
    news->next_block = 0;
    news->next_slot = 0;
    news->retelling = true;
    add_row(worker, router, FG_NEWS_RESET, 0);
}

static void add_page(fg_worker *worker, uint32_t router)
{
    struct fg_worker_news *news = worker->routers[router].news;
    fg_digest128 parent, key;
    uint32_t block_count = worker->options.block_count, slot_count = 0;
    if (worker->options.tier != NULL) {
        fg_tier_stats tier;
        fg_tier_stats_get(worker->options.tier, &tier);
        slot_count = tier.total;
    }
    uint32_t looked = 0;
    for (; looked < PAGE_BLOCKS && news->next_block < block_count; looked++) {
        if (fg_prefix_at(worker->prefix, news->next_block++, &parent, &key)) {
            add_block(worker, router, true, 0, parent.low, key.low);
        }
    }
    for (; looked < PAGE_BLOCKS && news->next_slot < slot_count; looked++) {
        if (fg_tier_at(worker->options.tier, news->next_slot++, &parent, &key)) {
            add_block(worker, router, true, 1, parent.low, key.low);
        }
    }
    news->retelling = news->next_block < block_count || news->next_slot < slot_count;
}

void fg_worker_news_flush(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        fg_worker_router *router = &worker->routers[i];
        if (!router->joined) {
            continue;
        }
        if (router->news->retelling) {
            add_page(worker, i);
            router->load_dirty = true; /* comes back soon, for the next page */
        }
        fg_worker_news_tell(worker, i);
    }
}
