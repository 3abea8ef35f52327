/*
 * team - the compute threads of one engine: fork-join over a fixed set of threads. Owned by the
 * thread that runs it, which takes part as member 0; a team of one starts no threads at all.
 *
 * A join is a few hundred nanoseconds when the work is short, because members spin a moment before
 * they sleep; an idle team sleeps in the kernel and costs nothing.
 */
#ifndef FORGE_COMMON_BASE_TEAM_H
#define FORGE_COMMON_BASE_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_team fg_team;

enum { FG_TEAM_THREADS_MAX = 256 };

/* One member's share: `member` counts from 0 to member_count - 1. */
typedef void (*fg_team_fn)(void *ctx, uint32_t member, uint32_t member_count);

/* FG_BAD_INPUT for 0 or too many threads, FG_AGAIN when the system gives none. */
fg_status fg_team_create(uint32_t thread_count, fg_team **team_out, fg_error *err);
void fg_team_destroy(fg_team *team);
uint32_t fg_team_size(const fg_team *team);

/* Calls `fn` once per member and returns when all have returned. Not reentrant. */
void fg_team_run(fg_team *team, fg_team_fn fn, void *ctx);

/* Pieces of work that members take as they become free, so that a slow core delays nobody. */
typedef struct fg_team_queue {
    _Atomic uint32_t next;
    uint32_t count;
} fg_team_queue;

/* The next piece, or UINT32_MAX when none is left. */
static inline uint32_t fg_team_take(fg_team_queue *queue)
{
    uint32_t piece = atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
    return piece < queue->count ? piece : UINT32_MAX;
}

#endif
