/*
 * No step takes memory. The linker leads every allocation of Forge's own code through the counters
 * below (-Wl,--wrap in CMakeLists.txt), those of the engine's threads too.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/support/gguf_builder.h"
#include "tests/unit/common/engine/rig.h"

static _Atomic uint64_t allocations;

void *__real_malloc(size_t size_bytes);
void *__real_calloc(size_t count, size_t item_bytes);
void *__real_realloc(void *memory, size_t size_bytes);
void *__real_aligned_alloc(size_t alignment, size_t size_bytes);
int __real_posix_memalign(void **memory_out, size_t alignment, size_t size_bytes);
void *__real_mmap(void *at, size_t size_bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t size_bytes);
void *__wrap_calloc(size_t count, size_t item_bytes);
void *__wrap_realloc(void *memory, size_t size_bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t size_bytes);
int __wrap_posix_memalign(void **memory_out, size_t alignment, size_t size_bytes);
void *__wrap_mmap(void *at, size_t size_bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t size_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(size_bytes);
}

void *__wrap_calloc(size_t count, size_t item_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, item_bytes);
}

void *__wrap_realloc(void *memory, size_t size_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(memory, size_bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(alignment, size_bytes);
}

int __wrap_posix_memalign(void **memory_out, size_t alignment, size_t size_bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_posix_memalign(memory_out, alignment, size_bytes);
}

void *__wrap_mmap(void *at, size_t size_bytes, int protection, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mmap(at, size_bytes, protection, flags, fd, offset);
}

enum { PROMPT = 40 };

/* Four requests, greedy and sampled in every way that the sampler knows, to `wanted` tokens. */
static uint64_t drive_all(const driver *d, uint32_t vocab_size, const uint32_t *block_ids,
                          uint32_t blocks_each, uint32_t wanted, bool ahead, uint64_t seed)
{
    static uint32_t prompts[RIG_SEQS][PROMPT];
    static request requests[RIG_SEQS];
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        for (uint32_t j = 0; j < PROMPT; j++) {
            prompts[i][j] = (uint32_t)(fg_hash_mix(seed + i * PROMPT + j) % vocab_size);
        }
        requests[i] = (request){ .prompt = prompts[i],
                                 .prompt_count = PROMPT - i,
                                 .wanted = wanted,
                                 .sampling = { .temperature = (float)i * 0.4f,
                                               .top_p = i == 2 ? 0.9f : 1.0f,
                                               .top_k = i == 3 ? 20 : 0,
                                               .seed = seed },
                                 .block_ids = block_ids + (size_t)i * blocks_each,
                                 .block_count = blocks_each };
    }
    return rig_drive(d, requests, RIG_SEQS, ahead, seed);
}

Test(engine_alloc, ten_thousand_simulated_steps_take_no_memory)
{
    for (int quick = 0; quick < 2; quick++) {
        static sim_rig rig;
        uint64_t at_open = atomic_load(&allocations);
        sim_rig_open(&rig, quick == 1);
        uint64_t before = atomic_load(&allocations);
        cr_assert_neq(before, at_open, "the counter counts");
        uint64_t steps = 0;
        for (uint64_t seed = 1; steps < 10000; seed++) {
            steps += drive_all(&rig.driver, SIM_VOCAB, rig.block_ids, SIM_BLOCKS / RIG_SEQS, 200,
                               seed % 2 == 0, seed);
        }
        cr_assert_eq(atomic_load(&allocations), before, "in %d steps", (int)steps);
        fg_engine_close(rig.driver.engine);
    }
}

static void check_model(const char *name, fg_runner_options options)
{
    options.context_max = RIG_TOKENS;
    options.seqs_max = RIG_SEQS;
    options.kv_dtype = FG_F16;
    options.thread_count = 2;
    model_rig rig;
    uint64_t at_open = atomic_load(&allocations);
    model_rig_open(&rig, &options);
    uint64_t before = atomic_load(&allocations);
    cr_assert_neq(before, at_open, "the counter counts");
    uint64_t steps = 0;
    for (int ahead = 0; ahead < 2; ahead++) {
        steps += drive_all(&rig.driver, rig.runner.hparams.vocab_size, rig.runner.block_ids,
                           rig.runner.blocks_per_seq, 200, ahead == 1, 5);
    }
    fg_step_copy copies[] = { { .kind = FG_COPY_OUT, .from = 0, .to = 0 },
                              { .kind = FG_COPY_BLOCK, .from = 1, .to = 2 },
                              { .kind = FG_COPY_IN, .from = 0, .to = 3 } };
    fg_step_digest digest = { .block_id = 3 };
    fg_step step = { .copies = copies, .copy_count = 3, .digests = &digest, .digest_count = 1 };
    rig_step(&rig.driver, &step);
    cr_assert_eq(atomic_load(&allocations), before, "%s: in %d steps", name, (int)steps);
    cr_assert(steps >= 400);
    model_rig_close(&rig);
}

Test(engine_alloc, steps_of_a_model_take_no_memory)
{
    static const fg_tiny_llama models[] = {
        { .seed = 9, .weight_type = FG_Q8_0 },
        { .seed = 9, .weight_type = FG_Q8_0, .arch = FG_TINY_QWEN2 },
        { .seed = 9, .weight_type = FG_Q8_0, .arch = FG_TINY_QWEN3 },
        { .seed = 9, .weight_type = FG_Q8_0, .arch = FG_TINY_QWEN2MOE },
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        size_t size_bytes;
        void *bytes = fg_gguf_build_tiny_llama(&models[i], &size_bytes);
        check_model("tiny", (fg_runner_options){ .bytes = bytes, .size_bytes = size_bytes });
        free(bytes);
    }
}

Test(engine_alloc, steps_of_stories260k_take_no_memory)
{
    const char *corpus = getenv("FORGE_CORPUS");
    if (corpus == NULL) {
        cr_skip("FORGE_CORPUS is not set\n");
    }
    char path[4096];
    snprintf(path, sizeof path, "%s/models/stories260K-f32.gguf", corpus);
    check_model("stories260K", (fg_runner_options){ .path = path });
}
