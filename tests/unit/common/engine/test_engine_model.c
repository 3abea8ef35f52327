#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/core_share.h"
#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/support/gguf_builder.h"
#include "common/engine/runner.h"
#include "tests/support/test.h"

/* Longer than the tallest tiles of the forward pass, so that tiles meet inside a step; and chunks that are one tile,
 * taller than usual: of weights of less than a byte, and of others. */
enum { PROMPT = 400, TALL = 150, TALLER = 300, STEPS = 6, CONTEXT = 448 };

typedef struct trace {
    uint32_t tokens[STEPS];
    uint64_t digests[STEPS];
} trace;

static void make_prompt(uint64_t seed, uint32_t vocab_size, uint32_t count, uint32_t *tokens)
{
    fg_rng rng = { .state = seed };
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (uint32_t)fg_rng_below(&rng, vocab_size);
    }
}

static void open_runner(const fg_runner_options *options, fg_runner *runner)
{
    fg_error err = { 0 };
    cr_assert_eq(fg_runner_open(options, runner, &err), FG_OK, "%s", err.text);
}

/* The prompt in chunks, then greedy steps; the digest of every logits row that chose a token. */
static trace run_solo(fg_runner *runner, uint32_t seq, const uint32_t *prompt, uint32_t count,
                      uint32_t chunk)
{
    trace t;
    fg_error err = { 0 };
    fg_step_seq last = { .sample = true, .want_digest = true, .sampling = { .top_p = 1.0f } };
    cr_assert_eq(fg_runner_prompt(runner, seq, prompt, count, chunk, &last, &err), FG_OK, "%s",
                 err.text);
    for (uint32_t i = 0; i < STEPS; i++) {
        t.tokens[i] = last.token_out;
        t.digests[i] = last.digest_out;
        last = fg_runner_seq(runner, seq, &t.tokens[i], count + i, 1);
        last.sample = true;
        last.want_digest = true;
        fg_step step = { .seqs = &last, .seq_count = 1 };
        cr_assert_eq(fg_runner_step(runner, &step, &err), FG_OK, "%s", err.text);
    }
    return t;
}

static const struct {
    const char *name;
    fg_tiny_llama model;
    uint32_t kv_dtype;
} models[] = {
    { "f32", { .seed = 1, .weight_type = FG_F32 }, FG_F16 },
    { "q4_1, rope freqs", { .seed = 2, .weight_type = FG_Q4_1, .rope_freqs = true }, FG_F16 },
    { "q8_0, own head, f32 kv",
      { .seed = 3, .weight_type = FG_Q8_0, .separate_output = true },
      FG_F32 },
    { "q6_k", { .seed = 4, .weight_type = FG_Q6_K }, FG_F16 },
    { "bf16, one kv head", { .seed = 5, .weight_type = FG_BF16, .kv_head_count = 1 }, FG_F16 },
    { "q4_1, bf16 kv", { .seed = 6, .weight_type = FG_Q4_1 }, FG_BF16 },
    { "qwen2, q5_0", { .seed = 7, .arch = FG_TINY_QWEN2, .weight_type = FG_Q5_0 }, FG_BF16 },
    { "qwen2, q4_k, int8 kv",
      { .seed = 8, .arch = FG_TINY_QWEN2, .weight_type = FG_Q4_K, .kv_head_count = 1 },
      FG_I8 },
    { "qwen3, f16",
      { .seed = 9, .arch = FG_TINY_QWEN3, .weight_type = FG_F16, .head_dim = 32 },
      FG_F16 },
    { "qwen3, bf16, heads of no whole register",
      { .seed = 10, .arch = FG_TINY_QWEN3, .weight_type = FG_BF16, .head_dim = 8 },
      FG_BF16 },
    { "phi3, q4_0, heads of 96",
      { .seed = 11, .arch = FG_TINY_PHI3, .weight_type = FG_Q4_0, .head_dim = 96 },
      FG_BF16 },
    { "granite, q8_0", { .seed = 12, .arch = FG_TINY_GRANITE, .weight_type = FG_Q8_0 }, FG_F16 },
    { "gemma3, q5_0",
      { .seed = 13, .arch = FG_TINY_GEMMA3, .weight_type = FG_Q5_0, .kv_head_count = 1 },
      FG_BF16 },
    { "gemma3, f32, int8 kv",
      { .seed = 14, .arch = FG_TINY_GEMMA3, .weight_type = FG_F32, .layer_count = 3 },
      FG_I8 },
    { "qwen3moe, q4_k", { .seed = 13, .arch = FG_TINY_QWEN3MOE, .weight_type = FG_Q4_K }, FG_BF16 },
    { "mixtral, bf16", { .seed = 14, .arch = FG_TINY_MIXTRAL, .weight_type = FG_BF16 }, FG_BF16 },
    { "qwen2moe, q6_k", { .seed = 17, .arch = FG_TINY_QWEN2MOE, .weight_type = FG_Q6_K }, FG_BF16 },
    { "qwen2moe, f16", { .seed = 18, .arch = FG_TINY_QWEN2MOE, .weight_type = FG_F16 }, FG_F16 },
    { "mixtral, f16", { .seed = 15, .arch = FG_TINY_MIXTRAL, .weight_type = FG_F16 }, FG_F16 },
    { "q4_k beside q8_0", { .seed = 19, .weight_type = FG_Q4_K, .mixed_type = FG_Q8_0 }, FG_BF16 },
    { "qwen2, q6_k beside q5_0",
      { .seed = 20, .arch = FG_TINY_QWEN2, .weight_type = FG_Q6_K, .mixed_type = FG_Q5_0 },
      FG_BF16 },
    { "qwen2moe, q5_k beside q4_0",
      { .seed = 21, .arch = FG_TINY_QWEN2MOE, .weight_type = FG_Q5_K, .mixed_type = FG_Q4_0 },
      FG_BF16 },
    { "granitemoe, q5_1",
      { .seed = 16, .arch = FG_TINY_GRANITEMOE, .weight_type = FG_Q5_1, .ffn_length = 96 },
      FG_F16 },
};
enum { MODEL_COUNT = sizeof models / sizeof models[0], FIRST_QWEN2 = 6, FIRST_QWEN3 = 8 };

