#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/bench_model.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/engine/tp.h"

enum { TOKENS_MAX = 1 << 20, BATCH_MAX = 1024, REPEAT_MAX = 100, VERIFY_MAX = 64 };

typedef struct throughput_config {
    const char *model, *prompt, *batch, *verify, *device, *cpu_isa, *kv_dtype;
    uint32_t threads, ranks, generate, depth, repeat, chunk;
    int way; /* fg_tp_way */
    bool json;
} throughput_config;

#define AT(member) .offset = offsetof(throughput_config, member)
static const char group_what[] = "What is measured";
static const char group_how[] = "How";

static const fg_conf_choice ways[] = {
    { "auto", FG_TP_WAY_AUTO }, { "nccl", FG_TP_WAY_NCCL }, { "host", FG_TP_WAY_HOST }, { NULL, 0 }
};

static const fg_option options[] = {
    FG_BENCH_OPTION_MODEL(throughput_config, group_what),
    { .name = "prompt",
      .brief = 'p',
      .type = FG_OPTION_STRING,
      .default_text = "512",
      .group = group_what,
      .value_name = "LIST",
      AT(prompt),
      .help =
          "Prefill: prompts of so many tokens, one sequence, the last row's logits; pp512 in the "
          "table. 0: none." },
    { .name = "generate",
      .brief = 'n',
      .type = FG_OPTION_U32,
      .default_text = "128",
      .max = TOKENS_MAX,
      .group = group_what,
      .value_name = "N",
      AT(generate),
      .help =
          "Decode: so many greedy tokens for each sequence, each step begun before the last one "
          "was read, as a server does; tg128 in the table. 0: none." },
    { .name = "batch",
      .brief = 'b',
      .type = FG_OPTION_STRING,
      .default_text = "1,2,4,8,16",
      .group = group_what,
      .value_name = "LIST",
      AT(batch),
      .help = "Decode with so many sequences at once; tokens per second are those of all." },
    { .name = "verify",
      .type = FG_OPTION_STRING,
      .default_text = "0",
      .group = group_what,
      .value_name = "LIST",
      AT(verify),
      .help = "Steps of so many tokens of one sequence with logits for each, as when drafted "
              "tokens are "
              "verified; vf5 in the table. 0: none." },
    { .name = "depth",
      .brief = 'd',
      .type = FG_OPTION_U32,
      .default_text = "0",
      .max = TOKENS_MAX,
      .group = group_what,
      .value_name = "N",
      AT(depth),
      .help = "Tokens that each sequence of decode and verify has before, not timed." },
    FG_BENCH_OPTION_DEVICE(throughput_config, group_how),
    FG_BENCH_OPTION_THREADS(throughput_config, group_how),
    { .name = "tensor-parallel-size",
      .alias = "tp",
      .type = FG_OPTION_U32,
      .default_text = "1",
      .min = 1,
      .max = FG_TP_RANKS_MAX,
      .group = group_how,
      AT(ranks),
      .help = "Processes that compute together, as of `forge serve`; they share --threads." },
    { .name = "tp-gather",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = ways,
      .group = group_how,
      AT(way),
      .help = "How GPUs of several processes get each other's rows, as of `forge serve`." },
    FG_BENCH_OPTION_CPU_ISA(throughput_config, group_how),
    FG_BENCH_OPTION_KV_DTYPE(throughput_config, group_how),
    { .name = "chunk",
      .type = FG_OPTION_U32,
      .default_text = "512",
      .min = 1,
      .max = 65536,
      .group = group_how,
      .value_name = "N",
      AT(chunk),
      .help = "Tokens of a prompt that one step runs." },
    { .name = "repeat",
      .brief = 'r',
      .type = FG_OPTION_U32,
      .default_text = "3",
      .min = 1,
      .max = REPEAT_MAX,
      .group = group_how,
      .value_name = "N",
      AT(repeat),
      .help = "Runs of each test, after one step that is not counted." },
    FG_BENCH_OPTION_JSON(
        throughput_config, group_how,
        "One JSON object per line: test, tokens, batch, tokens_per_s, share_of_probe and more."),
};
#undef AT

