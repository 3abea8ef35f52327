/*
 * anywhere - functions that programs and CUDA kernels share: of operations that give the same bits in both.
 */
#ifndef FORGE_COMMON_BASE_ANYWHERE_H
#define FORGE_COMMON_BASE_ANYWHERE_H

#ifdef __CUDACC__
#define FG_ANYWHERE static inline __host__ __device__
#else
#define FG_ANYWHERE static inline
#endif

#endif