static const struct variant {
    const char *isa;
    uint32_t threads, chunk;
    bool reverse_blocks;
} variants[] = {
    { "plain", 1, PROMPT, false }, { "plain", 2, 7, true },      { "auto", 1, 1, false },
    { "auto", 1, 7, true },        { "auto", 1, 64, false },     { "auto", 1, PROMPT, false },
    { "auto", 2, 1, true },        { "auto", 2, 64, false },     { "auto", 2, PROMPT, true },
    { "auto", 1, TALL, true },     { "auto", 2, TALLER, false },
};

/* Sanitizers look for other things than bits, and are slow: there each model takes every so many-th of them. */
#ifdef FORGE_SANITIZED
enum { TAKEN = 4 };
#else
enum { TAKEN = 1 };
#endif

Test(engine_model, digests_do_not_depend_on_chunks_threads_isa_or_block_ids)
{
    for (size_t m = 0; m < MODEL_COUNT; m++) {
        size_t size_bytes;
        void *bytes = fg_gguf_build_tiny_llama(&models[m].model, &size_bytes);
        trace want = { 0 };
        for (size_t v = m % TAKEN; v < sizeof variants / sizeof variants[0]; v += TAKEN) {
            fg_runner runner;
            fg_runner_options options = { .bytes = bytes,
                                          .size_bytes = size_bytes,
                                          .context_max = CONTEXT,
                                          .seqs_max = 3,
                                          .kv_dtype = models[m].kv_dtype,
                                          .thread_count = variants[v].threads,
                                          .cpu_isa = variants[v].isa,
                                          .reverse_blocks = variants[v].reverse_blocks };
            open_runner(&options, &runner);
            uint32_t prompt[PROMPT];
            make_prompt(40 + m, runner.hparams.vocab_size, PROMPT, prompt);
            trace got = run_solo(&runner, 1, prompt, PROMPT, variants[v].chunk);
            want = v == m % TAKEN ? got : want;
            cr_assert(memcmp(&got, &want, sizeof got) == 0, "%s: isa %s, %u threads, chunk %u",
                      models[m].name, variants[v].isa, variants[v].threads, variants[v].chunk);
            fg_runner_close(&runner);
        }
        cr_assert_neq(want.digests[0], want.digests[1], "%s: the rows differ", models[m].name);
        free(bytes);
    }
}

/* Two shares of which one computes, and a clock by which the other hears of it now and then: the width is
 * another one for about every second piece. */
typedef struct flickering {
    char directory[64];
    _Atomic uint64_t calls;
    fg_core_share *own, *other;
} flickering;

static uint64_t jump(void *ctx)
{
    flickering *f = ctx;
    return 1000000000u + (fg_hash_mix(atomic_fetch_add(&f->calls, 1)) & 1) * 500000000u;
}

