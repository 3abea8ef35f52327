/*
 * emulated_check - whether the emulation of CUDA (tests/gpu/emulated.h) does what a GPU does. Prints a line per
 * check and `N passed, N failed`, exits with 1 if one failed; with --speed also what a switch and a product take. Built
 * as C++ with FG_GPU_EMULATED.
 */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/gpu.h"

static char why[256];

static void fg_gpu_check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        snprintf(why, sizeof(why), "%s: %s", what, cudaGetErrorName(error));
    }
}

static void expect(bool good, const char *text)
{
    if (!good && why[0] == '\0') {
        snprintf(why, sizeof(why), "%s", text);
    }
}

static uint32_t random_next(void)
{
    static uint64_t state = 88172645463325252U;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 16);
}

template <typename T> static T *device_new(size_t count)
{
    T *at = nullptr;
    fg_gpu_check(cudaMalloc(&at, count * sizeof(T)), "cudaMalloc");
    return at;
}

template <typename T> static void to_device(T *device, const T *host, size_t count)
{
    fg_gpu_check(cudaMemcpy(device, host, count * sizeof(T), cudaMemcpyHostToDevice),
                 "to the device");
}

template <typename T> static void to_host(T *host, const T *device, size_t count)
{
    fg_gpu_check(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost),
                 "to the host");
}

/* ---- Shuffles and votes ---- */

static __global__ void __launch_bounds__(96) shuffles(uint32_t *out)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = (int)threadIdx.x;
    double wide = threadIdx.x;
    for (int step = 16; step != 0; step /= 2) {
        sum += __shfl_xor_sync(0xFFFFFFFFU, sum, step);
        wide += __shfl_down_sync(0xFFFFFFFFU, wide, (unsigned)step);
    }
    wide = __shfl_sync(0xFFFFFFFFU, wide, 0);
    float above = __shfl_up_sync(0xFFFFFFFFU, (float)lane, 3);
    unsigned eighth = __shfl_sync(0xFFFFFFFFU, lane, 10, 8); /* lane 2 of each eight */
    unsigned odd = __ballot_sync(0xFFFFFFFFU, lane & 1);
    bool good = sum == (int)(warp * 1024 + 496) && wide == sum &&
                above == (float)(lane < 3 ? lane : lane - 3);
    good = good && eighth == lane / 8 * 8 + 2 && odd == 0xAAAAAAAAU;
    good = good && __any_sync(0xFFFFFFFFU, lane == 7) && !__all_sync(0xFFFFFFFFU, lane == 7);
    if (lane < 12) {
        /* Two groups of a warp, each with its own exchanges. */
        unsigned mask = lane < 4 ? 0xFU : 0xFF0U;
        int most = (int)lane;
        for (uint32_t i = 0; i < (lane < 4 ? 3 : 7); i++) {
            int other =
                __shfl_sync(mask, most, (int)(lane < 4 ? (lane + 1) % 4 : 4 + (lane - 3) % 8));
            most = max(most, other);
        }
        good = good && most == (lane < 4 ? 3 : 11);
    }
    __syncwarp();
    out[threadIdx.x] = good;
}

static void check_shuffles(void)
{
    uint32_t host[96] = { 0 }, *device = device_new<uint32_t>(96);
    FG_LAUNCH(shuffles, 1, 96, 0, nullptr, false, device);
    to_host(host, device, 96);
    for (uint32_t i = 0; i < 96; i++) {
        expect(host[i] == 1, "a lane saw a wrong value");
    }
    cudaFree(device);
}

/* ---- Barriers ---- */

template <int rounds> static __global__ void barriers(uint32_t *out)
{
    __shared__ uint32_t ring[256];
    FG_SHARED_BYTES(bytes);
    uint32_t *dynamic = (uint32_t *)bytes;
    uint32_t at = threadIdx.y * blockDim.x + threadIdx.x;
    uint32_t count = blockDim.x * blockDim.y;
    bool good = dynamic[at] == UINT32_MAX;
    __syncthreads();
    ring[at] = at;
    for (int i = 0; i < rounds; i++) {
        __syncthreads();
        uint32_t next = ring[(at + 1) % count];
        __syncthreads();
        ring[at] = next;
    }
    dynamic[at] = ring[at];
    if (at >= 200) {
        return; /* Who has ended is not waited for. */
    }
    __syncthreads();
    good = good && dynamic[at] == (at + rounds) % count;
    out[blockIdx.x * count + at] = good;
}

