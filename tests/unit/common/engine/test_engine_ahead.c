/*
 * Steps that a device begins before the one ahead of them has ended: the same tokens, digests and blocks as one step at a
 * time. On the apart device (apart_plugin.c), whose operations run at once or late, and which is slow enough for the next
 * step to come in time; on the CUDA back end's own sources, compiled for the CPU; and, with FORGE_TEST_DEVICE=cuda:0, on
 * the device of the environment's FORGE_CUDA_PLUGIN.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/engine/forward.h"
#include "common/engine/runner.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"
#include "tests/unit/common/engine/apart.h"

enum { SEQS = 6, SPARE = SEQS, CONTEXT = 1024, BLOCKS_EACH = CONTEXT / 16, PROMPT_MAX = 20 };
enum { AREAS = FG_ENGINE_STEPS_MAX + 1, NEVER = UINT32_MAX };
/* How often the apart device is asked before it says that a step has ended: the next one has been begun by then. */
enum { PATIENCE = 1 << 21 };

/* Some sequences, and what happens to them. Of `one_in` n, one in n does; 0: none. */
typedef struct story {
    const char *name;
    uint32_t seqs, steps;
    uint32_t skip_one_in; /* a sequence sits a step out */
    uint32_t
        leave_one_in; /* choices that the device leaves to the host, of the sequences that draw */
    uint32_t seen_one_in;   /* choices of which a digest of the logits is wanted */
    uint32_t copy_one_in;   /* steps that copy a block */
    uint32_t digest_one_in; /* steps that digest one */
    uint32_t drawn;         /* sequences that draw; the others are greedy */
    uint32_t late_prompts;  /* a sequence begins so many steps after the one before it */
    uint32_t poison_at;     /* the step in which NaNs come into the blocks of the last sequence */
    uint32_t ahead_least;   /* so many steps are begun ahead at least, */
    bool never_ahead;       /* or none */
} story;

static const story stories[] = {
    { "greedy", .seqs = 1, .steps = 1000, .poison_at = NEVER, .ahead_least = 500 },
    { "sizes change", .seqs = 6, .steps = 1000, .skip_one_in = 5, .drawn = 3, .poison_at = NEVER,
      .ahead_least = 500 },
    { "left to the host", .seqs = 5, .steps = 300, .leave_one_in = 3, .skip_one_in = 9, .drawn = 3,
      .poison_at = NEVER, .ahead_least = 150 },
    { "broken", .seqs = 3, .steps = 100, .drawn = 1, .poison_at = 50, .ahead_least = 50 },
    { "in between", .seqs = 6, .steps = 600, .skip_one_in = 7, .leave_one_in = 11,
      .seen_one_in = 13, .copy_one_in = 9, .digest_one_in = 8, .drawn = 4, .late_prompts = 60,
      .poison_at = 400, .ahead_least = 150 },
    { "always a copy", .seqs = 3, .steps = 50, .copy_one_in = 1, .poison_at = NEVER,
      .never_ahead = true },
    { "always a digest", .seqs = 3, .steps = 50, .digest_one_in = 1, .poison_at = NEVER,
      .never_ahead = true },
    { "always seen", .seqs = 3, .steps = 50, .seen_one_in = 1, .drawn = 1, .poison_at = NEVER,
      .never_ahead = true },
};

/* What a story comes to. */
typedef struct outcome {
    uint32_t counts[SEQS];
    uint32_t tokens[SEQS][CONTEXT];
    uint64_t digests[SEQS][CONTEXT];
    bool broken[SEQS][CONTEXT];
    uint64_t blocks[SEQS + 1][BLOCKS_EACH];
    fg_forward_ahead ahead;
} outcome;

typedef struct area {
    fg_step step;
    fg_step_seq items[SEQS];
    uint32_t owners[SEQS];
    fg_step_copy copy;
    fg_step_digest digest;
} area;

typedef struct teller {
    const story *story;
    fg_runner runner;
    uint32_t left_top_k; /* what a device leaves to the host; 0: by top-p */
    uint32_t prompts[SEQS][PROMPT_MAX];
    uint32_t positions[SEQS]; /* tokens planned */
    const fg_step_seq *last[SEQS];
    uint32_t last_step[SEQS];
    area areas[AREAS];
    outcome *out;
} teller;

/* Whether it happens to `who` at `when`: the same in every telling. */
static bool happens(uint32_t one_in, const char *what, uint32_t who, uint32_t when)
{
    return one_in > 0 &&
           fg_hash_mix(fg_hash64(what, strlen(what), who) + when * 977ull) % one_in == 0;
}

static uint32_t prompt_count(uint32_t seq)
{
    return 1 + seq * 7 % PROMPT_MAX;
}