static void open_flickering(flickering *f, uint32_t threads)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (size_t cpu = 0; cpu < threads; cpu++) {
        CPU_SET(cpu, &cpus);
    }
    fg_clock clock = { .now_ns = jump, .ctx = f };
    snprintf(f->directory, sizeof f->directory, "/tmp/fg_flickering_XXXXXX");
    cr_assert_not_null(mkdtemp(f->directory));
    fg_core_share_options options = { .directory = f->directory,
                                      .cpus = &cpus,
                                      .cores = threads,
                                      .threads = threads,
                                      .clock = &clock };
    cr_assert_eq(fg_core_share_open(&options, &f->own, NULL), FG_OK);
    cr_assert_eq(fg_core_share_open(&options, &f->other, NULL), FG_OK);
    fg_core_share_begin(f->other);
}

static void close_flickering(flickering *f)
{
    char path[128];
    fg_core_share_close(f->own);
    fg_core_share_close(f->other);
    snprintf(path, sizeof path, "%s/forge-cores-%u-v1", f->directory, (unsigned)geteuid());
    unlink(path);
    rmdir(f->directory);
}

Test(engine_model, digests_do_not_depend_on_a_width_that_changes_within_runs)
{
    for (size_t m = 0; m < MODEL_COUNT; m++) {
        size_t size_bytes;
        void *bytes = fg_gguf_build_tiny_llama(&models[m].model, &size_bytes);
        trace want = { 0 };
        for (uint32_t threads = 1; threads <= 4; threads++) {
            flickering f = { .calls = threads };
            fg_runner runner;
            fg_runner_options options = { .bytes = bytes,
                                          .size_bytes = size_bytes,
                                          .context_max = CONTEXT,
                                          .seqs_max = 3,
                                          .kv_dtype = models[m].kv_dtype,
                                          .thread_count = threads };
            if (threads > 1) {
                open_flickering(&f, threads);
                options.share = f.own;
            }
            open_runner(&options, &runner);
            uint32_t prompt[PROMPT];
            make_prompt(40 + m, runner.hparams.vocab_size, PROMPT, prompt);
            trace got = run_solo(&runner, 1, prompt, PROMPT, 64);
            want = threads == 1 ? got : want;
            cr_assert(memcmp(&got, &want, sizeof got) == 0, "%s: %u threads", models[m].name,
                      threads);
            fg_runner_close(&runner);
            if (threads > 1) {
                cr_assert(fg_core_share_shared_steps(f.own) > 0);
                close_flickering(&f);
            }
        }
        free(bytes);
    }
}

enum { SEQS = 5 };

/* One live request of the batch test. */
typedef struct request {
    uint32_t prompt[PROMPT];
    uint32_t prompt_count;
    uint32_t position; /* tokens run */
    uint32_t emitted;
    trace got;
} request;

/* The next part of a request within `budget` tokens; false when it has all it wants. */
static bool next_part(const fg_runner *runner, request *r, uint32_t seq, uint32_t budget,
                      fg_step_seq *part)
{
    if (r->emitted == STEPS) {
        return false;
    }
    if (r->position < r->prompt_count) {
        uint32_t left = r->prompt_count - r->position;
        uint32_t count = left < budget ? left : budget;
        *part = fg_runner_seq(runner, seq, r->prompt + r->position, r->position, count);
        part->sample = count == left;
    } else {
        *part = fg_runner_seq(runner, seq, &r->got.tokens[r->emitted - 1], r->position, 1);
        part->sample = true;
    }
    part->want_digest = part->sample;
    return true;
}

static void take_part(request *r, const fg_step_seq *part)
{
    r->position += part->token_count;
    if (part->sample) {
        r->got.tokens[r->emitted] = part->token_out;
        r->got.digests[r->emitted] = part->digest_out;
        r->emitted++;
    }
}

static void check_neighbours(size_t model)
{
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&models[model].model, &size_bytes);
    fg_runner runner;
    fg_runner_options options = { .bytes = bytes,
                                  .size_bytes = size_bytes,
                                  .context_max = CONTEXT,
                                  .seqs_max = SEQS,
                                  .kv_dtype = models[model].kv_dtype,
                                  .thread_count = 2 };
    open_runner(&options, &runner);
    static request requests[SEQS];
    memset(requests, 0, sizeof requests);
    trace want[SEQS];
    for (uint32_t s = 0; s < SEQS; s++) {
        requests[s].prompt_count = PROMPT - 31 * s;
        make_prompt(60 + s, runner.hparams.vocab_size, requests[s].prompt_count,
                    requests[s].prompt);
        want[s] = run_solo(&runner, SEQS - 1 - s, requests[s].prompt, requests[s].prompt_count, 33);
    }
    fg_rng rng = { .state = 61 };
    for (;;) {
        fg_step_seq parts[SEQS];
        uint32_t owners[SEQS];
        fg_step step = { .seqs = parts };
        for (uint32_t s = 0; s < SEQS; s++) {
            uint32_t budget = 1 + (uint32_t)fg_rng_below(&rng, 60);
            owners[step.seq_count] = s;
            step.seq_count += next_part(&runner, &requests[s], s, budget, &parts[step.seq_count]);
        }
        if (step.seq_count == 0) {
            break;
        }
        fg_error err = { 0 };
        cr_assert_eq(fg_runner_step(&runner, &step, &err), FG_OK, "%s", err.text);
        for (uint32_t i = 0; i < step.seq_count; i++) {
            take_part(&requests[owners[i]], &parts[i]);
        }
    }
    for (uint32_t s = 0; s < SEQS; s++) {
        cr_assert(memcmp(&requests[s].got, &want[s], sizeof want[s]) == 0, "%s: request %u",
                  models[model].name, s);
    }
    fg_runner_close(&runner);
    free(bytes);
}

