#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/bench_model.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "kernels/cpu/op_clock.h"

enum { TOKENS_MAX = 65536, BATCH_MAX = 1024, STEPS_MAX = 100000 };

typedef struct step_config {
    const char *model, *prompt, *batch, *device, *cpu_isa, *kv_dtype;
    uint32_t threads, depth, steps;
    bool json;
} step_config;

#define AT(member) .offset = offsetof(step_config, member)
static const char group_what[] = "What is measured";
static const char group_how[] = "How";

static const fg_option options[] = {
    FG_BENCH_OPTION_MODEL(step_config, group_what),
    { .name = "batch",
      .brief = 'b',
      .type = FG_OPTION_STRING,
      .default_text = "1,16",
      .group = group_what,
      .value_name = "LIST",
      AT(batch),
      .help = "Decode steps of so many sequences." },
    { .name = "prompt",
      .brief = 'p',
      .type = FG_OPTION_STRING,
      .default_text = "512",
      .group = group_what,
      .value_name = "LIST",
      AT(prompt),
      .help = "Prefill steps of so many tokens of one sequence. 0: none." },
    { .name = "depth",
      .brief = 'd',
      .type = FG_OPTION_U32,
      .default_text = "128",
      .max = TOKENS_MAX,
      .group = group_what,
      .value_name = "N",
      AT(depth),
      .help = "Tokens that each sequence of a decode step has before." },
    { .name = "steps",
      .type = FG_OPTION_U32,
      .default_text = "32",
      .min = 1,
      .max = STEPS_MAX,
      .group = group_how,
      .value_name = "N",
      AT(steps),
      .help = "Decode steps that are averaged; of prefill steps an eighth as many." },
    FG_BENCH_OPTION_DEVICE(step_config, group_how),
    FG_BENCH_OPTION_THREADS(step_config, group_how),
    FG_BENCH_OPTION_CPU_ISA(step_config, group_how),
    FG_BENCH_OPTION_KV_DTYPE(step_config, group_how),
    FG_BENCH_OPTION_JSON(step_config, group_how,
                         "One JSON object per kind of step and part of it."),
};
#undef AT

const fg_conf_spec fg_bench_step_spec = {
    .command = "forge bench step",
    .intro = "Where the time of a step goes. The operations are timed on the thread that runs them "
             "and contain\n"
             "its waiting for the others at their end, which is given once more as `barrier`. "
             "`rest` is\n"
             "the engine's own work between them, sampling included. `wake` is the way from the "
             "caller to the\n"
             "engine's thread and back; a server that keeps a step waiting behind the one that "
             "runs does not\n"
             "pay it. A GPU's operations are not timed one by one: there all of a step is `rest`.\n"
             "\n"
             "  forge bench step --model F                   decode of 1 and 16 sequences, prefill "
             "of 512\n"
             "  forge bench step -m F -b 8 -p 0 -d 4096      eight long sequences",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

typedef struct bench {
    step_config config;
    fg_bench_model model;
    fg_step_seq *items;
    fg_op_clock ops;
    fg_clock clock;
} bench;

/* Sums over the steps of one kind. */
typedef struct sums {
    uint64_t wall_ns, wake_ns, compute_ns;
    uint32_t steps;
} sums;

static fg_status one_step(bench *b, fg_step *step, sums *s, fg_error *err)
{
    uint64_t began_ns = fg_clock_now_ns(&b->clock);
    fg_status status = fg_runner_step(&b->model.runner, step, err);
    uint64_t wall_ns = fg_clock_now_ns(&b->clock) - began_ns;
    s->wall_ns += wall_ns;
    s->compute_ns += step->compute_ns_out;
    s->wake_ns += wall_ns - step->compute_ns_out;
    s->steps++;
    return status;
}

static fg_status decode_steps(bench *b, uint32_t batch, uint32_t count, sums *s, fg_error *err)
{
    fg_status status = FG_OK;
    for (uint32_t i = 0; status == FG_OK && i < count; i++) {
        for (uint32_t seq = 0; seq < batch; seq++) {
            b->items[seq] = fg_bench_model_item(&b->model, seq, batch, b->config.depth + i, 1);
            b->items[seq].sample = true;
        }
        fg_step step = { .seqs = b->items, .seq_count = batch };
        status = one_step(b, &step, s, err);
    }
    return status;
}

static fg_status prefill_steps(bench *b, uint32_t tokens, uint32_t count, sums *s, fg_error *err)
{
    fg_status status = FG_OK;
    for (uint32_t i = 0; status == FG_OK && i < count; i++) {
        fg_step_seq item = fg_bench_model_item(&b->model, 0, 1, 0, tokens);
        item.sample = true;
        fg_step step = { .seqs = &item, .seq_count = 1 };
        status = one_step(b, &step, s, err);
    }
    return status;
}

/* A line of the table: sums over all steps. */
typedef struct line {
    const char *part;
    uint64_t ns, barrier_ns, calls;
} line;

static void print_line(const bench *b, const char *kind, const sums *s, const line *l)
{
    double us = (double)l->ns * 1e-3 / s->steps,
           barrier_us = (double)l->barrier_ns * 1e-3 / s->steps;
    double share = 100.0 * (double)l->ns / (double)s->wall_ns, calls = (double)l->calls / s->steps;
    if (b->config.json) {
        printf("{\"step\":\"%s\",\"part\":\"%s\",\"us\":%.3f,\"share_percent\":%.2f,\"calls\":%.1f,"
               "\"barrier_us\":%.3f}\n",
               kind, l->part, us, share, calls, barrier_us);
    } else {
        printf("| %s | %s | %.1f | %.1f | %.1f | %.1f |\n", kind, l->part, us, share, calls,
               barrier_us);
    }
}

static void print_sums(const bench *b, const char *kind, const sums *s)
{
    uint64_t rest_ns = s->compute_ns, rest_barrier_ns = b->ops.waited_ns;
    for (fg_op_kind op = 0; b->model.is_host && op < FG_OP_KIND_COUNT; op++) {
        line of = { fg_op_kind_name(op), b->ops.ns[op], b->ops.barrier_ns[op], b->ops.calls[op] };
        print_line(b, kind, s, &of);
        rest_ns -= b->ops.ns[op] < rest_ns ? b->ops.ns[op] : rest_ns;
        rest_barrier_ns -= b->ops.barrier_ns[op];
    }
    const line others[] = { { .part = "rest", .ns = rest_ns, .barrier_ns = rest_barrier_ns },
                            { .part = "wake", .ns = s->wake_ns },
                            { .part = "all", .ns = s->wall_ns, .barrier_ns = b->ops.waited_ns } };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        print_line(b, kind, s, &others[i]);
    }
    fflush(stdout);
}

