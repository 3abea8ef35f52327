/*
 * Communicators, by NCCL: a library of the machine that is looked for when a worker has several ranks, and never linked.
 *
 * A gathering is one all-gather: each rank sends its columns as they lie, [rows][its columns], as many floats as the
 * widest rank has, and gets those of all one behind the other; a kernel puts them in their places. One row that is cut
 * evenly arrives in its place already. Long ones go in pieces, so that the memory between is of one size for any model.
 * Nothing is computed, so no bit changes, whatever way NCCL takes.
 *
 * Opening waits for the other ranks, for ever where one does not come, and cannot be stopped. So a thread of its own does
 * it, which is left alone where nobody wants to wait any longer. It also tries the communicator, which is when NCCL takes
 * the rest of its memory.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nccl_abi.h"

#define NCCL_VARIABLE "FORGE_NCCL"
#define NCCL_FILE     "libnccl.so.2"
/* For tests: several ranks on one device, which NCCL refuses unless they seem to be on different hosts. */
#define HOSTS_VARIABLE "FORGE_NCCL_HOSTID_PER_RANK"

enum {
    PLACE_THREADS = 256,
    TRIED_FLOATS = 64,
    CLOSE_SECONDS = 5,
#ifdef FG_GPU_EMULATED
    GATHERED_BYTES = 1 << 15, /* so small that tests see pieces */
#else
    GATHERED_BYTES = 64 << 20,
#endif
};

typedef enum comm_phase {
    COMM_MEETS, /* waits for the other ranks */
    COMM_TRIES,
    COMM_OPEN,
    COMM_FAILED,
} comm_phase;

struct fg_comm {
    const fg_backend *backend;
    fg_device_stream *stream;
    cudaStream_t queue; /* the stream's */
    int index;
    int multiprocessors;
    uint32_t rank, ranks;
    fg_nccl_id id;
    float *gathered; /* [ranks][widest part of some rows] */
    size_t floats;   /* of all of it */
    char way[32];
    pthread_t opener;
    pthread_mutex_t lock; /* of what follows, while it opens */
    comm_phase phase;
    bool left; /* closed before all ranks had met: the opener frees it, if it ever can */
    fg_nccl_comm nccl;
    fg_error error;
};

/* ---- the library ---- */

static fg_nccl nccl;
static bool nccl_is_there;

typedef struct nccl_symbol {
    const char *name;
    void *target; /* in `nccl` */
    bool needed;
} nccl_symbol;

static const nccl_symbol nccl_symbols[] = {
    { "ncclGetVersion", &nccl.get_version, true },
    { "ncclGetUniqueId", &nccl.get_unique_id, true },
    { "ncclCommInitRank", &nccl.init_rank, true },
    { "ncclAllGather", &nccl.all_gather, true },
    { "ncclCommGetAsyncError", &nccl.async_error, true },
    { "ncclCommDestroy", &nccl.destroy, true },
    { "ncclCommAbort", &nccl.abort, true },
    { "ncclGetErrorString", &nccl.error_string, true },
    { "ncclGetLastError", &nccl.last_error, false },
};

/* It stays loaded, as the plugin does. */
static fg_status load_nccl(fg_error *err)
{
    const char *named = getenv(NCCL_VARIABLE);
    const char *file = named != nullptr && named[0] != '\0' ? named : NCCL_FILE;
    if (nccl_is_there) {
        return FG_OK;
    }
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return fg_fail(err, FG_BAD_INPUT, "no NCCL: %s; name the file in " NCCL_VARIABLE,
                       dlerror());
    }
    for (const nccl_symbol &symbol : nccl_symbols) {
        void *found = dlsym(library, symbol.name);
        if (found == nullptr && symbol.needed) {
            dlclose(library);
            return fg_fail(err, FG_BAD_INPUT, "%s has no function %s", file, symbol.name);
        }
        memcpy(symbol.target, &found, sizeof found);
    }
    nccl_is_there = true;
    return FG_OK;
}

/* What NCCL reads when it is used first. Ranks need not record the same graphs at the same time, so it must not have them
 * exchange the addresses that a graph has. */
static void set_environment(uint32_t rank)
{
    const char *hosts = getenv(HOSTS_VARIABLE);
    setenv("NCCL_GRAPH_REGISTER", "0", 0);
    if (hosts != nullptr && strcmp(hosts, "on") == 0) {
        char host[32];
        snprintf(host, sizeof host, "forge-rank-%u", rank);
        setenv("NCCL_HOSTID", host, 1);
    }
}