Test(engine_model, digests_do_not_depend_on_batch_neighbours)
{
    static const size_t some[] = { 1, FIRST_QWEN2, FIRST_QWEN3 };
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        check_neighbours(some[i]);
    }
}

static void open_tiny(fg_runner *runner, void **bytes_out)
{
    size_t size_bytes;
    *bytes_out = fg_gguf_build_tiny_llama(&models[0].model, &size_bytes);
    fg_runner_options options = { .bytes = *bytes_out,
                                  .size_bytes = size_bytes,
                                  .context_max = CONTEXT,
                                  .seqs_max = 2,
                                  .step_tokens_max = 40,
                                  .kv_dtype = FG_F16 };
    open_runner(&options, runner);
}

enum { VERIFY_SEQS = 3, VERIFY_TOKENS = 45, VERIFY_CONTEXT = 64 };

/* Returns the model's file. */
static void *open_model(size_t index, uint32_t seqs, fg_runner *runner)
{
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&models[index].model, &size_bytes);
    fg_runner_options options = { .bytes = bytes,
                                  .size_bytes = size_bytes,
                                  .context_max = VERIFY_CONTEXT,
                                  .seqs_max = seqs,
                                  .kv_dtype = models[index].kv_dtype };
    open_runner(&options, runner);
    return bytes;
}

static const fg_bias one_bias = { 3, 0.25f };
static const fg_shape wishes = { .biases = &one_bias,
                                 .bias_count = 1,
                                 .repetition = 1.25f,
                                 .frequency = 0.125f,
                                 .presence = 0.0625f };
/* Of two of three; both have a temperature, or none. */
static const fg_shape *wishes_of(uint32_t seq)
{
    return seq == 1 ? NULL : &wishes;
}

/* Three sequences, each with the last `rows` of its tokens asked for at once: 3, 20 and all 45, more than
 * the head takes at a time, and so that sequences meet inside such a part. */
static void verify_at_once(fg_runner *runner, const uint32_t *tokens, const uint32_t *rows,
                           fg_step_seq *seqs, float *logits)
{
    static uint32_t chosen[VERIFY_SEQS][VERIFY_TOKENS];
    static uint64_t digests[VERIFY_SEQS][VERIFY_TOKENS];
    static fg_logprobs logprobs[VERIFY_SEQS][VERIFY_TOKENS];
    for (uint32_t s = 0; s < VERIFY_SEQS; s++) {
        seqs[s] = fg_runner_seq(runner, s, tokens + s, 0, VERIFY_TOKENS);
        seqs[s].sample = true;
        seqs[s].want_digest = s != 1;
        seqs[s].choice = s;
        seqs[s].sampling = (fg_sampling){ .temperature = (float)s, .top_p = 1.0f, .seed = 6 };
        seqs[s].sample_rows = rows[s];
        seqs[s].tokens_out = chosen[s];
        seqs[s].digests_out = s == 2 ? NULL : digests[s];
        seqs[s].shape = wishes_of(s);
        seqs[s].history = tokens + s;
        seqs[s].prompt_count = 7;
        seqs[s].logprobs_out = s == 0 ? NULL : logprobs[s];
        seqs[s].likely_count = 4;
    }
    seqs[1].logits_out = logits;
    fg_step step = { .seqs = seqs, .seq_count = VERIFY_SEQS };
    fg_error err = { 0 };
    cr_assert_eq(fg_runner_step(runner, &step, &err), FG_OK, "%s", err.text);
}

/* Where nobody wants more than greedy tokens, no logits are kept; a digest or another temperature in the same part
 * of the head brings them back. */
