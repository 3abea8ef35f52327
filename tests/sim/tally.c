#include "tests/sim/tally.h"

#include <math.h>

enum { SUB_BITS = 6 };

static uint32_t column_of(uint64_t value)
{
    if (value < 2 * FG_TALLY_SUB) {
        return (uint32_t)value;
    }
    uint32_t shift = 63 - SUB_BITS - (uint32_t)__builtin_clzll(value);
    return (shift << SUB_BITS) + (uint32_t)(value >> shift);
}

uint64_t fg_tally_column_end(uint32_t column)
{
    if (column < 2 * FG_TALLY_SUB) {
        return column;
    }
    uint32_t shift = (column >> SUB_BITS) - 1;
    uint64_t first = (uint64_t)(column - (shift << SUB_BITS)) << shift;
    return first + ((1ull << shift) - 1);
}

void fg_tally_add(fg_tally *tally, uint64_t value)
{
    tally->columns[column_of(value)]++;
    tally->low = tally->count == 0 || value < tally->low ? value : tally->low;
    tally->high = value > tally->high ? value : tally->high;
    tally->count++;
    tally->sum += (double)value;
}

uint64_t fg_tally_quantile(const fg_tally *tally, double quantile)
{
    uint64_t want = (uint64_t)ceil(quantile * (double)tally->count);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < FG_TALLY_COLUMNS && tally->count > 0; i++) {
        seen += tally->columns[i];
        if (seen >= want && seen > 0) {
            uint64_t end = fg_tally_column_end(i);
            return end < tally->low ? tally->low : end > tally->high ? tally->high : end;
        }
    }
    return 0;
}
