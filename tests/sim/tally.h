/*
 * tally - times in great number, kept in little memory: a histogram whose columns are 1/64 of an octave
 * wide at the most, so that a percentile is true within 1.6 %, and never too low. A value; owned by whoever fills it.
 */
#ifndef FORGE_TESTS_SIM_TALLY_H
#define FORGE_TESTS_SIM_TALLY_H

#include <stddef.h>
#include <stdint.h>

enum { FG_TALLY_SUB = 64, FG_TALLY_COLUMNS = 59 * FG_TALLY_SUB };

typedef struct fg_tally {
    uint64_t columns[FG_TALLY_COLUMNS];
    uint64_t count, low, high; /* extremes are exact */
    double sum;
} fg_tally;

void fg_tally_add(fg_tally *tally, uint64_t value);
/* The value that a share of `quantile` (0 to 1) of all does not exceed; 0 when empty. */
uint64_t fg_tally_quantile(const fg_tally *tally, double quantile);
/* The largest value that falls into a column. */
uint64_t fg_tally_column_end(uint32_t column);

#endif