static __global__ void fresh(uint32_t *out)
{
    __shared__ float sums[32];
    out[blockIdx.x * 32 + threadIdx.x] = sums[threadIdx.x] != sums[threadIdx.x];
    sums[threadIdx.x] = 1.0F;
}

static void check_barriers(void)
{
    uint32_t host[3 * 256], *device = device_new<uint32_t>(3 * 256);
    cudaMemset(device, 0, sizeof(host));
    FG_LAUNCH(barriers<5>, 3, dim3(64, 4), 1024, nullptr, false, device);
    FG_LAUNCH(barriers<3>, 3, dim3(64, 4), 1024, nullptr, false, device);
    to_host(host, device, 3 * 256);
    for (uint32_t i = 0; i < 3 * 256; i++) {
        expect(host[i] == (i % 256 < 200), "a thread saw what is not there yet");
    }
    FG_LAUNCH(fresh, 3, 32, 0, nullptr, false, device);
    to_host(host, device, 3 * 32);
    for (uint32_t i = 0; i < 3 * 32; i++) {
        expect(host[i] == 1, "shared memory does not begin as NaNs");
    }
    cudaFree(device);
}

/* ---- Tensor cores ---- */

static __global__ void product(const uint16_t *a, const uint16_t *b, float *c)
{
    uint32_t g = threadIdx.x / 4, t = threadIdx.x % 4;
    uint32_t fragment[4], b0, b1;
    for (uint32_t i = 0; i < 4; i++) {
        const uint16_t *at = a + (g + i % 2 * 8) * 16 + t * 2 + i / 2 * 8;
        fragment[i] = at[0] | (uint32_t)at[1] << 16;
    }
    b0 = b[t * 2 * 8 + g] | (uint32_t)b[(t * 2 + 1) * 8 + g] << 16;
    b1 = b[(t * 2 + 8) * 8 + g] | (uint32_t)b[(t * 2 + 9) * 8 + g] << 16;
    float *rows[2] = { c + g * 8 + t * 2, c + (g + 8) * 8 + t * 2 };
    float sums[4] = { rows[0][0], rows[0][1], rows[1][0], rows[1][1] };
    fg_mma(sums, fragment, b0, b1);
    rows[0][0] = sums[0];
    rows[0][1] = sums[1];
    rows[1][0] = sums[2];
    rows[1][1] = sums[3];
}

static void check_product(void)
{
    uint16_t a[16 * 16], b[16 * 8], *da = device_new<uint16_t>(16 * 16),
                                    *db = device_new<uint16_t>(16 * 8);
    float c[16 * 8], out[16 * 8], *dc = device_new<float>(16 * 8);
    for (int round = 0; round < 20; round++) {
        for (uint16_t &x : a) {
            x = (uint16_t)((random_next() & 0x81FF) | 0x3E00);
        }
        for (uint16_t &x : b) {
            x = (uint16_t)((random_next() & 0x81FF) | 0x3E00);
        }
        for (float &x : c) {
            x = (float)(int32_t)random_next() * 0x1p-30F;
        }
        to_device(da, a, 16 * 16);
        to_device(db, b, 16 * 8);
        to_device(dc, c, 16 * 8);
        FG_LAUNCH(product, 1, 32, 0, nullptr, false, da, db, dc);
        to_host(out, dc, 16 * 8);
        for (uint32_t row = 0; row < 16; row++) {
            for (uint32_t column = 0; column < 8; column++) {
                double sum = c[row * 8 + column];
                for (uint32_t k = 0; k < 16; k++) {
                    sum += (double)__uint_as_float((uint32_t)a[row * 16 + k] << 16) *
                           (double)__uint_as_float((uint32_t)b[k * 8 + column] << 16);
                }
                expect(out[row * 8 + column] == (float)sum, "a sum differs from the plain loop's");
            }
        }
    }
    cudaFree(da);
    cudaFree(db);
    cudaFree(dc);
}