const fg_conf_spec fg_bench_throughput_spec = {
    .command = "forge bench throughput",
    .intro =
        "Tokens per second of a model file, as llama-bench gives them, and the share of what this\n"
        "machine could do: the time that the weights' multiply-adds would take at the speed of "
        "its\n"
        "int8, bf16 or float probe, or the reading of the weights and of the KV cache at the speed "
        "of "
        "its\n"
        "memory probe, whichever is longer. Once with the probes at their best before and after a\n"
        "test, once with what they sustain every 0.1 s between its steps, others included. On a "
        "GPU\n"
        "there are no probes, and no shares.\n"
        "\n"
        "  forge bench throughput --model F                       pp512 and tg128 for 1 to 16 "
        "sequences\n"
        "  forge bench throughput -m F -t 2 -p 512,8192 -n 0      a long prompt against a short "
        "one\n"
        "  forge bench throughput -m F -p 0 -b 1 --verify 5       five tokens in one pass against "
        "one\n"
        "\n"
        "Token ids are (7919 i + 17) mod the vocabulary's size, so that others can run the same "
        "ones.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* ---- one test ---- */

typedef enum test_kind { PREFILL, DECODE, VERIFY } test_kind;

typedef struct test {
    test_kind kind;
    uint32_t tokens; /* of the prompt; per sequence; per step */
    uint32_t batch;
} test;

/* Three sets of items: one that runs, one that waits for it, and the one before, whose results are still
 * read by the first. */
enum { STEP_SETS = 3 };

typedef struct bench {
    throughput_config config;
    fg_bench_model model;
    fg_step steps[STEP_SETS];
    fg_step_seq *items[STEP_SETS]; /* [largest batch] */
    uint32_t chosen[VERIFY_MAX];
    fg_clock clock;
} bench;

/* Steps `first` .. `first + count - 1` of one token for each of `batch` sequences, one always waiting behind another. */
static fg_status run_decode(bench *b, uint32_t batch, uint32_t first, uint32_t count, fg_error *err)
{
    uint32_t begun = 0, ended = 0;
    fg_status status = FG_OK;
    while (status == FG_OK && ended < count) {
        if (begun < count && begun - ended < FG_ENGINE_STEPS_MAX) {
            fg_step_seq *items = b->items[begun % STEP_SETS];
            const fg_step_seq *before = b->items[(begun + STEP_SETS - 1) % STEP_SETS];
            for (uint32_t s = 0; s < batch; s++) {
                items[s] =
                    fg_bench_model_item(&b->model, s, batch, b->config.depth + first + begun, 1);
                items[s].sample = true;
                items[s].follows = begun > 0 ? &before[s] : NULL;
            }
            fg_step *step = &b->steps[begun % STEP_SETS];
            *step = (fg_step){ .seqs = items, .seq_count = batch };
            status = fg_engine_begin(b->model.runner.engine, step, err);
            begun += status == FG_OK;
        } else {
            (void)fg_runner_wait(&b->model.runner);
            ended++;
        }
    }
    while (ended < begun) {
        (void)fg_runner_wait(&b->model.runner);
        ended++;
    }
    return status;
}

static fg_status run_verify(bench *b, uint32_t tokens, uint32_t count, fg_error *err)
{
    fg_status status = FG_OK;
    for (uint32_t i = 0; status == FG_OK && i < count; i++) {
        /* The same slots again, as when all drafts but none of the answer are thrown away. */
        fg_step_seq item = fg_bench_model_item(&b->model, 0, 1, b->config.depth, tokens);
        item.sample = true;
        item.sample_rows = tokens;
        item.tokens_out = b->chosen;
        fg_step step = { .seqs = &item, .seq_count = 1 };
        status = fg_runner_step(&b->model.runner, &step, err);
    }
    return status;
}

static uint32_t steps_of(const bench *b, const test *t)
{
    return t->kind == PREFILL ? (t->tokens + b->config.chunk - 1) / b->config.chunk
                              : b->config.generate;
}

/* Tokens that all sequences together run in one run of the test. */
static uint32_t tokens_of(const bench *b, const test *t)
{
    return t->kind == PREFILL  ? t->tokens
           : t->kind == DECODE ? b->config.generate * t->batch
                               : b->config.generate * t->tokens;
}

/* Steps `first` and on; a prompt is run as a whole, or one token of it. */
static fg_status run_steps(bench *b, const test *t, uint32_t first, uint32_t count, fg_error *err)
{
    return t->kind == PREFILL
               ? fg_bench_model_prompt(&b->model, 0, 1, count < steps_of(b, t) ? 1 : t->tokens,
                                       b->config.chunk, err)
           : t->kind == DECODE ? run_decode(b, t->batch, first, count, err)
                               : run_verify(b, t->tokens, count, err);
}

/* Seconds that the machine's limits leave for one run of the test. */
static double limit_of(const bench *b, const test *t, const fg_bench_rates *rates,
                       const char **probe_out)
{
    const fg_kv_layout *layout = &b->model.runner.layout;
    double kv_token_bytes = (double)layout->block_bytes / layout->block_size;
    double steps = steps_of(b, t);
    fg_bench_work work = { .rows = tokens_of(b, t), .weight_reads = steps };
    if (t->kind == PREFILL) {
        work.head_rows = 1.0;
    } else {
        double context = b->config.depth + (t->kind == DECODE ? steps / 2.0 : 0.0);
        work.head_rows = work.rows;
        work.kv_bytes = steps * (t->kind == DECODE ? t->batch : 1) * context * kv_token_bytes;
    }
    return fg_bench_limit(&b->model.cost, &work, rates, probe_out);
}

/* Memory that others use as well changes within a second: a run is cut into slices, between which the probes see what
 * the machine gives then. */
enum { SLICE_MS = 100, SLICE_PROBE_MS = 20 };

/* What the runs of a test came to. */
typedef struct samples {
    double tokens_per_s[REPEAT_MAX];
    double seconds;           /* of all slices */
    double sustained_s;       /* what the probes beside each of them would have left */
    fg_bench_rates sustained; /* their mean */
    uint32_t slice_count;
} samples;

static fg_bench_rates probe_best(const bench *b)
{
    if (b->model.peaks == NULL) {
        return (fg_bench_rates){ 0 };
    }
    return fg_bench_rates_measure(b->model.peaks, b->model.threads, &b->model.cost, 0);
}

static fg_bench_rates probe_sustained(const bench *b)
{
    if (b->model.peaks == NULL) {
        return (fg_bench_rates){ 0 };
    }
    return fg_bench_rates_measure(b->model.peaks, b->model.threads, &b->model.cost, SLICE_PROBE_MS);
}

static void add_slice(const bench *b, const test *t, uint32_t steps, double seconds,
                      const fg_bench_rates *beside, samples *out)
{
    const char *probe;
    out->seconds += seconds;
    out->sustained_s += limit_of(b, t, beside, &probe) * steps / steps_of(b, t);
    out->slice_count++;
    fg_bench_rates_lean(&out->sustained, beside, 1.0 / out->slice_count);
}

static fg_status run_timed(bench *b, const test *t, uint32_t first, uint32_t count,
                           double *seconds_out, fg_error *err)
{
    uint64_t began_at_ns = fg_clock_now_ns(&b->clock);
    fg_status status = run_steps(b, t, first, count, err);
    *seconds_out = (double)(fg_clock_now_ns(&b->clock) - began_at_ns) * 1e-9;
    return status;
}

/* One run, in slices of so many steps. `before`: what the probes said last. */
static fg_status run_in_slices(bench *b, const test *t, uint32_t slice, fg_bench_rates *before,
                               samples *out, double *seconds_out, fg_error *err)
{
    uint32_t steps = steps_of(b, t);
    fg_status status = FG_OK;
    *seconds_out = 0.0;
    for (uint32_t first = 0; status == FG_OK && first < steps; first += slice) {
        uint32_t count = steps - first < slice ? steps - first : slice;
        double seconds;
        status = run_timed(b, t, first, count, &seconds, err);
        fg_bench_rates beside = *before;
        *before = probe_sustained(b);
        fg_bench_rates_lean(&beside, before, 0.5);
        add_slice(b, t, count, seconds, &beside, out);
        *seconds_out += seconds;
    }
    return status;
}

static uint32_t slice_of(const bench *b, const test *t, double step_s)
{
    uint32_t steps = steps_of(b, t);
    double fit = SLICE_MS * 1e-3 / step_s;
    return t->kind == PREFILL || fit >= steps ? steps : fit < 1.0 ? 1 : (uint32_t)fit;
}

static fg_status measure(bench *b, const test *t, samples *out, fg_error *err)
{
    fg_status status = FG_OK;
    double step_s = 0.0;
    *out = (samples){ 0 };
    for (uint32_t s = 0; t->kind != PREFILL && status == FG_OK && s < t->batch; s++) {
        status =
            fg_bench_model_prompt(&b->model, s, t->batch, b->config.depth, b->config.chunk, err);
    }
    for (int i = 0; status == FG_OK && i < 2; i++) {
        status = run_timed(b, t, 0, 1, &step_s, err);
    }
    fg_bench_rates before = probe_sustained(b);
    for (uint32_t i = 0; status == FG_OK && i < b->config.repeat; i++) {
        double seconds;
        status = run_in_slices(b, t, slice_of(b, t, step_s), &before, out, &seconds, err);
        out->tokens_per_s[i] = tokens_of(b, t) / seconds;
    }
    return status;
}

static void name_of(const bench *b, const test *t, char *out, size_t size)
{
    char depth[24] = "";
    if (b->config.depth > 0 && t->kind != PREFILL) {
        snprintf(depth, sizeof depth, " @ d%u", b->config.depth);
    }
    if (t->kind == DECODE && t->batch > 1) {
        snprintf(out, size, "tg%u b=%u%s", b->config.generate, t->batch, depth);
    } else {
        const char *kind = t->kind == PREFILL ? "pp" : t->kind == DECODE ? "tg" : "vf";
        uint32_t count = t->kind == DECODE ? b->config.generate : t->tokens;
        snprintf(out, size, "%s%u%s", kind, count, depth);
    }
}

/* ---- output ---- */

static void print_head(const bench *b)
{
    if (b->config.json) {
        return;
    }
    if (b->model.peaks != NULL) {
        printf("| model | size | params | backend | threads | test | t/s | best | share of limit | "
               "sustained |\n"
               "| --- | --: | --: | --- | --: | --: | --: | --: | --: | --: |\n");
    } else {
        printf("The probes are the host's: no shares on %s.\n\n"
               "| model | size | params | backend | test | t/s | best |\n"
               "| --- | --: | --: | --- | --: | --: | --: |\n",
               b->model.device);
    }
    fflush(stdout);
}

/* What a test came to. */
typedef struct result {
    char name[64];
    fg_bench_stats stats;
    fg_bench_rates best, sustained; /* of the probes */
    double limit_s;                 /* for one run, by the best */
    const char *probe;
    double share, sustained_share;
} result;

static result result_of(const bench *b, const test *t, const samples *runs, fg_bench_rates best)
{
    result r = { .stats = fg_bench_stats_of(runs->tokens_per_s, b->config.repeat), .best = best };
    r.sustained = runs->sustained;
    r.limit_s = limit_of(b, t, &r.best, &r.probe);
    r.share = r.stats.mean * r.limit_s / tokens_of(b, t);
    r.sustained_share = runs->sustained_s / runs->seconds;
    name_of(b, t, r.name, sizeof r.name);
    return r;
}

static void put_probes(fg_buf *line, const char *prefix, const fg_bench_rates *rates)
{
    fg_buf_printf(line,
                  ",\"%s_int8_gmac_s\":%.2f,\"%s_bf16_gmac_s\":%.2f,\"%s_float_gmac_s\":%.2f,"
                  "\"%s_read_gb_s\":%.2f",
                  prefix, rates->int8 * 1e-9, prefix, rates->bf16 * 1e-9, prefix,
                  rates->floats * 1e-9, prefix, rates->read * 1e-9);
}

static void print_json(const bench *b, const test *t, const result *r)
{
    const fg_hparams *h = &b->model.runner.hparams;
    fg_buf line;
    fg_buf_init(&line, 0);
    fg_buf_puts(&line, "{\"model\":\"");
    fg_buf_json_escape(&line, h->name, strlen(h->name));
    fg_buf_printf(
        &line,
        "\",\"size_bytes\":%.0f,\"params\":%llu,\"backend\":\"%s\",\"isa\":\"%s\","
        "\"threads\":%u,\"ranks\":%u,\"test\":\"%s\",\"tokens\":%u,\"batch\":%u,\"depth\":%u,",
        (double)fg_weights_size_bytes(b->model.runner.weights),
        (unsigned long long)b->model.cost.params, b->model.device, b->model.isa, b->model.threads,
        b->config.ranks, r->name, tokens_of(b, t), t->batch,
        t->kind == PREFILL ? 0 : b->config.depth);
    fg_buf_printf(&line,
                  "\"repeat\":%u,\"tokens_per_s\":%.3f,\"stddev\":%.3f,\"best\":%.3f,"
                  "\"step_ms\":%.4f",
                  b->config.repeat, r->stats.mean, r->stats.deviation, r->stats.best,
                  1e3 * tokens_of(b, t) / steps_of(b, t) / r->stats.mean);
    if (b->model.peaks != NULL) {
        fg_buf_printf(&line,
                      ",\"limit_tokens_per_s\":%.3f,\"share_of_probe\":%.4f,"
                      "\"share_of_sustained\":%.4f,\"probe\":\"%s\"",
                      tokens_of(b, t) / r->limit_s, r->share, r->sustained_share, r->probe);
        put_probes(&line, "probe", &r->best);
        put_probes(&line, "sustained", &r->sustained);
    }
    fg_buf_puts(&line, "}\n");
    if (!line.failed) {
        fwrite(line.data, 1, line.size, stdout);
    }
    fg_buf_deinit(&line);
}

static void print_result(const bench *b, const test *t, const result *r)
{
    if (b->config.json) {
        print_json(b, t, r);
    } else if (b->model.peaks == NULL) {
        printf("| %s | %.2f MiB | %.2f M | %s %s | %s | %.2f ± %.2f | %.2f |\n",
               b->model.runner.hparams.name,
               (double)fg_weights_size_bytes(b->model.runner.weights) / 1048576.0,
               (double)b->model.cost.params * 1e-6, b->model.device, b->model.isa, r->name,
               r->stats.mean, r->stats.deviation, r->stats.best);
    } else {
        printf("| %s | %.2f MiB | %.2f M | cpu %s | %u | %s | %.2f ± %.2f | %.2f | %.1f %% of %s | "
               "%.1f %% |\n",
               b->model.runner.hparams.name,
               (double)fg_weights_size_bytes(b->model.runner.weights) / 1048576.0,
               (double)b->model.cost.params * 1e-6, b->model.isa, b->model.threads, r->name,
               r->stats.mean, r->stats.deviation, r->stats.best, 100.0 * r->share, r->probe,
               100.0 * r->sustained_share);
    }
    fflush(stdout);
}

/* ---- all tests ---- */

enum { TESTS_MAX = 3 * FG_BENCH_LIST_MAX };

typedef struct plan {
    test tests[TESTS_MAX];
    uint32_t count;
    uint32_t prompt_max, batch_max, verify_max;
} plan;

static void add_tests(plan *p, test_kind kind, const fg_bench_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        bool is_batch = kind == DECODE;
        p->tests[p->count++] = (test){ .kind = kind,
                                       .tokens = is_batch ? 1 : list->items[i],
                                       .batch = is_batch ? list->items[i] : 1 };
        uint32_t *max = kind == PREFILL  ? &p->prompt_max
                        : kind == DECODE ? &p->batch_max
                                         : &p->verify_max;
        *max = list->items[i] > *max ? list->items[i] : *max;
    }
}

