/* Blocks written by hand, with the values that the format promises; random blocks and whole models are
 * compared with the `gguf` package by tests/integration/dequant_vs_gguf.py. */
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/model/weights.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

enum { ONE = 0x3C, TWO = 0x40, HALF = 0x38 }; /* high bytes of the halves 1, 2 and 0.5 */

Test(dequant, plain_floats)
{
    const float floats[3] = { 1.5f, -2.0f, 0.0f };
    const uint16_t halves[3] = { 0x3E00, 0xC000, 0x0001 };
    const uint16_t brains[3] = { 0x3FC0, 0xC000, 0x0000 };
    float out[3];
    fg_dequant(FG_F32, floats, out, 3);
    cr_assert(memcmp(out, floats, sizeof out) == 0);
    fg_dequant(FG_F16, halves, out, 3);
    cr_assert(out[0] == 1.5f && out[1] == -2.0f && out[2] == 0x1p-24f);
    fg_dequant(FG_BF16, brains, out, 3);
    cr_assert(out[0] == 1.5f && out[1] == -2.0f && out[2] == 0.0f);
}

/* Element i and the nibbles' order: byte j holds element j below and j + 16 above. */
Test(dequant, small_blocks)
{
    unsigned char block[34] = { 0, TWO };
    float out[32];
    for (int i = 0; i < 16; i++) {
        block[2 + i] = (unsigned char)(i | (15 - i) << 4);
    }
    fg_dequant(FG_Q4_0, block, out, 32);
    for (int i = 0; i < 16; i++) {
        cr_assert(out[i] == 2.0f * (float)(i - 8) && out[i + 16] == 2.0f * (float)(7 - i));
    }
    unsigned char with_min[20] = { 0, TWO, 0, HALF };
    memcpy(with_min + 4, block + 2, 16);
    fg_dequant(FG_Q4_1, with_min, out, 32);
    for (int i = 0; i < 16; i++) {
        cr_assert(out[i] == 2.0f * (float)i + 0.5f);
    }
    /* Fifth bits of elements 0 and 31. */
    unsigned char five[22] = { 0, TWO, 1, 0, 0, 0x80 };
    memcpy(five + 6, block + 2, 16);
    fg_dequant(FG_Q5_0, five, out, 32);
    cr_assert(out[0] == 0.0f && out[1] == -30.0f && out[31] == 0.0f && out[30] == -30.0f);
    unsigned char five_min[24] = { 0, TWO, 0, HALF, 1, 0, 0, 0x80 };
    memcpy(five_min + 8, block + 2, 16);
    fg_dequant(FG_Q5_1, five_min, out, 32);
    cr_assert(out[0] == 32.5f && out[1] == 2.5f && out[31] == 32.5f && out[30] == 2.5f);
    memset(block + 2, 0x80, 32);
    block[2] = 127;
    fg_dequant(FG_Q8_0, block, out, 32);
    cr_assert(out[0] == 254.0f && out[31] == -256.0f);
}

Test(dequant, large_blocks)
{
    float out[256];
    /* Scales 1..8 and minimums 1..8 fit the low bits; 4 + 32 needs the borrowed ones. */
    unsigned char k4[144] = { 0, ONE, 0, HALF };
    for (int sub = 0; sub < 4; sub++) {
        k4[4 + sub] = (unsigned char)(sub + 1);
        k4[8 + sub] = (unsigned char)(sub + 1);
        k4[12 + sub] = (unsigned char)((sub + 5) | (sub + 5) << 4);
    }
    k4[4] |= 2 << 6; /* scale of sub-block 4: 5 + 32 */
    k4[8] |= 1 << 6; /* minimum of sub-block 4: 5 + 16 */
    memset(k4 + 16, 0x43, 128);
    fg_dequant(FG_Q4_K, k4, out, 256);
    cr_assert(out[0] == 3.0f * 1 - 0.5f, "%g", (double)out[0]);
    cr_assert(out[32] == 4.0f * 2 - 1.0f);
    cr_assert(out[128] == 3.0f * 37 - 0.5f * 21);
    cr_assert(out[255] == 4.0f * 8 - 4.0f);
    unsigned char k5[176];
    memset(k5, 0, sizeof k5);
    memcpy(k5, k4, 16);
    k5[16 + 7] = 0x81; /* element 7 of the first and of the last sub-block */
    memset(k5 + 48, 0x43, 128);
    fg_dequant(FG_Q5_K, k5, out, 256);
    cr_assert(out[6] == 3.0f - 0.5f && out[7] == 19.0f - 0.5f);
    cr_assert(out[224 + 7] == 20.0f * 8 - 4.0f && out[224 + 8] == 4.0f * 8 - 4.0f);
    unsigned char k6[210];
    memset(k6, 0, sizeof k6);
    for (int i = 0; i < 16; i++) {
        k6[192 + i] = (unsigned char)(i % 2 == 0 ? i + 1 : -i);
    }
    k6[209] = ONE;
    k6[0] = 0x21;   /* elements 0 and 64 */
    k6[128] = 0xE4; /* high bits 0, 1, 2, 3 of elements 0, 32, 64, 96 */
    fg_dequant(FG_Q6_K, k6, out, 256);
    cr_assert(out[0] == 1.0f * (1 - 32));
    cr_assert(out[32] == 3.0f * (16 - 32));
    cr_assert(out[64] == 5.0f * (2 + 32 - 32));
    cr_assert(out[96] == 7.0f * (48 - 32));
    cr_assert(out[255] == -15.0f * -32);
}

/* Checked against the `gguf` package when written (see above): a change of bits shows here too. */
static const struct {
    uint32_t type;
    uint64_t want;
} golden_cases[] = {
    { FG_Q4_0, 0x1F72AE9A8A1FBB },   { FG_Q4_1, 0x4648E8F4B202604 },
    { FG_Q5_0, 0x993B0259B35AAF45 }, { FG_Q5_1, 0xBAA1F70637C2A97F },
    { FG_Q8_0, 0xC78E57D505C01379 }, { FG_Q4_K, 0x5D9E6E10CAB89E49 },
    { FG_Q5_K, 0x2C8486A24C839B55 }, { FG_Q6_K, 0xC343269C99F55C16 },
};

Test(dequant, random_blocks_give_the_stored_bits)
{
    for (size_t i = 0; i < sizeof golden_cases / sizeof golden_cases[0]; i++) {
        static unsigned char blocks[16384];
        static float out[4096];
        fg_rng rng = { .state = 7 };
        fg_gguf_fill_random(golden_cases[i].type, blocks, 4096, 1.0f, &rng);
        fg_dequant(golden_cases[i].type, blocks, out, 4096);
        uint64_t got = fg_hash64(out, sizeof out, 0);
        cr_assert_eq(got, golden_cases[i].want, "%s: 0x%llx", fg_dtype_name(golden_cases[i].type),
                     (unsigned long long)got);
    }
}
