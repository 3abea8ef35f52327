/* What a model says of tokens that it is given: the bits that it says of such tokens where it chooses them, whatever the
 * chunks, the neighbours in a step, and whoever computes it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/engine/runner.h"
#include "common/engine/tp.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

enum { CONTEXT = 96, PROMPT = 90, SEQS = 3, LIKELY = 5, EMBEDDING_MAX = 512 };

typedef struct said {
    float chosen[PROMPT];
    uint32_t ranks[PROMPT];
    fg_likely likely[PROMPT * LIKELY];
    float embedding[EMBEDDING_MAX]; /* the state after the last token */
} said;

typedef struct computer {
    const char *name;
    const char *isa, *device;
    uint32_t threads, ranks;
} computer;

static const computer computers[] = {
    { "one thread", .isa = "plain", .threads = 1 },
    { "two threads", .isa = "auto", .threads = 2 },
    { "two ranks", .threads = 1, .ranks = 2 },
    { "a device", .device = "cuda:0", .threads = 2 },
};

static pid_t newest_rank;

static fg_status start_rank(void *ctx, uint32_t rank, int region_fd, int arena_fd, pid_t *pid_out,
                            fg_error *err)
{
    *pid_out = fork();
    if (*pid_out == 0) {
        _exit(fg_tp_follow(region_fd, arena_fd, rank));
    }
    newest_rank = *pid_out;
    return *pid_out > 0 ? FG_OK : fg_fail(err, FG_AGAIN, "fork");
}

static void open_computer(const computer *c, const char *path, fg_runner *runner)
{
    fg_error err = { 0 };
    const fg_tp_options tp = { .size = c->ranks, .start = start_rank };
    fg_runner_options options = { .path = path,
                                  .context_max = CONTEXT,
                                  .seqs_max = SEQS,
                                  .step_tokens_max = 2 * CONTEXT,
                                  .kv_dtype = FG_BF16,
                                  .thread_count = c->threads,
                                  .cpu_isa = c->isa,
                                  .device = c->device,
                                  .tp = c->ranks > 1 ? &tp : NULL };
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    cr_assert_eq(fg_runner_open(&options, runner, &err), FG_OK, "%s: %s", c->name, err.text);
}

