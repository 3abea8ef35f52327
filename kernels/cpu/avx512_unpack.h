/*
 * avx512_unpack - codes and scales of a panel's groups (kernels/panel.h) in registers of 512 bits: what the
 * products of bytes read, be they of AVX-512 or of AMX.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_UNPACK_H
#define FORGE_KERNELS_CPU_AVX512_UNPACK_H

#include "kernels/cpu/avx512.h"

/* Bytes of a vector of codes, and vectors of a group. */
enum { VECTOR = 64, VECTORS = 8 };

#if defined(__AVX512F__) || defined(FG_AVX512_SMALL) /* 512-bit results need it, unless emulated */
/* What the products of a group are scaled with. */
typedef struct factors {
    __m512 d;
    __m512 minimum;
    __m512i first;  /* Q6_K: integer scale of columns 0..15 */
    __m512i second; /* and of 16..31 */
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

FG_AVX512_INLINE __m512 unsigned_bytes(const uint8_t *at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)));
}

FG_AVX512_INLINE __m512i signed_bytes(const uint8_t *at)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at));
}

/* Scales of group g of a unit. */
FG_AVX512_INLINE factors scales_of(uint32_t type, const uint8_t *scales, size_t g)
{
    factors f = { .d = _mm512_setzero_ps() };
    switch (type) {
    case FG_Q4_1:
    case FG_Q5_1:
        f.d = halves(scales);
        f.minimum = halves(scales + 32);
        break;
    case FG_Q4_K:
    case FG_Q5_K: {
        const uint8_t *bytes = scales + 64 + g * 32;
        /* The products of halves and six bits are exact. */
        f.d = _mm512_mul_ps(halves(scales), unsigned_bytes(bytes));
        __m512 minimum = _mm512_mul_ps(halves(scales + 32), unsigned_bytes(bytes + 16));
        f.minimum = _mm512_castsi512_ps(
            _mm512_xor_si512(_mm512_castps_si512(minimum), _mm512_set1_epi32(INT32_MIN)));
        break;
    }
    case FG_Q6_K:
        f.d = halves(scales);
        f.first = signed_bytes(scales + 32 + g * 32);
        f.second = signed_bytes(scales + 48 + g * 32);
        break;
    default:
        f.d = halves(scales + g * 32);
        break;
    }
    return f;
}

#endif
#endif
