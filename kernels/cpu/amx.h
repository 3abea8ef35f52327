/*
 * amx - what the files with tile instructions share: a tile is up to 16 rows of 64 bytes.
 */
#ifndef FORGE_KERNELS_CPU_AMX_H
#define FORGE_KERNELS_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { FG_AMX_TILES = 8, FG_AMX_ROWS = 16, FG_AMX_ROW_BYTES = 64 };

/* BF16 products of longer rows take so many columns at a time. */
enum { FG_AMX_PAIR_COLUMNS = 1024 };

/* Products of quantised types take tiles of so many rows and more, some of them of more. */
enum { FG_AMX_TILE_ROWS_LEAST = 9 };

/* What _tile_loadconfig reads. */
typedef struct fg_amx_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} fg_amx_config;

/* What tile instructions read and write is not told to compilers: GCC 12 takes the writes before them for
 * needless. */
static inline void fg_amx_see_memory(const void *memory)
{
    __asm__ volatile("" : : "r"(memory) : "memory");
}

/* The first row of a strip where `count` rows go in strips as tall as each other: the last one may begin within the
 * one before it. */
static inline uint32_t fg_amx_strip_begin(uint32_t index, uint32_t strip_rows, uint32_t count)
{
    uint32_t row = index * strip_rows;
    return row + strip_rows <= count ? row : count - strip_rows;
}

/* Q4_K, Q5_K and Q6_K from tiles and supers, of as many rows as fg_cpu_amx_linear gives. */
void fg_cpu_amx_super(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                      uint32_t first, uint32_t count);
/* The same of up to FG_TILE_ROWS rows. */
void fg_cpu_amx_super_few(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                          uint32_t first, uint32_t count);

#endif
