#include "router/places.h"

#include "common/base/limits.h"
#include "common/base/status.h"

_Static_assert(1u << (FG_PLACES_CLASSES - 1) == FG_LIMIT_CONTEXT_TOKENS,
               "the longest answer has the last class to itself");

static uint32_t class_of(uint32_t left)
{
    FG_ASSERT(left > 0 && left <= FG_LIMIT_CONTEXT_TOKENS, "%u tokens", left);
    return 31u - (uint32_t)__builtin_clz(left);
}

void fg_places_take(fg_places *places, uint32_t left)
{
    uint32_t class = class_of(left);
    places->count[class]++;
    places->tokens[class] += left;
    places->holders++;
}

void fg_places_give(fg_places *places, uint32_t left)
{
    uint32_t class = class_of(left);
    FG_ASSERT(places->count[class] > 0 && places->tokens[class] >= left, "nobody has %u tokens",
              left);
    places->count[class]--;
    places->tokens[class] -= left;
    places->holders--;
}

double fg_places_steps(const fg_places *places, uint64_t ends, uint32_t answer)
{
    if (ends == 0 || places->holders == 0) {
        return 0;
    }
    double rounds = (double)((ends - 1) / places->holders);
    uint64_t rank = (ends - 1) % places->holders;
    uint32_t class = 0;
    while (rank >= places->count[class]) {
        rank -= places->count[class ++];
    }
    return rounds * answer + (double)places->tokens[class] / places->count[class];
}