static fg_status fail_nccl(fg_error *err, int result, const char *what)
{
    const char *more = nccl.last_error == nullptr ? nullptr : nccl.last_error(nullptr);
    bool says = more != nullptr && more[0] != '\0';
    return fg_fail(err, FG_BAD_INPUT, "NCCL: %s: %s%s%.160s", what, nccl.error_string(result),
                   says ? ": " : "", says ? more : "");
}

fg_status fg_cuda_comm_make_name(fg_device *device, fg_comm_name *name_out, fg_error *err)
{
    fg_nccl_id id;
    static_assert(sizeof id == sizeof *name_out, "a name is NCCL's");
    fg_status status = load_nccl(err);
    if (status != FG_OK) {
        return status;
    }
    fg_gpu_use(device);
    set_environment(0);
    int result = nccl.get_unique_id(&id);
    if (result != FG_NCCL_SUCCESS) {
        return fail_nccl(err, result, "a name for the ranks");
    }
    memcpy(name_out->bytes, &id, sizeof id);
    return FG_OK;
}

/* ---- opening ---- */

static fg_status fail_cuda(fg_error *err, cudaError_t error)
{
    (void)cudaGetLastError();
    return fg_fail(err, FG_BAD_INPUT, "CUDA, while NCCL was tried: %s", cudaGetErrorString(error));
}

/* Every rank's part arrives at this one. */
static fg_status try_floats(const fg_comm *comm, size_t each, fg_error *err)
{
    float *own = comm->gathered + comm->rank * each;
    uint8_t seen[2 * FG_COMM_RANKS_MAX] = {};
    cudaError_t error =
        cudaMemsetAsync(comm->gathered, 0, comm->ranks * each * sizeof(float), comm->queue);
    error = error != cudaSuccess
                ? error
                : cudaMemsetAsync(own, (int)comm->rank + 1, each * sizeof(float), comm->queue);
    if (error != cudaSuccess) {
        return fail_cuda(err, error);
    }
    int result =
        nccl.all_gather(own, comm->gathered, each, FG_NCCL_FLOAT32, comm->nccl, comm->queue);
    if (result != FG_NCCL_SUCCESS) {
        return fail_nccl(err, result, "a first gathering");
    }
    for (uint32_t i = 0; i < 2 * comm->ranks && error == cudaSuccess; i++) {
        const uint8_t *at = (const uint8_t *)(comm->gathered + i / 2 * each);
        at += i % 2 == 0 ? 0 : each * sizeof(float) - 1;
        error = cudaMemcpyAsync(&seen[i], at, 1, cudaMemcpyDeviceToHost, comm->queue);
    }
    error = error != cudaSuccess ? error : cudaStreamSynchronize(comm->queue);
    if (error != cudaSuccess) {
        return fail_cuda(err, error);
    }
    for (uint32_t i = 0; i < 2 * comm->ranks; i++) {
        if (seen[i] != i / 2 + 1) {
            return fg_fail(err, FG_BAD_INPUT, "NCCL: what rank %u sent arrived wrong", i / 2);
        }
    }
    return FG_OK;
}

static fg_status try_comm(const fg_comm *comm, fg_error *err)
{
    size_t most = comm->floats / comm->ranks;
    fg_status status = try_floats(comm, most < TRIED_FLOATS ? most : TRIED_FLOATS, err);
    return status != FG_OK ? status : try_floats(comm, most, err);
}

static void free_comm(fg_comm *comm)
{
    if (cudaFree(comm->gathered) != cudaSuccess) {
        (void)cudaGetLastError();
    }
    pthread_mutex_destroy(&comm->lock);
    free(comm);
}

static void set_phase(fg_comm *comm, comm_phase phase)
{
    pthread_mutex_lock(&comm->lock);
    comm->phase = phase;
    pthread_mutex_unlock(&comm->lock);
}

static void *open_main(void *ctx)
{
    fg_comm *comm = (fg_comm *)ctx;
    fg_error error = {};
    cudaError_t chosen = cudaSetDevice(comm->index);
    int result = FG_NCCL_SUCCESS;
    fg_status status = chosen == cudaSuccess ? FG_OK : fail_cuda(&error, chosen);
    if (status == FG_OK) {
        result = nccl.init_rank(&comm->nccl, (int)comm->ranks, comm->id, (int)comm->rank);
    }
    if (result != FG_NCCL_SUCCESS) {
        comm->nccl = nullptr;
        status = fail_nccl(&error, result, "meeting the other ranks");
    }
    pthread_mutex_lock(&comm->lock);
    bool left = comm->left;
    comm->phase = COMM_TRIES;
    pthread_mutex_unlock(&comm->lock);
    if (left) {
        if (comm->nccl != nullptr) {
            (void)nccl.abort(comm->nccl);
        }
        free_comm(comm);
        return nullptr;
    }
    status = status != FG_OK ? status : try_comm(comm, &error);
    comm->error = error;
    set_phase(comm, status == FG_OK ? COMM_OPEN : COMM_FAILED);
    return nullptr;
}

