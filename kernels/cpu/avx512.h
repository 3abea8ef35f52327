/*
 * avx512 - the parts of the AVX-512 tables that are not in one file. They need F, BW, DQ, VL and VNNI,
 * and all that the AVX2 table needs; the ones called avx512_bf16 and amx need BF16 and VBMI as well.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_H
#define FORGE_KERNELS_CPU_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/math.h"

/* A function for every type and number of rows takes compilers long with sanitizers or emulation (tests). */
#if defined(FORGE_SANITIZED) || defined(FG_AVX512_SMALL)
#define FG_AVX512_INLINE static __attribute__((noinline, unused))
#else
#define FG_AVX512_INLINE static inline __attribute__((always_inline))
#endif

/* Whether two products of 512 bits begin in a cycle. Emulated kernels say the opposite: so tests meet both kinds of tiles on
 * every machine. */
static inline bool fg_avx512_begins_two(void)
{
    bool two = fg_cpu_maker_here() == FG_CPU_MAKER_ZEN_5;
#if defined(FG_AVX512_SMALL)
    two = !two;
#endif
    return two;
}

/* Whether whatever has 512 bits takes the place of a product: on Intel's processors all of it but loads goes
 * through the same two pipes, where two products begin in a cycle. And a vdpbf16ps takes more of their time than the two
 * fmas that it stands for. Emulated kernels say the opposite here too. */
static inline bool fg_avx512_shares_pipes(void)
{
    bool shares = fg_cpu_maker_here() == FG_CPU_MAKER_INTEL;
#if defined(FG_AVX512_SMALL)
    shares = !shares;
#endif
    return shares;
}

/* Columns of a slice of bf16 (avx512_pairs.h); longer rows than two are not in the second-level cache as a block. */
enum { FG_AVX512_PAIR_COLUMNS = 2048 };
/* Columns of which 128 rows with super-groups leave room in the second-level cache; the same of these
 * (avx512_linear_super.c). */
enum { FG_AVX512_SUPER_COLUMNS = 2048 };

/* For head sizes that are no multiple of 16. */
void fg_cpu_avx2_attend(const fg_cpu_attend *args);
void fg_cpu_avx512_attend(const fg_cpu_attend *args);
/* The same with AVX512_BF16, which makes a bf16 cache quicker on AMD's processors. */
void fg_cpu_avx512_attend_bf16(const fg_cpu_attend *args);
/* With AMX, which makes int8 and bf16 caches quicker; else as fg_cpu_avx512_attend. */
void fg_cpu_amx_attend(const fg_cpu_attend *args);
/* Many (row, head)s over a bf16 cache. */
void fg_cpu_amx_attend_bf16(const fg_cpu_attend *args);

void fg_cpu_avx512_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count);
void fg_cpu_avx512_linear_float(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count);
void fg_cpu_avx512_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                               uint32_t first, uint32_t count);
/* Whether so many rows of the type have super-groups that are made ready for them: then the function below. */
bool fg_cpu_avx512_makes_ready(uint32_t type, uint32_t rows);
void fg_cpu_avx512_linear_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count);
/* The same of types whose groups have float scales. */
bool fg_cpu_avx512_makes_groups_ready(uint32_t type, uint32_t rows);
void fg_cpu_avx512_linear_groups(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                 uint32_t first, uint32_t count);
/* The same of Q4_K where everything takes a product's place. */
bool fg_cpu_avx512_makes_words_ready(uint32_t type, uint32_t rows);
void fg_cpu_avx512_linear_words(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                uint32_t first, uint32_t count);
/* Whether so many rows and their BF16 weights become floats first: then the function below. */
bool fg_cpu_avx512_is_wide(uint32_t rows);
void fg_cpu_avx512_linear_wide(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                               uint32_t first, uint32_t count);
/* As fg_cpu_kernels has it. */
uint32_t fg_cpu_avx512_sliced_columns(uint32_t type, uint32_t rows);
/* With AVX512_BF16; other types as fg_cpu_avx512_linear. */
void fg_cpu_avx512_bf16_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                               uint32_t first, uint32_t count);
/* With AMX: BF16 and, from FG_AMX_TILE_ROWS_LEAST rows on, quantised types; else as fg_cpu_avx512_linear. */
void fg_cpu_amx_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                       uint32_t first, uint32_t count);
/* Products of so many rows, of whatever quantised type, read tiles and not quants. */
bool fg_cpu_amx_tiles_alone(uint32_t rows);
/* Quantised types, up to FG_TILE_ROWS rows that are one tile. */
void fg_cpu_amx_few(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                    uint32_t first, uint32_t count);
/* Reads pairs that are apart. */
void fg_cpu_amx_linear_bf16(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                            uint32_t first, uint32_t count);

