/*
 * avx512_attend_bf16 - the products of attention over a bf16 cache, for processors with AVX512_BF16.
 */
#ifndef FORGE_KERNELS_CPU_AVX512_ATTEND_BF16_H
#define FORGE_KERNELS_CPU_AVX512_ATTEND_BF16_H

#include "kernels/cpu/strip.h"

/* q and weights are packed in pairs: a word holds dimensions or slots 2i, in its upper half, and 2i + 1. */
void fg_cpu_avx512_weigh_pairs(const fg_strip_rows *rows, uint32_t begin, uint32_t end);
extern const fg_strip_products fg_cpu_avx512_attend_pairs[];
/* Weights as other kernels of AVX-512 want them, each in the upper half of a word. */
void fg_cpu_avx512_weigh_words(const fg_strip_rows *rows, uint32_t begin, uint32_t end);
void fg_cpu_avx512_scores_beside(const fg_strip *s, uint32_t begin, uint32_t end,
                                 const fg_strip_rows *rows);
/* The pairs' products where two products begin in a cycle. */
extern const fg_strip_products fg_cpu_avx512_attend_both[];
void fg_cpu_avx512_scores_beside_both(const fg_strip *s, uint32_t begin, uint32_t end,
                                      const fg_strip_rows *rows);
/* Products of floats over copies that are laid out for them, of a piece of K or V; q and weights are in words. */
extern const fg_strip_products fg_cpu_avx512_attend_wide[];
void fg_cpu_avx512_lay_out_wide(bool values, uint32_t piece, bool fresh, uint8_t *to,
                                const uint8_t *from, uint32_t head_dim);

#endif