static void wish(const teller *t, uint32_t seq, fg_step_seq *item)
{
    const story *s = t->story;
    uint32_t position = t->positions[seq];
    bool draws = seq < s->drawn;
    bool leaves = draws && happens(s->leave_one_in, "leave", seq, position);
    item->sample = true;
    item->want_digest = happens(s->seen_one_in, "seen", seq, position);
    item->choice = seq;
    item->sampling = (fg_sampling){ .temperature = draws ? 0.9f : 0.0f,
                                    .top_p = seq % 2 == 1 ? 0.9f : 1.0f,
                                    .top_k = seq % 2 == 1 ? 40 : 0,
                                    .seed = 100 + seq };
    if (leaves) {
        item->sampling.temperature = 50.0f;
        item->sampling.top_p = 0.99f;
        item->sampling.top_k = t->left_top_k;
    }
}

/* Fills a block of a sequence's with NaNs where the host sees it, and has the device take it from there. */
static void poison(teller *t, uint32_t seq, area *a)
{
    uint32_t block = t->runner.block_ids[seq * t->runner.blocks_per_seq];
    size_t bytes = t->runner.layout.block_bytes;
    memset((char *)t->runner.arena + block * bytes, 0xFF, bytes);
    a->digest = (fg_step_digest){ .block_id = block, .arrived = true };
    a->step.digests = &a->digest;
    a->step.digest_count = 1;
}

static void plan_others(teller *t, uint32_t index, area *a)
{
    const story *s = t->story;
    const uint32_t *ids = t->runner.block_ids;
    uint32_t each = t->runner.blocks_per_seq, seq = index % s->seqs;
    if (happens(s->copy_one_in, "copy", 0, index)) {
        a->copy = (fg_step_copy){ .kind = FG_COPY_BLOCK,
                                  .from = ids[seq * each + t->positions[seq] / 16],
                                  .to = ids[SPARE * each + index % each] };
        a->step.copies = &a->copy;
        a->step.copy_count = 1;
    }
    if (index == s->poison_at) {
        poison(t, s->seqs - 1, a);
    } else if (happens(s->digest_one_in, "digest", 0, index)) {
        a->digest = (fg_step_digest){ .block_id = ids[seq * each] };
        a->step.digests = &a->digest;
        a->step.digest_count = 1;
    }
}

static void plan(teller *t, uint32_t index, bool ahead)
{
    const story *s = t->story;
    area *a = &t->areas[index % AREAS];
    *a = (area){ .step = { .seqs = a->items } };
    plan_others(t, index, a);
    for (uint32_t seq = 0; seq < s->seqs; seq++) {
        bool skips = happens(s->skip_one_in, "skip", seq, index) ||
                     (index == s->poison_at && seq == s->seqs - 1);
        if (skips || index < seq * s->late_prompts) {
            continue;
        }
        uint32_t position = t->positions[seq], prompt = prompt_count(seq);
        uint32_t left = position < prompt ? prompt - position : 0;
        uint32_t count = left == 0 ? 1 : left < 8 ? left : 8;
        fg_step_seq *item = &a->items[a->step.seq_count];
        *item = fg_runner_seq(&t->runner, seq, NULL, position, count);
        if (left > 0) {
            item->tokens = t->prompts[seq] + position;
        } else if (ahead && t->last_step[seq] + 1 == index) {
            item->follows = t->last[seq]; /* `tokens` stays NULL: nobody reads it */
        } else {
            item->tokens = &t->out->tokens[seq][position];
        }
        t->positions[seq] += count;
        if (t->positions[seq] >= prompt) {
            wish(t, seq, item);
            t->last[seq] = item;
            t->last_step[seq] = index;
        }
        a->owners[a->step.seq_count++] = seq;
    }
}

static void book(teller *t, const area *a)
{
    for (uint32_t i = 0; i < a->step.seq_count; i++) {
        const fg_step_seq *item = &a->items[i];
        uint32_t seq = a->owners[i], at = item->first_position + item->token_count;
        if (item->sample) {
            t->out->tokens[seq][at] = item->token_out;
            t->out->digests[seq][at] = item->digest_out;
            t->out->broken[seq][at] = item->broken_out;
            t->out->counts[seq]++;
        }
    }
}

/* All blocks, as the model reads them. */
static void look_at_blocks(teller *t)
{
    static fg_step_digest digests[(SEQS + 1) * BLOCKS_EACH];
    for (uint32_t i = 0; i < t->runner.block_count; i++) {
        digests[i] = (fg_step_digest){ .block_id = t->runner.block_ids[i] };
    }
    fg_step step = { .digests = digests, .digest_count = t->runner.block_count };
    cr_assert_eq(fg_runner_step(&t->runner, &step, NULL), FG_OK);
    for (uint32_t i = 0; i < t->runner.block_count; i++) {
        t->out->blocks[i / BLOCKS_EACH][i % BLOCKS_EACH] = digests[i].digest_out;
    }
}

