/*
 * peak - what this machine can do at most, measured now: multiply-adds with everything in registers,
 * bytes read from each level of memory, bytes copied. A kernel's or a model's speed is a share of these,
 * because machines differ and a shared one changes from minute to minute.
 *
 * A probe takes its best run of many short ones: other work on the machine only ever slows one down. What a
 * machine holds for seconds can be much less, where others have a part of it: fg_peaks_sustain.
 * One thread owns the probes; it takes part in measuring.
 */
#ifndef FORGE_KERNELS_BENCH_PEAK_H
#define FORGE_KERNELS_BENCH_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef enum fg_peak_kind {
    /* int8 products summed exactly to 32 bits, for any weights: VNNI, of AVX-512 where there is that, else multiply-add
     * pairs to 16 bits, pairs to 32 bits, add. */
    FG_PEAK_INT8,
    /* int8 pairs summed in 16 bits, which holds for a few groups of small weights: what a kernel that
     * widens rarely can come near. 0 where VNNI makes it pointless. */
    FG_PEAK_INT8_SHORT,
    /* int8 products summed in the tiles of AMX, nothing leaving them; 0 where there are none. */
    FG_PEAK_INT8_TILES,
    /* bf16 to float, in pairs or each widened, whichever is quicker here; 0 without AVX512_BF16. */
    FG_PEAK_BF16,
    FG_PEAK_BF16_TILES, /* the same in the tiles of AMX, nothing leaving them; 0 where there are none */
    FG_PEAK_F32,        /* fused multiply-add */
    FG_PEAK_L1,         /* read, from here on; four streams with prefetch from memory */
    FG_PEAK_L2,
    FG_PEAK_L3,
    FG_PEAK_DRAM,
    FG_PEAK_COPY, /* memcpy between two places in memory: bytes of payload */
    FG_PEAK_COUNT
} fg_peak_kind;

typedef struct fg_peaks fg_peaks;

/* Memory that the probes of memory walk through, window by window: twice what all `cache_count` last level caches of
 * `cache_bytes` hold, 256 MiB at least, and else no more than a quarter of what is available. A virtual machine of few
 * cores may have a large processor's whole cache to itself: 256 MiB again and again were read 15 % quicker than
 * memory is. */
size_t fg_peak_area_bytes(size_t cache_bytes, uint32_t cache_count, uint64_t available_bytes);

/* thread_count: the most that will be asked for. FG_AGAIN: no memory (fg_peak_area_bytes) or no threads. */
fg_status fg_peaks_open(uint32_t thread_count, fg_peaks **peaks_out, fg_error *err);
void fg_peaks_close(fg_peaks *peaks);

/* Multiply-adds or bytes per second of all `thread_count` threads together, measured for about
 * `budget_ms`; 0 when this machine has no such instruction. */
double fg_peaks_measure(fg_peaks *peaks, fg_peak_kind kind, uint32_t thread_count,
                        uint32_t budget_ms);

/* The mean over `budget_ms` instead, with whatever others took meanwhile. Each thread does what it can until then, so
 * that a slow one holds up nobody. thread_count: 1 or as many as there are. */
double fg_peaks_sustain(fg_peaks *peaks, fg_peak_kind kind, uint32_t thread_count,
                        uint32_t budget_ms);

const char *fg_peak_name(fg_peak_kind kind);
/* False: bytes. */
bool fg_peak_is_compute(fg_peak_kind kind);

/* All probes for 1 and `thread_count` threads on stdout, a table or one JSON object per line. */
void fg_peaks_print(fg_peaks *peaks, uint32_t thread_count, bool json);

/* The instructions behind a compute probe on this machine, "" when there are none. */
const char *fg_peak_how(const fg_peaks *peaks, fg_peak_kind kind);

#endif
