/* A model that guesses for another one in an engine that computes, on the CPU and on a device with memory of its own. */
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/rng.h"
#include "common/engine/runner.h"
#include "common/spec/lookahead.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

enum { CONTEXT = 200, SEQS = 4, PROMPT = 50, WANTED = 60, GUESSES = 4, CATCH_UP = 20 };

/* Two models in one engine. */
typedef struct pair {
    void *bytes, *draft_bytes;
    fg_weights *draft_weights;
    fg_hparams draft_hparams;
    fg_engine_draft draft;
    fg_runner_options options;
    fg_runner runner;
} pair;

static void make_pair_of(pair *p, const char *device, uint64_t draft_seed, fg_tiny_vocab vocab)
{
    const fg_tiny_llama model = { .seed = 31, .weight_type = FG_Q8_0 },
                        other = { .seed = draft_seed, .weight_type = FG_Q8_0, .vocab = vocab };
    size_t size_bytes, draft_bytes;
    fg_error err = { 0 };
    *p = (pair){ .bytes = fg_gguf_build_tiny_llama(&model, &size_bytes) };
    p->draft_bytes = fg_gguf_build_tiny_llama(&other, &draft_bytes);
    cr_assert_eq(fg_weights_open_memory(p->draft_bytes, draft_bytes, &p->draft_weights, &err),
                 FG_OK, "%s", err.text);
    cr_assert_eq(fg_hparams_read(p->draft_weights, &p->draft_hparams, &err), FG_OK);
    const fg_hparams *h = &p->draft_hparams;
    p->draft = (fg_engine_draft){ .weights = p->draft_weights,
                                  .hparams = h,
                                  .block_count = SEQS * CONTEXT / 16 + SEQS,
                                  .context_max = CONTEXT };
    cr_assert_eq(fg_kv_layout_init(&p->draft.layout, h->layer_count, h->kv_head_count, h->head_dim,
                                   16, FG_BF16, &err),
                 FG_OK);
    p->options = (fg_runner_options){ .bytes = p->bytes,
                                      .size_bytes = size_bytes,
                                      .context_max = CONTEXT,
                                      .seqs_max = SEQS,
                                      .step_tokens_max = 128,
                                      .thread_count = 2,
                                      .kv_dtype = FG_BF16,
                                      .device = device,
                                      .draft = &p->draft };
}

static void make_pair(pair *p, const char *device, uint64_t draft_seed)
{
    make_pair_of(p, device, draft_seed, FG_TINY_GPT2);
}

static void unmake_pair(pair *p)
{
    fg_weights_close(p->draft_weights);
    free(p->draft_bytes);
    free(p->bytes);
}

typedef struct answer {
    uint32_t tokens[CONTEXT], count;
    uint32_t guesses[FG_LOOKAHEAD_MAX], guess_count;
    uint32_t next[FG_LOOKAHEAD_MAX]; /* what comes with the step that computes these */
    uint32_t choices[FG_LOOKAHEAD_MAX + 1];
    uint64_t drafted, right;
} answer;

/* Takes what the step chose: the first guess that is another token, and all behind it, are nothing. */
static void take(answer *a, const fg_step_seq *item)
{
    uint32_t right = 0;
    const uint32_t *choices = a->guess_count > 0 ? a->choices : &item->token_out;
    while (right < a->guess_count && a->guesses[right] == choices[right]) {
        right++;
    }
    a->drafted += a->guess_count;
    a->right += right;
    memcpy(a->tokens + a->count, choices, (right + 1) * sizeof *choices);
    a->count += right + 1;
}

