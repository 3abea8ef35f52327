/* The engine on a device with memory of its own (apart_plugin.c), whose operations are the CPU's: every bit is the same. */
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/engine/runner.h"
#include "common/engine/weight_store.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"
#include "tests/unit/common/engine/apart.h"

enum { CONTEXT = 64, SEQS = 70, STEP_ROWS = 120, TIER = 4, BLOCKS = SEQS * CONTEXT / 16 };

/* The same model on both, each with an engine of its own beside the runner's, which has a tier. */
typedef struct pair {
    void *bytes;
    fg_runner cpu, apart;
} pair;

static fg_runner_options options_of(const void *bytes, size_t size_bytes, const char *device)
{
    return (fg_runner_options){ .bytes = bytes,
                                .size_bytes = size_bytes,
                                .context_max = CONTEXT,
                                .seqs_max = SEQS,
                                .step_tokens_max = STEP_ROWS,
                                .thread_count = 2,
                                .kv_dtype = FG_BF16,
                                .device = device };
}

static void open_pair(uint32_t weight_type, pair *p)
{
    const fg_tiny_llama model = { .seed = 31, .weight_type = weight_type };
    size_t size_bytes;
    fg_error err = { 0 };
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    p->bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner_options options = options_of(p->bytes, size_bytes, NULL);
    cr_assert_eq(fg_runner_open(&options, &p->cpu, &err), FG_OK, "%s", err.text);
    options.device = "cuda:0";
    cr_assert_eq(fg_runner_open(&options, &p->apart, &err), FG_OK, "%s", err.text);
}

static void close_pair(pair *p)
{
    fg_runner_close(&p->cpu);
    fg_runner_close(&p->apart);
    free(p->bytes);
}

static uint32_t counted(const char *name)
{
    return *(uint32_t *)fg_in_apart(APART_PLUGIN, name);
}

/* What a step's items are to do beyond running their tokens. */
typedef struct wish {
    const char *name;
    bool sample, want_digest;
    float temperature, top_p;
    uint32_t top_k;
    float min_p;
    bool mixed; /* every third item has all the wishes; others are greedy, or drawn and no more */
    bool none_for_some;
} wish;

static const wish wishes[] = {
    { "greedy", .sample = true },
    { "nothing", .sample = false },
    { "digests", .sample = true, .want_digest = true },
    { "drawn", .sample = true, .temperature = 0.8f },
    { "drawn again", .sample = true, .temperature = 1.1f, .top_p = 1.0f, .min_p = 0.05f },
    { "of some", .sample = true, .temperature = 0.9f, .top_p = 0.9f, .mixed = true },
    { "left to the host", .sample = true, .temperature = 0.9f, .top_p = 0.8f, .top_k = 20,
      .mixed = true },
    { "of few", .sample = true, .temperature = 0.9f, .top_p = 1.0f, .top_k = 19 },
    { "drawn, some seen", .sample = true, .want_digest = true, .temperature = 0.9f, .top_p = 1.0f,
      .mixed = true },
    { "not all", .sample = true, .none_for_some = true },
    { "greedy again", .sample = true },
};

static void make_items(const fg_runner *runner, const wish *w, const uint32_t *tokens,
                       uint32_t position, uint32_t count, uint32_t each, fg_step_seq *items)
{
    for (uint32_t i = 0; i < count; i++) {
        items[i] = fg_runner_seq(runner, i, tokens + i * CONTEXT + position, position, each);
        bool plain = w->mixed && i % 3 != 0;
        items[i].sample = w->sample && !(w->none_for_some && i % 2 == 1);
        items[i].want_digest = items[i].sample && w->want_digest && !plain;
        items[i].sampling.temperature = plain && i % 3 == 1 ? 0.0f : w->temperature;
        items[i].sampling.top_p = plain ? 1.0f : w->top_p;
        items[i].sampling.top_k = plain ? 0 : w->top_k;
        items[i].sampling.min_p = w->min_p;
        items[i].sampling.seed = i;
    }
}

