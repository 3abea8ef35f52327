/* Two steps in flight: the same tokens, no lost wake-up, nothing computed when nothing is asked. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "tests/support/gguf_builder.h"
#include "tests/unit/common/engine/rig.h"

enum { PROMPT_MAX = 60, WANTED = 80 };

static void fill_tokens(uint64_t seed, uint32_t vocab_size, uint32_t count, uint32_t *tokens)
{
    fg_rng rng = { .state = seed };
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (uint32_t)fg_rng_below(&rng, vocab_size);
    }
}

/* Prompts of different lengths; every other request is sampled, not greedy. */
static void make_requests(uint64_t seed, uint32_t vocab_size,
                          uint32_t prompts[RIG_SEQS][PROMPT_MAX], const uint32_t *block_ids,
                          uint32_t blocks_each, request *requests)
{
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        fill_tokens(seed + i, vocab_size, PROMPT_MAX, prompts[i]);
        requests[i] = (request){ .prompt = prompts[i],
                                 .prompt_count = 1 + (uint32_t)((seed + 19 * i) % PROMPT_MAX),
                                 .wanted = WANTED - i,
                                 .sampling = { .top_p = 1.0f, .seed = seed },
                                 .block_ids = block_ids + (size_t)i * blocks_each,
                                 .block_count = blocks_each };
        requests[i].sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    }
}

static void check_same(const request *got, const request *want, const char *name)
{
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        cr_assert_eq(got[i].emitted, want[i].emitted, "%s: request %u", name, i);
        cr_assert(memcmp(got[i].tokens, want[i].tokens, sizeof got[i].tokens) == 0,
                  "%s: request %u chose other tokens", name, i);
        cr_assert(memcmp(got[i].digests, want[i].digests, sizeof got[i].digests) == 0,
                  "%s: request %u has other logits", name, i);
    }
}

static void check_expected(const request *r)
{
    uint32_t tokens[PROMPT_MAX + WANTED];
    memcpy(tokens, r->prompt, r->prompt_count * sizeof tokens[0]);
    for (uint32_t i = 0; i < r->wanted; i++) {
        fg_engine_sim_answer want = fg_engine_sim_expected(tokens, r->prompt_count + i, SIM_VOCAB,
                                                           UINT32_MAX, &r->sampling, 0);
        cr_assert_eq(r->tokens[i], want.token, "token %u", i);
        cr_assert_eq(r->digests[i], want.digest, "token %u", i);
        tokens[r->prompt_count + i] = r->tokens[i];
    }
}

Test(engine_overlap, sim_chooses_the_tokens_of_serial_steps)
{
    static sim_rig rig;
    static uint32_t prompts[RIG_SEQS][PROMPT_MAX];
    static request serial[RIG_SEQS];
    static request ahead[RIG_SEQS];
    for (uint64_t seed = 1; seed <= 40; seed++) {
        sim_rig_open(&rig, seed % 2 == 0);
        uint32_t blocks_each = SIM_BLOCKS / RIG_SEQS;
        make_requests(seed, SIM_VOCAB, prompts, rig.block_ids, blocks_each, serial);
        memcpy(ahead, serial, sizeof ahead);
        rig_drive(&rig.driver, serial, RIG_SEQS, false, seed);
        rig_drive(&rig.driver, ahead, RIG_SEQS, true, seed);
        check_same(ahead, serial, "sim");
        for (uint32_t i = 0; i < RIG_SEQS; i++) {
            check_expected(&ahead[i]);
        }
        cr_assert_eq(fg_engine_sim_bad_slots(rig.driver.engine), 0, "seed %d", (int)seed);
        fg_engine_close(rig.driver.engine);
    }
}

static void *open_tiny(model_rig *rig, uint32_t thread_count)
{
    static const fg_tiny_llama model = { .seed = 6, .weight_type = FG_Q8_0 };
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner_options options = { .bytes = bytes,
                                  .size_bytes = size_bytes,
                                  .context_max = 160,
                                  .seqs_max = RIG_SEQS,
                                  .kv_dtype = FG_F16,
                                  .thread_count = thread_count };
    model_rig_open(rig, &options);
    return bytes;
}

