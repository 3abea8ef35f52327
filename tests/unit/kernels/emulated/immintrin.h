/*
 * immintrin - in place of the compiler's own header, where the kernels of AVX-512, AMX and AVX-VNNI are compiled
 * for a machine without the instructions: SIMDe does their work with AVX2, and what its Debian 12 release
 * lacks follows here. Test only; it shows the arithmetic to be right, not the speed.
 */
#ifndef FORGE_TESTS_EMULATED_IMMINTRIN_H
#define FORGE_TESTS_EMULATED_IMMINTRIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include_next <immintrin.h>

#if __has_include(<simde/x86/avx512.h>) /* CMake compiles the copy only then */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#define FG_EMULATED static inline __attribute__((always_inline))

/* Two halves of 256 bits as 512. */
FG_EMULATED __m512i fg_emulated_joined(__m256i low, __m256i high)
{
    simde__m512i_private out;
    out.m256i[0] = low;
    out.m256i[1] = high;
    return simde__m512i_from_private(out);
}

FG_EMULATED __m256i fg_emulated_half(__m512i value, int half)
{
    return simde__m512i_to_private(value).m256i[half];
}

FG_EMULATED __m512 fg_emulated_joined_ps(__m256 low, __m256 high)
{
    return simde_mm512_castsi512_ps(
        fg_emulated_joined(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}

/* Bytes 0 and 2 of a lane, then 1 and 3, as words; their products are summed in 32 bits. */
FG_EMULATED __m256i fg_emulated_dpbusd_half(__m256i sums, __m256i a, __m256i b)
{
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                     _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
}

FG_EMULATED __m512i fg_emulated_dpbusd(__m512i sums, __m512i a, __m512i b)
{
    __m256i out[2];
    for (int half = 0; half < 2; half++) {
        out[half] = fg_emulated_dpbusd_half(fg_emulated_half(sums, half), fg_emulated_half(a, half),
                                            fg_emulated_half(b, half));
    }
    return fg_emulated_joined(out[0], out[1]);
}

/* Of each pair the upper halves first (kernels/cpu/avx512_bf16_linear.c, avx512_attend_bf16.c); for inputs without denormals. */
FG_EMULATED __m256 fg_emulated_dpbf16_half(__m256 sums, __m256i a, __m256i b)
{
    __m256i upper = _mm256_set1_epi32((int32_t)0xFFFF0000);
    sums = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(a, upper)),
                           _mm256_castsi256_ps(_mm256_and_si256(b, upper)), sums);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                           _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), sums);
}

FG_EMULATED __m512 fg_emulated_dpbf16(__m512 sums, __m512i a, __m512i b)
{
    __m512i bits = simde_mm512_castps_si512(sums);
    __m256 out[2];
    for (int half = 0; half < 2; half++) {
        out[half] = fg_emulated_dpbf16_half(_mm256_castsi256_ps(fg_emulated_half(bits, half)),
                                            fg_emulated_half(a, half), fg_emulated_half(b, half));
    }
    return fg_emulated_joined_ps(out[0], out[1]);
}

FG_EMULATED __m256 fg_emulated_extractf32x8_ps(__m512 value, int half)
{
    return _mm256_castsi256_ps(fg_emulated_half(simde_mm512_castps_si512(value), half));
}

/* To nearest, to even on ties; for inputs that are neither denormal nor NaN. */
FG_EMULATED __m256i fg_emulated_cvtneps_pbh(__m512 value)
{
    uint32_t bits[16];
    uint16_t brains[16];
    simde_mm512_storeu_si512(bits, simde_mm512_castps_si512(value));
    for (int i = 0; i < 16; i++) {
        brains[i] = (uint16_t)((bits[i] + 0x7FFF + (bits[i] >> 16 & 1)) >> 16);
    }
    return _mm256_loadu_si256((const __m256i *)brains);
}

FG_EMULATED __m256i fg_emulated_cvtepi64_epi32(__m512i value)
{
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    __m256i low = _mm256_permutevar8x32_epi32(fg_emulated_half(value, 0), even);
    __m256i high = _mm256_permutevar8x32_epi32(fg_emulated_half(value, 1), even);
    return _mm256_permute2x128_si256(low, high, 0x20);
}

