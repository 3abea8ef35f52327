/*
 * Attention over a bf16 cache where one vdpbf16ps of 512 bits begins in a cycle: the eight chains of a register tile are
 * enough. Also the weights, for whichever products.
 */
#include "kernels/cpu/avx512_attend_pairs.h"

const fg_strip_products fg_cpu_avx512_attend_pairs[] = FG_AVX512_TABLE(FG_AVX512_PAIRS);

void fg_cpu_avx512_scores_beside(const fg_strip *s, uint32_t begin, uint32_t end,
                                 const fg_strip_rows *rows)
{
    score_pairs_beside(s, begin, end, rows);
}

void fg_cpu_avx512_weigh_pairs(const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    fg_avx512_weigh_brains(FG_AVX512_IN_PAIRS, rows, begin, end);
}

void fg_cpu_avx512_weigh_words(const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    fg_avx512_weigh_brains(FG_AVX512_IN_WORDS, rows, begin, end);
}