Test(engine_overlap, model_chooses_the_tokens_of_serial_steps)
{
    static uint32_t prompts[RIG_SEQS][PROMPT_MAX];
    static request serial[RIG_SEQS];
    static request ahead[RIG_SEQS];
    for (uint32_t threads = 1; threads <= 2; threads++) {
        model_rig rig;
        void *bytes = open_tiny(&rig, threads);
        make_requests(50 + threads, rig.runner.hparams.vocab_size, prompts, rig.runner.block_ids,
                      rig.runner.blocks_per_seq, serial);
        memcpy(ahead, serial, sizeof ahead);
        rig_drive(&rig.driver, serial, RIG_SEQS, false, 1);
        rig_drive(&rig.driver, ahead, RIG_SEQS, true, 2);
        check_same(ahead, serial, "model");
        cr_assert_neq(serial[0].digests[0], serial[0].digests[1], "the rows differ");
        model_rig_close(&rig);
        free(bytes);
    }
}

Test(engine_model, two_steps_at_a_time)
{
    model_rig rig;
    void *bytes = open_tiny(&rig, 1);
    fg_engine *engine = rig.driver.engine;
    uint32_t token = 5;
    fg_step_seq seqs[3];
    fg_step steps[3];
    for (uint32_t i = 0; i < 3; i++) {
        seqs[i] = fg_runner_seq(&rig.runner, i, &token, 0, 1);
        steps[i] = (fg_step){ .seqs = &seqs[i], .seq_count = 1 };
    }
    cr_assert_null(fg_engine_poll(engine), "nothing to poll");
    cr_assert_eq(fg_engine_begin(engine, &steps[0], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(engine, &steps[1], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(engine, &steps[2], NULL), FG_AGAIN, "both unpolled");
    cr_assert(rig_poll(&rig.driver) == &steps[0]);
    cr_assert_eq(fg_engine_begin(engine, &steps[2], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(engine, &steps[0], NULL), FG_AGAIN);
    cr_assert(rig_poll(&rig.driver) == &steps[1]);
    cr_assert(rig_poll(&rig.driver) == &steps[2]);
    cr_assert_null(fg_engine_poll(engine), "polled once each");
    /* The last on_done may still be on its way; closing waits for it. */
    fg_engine_close(engine);
    rig.driver.engine = NULL;
    cr_assert_eq(fg_signal_count(&rig.done), 3, "one on_done per step");
    model_rig_close(&rig);
    free(bytes);
}

Test(engine_model, closes_with_steps_in_flight)
{
    for (uint32_t round = 0; round < 20; round++) {
        model_rig rig;
        void *bytes = open_tiny(&rig, 1 + round % 2);
        uint32_t tokens[40];
        fill_tokens(round, rig.runner.hparams.vocab_size, 40, tokens);
        fg_step_seq seqs[2] = { fg_runner_seq(&rig.runner, 0, tokens, 0, 40),
                                fg_runner_seq(&rig.runner, 0, NULL, 40, 1) };
        seqs[0].sample = true;
        seqs[1].follows = &seqs[0];
        fg_step steps[2] = { { .seqs = &seqs[0], .seq_count = 1 },
                             { .seqs = &seqs[1], .seq_count = 1 } };
        cr_assert_eq(fg_engine_begin(rig.driver.engine, &steps[0], NULL), FG_OK);
        cr_assert_eq(fg_engine_begin(rig.driver.engine, &steps[1], NULL), FG_OK);
        if (round % 4 == 3) {
            rig_poll(&rig.driver);
        }
        model_rig_close(&rig);
        free(bytes);
    }
}

/* Thousands of steps so short that each side falls asleep while the other wakes it. A wake-up that is
 * lost stops the test for good. */
Test(engine_model, loses_no_wake_up)
{
    enum { ROUNDS = 20000 };
    model_rig rig;
    void *bytes = open_tiny(&rig, 1);
    fg_step steps[FG_ENGINE_STEPS_MAX];
    fg_step_digest digest[FG_ENGINE_STEPS_MAX];
    memset(rig.runner.arena, 7, rig.runner.layout.block_bytes);
    uint64_t want = fg_hash64(rig.runner.arena, rig.runner.layout.block_bytes, 0);
    fg_rng rng = { .state = 77 };
    uint64_t begun = 0;
    uint64_t polled = 0;
    while (polled < ROUNDS) {
        uint64_t target = begun + fg_rng_below(&rng, FG_ENGINE_STEPS_MAX + 1 - (begun - polled));
        for (; begun < target; begun++) {
            uint32_t at = (uint32_t)(begun % FG_ENGINE_STEPS_MAX);
            bool with_digest = fg_rng_below(&rng, 2) == 0;
            digest[at] = (fg_step_digest){ .block_id = 0 };
            steps[at] = (fg_step){ .digests = &digest[at], .digest_count = with_digest };
            cr_assert_eq(fg_engine_begin(rig.driver.engine, &steps[at], NULL), FG_OK);
        }
        /* Waits for some of them, for all of them, or only looks. */
        uint64_t least = polled + fg_rng_below(&rng, begun - polled + 1);
        for (;;) {
            fg_step *step =
                polled < least ? rig_poll(&rig.driver) : fg_engine_poll(rig.driver.engine);
            if (step == NULL) {
                break;
            }
            uint32_t at = (uint32_t)(polled++ % FG_ENGINE_STEPS_MAX);
            cr_assert(step == &steps[at]);
            cr_assert_eq(digest[at].digest_out, step->digest_count == 1 ? want : 0);
        }
    }
    model_rig_close(&rig);
    free(bytes);
}

/* The next step is begun a moment after the last one ended, just when the engine thread is about to fall
 * asleep; the moment varies. */
Test(engine_model, loses_no_wake_up_while_falling_asleep)
{
    enum { ROUNDS = 100000, SPIN_MAX = 2000, MOMENT_MAX = 30 };
    model_rig rig;
    void *bytes = open_tiny(&rig, 1);
    fg_engine *engine = rig.driver.engine;
    fg_rng rng = { .state = 78 };
    for (uint32_t round = 0; round < ROUNDS; round++) {
        fg_step step = { .seq_count = 0 };
        cr_assert_eq(fg_engine_begin(engine, &step, NULL), FG_OK);
        fg_step *ended = NULL;
        for (uint32_t spin = 0; spin < SPIN_MAX && ended == NULL; spin++) {
            fg_thread_relax();
            ended = fg_engine_poll(engine);
        }
        ended = ended == NULL ? rig_poll(&rig.driver) : ended;
        cr_assert(ended == &step);
        uint64_t moment = fg_rng_below(&rng, MOMENT_MAX);
        for (uint64_t spin = 0; spin < moment; spin++) {
            fg_thread_relax();
        }
    }
    model_rig_close(&rig);
    free(bytes);
}

/* 'S' for a thread that waits in the kernel. */
static char thread_state(int thread_id)
{
    char path[64];
    char text[512] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread_id);
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "%s", path);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    const char *end = strrchr(text, ')');
    return end != NULL && strlen(end) > 2 ? end[2] : '?';
}

Test(engine_model, sleeps_when_there_is_nothing_to_do)
{
    model_rig rig;
    void *bytes = open_tiny(&rig, 1);
    uint32_t token = 5;
    for (int round = 0; round < 20; round++) {
        fg_step_seq seq = fg_runner_seq(&rig.runner, 0, &token, 0, 1);
        fg_step step = { .seqs = &seq, .seq_count = 1 };
        rig_step(&rig.driver, &step);
        while (fg_signal_count(&rig.done) != (uint32_t)round + 1) {
            model_wait(&rig); /* until on_done has told the thread's id */
        }
        /* An engine that spins never gets there, and the test's time runs out. */
        while (thread_state(atomic_load(&rig.engine_thread_id)) != 'S') {
        }
    }
    model_rig_close(&rig);
    free(bytes);
}
