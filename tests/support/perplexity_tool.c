/*
 * perplexity_tool MODEL IDS_FILE [CHUNK]
 *
 * Each line of IDS_FILE is a window of token ids. Runs it in steps of CHUNK (32) tokens and prints one line:
 * how many tokens were predicted (all but the first), and the sum of their negative log-probabilities in
 * nats. KV is kept as FORGE_KV_DTYPE says ("auto"); the instruction set is FORGE_CPU_ISA's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/engine/runner.h"

enum { WINDOW_MAX = 4096, CHUNK_MAX = 512, LINE_BYTES = WINDOW_MAX * 8 };

typedef struct tool {
    fg_runner runner;
    float *logits; /* [chunk][vocabulary] */
    uint32_t *chosen;
    uint32_t chunk;
    char line[LINE_BYTES];
    uint32_t ids[WINDOW_MAX];
} tool;

static uint32_t parse_line(tool *t)
{
    uint32_t count = 0;
    for (char *word = strtok(t->line, " \t\r\n"); word != NULL && count < WINDOW_MAX;
         word = strtok(NULL, " \t\r\n")) {
        t->ids[count++] = (uint32_t)strtoul(word, NULL, 10);
    }
    return count;
}

/* -log p(token) under one row of logits. */
static double nats(const float *logits, uint32_t count, uint32_t token)
{
    double peak = logits[0], sum = 0.0;
    for (uint32_t i = 1; i < count; i++) {
        peak = logits[i] > peak ? logits[i] : peak;
    }
    for (uint32_t i = 0; i < count; i++) {
        sum += exp(logits[i] - peak);
    }
    return log(sum) + peak - logits[token];
}

static fg_status run_window(tool *t, uint32_t count, double *nats_out, fg_error *err)
{
    uint32_t vocabulary = t->runner.hparams.vocab_size;
    *nats_out = 0.0;
    for (uint32_t at = 0; at < count; at += t->chunk) {
        uint32_t size = count - at < t->chunk ? count - at : t->chunk;
        fg_step_seq item = fg_runner_seq(&t->runner, 0, t->ids + at, at, size);
        item.sample = true;
        item.sample_rows = size;
        item.tokens_out = t->chosen;
        item.logits_out = t->logits;
        fg_step step = { .seqs = &item, .seq_count = 1 };
        fg_status status = fg_runner_step(&t->runner, &step, err);
        if (status != FG_OK) {
            return status;
        }
        for (uint32_t i = 0; i < size && at + i + 1 < count; i++) {
            *nats_out += nats(t->logits + (size_t)i * vocabulary, vocabulary, t->ids[at + i + 1]);
        }
    }
    return FG_OK;
}

static fg_status run_file(tool *t, FILE *file, fg_error *err)
{
    fg_status status = FG_OK;
    while (status == FG_OK && fgets(t->line, sizeof t->line, file) != NULL) {
        uint32_t count = parse_line(t);
        double sum = 0.0;
        status = count < 2 ? FG_OK : run_window(t, count, &sum, err);
        if (status == FG_OK && count >= 2) {
            printf("%u %.9f\n", count - 1, sum);
            fflush(stdout);
        }
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: perplexity_tool MODEL IDS_FILE [CHUNK]\n");
        return 2;
    }
    const char *dtype = getenv("FORGE_KV_DTYPE");
    uint32_t kv_dtype;
    if (!fg_dtype_find_kv(dtype != NULL ? dtype : "auto", &kv_dtype)) {
        fprintf(stderr, "perplexity_tool: FORGE_KV_DTYPE names no type of the KV cache\n");
        return 2;
    }
    static tool t;
    unsigned long chunk = argc > 3 ? strtoul(argv[3], NULL, 10) : 32;
    t.chunk = chunk >= 1 && chunk <= CHUNK_MAX ? (uint32_t)chunk : 32;
    fg_runner_options options = { .path = argv[1],
                                  .context_max = WINDOW_MAX,
                                  .step_tokens_max = t.chunk,
                                  .thread_count = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
                                  .kv_dtype = kv_dtype,
                                  .cpu_isa = getenv("FORGE_CPU_ISA") };
    fg_error err = { 0 };
    FILE *file = fopen(argv[2], "r");
    fg_status status = file == NULL ? fg_fail(&err, FG_BAD_INPUT, "cannot read %s", argv[2])
                                    : fg_runner_open(&options, &t.runner, &err);
    if (status == FG_OK) {
        t.logits = fg_mem_array((size_t)t.chunk * t.runner.hparams.vocab_size, sizeof(float));
        t.chosen = fg_mem_array(t.chunk, sizeof(uint32_t));
        status = t.logits == NULL || t.chosen == NULL ? fg_fail(&err, FG_AGAIN, "out of memory")
                                                      : run_file(&t, file, &err);
    }
    if (status != FG_OK) {
        fprintf(stderr, "perplexity_tool: %s\n", err.text);
    }
    fg_mem_free(t.logits);
    fg_mem_free(t.chosen);
    fg_runner_close(&t.runner);
    if (file != NULL) {
        fclose(file);
    }
    return status == FG_OK ? 0 : 1;
}
