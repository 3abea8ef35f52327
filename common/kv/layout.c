#include "common/kv/layout.h"

#include "common/base/dtype.h"

/* Far above any model; products of these still fit 64 bits in the order below. */
enum { LAYERS_MAX = 1024, HEADS_MAX = 4096, HEAD_DIM_MAX = 1024 };

static fg_status check_range(const char *what, uint32_t value, uint32_t value_max, fg_error *err)
{
    if (value == 0 || value > value_max) {
        return fg_fail(err, FG_BAD_INPUT, "KV layout: %s is %u (1 to %u)", what, value, value_max);
    }
    return FG_OK;
}

static size_t whole_lines(size_t size_bytes)
{
    return (size_bytes + 63) & ~(size_t)63;
}

fg_status fg_kv_layout_init(fg_kv_layout *layout, uint32_t layer_count, uint32_t kv_head_count,
                            uint32_t head_dim, uint32_t block_size, uint32_t dtype, fg_error *err)
{
    const struct {
        const char *what;
        uint32_t value, value_max;
    } checks[] = {
        { "layer count", layer_count, LAYERS_MAX },
        { "KV head count", kv_head_count, HEADS_MAX },
        { "head size", head_dim, HEAD_DIM_MAX },
        { "block size", block_size, FG_KV_BLOCK_SIZE_MAX },
    };
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        fg_status status = check_range(checks[i].what, checks[i].value, checks[i].value_max, err);
        if (status != FG_OK) {
            return status;
        }
    }
    if ((block_size & (block_size - 1)) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "KV layout: block size %u is no power of two",
                       block_size);
    }
    if (fg_dtype_kv_bytes(dtype) == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "KV layout: type %s is not stored (f16, f32, bf16 or int8)",
                       fg_dtype_name(dtype));
    }
    if (dtype == FG_BF16 && head_dim % 2 != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "KV layout: bf16 holds pairs of dimensions, and head size %u is odd",
                       head_dim);
    }
    if (dtype == FG_I8 && head_dim % 4 != 0) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "KV layout: int8 holds dimensions in fours, which head size %u does not have",
            head_dim);
    }
    fg_kv_layout made = {
        .layer_count = layer_count,
        .kv_head_count = kv_head_count,
        .head_dim = head_dim,
        .block_size = block_size,
        .dtype = dtype,
        .element_bytes = fg_dtype_kv_bytes(dtype),
    };
    size_t block_bytes;
    made.head_bytes = (size_t)block_size * head_dim * made.element_bytes;
    if (dtype == FG_I8) {
        made.scale_offset = whole_lines(made.head_bytes);
        made.head_bytes = whole_lines(made.scale_offset + block_size * sizeof(float));
    }
    if (__builtin_mul_overflow(made.head_bytes, (size_t)2 * kv_head_count, &made.layer_bytes) ||
        __builtin_mul_overflow(made.layer_bytes, (size_t)layer_count, &block_bytes)) {
        return fg_fail(err, FG_BAD_INPUT, "KV layout: a block's size overflows");
    }
    made.block_bytes = block_bytes;
    *layout = made;
    return FG_OK;
}

bool fg_kv_layout_same(const fg_kv_layout *a, const fg_kv_layout *b)
{
    /* The sizes follow from these. */
    return a->layer_count == b->layer_count && a->kv_head_count == b->kv_head_count &&
           a->head_dim == b->head_dim && a->block_size == b->block_size && a->dtype == b->dtype;
}
