/*
 * Attention over a bf16 cache where two vdpbf16ps of 512 bits begin in a cycle: each takes six, and a register tile's eight
 * chains leave a third of that unused. So both chains of a block, sixteen in all, are added to at a time, and a word is
 * broadcast once for two products, as each would load it, while there are two loads in a cycle.
 */
#define FG_AVX512_BOTH_CHAINS true
#include "kernels/cpu/avx512_attend_pairs.h"

const fg_strip_products fg_cpu_avx512_attend_both[] = FG_AVX512_TABLE(FG_AVX512_PAIRS);

void fg_cpu_avx512_scores_beside_both(const fg_strip *s, uint32_t begin, uint32_t end,
                                      const fg_strip_rows *rows)
{
    score_pairs_beside(s, begin, end, rows);
}