static void write_model(const fg_tiny_llama *model, char *path)
{
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(model, &size_bytes);
    strcpy(path, "/tmp/forge-scores-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, bytes, size_bytes) == (ssize_t)size_bytes);
    close(fd);
    free(bytes);
}

static void make_prompt(uint64_t seed, uint32_t vocab_size, uint32_t *tokens)
{
    fg_rng rng = { .state = seed };
    for (uint32_t i = 0; i < PROMPT; i++) {
        tokens[i] = (uint32_t)fg_rng_below(&rng, vocab_size);
    }
}

/* From the rows of logits that tokens are chosen from, one token at a time. */
static void expect(fg_runner *runner, const uint32_t *tokens, said *out)
{
    uint32_t vocab_size = runner->hparams.vocab_size;
    float *logits = fg_mem_array(vocab_size, sizeof *logits);
    for (uint32_t i = 0; i + 1 < PROMPT; i++) {
        fg_step_seq seq = fg_runner_seq(runner, 0, tokens + i, i, 1);
        fg_logprobs row;
        seq.sample = true;
        seq.logits_out = logits;
        fg_step step = { .seqs = &seq, .seq_count = 1 };
        cr_assert_eq(fg_runner_step(runner, &step, NULL), FG_OK);
        fg_logprobs_of(logits, vocab_size, tokens[i + 1], LIKELY, &row);
        out->chosen[i] = row.chosen;
        out->ranks[i] = 1;
        for (uint32_t id = 0; id < vocab_size; id++) {
            bool before = logits[id] > logits[tokens[i + 1]] ||
                          (logits[id] == logits[tokens[i + 1]] && id < tokens[i + 1]);
            out->ranks[i] += before;
        }
        memcpy(out->likely + i * LIKELY, row.likely, sizeof *row.likely * LIKELY);
    }
    cr_assert(runner->hparams.embedding_length <= EMBEDDING_MAX);
    fg_step_seq last = fg_runner_seq(runner, 0, tokens + PROMPT - 1, PROMPT - 1, 1);
    last.sample = true;
    last.embedding_out = out->embedding;
    fg_step step = { .seqs = &last, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(runner, &step, NULL), FG_OK);
    fg_mem_free(logits);
}

/* Somebody else in the same step, who wants a token: drawn, or the highest. */
static fg_step_seq neighbour(const fg_runner *runner, const uint32_t *tokens, uint32_t index)
{
    fg_step_seq seq = fg_runner_seq(runner, 1, tokens + index % 7, 0, 5);
    seq.sample = true;
    seq.sampling = (fg_sampling){ .temperature = (float)(index % 2), .top_p = 1, .seed = 9 };
    return seq;
}

/* The prompt in chunks; the rows of the first `skipped` tokens were heard before. */
static void score(fg_runner *runner, const uint32_t *tokens, uint32_t chunk, uint32_t skipped,
                  said *out)
{
    for (uint32_t at = 0, index = 0; at < PROMPT; index++) {
        uint32_t count = PROMPT - at < chunk ? PROMPT - at : chunk;
        uint32_t end = at + count < PROMPT ? at + count : PROMPT - 1;
        uint32_t first = at > skipped ? at : skipped;
        fg_step_seq seqs[2] = { neighbour(runner, tokens, index),
                                fg_runner_seq(runner, 0, tokens + at, at, count) };
        seqs[1].sample = at + count == PROMPT;
        seqs[1].embedding_out = seqs[1].sample ? out->embedding : NULL;
        seqs[1].history = tokens;
        seqs[1].scores_first = first - at;
        if (first < end) {
            seqs[1].scores_out = (fg_scores){ .chosen = out->chosen + first,
                                              .ranks = out->ranks + first,
                                              .likely = out->likely + first * LIKELY,
                                              .count = end - first,
                                              .likely_count = LIKELY };
        }
        fg_step step = { .seqs = seqs, .seq_count = 2 };
        fg_error err = { 0 };
        cr_assert_eq(fg_runner_step(runner, &step, &err), FG_OK, "%s", err.text);
        cr_assert(!seqs[0].broken_out && !seqs[1].broken_out);
        at += count;
    }
}

static const uint32_t chunks[] = { 1, 7, 16, 40, PROMPT - 1, PROMPT };

static void check_computer(const computer *c, const char *path, const uint32_t *tokens, bool first,
                           said *want)
{
    fg_runner runner;
    open_computer(c, path, &runner);
    if (first) {
        expect(&runner, tokens, want);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        static said got;
        memset(&got, 0, sizeof got);
        score(&runner, tokens, chunks[i], 0, &got);
        cr_assert(memcmp(&got, want, sizeof got) == 0, "%s: chunks of %u", c->name, chunks[i]);
        memset(&got, 0, sizeof got);
        score(&runner, tokens, chunks[i], 33, &got);
        cr_assert(got.ranks[32] == 0 && memcmp(got.chosen + 33, want->chosen + 33,
                                               (PROMPT - 34) * sizeof(float)) == 0,
                  "%s: chunks of %u, some known", c->name, chunks[i]);
    }
    fg_runner_close(&runner);
    if (c->ranks > 1) {
        waitpid(newest_rank, NULL, 0);
    }
}

Test(engine_scores, are_the_bits_that_choices_have)
{
    static const fg_tiny_llama models[] = {
        { .seed = 41, .weight_type = FG_Q4_1 },
        { .seed = 42, .weight_type = FG_F32, .separate_output = true },
    };
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        char path[64];
        uint32_t tokens[PROMPT];
        static said want;
        write_model(&models[m], path);
        memset(&want, 0, sizeof want);
        for (size_t i = 0; i < sizeof computers / sizeof computers[0]; i++) {
            if (i == 0) {
                fg_runner runner;
                open_computer(&computers[0], path, &runner);
                make_prompt(7 + m, runner.hparams.vocab_size, tokens);
                fg_runner_close(&runner);
            }
            check_computer(&computers[i], path, tokens, i == 0, &want);
        }
        unlink(path);
    }
}

static void break_norm(const void *bytes, size_t size_bytes)
{
    fg_weights *weights;
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, NULL), FG_OK);
    const fg_tensor *tensor = fg_weights_find(weights, "output_norm.weight");
    cr_assert(tensor != NULL && tensor->type == FG_F32);
    ((float *)(uintptr_t)tensor->data)[3] = NAN;
    fg_weights_close(weights);
}

