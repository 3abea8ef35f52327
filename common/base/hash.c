#include "common/base/hash.h"

#include <xxhash.h>

uint64_t fg_hash64(const void *bytes, size_t size_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, size_bytes, seed);
}

fg_digest128 fg_hash128(const void *bytes, size_t size_bytes, uint64_t seed)
{
    XXH128_hash_t hash = XXH3_128bits_withSeed(bytes, size_bytes, seed);
    return (fg_digest128){ .low = hash.low64, .high = hash.high64 };
}