FG_EMULATED __m512 fg_emulated_cvtph_ps(__m256i halves)
{
    return fg_emulated_joined_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                                 _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
}

FG_EMULATED __m512i fg_emulated_cvtepu8_epi32(__m128i bytes)
{
    return fg_emulated_joined(_mm256_cvtepu8_epi32(bytes),
                              _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}

FG_EMULATED __m512i fg_emulated_cvtepi8_epi32(__m128i bytes)
{
    return fg_emulated_joined(_mm256_cvtepi8_epi32(bytes),
                              _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
}

FG_EMULATED __m512i fg_emulated_cvtepu16_epi32(__m256i words)
{
    return fg_emulated_joined(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(words)),
                              _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words, 1)));
}

FG_EMULATED __m512 fg_emulated_cvtepi32_ps(__m512i value)
{
    return fg_emulated_joined_ps(_mm256_cvtepi32_ps(fg_emulated_half(value, 0)),
                                 _mm256_cvtepi32_ps(fg_emulated_half(value, 1)));
}

FG_EMULATED __m512i fg_emulated_cvtps_epi32(__m512 value)
{
    __m512i bits = simde_mm512_castps_si512(value);
    return fg_emulated_joined(_mm256_cvtps_epi32(_mm256_castsi256_ps(fg_emulated_half(bits, 0))),
                              _mm256_cvtps_epi32(_mm256_castsi256_ps(fg_emulated_half(bits, 1))));
}

FG_EMULATED __m512i fg_emulated_cvttps_epi32(__m512 value)
{
    __m512i bits = simde_mm512_castps_si512(value);
    return fg_emulated_joined(_mm256_cvttps_epi32(_mm256_castsi256_ps(fg_emulated_half(bits, 0))),
                              _mm256_cvttps_epi32(_mm256_castsi256_ps(fg_emulated_half(bits, 1))));
}

FG_EMULATED __m128i fg_emulated_cvtepi32_epi8(__m512i value)
{
    int32_t words[16];
    int8_t bytes[16];
    simde_mm512_storeu_si512(words, value);
    for (int i = 0; i < 16; i++) {
        bytes[i] = (int8_t)words[i];
    }
    return _mm_loadu_si128((const __m128i *)bytes);
}

FG_EMULATED int32_t fg_emulated_reduce_add_epi32(__m512i value)
{
    int32_t words[16];
    int32_t sum = 0;
    simde_mm512_storeu_si512(words, value);
    for (int i = 0; i < 16; i++) {
        sum += words[i];
    }
    return sum;
}

FG_EMULATED int32_t fg_emulated_reduce_max_epi32(__m512i value)
{
    int32_t words[16];
    int32_t largest;
    simde_mm512_storeu_si512(words, value);
    largest = words[0];
    for (int i = 1; i < 16; i++) {
        largest = words[i] > largest ? words[i] : largest;
    }
    return largest;
}

