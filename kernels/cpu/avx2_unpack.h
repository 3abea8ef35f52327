/*
 * avx2_unpack - codes and scales of a panel's groups (kernels/panel.h) in registers of 256 bits, eight
 * outputs of a panel in each: what the products of bytes read, be they of AVX2 or of AVX-VNNI.
 */
#ifndef FORGE_KERNELS_CPU_AVX2_UNPACK_H
#define FORGE_KERNELS_CPU_AVX2_UNPACK_H

#include "kernels/cpu/avx2.h"
#include "kernels/cpu/avx2_math.h"
#include "kernels/cpu/panel_group.h"

/* Bytes of a vector of codes of all sixteen outputs, and of eight of them. */
enum { VECTOR = 64, HALF = 32 };

#if defined(__AVX2__) /* 256-bit results need it */
/* A group as the walk through a panel meets it. */
typedef struct place {
    const uint8_t *scales; /* of its unit */
    const uint8_t *codes;
    size_t in_unit;
    size_t group; /* in the row */
} place;

/* What the sum of a group is scaled with, for eight outputs. */
typedef struct factors {
    __m256 d;
    __m256 minimum;
} factors;

FG_AVX2_INLINE __m256i load32(const void *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

FG_AVX2_INLINE __m256i broadcast4(const void *bytes)
{
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

/* Vector j (0..3) of the 16 columns from 16 * half on, for eight outputs. */
FG_AVX2_INLINE __m256i unpack(uint32_t type, const uint8_t *at, int half, int j)
{
    __m256i raw = load32(at + (size_t)j * VECTOR);
    raw = half == 0 ? raw : _mm256_srli_epi16(raw, 4);
    __m256i w = _mm256_and_si256(raw, _mm256_set1_epi8(15));
    if (type == FG_Q5_0 || type == FG_Q5_1 || type == FG_Q5_K) {
        __m256i high = load32(at + 4 * VECTOR);
        high = half == 0 ? _mm256_slli_epi16(high, 4 - j) : _mm256_srli_epi16(high, j);
        w = _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(16)));
    } else if (type == FG_Q6_K) {
        __m256i high = load32(at + (size_t)(4 + half) * VECTOR);
        high = j < 2 ? _mm256_slli_epi16(high, 4 - 2 * j) : _mm256_srli_epi16(high, 2 * j - 4);
        w = _mm256_or_si256(w, _mm256_and_si256(high, _mm256_set1_epi8(48)));
    }
    return w;
}

FG_AVX2_INLINE __m256 halves(const uint8_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}

FG_AVX2_INLINE __m128i load8(const uint8_t *at)
{
    return _mm_loadl_epi64((const __m128i *)at);
}

/* Of types without super-groups: scales of group g of a unit for outputs 8 * half .. 8 * half + 7. */
FG_AVX2_INLINE factors factors_of(uint32_t type, const uint8_t *scales, size_t g, size_t half)
{
    factors f = { .d = _mm256_setzero_ps() };
    switch (type) {
    case FG_Q4_1:
    case FG_Q5_1:
        scales += half * 16;
        f.d = halves(scales);
        f.minimum = halves(scales + 32);
        break;
    default:
        f.d = halves(scales + g * 32 + half * 16);
        break;
    }
    return f;
}

FG_AVX2_INLINE __m256 add_scaled(uint32_t type, __m256 sum, const fg_quant_group *group,
                                 const factors *f, __m256 total)
{
    if (fg_cpu_has_minimum(type)) {
        total = _mm256_fmadd_ps(f->minimum, _mm256_set1_ps(group->offset), total);
    }
    __m256 scale = _mm256_mul_ps(f->d, _mm256_set1_ps(group->scale));
    return _mm256_fmadd_ps(scale, sum, total);
}

/* Few rows pass a panel too quickly for the processor to foresee what they will read. */
FG_AVX2_INLINE void ask_for(const uint8_t *at, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i += VECTOR) {
        _mm_prefetch((const char *)at + i, _MM_HINT_T0);
    }
}

/* What a file's run_panels does, a function for each type: the type is a constant in it; and the choice of one. */
#define FG_AVX2_DEFINE_PANELS(name, type)                                                          \
    static void name##_panels(const fg_linear *linear, const fg_activations *in, uint32_t rows,    \
                              uint32_t first, uint32_t count)                                      \
    {                                                                                              \
        run_panels(type, linear, in, rows, first, count);                                          \
    }
#define FG_AVX2_PANELS_CASE(name, type)                                                            \
    case type:                                                                                     \
        name##_panels(linear, in, rows, first, count);                                             \
        break;
#endif

#endif