Test(engine_model, greedy_choices_are_the_same_without_logits)
{
    enum { ALONE, BESIDE_A_DIGEST, BESIDE_A_TEMPERATURE, WITH_DIGESTS, KINDS };
    for (size_t m = 0; m < MODEL_COUNT; m++) {
        fg_runner runner;
        void *bytes = open_model(m, 2, &runner);
        uint32_t tokens[VERIFY_TOKENS + 1];
        make_prompt(95 + m, runner.hparams.vocab_size, VERIFY_TOKENS + 1, tokens);
        uint32_t chosen[KINDS][VERIFY_TOKENS];
        uint64_t digests[VERIFY_TOKENS];
        for (uint32_t kind = 0; kind < KINDS; kind++) {
            fg_step_seq seqs[2];
            for (uint32_t s = 0; s < 2; s++) {
                seqs[s] = fg_runner_seq(&runner, s, tokens + s, 0, s == 0 ? VERIFY_TOKENS : 5);
                seqs[s].sample = true;
                seqs[s].sampling.top_p = 1.0f;
            }
            seqs[0].sample_rows = VERIFY_TOKENS;
            seqs[0].tokens_out = chosen[kind];
            seqs[0].digests_out = kind == WITH_DIGESTS ? digests : NULL;
            seqs[1].want_digest = kind == BESIDE_A_DIGEST;
            seqs[1].sampling.temperature = kind == BESIDE_A_TEMPERATURE ? 1.0f : 0.0f;
            fg_step step = { .seqs = seqs, .seq_count = 2 };
            cr_assert_eq(fg_runner_step(&runner, &step, NULL), FG_OK);
            cr_assert_eq(seqs[0].token_out, chosen[kind][VERIFY_TOKENS - 1]);
        }
        for (uint32_t kind = 0; kind < WITH_DIGESTS; kind++) {
            cr_assert(memcmp(chosen[kind], chosen[WITH_DIGESTS], sizeof chosen[kind]) == 0,
                      "%s, %u", models[m].name, kind);
        }
        fg_runner_close(&runner);
        free(bytes);
    }
}

/* A float of the model that is no number. */
typedef struct damage {
    const char *name, *tensor;
    uint32_t element;
    float value;
    bool everyone; /* else only sequences that have token ODD */
} damage;

enum { DAMAGED_SEQS = 4, DAMAGED_TOKENS = 9, ODD = 7, TINY_WIDTH = 64 };

static const damage damages[] = {
    { "NaN in the last norm", "output_norm.weight", 3, NAN, true },
    { "infinity in the last norm", "output_norm.weight", 63, INFINITY, true },
    { "NaN in a layer", "blk.0.ffn_norm.weight", 5, NAN, true },
    { "infinity in a layer", "blk.1.attn_norm.weight", 0, -INFINITY, true },
    { "a token's embedding", "token_embd.weight", ODD *TINY_WIDTH + 1, NAN, false },
};

/* Half of them have the odd token last; the last two draw, or want a digest, so that logits are kept. */
static void choose_once(fg_runner *runner, uint32_t count, fg_step_seq *seqs)
{
    static uint32_t tokens[DAMAGED_SEQS][DAMAGED_TOKENS];
    for (uint32_t s = 0; s < count; s++) {
        for (uint32_t i = 0; i < DAMAGED_TOKENS; i++) {
            tokens[s][i] = 10 + 3 * i + s;
        }
        tokens[s][DAMAGED_TOKENS - 1] = s % 2 == 0 ? ODD : 1;
        seqs[s] = fg_runner_seq(runner, s, tokens[s], 0, DAMAGED_TOKENS);
        seqs[s].sample = true;
        seqs[s].want_digest = s == 3;
        seqs[s].sampling = (fg_sampling){ .temperature = s < 2 ? 0 : 1, .top_p = 1.0f, .seed = s };
    }
    fg_error err = { 0 };
    fg_step step = { .seqs = seqs, .seq_count = count };
    cr_assert_eq(fg_runner_step(runner, &step, &err), FG_OK, "%s", err.text);
}

static void set_element(const void *bytes, size_t size_bytes, const damage *d)
{
    fg_error err = { 0 };
    fg_weights *weights;
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s", err.text);
    const fg_tensor *tensor = fg_weights_find(weights, d->tensor);
    cr_assert(tensor != NULL && tensor->type == FG_F32, "%s", d->name);
    ((float *)(uintptr_t)tensor->data)[d->element] = d->value;
    fg_weights_close(weights);
}

