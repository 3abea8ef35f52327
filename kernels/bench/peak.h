/*
 * peak - what one core can multiply and add per second with everything in registers: the number that
 * a kernel's speed is a percentage of. 0 where this machine has no measured peak (no AVX2 and FMA).
 */
#ifndef FORGE_KERNELS_BENCH_PEAK_H
#define FORGE_KERNELS_BENCH_PEAK_H

/* int8 products summed to int32: multiply-add pairs to 16 bits, pairs to 32 bits, add. */
double fg_peak_int8_macs(void);
double fg_peak_f32_macs(void);

#endif
