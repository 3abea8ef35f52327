/*
 * hash - digests of bytes. XXH3: fast, not secret; digests catch damage, they are no fence. Pure.
 */
#ifndef FORGE_COMMON_BASE_HASH_H
#define FORGE_COMMON_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/anywhere.h"

uint64_t fg_hash64(const void *bytes, size_t size_bytes, uint64_t seed);

typedef struct fg_digest128 {
    uint64_t low;
    uint64_t high;
} fg_digest128;

fg_digest128 fg_hash128(const void *bytes, size_t size_bytes, uint64_t seed);

/* A good 64-bit mix of a 64-bit value (splitmix64's finaliser). */
FG_ANYWHERE uint64_t fg_hash_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#endif
