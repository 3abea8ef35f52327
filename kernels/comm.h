/*
 * comm - communicators: the devices of several processes hand each other columns of rows, in the order of their streams
 * and without the host. Only devices with memory of their own have them, and not each: CUDA's are NCCL's, a library that
 * the machine has or not.
 *
 * All ranks open theirs at the same time, with the name that one of them has made, and then give it the same gatherings in
 * the same order. Called by the thread that uses the device; opening goes on beside it.
 */
#ifndef FORGE_KERNELS_COMM_H
#define FORGE_KERNELS_COMM_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fg_comm fg_comm;

enum { FG_COMM_NAME_BYTES = 128, FG_COMM_RANKS_MAX = 16 };

/* What ranks find each other by; of plain bytes, once. */
typedef struct fg_comm_name {
    uint8_t bytes[FG_COMM_NAME_BYTES];
} fg_comm_name;

typedef struct fg_comm_options {
    fg_comm_name name;
    uint32_t rank, ranks;
    size_t
        row_max; /* floats of the longest gathered row, with every rank's part as wide as the widest */
} fg_comm_options;

/* FG_BAD_INPUT: this device has no communicators, or the library is not there; with the reason. Rank 0's. */
fg_status fg_comm_make_name(fg_device *device, fg_comm_name *name_out, fg_error *err);

/* Begins to open; nothing else is given to the stream before fg_comm_is_open says that it has ended. */
fg_status fg_comm_open(fg_device_stream *stream, const fg_comm_options *options, fg_comm **comm_out,
                       fg_error *err);
/* Whether opening has ended, and how: after FG_OK rows have passed between all ranks. It may never end where another rank
 * does not open. */
bool fg_comm_is_open(fg_comm *comm, fg_status *status_out, fg_error *err);
/* How rows go, for people: "NCCL 2.28.9". Until close. */
const char *fg_comm_way(const fg_comm *comm);
/* Why no gathering will end any more, or FG_OK. Not everything shows: a rank that is gone may not. */
fg_status fg_comm_check(fg_comm *comm, fg_error *err);
/* At any time, also while it opens. Nothing is in flight, or a rank is lost and nobody waits for what is. All ranks close
 * at about the same time; returns in a few seconds even if the others do not. The stream's replays are gone. NULL is
 * fine. */
void fg_comm_close(fg_comm *comm);

/* Rows whose columns are cut among the ranks: rank r has those from firsts[r] up to firsts[r + 1]. */
typedef struct fg_comm_gather {
    const float *
        own; /* [rows][this rank's]; there is room for as many as the widest rank has, times the rows */
    float *all; /* [rows][firsts[ranks]] */
    uint32_t firsts[FG_COMM_RANKS_MAX + 1];
} fg_comm_gather;
/* In stream order, also while a replay is recorded. */
void fg_comm_gather_rows(fg_comm *comm, const fg_comm_gather *gather, uint32_t rows);

#ifdef __cplusplus
}
#endif
#endif