/* Both run the same, and every block's bytes are the same then, in the mirror too. */
static void run_both(pair *p, const wish *w, const uint32_t *tokens, uint32_t position,
                     uint32_t count, uint32_t each)
{
    fg_runner *runners[2] = { &p->cpu, &p->apart };
    fg_step_seq items[2][SEQS];
    fg_step_digest digests[2][SEQS];
    for (int r = 0; r < 2; r++) {
        make_items(runners[r], w, tokens, position, count, each, items[r]);
        for (uint32_t i = 0; i < count; i++) {
            digests[r][i] = (fg_step_digest){ .block_id = items[r][i].block_ids[position / 16] };
        }
        fg_step step = {
            .seqs = items[r], .seq_count = count, .digests = digests[r], .digest_count = count
        };
        fg_error err = { 0 };
        cr_assert_eq(fg_runner_step(runners[r], &step, &err), FG_OK, "%s: %s", w->name, err.text);
    }
    size_t block_bytes = p->cpu.layout.block_bytes;
    for (uint32_t i = 0; i < count; i++) {
        const fg_step_seq *want = &items[0][i], *got = &items[1][i];
        cr_assert_eq(got->broken_out, want->broken_out, "%s, %u of %u", w->name, i, count);
        cr_assert(!want->sample || got->token_out == want->token_out, "%s, %u of %u", w->name, i,
                  count);
        cr_assert(!want->want_digest || got->digest_out == want->digest_out, "%s, %u of %u",
                  w->name, i, count);
        cr_assert_eq(digests[1][i].digest_out, digests[0][i].digest_out, "%s, block of %u of %u",
                     w->name, i, count);
        size_t at = digests[0][i].block_id * block_bytes;
        cr_assert(memcmp((char *)p->apart.arena + at, (char *)p->cpu.arena + at, block_bytes) == 0,
                  "%s: the mirror of %u of %u", w->name, i, count);
    }
}

static void make_tokens(const pair *p, uint64_t seed, uint32_t *tokens)
{
    for (uint32_t i = 0; i < SEQS * CONTEXT; i++) {
        tokens[i] = (uint32_t)(fg_hash_mix(seed * 100000 + i) % p->cpu.hparams.vocab_size);
    }
}

Test(engine_apart, steps_of_every_size_give_the_bits_of_the_cpu)
{
    static const uint32_t types[] = { FG_F32, FG_Q8_0, FG_BF16 };
    static const uint32_t sizes[] = { 1, 2, 3, 5, 8, 9, 17, 24, 33, 49, 64, 65, 70 };
    static uint32_t tokens[SEQS * CONTEXT];
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        pair p;
        open_pair(types[t], &p);
        make_tokens(&p, t, tokens);
        uint32_t recorded = counted("apart_recorded"), replayed = counted("apart_replayed");
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            uint32_t each = STEP_ROWS / sizes[s] < 12 ? STEP_ROWS / sizes[s] : 12;
            run_both(&p, &wishes[0], tokens, 0, sizes[s], each);
            for (size_t w = 0; w < sizeof wishes / sizeof wishes[0]; w++) {
                run_both(&p, &wishes[w], tokens, each + (uint32_t)w, sizes[s], 1);
            }
        }
        /* Nine shapes, each without choices, with greedy ones alone, with those of the device's or with logits; a size above 64 has none, and a
         * step in which some choose but not all is run as it is. */
        cr_assert_leq(counted("apart_recorded") - recorded, 9 * 4);
        cr_assert(counted("apart_replayed") - replayed > 30, "%u",
                  counted("apart_replayed") - replayed);
        close_pair(&p);
    }
}

