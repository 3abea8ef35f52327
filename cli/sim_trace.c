/*
 * `forge sim --trace FILE`: capacity planning. Reads the flags, runs one fleet for each set-up, writes what
 * fleet_report renders. Results go to standard output, progress and wall times to standard error, so that
 * equal commands print equal bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/args.h"
#include "cli/sim.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/sim/fleet_report.h"
#include "tests/sim/fleet_setup.h"

typedef struct trace_config {
    const char *trace, *synthetic, *step_table, *compare, *json, *csv, *plot;
    double speedup, slo_ttft_ms, slo_itl_ms;
    uint64_t seed;
    uint32_t limit;
    bool quiet;
    int prefix_cache, overlap, routing, split;
    fg_fleet_setup setup;
} trace_config;

#define AT(member) .offset = offsetof(trace_config, member)

static const char traffic[] = "Traffic";
static const char cluster[] = "Cluster";
static const char worker[] = "Workers, as in forge serve";
static const char output[] = "Output";

static const fg_conf_choice switches[] = { { "on", 1 }, { "off", 0 }, { NULL, 0 } };

static const fg_option options[] = {
    { .name = "trace",
      .type = FG_OPTION_STRING,
      .group = traffic,
      .value_name = "FILE",
      AT(trace),
      .help = "The requests: JSON lines as of Mooncake (timestamp in ms, input_length, "
              "output_length, hash_ids of 512 tokens each), or a CSV as of Azure (arrival, prompt "
              "tokens, answer tokens). FILE.xz is unpacked." },
    { .name = "synthetic",
      .type = FG_OPTION_STRING,
      .group = traffic,
      .value_name = "LOAD",
      AT(synthetic),
      .help = "Instead of a trace, requests that are drawn: \"requests=2000,rate=10,prefixes=64,"
              "prefix-tokens=4096,zipf=1,hot=0,tail-tokens=256,answer-tokens=128,spread=50,long=0,"
              "long-tokens=8192,long-answer=16\"; what is not named is as here "
              "(docs/SIMULATOR.md)." },
    { .name = "limit",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_WORKLOAD_REQUESTS_MAX,
      .group = traffic,
      AT(limit),
      .help = "Only the first so many requests; 0: all." },
    { .name = "speedup",
      .type = FG_OPTION_FLOAT,
      .default_text = "1",
      .min = 0,
      .max = 1000000,
      .group = traffic,
      AT(speedup),
      .help = "Requests come so many times faster than they did." },
    { .name = "seed",
      .type = FG_OPTION_U64,
      .default_text = "1",
      .group = traffic,
      AT(seed),
      .help = "What the words of the prompts are drawn from, and when timers beat." },

    { .name = "prefill",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 1000000,
      .group = cluster,
      AT(setup.workers[FG_FLEET_PREFILL]),
      .help = "Workers that compute prompts." },
    { .name = "decode",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 1000000,
      .group = cluster,
      AT(setup.workers[FG_FLEET_DECODE]),
      .help = "Workers that compute answers." },
    { .name = "both",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 1000000,
      .group = cluster,
      AT(setup.workers[FG_FLEET_BOTH]),
      .help = "Workers that do both." },
    { .name = "compare",
      .type = FG_OPTION_STRING,
      .group = cluster,
      .value_name = "SETUPS",
      AT(compare),
      .help = "Several set-ups on the same trace, side by side: "
              "\"prefill=8,decode=8;both=16;prefill=4,decode=12,max-seqs=128\". Keys are the flags "
              "of this group and the next one; what a set-up does not name is as the flags say." },
    { .name = "step-table",
      .type = FG_OPTION_STRING,
      .default_text = "gpu-8b-assumed",
      .group = cluster,
      .value_name = "NAME|FILE",
      AT(step_table),
      .help = "How long steps and hand-overs take: gpu-8b-assumed (round numbers, nobody measured "
              "them), smollm2-135m-cpu1 (measured), or a file (docs/SIMULATOR.md)." },

    { .name = "kv-blocks",
      .type = FG_OPTION_U32,
      .default_text = "28672",
      .min = 1,
      .max = FG_LIMIT_BLOCKS,
      .group = worker,
      AT(setup.kv_blocks),
      .help = "KV cache size of a worker, in blocks." },
    { .name = "block-size",
      .type = FG_OPTION_U32,
      .default_text = "16",
      .min = 1,
      .max = 256,
      .group = worker,
      AT(setup.block_size),
      .help = "Tokens per KV block, a power of two. Larger ones simulate faster." },
    { .name = "max-seqs",
      .type = FG_OPTION_U32,
      .default_text = "64",
      .min = 1,
      .max = FG_LIMIT_LIVE_REQUESTS,
      .group = worker,
      AT(setup.max_seqs),
      .help = "Requests that may run at once on a worker." },
    { .name = "prefill-chunk-size",
      .type = FG_OPTION_U32,
      .default_text = "512",
      .min = 1,
      .max = 65536,
      .group = worker,
      AT(setup.prefill_chunk_size),
      .help = "Longest piece of a prompt that one step computes." },
    { .name = "max-batch-tokens",
      .type = FG_OPTION_U32,
      .default_text = "4096",
      .min = 1,
      .max = 65536,
      .group = worker,
      AT(setup.max_batch_tokens),
      .help = "Most tokens, prompt pieces and answers together, in one step." },
    { .name = "step-ms",
      .type = FG_OPTION_U32,
      .default_text = "100",
      .min = 0,
      .max = 60000,
      .group = worker,
      AT(setup.step_ms),
      .help = "Prompt pieces beside running answers are cut so that a step takes about so many "
              "milliseconds; 0: they are not." },
    { .name = "local-prefill-tokens",
      .type = FG_OPTION_U32,
      .default_text = "128",
      .min = 0,
      .max = 65536,
      .group = worker,
      AT(setup.local_prefill_tokens),
      .help = "A decode worker that has all but so many tokens of a prompt computes them itself." },
    { .name = "queue-limit",
      .type = FG_OPTION_U32,
      .default_text = "256",
      .min = 1,
      .max = FG_LIMIT_QUEUED_REQUESTS,
      .group = worker,
      AT(setup.queue_limit),
      .help = "Requests that may wait in the router; more are refused, and do not come again." },
    { .name = "queue-ahead",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 1024,
      .group = worker,
      AT(setup.queue_ahead),
      .help = "Requests that do not fit, past which others are placed at a time." },
    { .name = "routing",
      .type = FG_OPTION_CHOICE,
      .default_text = "cost",
      .choices = fg_fleet_routings,
      .group = worker,
      AT(routing),
      .help = "How a worker is chosen." },
    { .name = "split",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = fg_fleet_splits,
      .group = worker,
      AT(split),
      .help = "Whether prompt and answer are computed by two workers." },
    { .name = "residency-mb",
      .type = FG_OPTION_U32,
      .default_text = "64",
      .min = 1,
      .max = 65536,
      .group = worker,
      AT(setup.residency_mb),
      .help = "Memory of the router for what is cached where, in MiB." },
    { .name = "slow",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 1000000,
      .group = worker,
      AT(setup.slow),
      .help = "So many workers of each role are slower than they say." },
    { .name = "slow-percent",
      .type = FG_OPTION_U32,
      .default_text = "300",
      .min = 1,
      .max = 100000,
      .group = worker,
      AT(setup.slow_percent),
      .help = "How long their steps take, in percent of what the table says." },
    { .name = "prefix-cache",
      .type = FG_OPTION_CHOICE,
      .default_text = "on",
      .choices = switches,
      .group = worker,
      AT(prefix_cache),
      .help = "Whether equal beginnings of prompts are computed once." },
    { .name = "overlap",
      .type = FG_OPTION_CHOICE,
      .default_text = "on",
      .choices = switches,
      .group = worker,
      AT(overlap),
      .help = "Whether the next step is planned while one computes." },

    { .name = "slo-ttft-ms",
      .type = FG_OPTION_FLOAT,
      .default_text = "2000",
      .min = 0,
      .max = 10000000,
      .group = output,
      AT(slo_ttft_ms),
      .help = "Goodput counts requests whose first token came within; 0: however late." },
    { .name = "slo-itl-ms",
      .type = FG_OPTION_FLOAT,
      .default_text = "100",
      .min = 0,
      .max = 10000000,
      .group = output,
      AT(slo_itl_ms),
      .help = "Likewise, whose mean time from token to token was within; 0: however slow." },
    { .name = "json",
      .type = FG_OPTION_STRING,
      .group = output,
      .value_name = "FILE",
      AT(json),
      .help = "Writes the numbers of the table, and samples over time." },
    { .name = "csv",
      .type = FG_OPTION_STRING,
      .group = output,
      .value_name = "FILE",
      AT(csv),
      .help = "Writes a line for each request." },
    { .name = "plot",
      .type = FG_OPTION_STRING,
      .group = output,
      .value_name = "FILE",
      AT(plot),
      .help = "Draws all set-ups into an SVG file." },
    { .name = "quiet",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = output,
      AT(quiet),
      .help = "No progress, and no columns under the table." },
};

static const fg_conf_spec spec = {
    .command = "forge sim --trace",
    .intro =
        "Plans capacity: replays a trace against a cluster that is simulated, in one thread and\n"
        "much faster than in real time. Router, workers and scheduler are the code of `forge\n"
        "serve`; clock, network and model are not: a step takes what a table says.\n\n"
        "  forge sim --trace conversation_trace.jsonl.xz --prefill 8 --decode 8\n"
        "  forge sim --trace t.csv --compare \"prefill=8,decode=8;both=16\" --plot t.svg\n\n"
        "Equal commands print equal bytes on standard output and into the files.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

typedef struct session {
    trace_config config;
    fg_workload workload;
    fg_steptable steps;
    fg_fleet_variant variants[FG_FLEET_SETUPS_MAX];
    fg_fleet_run_report runs[FG_FLEET_SETUPS_MAX];
    size_t count, done;
    uint64_t shown_ns;
} session;

#define PROGRESS_NS 1000000000ull

static void show_progress(void *ctx, uint32_t ended, uint32_t count, uint64_t now_ns)
{
    session *s = ctx;
    fg_clock clock = fg_clock_real();
    uint64_t wall_ns = fg_clock_now_ns(&clock);
    if (wall_ns - s->shown_ns >= PROGRESS_NS) {
        s->shown_ns = wall_ns;
        fprintf(stderr, "forge sim: %s: %u of %u requests, %.0f simulated s\n",
                s->variants[s->done].label, ended, count, (double)now_ns / 1e9);
    }
}

static double cpu_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static fg_status run_one(session *s, fg_error *err)
{
    const fg_fleet_variant *variant = &s->variants[s->done];
    fg_fleet_options fleet = { .setup = variant->setup,
                               .workload = &s->workload,
                               .steps = &s->steps,
                               .speedup = s->config.speedup,
                               .seed = s->config.seed,
                               .on_progress = s->config.quiet ? NULL : show_progress,
                               .ctx = s };
    fg_fleet_slo slo = { .ttft_ms = s->config.slo_ttft_ms, .itl_ms = s->config.slo_itl_ms };
    fg_clock clock = fg_clock_real();
    uint64_t from_ns = fg_clock_now_ns(&clock);
    double cpu_s = cpu_now_s();
    fg_fleet_result *result;
    fg_status status = fg_fleet_run(&fleet, &result, err);
    if (status != FG_OK) {
        return status;
    }
    fg_fleet_run_report *run = &s->runs[s->done];
    run->label = variant->label;
    run->result = result;
    s->done++;
    cpu_s = cpu_now_s() - cpu_s;
    double wall_s = (double)(fg_clock_now_ns(&clock) - from_ns) / 1e9;
    double simulated_s = (double)result->span_ns / 1e9;
    fprintf(stderr,
            "forge sim: %s: %.1f simulated s in %.2f s, %.0f:1 (of processor time %.2f s, %.0f:1); "
            "%.0f events/s\n",
            run->label, simulated_s, wall_s, simulated_s / wall_s, cpu_s, simulated_s / cpu_s,
            (double)result->events / cpu_s);
    return fg_fleet_summarise(result, &s->workload, &s->steps, &slo, &run->summary, err);
}

static void render_head(const session *s, bool json, fg_buf *out)
{
    double span_s =
        (double)s->workload.requests[s->workload.count - 1].arrival_ns / 1e9 / s->config.speedup;
    const char *slash = strrchr(s->config.trace, '/');
    const char *name = slash == NULL ? s->config.trace : slash + 1;
    if (json) {
        fg_buf_puts(out, "\"trace\":\"");
        fg_buf_json_escape(out, name, strlen(name));
        fg_buf_puts(out, "\",\"steps\":\"");
        fg_buf_json_escape(out, s->steps.name, strlen(s->steps.name));
        fg_buf_printf(out, "\",\"speedup\":%.9g,\"seed\":%llu,", s->config.speedup,
                      (unsigned long long)s->config.seed);
        return;
    }
    fg_buf_printf(out,
                  "trace  %s: %u requests in %.0f s, on average %.0f tokens in and %.0f out\n"
                  "steps  %s: %s\n\n",
                  name, s->workload.count, span_s,
                  (double)s->workload.prompt_tokens / s->workload.count,
                  (double)s->workload.output_tokens / s->workload.count, s->steps.name,
                  s->steps.note[0] != '\0' ? s->steps.note : "from a file");
}

static fg_status write_file(const char *name, const fg_buf *text, fg_error *err)
{
    FILE *file = fopen(name, "w");
    if (file == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", name, strerror(errno));
    }
    bool fine = fwrite(text->data, 1, text->size, file) == text->size;
    fine = fclose(file) == 0 && fine;
    return fine ? FG_OK : fg_fail(err, FG_BROKEN, "%s: %s", name, strerror(errno));
}

static fg_status print_table(session *s, fg_buf *out, fg_error *err)
{
    fg_fleet_slo slo = { .ttft_ms = s->config.slo_ttft_ms, .itl_ms = s->config.slo_itl_ms };
    render_head(s, false, out);
    bool fine = fg_fleet_render_table(s->runs, s->count, &slo, out);
    for (size_t i = 0; fine && !s->config.quiet && i < s->count; i++) {
        fg_buf_putc(out, '\n');
        fine = fg_fleet_render_terminal(&s->runs[i], out);
    }
    if (!fine) {
        return fg_fail(err, FG_AGAIN, "out of memory for the table");
    }
    fine = fwrite(out->data, 1, out->size, stdout) == out->size && fflush(stdout) == 0;
    return fine ? FG_OK : fg_fail(err, FG_BROKEN, "standard output: %s", strerror(errno));
}

static fg_status write_files(session *s, fg_buf *out, fg_error *err)
{
    const char *const names[] = { s->config.json, s->config.csv, s->config.plot };
    fg_status status = FG_OK;
    for (int i = 0; status == FG_OK && i < 3; i++) {
        if (names[i] == NULL) {
            continue;
        }
        fg_buf head;
        fg_buf_init(&head, 0);
        render_head(s, true, &head);
        fg_buf_clear(out);
        bool fine =
            !head.failed && (i == 0   ? fg_fleet_render_json(s->runs, s->count, head.data, out)
                             : i == 1 ? fg_fleet_render_csv(s->runs, s->count, &s->workload, out)
                                      : fg_fleet_render_svg(s->runs, s->count, out));
        fg_buf_deinit(&head);
        status = fine ? write_file(names[i], out, err)
                      : fg_fail(err, FG_AGAIN, "out of memory for %s", names[i]);
    }
    return status;
}

/* All that can be wrong with the flags is found before the first run. */
static fg_status prepare(session *s, fg_error *err)
{
    trace_config *config = &s->config;
    fg_fleet_setup *setup = &config->setup;
    setup->prefix_cache = config->prefix_cache == 1;
    setup->overlap = config->overlap == 1;
    setup->routing = (uint32_t)config->routing;
    setup->split = (uint32_t)config->split;
    if (config->synthetic != NULL) {
        config->trace = "synthetic";
    } else if (config->trace == NULL || config->trace[0] == '\0') {
        return fg_fail(err, FG_BAD_INPUT, "--trace wants a file of requests");
    }
    fg_status status = FG_OK;
    if (config->compare != NULL) {
        status = fg_fleet_setup_parse(config->compare, setup, s->variants, &s->count, err);
    } else {
        s->count = 1;
        s->variants[0].setup = *setup;
        fg_fleet_setup_label(setup, s->variants[0].label);
    }
    for (size_t i = 0; status == FG_OK && i < s->count; i++) {
        status = fg_fleet_check(&s->variants[i].setup, err);
    }
    if (status == FG_OK && !(config->speedup > 0)) {
        status = fg_fail(err, FG_BAD_INPUT, "--speedup must be above 0");
    }
    status = status != FG_OK ? status : fg_steptable_open(config->step_table, &s->steps, err);
    uint32_t limit = config->limit == 0 ? FG_WORKLOAD_REQUESTS_MAX : config->limit;
    if (status != FG_OK) {
        return status;
    }
    return config->synthetic != NULL
               ? fg_workload_draw(config->synthetic, config->seed, &s->workload, err)
               : fg_workload_read(config->trace, limit, &s->workload, err);
}

