#include "kernels/bench/peak.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/team.h"
#include "common/base/topology.h"
#include "kernels/cpu/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    CHAINS = 12, /* hide the latency of any multiply-add, and leave registers for its inputs */
    ROUNDS =
        100000, /* 0.4 ms: short, to fall between what others do; long for a thread to wake up */
    RUNS_MIN = 5,
    L1_BYTES = 16 << 10, /* of one thread: half of the smallest L1 around */
    L2_BYTES = 192 << 10,
    L3_BYTES = 3 << 20,
    DRAM_BYTES = 256 << 20, /* that a run reads, of all threads */
    DRAM_PARTS = 64,        /* of a thread's share of it */
    CACHES = 2, /* as much memory as so many times all last level caches: see fg_peak_area_bytes */
    READ_BYTES = 128 << 20, /* what a run over a cache reads in all */
};

struct fg_peaks {
    fg_team *team;
    char *memory;
    size_t memory_bytes; /* a multiple of DRAM_BYTES */
    bool widens;         /* fmas of widened values are quicker than products of bf16 */
    /* The run in progress. */
    fg_peak_kind kind;
    uint32_t thread_count;
    uint32_t window; /* of each thread's memory, counted from run to run */
    /* Of a sustained one. */
    uint64_t until_ns;
    _Atomic uint64_t parts; /* done, by all threads */
};

#if defined(__x86_64__)

#define ON_AVX2     __attribute__((target("avx2,fma")))
#define ON_AVX_VNNI __attribute__((target("avx2,avxvnni")))
#define ON_VNNI     __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define ON_AMX      __attribute__((target("amx-tile,amx-int8,amx-bf16")))
#define ON_BF16     __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

/* Every chain does STEP(sum) in each round. The empty asm keeps the compiler from folding rounds. */
#define RUN_CHAINS(vector, zero, input, STEP)                                                      \
    do {                                                                                           \
        vector sums[CHAINS];                                                                       \
        for (int c = 0; c < CHAINS; c++) {                                                         \
            sums[c] = zero;                                                                        \
        }                                                                                          \
        for (int round = 0; round < ROUNDS; round++) {                                             \
            _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)                              \
            {                                                                                      \
                __asm__ volatile("" : "+v"(input));                                                \
                sums[c] = STEP(sums[c]);                                                           \
            }                                                                                      \
        }                                                                                          \
        for (int c = 0; c < CHAINS; c++) {                                                         \
            __asm__ volatile("" : : "v"(sums[c]));                                                 \
        }                                                                                          \
    } while (0)

static ON_AVX2 void run_int8(void)
{
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), ones = _mm256_set1_epi16(1);
#define STEP(sum) _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones))
    RUN_CHAINS(__m256i, _mm256_setzero_si256(), a, STEP);
#undef STEP
}

static ON_AVX2 void run_int8_short(void)
{
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
#define STEP(sum) _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b))
    RUN_CHAINS(__m256i, _mm256_setzero_si256(), a, STEP);
#undef STEP
}

static ON_AVX_VNNI void run_avx_vnni(void)
{
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
#define STEP(sum) _mm256_dpbusd_avx_epi32(sum, a, b)
    RUN_CHAINS(__m256i, _mm256_setzero_si256(), a, STEP);
#undef STEP
}

static ON_AVX2 void run_f32(void)
{
    __m256 a = _mm256_set1_ps(0.5f);
#define STEP(sum) _mm256_fmadd_ps(a, a, sum)
    RUN_CHAINS(__m256, _mm256_setzero_ps(), a, STEP);
#undef STEP
}

static ON_VNNI void run_vnni(void)
{
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
#define STEP(sum) _mm512_dpbusd_epi32(sum, a, b)
    RUN_CHAINS(__m512i, _mm512_setzero_si512(), a, STEP);
#undef STEP
}

static ON_VNNI void run_f32_wide(void)
{
    __m512 a = _mm512_set1_ps(0.5f);
#define STEP(sum) _mm512_fmadd_ps(a, a, sum)
    RUN_CHAINS(__m512, _mm512_setzero_ps(), a, STEP);
#undef STEP
}

static ON_BF16 void run_bf16(void)
{
    __m512 halves = _mm512_set1_ps(0.5f);
    __m512bh a = _mm512_cvtne2ps_pbh(halves, halves);
#define STEP(sum) _mm512_dpbf16_ps(sum, a, a)
    RUN_CHAINS(__m512, _mm512_setzero_ps(), a, STEP);
#undef STEP
}