static __global__ void matrices(uint32_t *out)
{
    FG_SHARED_BYTES(bytes);
    uint16_t *numbers = (uint16_t *)bytes; /* matrix i, row j, column k: 64 i + 8 j + k */
    for (uint32_t i = threadIdx.x; i < 256; i += 32) {
        numbers[i] = (uint16_t)i;
    }
    __syncthreads();
    uint32_t lane = threadIdx.x, got[4];
    fg_load_matrices(got, numbers + lane * 8);
    uint32_t good = 1;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t first = 64 * i + 8 * (lane / 4) + lane % 4 * 2;
        good &= got[i] == (first | (first + 1) << 16);
    }
    fg_load_matrices_turned(got, numbers + lane * 8);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t first = 64 * i + lane / 4 + 16 * (lane % 4);
        good &= got[i] == (first | (first + 8) << 16);
    }
    out[lane] = good;
}

static void check_matrices(void)
{
    uint32_t host[32], *device = device_new<uint32_t>(32);
    FG_LAUNCH(matrices, 1, 32, 512, nullptr, false, device);
    to_host(host, device, 32);
    for (uint32_t good : host) {
        expect(good == 1, "a lane has other numbers");
    }
    cudaFree(device);
}

/* ---- Asynchronous copies ---- */

static __global__ void copies(const uint32_t *in, uint32_t *out)
{
    FG_SHARED_BYTES(bytes);
    uint32_t *words = (uint32_t *)bytes + threadIdx.x * 12;
    fg_copy16(words, in + threadIdx.x * 8, true);
    fg_copy_commit();
    fg_copy16(words + 4, in + threadIdx.x * 8 + 4, true);
    fg_copy16(words + 8, nullptr, false);
    fg_copy_commit();
    uint32_t good = words[0] == UINT32_MAX && words[4] == UINT32_MAX;
    fg_copy_wait<2>();
    good &= words[0] == UINT32_MAX;
    fg_copy_wait<1>();
    good &=
        words[0] == threadIdx.x * 8 && words[3] == threadIdx.x * 8 + 3 && words[4] == UINT32_MAX;
    fg_copy_wait<0>();
    good &= words[7] == threadIdx.x * 8 + 7 && words[8] == 0 && words[11] == 0;
    fg_copy16(words, in, true); /* Never waited for. */
    fg_copy_commit();
    uint4 all = fg_load16_once(in + threadIdx.x * 8);
    good &= all.x == threadIdx.x * 8 && all.w == all.x + 3;
    out[threadIdx.x] = good;
}

static void check_copies(void)
{
    uint32_t host[64 * 8], *in = device_new<uint32_t>(64 * 8), *out = device_new<uint32_t>(64);
    for (uint32_t i = 0; i < 64 * 8; i++) {
        host[i] = i;
    }
    to_device(in, host, 64 * 8);
    FG_LAUNCH(copies, 1, 64, 64 * 48, nullptr, false, in, out);
    to_host(host, out, 64);
    for (uint32_t i = 0; i < 64; i++) {
        expect(host[i] == 1, "a copy came too early, too late, or wrong");
    }
    cudaFree(in);
    cudaFree(out);
}

/* ---- Graphs ---- */

static __global__ void add(const uint32_t *in, uint32_t *out, uint32_t more)
{
    out[threadIdx.x] += in[threadIdx.x] + more;
}