Test(engine_apart, several_choices_of_a_step_and_whole_logits_are_the_same)
{
    static uint32_t tokens[SEQS * CONTEXT];
    pair p;
    open_pair(FG_Q8_0, &p);
    make_tokens(&p, 9, tokens);
    uint32_t vocab_size = p.cpu.hparams.vocab_size;
    enum { ROWS = 20 };
    for (int with_logits = 0; with_logits < 2; with_logits++) {
        fg_runner *runners[2] = { &p.cpu, &p.apart };
        uint32_t chosen[2][ROWS];
        float *logits[2];
        for (int r = 0; r < 2; r++) {
            logits[r] = fg_mem_array((size_t)ROWS * vocab_size, sizeof(float));
            fg_step_seq item = fg_runner_seq(runners[r], 0, tokens, 0, ROWS + 4);
            item.sample = true;
            item.sample_rows = ROWS;
            item.tokens_out = chosen[r];
            item.logits_out = with_logits != 0 ? logits[r] : NULL;
            fg_step step = { .seqs = &item, .seq_count = 1 };
            cr_assert_eq(fg_runner_step(runners[r], &step, NULL), FG_OK);
        }
        cr_assert(memcmp(chosen[0], chosen[1], sizeof chosen[0]) == 0);
        cr_assert(memcmp(logits[0], logits[1], (size_t)ROWS * vocab_size * sizeof(float)) == 0);
        fg_mem_free(logits[0]);
        fg_mem_free(logits[1]);
    }
    close_pair(&p);
}

/* Who asks for a digest too has the row looked at by the host: what is chosen does not depend on that. */
Test(engine_apart, tokens_are_the_same_wherever_they_are_chosen_from)
{
    enum { COUNT = 24, FIRST = 10 };
    static uint32_t tokens[SEQS * CONTEXT];
    pair p;
    open_pair(FG_BF16, &p);
    make_tokens(&p, 12, tokens);
    wish plain = { .name = "prompt" };
    run_both(&p, &plain, tokens, 0, COUNT / 4, FIRST);
    uint32_t chosen[2][COUNT];
    for (uint32_t seen = 0; seen < 2; seen++) {
        uint32_t before = counted("apart_chosen");
        for (uint32_t draw = 0; draw < COUNT; draw += COUNT / 4) {
            fg_step_seq items[COUNT / 4];
            for (uint32_t i = 0; i < COUNT / 4; i++) {
                items[i] = fg_runner_seq(&p.apart, i, tokens + i * CONTEXT + FIRST, FIRST, 1);
                items[i].sample = true;
                items[i].want_digest = seen == 1;
                items[i].choice = draw;
                items[i].sampling = (fg_sampling){ .temperature = 0.5f + (float)i * 0.4f,
                                                   .top_p = 1.0f,
                                                   .min_p = i % 2 == 0 ? 0.0f : 0.02f,
                                                   .seed = 1000 + draw };
            }
            fg_step step = { .seqs = items, .seq_count = COUNT / 4 };
            cr_assert_eq(fg_runner_step(&p.apart, &step, NULL), FG_OK);
            for (uint32_t i = 0; i < COUNT / 4; i++) {
                chosen[seen][draw + i] = items[i].token_out;
            }
        }
        cr_assert_eq(counted("apart_chosen") - before, seen == 0 ? COUNT : 0);
    }
    cr_assert_eq(memcmp(chosen[0], chosen[1], sizeof chosen[0]), 0);
    close_pair(&p);
}

/* A decode worker's way: blocks are pushed into the mirror, digested, and run on. */
Test(engine_apart, what_arrives_in_the_mirror_is_what_a_sequence_runs_on)
{
    static uint32_t tokens[SEQS * CONTEXT];
    pair p;
    open_pair(FG_Q8_0, &p);
    make_tokens(&p, 5, tokens);
    fg_step_seq prompt = fg_runner_seq(&p.cpu, 0, tokens, 0, 30);
    fg_step_digest want[2] = { { .block_id = prompt.block_ids[0] },
                               { .block_id = prompt.block_ids[1] } };
    fg_step step = { .seqs = &prompt, .seq_count = 1, .digests = want, .digest_count = 2 };
    cr_assert_eq(fg_runner_step(&p.cpu, &step, NULL), FG_OK);
    fg_step_seq there = fg_runner_seq(&p.apart, 3, tokens, 30, 1);
    fg_step_digest arrived[2];
    size_t block_bytes = p.cpu.layout.block_bytes;
    for (uint32_t i = 0; i < 2; i++) {
        memcpy((char *)p.apart.arena + there.block_ids[i] * block_bytes,
               (char *)p.cpu.arena + prompt.block_ids[i] * block_bytes, block_bytes);
        arrived[i] = (fg_step_digest){ .block_id = there.block_ids[i], .arrived = true };
    }
    step = (fg_step){ .digests = arrived, .digest_count = 2 };
    cr_assert_eq(fg_runner_step(&p.apart, &step, NULL), FG_OK);
    fg_step_seq here = fg_runner_seq(&p.cpu, 0, tokens, 30, 1);
    here.want_digest = there.want_digest = true;
    step = (fg_step){ .seqs = &here, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(&p.cpu, &step, NULL), FG_OK);
    step = (fg_step){ .seqs = &there, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(&p.apart, &step, NULL), FG_OK);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_eq(arrived[i].digest_out, want[i].digest_out);
    }
    cr_assert_eq(there.digest_out, here.digest_out);
    close_pair(&p);
}