/* Four answers, greedy and drawn, with GUESSES guesses a step for each or with none. Returns the steps that it took. */
static uint32_t answer_all(pair *p, answer *answers, uint32_t guesses)
{
    fg_error err = { 0 };
    fg_rng rng = { .state = 3 };
    uint32_t steps = 0, last_place = SEQS - 1;
    for (uint32_t i = 0; i < SEQS; i++) {
        answers[i] = (answer){ .count = PROMPT };
        for (uint32_t j = 0; j < PROMPT; j++) {
            answers[i].tokens[j] = (uint32_t)fg_rng_below(&rng, p->runner.hparams.vocab_size);
        }
        fg_step_seq item = fg_runner_seq(&p->runner, i, answers[i].tokens, 0, PROMPT - 1);
        fg_step step = { .seqs = &item, .seq_count = 1 };
        cr_assert_eq(fg_runner_step(&p->runner, &step, &err), FG_OK, "%s", err.text);
    }
    for (bool more = true; more; steps += more) {
        fg_step_seq items[SEQS];
        fg_step_ask asks[SEQS];
        answer *owners[SEQS];
        fg_step step = { .seqs = items, .asks = asks, .catch_up_max = CATCH_UP };
        for (uint32_t i = 0; i < SEQS; i++) {
            answer *a = &answers[i];
            if (a->count >= PROMPT + WANTED) {
                continue;
            }
            memcpy(a->tokens + a->count, a->guesses, a->guess_count * sizeof *a->guesses);
            fg_step_seq *item = &items[step.seq_count];
            *item = fg_runner_seq(&p->runner, i, a->tokens + a->count - 1, a->count - 1,
                                  1 + a->guess_count);
            item->sample = true;
            item->sampling.temperature = (float)i * 0.4f;
            item->sampling.seed = i;
            item->sample_rows = a->guess_count > 0 ? a->guess_count + 1 : 0;
            item->tokens_out = a->choices;
            item->history = a->tokens;
            owners[step.seq_count] = a;
            asks[step.seq_count] = (fg_step_ask){ .item = step.seq_count,
                                                  .place = last_place - i,
                                                  .wanted = guesses,
                                                  .guesses_out = a->next };
            step.seq_count++;
        }
        step.ask_count = guesses > 0 ? step.seq_count : 0;
        more = step.seq_count > 0;
        cr_assert_eq(fg_runner_step(&p->runner, &step, &err), FG_OK, "%s", err.text);
        cr_assert(step.drafted_out.caught <= CATCH_UP);
        for (uint32_t i = 0; i < step.seq_count; i++) {
            take(owners[i], &items[i]);
            owners[i]->guess_count = step.ask_count > 0 ? asks[i].count_out : 0;
            memcpy(owners[i]->guesses, owners[i]->next, sizeof owners[i]->next);
        }
    }
    return steps;
}

Test(draft_model, answers_are_those_without_it)
{
    static const char *const devices[] = { NULL, "cuda:0" };
    static answer plain[SEQS], guessed[SEQS];
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    for (size_t d = 0; d < 2; d++) {
        for (uint64_t seed = 31; seed < 33; seed++) { /* the model itself, and another one */
            static pair p;
            fg_error err = { 0 };
            make_pair(&p, devices[d], seed);
            cr_assert_eq(fg_runner_open(&p.options, &p.runner, &err), FG_OK, "%s", err.text);
            cr_assert_not_null(fg_engine_started(p.runner.engine).draft_weights);
            uint32_t steps = answer_all(&p, plain, 0);
            cr_assert_eq(steps, (uint32_t)WANTED);
            uint32_t fewer = answer_all(&p, guessed, GUESSES);
            for (uint32_t i = 0; i < SEQS; i++) {
                cr_assert(memcmp(plain[i].tokens, guessed[i].tokens,
                                 (PROMPT + WANTED) * sizeof plain[i].tokens[0]) == 0,
                          "answer %u", i);
                cr_assert(guessed[i].drafted > 0);
                cr_assert(seed != 31 || guessed[i].right == guessed[i].drafted,
                          "answer %u: %lu of %lu guesses were right", i,
                          (unsigned long)guessed[i].right, (unsigned long)guessed[i].drafted);
                cr_assert(seed == 31 || guessed[i].right < guessed[i].drafted);
            }
            cr_assert(seed != 31 || fewer < 30, "%u steps", fewer);
            fg_runner_close(&p.runner);
            unmake_pair(&p);
        }
    }
}

static bool open_once(void *ctx)
{
    pair *p = ctx;
    if (fg_runner_open(&p->options, &p->runner, NULL) != FG_OK) {
        return false;
    }
    fg_runner_close(&p->runner);
    return true;
}

Test(draft_model, it_can_fail_at_each_allocation)
{
    static pair p;
    make_pair(&p, NULL, 31);
    p.options.thread_count = 1;
    cr_assert(fg_fault_each(open_once, &p) > 20);
    unmake_pair(&p);
}

/* What one of them has more is said to nobody. */
Test(draft_model, one_of_them_may_have_more_tokens)
{
    static const fg_tiny_vocab vocabs[] = { FG_TINY_BARE, FG_TINY_MANY };
    static answer plain[SEQS], guessed[SEQS];
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
        static pair p;
        fg_error err = { 0 };
        make_pair_of(&p, NULL, 32, vocabs[v]);
        cr_assert_eq(fg_runner_open(&p.options, &p.runner, &err), FG_OK, "%s", err.text);
        cr_assert_neq(p.draft_hparams.vocab_size, p.runner.hparams.vocab_size);
        answer_all(&p, plain, 0);
        answer_all(&p, guessed, GUESSES);
        for (uint32_t i = 0; i < SEQS; i++) {
            cr_assert(memcmp(plain[i].tokens, guessed[i].tokens,
                             (PROMPT + WANTED) * sizeof plain[i].tokens[0]) == 0,
                      "answer %u", i);
        }
        fg_runner_close(&p.runner);
        unmake_pair(&p);
    }
}