static void check_graphs(void)
{
    cudaStream_t stream = nullptr, other = nullptr;
    cudaEvent_t fork = nullptr, join = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    uint32_t *pinned = nullptr, *in = device_new<uint32_t>(32), *out = device_new<uint32_t>(32);
    fg_gpu_check(cudaHostAlloc(&pinned, 32 * sizeof(*pinned), cudaHostAllocDefault),
                 "cudaHostAlloc");
    fg_gpu_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    fg_gpu_check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), "stream");
    fg_gpu_check(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), "event");
    fg_gpu_check(cudaEventCreateWithFlags(&join, cudaEventDisableTiming), "event");
    fg_gpu_check(cudaMemset(out, 0, 32 * sizeof(*out)), "cudaMemset");

    uint32_t more = 5, host[32];
    fg_gpu_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin");
    fg_gpu_check(cudaMemcpyAsync(in, pinned, 32 * sizeof(*in), cudaMemcpyHostToDevice, stream),
                 "copy");
    fg_gpu_check(cudaEventRecord(fork, stream), "record");
    fg_gpu_check(cudaStreamWaitEvent(other, fork, 0), "wait");
    FG_LAUNCH(add, 1, 32, 0, other, true, in, out, more);
    fg_gpu_check(cudaEventRecord(join, other), "record");
    fg_gpu_check(cudaStreamWaitEvent(stream, join, 0), "wait");
    fg_gpu_check(cudaStreamEndCapture(stream, &graph), "end");
    fg_gpu_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    fg_gpu_check(cudaGraphDestroy(graph), "destroy");
    more = 7;
    to_host(host, out, 32);
    expect(host[0] == 0, "work ran while it was captured");
    for (uint32_t round = 1; round <= 3; round++) {
        for (uint32_t i = 0; i < 32; i++) {
            pinned[i] = round * 100 + i;
        }
        fg_gpu_check(cudaGraphLaunch(exec, stream), "launch");
        fg_gpu_check(cudaStreamSynchronize(stream), "synchronize");
    }
    to_host(host, out, 32);
    for (uint32_t i = 0; i < 32; i++) {
        expect(host[i] == 600 + 3 * i + 15,
               "replays did not see memory as it is, or arguments as they were");
    }
    fg_gpu_check(cudaGraphExecDestroy(exec), "destroy");

    /* What a capture forbids ends it. */
    fg_gpu_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
    expect(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported,
           "waited for a capturing stream");
    expect(cudaStreamEndCapture(stream, &graph) != cudaSuccess, "a broken capture made a graph");
    expect(cudaGetLastError() != cudaSuccess && cudaGetLastError() == cudaSuccess,
           "cudaGetLastError");
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(other);
    cudaStreamDestroy(stream);
    cudaFreeHost(pinned);
    cudaFree(in);
    cudaFree(out);
}

/* ---- What must go wrong ---- */

static __global__ void beyond(uint32_t *out)
{
    FG_SHARED_BYTES(bytes);
    out[0] = bytes[*(volatile uint32_t *)out];
}

static __global__ void lost_lane(uint32_t *out)
{
    if (threadIdx.x == 3) {
        __syncthreads();
    }
    out[threadIdx.x] = __shfl_sync(0xFFFFFFFFU, threadIdx.x, 0);
    __syncthreads();
}

static __global__ void askew(const unsigned char *in, uint32_t *out)
{
    FG_SHARED_BYTES(bytes);
    fg_copy16(bytes, in + 8, true);
    fg_copy_commit();
    fg_copy_wait<0>();
    out[0] = bytes[0];
}

/* How a child that does this ends: the number of its signal, 0 if it does not die. Sanitizers exit instead: -1. */
static int fate(void (*act)(uint32_t *device), uint32_t *device)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == nullptr) {
            _exit(0);
        }
        act(device);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : -1;
}

static void touch(uint32_t *device)
{
    *(volatile uint32_t *)device = 1;
}

static void run_beyond(uint32_t *device)
{
    uint32_t at = 256;
    to_device(device, &at, 1);
    FG_LAUNCH(beyond, 1, 1, 256, nullptr, false, device);
}

static void run_lost_lane(uint32_t *device)
{
    FG_LAUNCH(lost_lane, 1, 64, 0, nullptr, false, device);
}

static void run_askew(uint32_t *device)
{
    FG_LAUNCH(askew, 1, 1, 256, nullptr, false, (const unsigned char *)device, device);
}

static void check_protection(void)
{
    uint32_t *device = device_new<uint32_t>(1024);
    int end = fate(touch, device);
    expect(end == SIGSEGV, "the host reached device memory");
    FG_LAUNCH(add, 1, 32, 0, nullptr, false, device, device, 0U);
    end = fate(touch, device);
    expect(end == SIGSEGV, "the host reached device memory after a kernel");
    end = fate(run_beyond, device);
    expect(end == SIGSEGV || end == -1, "a byte behind shared memory could be read");
    cudaFree(device);
}

