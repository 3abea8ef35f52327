/*
 * avx512_unpack - codes and scales of a panel's groups (kernels/panel.h) in registers of 512 bits: what the
 * products of bytes read, be they of AVX-512 or of AMX.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_UNPACK_H
#define FORGE_KERNELS_CPU_AVX512_UNPACK_H

#include "kernels/cpu/avx512.h"

/* Bytes of a vector of codes, and vectors of a group. */
enum { VECTOR = 64, VECTORS = 8 };

/* From what is asked for in a tile's first panel to that in its second: the same line of what follows, and where
 * panels are whole pages, one further on, because processors take their time with lines that are asked for together
 * and whole pages apart. A few lines are then asked for by nobody, and as many in vain, which may lie behind the last
 * panel: asking never faults. */
enum { PAGE = 4096, PAGE_APART = 512 };
static inline size_t ask_apart(size_t panel_bytes)
{
    return panel_bytes % PAGE == 0 ? panel_bytes + PAGE_APART : panel_bytes;
}

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL) /* 512-bit results need it, unless emulated */
/* What the products of a group are scaled with. */
typedef struct factors {
    __m512 d;
    __m512 minimum;
} factors;

FG_AVX512_INLINE __m512i load64(const void *bytes)
{
    return _mm512_loadu_si512(bytes);
}

FG_AVX512_INLINE __m512i broadcast4(const void *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm512_set1_epi32(word);
}

/* Four bytes of the row 0 to 2 rows further on (quants of a row are twice row_bytes), in one instruction: gcc would rather
 * keep each sum of row and column in a register of its own, of which there are not enough. */
#if defined(__AVX512F__) && defined(__OPTIMIZE__) && defined(__GNUC__) && !defined(__clang__)
#define BROADCAST(address)                                                                         \
    __asm__("vpbroadcastd " address ", %0" : "=v"(word) : "r"(at), "r"(row_bytes), "i"(column))
#else
#define BROADCAST(address) word = broadcast4(at + (size_t)rows * 2 * row_bytes + column)
#endif
FG_AVX512_INLINE __m512i broadcast_row(const int8_t *at, size_t row_bytes, int rows, int column)
{
    __m512i word;
    if (rows == 0) {
        BROADCAST("%c3(%1)");
    } else if (rows == 1) {
        BROADCAST("%c3(%1,%2,2)");
    } else {
        BROADCAST("%c3(%1,%2,4)");
    }
    return word;
}

/* What the codes of a type are too large by, as a power of two; 0: nothing. */
FG_AVX512_INLINE unsigned offset_bits(uint32_t type)
{
    return type == FG_Q4_0 ? 3 : type == FG_Q5_0 ? 4 : type == FG_Q8_0 ? 7 : 0;
}

/* Columns 4 * j .. 4 * j + 3 of a group as unsigned bytes. */
FG_AVX512_INLINE __m512i unpack(uint32_t type, const uint8_t *at, int j)
{
    if (type == FG_Q8_0) {
        return _mm512_xor_si512(load64(at + (size_t)j * VECTOR), _mm512_set1_epi8((char)0x80));
    }
    __m512i raw = load64(at + (size_t)(j % 4) * VECTOR);
    raw = j < 4 ? raw : _mm512_srli_epi16(raw, 4);
    __m512i w = _mm512_and_si512(raw, _mm512_set1_epi8(15));
    if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        __m512i high = load64(at + 4 * VECTOR);
        high = j < 4 ? _mm512_slli_epi16(high, (unsigned)(4 - j))
                     : _mm512_srli_epi16(high, (unsigned)(j - 4));
        w = _mm512_or_si512(w, _mm512_and_si512(high, _mm512_set1_epi8(16)));
    } else if (type == FG_Q6_K) {
        int shift = 4 - j % 4 * 2;
        __m512i high = load64(at + (size_t)(4 + j / 4) * VECTOR);
        high = shift >= 0 ? _mm512_slli_epi16(high, (unsigned)shift)
                          : _mm512_srli_epi16(high, (unsigned)-shift);
        w = _mm512_or_si512(w, _mm512_and_si512(high, _mm512_set1_epi8(48)));
    }
    return w;
}

FG_AVX512_INLINE __m512 halves(const uint8_t *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

FG_AVX512_INLINE __m512i unsigned_bytes(const uint8_t *at)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at));
}

FG_AVX512_INLINE __m512i signed_bytes(const uint8_t *at)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at));
}

/* Scales of group g of a unit, of types without super-groups. */
FG_AVX512_INLINE factors scales_of(uint32_t type, const uint8_t *scales, size_t g)
{
    factors f = { .d = _mm512_setzero_ps() };
    if (type == FG_Q4_1 || type == FG_Q5_1) {
        f.d = halves(scales);
        f.minimum = halves(scales + 32);
    } else {
        f.d = halves(scales + g * 32);
    }
    return f;
}

/* ---- super-groups ---- */

/* The integer scale of group g; of Q6_K that of its columns 0..15, or of 16..31. */
FG_AVX512_INLINE __m512i integer_scale(uint32_t type, const uint8_t *scales, size_t g, bool second)
{
    if (type == FG_Q6_K) {
        return signed_bytes(scales + 32 + g * 32 + (second ? 16 : 0));
    }
    return unsigned_bytes(scales + 64 + g * 32);
}

/* Minus the float that the integer minima are multiplied with. */
FG_AVX512_INLINE __m512 super_minimum(const uint8_t *scales)
{
    return _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(halves(scales + 32)), _mm512_set1_epi32(INT32_MIN)));
}

/* Two bytes for each output, of sixteen and sixteen, in order. */
FG_AVX512_INLINE __m256i in_pairs(const uint8_t *first, const uint8_t *second)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)first);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)second);
    return _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
}

/* The integer scales of groups g and g + 1, of Q4_K and Q5_K, and their minima: of six bits, so without a sign. */
FG_AVX512_INLINE __m512i scales_of_two(const uint8_t *scales, size_t g)
{
    const uint8_t *at = scales + 64 + g * 32;
    return _mm512_cvtepi8_epi16(in_pairs(at, at + 32));
}

FG_AVX512_INLINE __m512i minima_of_two(const uint8_t *scales, size_t g)
{
    const uint8_t *at = scales + 64 + g * 32 + 16;
    return _mm512_cvtepi8_epi16(in_pairs(at, at + 32));
}

/* Q6_K: both scales of group g. */
FG_AVX512_INLINE __m512i scales_of_halves(const uint8_t *scales, size_t g)
{
    const uint8_t *at = scales + 32 + g * 32;
    return _mm512_cvtepi8_epi16(in_pairs(at, at + 16));
}

#endif
#endif