static void nobody(void *ctx)
{
}

/* An engine on the apart device with a tier; the runner lends weights, arena and tables. */
static fg_engine_options tier_options(const fg_runner *runner, void *tier)
{
    return (fg_engine_options){
        .weights = runner->weights,
        .hparams = &runner->hparams,
        .layout = runner->layout,
        .arena = runner->arena,
        .block_count = runner->block_count,
        .tier_arena = tier,
        .tier_block_count = TIER,
        .limits = { .step_tokens_max = STEP_ROWS, .step_seqs_max = SEQS, .context_max = CONTEXT },
        .device = "cuda",
        .thread_count = 1,
        .cpu_isa = "auto",
        .on_done = nobody
    };
}

static void run_step(fg_engine *engine, fg_step *step)
{
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_begin(engine, step, &err), FG_OK, "%s", err.text);
    while (fg_engine_poll(engine) == NULL) {
    }
}

static void tell_apart(void *memory, size_t size_bytes)
{
    *(void **)fg_in_apart(APART_PLUGIN, "apart_lent") = memory;
    *(size_t *)fg_in_apart(APART_PLUGIN, "apart_lent_bytes") = size_bytes;
}

static size_t bytes_of(const fg_engine_options *options)
{
    return options->block_count * options->layout.block_bytes;
}

static void lend_memory(fg_engine_options *options)
{
    options->arena = NULL;
    options->device_arena = fg_mem_map(bytes_of(options));
    tell_apart(options->device_arena, bytes_of(options));
}

/* Of options without such memory too. */
static void take_memory_back(fg_engine_options *options)
{
    tell_apart(NULL, 0);
    fg_mem_unmap(options->device_arena, bytes_of(options));
}