static void check_misuse(void)
{
    uint32_t *device = device_new<uint32_t>(1024);
    expect(fate(run_lost_lane, device) == SIGABRT, "a warp without one of its lanes went on");
    expect(fate(run_askew, device) == SIGABRT, "a copy from 8 beside 16 bytes was made");
    uint32_t host[4];
    expect(cudaMemcpy(host, device, 8192, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue,
           "a copy beyond the end");
    expect(cudaMemcpy(host, host, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue,
           "a copy of the wrong kind");
    expect(cudaFree(device + 1) == cudaErrorInvalidValue, "half a piece freed");
    const struct {
        dim3 grid, block;
        size_t shared;
    } bad[] = {
        { dim3(0), dim3(32), 0 },
        { dim3(1, 65536), dim3(32), 0 },
        { dim3(1), dim3(1025), 0 },
        { dim3(1), dim3(32), 48 * 1024 + 1 },
        { dim3(1), dim3(32), 227 * 1024 + 1 },
    };
    for (const auto &shape : bad) {
        char before[sizeof(why)];
        memcpy(before, why, sizeof(why));
        why[0] = '\0';
        FG_LAUNCH(add, shape.grid, shape.block, shape.shared, nullptr, false, device, device, 0U);
        bool refused = why[0] != '\0';
        memcpy(why, before, sizeof(why));
        expect(refused, "an impossible launch was made");
    }
    fg_gpu_check(cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024),
                 "attribute");
    FG_LAUNCH(add, 1, 32, 227 * 1024, nullptr, false, device, device, 0U);
    cudaFree(device);
}

/* ---- Memory and numbers ---- */

static void check_memory(void)
{
    enum { PIECES = 32 };
    unsigned char *pieces[PIECES];
    size_t sizes[PIECES] = { 0 }, free_before = 0, free_after = 1, total;
    cudaMemGetInfo(&free_before, &total);
    memset(pieces, 0, sizeof(pieces));
    for (int i = 0; i < 2000; i++) {
        uint32_t at = random_next() % PIECES;
        unsigned char host[3000];
        if (pieces[at] != nullptr) {
            to_host(host, pieces[at], sizes[at]);
            for (size_t j = 0; j < sizes[at]; j++) {
                expect(host[j] == at, "pieces overlap");
            }
            cudaFree(pieces[at]);
        }
        sizes[at] = random_next() % 3000 + 1;
        pieces[at] = device_new<unsigned char>(sizes[at]);
        expect((uintptr_t)pieces[at] % 256 == 0, "not at 256 bytes");
        fg_gpu_check(cudaMemset(pieces[at], (int)at, sizes[at]), "cudaMemset");
    }
    for (unsigned char *piece : pieces) {
        cudaFree(piece);
    }
    cudaMemGetInfo(&free_after, &total);
    expect(free_before == free_after, "memory was lost");
}

static __global__ void numbers(uint32_t *out)
{
    uint32_t good = 1;
    good &= fg_bf16_pair(1.0F, -2.0F) == 0xC0003F80U && fg_bf16_pair(NAN, -INFINITY) == 0xFF807FFFU;
    good &= fg_bf16_pair(__uint_as_float(0x3F808000U), __uint_as_float(0x3F818000U)) == 0x3F823F80U;
    good &= fg_exp2(3.0F) == 8.0F && fg_exp2(-126.5F) == 0.0F && fg_exp2(-INFINITY) == 0.0F;
    good &= fg_reciprocal(4.0F) == 0.25F && fg_reciprocal(INFINITY) == 0.0F;
    good &= __float2int_rn(2.5F) == 2 && __float2int_rn(-1e20F) == INT32_MIN && __clz(1) == 31 &&
            __popc(7) == 3;
    good &= __byte_perm(0x33221100U, 0x77665544U, 0x7150) == 0x77115500U;
    good &= __umulhi(0x80000000U, 6) == 3 && min(3, 4) == 3 && max(3U, 4U) == 4U;
    atomicAdd(out, good);
    atomicMax(out + 1, threadIdx.x);
}

static void check_numbers(void)
{
    uint32_t host[2], *device = device_new<uint32_t>(2);
    cudaMemset(device, 0, sizeof(host));
    FG_LAUNCH(numbers, 2, 50, 0, nullptr, false, device);
    to_host(host, device, 2);
    expect(host[0] == 100 && host[1] == 49, "a number is wrong");
    cudaFree(device);
}

/* ---- Speed ---- */

static __global__ void many_barriers(float *out)
{
    float sum = 0.0F;
    for (int i = 0; i < 2000; i++) {
        sum = __shfl_xor_sync(0xFFFFFFFFU, sum + 1.0F, 1);
    }
    out[threadIdx.x] = sum;
}

/* Of bf16 whose exact result is an integer of at most 60 bits, by integers; then what is a tie but for a last bit far
 * below. */
static void check_fma(void)
{
    for (int round = 0; round < 100000; round++) {
        uint32_t at[3];
        int64_t exact[3];
        for (int i = 0; i < 3; i++) {
            uint32_t bits = random_next(), place = bits >> 8 & (i < 2 ? 15 : 31);
            exact[i] = ((int64_t)(bits & 0x7F) + 128) << place;
            exact[i] = (bits & 0x80) != 0 ? -exact[i] : exact[i];
            at[i] = __float_as_uint((float)exact[i]) >> 16;
        }
        int64_t sum = exact[0] * exact[1] + exact[2], size = sum < 0 ? -sum : sum, unit = 1;
        while (size / unit >= 256) {
            unit *= 2;
        }
        int64_t low = size / unit, rest = size % unit;
        low += 2 * rest > unit || (2 * rest == unit && low % 2 != 0);
        float want = (float)(low * unit) * (sum < 0 ? -1.0F : 1.0F);
        uint32_t out = fg_bf16_fma2(at[0] << 16 | 0x3F80, at[1] << 16 | 0x4000, at[2] << 16);
        expect(__uint_as_float(out & 0xFFFF0000) == want, "a sum differs from that of integers");
        expect((out & 0xFFFF) == 0x4000, "the lower half is wrong");
    }
    /* 3 times 87 is 261, between 260 and 262; 2^-100, 2^-133. */
    expect(fg_bf16_fma2(0x4040, 0x42AE, 0) == 0x4382, "a tie is not rounded to even");
    expect(fg_bf16_fma2(0x4040, 0x42AE, 0x0D80) == 0x4383, "above a tie");
    expect(fg_bf16_fma2(0x4040, 0x42AE, 0x8001) == 0x4382, "below a tie");
    expect(fg_bf16_fma2(0xC040, 0x42AE, 0x8001) == 0xC383, "above a tie, negative");
    expect(fg_bf16_fma2(0x0001, 0x3F00, 0x0001) == 0x0002, "what is subnormal");
    expect(fg_bf16_fma2(0x7F80, 0x3F80, 0x3F80) == 0x7F80, "what is infinite");
    expect(fg_bf16_fma2(0x7F7F, 0x4000, 0) == 0x7F80, "what is too large");
    expect(fg_bf16_fma2(0x8000, 0x3F80, 0) == 0, "-0 and 0 is not 0");
    expect(fg_bf16_fma2(0x7F80, 0x3F80, 0xFF80) == 0x7FFF, "infinite less infinite");
}

static __global__ void many_products(float *out)
{
    float sums[4] = { 0.0F, 0.0F, 0.0F, 0.0F };
    uint32_t a[4] = { threadIdx.x << 16, 0x3F80, 0x3F80, 0x3F80 };
    for (int i = 0; i < 2000; i++) {
        fg_mma(sums, a, 0x3F80, 0x3F80);
    }
    out[threadIdx.x] = sums[0];
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void show_speed(void)
{
    float *device = device_new<float>(256);
    double start = now_ns();
    FG_LAUNCH(many_barriers, 10, 256, 0, nullptr, false, device);
    printf("a lane of a shuffle: %.1f ns\n", (now_ns() - start) / (10.0 * 256 * 2000));
    start = now_ns();
    FG_LAUNCH(many_products, 10, 256, 0, nullptr, false, device);
    printf("a product of a warp: %.0f ns\n", (now_ns() - start) / (10.0 * 8 * 2000));
    cudaFree(device);
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        void (*check)(void);
    } checks[] = {
        { "shuffles", check_shuffles },     { "barriers", check_barriers },
        { "product", check_product },       { "fma of pairs", check_fma },
        { "matrices", check_matrices },     { "copies", check_copies },
        { "graphs", check_graphs },         { "memory", check_memory },
        { "protection", check_protection }, { "misuse", check_misuse },
        { "numbers", check_numbers },
    };
    uint32_t passed = 0, failed = 0;
    for (const auto &check : checks) {
        why[0] = '\0';
        check.check();
        if (why[0] == '\0') {
            printf("ok - %s\n", check.name);
            passed++;
        } else {
            printf("not ok - %s: %s\n", check.name, why);
            failed++;
        }
    }
    if (argc > 1 && strcmp(argv[1], "--speed") == 0) {
        show_speed();
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed == 0 ? 0 : 1;
}
