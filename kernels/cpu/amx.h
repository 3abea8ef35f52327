/*
 * amx - what the files with tile instructions share: a tile is up to 16 rows of 64 bytes.
 */
#ifndef FORGE_KERNELS_CPU_AMX_H
#define FORGE_KERNELS_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

enum { FG_AMX_TILES = 8, FG_AMX_ROWS = 16, FG_AMX_ROW_BYTES = 64 };

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

/* For attention's strips of so many rows: tiles 0 to 4 have as many, all others 16. 0: no more tiles. */
static inline void fg_amx_set_strip_rows(uint32_t rows)
{
    if (rows == 0) {
        _tile_release();
        return;
    }
    fg_amx_config config = { .palette = 1 };
    for (int tile = 0; tile < FG_AMX_TILES; tile++) {
        config.row_bytes[tile] = FG_AMX_ROW_BYTES;
        config.rows[tile] = (uint8_t)(tile <= 4 ? rows : FG_AMX_ROWS);
    }
    fg_amx_see_memory(&config);
    _tile_loadconfig(&config);
}

#endif
