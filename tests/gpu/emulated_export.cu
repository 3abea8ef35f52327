/* What the emulated plugin shows of its emulation to a library that stands for one of NVIDIA's: fake_nccl.c. */
#include "kernels/cuda/gpu.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

/* In stream order, with the device's memory in reach. */
EXPORTED void fg_emulated_call(void *stream, void (*call)(void *ctx), void *ctx);
EXPORTED void fg_emulated_call(void *stream, void (*call)(void *ctx), void *ctx)
{
    if (cudaLaunchHostFunc((cudaStream_t)stream, call, ctx) != cudaSuccess) {
        abort();
    }
}

EXPORTED bool fg_emulated_has(const void *at, size_t bytes);
EXPORTED bool fg_emulated_has(const void *at, size_t bytes)
{
    fg_emu_memory &memory = fg_emu_memory_get();
    std::lock_guard<std::recursive_mutex> guard(memory.lock);
    return fg_emu_range_good(memory, at, bytes, true, false);
}