typedef fg_status (*steps_fn)(bench *b, uint32_t size, uint32_t count, sums *s, fg_error *err);

static fg_status measure(bench *b, const char *kind, steps_fn run, uint32_t size, uint32_t count,
                         fg_error *err)
{
    sums warm_up = { 0 }, s = { 0 };
    fg_status status = run(b, size, 1, &warm_up, err);
    memset(&b->ops, 0, sizeof b->ops);
    fg_op_clock_set(&b->ops);
    if (status == FG_OK) {
        status = run(b, size, count, &s, err);
    }
    fg_op_clock_set(NULL);
    if (status == FG_OK) {
        print_sums(b, kind, &s);
    }
    return status;
}

static fg_status measure_all(bench *b, const fg_bench_list *batches, const fg_bench_list *prompts,
                             fg_error *err)
{
    char kind[32];
    fg_status status = FG_OK;
    if (!b->config.json) {
        printf("%s, %s, isa %s, %u threads\n\n| step | part | us | %% | calls | barrier us |\n"
               "| --- | --- | --: | --: | --: | --: |\n",
               b->model.runner.hparams.name, b->model.device, b->model.isa, b->model.threads);
    }
    for (uint32_t i = 0; status == FG_OK && i < batches->count; i++) {
        uint32_t batch = batches->items[i];
        for (uint32_t seq = 0; status == FG_OK && seq < batch; seq++) {
            status = fg_bench_model_prompt(&b->model, seq, batch, b->config.depth, 512, err);
        }
        snprintf(kind, sizeof kind, "decode b=%u", batch);
        status =
            status != FG_OK ? status : measure(b, kind, decode_steps, batch, b->config.steps, err);
    }
    for (uint32_t i = 0; status == FG_OK && i < prompts->count; i++) {
        snprintf(kind, sizeof kind, "prefill %u", prompts->items[i]);
        uint32_t count = (b->config.steps + 7) / 8;
        status = measure(b, kind, prefill_steps, prompts->items[i], count, err);
    }
    return status;
}

static uint32_t max_of(const fg_bench_list *list, uint32_t least)
{
    for (uint32_t i = 0; i < list->count; i++) {
        least = list->items[i] > least ? list->items[i] : least;
    }
    return least;
}

static fg_status run_step(const void *config, fg_error *err)
{
    const step_config *c = config;
    fg_bench_list batches, prompts;
    fg_status status = fg_bench_list_parse("--batch", c->batch, BATCH_MAX, &batches, err);
    if (status == FG_OK) {
        status = fg_bench_list_parse("--prompt", c->prompt, TOKENS_MAX, &prompts, err);
    }
    if (status == FG_OK && batches.count + prompts.count == 0) {
        status = fg_fail(err, FG_BAD_INPUT, "nothing to measure: --batch 1,16 or --prompt 512");
    }
    if (status != FG_OK) {
        return status;
    }
    uint32_t batch_max = max_of(&batches, 1), prompt_max = max_of(&prompts, 1);
    bench *b = fg_mem_alloc(sizeof *b);
    fg_step_seq *items = fg_mem_array(batch_max, sizeof *items);
    if (b == NULL || items == NULL) {
        fg_mem_free(b);
        fg_mem_free(items);
        return fg_fail(err, FG_AGAIN, "out of memory for %u sequences", batch_max);
    }
    b->config = *c;
    b->items = items;
    b->clock = fg_clock_real();
    fg_bench_model_options o = { .path = c->model,
                                 .device = c->device,
                                 .cpu_isa = c->cpu_isa,
                                 .kv_dtype = c->kv_dtype,
                                 .threads = c->threads,
                                 .step_tokens = prompt_max > 512 ? prompt_max : 512,
                                 .seqs = batch_max,
                                 .prompt = prompt_max,
                                 .context = c->depth + c->steps };
    status = fg_bench_model_open(&b->model, &o, err);
    if (status == FG_OK) {
        status = measure_all(b, &batches, &prompts, err);
    }
    fg_bench_model_close(&b->model);
    fg_mem_free(items);
    fg_mem_free(b);
    return status;
}

const fg_bench_form fg_bench_step = {
    .word = "step",
    .spec = &fg_bench_step_spec,
    .config_bytes = sizeof(step_config),
    .run = run_step,
};
