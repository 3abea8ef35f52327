/*
 * team - the compute threads of one engine. Owned by the thread that runs it, which takes part as
 * member 0; a team of one starts no threads at all.
 *
 * Work is cut into pieces. Each member has a range of them, which it claims one by one, and then helps the
 * others with theirs. Nobody waits for a member that has not begun: a member whose core was taken away
 * costs its share of the work and no more, and finds nothing to claim when it comes late. Which member did
 * which piece never shows in a result, as long as pieces write to different places.
 *
 * A join is a few hundred nanoseconds when the work is short, because members spin a moment before
 * they sleep; an idle team sleeps in the kernel and costs nothing.
 */
#ifndef FORGE_COMMON_BASE_TEAM_H
#define FORGE_COMMON_BASE_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_team fg_team;

enum { FG_TEAM_THREADS_MAX = 256 };

/* Where a member runs. */
typedef struct fg_team_place {
    uint16_t cpu;
    uint16_t node; /* of memory: see fg_team_for */
    bool pinned;   /* to `cpu`; else the system chooses */
} fg_team_place;

/* `places` has one for each thread, member 0 (the caller of runs) first, and is not kept; NULL: one node,
 * nobody pinned. A pin that the system refuses is no error. FG_BAD_INPUT for 0 or too many threads,
 * FG_AGAIN when the system gives none. */
fg_status fg_team_create(uint32_t thread_count, const fg_team_place *places, fg_team **team_out,
                         fg_error *err);
/* By its caller of runs, if that still lives: where it may run is as before then. */
void fg_team_destroy(fg_team *team);
uint32_t fg_team_size(const fg_team *team);

/* One piece of work. `member` says who does it, from 0 to fg_team_size() - 1: nobody else has this
 * number meanwhile, so it may choose scratch memory. */
typedef void (*fg_team_piece_fn)(void *ctx, uint32_t piece, uint32_t member);

/* Calls `fn` once for each piece from 0 to piece_count - 1, in any order, and returns when all calls
 * have returned; `ctx` is not read afterwards. Only the owner calls it, and not from a piece.
 *
 * Ranges are the same for the same piece_count. Those of the members on one node follow each other, and are
 * helped with before other nodes': memory that was first written in such a run lies on the node that will
 * mostly read it. */
void fg_team_for(fg_team *team, uint32_t piece_count, fg_team_piece_fn fn, void *ctx);

/* How many members should take part from now on. Called by the owner's thread, as a run begins and before
 * each piece that it claims itself. */
typedef uint32_t (*fg_team_width_fn)(void *ctx);

/* From the next run on only members 0 to width - 1 take part (clipped to 1 .. size), whatever `width`
 * answers while the run goes on: one that is left out ends its piece and sleeps, one that is let in
 * helps at once. NULL: all take part. Only the owner calls it, between runs. */
void fg_team_follow(fg_team *team, fg_team_width_fn width, void *ctx);

/* NULL, or where the time is summed up that callers wait at the end of their runs for the others: for
 * benches, which set it while nothing runs. */
extern uint64_t *fg_team_wait_ns;

#endif
