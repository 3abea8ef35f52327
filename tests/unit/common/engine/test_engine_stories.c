/* A real model's stored greedy texts, byte for byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/model/tokenizer.h"
#include "tests/unit/common/engine/rig.h"

enum { TEXT_MAX = 4096, TOKENS_MAX = 256 };

static void corpus_path(const char *corpus, const char *name, char path[TEXT_MAX])
{
    snprintf(path, TEXT_MAX, "%s/models/%s", corpus, name);
}

static size_t read_text(const char *path, char text[TEXT_MAX])
{
    FILE *file = fopen(path, "re");
    cr_assert_not_null(file, "%s is missing", path);
    size_t length = fread(text, 1, TEXT_MAX, file);
    fclose(file);
    return length;
}

/* The prompt (run after BOS) and the greedy tokens after it, `total` together, as the stored files
 * have them: one text and a line end. */
static size_t greedy_text(fg_runner *runner, const fg_tokenizer *tokenizer, const char *prompt,
                          uint32_t total, char text[TEXT_MAX])
{
    uint32_t tokens[TOKENS_MAX];
    size_t count;
    fg_error err = { 0 };
    cr_assert_eq(fg_tokenizer_encode(tokenizer, prompt, strlen(prompt),
                                     (fg_encode_options){ .add_bos = true }, tokens, TOKENS_MAX,
                                     &count, &err),
                 FG_OK, "%s", err.text);
    fg_detok detok;
    fg_detok_init(&detok, prompt[0] == 0);
    fg_step_seq last = { .sample = true, .sampling = { .top_p = 1.0f } };
    cr_assert_eq(fg_runner_prompt(runner, 0, tokens, (uint32_t)count, 16, &last, &err), FG_OK);
    size_t length = strlen(prompt);
    memcpy(text, prompt, length);
    for (uint32_t i = 0; i + count - 1 < total; i++) {
        uint32_t token = last.token_out;
        length += fg_detok_push(&detok, tokenizer, token, text + length, TEXT_MAX - length);
        last = fg_runner_seq(runner, 0, &token, (uint32_t)count + i, 1);
        last.sample = true;
        fg_step step = { .seqs = &last, .seq_count = 1 };
        cr_assert_eq(fg_runner_step(runner, &step, &err), FG_OK, "%s", err.text);
    }
    text[length++] = '\n';
    return length;
}

static const struct {
    const char *file;
    const char *prompt;
} stories[] = {
    { "greedy-200.txt", "" },
    { "greedy-200-prompt-lily.txt", "Lily and Tom went to the" },
};

Test(engine_model, stories260k_reproduces_its_stored_greedy_texts)
{
    const char *corpus = getenv("FORGE_CORPUS");
    if (corpus == NULL) {
        cr_skip("FORGE_CORPUS is not set\n");
    }
    char path[TEXT_MAX];
    static const char *const isas[] = { "plain", "auto" };
    for (int i = 0; i < 2; i++) {
        corpus_path(corpus, "stories260K-f32.gguf", path);
        fg_runner runner;
        fg_error err = { 0 };
        fg_runner_options options = {
            .path = path, .kv_dtype = FG_F16, .context_max = 256, .cpu_isa = isas[i]
        };
        cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_OK, "%s", err.text);
        fg_tokenizer *tokenizer;
        cr_assert_eq(fg_tokenizer_open(runner.weights, &tokenizer, &err), FG_OK, "%s", err.text);
        for (size_t s = 0; s < sizeof stories / sizeof stories[0]; s++) {
            char want[TEXT_MAX];
            char got[TEXT_MAX];
            corpus_path(corpus, stories[s].file, path);
            size_t want_length = read_text(path, want);
            size_t got_length = greedy_text(&runner, tokenizer, stories[s].prompt, 200, got);
            cr_assert(got_length == want_length && memcmp(got, want, want_length) == 0,
                      "%s differs: got \"%.*s\"", stories[s].file, (int)got_length, got);
        }
        fg_tokenizer_close(tokenizer);
        fg_runner_close(&runner);
    }
}

/* The stored text again, and three sampled ones beside it in the same steps. */
Test(engine_model, stories260k_says_the_same_with_two_steps_in_flight)
{
    const char *corpus = getenv("FORGE_CORPUS");
    if (corpus == NULL) {
        cr_skip("FORGE_CORPUS is not set\n");
    }
    char path[TEXT_MAX];
    corpus_path(corpus, "stories260K-f32.gguf", path);
    fg_runner_options options = { .path = path,
                                  .kv_dtype = FG_F16,
                                  .context_max = TOKENS_MAX,
                                  .seqs_max = RIG_SEQS,
                                  .thread_count = 2 };
    model_rig rig;
    model_rig_open(&rig, &options);
    fg_tokenizer *tokenizer;
    fg_error err = { 0 };
    cr_assert_eq(fg_tokenizer_open(rig.runner.weights, &tokenizer, &err), FG_OK, "%s", err.text);
    uint32_t bos[TOKENS_MAX];
    size_t count;
    cr_assert_eq(fg_tokenizer_encode(tokenizer, "", 0, (fg_encode_options){ .add_bos = true }, bos,
                                     TOKENS_MAX, &count, &err),
                 FG_OK);
    static request serial[RIG_SEQS];
    static request ahead[RIG_SEQS];
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        serial[i] = (request){ .prompt = bos,
                               .prompt_count = (uint32_t)count,
                               .wanted = 200,
                               .sampling = { .temperature = (float)i * 0.4f, .top_p = 1.0f },
                               .block_ids = rig.runner.block_ids + i * rig.runner.blocks_per_seq,
                               .block_count = rig.runner.blocks_per_seq };
    }
    memcpy(ahead, serial, sizeof ahead);
    rig_drive(&rig.driver, serial, RIG_SEQS, false, 1);
    rig_drive(&rig.driver, ahead, RIG_SEQS, true, 2);
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        cr_assert(memcmp(ahead[i].tokens, serial[i].tokens, sizeof ahead[i].tokens) == 0, "%u", i);
        cr_assert(memcmp(ahead[i].digests, serial[i].digests, sizeof ahead[i].digests) == 0, "%u",
                  i);
    }
    char want[TEXT_MAX];
    char got[TEXT_MAX];
    corpus_path(corpus, "greedy-200.txt", path);
    size_t want_length = read_text(path, want);
    fg_detok detok;
    fg_detok_init(&detok, true);
    size_t length = 0;
    for (uint32_t i = 0; i + count - 1 < 200; i++) {
        length +=
            fg_detok_push(&detok, tokenizer, ahead[0].tokens[i], got + length, TEXT_MAX - length);
    }
    got[length++] = '\n';
    cr_assert(length == want_length && memcmp(got, want, length) == 0, "got \"%.*s\"", (int)length,
              got);
    fg_tokenizer_close(tokenizer);
    model_rig_close(&rig);
}