/* Sixteen sums to the row's outputs `output` and on, as far as the product has them. */
FG_AVX512_INLINE void fg_avx512_put_panel(const fg_linear *linear, uint32_t row, uint32_t output,
                                          __m512 sums)
{
    uint32_t left = linear->weight.outputs - output;
    float *out = linear->out + (size_t)row * linear->out_stride + output;
    __mmask16 mask = (__mmask16)(left >= 16 ? 0xFFFF : (1u << left) - 1);
    if (linear->accumulate) {
        sums = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sums);
    }
    _mm512_mask_storeu_ps(out, mask, sums);
}

/* Asks for the lines that some rows' outputs of so many panels are put to, which come from memory. */
static inline void fg_avx512_ask_outputs(const fg_linear *linear, uint32_t row, uint32_t rows,
                                         uint32_t output, uint32_t panels)
{
    float *out = linear->out + (size_t)row * linear->out_stride + output;
    for (uint32_t r = 0; r < rows; r++, out += linear->out_stride) {
        for (uint32_t i = 0; i < panels; i++) {
            __builtin_prefetch(out + (size_t)i * FG_PANEL_OUTPUTS, 1);
        }
    }
}

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL) /* 512-bit results need it, unless emulated */
/* Makes the compiler keep a value in a register here; without it, it moves sums about and spills some. */
#if defined(FG_AVX512_SMALL)
#define FG_AVX512_HOLD(x)         (void)(x)
#define FG_AVX512_HOLD_POINTER(x) (void)(x)
#else
#define FG_AVX512_HOLD(x)         __asm__("" : "+v"(x))
#define FG_AVX512_HOLD_POINTER(x) __asm__("" : "+r"(x))
#endif

/* fg_cpu_brain of sixteen: bf16 in the upper halves of their lanes. */
FG_AVX512_INLINE __m512i fg_avx512_brain(__m512 x)
{
    const __m512i least = _mm512_set1_epi32((FG_CPU_BF16_LEAST << 16) - 1);
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MAX));
    __mmask16 is_nan = _mm512_cmpgt_epi32_mask(size, _mm512_set1_epi32(0x7F800000));
    __m512i rounded = _mm512_mask_mov_epi32(_mm512_add_epi32(bits, up), is_nan, quiet);
    size = _mm512_and_si512(rounded, _mm512_set1_epi32(INT32_MAX));
    rounded = _mm512_and_si512(rounded, _mm512_set1_epi32((int32_t)0xFFFF0000));
    return _mm512_maskz_mov_epi32(_mm512_cmpgt_epi32_mask(size, least), rounded);
}

/* Words that hold two bf16: each half as floats. */
FG_AVX512_INLINE __m512i fg_avx512_upper(__m512i words)
{
    return _mm512_and_si512(words, _mm512_set1_epi32((int32_t)0xFFFF0000));
}

FG_AVX512_INLINE __m512i fg_avx512_lower(__m512i words)
{
    return _mm512_slli_epi32(words, 16);
}

/* Words of two neighbours each, the first in the upper half, and others 16 neighbours behind them: words of the two
 * firsts, and of the two seconds. */
FG_AVX512_INLINE void fg_avx512_set_apart(__m512i near, __m512i far, void *firsts, void *seconds)
{
    const __m512i lower = _mm512_set1_epi32(0xFFFF);
    _mm512_store_si512(firsts, _mm512_or_si512(fg_avx512_upper(near), _mm512_srli_epi32(far, 16)));
    _mm512_store_si512(seconds,
                       _mm512_or_si512(fg_avx512_lower(near), _mm512_and_si512(far, lower)));
}
#endif

#endif