/* The choices of a small model with these damages. */
static void choose_damaged(uint32_t weight_type, const damage *list, uint32_t damage_count,
                           uint32_t count, fg_step_seq *seqs)
{
    size_t size_bytes;
    fg_tiny_llama model = { .seed = 9, .weight_type = weight_type, .separate_output = true };
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    for (uint32_t i = 0; i < damage_count; i++) {
        set_element(bytes, size_bytes, &list[i]);
    }
    fg_runner runner;
    fg_runner_options options = { .bytes = bytes,
                                  .size_bytes = size_bytes,
                                  .context_max = VERIFY_CONTEXT,
                                  .seqs_max = DAMAGED_SEQS };
    open_runner(&options, &runner);
    choose_once(&runner, count, seqs);
    fg_runner_close(&runner);
    free(bytes);
}

static void check_damages(uint32_t weight_type)
{
    fg_step_seq sound[DAMAGED_SEQS], seqs[DAMAGED_SEQS];
    choose_damaged(weight_type, NULL, 0, DAMAGED_SEQS, sound);
    for (uint32_t s = 0; s < DAMAGED_SEQS; s++) {
        cr_assert(!sound[s].broken_out);
    }
    for (size_t i = 0; i < 2 * sizeof damages / sizeof damages[0]; i++) {
        const damage *d = &damages[i / 2];
        uint32_t count = i % 2 == 0 ? DAMAGED_SEQS : 2; /* the first two want no logits */
        if (!d->everyone && weight_type != FG_F32) {
            continue; /* it is not made of floats */
        }
        choose_damaged(weight_type, d, 1, count, seqs);
        for (uint32_t s = 0; s < count; s++) {
            bool broken = d->everyone || s % 2 == 0;
            cr_assert_eq(seqs[s].broken_out, broken, "type %u, %s: %u of %u", weight_type, d->name,
                         s, count);
            cr_assert(broken || (seqs[s].token_out == sound[s].token_out &&
                                 seqs[s].digest_out == sound[s].digest_out),
                      "%s: %u of %u is disturbed", d->name, s, count);
        }
    }
}

Test(engine_model, what_is_no_number_is_said_of_whom_it_meets)
{
    static const uint32_t types[] = { FG_F32, FG_BF16, FG_Q4_1, FG_Q8_0 };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        check_damages(types[i]);
    }
}

/* The state is fine, and the head overflows: whichever sign the state has, one of two outputs is +infinity. */
Test(engine_model, a_head_that_overflows_is_no_number)
{
    static const damage both[] = {
        { "", "output.weight", 20 * TINY_WIDTH, INFINITY, true },
        { "", "output.weight", 21 * TINY_WIDTH, -INFINITY, true },
    };
    fg_step_seq seqs[DAMAGED_SEQS];
    for (uint32_t count = 2; count <= DAMAGED_SEQS; count += 2) {
        choose_damaged(FG_F32, both, 2, count, seqs);
        for (uint32_t s = 0; s < count; s++) {
            cr_assert(seqs[s].broken_out, "%u of %u", s, count);
        }
    }
}

/* The digest of a row of logits with another element in this vector; NULL: with its own. */
static uint64_t digest_with(fg_tiny_arch arch, const char *tensor)
{
    size_t size_bytes;
    fg_tiny_llama model = { .seed = 9, .arch = arch };
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    if (tensor != NULL) {
        set_element(bytes, size_bytes, &(damage){ .tensor = tensor, .element = 9, .value = 3 });
    }
    fg_runner runner;
    fg_runner_options options = {
        .bytes = bytes, .size_bytes = size_bytes, .context_max = CONTEXT, .seqs_max = 1
    };
    open_runner(&options, &runner);
    uint32_t prompt[9];
    make_prompt(96, runner.hparams.vocab_size, 9, prompt);
    uint64_t digest = run_solo(&runner, 0, prompt, 9, 9).digests[0];
    fg_runner_close(&runner);
    free(bytes);
    return digest;
}

Test(engine_model, every_vector_of_an_architecture_counts)
{
    static const struct {
        fg_tiny_arch arch;
        const char *tensor;
    } vectors[] = { { FG_TINY_QWEN2, "blk.1.attn_q.bias" },
                    { FG_TINY_QWEN2, "blk.1.attn_k.bias" },
                    { FG_TINY_QWEN2, "blk.1.attn_v.bias" },
                    { FG_TINY_QWEN3, "blk.1.attn_q_norm.weight" },
                    { FG_TINY_QWEN3, "blk.1.attn_k_norm.weight" } };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        cr_assert_neq(digest_with(vectors[i].arch, vectors[i].tensor),
                      digest_with(vectors[i].arch, NULL), "%s", vectors[i].tensor);
    }
}

