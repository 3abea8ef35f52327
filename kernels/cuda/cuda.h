/*
 * cuda - what the files of the CUDA back end share: its device and stream, and the functions of its table.
 *
 * Numerics (revision g4): an output depends on its row, its weights and the KV slots up to its position, never on how
 * many rows are computed, by which kernel or in what order.
 *   products    weights and activations are bf16 (weights of any type: the float that the CPU's embedding reads,
 *               rounded), sums float, on tensor cores. Columns go in steps of 16, the last one filled with zeros. The
 *               steps are cut into at most 8 parts of ceil(steps / 8); a part is one chain of steps in rising order
 *               from 0; parts are added in rising order.
 *   attention   slots go in tiles of 128 from slot 0 on. In a tile: scores are a chain of steps of 16 dimensions; weights
 *               are powers of 2 below the tile's maximum, added as floats, rounded to bf16; outputs are a chain of steps
 *               of 16 slots. Tiles are merged in rising order.
 *   others      float, in an order that the kernel fixes.
 */
#ifndef FORGE_KERNELS_CUDA_CUDA_H
#define FORGE_KERNELS_CUDA_CUDA_H

#include "kernels/backend.h"
#include "kernels/cuda/gpu.h"

/* A CUDA error means that the device can't be used any more: the process ends, and the cluster moves its requests. */
void fg_gpu_check(cudaError_t error, const char *what);

enum {
    FG_GPU_STEP = 16,        /* columns of one step of a product */
    FG_GPU_PARTS = 8,        /* of a product's steps */
    FG_GPU_STRIP = 16,       /* outputs that lie together */
    FG_GPU_TILE = 128,       /* slots of a tile of attention */
    FG_GPU_GROUP_ROWS = 16,  /* (row, head)s of a unit of tensor-core products */
    FG_GPU_WARPS = 8,        /* of a tile of a prompt's attention */
    FG_GPU_PROMPT_ROWS = 32, /* of one sequence in a step: from so many on they count as a prompt */
    /* Steps of at most so many rows are staged at addresses that never change; those of few, with fewer bytes. */
    FG_GPU_SMALL_ROWS = FG_CHOSEN_ROWS,
    FG_GPU_FEW_STAGED = 64,
};

/* A row as attention sees it. */
typedef struct fg_gpu_row {
    uint32_t
        table; /* where its sequence's block ids begin in the staged tables; UINT32_MAX: a row that pads */
    uint32_t position;
} fg_gpu_row;

/* Some rows of one sequence, which follow each other. */
typedef struct fg_gpu_span {
    uint32_t first;
    uint32_t count;
} fg_gpu_span;

typedef struct fg_gpu_counts {
    uint32_t groups;      /* spans of which each tile is a piece of work */
    uint32_t tiles;       /* of all groups: ends[groups - 1] */
    uint32_t prompts;     /* spans that walk through their tiles */
    uint32_t record_rows; /* (row, head)s of a record at most */
} fg_gpu_counts;

/* What is staged for a step, at fixed places of one piece of memory. */
typedef struct fg_gpu_staged {
    fg_gpu_counts *counts;
    uint32_t *tokens;
    uint32_t *positions;
    uint32_t *row_ids;
    fg_gpu_row *rows;
    fg_gpu_span *groups;
    uint32_t *ends; /* tiles of groups 0 .. i */
    fg_gpu_span *prompts;
    uint32_t *tables;
} fg_gpu_staged;

typedef struct fg_gpu_memory fg_gpu_memory;

struct fg_device {
    const fg_backend *backend;
    int index;
    int multiprocessors;
    size_t shared_bytes; /* of a multiprocessor */
    size_t block_bytes;  /* of those that a block may have */
    bool wide;           /* has the kernels of wide.cu and wide_quant.cu */
    char isa[32];
    char numerics[64];
    fg_device_options limits;
    /* How query heads of one KV head are cut: `unit_heads` of them go together, in `units` pieces a KV head. */
    uint32_t unit_heads, units;
    uint32_t row_tokens;   /* rows of one sequence that a unit of 16 (row, head)s has room for */
    fg_gpu_memory *loaded; /* until close */
};

/* Thirteen sizes of steps, with four ways to choose, in two places. */
enum { FG_GPU_GRAPHS = 104 };

/* As exact as device.h says. */
enum { FG_GPU_EVENTS = 4 };

