#include "common/base/hash.h"

#include <string.h>

#include "tests/support/test.h"

/* Digests travel between processes and outlive them, so their values are fixed for good. XXH3's of
 * no bytes and seed 0 are in its specification. */
Test(hash, has_the_published_values)
{
    cr_assert_eq(fg_hash64("", 0, 0), 0x2D06800538D394C2u);
    fg_digest128 digest = fg_hash128("", 0, 0);
    cr_assert_eq(digest.low, 0x6001C324468D497Fu);
    cr_assert_eq(digest.high, 0x99AA06D3014798D8u);
}

Test(hash, depends_on_every_bit_and_on_the_seed)
{
    unsigned char block[300];
    memset(block, 0x5A, sizeof block);
    uint64_t plain = fg_hash64(block, sizeof block, 1);
    fg_digest128 plain128 = fg_hash128(block, sizeof block, 1);
    cr_assert_neq(plain, fg_hash64(block, sizeof block, 2));
    cr_assert_neq(plain, fg_hash64(block, sizeof block - 1, 1));
    for (size_t bit = 0; bit < sizeof block * 8; bit++) {
        block[bit / 8] ^= (unsigned char)(1u << bit % 8);
        fg_digest128 changed = fg_hash128(block, sizeof block, 1);
        cr_assert_neq(plain, fg_hash64(block, sizeof block, 1), "bit %zu", bit);
        cr_assert(changed.low != plain128.low && changed.high != plain128.high, "bit %zu", bit);
        block[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    cr_assert_eq(plain, fg_hash64(block, sizeof block, 1));
}

Test(hash, mix_is_splitmix64)
{
    /* The first outputs of splitmix64 with seed 0, as its author published them. */
    cr_assert_eq(fg_hash_mix(0), 0xE220A8397B1DCDAFu);
    cr_assert_eq(fg_hash_mix(0x9E3779B97F4A7C15u), 0x6E789E6AA1B965F4u);
}
