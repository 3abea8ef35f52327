/*
 * rig - two ends of a link for tests: "a" sends, "b" receives, over the hub or over UCX, in one
 * process or (one end each) in two. Counts what the callbacks say.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_LINK_RIG_H
#define FORGE_TESTS_UNIT_COMMON_LINK_RIG_H

#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/link/link_core.h"
#include "tests/support/test.h"

enum { RIG_BLOCKS = 32, RIG_BAD_MAX = 64 };

typedef struct end {
    fg_link *link;
    uint32_t peer;
    size_t block_bytes;
    int commits, fenced, answers, drained;
    uint64_t last_ticket;
    fg_status why;
    uint32_t bad_count, bad[RIG_BAD_MAX];
    uint32_t first_token;
    uint64_t first_digest;
    uint32_t commit_blocks;
    uint64_t digests[RIG_BLOCKS];
    bool close_in_callback;
    void *lent; /* memory that the link works on; NULL: its own */
    size_t lent_bytes;
} end;

static inline void close_if_told(end *e)
{
    if (e->close_in_callback) {
        fg_link *link = e->link;
        e->link = NULL;
        fg_link_close(link);
    }
}

static inline void rig_on_commit(void *ctx, const fg_link_commit *commit)
{
    end *e = ctx;
    e->commits++;
    e->last_ticket = commit->ticket;
    e->first_token = commit->first_token;
    e->first_digest = commit->first_digest;
    e->commit_blocks = commit->block_count;
    for (uint32_t i = 0; i < commit->block_count && i < RIG_BLOCKS; i++) {
        e->digests[i] = commit->digests[i];
    }
    close_if_told(e);
}

static inline void rig_on_fenced(void *ctx, uint64_t ticket)
{
    end *e = ctx;
    e->fenced++;
    e->last_ticket = ticket;
    close_if_told(e);
}

static inline void rig_on_answer(void *ctx, uint64_t ticket, const uint32_t *bad,
                                 uint32_t bad_count)
{
    end *e = ctx;
    e->answers++;
    e->last_ticket = ticket;
    e->bad_count = bad_count;
    for (uint32_t i = 0; i < bad_count && i < RIG_BAD_MAX; i++) {
        e->bad[i] = bad[i];
    }
    close_if_told(e);
}

static inline void rig_on_drained(void *ctx, uint64_t ticket, fg_status why)
{
    end *e = ctx;
    e->drained++;
    e->last_ticket = ticket;
    e->why = why;
    close_if_told(e);
}

/* "shm", "tcp", "auto"; with "lent " before it the link works on memory of this end, until rig_give_memory. */
static inline fg_link_options rig_options(end *e, const char *kind, size_t block_bytes)
{
    bool lent = strncmp(kind, "lent ", 5) == 0;
    e->block_bytes = block_bytes;
    if (lent) {
        e->lent_bytes = (RIG_BLOCKS + FG_LINK_SPARE_BLOCKS) * block_bytes;
        e->lent = fg_mem_map(e->lent_bytes);
        cr_assert_not_null(e->lent);
    }
    return (fg_link_options){
        .block_bytes = block_bytes,
        .block_count = RIG_BLOCKS,
        .memory_kind = lent ? FG_LINK_LENT : FG_LINK_OWN,
        .memory = e->lent,
        .transport = lent ? kind + 5 : kind,
        .host = "127.0.0.1",
        .events = { rig_on_commit, rig_on_fenced, rig_on_answer, rig_on_drained, e },
    };
}

static inline void rig_give_memory(end *e)
{
    if (e->lent != NULL) {
        fg_mem_unmap(e->lent, e->lent_bytes);
        e->lent = NULL;
    }
}

static inline uint8_t *block_at(const end *e, uint32_t block)
{
    return (uint8_t *)fg_link_arena(e->link) + block * e->block_bytes;
}

static inline void fill_block(end *e, uint32_t block, uint8_t salt)
{
    uint8_t *at = block_at(e, block);
    for (size_t i = 0; i < e->block_bytes; i++) {
        at[i] = (uint8_t)(i * 31 + i / 251 + salt);
    }
}

static inline uint64_t block_digest(const end *e, uint32_t block)
{
    return fg_hash64(block_at(e, block), e->block_bytes, 0);
}

/* Turns both ends (either may be NULL) until *counter reaches `want`; false after 10 s. */
static inline bool wait_for(end *x, end *y, const int *counter, int want)
{
    fg_clock clock = fg_clock_real();
    uint64_t end_ms = fg_clock_now_ms(&clock) + 10000;
    while (*counter < want && fg_clock_now_ms(&clock) < end_ms) {
        if (x != NULL && x->link != NULL) {
            fg_link_progress(x->link);
        }
        if (y != NULL && y->link != NULL) {
            fg_link_progress(y->link);
        }
    }
    return *counter >= want;
}

static inline void turn_both(end *x, end *y, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        if (x != NULL && x->link != NULL) {
            fg_link_progress(x->link);
        }
        if (y != NULL && y->link != NULL) {
            fg_link_progress(y->link);
        }
    }
}

/* Each end learns the other. */
static inline void introduce(end *x, const char *x_name, end *y, const char *y_name)
{
    fg_buf record;
    fg_error err;
    fg_buf_init(&record, 0);
    cr_assert(fg_link_describe(y->link, &record));
    cr_assert_eq(fg_link_add_peer(x->link, y_name, 1, 1, record.data, record.size, &x->peer, &err),
                 FG_OK);
    fg_buf_clear(&record);
    cr_assert(fg_link_describe(x->link, &record));
    cr_assert_eq(fg_link_add_peer(y->link, x_name, 1, 1, record.data, record.size, &y->peer, &err),
                 FG_OK);
    fg_buf_deinit(&record);
}

static inline uint32_t tickets_open(const end *e)
{
    fg_link_stats stats;
    fg_link_stats_get(e->link, &stats);
    return stats.tickets_open;
}

static inline uint64_t stale_count(const end *e)
{
    fg_link_stats stats;
    fg_link_stats_get(e->link, &stats);
    return stats.stale_dropped;
}

#endif