/* A state that is none breaks a row that only speaks, too. */
Test(engine_scores, a_broken_row_is_told)
{
    static const fg_tiny_llama model = { .seed = 43, .weight_type = FG_F32 };
    fg_runner runner;
    size_t size_bytes;
    uint32_t tokens[PROMPT];
    static said got;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner_options options = {
        .bytes = bytes, .size_bytes = size_bytes, .context_max = CONTEXT, .seqs_max = SEQS
    };
    break_norm(bytes, size_bytes);
    cr_assert_eq(fg_runner_open(&options, &runner, NULL), FG_OK);
    make_prompt(3, runner.hparams.vocab_size, tokens);
    fg_step_seq seq = fg_runner_seq(&runner, 0, tokens, 0, 20);
    seq.history = tokens;
    seq.scores_first = 4;
    seq.scores_out = (fg_scores){ .chosen = got.chosen,
                                  .ranks = got.ranks,
                                  .likely = got.likely,
                                  .count = 5,
                                  .likely_count = LIKELY };
    fg_step step = { .seqs = &seq, .seq_count = 1 };
    cr_assert_eq(fg_runner_step(&runner, &step, NULL), FG_OK);
    cr_assert(seq.broken_out);
    fg_runner_close(&runner);
    free(bytes);
}

static void too_many_rows(fg_step_seq *seq)
{
    seq->scores_out.count = 20;
}
static void rows_behind_the_last(fg_step_seq *seq)
{
    seq->scores_first = 16;
}
static void rows_that_overflow(fg_step_seq *seq)
{
    seq->scores_first = UINT32_MAX - 1;
}
static void no_history(fg_step_seq *seq)
{
    seq->history = NULL;
}
static void no_chosen(fg_step_seq *seq)
{
    seq->scores_out.chosen = NULL;
}
static void no_ranks(fg_step_seq *seq)
{
    seq->scores_out.ranks = NULL;
}
static void no_likely(fg_step_seq *seq)
{
    seq->scores_out.likely = NULL;
}
static void too_likely(fg_step_seq *seq)
{
    seq->scores_out.likely_count = FG_LOGPROBS_MAX + 1;
}
static void an_embedding_of_no_choice(fg_step_seq *seq)
{
    static float embedding[EMBEDDING_MAX];
    seq->sample = false;
    seq->embedding_out = embedding;
}
static void an_embedding_of_two_choices(fg_step_seq *seq)
{
    static float embedding[EMBEDDING_MAX];
    static uint32_t tokens[2];
    seq->sample_rows = 2;
    seq->tokens_out = tokens;
    seq->embedding_out = embedding;
}
static void no_token(fg_step_seq *seq)
{
    static uint32_t tokens[PROMPT] = { [9] = UINT32_MAX };
    seq->history = tokens;
}

Test(engine_scores, a_step_that_cannot_say_them_is_refused)
{
    static const struct {
        const char *why;
        void (*change)(fg_step_seq *seq);
    } cases[] = {
        { "rows", too_many_rows },
        { "rows", rows_behind_the_last },
        { "rows", rows_that_overflow },
        { "room", no_history },
        { "room", no_chosen },
        { "room", no_ranks },
        { "room", no_likely },
        { "room", too_likely },
        { "no token", no_token },
        { "embedding", an_embedding_of_no_choice },
        { "embedding", an_embedding_of_two_choices },
    };
    static const fg_tiny_llama model = { .seed = 43, .weight_type = FG_F32 };
    fg_runner runner;
    size_t size_bytes;
    uint32_t tokens[PROMPT];
    static said got;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner_options options = {
        .bytes = bytes, .size_bytes = size_bytes, .context_max = CONTEXT, .seqs_max = SEQS
    };
    cr_assert_eq(fg_runner_open(&options, &runner, NULL), FG_OK);
    make_prompt(3, runner.hparams.vocab_size, tokens);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_error err = { 0 };
        fg_step_seq seq = fg_runner_seq(&runner, 0, tokens, 0, 20);
        seq.sample = true;
        seq.history = tokens;
        seq.scores_first = 4;
        seq.scores_out = (fg_scores){ .chosen = got.chosen,
                                      .ranks = got.ranks,
                                      .likely = got.likely,
                                      .count = 15,
                                      .likely_count = LIKELY };
        fg_step step = { .seqs = &seq, .seq_count = 1 };
        cr_assert_eq(fg_runner_step(&runner, &step, NULL), FG_OK); /* as it is, it can */
        cases[i].change(&seq);
        cr_assert_eq(fg_runner_step(&runner, &step, &err), FG_BAD_INPUT, "case %zu", i);
        cr_assert_not_null(strstr(err.text, cases[i].why), "case %zu: %s", i, err.text);
    }
    fg_runner_close(&runner);
    free(bytes);
}