/* All of 16 rows of 64 bytes; a product is as long as 16 of the others. */
#define RUN_TILES(MULTIPLY)                                                                        \
    do {                                                                                           \
        static const _Alignas(64) uint8_t config[64] = {                                           \
            [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64,           \
            [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16,                      \
        };                                                                                         \
        _tile_loadconfig(config);                                                                  \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        _tile_zero(2);                                                                             \
        _tile_zero(3);                                                                             \
        _tile_zero(4);                                                                             \
        _tile_zero(5);                                                                             \
        for (int round = 0; round < ROUNDS / 16 * CHAINS / 4; round++) {                           \
            MULTIPLY(0, 4, 5);                                                                     \
            MULTIPLY(1, 4, 5);                                                                     \
            MULTIPLY(2, 4, 5);                                                                     \
            MULTIPLY(3, 4, 5);                                                                     \
        }                                                                                          \
        _tile_release();                                                                           \
    } while (0)

static ON_AMX void run_int8_tiles(void)
{
    RUN_TILES(_tile_dpbssd);
}

static ON_AMX void run_bf16_tiles(void)
{
    RUN_TILES(_tile_dpbf16ps);
}

/* `size_bytes` in four streams of 64-byte lines; `ahead` prefetches for memory. */
static inline ON_AVX2 __attribute__((always_inline)) void read_streams(const char *at,
                                                                       size_t size_bytes,
                                                                       bool ahead)
{
    size_t stream = size_bytes / 4 / 64 * 64;
    __m256i low[4], high[4];
    for (int s = 0; s < 4; s++) {
        low[s] = high[s] = _mm256_setzero_si256();
    }
    for (size_t i = 0; i < stream; i += 64) {
#pragma GCC unroll 4
        for (int s = 0; s < 4; s++) {
            const char *line = at + (size_t)s * stream + i;
            if (ahead) {
                _mm_prefetch(line + 2048, _MM_HINT_T0);
            }
            low[s] = _mm256_or_si256(low[s], _mm256_load_si256((const __m256i *)line));
            high[s] = _mm256_or_si256(high[s], _mm256_load_si256((const __m256i *)(line + 32)));
        }
    }
    for (int s = 0; s < 4; s++) {
        __asm__ volatile("" : : "x"(low[s]), "x"(high[s]));
    }
}

static ON_AVX2 void read_cache(const char *at, size_t size_bytes)
{
    read_streams(at, size_bytes, false);
}

static ON_AVX2 void read_memory(const char *at, size_t size_bytes)
{
    read_streams(at, size_bytes, true);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_vnni(void)
{
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw");
}

/* Of what compilers have no name for. */
static bool can_run(const char *isa)
{
    fg_cpu_facts facts = fg_cpu_facts_read();
    const fg_cpu_kernels *kernels;
    return fg_cpu_find_kernels(isa, &facts, &kernels, NULL) == FG_OK;
}

static bool has_avx_vnni(void)
{
    return can_run("avx_vnni");
}

static bool has_amx(void)
{
    return can_run("amx");
}

static bool has_bf16(void)
{
    return has_vnni() && __builtin_cpu_supports("avx512bf16");
}

/* How a compute probe is run here; run == NULL: not at all. */
typedef struct method {
    void (*run)(void);
    uint32_t macs; /* of one instruction */
    const char *how;
} method;

static method int8_method(void)
{
    if (has_vnni()) {
        return (method){ run_vnni, 64, "vpdpbusd zmm" };
    }
    return has_avx_vnni() ? (method){ run_avx_vnni, 32, "vpdpbusd ymm" }
                          : (method){ run_int8, 32, "vpmaddubsw + vpmaddwd + vpaddd ymm" };
}

static method f32_method(void)
{
    return has_vnni() ? (method){ run_f32_wide, 16, "vfmadd231ps zmm" }
                      : (method){ run_f32, 8, "vfmadd231ps ymm" };
}

static method bf16_method(void)
{
    return has_bf16() ? (method){ run_bf16, 32, "vdpbf16ps zmm" } : (method){ NULL, 0, "" };
}

static method method_of(const fg_peaks *peaks, fg_peak_kind kind)
{
    if (!has_avx2()) {
        return (method){ NULL, 0, "" };
    }
    switch (kind) {
    case FG_PEAK_INT8:
        return int8_method();
    case FG_PEAK_INT8_SHORT:
        return has_vnni() || has_avx_vnni()
                   ? (method){ NULL, 0, "" }
                   : (method){ run_int8_short, 32, "vpmaddubsw + vpaddw ymm" };
    case FG_PEAK_INT8_TILES:
        return has_amx() ? (method){ run_int8_tiles, 1024, "tdpbssd" } : (method){ NULL, 0, "" };
    case FG_PEAK_BF16:
        return peaks->widens ? f32_method() : bf16_method();
    case FG_PEAK_BF16_TILES:
        return has_amx() ? (method){ run_bf16_tiles, 512, "tdpbf16ps" } : (method){ NULL, 0, "" };
    case FG_PEAK_F32:
        return f32_method();
    default:
        return (method){ NULL, 0, "" };
    }
}

/* Multiply-adds per second of one thread, the best of a few runs. */
static double rate_of(const method *m)
{
    fg_clock clock = fg_clock_real();
    uint64_t least_ns = UINT64_MAX;
    for (int run = 0; run < RUNS_MIN; run++) {
        uint64_t began_at_ns = fg_clock_now_ns(&clock);
        m->run();
        uint64_t took_ns = fg_clock_now_ns(&clock) - began_at_ns;
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    return (double)m->macs * CHAINS * ROUNDS / ((double)least_ns * 1e-9);
}

static bool fmas_are_quicker(void)
{
    method pairs = bf16_method();
    method fmas = f32_method();
    return has_avx2() && pairs.run != NULL && rate_of(&fmas) > rate_of(&pairs);
}

#else /* not x86-64: bytes only */

typedef struct method {
    void (*run)(void);
    uint32_t macs;
    const char *how;
} method;

static method method_of(const fg_peaks *peaks, fg_peak_kind kind)
{
    (void)peaks;
    (void)kind;
    return (method){ NULL, 0, "" };
}

static bool fmas_are_quicker(void)
{
    return false;
}

#endif

static void read_plain(const char *at, size_t size_bytes)
{
    uint64_t sums[8] = { 0 };
    for (size_t i = 0; i + sizeof sums <= size_bytes; i += sizeof sums) {
        for (int s = 0; s < 8; s++) {
            uint64_t word;
            memcpy(&word, at + i + 8 * s, sizeof word);
            sums[s] |= word;
        }
    }
    for (int s = 0; s < 8; s++) {
        __asm__ volatile("" : : "r"(sums[s]));
    }
}

static void read_bytes(const char *at, size_t size_bytes, bool is_memory)
{
#if defined(__x86_64__)
    if (has_avx2()) {
        (is_memory ? read_memory : read_cache)(at, size_bytes);
        return;
    }
#endif
    read_plain(at, size_bytes);
}

/* What one thread reads again and again. */
static size_t set_bytes(const fg_peaks *peaks)
{
    size_t share = DRAM_BYTES / peaks->thread_count / 4096 * 4096;
    size_t set = share;
    if (peaks->kind == FG_PEAK_L1) {
        set = L1_BYTES;
    } else if (peaks->kind == FG_PEAK_L2) {
        set = L2_BYTES;
    } else if (peaks->kind == FG_PEAK_L3) {
        long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
        set = l2 > 0 && 2 * (size_t)l2 > L3_BYTES ? 2 * (size_t)l2 : L3_BYTES;
    }
    return set < share ? set : share;
}

static bool is_memory(fg_peak_kind kind)
{
    return kind == FG_PEAK_DRAM || kind == FG_PEAK_COPY;
}

/* Reads or copies of one run and thread; the same in all of them. */
static uint32_t pass_count(const fg_peaks *peaks)
{
    return is_memory(peaks->kind) ? 1 : (uint32_t)(READ_BYTES / set_bytes(peaks));
}

/* Window `number` of the memory of thread `share`. Runs of memory take one after another: what an earlier one read may
 * be in a cache still. */
static char *window_at(const fg_peaks *peaks, uint32_t share, uint64_t number)
{
    size_t window_bytes = DRAM_BYTES / peaks->thread_count / 4096 * 4096;
    size_t windows = peaks->memory_bytes / DRAM_BYTES;
    return peaks->memory + (share * windows + number % windows) * window_bytes;
}

/* `share` says which part of the memory is read. */
static void run_share(fg_peaks *peaks, uint32_t share)
{
    if (fg_peak_is_compute(peaks->kind)) {
        method_of(peaks, peaks->kind).run();
        return;
    }
    size_t set = set_bytes(peaks);
    char *at = window_at(peaks, share, is_memory(peaks->kind) ? peaks->window : 0);
    if (peaks->kind == FG_PEAK_COPY) {
        memcpy(at, at + set / 2, set / 2);
        return;
    }
    uint32_t passes = pass_count(peaks);
    for (uint32_t pass = 0; pass < passes; pass++) {
        read_bytes(at, set, peaks->kind == FG_PEAK_DRAM);
    }
}

/* One piece for each thread, far longer than a wake-up: whoever is awake finds one left. */
static void run_piece(void *ctx, uint32_t piece, uint32_t member)
{
    (void)member;
    run_share(ctx, piece);
}

/* A run of one thread, or of memory so much of it that a look at the clock behind it is soon enough. Each member
 * reads its own, or two would share what comes from memory. */
static void run_part(fg_peaks *peaks, uint32_t member, uint64_t number)
{
    if (peaks->kind != FG_PEAK_DRAM) {
        run_share(peaks, member);
        return;
    }
    size_t set = set_bytes(peaks);
    size_t part = set / DRAM_PARTS;
    char *at = window_at(peaks, member, peaks->window + number / DRAM_PARTS);
    read_bytes(at + number % DRAM_PARTS * part, part, true);
}

static void run_until(void *ctx, uint32_t piece, uint32_t member)
{
    (void)piece;
    fg_peaks *peaks = ctx;
    fg_clock clock = fg_clock_real();
    uint64_t count = 0;
    do {
        run_part(peaks, member, count++);
    } while (fg_clock_now_ns(&clock) < peaks->until_ns);
    atomic_fetch_add(&peaks->parts, count);
}

/* Multiply-adds or bytes of one run. */
static double amount_of_run(const fg_peaks *peaks)
{
    double threads = peaks->thread_count;
    if (fg_peak_is_compute(peaks->kind)) {
        return threads * method_of(peaks, peaks->kind).macs * CHAINS * ROUNDS;
    }
    double set = (double)set_bytes(peaks);
    return threads * (peaks->kind == FG_PEAK_COPY ? set / 2 : set * pass_count(peaks));
}

size_t fg_peak_area_bytes(size_t cache_bytes, uint32_t cache_count, uint64_t available_bytes)
{
    /* Caches of which the product with their number makes no sense are those of a machine that tells nothing. */
    uint64_t wanted = cache_bytes < (1ull << 40) ? (uint64_t)cache_bytes * cache_count * CACHES : 0;
    uint64_t most = available_bytes / 4;
    uint64_t windows = (wanted + DRAM_BYTES - 1) / DRAM_BYTES;
    windows = windows < most / DRAM_BYTES ? windows : most / DRAM_BYTES;
    return (size_t)(windows > 1 ? windows : 1) * DRAM_BYTES;
}

static size_t area_bytes(void)
{
    fg_topology topology;
    fg_topology_read("", NULL, &topology);
    uint32_t caches = 0;
    for (uint32_t i = 0; i < topology.cpu_count; i++) {
        uint32_t before = 0;
        while (before < i && topology.cpus[before].cache != topology.cpus[i].cache) {
            before++;
        }
        caches += before == i;
    }
    long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return fg_peak_area_bytes(cache_bytes > 0 ? (size_t)cache_bytes : 0, caches,
                              fg_mem_available_bytes());
}

fg_status fg_peaks_open(uint32_t thread_count, fg_peaks **peaks_out, fg_error *err)
{
    fg_peaks *peaks = fg_mem_alloc(sizeof *peaks);
    if (peaks == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the probes");
    }
    peaks->memory_bytes = area_bytes();
    fg_status status = fg_team_create(thread_count, NULL, &peaks->team, err);
    if (status == FG_OK) {
        peaks->memory = fg_mem_map(peaks->memory_bytes);
        status = peaks->memory != NULL
                     ? FG_OK
                     : fg_fail(err, FG_AGAIN, "no %zu MiB of memory for the probes",
                               peaks->memory_bytes >> 20);
    }
    if (status != FG_OK) {
        fg_peaks_close(peaks);
        return status;
    }
    memset(peaks->memory, 1, peaks->memory_bytes);
    peaks->widens = fmas_are_quicker();
    *peaks_out = peaks;
    return FG_OK;
}

void fg_peaks_close(fg_peaks *peaks)
{
    if (peaks == NULL) {
        return;
    }
    if (peaks->memory != NULL) {
        fg_mem_unmap(peaks->memory, peaks->memory_bytes);
    }
    fg_team_destroy(peaks->team);
    fg_mem_free(peaks);
}

static bool is_missing(const fg_peaks *peaks, fg_peak_kind kind)
{
    return fg_peak_is_compute(kind) && method_of(peaks, kind).run == NULL;
}

static double best_rate(fg_peaks *peaks, uint32_t budget_ms)
{
    if (is_missing(peaks, peaks->kind)) {
        return 0.0;
    }
    double amount = amount_of_run(peaks), best = 0.0;
    fg_clock clock = fg_clock_real();
    uint64_t began_at_ns = fg_clock_now_ns(&clock), ended_at_ns = began_at_ns;
    for (int run = 0; run < RUNS_MIN || ended_at_ns - began_at_ns < budget_ms * 1000000ull; run++) {
        uint64_t run_at_ns = fg_clock_now_ns(&clock);
        fg_team_for(peaks->team, peaks->thread_count, run_piece, peaks);
        peaks->window++;
        ended_at_ns = fg_clock_now_ns(&clock);
        double rate = amount / ((double)(ended_at_ns - run_at_ns) * 1e-9);
        best = rate > best ? rate : best;
    }
    return best;
}

double fg_peaks_measure(fg_peaks *peaks, fg_peak_kind kind, uint32_t thread_count,
                        uint32_t budget_ms)
{
    FG_ASSERT(thread_count >= 1 && thread_count <= fg_team_size(peaks->team), "%u threads",
              thread_count);
    peaks->kind = kind;
    peaks->thread_count = thread_count;
    return best_rate(peaks, budget_ms);
}

double fg_peaks_sustain(fg_peaks *peaks, fg_peak_kind kind, uint32_t thread_count,
                        uint32_t budget_ms)
{
    FG_ASSERT(thread_count == 1 || thread_count == fg_team_size(peaks->team), "%u threads",
              thread_count);
    if (is_missing(peaks, kind)) {
        return 0.0;
    }
    peaks->kind = kind;
    peaks->thread_count = thread_count;
    fg_clock clock = fg_clock_real();
    uint64_t began_at_ns = fg_clock_now_ns(&clock);
    peaks->until_ns = began_at_ns + budget_ms * 1000000ull;
    atomic_store(&peaks->parts, 0);
    if (thread_count == 1) {
        run_until(peaks, 0, 0);
    } else {
        fg_team_for(peaks->team, thread_count, run_until, peaks);
    }
    double seconds = (double)(fg_clock_now_ns(&clock) - began_at_ns) * 1e-9;
    double parts = (double)atomic_load(&peaks->parts);
    peaks->window++;
    return parts * amount_of_run(peaks) / thread_count / (kind == FG_PEAK_DRAM ? DRAM_PARTS : 1) /
           seconds;
}

static void print_json(const fg_peaks *peaks, fg_peak_kind kind, uint32_t threads, double rate)
{
    printf("{\"probe\":\"%s\",\"threads\":%u,\"unit\":\"%s\",\"value\":%.2f,\"how\":\"%s\"}\n",
           fg_peak_name(kind), threads, fg_peak_is_compute(kind) ? "Gmac/s" : "GB/s", rate * 1e-9,
           fg_peak_how(peaks, kind));
    fflush(stdout);
}

void fg_peaks_print(fg_peaks *peaks, uint32_t thread_count, bool json)
{
    if (!json) {
        printf("| probe | unit | 1 thread | %u threads | how |\n| --- | --- | --: | --: | --- |\n",
               thread_count);
    }
    for (fg_peak_kind kind = 0; kind < FG_PEAK_COUNT; kind++) {
        double one = fg_peaks_measure(peaks, kind, 1, 100);
        double all = thread_count > 1 ? fg_peaks_measure(peaks, kind, thread_count, 100) : one;
        if (one == 0.0) {
            continue; /* no such instruction here */
        }
        if (json) {
            print_json(peaks, kind, 1, one);
            if (thread_count > 1) {
                print_json(peaks, kind, thread_count, all);
            }
            continue;
        }
        printf("| %s | %s | %.1f | %.1f | %s |\n", fg_peak_name(kind),
               fg_peak_is_compute(kind) ? "Gmac/s" : "GB/s", one * 1e-9, all * 1e-9,
               fg_peak_how(peaks, kind));
        fflush(stdout);
    }
}

const char *fg_peak_name(fg_peak_kind kind)
{
    static const char *const names[] = {
        "int8",    "int8 16-bit sums", "int8 tiles", "bf16",      "bf16 tiles", "f32",
        "L1 read", "L2 read",          "L3 read",    "DRAM read", "memcpy"
    };
    return names[kind];
}

bool fg_peak_is_compute(fg_peak_kind kind)
{
    return kind <= FG_PEAK_F32;
}

const char *fg_peak_how(const fg_peaks *peaks, fg_peak_kind kind)
{
    return fg_peak_is_compute(kind) ? method_of(peaks, kind).how : "";
}
