#include "kernels/bench/peak.h"

#include "common/base/clock.h"

#if defined(__x86_64__)

#include <immintrin.h>

/* Eight independent chains hide the latency; the empty asm keeps the compiler from folding them. */
enum { CHAINS = 8, ROUNDS = 10000, RUNS = 40 };

static __attribute__((target("avx2,fma"))) void run_int8(void)
{
    __m256i sums[CHAINS];
    __m256i a = _mm256_set1_epi8(3);
    __m256i b = _mm256_set1_epi8(5);
    __m256i ones = _mm256_set1_epi16(1);
    for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm256_setzero_si256();
    }
    for (int round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 8
        for (int c = 0; c < CHAINS; c++) {
            __asm__ volatile("" : "+x"(a));
            __m256i pairs = _mm256_maddubs_epi16(a, b);
            sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(pairs, ones));
        }
    }
    for (int c = 0; c < CHAINS; c++) {
        __asm__ volatile("" : : "x"(sums[c]));
    }
}

static __attribute__((target("avx2,fma"))) void run_f32(void)
{
    __m256 sums[CHAINS];
    __m256 a = _mm256_set1_ps(0.5f);
    for (int c = 0; c < CHAINS; c++) {
        sums[c] = _mm256_setzero_ps();
    }
    for (int round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 8
        for (int c = 0; c < CHAINS; c++) {
            __asm__ volatile("" : "+x"(a));
            sums[c] = _mm256_fmadd_ps(a, a, sums[c]);
        }
    }
    for (int c = 0; c < CHAINS; c++) {
        __asm__ volatile("" : : "x"(sums[c]));
    }
}

static double best_rate(void (*run)(void), double macs)
{
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return 0.0;
    }
    fg_clock clock = fg_clock_real();
    double best = 0.0;
    for (int i = 0; i < RUNS; i++) {
        uint64_t started_at_ns = fg_clock_now_ns(&clock);
        run();
        double rate = macs / ((double)(fg_clock_now_ns(&clock) - started_at_ns) * 1e-9);
        best = rate > best ? rate : best;
    }
    return best;
}

double fg_peak_int8_macs(void)
{
    return best_rate(run_int8, 32.0 * CHAINS * ROUNDS);
}

double fg_peak_f32_macs(void)
{
    return best_rate(run_f32, 8.0 * CHAINS * ROUNDS);
}

#else

double fg_peak_int8_macs(void)
{
    return 0.0;
}

double fg_peak_f32_macs(void)
{
    return 0.0;
}

#endif
