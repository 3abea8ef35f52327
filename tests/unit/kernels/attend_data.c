#include "tests/unit/kernels/attend_data.h"

#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/kv/layout.h"

const attend_case attend_cases[ATTEND_CASES] = {
    { "one slot", 2, 1, 8, 16, FG_F16, 1, 1, 0 },
    { "smollm2 heads", 9, 3, 64, 16, FG_F16, 83, 83, 0 },
    { "f32 kv", 4, 2, 32, 16, FG_F32, 40, 40, 0 },
    { "bf16 kv", 4, 2, 64, 16, FG_BF16, 40, 40, 0 },
    { "bf16 kv, every strip", 13, 1, 32, 32, FG_BF16, 31, 31, 0 },
    { "bf16 kv, an odd end", 9, 3, 64, 16, FG_BF16, 83, 1, 0 },
    { "bf16 kv, one slot", 2, 1, 32, 16, FG_BF16, 1, 1, 0 },
    { "bf16 kv, an odd end after a chunk", 4, 1, 64, 64, FG_BF16, 257, 3, 0 },
    { "bf16 kv, windows that begin and end anywhere", 6, 2, 64, 16, FG_BF16, 330, 80, 27 },
    { "bf16 kv, a window of one", 3, 1, 48, 16, FG_BF16, 40, 40, 1 },
    { "bf16 kv, a window across chunks, many strips", 8, 1, 64, 16, FG_BF16, 800, 60, 301 },
    { "bf16 kv, heads of no whole register", 4, 2, 12, 16, FG_BF16, 21, 21, 0 },
    { "bf16 kv, heads of eighty", 5, 1, 80, 32, FG_BF16, 50, 50, 0 },
    { "bf16 kv, heads of forty", 5, 1, 40, 32, FG_BF16, 50, 50, 0 },
    { "bf16 kv, small blocks", 4, 4, 16, 4, FG_BF16, 37, 37, 0 },
    { "bf16 kv, blocks of one", 2, 1, 16, 1, FG_BF16, 19, 19, 5 },
    { "bf16 kv, weights beside scores", 8, 2, 64, 16, FG_BF16, 600, 24, 0 },
    { "bf16 kv, the same, heads of 128", 4, 1, 128, 16, FG_BF16, 530, 17, 0 },
    { "bf16 kv, the same, heads of 96", 4, 1, 96, 16, FG_BF16, 530, 16, 0 },
    { "bf16 kv, the same, heads of eighty", 4, 1, 80, 16, FG_BF16, 530, 16, 0 },
    { "bf16 kv, the same, heads of 48", 8, 1, 48, 16, FG_BF16, 530, 16, 0 },
    { "bf16 kv, the same, heads of 32", 3, 1, 32, 32, FG_BF16, 530, 16, 0 },
    { "bf16 kv, the same, heads of 16", 8, 2, 16, 16, FG_BF16, 530, 16, 0 },
    { "bf16 kv, the same, a window of two chunks", 8, 1, 64, 16, FG_BF16, 900, 16, 600 },
    { "int8 kv", 6, 2, 64, 16, FG_I8, 70, 70, 0 },
    { "int8 kv, every strip", 13, 1, 32, 32, FG_I8, 31, 31, 0 },
    { "int8 kv, strips of sixteen and fewer", 5, 1, 64, 16, FG_I8, 290, 35, 0 },
    { "int8 kv, windows that begin and end anywhere", 6, 2, 64, 16, FG_I8, 330, 80, 27 },
    { "int8 kv, a window of one", 3, 1, 64, 16, FG_I8, 40, 40, 1 },
    { "int8 kv, a window across chunks, many strips", 8, 1, 128, 16, FG_I8, 600, 40, 301 },
    { "int8 kv, head of 256", 4, 1, 256, 16, FG_I8, 300, 9, 0 },
    { "int8 kv, heads of eighty", 5, 1, 80, 32, FG_I8, 50, 50, 0 },
    { "int8 kv, many chunks, one row", 8, 1, 64, 16, FG_I8, 1030, 1, 0 },
    { "int8 kv, small blocks", 4, 4, 16, 4, FG_I8, 37, 37, 0 },
    { "int8 kv, blocks of two", 2, 1, 16, 2, FG_I8, 19, 19, 5 },
    { "a group of eight", 8, 1, 16, 16, FG_F16, 33, 33, 0 },
    { "a group of several strips", 26, 1, 16, 16, FG_F16, 20, 20, 0 },
    { "a group larger than a tile", 520, 1, 16, 16, FG_F16, 20, 20, 0 },
    { "a group larger than a tile of wide heads", 130, 1, 264, 16, FG_F32, 5, 5, 0 },
    { "heads of no whole register", 4, 2, 12, 16, FG_F16, 21, 21, 0 },
    { "heads of twenty, int8", 3, 1, 20, 16, FG_I8, 30, 30, 0 },
    { "heads of eighty", 5, 1, 80, 16, FG_F16, 50, 50, 0 },
    { "heads of forty, int8", 2, 2, 40, 32, FG_I8, 50, 50, 0 },
    { "small blocks", 4, 4, 16, 4, FG_F16, 37, 37, 0 },
    { "blocks of one", 2, 1, 16, 1, FG_I8, 19, 19, 0 },
    { "large blocks", 2, 2, 24, 64, FG_F16, 100, 100, 0 },
    { "across a chunk", 3, 1, 64, 16, FG_F16, 270, 30, 0 },
    { "across a chunk, int8", 4, 1, 128, 16, FG_I8, 263, 12, 0 },
    { "a tile of many strips across chunks", 8, 2, 64, 16, FG_F16, 530, 50, 0 },
    { "the same, f32, large blocks", 4, 1, 80, 64, FG_F32, 530, 30, 0 },
    { "the same, bf16, head of 256", 4, 1, 256, 16, FG_BF16, 300, 9, 0 },
    { "the same, int8, a window", 6, 1, 40, 32, FG_I8, 600, 40, 270 },
    { "one row at a chunk's end", 9, 3, 64, 16, FG_F16, 256, 1, 0 },
    { "one row at a chunk's begin", 9, 3, 64, 16, FG_F16, 257, 1, 0 },
    { "many chunks, one row", 4, 2, 64, 32, FG_F16, 1600, 1, 0 },
    { "many chunks, two rows, f32", 2, 2, 16, 16, FG_F32, 1540, 2, 0 },
    { "many chunks, one row, bf16", 8, 1, 128, 16, FG_BF16, 1030, 1, 0 },
    { "many chunks, one row, bf16, groups of one", 2, 2, 64, 16, FG_BF16, 610, 1, 0 },
    { "the same, groups of two", 4, 2, 64, 16, FG_BF16, 610, 1, 0 },
    { "the same, groups of three", 6, 2, 64, 32, FG_BF16, 610, 1, 0 },
    { "the same, groups of four", 8, 2, 64, 16, FG_BF16, 610, 1, 0 },
    { "the same, groups of five", 5, 1, 96, 16, FG_BF16, 610, 1, 0 },
    { "the same, groups of six", 6, 1, 32, 64, FG_BF16, 610, 1, 0 },
    { "the same, groups of seven", 7, 1, 64, 16, FG_BF16, 610, 1, 0 },
    { "the same, groups of three, a window", 6, 2, 64, 16, FG_BF16, 1210, 1, 555 },
    { "heads side by side, two and one, bf16", 10, 5, 64, 16, FG_BF16, 1600, 2, 0 },
    { "the same, int8, a window", 10, 5, 64, 16, FG_I8, 1700, 2, 1333 },
    { "the same, f16, blocks of several pieces", 10, 5, 32, 64, FG_F16, 1600, 2, 0 },
    { "the same, f32, more than a unit takes", 40, 10, 16, 16, FG_F32, 700, 1, 0 },
    { "the same, bf16, groups of one", 34, 34, 64, 16, FG_BF16, 290, 1, 0 },
    { "the same, bf16, groups of eight", 32, 4, 64, 16, FG_BF16, 800, 1, 0 },
    { "the same, int8, groups of eight", 32, 4, 64, 16, FG_I8, 800, 1, 0 },
    { "the same, bf16, groups of sixteen", 32, 2, 64, 16, FG_BF16, 530, 1, 0 },
    { "the same, int8, groups of sixteen", 32, 2, 64, 16, FG_I8, 530, 1, 0 },
    { "the same, bf16, heads of eighty, a window", 9, 3, 80, 16, FG_BF16, 900, 3, 601 },
    { "a window of one", 3, 1, 64, 16, FG_F16, 40, 40, 1 },
    { "a window inside a piece", 4, 2, 16, 16, FG_F16, 60, 60, 7 },
    { "a window of a chunk", 3, 1, 64, 16, FG_F16, 530, 40, 256 },
    { "a window across chunks", 2, 1, 64, 16, FG_I8, 800, 30, 300 },
    { "a window in small blocks", 2, 1, 16, 8, FG_F16, 300, 50, 45 },
    { "a window larger than the context", 2, 1, 16, 16, FG_F16, 30, 30, 4000 },
};

