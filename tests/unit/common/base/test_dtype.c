#include "common/base/dtype.h"

#include <math.h>
#include <stdbool.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

/* The value of a half, from the definition of the format. */
static double half_value(uint16_t half)
{
    int exponent = (half >> 10) & 31;
    double mantissa = half & 1023;
    double size = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    return (half & 0x8000) != 0 ? -size : size;
}

Test(dtype, every_half_becomes_the_right_float_and_comes_back)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        uint16_t half = (uint16_t)bits;
        float value = fg_f16_to_f32(half);
        if ((half & 0x7C00) == 0x7C00) {
            bool is_nan = (half & 0x3FF) != 0;
            cr_assert_eq(isnan(value) != 0, is_nan, "%04x", bits);
            cr_assert_eq(isinf(value) != 0, !is_nan, "%04x", bits);
            cr_assert_eq(signbit(value) != 0, bits >= 0x8000, "%04x", bits);
            cr_assert_eq(fg_f16_from_f32(value), is_nan ? half | 0x200 : half, "%04x", bits);
            continue;
        }
        cr_assert_eq((double)value, half_value(half), "%04x", bits);
        cr_assert_eq(signbit(value) != 0, bits >= 0x8000, "%04x", bits);
        cr_assert_eq(fg_f16_from_f32(value), half, "%04x", bits);
    }
}

/* Rounds to nearest, ties to even, by looking at both neighbours in double. */
static uint16_t half_reference(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs((double)value);
    /* Halves of one sign are ordered like their bits; infinity stands where 65536 would be. */
    uint32_t low = 0, high = 0x7C00;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (half_value((uint16_t)middle) <= size) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = size - half_value((uint16_t)low);
    double above = (high == 0x7C00 ? 65536.0 : half_value((uint16_t)high)) - size;
    uint32_t nearest = below < above ? low : above < below ? high : (low & 1) == 0 ? low : high;
    return (uint16_t)(sign | nearest);
}

Test(dtype, floats_round_to_the_nearest_half_ties_to_even)
{
    /* Around every half and every midpoint between two. */
    for (uint32_t bits = 0; bits < 0x7C00; bits++) {
        float value = fg_f16_to_f32((uint16_t)bits);
        float middle = (float)((half_value((uint16_t)bits) +
                                (bits == 0x7BFF ? 65536.0 : half_value((uint16_t)(bits + 1)))) /
                               2);
        const float around[] = { value,
                                 middle,
                                 nextafterf(middle, 0.0f),
                                 nextafterf(middle, INFINITY),
                                 nextafterf(value, INFINITY),
                                 -middle };
        for (size_t i = 0; i < sizeof around / sizeof around[0]; i++) {
            cr_assert_eq(fg_f16_from_f32(around[i]), half_reference(around[i]), "%a",
                         (double)around[i]);
        }
    }
    uint64_t seed = 20261121;
    cr_log_info("seed %llu", (unsigned long long)seed);
    fg_rng rng = { seed };
    for (int i = 0; i < 200000; i++) {
        float value = fg_f32_from_bits((uint32_t)fg_rng_next(&rng));
        if (isfinite(value)) {
            cr_assert_eq(fg_f16_from_f32(value), half_reference(value), "%a", (double)value);
        }
    }
}

Test(dtype, the_ends_of_the_range)
{
    cr_assert_eq(fg_f16_from_f32(65504.0f), 0x7BFF);
    cr_assert_eq(fg_f16_from_f32(65519.996f), 0x7BFF);
    cr_assert_eq(fg_f16_from_f32(65520.0f), 0x7C00);
    cr_assert_eq(fg_f16_from_f32(-INFINITY), 0xFC00);
    cr_assert_eq(fg_f16_from_f32(0x1p-25f), 0x0000);
    cr_assert_eq(fg_f16_from_f32(0x1.000002p-25f), 0x0001);
    cr_assert_eq(fg_f16_from_f32(-0.0f), 0x8000);
    cr_assert((fg_f16_from_f32(NAN) & 0x7C00) == 0x7C00 && (fg_f16_from_f32(NAN) & 0x3FF) != 0);
}

Test(dtype, bf16_is_the_upper_half_of_a_float)
{
    cr_assert_eq(fg_bf16_to_f32(0x3F80), 1.0f);
    cr_assert_eq(fg_bf16_to_f32(0xC040), -3.0f);
    cr_assert(isnan(fg_bf16_to_f32(0x7FC0)));
}

Test(dtype, every_type_has_a_block_and_a_name_and_no_other_number_does)
{
    static const struct {
        uint32_t type, count, bytes;
        const char *name;
    } known[] = {
        { FG_F32, 1, 4, "f32" },       { FG_F16, 1, 2, "f16" },       { FG_BF16, 1, 2, "bf16" },
        { FG_Q4_0, 32, 18, "q4_0" },   { FG_Q4_1, 32, 20, "q4_1" },   { FG_Q5_0, 32, 22, "q5_0" },
        { FG_Q5_1, 32, 24, "q5_1" },   { FG_Q8_0, 32, 34, "q8_0" },   { FG_Q4_K, 256, 144, "q4_k" },
        { FG_Q5_K, 256, 176, "q5_k" }, { FG_Q6_K, 256, 210, "q6_k" },
    };
    size_t known_count = sizeof known / sizeof known[0];
    for (uint32_t type = 0; type < 300; type++) {
        size_t at = 0;
        while (at < known_count && known[at].type != type) {
            at++;
        }
        bool is_known = at < known_count;
        cr_assert_eq(fg_dtype_block_count(type), is_known ? known[at].count : 0, "%u", type);
        cr_assert_eq(fg_dtype_block_bytes(type), is_known ? known[at].bytes : 0, "%u", type);
        const char *name = is_known ? known[at].name : type == FG_I8 ? "int8" : "unknown";
        cr_assert_str_eq(fg_dtype_name(type), name, "%u", type);
    }
}

Test(dtype, the_kv_cache_takes_floats_and_int8)
{
    for (uint32_t type = 0; type < 300; type++) {
        uint32_t want = type == FG_F32                      ? 4
                        : type == FG_F16 || type == FG_BF16 ? 2
                        : type == FG_I8                     ? 1
                                                            : 0;
        cr_assert_eq(fg_dtype_kv_bytes(type), want, "%u", type);
    }
}

Test(dtype, bf16_rounds_to_nearest_even)
{
    static const struct {
        uint32_t bits;
        uint16_t want;
    } cases[] = {
        { 0x3F800000, 0x3F80 }, { 0x3F807FFF, 0x3F80 }, { 0x3F808000, 0x3F80 },
        { 0x3F808001, 0x3F81 }, { 0x3F818000, 0x3F82 }, { 0xBF818000, 0xBF82 },
        { 0x7F7FFFFF, 0x7F80 }, { 0x7F800000, 0x7F80 }, { 0x7F800001, 0x7FC0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(fg_bf16_from_f32(fg_f32_from_bits(cases[i].bits)), cases[i].want, "%zu", i);
    }
}
