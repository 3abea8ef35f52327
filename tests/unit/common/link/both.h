/*
 * both - both ends of a link in one process, over every back end, for tests. Included by those alone.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_LINK_BOTH_H
#define FORGE_TESTS_UNIT_COMMON_LINK_BOTH_H

#include "common/net/loop.h"
#include "tests/unit/common/link/rig.h"

static const char *const kinds[] = { "mem",      "shm",      "tcp",      "auto",
                                     "lent shm", "lent tcp", "lent auto" };
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])

typedef struct rig {
    const char *kind;
    fg_link_hub *hub;
    end a, b;
} rig;

static inline void open_end(rig *r, end *e, const char *name, fg_loop *loop, size_t block_bytes)
{
    fg_error err = { 0 };
    bool mem = strcmp(r->kind, "mem") == 0;
    fg_link_options options = rig_options(e, mem ? "shm" : r->kind, block_bytes);
    options.loop = loop;
    fg_status status = mem ? fg_link_open_mem(r->hub, name, 1, &options, &e->link, &err)
                           : fg_link_open_ucx(&options, &e->link, &err);
    cr_assert_eq(status, FG_OK, "%s: %s", r->kind, err.text);
}

static inline void open_rig(rig *r, const char *kind, fg_loop *loop, size_t block_bytes)
{
    *r = (rig){ .kind = kind };
    if (strcmp(kind, "mem") == 0) {
        r->hub = fg_link_hub_create(NULL);
        cr_assert_not_null(r->hub);
    }
    open_end(r, &r->a, "a", loop, block_bytes);
    open_end(r, &r->b, "b", loop, block_bytes);
    introduce(&r->a, "a", &r->b, "b");
}

static inline void close_rig(rig *r)
{
    fg_link_close(r->a.link);
    fg_link_close(r->b.link);
    rig_give_memory(&r->a);
    rig_give_memory(&r->b);
    fg_link_hub_destroy(r->hub);
}

static inline bool is_lent(const char *kind)
{
    return strncmp(kind, "lent ", 5) == 0;
}

static inline bool is_tcp(const char *kind)
{
    return strstr(kind, "tcp") != NULL;
}

static inline fg_status commit_of(rig *r, uint64_t ticket, const uint32_t *source, uint32_t count)
{
    uint64_t digests[RIG_BLOCKS];
    for (uint32_t i = 0; i < count; i++) {
        digests[i] = block_digest(&r->a, source[i]);
    }
    fg_link_commit commit = {
        .ticket = ticket,
        .block_count = count,
        .digests = digests,
        .first_token = 4711,
        .first_digest = 0x0123456789ABCDEFu,
    };
    return fg_link_commit_ticket(r->a.link, r->a.peer, &commit);
}

/* Runs that touch on both sides, on one only, and on none. */
static const uint32_t source_blocks[] = { 0, 1, 2, 3, 8, 9, 20, 5 };
static const uint32_t target_blocks[] = { 4, 5, 6, 12, 13, 14, 31, 0 };
enum { COUNT = 8, RUNS = 6 };

static inline void check_arrived(rig *r, const char *name)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        cr_assert_eq(block_digest(&r->b, target_blocks[i]), r->b.digests[i],
                     "%s %s: block %u differs", r->kind, name, i);
    }
}

#endif
