/*
 * tp - tensor parallelism: one model computed by several processes of a host, its ranks. Rank 0 is a worker's engine; the
 * others are children of its process that know nothing but how to compute, and end with it.
 *
 * A rank has a part of the outputs of every matrix, and those KV heads that its part of the queries reads. It computes its
 * columns of whatever a layer makes; then all ranks gather the columns of all, before the next matrix multiplies them. So no
 * sum is cut: an output is the same chain of operations as with one rank, and nothing shows how many there are. Every rank
 * writes its heads into the same KV blocks, so workers of any degree exchange blocks, and what links, digests and the tier
 * do is rank 0's alone.
 *
 * Ranks share one region of memory: what a step is given, rows between operations, logits. A rank that is lost ends rank
 * 0's process, as a device that fails does: its requests move on.
 */
#ifndef FORGE_COMMON_ENGINE_TP_H
#define FORGE_COMMON_ENGINE_TP_H

#include <sys/types.h>

#include "common/base/core_share.h"
#include "common/base/shared.h"
#include "common/engine/engine.h"
#include "kernels/device.h"

typedef struct fg_tp fg_tp;

enum {
    FG_TP_RANKS_MAX = 16,
    FG_TP_TILE_ROWS = 384, /* most rows that pass a layer together on a CPU */
    FG_TP_LIST_MAX = 1024,
    FG_TP_HEAD_ROWS = 16, /* most rows of logits at a time */
    FG_TP_PANEL = 16,     /* outputs are cut in such units where there are enough */
};

/* How ranks whose devices have memory of their own get each other's columns. */
typedef enum fg_tp_way {
    FG_TP_WAY_AUTO, /* from device to device where all of them can, else through the host's memory */
    FG_TP_WAY_NCCL, /* from device to device, or not at all */
    FG_TP_WAY_HOST,
} fg_tp_way;

/* Has a child process call fg_tp_follow with these descriptors, or others of the same files (arena_fd -1: none is needed);
 * its process id. */
typedef fg_status (*fg_tp_start_fn)(void *ctx, uint32_t rank, int region_fd, int arena_fd,
                                    pid_t *pid_out, fg_error *err);

/* What fg_engine_options.tp says. fg_engine_options.arena is memory that fg_shared_find knows then, `thread_count` are
 * each rank's and `places` those of all, rank by rank; the weights are a file's, and `device` is rank 0's. */
typedef struct fg_tp_options {
    uint32_t size;                      /* ranks; 0 or 1: the engine alone */
    const char *devices;                /* of all ranks, as fg_tp_device takes them; NULL: CPUs */
    const fg_core_share_options *share; /* NULL, or how each rank shares the cores with others */
    fg_tp_way way;
    fg_tp_start_fn start; /* NULL: this program again, as fg_tp_follow_main */
    void *ctx;
} fg_tp_options;

/* What a rank has of `count` things. */
typedef struct fg_tp_part {
    uint32_t first, count;
} fg_tp_part;

/* What all ranks see, as this one has it mapped. */
typedef struct fg_tp_memory {
    /* Per row of a step. */
    uint32_t *tokens, *positions;
    uint32_t *tables;    /* where the block ids of its sequence begin in block_ids */
    uint32_t *block_ids; /* of all sequences */
    uint32_t *row_ids;   /* of rows with a choice after them */
    uint32_t *kinds;     /* fg_head_kind of each part of these */
    float *residual;
    /* What ranks with KV blocks of their own copy and digest, FG_TP_LIST_MAX at a time. */
    fg_step_copy *copies;
    fg_step_digest *digests;
    /* Per row of a tile. */
    float *attended, *hidden, *added;
    /* Per row of a part of the head. */
    float *logits;
    uint32_t *choices[FG_TP_RANKS_MAX]; /* each rank's highest, and how high it is */
    float *tops[FG_TP_RANKS_MAX];
} fg_tp_memory;

/* What the ranks do next: run rows, or do the copies, or the digests, or open their communicator. */
typedef struct fg_tp_step {
    uint32_t rows, head_rows;
    uint32_t padded; /* rows with those that pad them to a step that is replayed; 0: it is not */
    uint32_t copies, digests;
    bool opens_comm;
} fg_tp_step;

/* Which device of "cpu", "cuda", "cuda:N" (rank 0's, the others have those after it) or "cuda:2,cuda:0,..." (one for each
 * rank) is a rank's. FG_BAD_INPUT: not as many as there are ranks. */
