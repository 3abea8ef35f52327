#include "common/kv/layout.h"

#include "common/base/dtype.h"
#include "tests/support/test.h"

static const struct {
    const char *name;
    uint32_t layer_count, kv_head_count, head_dim, block_size, dtype;
    fg_status want;
} init_cases[] = {
    { "SmolLM2", 30, 3, 64, 16, FG_F16, FG_OK },
    { "bf16", 30, 3, 64, 16, FG_BF16, FG_OK },
    { "int8", 30, 3, 64, 16, FG_I8, FG_OK },
    { "odd heads", 30, 3, 63, 16, FG_F16, FG_OK },
    { "odd heads, which bf16 has no pairs for", 30, 3, 63, 16, FG_BF16, FG_BAD_INPUT },
    { "heads that int8 has no fours for", 30, 3, 62, 16, FG_I8, FG_BAD_INPUT },
    { "one of each", 1, 1, 1, 1, FG_F32, FG_OK },
    { "largest of each", 1024, 4096, 1024, 1024, FG_F32, FG_OK },
    { "no layer", 0, 3, 64, 16, FG_F16, FG_BAD_INPUT },
    { "no head", 30, 0, 64, 16, FG_F16, FG_BAD_INPUT },
    { "no head size", 30, 3, 0, 16, FG_F16, FG_BAD_INPUT },
    { "no slot", 30, 3, 64, 0, FG_F16, FG_BAD_INPUT },
    { "block of 24", 30, 3, 64, 24, FG_F16, FG_BAD_INPUT },
    { "type that is not stored", 30, 3, 64, 16, FG_Q8_0, FG_BAD_INPUT },
    { "unknown type", 30, 3, 64, 16, 4242, FG_BAD_INPUT },
    { "too many layers", 1025, 3, 64, 16, FG_F16, FG_BAD_INPUT },
    { "too many heads", 30, UINT32_MAX, 64, 16, FG_F16, FG_BAD_INPUT },
    { "head too large", 30, 3, 1u << 31, 16, FG_F16, FG_BAD_INPUT },
    { "block too large", 30, 3, 64, 1u << 31, FG_F16, FG_BAD_INPUT },
};

Test(kv_layout, init_accepts_and_refuses)
{
    for (size_t i = 0; i < sizeof init_cases / sizeof init_cases[0]; i++) {
        fg_kv_layout layout = { .layer_count = 99 };
        fg_error err = { 0 };
        fg_status status = fg_kv_layout_init(&layout, init_cases[i].layer_count,
                                             init_cases[i].kv_head_count, init_cases[i].head_dim,
                                             init_cases[i].block_size, init_cases[i].dtype, &err);
        cr_assert_eq(status, init_cases[i].want, "%s: %s", init_cases[i].name, err.text);
        cr_assert(status == FG_OK || layout.layer_count == 99, "%s: output kept",
                  init_cases[i].name);
    }
}

Test(kv_layout, parts_of_a_block_follow_each_other_without_gaps)
{
    fg_kv_layout layout;
    size_t expected = 0;
    cr_assert_eq(fg_kv_layout_init(&layout, 3, 2, 8, 16, FG_F16, NULL), FG_OK);
    for (uint32_t layer = 0; layer < 3; layer++) {
        for (uint32_t is_value = 0; is_value < 2; is_value++) {
            for (uint32_t head = 0; head < 2; head++) {
                cr_assert_eq(fg_kv_layout_offset(&layout, layer, is_value, head), expected);
                expected += 16 * 8 * 2;
            }
        }
    }
    cr_assert_eq(layout.block_bytes, expected);
    cr_assert_eq(layout.layer_bytes, expected / 3);
}

Test(kv_layout, int8_has_scales_in_lines_of_their_own)
{
    static const struct {
        uint32_t head_dim, block_size;
        size_t scale_offset, head_bytes;
    } cases[] = {
        { 64, 16, 1024, 1088 }, { 20, 4, 128, 192 }, { 8, 1, 64, 128 }, { 80, 64, 5120, 5376 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_kv_layout layout;
        cr_assert_eq(
            fg_kv_layout_init(&layout, 1, 1, cases[i].head_dim, cases[i].block_size, FG_I8, NULL),
            FG_OK);
        cr_assert_eq(layout.scale_offset, cases[i].scale_offset, "%zu", i);
        cr_assert_eq(layout.head_bytes, cases[i].head_bytes, "%zu", i);
        cr_assert_eq(layout.block_bytes, 2 * cases[i].head_bytes, "%zu", i);
    }
}

Test(kv_layout, same_compares_every_number)
{
    static const uint32_t numbers[][5] = {
        { 3, 2, 8, 16, FG_F16 },  { 4, 2, 8, 16, FG_F16 }, { 3, 1, 8, 16, FG_F16 },
        { 3, 2, 16, 16, FG_F16 }, { 3, 2, 8, 32, FG_F16 }, { 3, 2, 8, 16, FG_F32 },
    };
    fg_kv_layout layouts[6];
    for (int i = 0; i < 6; i++) {
        const uint32_t *n = numbers[i];
        cr_assert_eq(fg_kv_layout_init(&layouts[i], n[0], n[1], n[2], n[3], n[4], NULL), FG_OK);
    }
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 6; j++) {
            cr_assert_eq(fg_kv_layout_same(&layouts[i], &layouts[j]), i == j, "%d %d", i, j);
        }
    }
}

Test(kv_layout, blocks_for_rounds_up)
{
    static const uint32_t cases[][3] = {
        { 0, 16, 0 },  { 1, 16, 1 }, { 16, 16, 1 },
        { 17, 16, 2 }, { 5, 1, 5 },  { UINT32_MAX, 16, 1u << 28 }
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(fg_kv_blocks_for(cases[i][0], cases[i][1]), cases[i][2], "%u", cases[i][0]);
    }
}