typedef struct fg_gpu_graph {
    uint64_t key;
    cudaGraphExec_t run;
} fg_gpu_graph;

struct fg_device_stream {
    const fg_backend *backend;
    fg_device *device;
    cudaStream_t stream;
    cudaEvent_t events[FG_GPU_EVENTS]; /* record n at n % FG_GPU_EVENTS */
    uint64_t event_count;
    cudaEvent_t staged; /* the staging area has been copied */
    uint64_t sequence;
    void *host_stage, *device_stage;
    size_t stage_bytes;
    fg_step_rows rows;     /* as staged: operations name these arrays */
    fg_gpu_staged at;      /* on the device */
    fg_gpu_staged host_at; /* where it was copied from */
    fg_gpu_counts counts;
    bool small;  /* the step's addresses never change */
    bool passes; /* attention has more records than there is room for */
    fg_gpu_graph graphs[FG_GPU_GRAPHS];
    uint32_t graph_count;
    bool capturing;
    uint64_t capture_key;
    uint32_t *chosen; /* of the first FG_CHOSEN_ROWS rows that highest or choose had last */
    /* Work areas. */
    float *work; /* sums of parts, logits */
    size_t work_floats;
    float *records; /* of attention: maximum and sum of each (row, head), then outputs */
    size_t record_floats;
    uint8_t *expanded; /* strips of quantised weights as bf16 */
};

/* Where an array of the step's, or a part of it, was copied to. */
template <typename T>
static inline const T *fg_gpu_staged_at(const T *host, const T *base, const T *device)
{
    return host == nullptr ? nullptr : device + (host - base);
}

/* A product's steps, and their columns. Where the last step is not whole, weights and activations are 0 in the rest. */
static __host__ __device__ __forceinline__ uint32_t fg_gpu_steps(uint32_t columns)
{
    return (columns + FG_GPU_STEP - 1) / FG_GPU_STEP;
}

static __host__ __device__ __forceinline__ uint32_t fg_gpu_columns(uint32_t columns)
{
    return fg_gpu_steps(columns) * FG_GPU_STEP;
}

/* Weights of products that are BF16, as F32 and F16 have become when they were packed: [strip][step][lane] words of four
 * pairs, in the order of fg_mma. */
static inline size_t fg_gpu_panel_bytes(uint32_t outputs, uint32_t columns)
{
    return (size_t)((outputs + FG_GPU_STRIP - 1) / FG_GPU_STRIP) * fg_gpu_steps(columns) * 512;
}

/* All others are packed as BF16. */
static inline bool fg_gpu_is_quant(uint32_t type)
{
    return type != FG_F32 && type != FG_F16 && type != FG_BF16;
}

/* Quantised weights stay so in memory; products of very many rows, and of many where wide_quant.cu has no kernel, expand
 * some strips of them at a time. */
enum {
#ifdef FG_GPU_EMULATED
    FG_GPU_EXPANDED_BYTES = 1 << 20, /* so small that tests see pieces */
#else
    FG_GPU_EXPANDED_BYTES = 256 << 20,
#endif
    FG_GPU_EXPANDED_STRIPS = 16, /* there is room for so many of any matrix */
};

/*
 * Activations of products: in blocks of 64 rows x 64 columns, [row / 64][column / 64], the last ones as wide as is
 * left; in a block matrices of 8 rows x 8 columns, a row's 16 bytes after the other's, [row / 8][column / 8]. So a warp
 * reads a fragment as 32 words that follow each other, and a block is one piece for a bulk copy. This is the word of
 * columns k and k + 1, k even; `columns` are those of whole steps (fg_gpu_columns). There is room for whole blocks of
 * rows. What the last step has beyond the columns nobody writes: it is 0, as memory is when it is taken.
 */
enum { FG_GPU_BLOCK = 64, FG_GPU_BLOCK_WORDS = FG_GPU_BLOCK * FG_GPU_BLOCK / 2 };

static __host__ __device__ __forceinline__ size_t fg_gpu_pair_at(uint32_t row, uint32_t k,
                                                                 uint32_t columns)
{
    uint32_t first = k / FG_GPU_BLOCK * FG_GPU_BLOCK;
    uint32_t width = columns - first < FG_GPU_BLOCK ? columns - first : FG_GPU_BLOCK;
    return (size_t)(row / FG_GPU_BLOCK) * (FG_GPU_BLOCK / 2) * columns +
           (size_t)first * (FG_GPU_BLOCK / 2) + row % FG_GPU_BLOCK / 8 * width * 4 +
           k % FG_GPU_BLOCK / 8 * 32 + row % 8 * 4 + k % 8 / 2;
}