Test(engine_model, several_choices_of_one_step_are_those_of_single_steps)
{
    static const uint32_t rows[VERIFY_SEQS] = { 3, 20, VERIFY_TOKENS };
    for (size_t m = 0; m < MODEL_COUNT; m++) {
        fg_runner runner;
        void *bytes = open_model(m, VERIFY_SEQS, &runner);
        uint32_t vocab_size = runner.hparams.vocab_size;
        size_t row_bytes = vocab_size * sizeof(float);
        float *logits = fg_mem_array(rows[1], row_bytes);
        uint32_t tokens[VERIFY_TOKENS + VERIFY_SEQS];
        make_prompt(90 + m, vocab_size, VERIFY_TOKENS + VERIFY_SEQS, tokens);
        fg_step_seq seqs[VERIFY_SEQS];
        verify_at_once(&runner, tokens, rows, seqs, logits);
        for (uint32_t s = 0; s < VERIFY_SEQS; s++) {
            fg_step_seq one = { 0 };
            for (uint32_t i = 0; i < VERIFY_TOKENS; i++) {
                one = fg_runner_seq(&runner, s, tokens + s + i, i, 1);
                one.sample = true;
                one.want_digest = true;
                one.choice = s;
                one.sampling = seqs[s].sampling;
                one.shape = wishes_of(s);
                one.history = tokens + s;
                one.prompt_count = 7;
                fg_logprobs logprobs;
                one.logprobs_out = &logprobs;
                one.likely_count = 4;
                fg_step step = { .seqs = &one, .seq_count = 1 };
                cr_assert_eq(fg_runner_step(&runner, &step, NULL), FG_OK);
                uint32_t first = VERIFY_TOKENS - rows[s];
                if (i < first) {
                    continue;
                }
                cr_assert_eq(seqs[s].tokens_out[i - first], one.token_out, "%s: %u at %u",
                             models[m].name, s, i);
                cr_assert(s == 0 || memcmp(&seqs[s].logprobs_out[i - first], &logprobs,
                                           sizeof logprobs) == 0);
                cr_assert(logprobs.chosen <= 0 && logprobs.count == 4);
                cr_assert(s == 2 || seqs[s].digests_out[i - first] == one.digest_out,
                          "%s: %u at %u", models[m].name, s, i);
                cr_assert(s != 1 || fg_hash64(logits + (size_t)(i - first) * vocab_size, row_bytes,
                                              0) == one.digest_out);
            }
            cr_assert_eq(seqs[s].token_out, one.token_out);
            cr_assert(!seqs[s].want_digest || seqs[s].digest_out == one.digest_out);
        }
        fg_mem_free(logits);
        fg_runner_close(&runner);
        free(bytes);
    }
}

Test(engine_model, logits_digests_and_block_digests_are_of_the_bytes_seen)
{
    fg_runner runner;
    void *bytes;
    open_tiny(&runner, &bytes);
    uint32_t vocab_size = runner.hparams.vocab_size;
    float *logits = fg_mem_array(vocab_size, sizeof(float));
    uint32_t tokens[20];
    make_prompt(70, vocab_size, 20, tokens);
    fg_step_seq seq = fg_runner_seq(&runner, 0, tokens, 0, 20);
    seq.want_digest = true;
    seq.sample = true;
    seq.logits_out = logits;
    fg_step_digest digests[2] = { { .block_id = 1 }, { .block_id = 0 } };
    fg_step step = { .seqs = &seq, .seq_count = 1, .digests = digests, .digest_count = 2 };
    cr_assert_eq(fg_runner_step(&runner, &step, NULL), FG_OK);
    cr_assert_eq(seq.digest_out, fg_hash64(logits, vocab_size * sizeof(float), 0));
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab_size; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    cr_assert_eq(seq.token_out, best, "greedy takes the highest logit");
    for (int i = 0; i < 2; i++) {
        const char *block =
            (const char *)runner.arena + digests[i].block_id * runner.layout.block_bytes;
        cr_assert_eq(digests[i].digest_out, fg_hash64(block, runner.layout.block_bytes, 0));
    }
    cr_assert(step.compute_ns_out > 0);
    cr_assert_str_eq(fg_engine_numerics_class(runner.engine), "cpu/k7/kv-f16/tp1");
    fg_mem_free(logits);
    fg_runner_close(&runner);
    free(bytes);
}

