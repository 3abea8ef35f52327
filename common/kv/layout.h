/*
 * layout - where a layer's part of a KV block lies. Pure values.
 *
 * A block holds `block_size` token slots of all layers, block-major: [layer][K or V][KV head]. A head's
 * region holds its slots as kernels/ops.h lays them out (fg_paged_kv), and for int8 a scale per slot.
 * Two workers may exchange blocks only when their layouts are the same.
 */
#ifndef FORGE_COMMON_KV_LAYOUT_H
#define FORGE_COMMON_KV_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define FG_KV_BLOCK_SIZE_MAX 1024u
/* How a head's region is laid out; a change of it is a new number, told in HELLO. 1 had [slot][dim] for K
 * too and was not told; 2 had no pairs for bf16, 3 no fours for int8. */
#define FG_KV_LAYOUT_VERSION 4u
/* With it in HELLO: blocks are in the memory of a device, and come and go there. Links do not mix these with the host's. */
#define FG_KV_LAYOUT_IN_DEVICE 0x100u

typedef struct fg_kv_layout {
    uint32_t layer_count;
    uint32_t kv_head_count;
    uint32_t head_dim;
    uint32_t block_size; /* token slots per block, a power of two */
    uint32_t dtype;      /* FG_F16, FG_F32, FG_BF16 or FG_I8 */
    uint32_t element_bytes;
    size_t scale_offset; /* FG_I8: of the scales in a head's region; else 0 */
    size_t head_bytes;   /* one KV head's slots of one layer, K or V */
    size_t layer_bytes;  /* K and V of one layer */
    size_t block_bytes;
} fg_kv_layout;

/* FG_BAD_INPUT when a number is zero or out of range or the sizes overflow. */
fg_status fg_kv_layout_init(fg_kv_layout *layout, uint32_t layer_count, uint32_t kv_head_count,
                            uint32_t head_dim, uint32_t block_size, uint32_t dtype, fg_error *err);
bool fg_kv_layout_same(const fg_kv_layout *a, const fg_kv_layout *b);

/* Byte offset inside a block of slot 0 of (layer, K=0 / V=1, KV head). */
static inline size_t fg_kv_layout_offset(const fg_kv_layout *layout, uint32_t layer,
                                         uint32_t is_value, uint32_t kv_head)
{
    return layer * layout->layer_bytes +
           ((size_t)is_value * layout->kv_head_count + kv_head) * layout->head_bytes;
}

/* Blocks that `token_count` tokens need. */
static inline uint32_t fg_kv_blocks_for(uint32_t token_count, uint32_t block_size)
{
    return token_count / block_size + (token_count % block_size != 0);
}

#endif