static fg_status make_plan(const throughput_config *c, plan *p, fg_error *err)
{
    fg_bench_list prompts, batches, drafts;
    fg_status status = fg_bench_list_parse("--prompt", c->prompt, TOKENS_MAX, &prompts, err);
    if (status == FG_OK) {
        status = fg_bench_list_parse("--batch", c->batch, BATCH_MAX, &batches, err);
    }
    if (status == FG_OK) {
        status = fg_bench_list_parse("--verify", c->verify, VERIFY_MAX, &drafts, err);
    }
    if (status != FG_OK) {
        return status;
    }
    *p = (plan){ 0 };
    add_tests(p, PREFILL, &prompts);
    if (c->generate > 0) {
        add_tests(p, DECODE, &batches);
        add_tests(p, VERIFY, &drafts);
    }
    return p->count > 0
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT,
                         "nothing to measure: --prompt 512, or --generate 128 with --batch 1 or "
                         "--verify 5");
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static fg_status open_bench(bench *b, const plan *p, fg_error *err)
{
    const throughput_config *c = &b->config;
    fg_bench_model_options o = {
        .path = c->model,
        .device = c->device,
        .cpu_isa = c->cpu_isa,
        .kv_dtype = c->kv_dtype,
        .threads = c->threads,
        .ranks = c->ranks,
        .way = (fg_tp_way)c->way,
        .step_tokens = larger(c->chunk, p->verify_max),
        .seqs = p->batch_max,
        .prompt = p->prompt_max,
        .context = c->depth + larger(c->generate, p->verify_max),
    };
    fg_status status = fg_bench_model_open(&b->model, &o, err);
    for (int i = 0; status == FG_OK && i < STEP_SETS; i++) {
        b->items[i] = fg_mem_array(larger(p->batch_max, 1), sizeof *b->items[i]);
        if (b->items[i] == NULL) {
            status = fg_fail(err, FG_AGAIN, "out of memory for %u sequences", p->batch_max);
        }
    }
    return status;
}

