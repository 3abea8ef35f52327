/*
 * nccl_abi - the few things of NCCL's C interface that comm.cu uses, so that nothing of NCCL is needed to build. Names,
 * numbers and sizes are those of its public header, and have been the same since NCCL 2.4 (the last error's text: 2.13).
 */
#ifndef FORGE_KERNELS_CUDA_NCCL_ABI_H
#define FORGE_KERNELS_CUDA_NCCL_ABI_H

#include "kernels/cuda/gpu.h"

typedef struct ncclComm *fg_nccl_comm;

/* Passed by value. */
typedef struct fg_nccl_id {
    char internal[128];
} fg_nccl_id;

enum { FG_NCCL_SUCCESS = 0, FG_NCCL_IN_PROGRESS = 7 };
enum { FG_NCCL_FLOAT32 = 7 };

/* Enums of C are ints. */
typedef struct fg_nccl {
    int (*get_version)(int *version);
    int (*get_unique_id)(fg_nccl_id *id);
    int (*init_rank)(fg_nccl_comm *comm, int ranks, fg_nccl_id id, int rank);
    int (*all_gather)(const void *own, void *all, size_t own_count, int type, fg_nccl_comm comm,
                      cudaStream_t stream);
    int (*async_error)(fg_nccl_comm comm, int *error);
    int (*destroy)(fg_nccl_comm comm);
    int (*abort)(fg_nccl_comm comm);
    const char *(*error_string)(int error);
    const char *(*last_error)(fg_nccl_comm comm); /* NULL: not in this version */
} fg_nccl;

#endif