enum { FG_TP_DEVICE_MAX = 64 };
fg_status fg_tp_device(const char *devices, uint32_t size, uint32_t rank,
                       char device_out[FG_TP_DEVICE_MAX], fg_error *err);
/* How many different ones all ranks have; of a text that fg_tp_device takes. */
uint32_t fg_tp_device_count(const char *devices, uint32_t size);

/* --- rank 0 --- */

/* Starts the other ranks; they load while this one does. Called by the thread that closes, which lives as long. */
fg_status fg_tp_lead(const fg_engine_options *options, fg_tp **tp_out, fg_error *err);
/* Once all can run steps by the rules that rank 0's device has; or why one cannot. */
fg_status fg_tp_wait_ready(fg_tp *tp, const char *numerics, fg_error *err);
/* The other ranks begin to end: before rank 0 closes its own part of what they share. No step runs. NULL is fine. */
void fg_tp_end(fg_tp *tp);
/* The other ranks end, and have ended. No step runs. NULL is fine. */
void fg_tp_close(fg_tp *tp);
/* Ends this process where another rank has ended; any thread, now and then. NULL is fine. */
void fg_tp_look(const fg_tp *tp);
/* Has the others run a step whose rows are in memory. */
void fg_tp_begin(fg_tp *tp, fg_tp_step step);

/* --- the other ranks --- */

/* The whole life of one: what its main returns. */
int fg_tp_follow(int region_fd, int arena_fd, uint32_t rank);
/* `forge rank N`, as rank 0 starts it: with the region as this descriptor, and the arena as that. */
enum { FG_TP_REGION_FD = 3, FG_TP_ARENA_FD = 4 };
int fg_tp_follow_main(int argc, const char *const *argv);

/* --- every rank; NULL is the only one --- */

uint32_t fg_tp_size(const fg_tp *tp);
uint32_t fg_tp_rank(const fg_tp *tp);
const fg_tp_memory *fg_tp_memory_of(const fg_tp *tp);
/* All that is shared, which a device may want to pin. */
const fg_shared *fg_tp_shared(const fg_tp *tp);

/* This rank's part, in whole units but for the last rank's; of fewer units than ranks some have nothing. */
fg_tp_part fg_tp_part_of(const fg_tp *tp, uint32_t count, uint32_t unit);
/* How much the rank has that has most. */
uint32_t fg_tp_widest(const fg_tp *tp, uint32_t count, uint32_t unit);

/* Returns when all ranks have called it as often as this one: what they wrote before is seen then. */
void fg_tp_meet(fg_tp *tp);

/* Columns of rows that every rank has a part of. */
typedef struct fg_tp_columns {
    float *common;    /* [rows][columns] of fg_tp_memory */
    float *all;       /* where operations want them; NULL: there. Else a device's own memory */
    uint32_t columns; /* of all */
    uint32_t unit;    /* that they are cut in */
    fg_tp_part part;
    const float *own; /* [rows][part.count]; NULL: they are in their place in `all`, or there */
    bool for_host;    /* only in `common` all are wanted */
} fg_tp_columns;
/* Puts this rank's columns in their place, and returns when all ranks have done so; in a device's memory they are when
 * its stream has come so far. With a communicator nobody waits, but for what is for the host: then `own` has room for as
 * many columns as the widest rank has. */
void fg_tp_gather(fg_tp *tp, fg_device_stream *stream, const fg_tp_columns *columns, uint32_t rows);

/*
 * The ranks' communicator (kernels/comm.h): rank 0 calls this when all are ready, the others when it has begun such a
 * step. All of them have one then, or none of them. `row_max`: as fg_comm_options says. FG_BAD_INPUT: `way`, which is rank
 * 0's, allows nothing else; with the reason, which is in the log where it allows the host's memory.
 */
fg_status fg_tp_open_comm(fg_tp *tp, fg_tp_way way, fg_device_stream *stream, fg_device *device,
                          size_t row_max, fg_error *err);
/* While its stream is open. */
void fg_tp_close_comm(fg_tp *tp);
bool fg_tp_has_comm(const fg_tp *tp);
/* fg_device_event_wait, which ends this process where another rank has ended meanwhile or a minute has passed: a stream
 * does not come to its end then. */
void fg_tp_wait_device(fg_tp *tp, fg_device_stream *stream, fg_device_event event);

#endif