/* `lent`: the blocks are the caller's, in the device's memory, and the host has none of them. */
static void check_copies(bool lent)
{
    static uint32_t tokens[SEQS * CONTEXT];
    pair p;
    open_pair(FG_Q8_0, &p);
    make_tokens(&p, 6, tokens);
    uint8_t *tier = fg_mem_map(TIER * p.apart.layout.block_bytes);
    fg_engine_options options = tier_options(&p.apart, tier);
    if (lent) {
        lend_memory(&options);
    }
    fg_engine *engine;
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_open_model(&options, &engine, &err), FG_OK, "%s", err.text);
    cr_assert_str_eq(fg_engine_numerics_class(engine), "apart/k6/kv-bf16/tp1");
    fg_engine_start start = fg_engine_started(engine);
    cr_assert(!start.host_memory);
    cr_assert_eq(start.weights->origin, FG_WEIGHTS_DEVICE);
    cr_assert_gt(start.weights->bytes, 0);

    /* 24 tokens at once in blocks 40 and 41; or 20, moved about, and four more. */
    static const uint32_t whole[4] = { 40, 41, 42, 43 }, before[4] = { 3, 1, 0, 2 };
    fg_step_seq want = fg_runner_seq(&p.apart, 0, tokens, 0, 24);
    want.block_ids = whole;
    want.want_digest = true;
    fg_step step = { .seqs = &want, .seq_count = 1 };
    run_step(engine, &step);
    fg_step_seq first = fg_runner_seq(&p.apart, 0, tokens, 0, 20);
    first.block_ids = before;
    fg_step_digest ran[2] = { { .block_id = 3 }, { .block_id = 1 } };
    step = (fg_step){ .seqs = &first, .seq_count = 1, .digests = ran, .digest_count = 2 };
    run_step(engine, &step);
    for (int i = 0; i < 2 && lent; i++) {
        const uint8_t *there = options.device_arena;
        cr_assert_eq(ran[i].digest_out, fg_hash64(there + before[i] * options.layout.block_bytes,
                                                  options.layout.block_bytes, 0));
    }
    fg_step_copy out[] = { { .kind = FG_COPY_OUT, .from = 3, .to = 2 },
                           { .kind = FG_COPY_BLOCK, .from = 1, .to = 7 } };
    step = (fg_step){ .copies = out, .copy_count = 2 };
    run_step(engine, &step);
    cr_assert_eq(out[0].digest_out, ran[0].digest_out);
    size_t block_bytes = p.apart.layout.block_bytes;
    cr_assert_eq(fg_hash64(tier + 2 * block_bytes, block_bytes, 0), out[0].digest_out);
    /* Slot 2 to block 9, and on with block 7 behind it. */
    static const uint32_t after[4] = { 9, 7, 5, 6 };
    fg_step_copy in = { .kind = FG_COPY_IN, .from = 2, .to = 9 };
    fg_step_seq rest = fg_runner_seq(&p.apart, 0, tokens + 20, 20, 4);
    rest.block_ids = after;
    rest.want_digest = true;
    step = (fg_step){ .copies = &in, .copy_count = 1, .seqs = &rest, .seq_count = 1 };
    run_step(engine, &step);
    cr_assert_eq(in.digest_out, out[0].digest_out);
    cr_assert_eq(rest.digest_out, want.digest_out);
    tier[2 * block_bytes + 5] ^= 1;
    step = (fg_step){ .copies = &in, .copy_count = 1 };
    run_step(engine, &step);
    cr_assert_neq(in.digest_out, out[0].digest_out, "damage shows");
    if (lent) { /* what another worker has written there */
        fg_step_digest arrived = { .block_id = 9, .arrived = true };
        ((uint8_t *)options.device_arena)[9 * block_bytes + 5] ^= 1;
        step = (fg_step){ .digests = &arrived, .digest_count = 1 };
        run_step(engine, &step);
        cr_assert_eq(arrived.digest_out, out[0].digest_out);
    }
    fg_engine_close(engine);
    fg_mem_unmap(tier, TIER * block_bytes);
    take_memory_back(&options);
    close_pair(&p);
}

Test(engine_apart, copies_within_out_and_in_are_of_what_sequences_see)
{
    check_copies(false);
}

Test(engine_apart, without_a_mirror_they_are_too)
{
    check_copies(true);
}

/* Pinned memory is taken whole: only what a link or the tier brings blocks to is worth that. */
Test(engine_apart, a_mirror_that_no_block_comes_to_is_not_pinned)
{
    static const struct {
        const char *name;
        bool shared, tier;
        uint32_t want;
    } cases[] = { { "alone", false, false, 0 },
                  { "a link", true, false, 1 },
                  { "a tier", false, true, 1 } };
    pair p;
    open_pair(FG_Q8_0, &p);
    uint8_t *tier = fg_mem_map(TIER * p.apart.layout.block_bytes);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_engine_options options = tier_options(&p.apart, cases[i].tier ? tier : NULL);
        options.arena_is_shared = cases[i].shared;
        uint32_t before = counted("apart_pins");
        fg_engine *engine;
        fg_error err = { 0 };
        cr_assert_eq(fg_engine_open_model(&options, &engine, &err), FG_OK, "%s", err.text);
        cr_assert_eq(counted("apart_pins") - before, cases[i].want, "%s", cases[i].name);
        fg_engine_close(engine);
    }
    fg_mem_unmap(tier, TIER * p.apart.layout.block_bytes);
    close_pair(&p);
}

static bool opens(void *ctx)
{
    fg_engine *engine = NULL;
    fg_error err = { 0 };
    fg_status status = fg_engine_open_model(ctx, &engine, &err);
    if (status == FG_OK) {
        fg_engine_close(engine);
        return true;
    }
    cr_assert_eq(status, FG_AGAIN, "%s", err.text);
    cr_assert(engine == NULL && err.text[0] != '\0', "a cause, and no engine");
    return false;
}