/*
 * K and V of a head in a block: [slot / 8][dim / 8] matrices of 8 slots x 8 dimensions of bf16, a slot's 16 bytes after
 * the other's, as tensor cores read them from shared memory. This is the byte of dimension d of a slot, d a multiple of
 * 8. (Not the CPU's layout, kernels/ops.h: the host never looks into a device's blocks.)
 */
static __host__ __device__ __forceinline__ size_t fg_gpu_slot_at(uint32_t slot, uint32_t d,
                                                                 uint32_t head_dim)
{
    return (size_t)(slot / 8) * head_dim * 16 + d * 16 + slot % 8 * 16;
}

/* Once per device and kernel that wants more shared memory than the 48 KiB that is usual. A kernel that the device has no
 * room for is not started there: whoever starts it asks fg_gpu_has_room before. */
static inline bool fg_gpu_has_room(const fg_device *device, size_t bytes)
{
    return bytes <= device->block_bytes;
}

template <typename kernel>
static inline void fg_gpu_allow_shared(const fg_device *device, kernel *which, size_t bytes)
{
    if (fg_gpu_has_room(device, bytes)) {
        fg_gpu_check(
            cudaFuncSetAttribute(which, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            "preparing kernels");
    }
}

void fg_cuda_stage(fg_device_stream *stream, const fg_step_rows *rows);
fg_status fg_cuda_stage_open(fg_device_stream *stream, fg_error *err);
void fg_cuda_stage_close(fg_device_stream *stream);

fg_status fg_cuda_pack(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                       fg_error *err);
uint32_t fg_cuda_linear_form(uint32_t type);
void fg_cuda_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                     uint32_t rows);
void fg_cuda_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                    const fg_activations *in, uint32_t rows);
void fg_cuda_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                   uint32_t rows);
void fg_cuda_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                     uint32_t rows, uint32_t *choices, float *tops);
void fg_cuda_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows);
void fg_cuda_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                   uint32_t rows, float scale, float *out);
void fg_cuda_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows);
void fg_cuda_finite(fg_device_stream *stream, const float *values, uint32_t columns, uint32_t rows,
                    uint32_t *finite);
void fg_cuda_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                        const fg_rope_turns *turns, float *table);
void fg_cuda_rope_store(fg_device_stream *stream, const fg_paged_kv *kv, const fg_rope_store *args,
                        uint32_t rows);
void fg_cuda_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                    uint32_t rows);
void fg_cuda_digest(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count);

fg_status fg_cuda_comm_make_name(fg_device *device, fg_comm_name *name_out, fg_error *err);
fg_status fg_cuda_comm_open(fg_device_stream *stream, const fg_comm_options *options,
                            fg_comm **comm_out, fg_error *err);
bool fg_cuda_comm_is_open(fg_comm *comm, fg_status *status_out, fg_error *err);
const char *fg_cuda_comm_way(const fg_comm *comm);
fg_status fg_cuda_comm_check(fg_comm *comm, fg_error *err);
void fg_cuda_comm_close(fg_comm *comm);
void fg_cuda_comm_gather(fg_comm *comm, const fg_comm_gather *gather, uint32_t rows);

/* What a stream has recorded is gone. */
void fg_cuda_drop_graphs(fg_device_stream *stream);

/* Once per device: kernels that want more shared memory than is usual. */
void fg_cuda_linear_prepare(fg_device *device);
void fg_cuda_attend_prepare(const fg_device *device);
/* Bytes of shared memory that a block of attention takes for the device's heads, at least. */
size_t fg_cuda_attend_bytes(const fg_device *device);
/* CUDA keeps for each thread which device it works on: a device is opened by one thread and used by another. Whatever
 * begins work (memory, staging, copies, waits, graphs) says so first; operations follow on the same thread. */
void fg_gpu_use(const fg_device *device);
/* Device memory that lives until the device is closed; NULL when there is none. */
void *fg_cuda_keep(fg_device *device, size_t size_bytes);

#endif
