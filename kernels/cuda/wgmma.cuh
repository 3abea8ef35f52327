/*
 * wgmma - what only Hopper (sm_90a) has: products of four warps together, whose second side lies in shared memory, bulk
 * copies, and barriers that count bytes. The sums have the same bits as fg_mma's (seen on an H100, for any width).
 */
#ifndef FORGE_KERNELS_CUDA_WGMMA_CUH
#define FORGE_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/gpu.h"

/* d (+)= a b: of each warp 16 x 16 (fg_mma's a) by 16 x n. `b` says where in shared memory n / 8 matrices of 8 x 8 are
 * for each half of the columns; d[4 i ..] are fg_mma's sums for rows 8 i .. of b. go_on 0: d is not read. Runs on until
 * fg_wgmma_wait; until then nothing may touch d and a. */
template <int n>
__device__ __forceinline__ void fg_wgmma(float *d, const uint32_t *a, uint64_t b, uint32_t go_on);

template <>
__device__ __forceinline__ void fg_wgmma<64>(float *d, const uint32_t *a, uint64_t b,
                                             uint32_t go_on)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}

template <>
__device__ __forceinline__ void fg_wgmma<128>(float *d, const uint32_t *a, uint64_t b,
                                              uint32_t go_on)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}

template <>
__device__ __forceinline__ void fg_wgmma<192>(float *d, const uint32_t *a, uint64_t b,
                                              uint32_t go_on)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %101, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "{%96, %97, %98, %99}, %100, p, 1, 1, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
          "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
          "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
          "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}

/* The numbers of sums in an instruction's text, and the sums. */
#define FG_WGMMA_TEXT_32                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, "                                                             \
    "%8, %9, %10, %11, %12, %13, %14, %15, "                                                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, "                                                     \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define FG_WGMMA_TEXT_48                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, "                                                             \
    "%8, %9, %10, %11, %12, %13, %14, %15, "                                                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, "                                                     \
    "%24, %25, %26, %27, %28, %29, %30, %31, "                                                     \
    "%32, %33, %34, %35, %36, %37, %38, %39, "                                                     \
    "%40, %41, %42, %43, %44, %45, %46, %47"
#define FG_WGMMA_TEXT_64                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, "                                                             \
    "%8, %9, %10, %11, %12, %13, %14, %15, "                                                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, "                                                     \
    "%24, %25, %26, %27, %28, %29, %30, %31, "                                                     \
    "%32, %33, %34, %35, %36, %37, %38, %39, "                                                     \
    "%40, %41, %42, %43, %44, %45, %46, %47, "                                                     \
    "%48, %49, %50, %51, %52, %53, %54, %55, "                                                     \
    "%56, %57, %58, %59, %60, %61, %62, %63"
#define FG_WGMMA_SUMS_8(d, i)                                                                      \
    "+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]),          \
        "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define FG_WGMMA_SUMS_32(d)                                                                        \
    FG_WGMMA_SUMS_8(d, 0), FG_WGMMA_SUMS_8(d, 8), FG_WGMMA_SUMS_8(d, 16), FG_WGMMA_SUMS_8(d, 24)
#define FG_WGMMA_SUMS_48(d) FG_WGMMA_SUMS_32(d), FG_WGMMA_SUMS_8(d, 32), FG_WGMMA_SUMS_8(d, 40)
#define FG_WGMMA_SUMS_64(d) FG_WGMMA_SUMS_48(d), FG_WGMMA_SUMS_8(d, 48), FG_WGMMA_SUMS_8(d, 56)

/* As fg_wgmma<128>, with the first side in shared memory too, as b's matrices. */
static __device__ __forceinline__ void fg_wgmma_shared(float *d, uint64_t a, uint64_t b,
                                                       uint32_t go_on)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FG_WGMMA_TEXT_64
                 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
                 : FG_WGMMA_SUMS_64(d)
                 : "l"(a), "l"(b), "r"(go_on));
}

/* As fg_wgmma, but a matrix of b has a row for each of a's columns: fg_wgmma_place's `across` is from one to the next in
 * those, `down` in b's n columns. */
template <int n>
__device__ __forceinline__ void fg_wgmma_turned(float *d, const uint32_t *a, uint64_t b,
                                                uint32_t go_on);

template <>
__device__ __forceinline__ void fg_wgmma_turned<64>(float *d, const uint32_t *a, uint64_t b,
                                                    uint32_t go_on)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" FG_WGMMA_TEXT_32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
                 : FG_WGMMA_SUMS_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}

template <>
__device__ __forceinline__ void fg_wgmma_turned<96>(float *d, const uint32_t *a, uint64_t b,
                                                    uint32_t go_on)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" FG_WGMMA_TEXT_48
                 "}, {%48, %49, %50, %51}, %52, p, 1, 1, 1;\n}\n"
                 : FG_WGMMA_SUMS_48(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}

template <>
__device__ __forceinline__ void fg_wgmma_turned<128>(float *d, const uint32_t *a, uint64_t b,
                                                     uint32_t go_on)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" FG_WGMMA_TEXT_64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 : FG_WGMMA_SUMS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(go_on));
}

/* Registers that were written before may be read by products now. */
static __device__ __forceinline__ void fg_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void fg_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int left> static __device__ __forceinline__ void fg_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/* Matrices of 8 rows of 16 bytes: `across` bytes from one to the next in columns, `down` in rows. */
static __device__ __forceinline__ uint64_t fg_wgmma_place(uint32_t shared, uint32_t across,
                                                          uint32_t down)
{
    return (uint64_t)((shared & 0x3FFFF) >> 4) | (uint64_t)(across >> 4) << 16 |
           (uint64_t)(down >> 4) << 32;
}

/* A place so many bytes after another, or before it, a multiple of 16 and within shared memory. */
static __device__ __forceinline__ uint64_t fg_wgmma_further(uint64_t place, int32_t bytes)
{
    uint32_t low, high;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(place));
    low += (uint32_t)(bytes >> 4);
    asm("mov.b64 %0, {%1, %2};" : "=l"(place) : "r"(low), "r"(high));
    return place;
}

static __device__ __forceinline__ uint32_t fg_shared_at(const void *memory)
{
    return (uint32_t)__cvta_generic_to_shared(memory);
}

static __device__ __forceinline__ void fg_barrier_init(uint64_t *barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(fg_shared_at(barrier)), "r"(count)
                 : "memory");
}

/* Barriers that were made are seen by bulk copies. */
static __device__ __forceinline__ void fg_barrier_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void fg_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(fg_shared_at(barrier))
                 : "memory");
}

static __device__ __forceinline__ void fg_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(fg_shared_at(barrier)),
        "r"(bytes)
        : "memory");
}

static __device__ __forceinline__ void fg_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@!p bra AGAIN_%=;\n}\n" ::"r"(fg_shared_at(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Bytes of memory into shared memory, told to the barrier; multiples of 16. */
static __device__ __forceinline__ void fg_bulk_copy(void *shared, const void *global,
                                                    uint32_t bytes, uint64_t *barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(fg_shared_at(shared)),
        "l"(global), "r"(bytes), "r"(fg_shared_at(barrier))
        : "memory");
}

/* What other kernels wrote in the usual way is seen by bulk copies from here on. */
static __device__ __forceinline__ void fg_bulk_fence(void)
{
    asm volatile("fence.proxy.async;" ::: "memory");
}

/* What this thread wrote into shared memory is seen by products and bulk copies from the next barrier on. */
static __device__ __forceinline__ void fg_shared_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int count> static __device__ __forceinline__ void fg_more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

template <int count> static __device__ __forceinline__ void fg_fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

#endif