Test(engine_model, a_copied_block_continues_elsewhere)
{
    /* What a hand-over does: the blocks of a prefill, copied to other ids, give the same bits. */
    fg_runner runner;
    void *bytes;
    open_tiny(&runner, &bytes);
    uint32_t tokens[34];
    make_prompt(71, runner.hparams.vocab_size, 34, tokens);
    trace want = run_solo(&runner, 0, tokens, 34, 40);
    size_t seq_bytes = runner.blocks_per_seq * runner.layout.block_bytes;
    memcpy((char *)runner.arena + seq_bytes, runner.arena, seq_bytes);
    fg_step_seq seq = fg_runner_seq(&runner, 1, want.tokens, 34, 1);
    seq.sample = true;
    seq.want_digest = true;
    fg_step step = { .seqs = &seq, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(&runner, &step, NULL), FG_OK);
    cr_assert_eq(seq.token_out, want.tokens[1]);
    cr_assert_eq(seq.digest_out, want.digests[1]);
    fg_runner_close(&runner);
    free(bytes);
}

static const struct {
    const char *name;
    fg_engine_options change; /* fields that differ; 0: as it should be */
    const char *want;
} refusals[] = {
    { "isa", { .cpu_isa = "mmx" }, "mmx" },
    { "threads", { .thread_count = 9999 }, "threads" },
    { "layout", { .layout = { .layer_count = 77 } }, "layout" },
    { "step tokens", { .limits = { .context_max = UINT32_MAX } }, "limits" },
};

static fg_engine_options options_of(fg_runner *runner)
{
    return (fg_engine_options){
        .weights = runner->weights,
        .hparams = &runner->hparams,
        .layout = runner->layout,
        .arena = runner->arena,
        .block_count = runner->block_count,
        .limits = { .step_tokens_max = 8, .step_seqs_max = 2, .context_max = CONTEXT },
        .thread_count = 2,
        .cpu_isa = "auto"
    };
}

Test(engine_model, refuses_options_that_do_not_fit)
{
    fg_runner runner;
    void *bytes;
    open_tiny(&runner, &bytes);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        fg_engine_options options = options_of(&runner);
        const fg_engine_options *change = &refusals[i].change;
        options.cpu_isa = change->cpu_isa != NULL ? change->cpu_isa : options.cpu_isa;
        options.thread_count = change->thread_count ? change->thread_count : options.thread_count;
        if (change->layout.layer_count != 0) {
            options.layout.layer_count = change->layout.layer_count;
        }
        if (change->limits.context_max != 0) {
            options.limits.context_max = change->limits.context_max;
        }
        fg_engine *engine = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_engine_open_model(&options, &engine, &err), FG_BAD_INPUT, "%s",
                     refusals[i].name);
        cr_assert_not_null(strstr(err.text, refusals[i].want), "%s: %s", refusals[i].name,
                           err.text);
        cr_assert_null(engine);
    }
    fg_runner_close(&runner);
    free(bytes);
}

static bool open_and_close(void *ctx)
{
    fg_engine_options options = options_of(ctx);
    fg_engine *engine;
    if (fg_engine_open_model(&options, &engine, NULL) != FG_OK) {
        return false;
    }
    fg_engine_close(engine);
    return true;
}

Test(engine_model, survives_every_failure_while_opening)
{
    fg_runner runner;
    void *bytes;
    open_tiny(&runner, &bytes);
    cr_assert(fg_fault_each(open_and_close, &runner) >= 9);
    fg_runner_close(&runner);
    free(bytes);
    int failures[2];
    static const fg_tiny_llama two[2] = { { .seed = 9 }, { .seed = 9, .arch = FG_TINY_QWEN2MOE } };
    for (int i = 0; i < 2; i++) {
        size_t size_bytes;
        bytes = fg_gguf_build_tiny_llama(&two[i], &size_bytes);
        open_runner(&(fg_runner_options){ .bytes = bytes,
                                          .size_bytes = size_bytes,
                                          .context_max = CONTEXT,
                                          .thread_count = 2 },
                    &runner);
        failures[i] = fg_fault_each(open_and_close, &runner);
        fg_runner_close(&runner);
        free(bytes);
    }
    cr_assert(failures[1] > failures[0], "experts have memory of their own");
}

Test(engine_model, refuses_experts_that_share_panels)
{
    static const fg_tiny_llama odd[] = {
        { .arch = FG_TINY_MIXTRAL, .ffn_length = 72 },
        { .arch = FG_TINY_QWEN3MOE, .embedding_length = 40 },
    };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        size_t size_bytes;
        void *bytes = fg_gguf_build_tiny_llama(&odd[i], &size_bytes);
        fg_runner runner;
        fg_error err = { 0 };
        fg_runner_options options = {
            .bytes = bytes, .size_bytes = size_bytes, .context_max = CONTEXT, .thread_count = 1
        };
        cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_BAD_INPUT);
        cr_assert_not_null(strstr(err.text, "are not supported (multiples of 16)"), "%s", err.text);
        free(bytes);
    }
}
