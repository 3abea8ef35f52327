/*
 * logits_tool MODEL IDS_FILE N_STEPS OUT_FILE
 *
 * For each line of IDS_FILE (token ids separated by spaces: a prompt) runs the prompt and N_STEPS
 * greedy steps, and writes per step: u32 token, f32[vocab] the logits that chose it, little-endian.
 * The comparison with an independent reference reads this. KV is kept as FORGE_KV_DTYPE says
 * ("auto"); the instruction set is FORGE_CPU_ISA's, the device FORGE_TEST_DEVICE's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/engine/runner.h"

enum { LINE_TOKENS_MAX = 4096 };

static uint32_t parse_line(char *line, uint32_t *tokens)
{
    uint32_t count = 0;
    for (char *word = strtok(line, " \t\r\n"); word != NULL && count < LINE_TOKENS_MAX;
         word = strtok(NULL, " \t\r\n")) {
        tokens[count++] = (uint32_t)strtoul(word, NULL, 10);
    }
    return count;
}

static fg_status run_line(fg_runner *runner, const uint32_t *tokens, uint32_t count,
                          uint32_t step_count, float *logits, FILE *out, fg_error *err)
{
    fg_step_seq last = { .sample = true, .logits_out = logits, .sampling = { .top_p = 1.0f } };
    fg_status status = fg_runner_prompt(runner, 0, tokens, count, 512, &last, err);
    for (uint32_t i = 0; status == FG_OK && i < step_count; i++) {
        uint32_t token = last.token_out;
        if (fwrite(&token, sizeof token, 1, out) != 1 ||
            fwrite(logits, sizeof(float), runner->hparams.vocab_size, out) !=
                runner->hparams.vocab_size) {
            return fg_fail(err, FG_BROKEN, "cannot write the logits");
        }
        if (i + 1 == step_count) {
            break;
        }
        last = fg_runner_seq(runner, 0, &token, count + i, 1);
        last.sample = true;
        last.logits_out = logits;
        fg_step step = { .seqs = &last, .seq_count = 1 };
        status = fg_runner_step(runner, &step, err);
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: logits_tool MODEL IDS_FILE N_STEPS OUT_FILE\n");
        return 2;
    }
    const char *dtype = getenv("FORGE_KV_DTYPE");
    uint32_t kv_dtype;
    if (!fg_dtype_find_kv(dtype != NULL ? dtype : "auto", &kv_dtype)) {
        fprintf(stderr, "logits_tool: FORGE_KV_DTYPE names no type of the KV cache\n");
        return 2;
    }
    fg_runner_options options = {
        .path = argv[1],
        .kv_dtype = kv_dtype,
        .cpu_isa = getenv("FORGE_CPU_ISA"),
        .device = getenv("FORGE_TEST_DEVICE"),
        .thread_count = 2,
    };
    static uint32_t tokens[LINE_TOKENS_MAX];
    static char line[16 * LINE_TOKENS_MAX];
    fg_runner runner;
    fg_error err = { 0 };
    fg_status status = fg_runner_open(&options, &runner, &err);
    if (status != FG_OK) {
        fprintf(stderr, "logits_tool: %s\n", err.text);
        return 2;
    }
    float *logits = fg_mem_array(runner.hparams.vocab_size, sizeof(float));
    FILE *ids = fopen(argv[2], "re");
    FILE *out = fopen(argv[4], "we");
    if (logits == NULL || ids == NULL || out == NULL) {
        status = fg_fail(&err, FG_BROKEN, "cannot open %s or %s", argv[2], argv[4]);
    }
    while (status == FG_OK && fgets(line, sizeof line, ids) != NULL) {
        uint32_t count = parse_line(line, tokens);
        if (count > 0) {
            status = run_line(&runner, tokens, count, (uint32_t)strtoul(argv[3], NULL, 10), logits,
                              out, &err);
        }
    }
    if (out != NULL && fclose(out) != 0 && status == FG_OK) {
        status = fg_fail(&err, FG_BROKEN, "cannot write %s", argv[4]);
    }
    if (ids != NULL) {
        fclose(ids);
    }
    fg_mem_free(logits);
    fg_runner_close(&runner);
    if (status != FG_OK) {
        fprintf(stderr, "logits_tool: %s\n", err.text);
        return 1;
    }
    return 0;
}