/* The plugin asserts that all of a device's memory is given back; what else leaks is a sanitizer's to find. */
Test(engine_apart, an_engine_opens_or_fails_cleanly_whatever_memory_is_missing)
{
    static uint32_t tokens[SEQS * CONTEXT];
    int (*each_of_device)(bool (*attempt)(void *ctx), void *ctx);
    pair p;
    open_pair(FG_Q8_0, &p);
    make_tokens(&p, 8, tokens);
    *(void **)&each_of_device = fg_in_apart(APART_PLUGIN, "apart_fault_each");
    uint8_t *tier = fg_mem_map(TIER * p.apart.layout.block_bytes);
    fg_engine_options options = tier_options(&p.apart, tier);
    int host = fg_fault_each(opens, &options), device = each_of_device(opens, &options);
    cr_assert_gt(host, 10, "%d of the host's allocations failed", host);
    cr_assert_gt(device, 20, "%d of the device's allocations failed", device);
    fg_engine_options lent = options;
    lend_memory(&lent);
    cr_assert_gt(each_of_device(opens, &lent), 20);
    take_memory_back(&lent);

    fg_engine *engine;
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_open_model(&options, &engine, &err), FG_OK, "%s", err.text);
    fg_step_seq want = fg_runner_seq(&p.cpu, 0, tokens, 0, 20);
    fg_step_seq got = fg_runner_seq(&p.apart, 0, tokens, 0, 20);
    want.want_digest = got.want_digest = true;
    fg_step step = { .seqs = &want, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(&p.cpu, &step, &err), FG_OK, "%s", err.text);
    step = (fg_step){ .seqs = &got, .seq_count = 1 };
    run_step(engine, &step);
    cr_assert_eq(got.digest_out, want.digest_out);
    fg_engine_close(engine);
    fg_mem_unmap(tier, TIER * p.apart.layout.block_bytes);
    close_pair(&p);
}

Test(engine_apart, what_it_does_not_compute_is_refused)
{
    static const struct {
        const char *name;
        uint32_t kv_dtype, block_size;
        const char *device, *want;
    } cases[] = {
        { "f16", FG_F16, 16, "cuda", "--kv-dtype f16 is not computed by --device cuda: use auto" },
        { "int8", FG_I8, 16, "cuda:0", "--kv-dtype int8 is not" },
        { "blocks", FG_BF16, 8, "cuda", "--block-size 8 is too small for --device cuda: use 16" },
        { "device", FG_BF16, 16, "cuda:1", "there is no cuda:1: this machine has 1" },
    };
    const fg_tiny_llama model = { .seed = 31, .weight_type = FG_Q8_0 };
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner runner;
    fg_error err = { 0 };
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_runner_options options = options_of(bytes, size_bytes, cases[i].device);
        options.kv_dtype = cases[i].kv_dtype;
        options.block_size = cases[i].block_size;
        cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
    }
    const fg_tiny_llama mixture = { .seed = 31, .arch = FG_TINY_MIXTRAL };
    size_t mixture_bytes;
    void *of_experts = fg_gguf_build_tiny_llama(&mixture, &mixture_bytes);
    fg_runner_options options = options_of(of_experts, mixture_bytes, "cuda");
    cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_BAD_INPUT);
    cr_assert_not_null(
        strstr(err.text, "mixes 4 experts, which only the CPU computes: use --device cpu"), "%s",
        err.text);
    free(of_experts);
    options = options_of(bytes, size_bytes, "cuda");
    options.kv_dtype = FG_DTYPE_AUTO;
    cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_OK, "%s", err.text);
    cr_assert_eq(runner.layout.dtype, FG_BF16);
    uint32_t token = 1, twin = 0;
    fg_step_seq item = fg_runner_seq(&runner, 0, &token, 0, 1);
    item.twin_arena = runner.arena;
    item.twin_ids = &twin;
    fg_step step = { .seqs = &item, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(&runner, &step, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "another worker's memory"), "%s", err.text);
    fg_runner_close(&runner);
    free(bytes);
}
