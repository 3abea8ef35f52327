/* What the worker tells about its prefix cache, kept as a router would, against what it really has. */
#include "tests/sim/room_internal.h"

#include "common/base/map.h"
#include "common/base/status.h"

void room_news_open(room *r)
{
    for (uint32_t tier = 0; tier < 2; tier++) {
        r->told[tier] = fg_map_create(r->block_count + r->slot_count + 1);
        FG_ASSERT(r->told[tier] != NULL);
    }
}

void room_news_close(room *r)
{
    fg_map_destroy(r->told[0]);
    fg_map_destroy(r->told[1]);
}

static void forget_all(room *r)
{
    for (uint32_t tier = 0; tier < 2; tier++) {
        uint64_t key;
        size_t cursor = 0;
        while (fg_map_next(r->told[tier], &cursor, &key) != NULL) {
            fg_map_remove(r->told[tier], key);
            cursor = 0;
        }
    }
}

static void hear_row(room *r, const fg_wire_news *row)
{
    if (row->change == FG_NEWS_RESET || row->change == FG_NEWS_CLEARED) {
        forget_all(r);
        r->told_all = r->told_all && row->change == FG_NEWS_CLEARED;
    }
    for (uint32_t i = 0; i < row->key_count; i++) {
        if (row->change == FG_NEWS_STORED) {
            fg_status status = fg_map_put(r->told[row->tier], row->keys[i], r);
            FG_ASSERT(status == FG_OK, "more blocks are told of than there are");
        } else {
            fg_map_remove(r->told[row->tier], row->keys[i]);
        }
        r->report.news_blocks++;
    }
}

void room_hear_news(room *r, const fg_msg *msg)
{
    FG_ASSERT(msg->news.sequence == r->news_sequence + 1 || msg->news.sequence == 1,
              "news %llu after %llu", (unsigned long long)msg->news.sequence,
              (unsigned long long)r->news_sequence);
    FG_ASSERT(msg->news.sequence != 1 || msg->news.rows[0].change == FG_NEWS_RESET);
    r->news_sequence = msg->news.sequence;
    for (uint32_t i = 0; i < msg->news.count; i++) {
        hear_row(r, &msg->news.rows[i]);
    }
}

void room_judge_told(room *r)
{
    fg_worker_stats stats;
    fg_worker_stats_get(r->worker, &stats);
    size_t told = fg_map_count(r->told[0]);
    r->told_all = r->told_all || told == stats.prefix.entries;
    FG_ASSERT(!r->told_all || told == stats.prefix.entries,
              "%zu blocks told before an answer's token, %u are there", told, stats.prefix.entries);
}

void room_judge_news(room *r)
{
    uint64_t before;
    do { /* until all pages of a retelling have come */
        before = r->news_sequence;
        fg_worker_tick(r->worker);
    } while (fg_worker_joined(r->worker) && r->news_sequence != before);
    if (!fg_worker_joined(r->worker)) {
        return;
    }
    fg_worker_stats stats;
    fg_worker_stats_get(r->worker, &stats);
    FG_ASSERT(fg_map_count(r->told[0]) == stats.prefix.entries, "%zu blocks told, %u are there",
              fg_map_count(r->told[0]), stats.prefix.entries);
    uint32_t stored = 0;
    fg_digest128 parent, key;
    for (uint32_t slot = 0; slot < r->slot_count; slot++) {
        if (fg_tier_at(r->tier, slot, &parent, &key)) {
            FG_ASSERT(fg_map_get(r->told[1], key.low) != NULL, "slot %u was never told", slot);
            stored++;
        }
    }
    FG_ASSERT(fg_map_count(r->told[1]) == stored, "%zu slots told, %u are there",
              fg_map_count(r->told[1]), stored);
    r->report.news_checked++;
}
