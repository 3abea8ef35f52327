/*
 * bench_peak [THREADS] [json]: the probes of peak.h, for one thread and for THREADS (2).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bench/peak.h"

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 2;
    fg_peaks *peaks;
    fg_error err;
    if (fg_peaks_open(threads, &peaks, &err) != FG_OK) {
        fprintf(stderr, "bench_peak: %s\n", err.text);
        return 2;
    }
    fg_peaks_print(peaks, threads, argc > 2 && strcmp(argv[2], "json") == 0);
    fg_peaks_close(peaks);
    return 0;
}