fg_status fg_cuda_comm_open(fg_device_stream *stream, const fg_comm_options *options,
                            fg_comm **comm_out, fg_error *err)
{
    int version = 0;
    fg_status status = load_nccl(err);
    if (status != FG_OK) {
        return status;
    }
    fg_gpu_use(stream->device);
    set_environment(options->rank);
    fg_comm *comm = (fg_comm *)calloc(1, sizeof *comm);
    if (comm == nullptr) {
        return fg_fail(err, FG_AGAIN, "out of memory for a communicator");
    }
    comm->backend = stream->backend;
    comm->stream = stream;
    comm->queue = stream->stream;
    comm->index = stream->device->index;
    comm->multiprocessors = stream->device->multiprocessors;
    comm->rank = options->rank;
    comm->ranks = options->ranks;
    comm->floats = GATHERED_BYTES / sizeof(float);
    comm->floats = options->row_max > comm->floats ? options->row_max : comm->floats;
    memcpy(&comm->id, options->name.bytes, sizeof comm->id);
    (void)nccl.get_version(&version);
    snprintf(comm->way, sizeof comm->way, "NCCL %d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    pthread_mutex_init(&comm->lock, nullptr);
    if (cudaMalloc((void **)&comm->gathered, comm->floats * sizeof(float)) != cudaSuccess) {
        (void)cudaGetLastError();
        status = fg_fail(err, FG_AGAIN, "cuda:%d has no memory for %zu MiB of gathered rows",
                         comm->index, (comm->floats * sizeof(float)) >> 20);
    } else if (pthread_create(&comm->opener, nullptr, open_main, comm) != 0) {
        status = fg_fail(err, FG_AGAIN, "no thread for a communicator");
    }
    if (status != FG_OK) {
        free_comm(comm);
        return status;
    }
    *comm_out = comm;
    return FG_OK;
}

bool fg_cuda_comm_is_open(fg_comm *comm, fg_status *status_out, fg_error *err)
{
    pthread_mutex_lock(&comm->lock);
    comm_phase phase = comm->phase;
    pthread_mutex_unlock(&comm->lock);
    if (phase == COMM_FAILED) {
        *status_out = fg_fail(err, comm->error.status, "%s", comm->error.text);
    } else {
        *status_out = FG_OK;
    }
    return phase == COMM_OPEN || phase == COMM_FAILED;
}

const char *fg_cuda_comm_way(const fg_comm *comm)
{
    return comm->way;
}

fg_status fg_cuda_comm_check(fg_comm *comm, fg_error *err)
{
    int lasting = FG_NCCL_SUCCESS;
    int result = nccl.async_error(comm->nccl, &lasting);
    result = result != FG_NCCL_SUCCESS ? result : lasting;
    return result == FG_NCCL_SUCCESS || result == FG_NCCL_IN_PROGRESS
               ? FG_OK
               : fail_nccl(err, result, "a gathering");
}

/* ---- closing ---- */

static void *close_main(void *ctx)
{
    fg_comm *comm = (fg_comm *)ctx;
    bool chosen = cudaSetDevice(comm->index) == cudaSuccess;
    pthread_mutex_lock(&comm->lock);
    bool opened = comm->phase == COMM_OPEN;
    pthread_mutex_unlock(&comm->lock);
    if (opened && chosen) {
        (void)cudaStreamSynchronize(comm->queue);
        (void)nccl.destroy(comm->nccl);
    } else if (comm->nccl != nullptr) {
        (void)nccl.abort(comm->nccl); /* also what the opener waits for */
    }
    pthread_join(comm->opener, nullptr);
    free_comm(comm);
    return nullptr;
}

void fg_cuda_comm_close(fg_comm *comm)
{
    fg_gpu_use(comm->stream->device);
    fg_cuda_drop_graphs(comm->stream); /* NCCL waits for those that it is recorded in */
    pthread_mutex_lock(&comm->lock);
    comm->left = comm->phase == COMM_MEETS;
    bool left = comm->left;
    pthread_t opener = comm->opener;
    pthread_mutex_unlock(&comm->lock);
    if (left) {
        pthread_detach(opener);
        return;
    }
    pthread_t closer;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_SECONDS;
    if (pthread_create(&closer, nullptr, close_main, comm) != 0) {
        close_main(comm);
    } else if (pthread_timedjoin_np(closer, nullptr, &until) != 0) {
        pthread_detach(
            closer); /* the other ranks are gone; what this one has ends with its process */
    }
}

/* ---- gathering ---- */

typedef struct place_firsts {
    uint32_t at[FG_COMM_RANKS_MAX + 1];
} place_firsts;

/* Columns of all ranks to their places, `width` floats at a time; a rank's rows are dense, and its part begins where it
 * would if each had as many columns as the widest. */
template <int width>
static __global__ __launch_bounds__(PLACE_THREADS) void place_columns(
    const float *gathered, float *all, place_firsts firsts, uint32_t columns, uint32_t widest,
    uint32_t rows)
{
    fg_gpu_let_next();
    uint32_t across = columns / width;
    size_t count = (size_t)rows * across;
    fg_gpu_wait();
    for (size_t i = (size_t)blockIdx.x * PLACE_THREADS + threadIdx.x; i < count;
         i += (size_t)gridDim.x * PLACE_THREADS) {
        uint32_t row = (uint32_t)(i / across), column = (uint32_t)(i % across) * width;
        uint32_t rank = 0;
        while (column >= firsts.at[rank + 1]) {
            rank++;
        }
        uint32_t first = firsts.at[rank], own = firsts.at[rank + 1] - first;
        const float *from =
            gathered + (size_t)rank * rows * widest + (size_t)row * own + (column - first);
        float *to = all + (size_t)row * columns + column;
        if constexpr (width == 4) {
            *(float4 *)to = *(const float4 *)from;
        } else {
            *to = *from;
        }
    }
}

/* A NCCL error means that the ranks cannot go on together, as a CUDA error that the device can't: this process ends. */
static void check_nccl(int result, const char *what)
{
    if (result != FG_NCCL_SUCCESS) {
        fg_error err;
        (void)fail_nccl(&err, result, what);
        fprintf(stderr, "forge: cuda: %s. This process ends so that its requests move on.\n",
                err.text);
        abort();
    }
}

static void place(const fg_comm *comm, const fg_comm_gather *gather, float *all, uint32_t columns,
                  uint32_t widest, uint32_t rows)
{
    place_firsts firsts = {};
    bool fours = (uintptr_t)all % 16 == 0;
    for (uint32_t rank = 0; rank <= comm->ranks; rank++) {
        firsts.at[rank] = gather->firsts[rank];
        fours = fours && gather->firsts[rank] % 4 == 0;
    }
    size_t moves = (size_t)rows * columns / (fours ? 4 : 1);
    size_t most = (size_t)comm->multiprocessors * 8, blocks = (moves - 1) / PLACE_THREADS + 1;
    dim3 grid((uint32_t)(blocks < most ? blocks : most));
    if (fours) {
        FG_LAUNCH(place_columns<4>, grid, dim3(PLACE_THREADS), 0, comm->queue, true,
                  (const float *)comm->gathered, all, firsts, columns, widest, rows);
    } else {
        FG_LAUNCH(place_columns<1>, grid, dim3(PLACE_THREADS), 0, comm->queue, true,
                  (const float *)comm->gathered, all, firsts, columns, widest, rows);
    }
}

void fg_cuda_comm_gather(fg_comm *comm, const fg_comm_gather *gather, uint32_t rows)
{
    const uint32_t *firsts = gather->firsts;
    uint32_t columns = firsts[comm->ranks], own = firsts[comm->rank + 1] - firsts[comm->rank];
    uint32_t widest = 0;
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        uint32_t count = firsts[rank + 1] - firsts[rank];
        widest = count > widest ? count : widest;
    }
    bool in_place = rows == 1 && widest * comm->ranks == columns;
    uint32_t most = (uint32_t)(comm->floats / ((size_t)widest * comm->ranks));
    for (uint32_t first = 0, count; first < rows; first += count) {
        count = rows - first < most ? rows - first : most;
        float *all = gather->all + (size_t)first * columns;
        comm->stream->sequence++;
        check_nccl(nccl.all_gather(gather->own + (size_t)first * own,
                                   in_place ? all : comm->gathered, (size_t)count * widest,
                                   FG_NCCL_FLOAT32, comm->nccl, comm->queue),
                   "gathering rows");
        if (!in_place) {
            place(comm, gather, all, columns, widest, count);
        }
    }
}
