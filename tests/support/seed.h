/*
 * seed.h - the seed of a test that draws one. It goes to the log before anything else happens, so that a
 * crash names it too; FORGE_SEED asks for the same run again.
 */
#ifndef FORGE_TESTS_SUPPORT_SEED_H
#define FORGE_TESTS_SUPPORT_SEED_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"

static inline uint64_t test_seed(const char *test)
{
    const char *asked = getenv("FORGE_SEED");
    uint64_t seed = asked != NULL ? strtoull(asked, NULL, 10) : fg_rng_entropy();
    fprintf(stderr, "%s: seed %llu (again: FORGE_SEED=%llu)\n", test, (unsigned long long)seed,
            (unsigned long long)seed);
    return seed;
}

#endif