static void tell_story(const story *s, const char *device, bool ahead, uint32_t left_top_k,
                       outcome *out)
{
    static teller t;
    const fg_tiny_llama model = { .seed = 77, .vocab = FG_TINY_MANY, .weight_type = FG_Q8_0 };
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner_options options = { .bytes = bytes,
                                  .size_bytes = size_bytes,
                                  .context_max = CONTEXT,
                                  .seqs_max = SEQS + 1,
                                  .step_tokens_max = 120,
                                  .kv_dtype = FG_BF16,
                                  .device = device };
    fg_error err = { 0 };
    memset(out, 0, sizeof *out);
    t = (teller){ .story = s, .out = out, .left_top_k = left_top_k };
    cr_assert_eq(fg_runner_open(&options, &t.runner, &err), FG_OK, "%s", err.text);
    for (uint32_t i = 0; i < SEQS * PROMPT_MAX; i++) {
        t.prompts[i / PROMPT_MAX][i % PROMPT_MAX] =
            (uint32_t)(fg_hash_mix(i + 1) % t.runner.hparams.vocab_size);
    }
    uint32_t begun = 0, ended = 0;
    while (ended < s->steps) {
        if (begun < s->steps && begun - ended < (ahead ? FG_ENGINE_STEPS_MAX : 1)) {
            plan(&t, begun, ahead);
            fg_step *step = &t.areas[begun++ % AREAS].step;
            cr_assert_eq(fg_engine_begin(t.runner.engine, step, &err), FG_OK, "%s", err.text);
        } else {
            area *a = &t.areas[ended++ % AREAS];
            cr_assert(fg_runner_wait(&t.runner) == &a->step);
            book(&t, a);
        }
    }
    out->ahead = fg_engine_model_went_ahead(t.runner.engine);
    look_at_blocks(&t);
    fg_runner_close(&t.runner);
    free(bytes);
}

static void check_same(const outcome *got, const outcome *want, const char *name)
{
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        cr_assert_eq(got->counts[seq], want->counts[seq], "%s: sequence %u", name, seq);
        for (uint32_t i = 0; i < CONTEXT; i++) {
            cr_assert_eq(got->broken[seq][i], want->broken[seq][i], "%s: sequence %u at %u", name,
                         seq, i);
            cr_assert_eq(got->tokens[seq][i], want->tokens[seq][i], "%s: sequence %u at %u", name,
                         seq, i);
            cr_assert_eq(got->digests[seq][i], want->digests[seq][i], "%s: sequence %u at %u", name,
                         seq, i);
        }
    }
    for (uint32_t seq = 0; seq <= SEQS; seq++) {
        for (uint32_t i = 0; i < BLOCKS_EACH; i++) {
            cr_assert_eq(got->blocks[seq][i], want->blocks[seq][i], "%s: block %u of sequence %u",
                         name, i, seq);
        }
    }
}

static bool any_broken(const outcome *o)
{
    bool any = false;
    for (uint32_t i = 0; i < SEQS * CONTEXT; i++) {
        any = any || o->broken[i / CONTEXT][i % CONTEXT];
    }
    return any;
}

/* `least`: of the steps that a story wants to see begun ahead, so many hundredths. */
static void check_ahead(const story *s, const outcome *o, uint32_t least)
{
    cr_assert_geq(o->ahead.begun * 100, (uint64_t)s->ahead_least * least, "%s: %llu begun ahead",
                  s->name, (unsigned long long)o->ahead.begun);
    cr_assert(!s->never_ahead || o->ahead.begun == 0, "%s: %llu begun ahead", s->name,
              (unsigned long long)o->ahead.begun);
    cr_assert(s->leave_one_in > 0 || o->ahead.again == 0, "%s: %llu of %llu again", s->name,
              (unsigned long long)o->ahead.again, (unsigned long long)o->ahead.begun);
}

static void tell_apart(bool is_late)
{
    enum { LEFT_TOP_K = 20 }; /* the plugin's */
    static outcome want, got;
    setenv("FORGE_CUDA_AHEAD", "on", 1);
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    *(bool *)fg_in_apart(APART_PLUGIN, "apart_is_late") = is_late;
    *(uint32_t *)fg_in_apart(APART_PLUGIN, "apart_patience") = PATIENCE;
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        const story *s = &stories[i];
        uint32_t followed = *(uint32_t *)fg_in_apart(APART_PLUGIN, "apart_followed");
        tell_story(s, "cpu", false, LEFT_TOP_K, &want);
        tell_story(s, "cuda:0", true, LEFT_TOP_K, &got);
        check_same(&got, &want, s->name);
        cr_assert_eq(any_broken(&got), s->poison_at != NEVER, "%s", s->name);
        cr_assert_eq(want.ahead.begun, 0, "the CPU does one after the other");
        check_ahead(s, &got, 100);
        cr_assert(s->leave_one_in == 0 || got.ahead.again > 0, "%s: none again", s->name);
        cr_assert_eq(followed == *(uint32_t *)fg_in_apart(APART_PLUGIN, "apart_followed"),
                     s->never_ahead, "tokens go from step to step on the device");
    }
}