world make_world(const attend_case *c, uint64_t seed)
{
    fg_rng rng = { .state = seed };
    fg_kv_layout layout;
    FG_ASSERT(fg_kv_layout_init(&layout, 1, c->kv_head_count, c->head_dim, c->block_size, c->dtype,
                                NULL) == FG_OK,
              "layout");
    world w = { .kv = { .block_bytes = layout.block_bytes,
                        .value_offset = fg_kv_layout_offset(&layout, 0, 1, 0),
                        .head_bytes = layout.head_bytes,
                        .scale_offset = layout.scale_offset,
                        .block_size = c->block_size,
                        .dtype = c->dtype,
                        .kv_head_count = c->kv_head_count,
                        .head_dim = c->head_dim } };
    /* An odd number of blocks, so that steps of two visit all. */
    uint32_t blocks = fg_kv_blocks_for(c->slot_count, c->block_size) | 1;
    w.kv.arena = fg_mem_alloc(blocks * w.kv.block_bytes);
    /* NaN everywhere: a slot that must not be read shows. */
    memset(w.kv.arena, 0xFF, blocks * w.kv.block_bytes);
    w.block_ids = fg_mem_array(blocks, sizeof(uint32_t));
    for (uint32_t i = 0; i < blocks; i++) {
        w.block_ids[i] = (2 * i + 1) % blocks;
    }
    size_t rows = c->slot_count;
    w.q = random_floats(&rng, rows * c->head_count * c->head_dim, 1.5f);
    w.k = random_floats(&rng, rows * c->kv_head_count * c->head_dim, 1.5f);
    w.v = random_floats(&rng, rows * c->kv_head_count * c->head_dim, 1.0f);
    w.table = fg_mem_array(rows * c->head_dim, sizeof(float));
    w.kv_rows = fg_mem_array(rows, sizeof(fg_kv_row));
    for (uint32_t row = 0; row < rows; row++) {
        w.kv_rows[row] = (fg_kv_row){ .block_ids = w.block_ids, .position = row };
        for (uint32_t pair = 0; pair < c->head_dim / 2; pair++) {
            w.table[row * c->head_dim + 2 * pair] = 1.0f; /* no turn */
        }
    }
    return w;
}

void free_world(world *w)
{
    fg_mem_free(w->kv.arena);
    fg_mem_free(w->block_ids);
    fg_mem_free(w->q);
    fg_mem_free(w->k);
    fg_mem_free(w->v);
    fg_mem_free(w->table);
    fg_mem_free(w->kv_rows);
}

void store_world(const test_device *device, const world *w, const attend_case *c)
{
    fg_rope_store args = { .q = w->q,
                           .k = w->k,
                           .v = w->v,
                           .kv_rows = w->kv_rows,
                           .table = w->table,
                           .pair_count = c->head_dim / 2,
                           .head_count = c->head_count };
    fg_op_rope_store(device->stream, &w->kv, &args, c->slot_count);
}

void attend_rows(const test_device *device, const world *w, const attend_case *c, uint32_t first,
                 uint32_t rows, float *out)
{
    size_t columns = (size_t)c->head_count * c->head_dim;
    fg_attend args = { .q = w->q + first * columns,
                       .kv_rows = w->kv_rows + first,
                       .head_count = c->head_count,
                       .window = c->window,
                       .scale = 1.0f / sqrtf((float)c->head_dim),
                       .out = out + first * columns };
    fg_op_attend(device->stream, &w->kv, &args, rows);
}
