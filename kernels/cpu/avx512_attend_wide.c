/*
 * Attention over copies of a bf16 cache as floats, where whatever has 512 bits takes the place of a product: many strips
 * then find nothing left to widen. The bits are those of other kernels for bf16, as the chains are the same (ops.h). A
 * register tile adds to both chains of a block at a time, sixteen sums: eight would be just as many as there are
 * multiply-adds under way.
 */
#define FG_AVX512_BOTH_CHAINS true
#include "kernels/cpu/avx512_attend.h"
#include "kernels/cpu/avx512_attend_bf16.h"

FG_AVX512_DEFINE(FG_AVX512_WIDE)

const fg_strip_products fg_cpu_avx512_attend_wide[] = FG_AVX512_TABLE(FG_AVX512_WIDE);

/* A vector of pairs, to where the first and the second ones follow each other. */
FG_AVX512_INLINE void widen(uint8_t *to, const uint8_t *from)
{
    __m512i pairs = _mm512_loadu_si512(from);
    _mm512_store_si512(to, fg_avx512_upper(pairs));
    _mm512_store_si512(to + 64, fg_avx512_lower(pairs));
}

void fg_cpu_avx512_lay_out_wide(bool values, uint32_t piece, bool fresh, uint8_t *to,
                                const uint8_t *from, uint32_t head_dim)
{
    (void)fresh;
    size_t row_bytes = (size_t)head_dim * 4;
    if (!values) {
        for (size_t at = 0; at < FG_KV_PIECE / 2 * row_bytes; at += 64) {
            widen(to + 2 * at, from + at);
        }
        return;
    }
    uint8_t *chunk = to - piece * FG_KV_PIECE * row_bytes;
    for (uint32_t pair = 0; pair < FG_KV_PIECE / 2; pair++) {
        uint8_t *at = chunk + (size_t)(piece * FG_KV_PIECE + 2 * pair) * 64;
        for (size_t d = 0; d < row_bytes; d += 64) {
            widen(at, from + pair * row_bytes + d);
            at += FG_AVX512_WIDE_VECTOR;
        }
    }
}