Test(engine_ahead, steps_begun_ahead_give_the_bits_of_the_cpu)
{
    tell_apart(false);
}

Test(engine_ahead, nor_do_they_see_when_a_device_runs_its_operations)
{
    tell_apart(true);
}

Test(engine_ahead, only_off_turns_it_off)
{
    static const char *const said[] = { NULL, "on", "off" };
    static outcome got;
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        (void)(said[i] == NULL ? unsetenv("FORGE_CUDA_AHEAD")
                               : setenv("FORGE_CUDA_AHEAD", said[i], 1));
        tell_story(&stories[0], "cuda:0", true, 20, &got);
        bool is_off = said[i] != NULL && strcmp(said[i], "off") == 0;
        cr_assert_eq(got.ahead.begun == 0, is_off, "%s",
                     said[i] == NULL ? "nothing said" : said[i]);
    }
}

/* What a step points to is gone after that: the engine has waited for both. */
Test(engine_ahead, closes_with_a_step_begun_ahead)
{
    const fg_tiny_llama model = { .seed = 77, .weight_type = FG_Q8_0 };
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    setenv("FORGE_CUDA_AHEAD", "on", 1);
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    *(bool *)fg_in_apart(APART_PLUGIN, "apart_is_late") = true;
    *(uint32_t *)fg_in_apart(APART_PLUGIN, "apart_patience") = PATIENCE;
    for (uint32_t round = 0; round < 20; round++) {
        fg_runner_options options = { .bytes = bytes,
                                      .size_bytes = size_bytes,
                                      .step_tokens_max = 64,
                                      .context_max = 64,
                                      .kv_dtype = FG_BF16,
                                      .device = "cuda" };
        fg_runner runner;
        fg_error err = { 0 };
        cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_OK, "%s", err.text);
        uint32_t token = 5;
        fg_step_seq items[2] = { fg_runner_seq(&runner, 0, &token, 0, 1),
                                 fg_runner_seq(&runner, 0, NULL, 1, 1) };
        items[0].sample = items[1].sample = true;
        items[1].follows = &items[0];
        fg_step steps[2] = { { .seqs = &items[0], .seq_count = 1 },
                             { .seqs = &items[1], .seq_count = 1 } };
        cr_assert_eq(fg_engine_begin(runner.engine, &steps[0], NULL), FG_OK);
        cr_assert_eq(fg_engine_begin(runner.engine, &steps[1], NULL), FG_OK);
        if (round % 2 == 1) {
            cr_assert(fg_runner_wait(&runner) == &steps[0]);
        }
        fg_runner_close(&runner);
    }
    free(bytes);
}

/* The stories in so many hundredths of their steps, on a device that may have ended a step before the next one comes. */
static void tell_on(const char *device, uint32_t hundredths, uint32_t least)
{
    static outcome want, got;
    uint64_t again = 0;
    for (size_t i = 0; i < sizeof stories / sizeof stories[0]; i++) {
        story s = stories[i];
        s.steps = s.steps * hundredths / 100;
        s.late_prompts = s.late_prompts * hundredths / 100;
        s.poison_at = s.poison_at == NEVER ? NEVER : s.poison_at * hundredths / 100;
        s.ahead_least = s.ahead_least * hundredths / 100;
        tell_story(&s, device, false, 0, &want);
        cr_assert_eq(want.ahead.begun, 0, "one step at a time");
        tell_story(&s, device, true, 0, &got);
        check_same(&got, &want, s.name);
        check_ahead(&s, &got, least);
        again += got.ahead.again;
        printf("%s: %llu of %u steps begun ahead, %llu again\n", s.name,
               (unsigned long long)got.ahead.begun, s.steps, (unsigned long long)got.ahead.again);
    }
    cr_assert(again > 0, "none again");
}

#ifdef EMULATED_PLUGIN
Test(engine_ahead, on_the_cuda_back_end_emulated)
{
    setenv("FORGE_CUDA_AHEAD", "on", 1);
    setenv("FORGE_CUDA_PLUGIN", EMULATED_PLUGIN, 1);
    tell_on("cuda:0", 5, 20);
}
#endif

Test(engine_ahead, on_the_device_that_is_named)
{
    const char *device = getenv("FORGE_TEST_DEVICE");
    if (device != NULL) {
        setenv("FORGE_CUDA_AHEAD", "on", 1);
        tell_on(device, 100, 20);
    }
}