FG_EMULATED float fg_emulated_reduce_max_ps(__m512 value)
{
    float lanes[16];
    float largest;
    simde_mm512_storeu_ps(lanes, value);
    largest = lanes[0];
    for (int i = 1; i < 16; i++) {
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
    return largest;
}

/* Masked loads and stores touch only the lanes of their mask, as the instructions do. */
FG_EMULATED __m512 fg_emulated_maskz_loadu_ps(unsigned mask, const float *at)
{
    float lanes[16];
    for (int i = 0; i < 16; i++) {
        lanes[i] = (mask >> i & 1) != 0 ? at[i] : 0.0f;
    }
    return simde_mm512_loadu_ps(lanes);
}

FG_EMULATED void fg_emulated_mask_storeu_ps(float *at, unsigned mask, __m512 value)
{
    float lanes[16];
    simde_mm512_storeu_ps(lanes, value);
    for (int i = 0; i < 16; i++) {
        if ((mask >> i & 1) != 0) {
            at[i] = lanes[i];
        }
    }
}

/* The tiles of AMX, of one thread at a time. */
typedef struct fg_emulated_tiles {
    uint8_t bytes[8][16][64];
    uint16_t row_bytes[8];
    uint8_t rows[8];
} fg_emulated_tiles;

static __thread fg_emulated_tiles fg_emulated_tile;

FG_EMULATED void fg_emulated_tile_loadconfig(const void *config)
{
    const uint8_t *at = config;
    for (int i = 0; i < 8; i++) {
        fg_emulated_tile.row_bytes[i] = (uint16_t)(at[16 + 2 * i] | at[17 + 2 * i] << 8);
        fg_emulated_tile.rows[i] = at[48 + i];
    }
}

FG_EMULATED void fg_emulated_tile_release(void)
{
    for (int i = 0; i < 8; i++) {
        fg_emulated_tile.rows[i] = 0;
    }
}

/* A tile that is not configured must not be used. */
FG_EMULATED void fg_emulated_tile_check(int tile)
{
    if (fg_emulated_tile.rows[tile] == 0) {
        abort();
    }
}

/* Bytes and rows that a tile does not have become zeros. */
FG_EMULATED void fg_emulated_tile_loadd(int tile, const void *base, size_t stride)
{
    fg_emulated_tile_check(tile);
    for (int row = 0; row < 16; row++) {
        for (int i = 0; i < 64; i++) {
            bool has = row < fg_emulated_tile.rows[tile] && i < fg_emulated_tile.row_bytes[tile];
            fg_emulated_tile.bytes[tile][row][i] =
                has ? ((const uint8_t *)base)[(size_t)row * stride + (size_t)i] : 0;
        }
    }
}

FG_EMULATED void fg_emulated_tile_stored(int tile, void *base, size_t stride)
{
    fg_emulated_tile_check(tile);
    for (int row = 0; row < fg_emulated_tile.rows[tile]; row++) {
        for (int i = 0; i < fg_emulated_tile.row_bytes[tile]; i++) {
            ((uint8_t *)base)[(size_t)row * stride + (size_t)i] =
                fg_emulated_tile.bytes[tile][row][i];
        }
    }
}

FG_EMULATED void fg_emulated_tile_zero(int tile)
{
    fg_emulated_tile_check(tile);
    for (int row = 0; row < 16; row++) {
        for (int i = 0; i < 64; i++) {
            fg_emulated_tile.bytes[tile][row][i] = 0;
        }
    }
}

/* Bytes of rows have a sign or not, those of codes have one. */
FG_EMULATED void fg_emulated_tile_dot(bool signs, int sums, int rows, int codes)
{
    const fg_emulated_tiles *t = &fg_emulated_tile;
    if (t->rows[sums] != t->rows[rows] || t->rows[codes] * 4 != t->row_bytes[rows] ||
        t->row_bytes[sums] != t->row_bytes[codes]) {
        abort(); /* as the processor refuses it */
    }
    for (int m = 0; m < fg_emulated_tile.rows[sums]; m++) {
        for (int n = 0; n < fg_emulated_tile.row_bytes[sums] / 4; n++) {
            uint8_t *at = fg_emulated_tile.bytes[sums][m] + 4 * n;
            uint32_t sum =
                at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
            for (int k = 0; k < fg_emulated_tile.row_bytes[rows]; k++) {
                uint8_t byte = fg_emulated_tile.bytes[rows][m][k];
                int x = signs ? (int8_t)byte : byte;
                int8_t y = (int8_t)fg_emulated_tile.bytes[codes][k / 4][4 * n + k % 4];
                sum += (uint32_t)(x * y);
            }
            for (int i = 0; i < 4; i++) {
                at[i] = (uint8_t)(sum >> 8 * i);
            }
        }
    }
}

FG_EMULATED float fg_emulated_tile_half(const uint8_t *at)
{
    union {
        uint32_t bits;
        float value;
    } of = { .bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24 };
    return of.value;
}

/* A chain of the lower halves and one of the upper (kernels/ops.h); for inputs without denormals. Seen so in
 * 5 million random cases on a Xeon with AMX. */
FG_EMULATED void fg_emulated_tile_dpbf16ps(int sums, int rows, int codes)
{
    fg_emulated_tiles *t = &fg_emulated_tile;
    if (t->rows[sums] != t->rows[rows] || t->rows[codes] * 4 != t->row_bytes[rows] ||
        t->row_bytes[sums] != t->row_bytes[codes]) {
        abort();
    }
    for (int m = 0; m < t->rows[sums]; m++) {
        for (int n = 0; n < t->row_bytes[sums] / 4; n++) {
            float chains[2] = { 0.0f, 0.0f };
            float sum;
            for (int k = 0; k < t->row_bytes[rows] / 4; k++) {
                for (int half = 0; half < 2; half++) {
                    float x = fg_emulated_tile_half(t->bytes[rows][m] + 4 * k + 2 * half);
                    float y = fg_emulated_tile_half(t->bytes[codes][k] + 4 * n + 2 * half);
                    chains[half] = __builtin_fmaf(x, y, chains[half]);
                }
            }
            __builtin_memcpy(&sum, t->bytes[sums][m] + 4 * n, sizeof sum);
            sum += chains[0] + chains[1];
            __builtin_memcpy(t->bytes[sums][m] + 4 * n, &sum, sizeof sum);
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig                fg_emulated_tile_loadconfig
#define _tile_release                   fg_emulated_tile_release
#define _tile_loadd                     fg_emulated_tile_loadd
#define _tile_stream_loadd              fg_emulated_tile_loadd
#define _tile_stored                    fg_emulated_tile_stored
#define _tile_zero                      fg_emulated_tile_zero
#define _tile_dpbssd(sums, rows, codes) fg_emulated_tile_dot(true, sums, rows, codes)
#define _tile_dpbusd(sums, rows, codes) fg_emulated_tile_dot(false, sums, rows, codes)
#define _tile_dpbf16ps                  fg_emulated_tile_dpbf16ps

#undef _mm512_madd_epi16 /* of four arguments by mistake */
#define _mm512_madd_epi16 simde_mm512_madd_epi16
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 fg_emulated_dpbusd
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32 fg_emulated_dpbusd_half
#undef _mm512_dpbf16_ps
#undef _mm256_dpbf16_ps
#undef _mm512_cvtneps_pbh
#undef _mm512_extractf32x8_ps
#undef _mm512_cvtepi64_epi32
#define __m512bh                __m512i
#define __m256bh                __m256i
#define _mm512_dpbf16_ps        fg_emulated_dpbf16
#define _mm256_dpbf16_ps        fg_emulated_dpbf16_half
#define _mm512_extractf32x8_ps  fg_emulated_extractf32x8_ps
#define _mm512_cvtneps_pbh      fg_emulated_cvtneps_pbh
#define _mm512_cvtepi64_epi32   fg_emulated_cvtepi64_epi32
#define _mm512_cvtph_ps         fg_emulated_cvtph_ps
#define _mm512_cvtepu8_epi32    fg_emulated_cvtepu8_epi32
#define _mm512_cvtepi8_epi32    fg_emulated_cvtepi8_epi32
#define _mm512_cvtepu16_epi32   fg_emulated_cvtepu16_epi32
#define _mm512_cvtepi32_ps      fg_emulated_cvtepi32_ps
#define _mm512_cvtps_epi32      fg_emulated_cvtps_epi32
#define _mm512_cvttps_epi32     fg_emulated_cvttps_epi32
#define _mm512_cvtepi32_epi8    fg_emulated_cvtepi32_epi8
#define _mm512_reduce_add_epi32 fg_emulated_reduce_add_epi32
#define _mm512_reduce_max_epi32 fg_emulated_reduce_max_epi32
#define _mm512_reduce_max_ps    fg_emulated_reduce_max_ps
#define _mm512_maskz_loadu_ps   fg_emulated_maskz_loadu_ps
#define _mm512_mask_storeu_ps   fg_emulated_mask_storeu_ps

#endif
#endif
