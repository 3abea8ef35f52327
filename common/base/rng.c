#include "common/base/rng.h"

#include <sys/random.h>

#include "common/base/status.h"

uint64_t fg_rng_entropy(void)
{
    uint64_t value;
    ssize_t got = getrandom(&value, sizeof value, 0);
    FG_ASSERT(got == (ssize_t)sizeof value, "getrandom failed");
    return value;
}