static void close_bench(bench *b)
{
    for (int i = 0; i < STEP_SETS; i++) {
        fg_mem_free(b->items[i]);
    }
    fg_bench_model_close(&b->model);
    fg_mem_free(b);
}

static fg_status run_tests(bench *b, const plan *p, fg_error *err)
{
    samples runs;
    print_head(b);
    fg_bench_rates before = probe_best(b);
    for (uint32_t i = 0; i < p->count; i++) {
        fg_status status = measure(b, &p->tests[i], &runs, err);
        if (status != FG_OK) {
            return status;
        }
        fg_bench_rates after = probe_best(b);
        result r = result_of(b, &p->tests[i], &runs, fg_bench_rates_max(before, after));
        print_result(b, &p->tests[i], &r);
        before = after;
    }
    return FG_OK;
}

static fg_status run_throughput(const void *config, fg_error *err)
{
    const throughput_config *c = config;
    plan p;
    fg_status status = make_plan(c, &p, err);
    if (status != FG_OK) {
        return status;
    }
    bench *b = fg_mem_alloc(sizeof *b);
    if (b == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    b->config = *c;
    b->clock = fg_clock_real();
    status = open_bench(b, &p, err);
    if (status == FG_OK) {
        status = run_tests(b, &p, err);
    }
    close_bench(b);
    return status;
}

const fg_bench_form fg_bench_throughput = {
    .word = "throughput",
    .spec = &fg_bench_throughput_spec,
    .config_bytes = sizeof(throughput_config),
    .run = run_throughput,
};
