/*
 * rng - randomness. Counter based where an answer depends on it (a pure function of its arguments),
 * a small seeded stream elsewhere. No hidden state.
 */
#ifndef FORGE_COMMON_BASE_RNG_H
#define FORGE_COMMON_BASE_RNG_H

#include <stdint.h>

#include "common/base/hash.h"

/* Uniform 64 bits from (seed, choice, position, item): the sampler's noise. */
FG_ANYWHERE uint64_t fg_rng_counter(uint64_t seed, uint32_t choice, uint32_t position,
                                    uint32_t item)
{
    uint64_t x = fg_hash_mix(seed ^ 0x466F726765ull);
    x = fg_hash_mix(x ^ ((uint64_t)choice << 32 | position));
    return fg_hash_mix(x ^ item);
}

/* A seeded stream (splitmix64). */
typedef struct fg_rng {
    uint64_t state;
} fg_rng;

static inline uint64_t fg_rng_next(fg_rng *rng)
{
    rng->state += 0x9E3779B97F4A7C15u;
    return fg_hash_mix(rng->state);
}

/* Uniform in [0, bound); 0 for bound 0. The bias (bound / 2^64) does not matter here. */
static inline uint64_t fg_rng_below(fg_rng *rng, uint64_t bound)
{
    return bound == 0 ? 0 : (uint64_t)(((unsigned __int128)fg_rng_next(rng) * bound) >> 64);
}

/* 64 bits from the operating system. Aborts when it has none to give. */
uint64_t fg_rng_entropy(void);

#endif