static fg_status run_all(session *s, fg_error *err)
{
    fg_status status = prepare(s, err);
    while (status == FG_OK && s->done < s->count) {
        status = run_one(s, err);
    }
    fg_buf out;
    fg_buf_init(&out, 0);
    status = status != FG_OK ? status : print_table(s, &out, err);
    status = status != FG_OK ? status : write_files(s, &out, err);
    fg_buf_deinit(&out);
    return status;
}

int fg_cli_sim_trace(int argc, const char *const *argv, const char *const *environment)
{
    static session s; /* too large for a stack */
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    /* Flags only: FORGE_PREFILL and others mean something else to `forge serve`. */
    fg_conf_input input = { .argc = argc, .argv = argv };
    fg_status status = fg_conf_parse(&spec, &input, &s.config, &asked, &err);
    if (status == FG_OK && asked.help) {
        return fg_args_print_help(&spec, asked.help_word);
    }
    fg_log_set_level(FG_LOG_OFF);
    status = status != FG_OK ? status : run_all(&s, &err);
    for (size_t i = 0; i < s.done; i++) {
        fg_fleet_result_free((fg_fleet_result *)s.runs[i].result);
    }
    fg_workload_free(&s.workload);
    if (status != FG_OK) {
        fprintf(stderr, "forge sim: %s\n", err.text);
    }
    return status == FG_OK ? 0 : status == FG_BAD_INPUT ? 2 : 1;
}
