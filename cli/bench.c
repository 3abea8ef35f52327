#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "common/base/mem.h"
#include "common/conf/options.h"
#include "kernels/bench/peak.h"

static const char help[] =
    "forge bench - how fast this machine is, as a share of its own limits in the same minute\n"
    "\n"
    "  forge bench peak                              the limits: compute, caches, memory, memcpy\n"
    "  forge bench throughput --model F              tokens per second of a model file: prefill\n"
    "                                                (pp), decode (tg), several sequences at once\n"
    "  forge bench throughput --model F -p 512 -n 128 -b 1,8,16 --json\n"
    "  forge bench step --model F -b 1,16            where the time of a step goes\n"
    "  forge bench kernels                           single operations, without a model\n"
    "  forge bench FORM --help                       every flag of a form\n"
    "\n"
    "Nothing is served: no HTTP, no scheduler, one thread more than --threads that waits. Stop "
    "other\n"
    "work first, and never use more threads than cores. docs/BENCH.md says how to read the "
    "numbers.\n";

/* --- small things that the forms share --- */

fg_status fg_bench_list_parse(const char *flag, const char *text, uint32_t max,
                              fg_bench_list *list_out, fg_error *err)
{
    fg_bench_list list = { 0 };
    const char *at = text == NULL ? "" : text;
    if (*at == '\0' || strcmp(at, "0") == 0) {
        *list_out = list;
        return FG_OK;
    }
    for (;;) {
        size_t digits = strspn(at, "0123456789");
        unsigned long value = strtoul(at, NULL, 10);
        if (digits == 0 || digits > 9 || value == 0 || value > max ||
            (at[digits] != ',' && at[digits] != '\0')) {
            return fg_fail(err, FG_BAD_INPUT, "%s %.60s: give numbers of 1 to %u, as in 1,8,16",
                           flag, text, max);
        }
        if (list.count == FG_BENCH_LIST_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "%s: at most %d numbers", flag, FG_BENCH_LIST_MAX);
        }
        list.items[list.count++] = (uint32_t)value;
        at += digits;
        if (*at++ == '\0') {
            *list_out = list;
            return FG_OK;
        }
    }
}

fg_bench_stats fg_bench_stats_of(const double *samples, uint32_t count)
{
    fg_bench_stats stats = { 0 };
    for (uint32_t i = 0; i < count; i++) {
        stats.mean += samples[i] / count;
        stats.best = samples[i] > stats.best ? samples[i] : stats.best;
    }
    double squares = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        squares += (samples[i] - stats.mean) * (samples[i] - stats.mean);
    }
    stats.deviation = count > 1 ? sqrt(squares / (count - 1)) : 0.0;
    return stats;
}

/* --- forge bench peak --- */

typedef struct peak_config {
    uint32_t threads;
    bool json;
} peak_config;

static const fg_option peak_options[] = {
    { .name = "threads",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .max = 256,
      .group = "Probes",
      .offset = offsetof(peak_config, threads),
      .help = "Measured with one thread and with so many; 0 uses all cores." },
    FG_BENCH_OPTION_JSON(peak_config, "Probes",
                         "One JSON object per line: probe, threads, unit, value, how."),
};

const fg_conf_spec fg_bench_peak_spec = {
    .command = "forge bench peak",
    .intro =
        "Measures what this machine can do at most, in about two seconds: multiply-adds of int8, "
        "bf16\n"
        "and float with everything in registers, reading from each cache and from memory, memcpy.\n"
        "Every other form of `forge bench` gives its numbers as a share of these.",
    .options = peak_options,
    .option_count = sizeof peak_options / sizeof peak_options[0],
};

static fg_status run_peak(const void *config, fg_error *err)
{
    const peak_config *c = config;
    uint32_t threads = c->threads != 0 ? c->threads : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    fg_peaks *peaks;
    fg_status status = fg_peaks_open(threads, &peaks, err);
    if (status == FG_OK) {
        fg_peaks_print(peaks, threads, c->json);
        fg_peaks_close(peaks);
    }
    return status;
}

static const fg_bench_form peak_form = {
    .word = "peak",
    .spec = &fg_bench_peak_spec,
    .config_bytes = sizeof(peak_config),
    .run = run_peak,
};

/* --- the command --- */

static fg_status parse_and_run(const fg_bench_form *form, int argc, const char *const *argv,
                               const char *const *environment, int *code, fg_error *err)
{
    fg_args args = { 0 };
    fg_conf_asked asked = { 0 };
    void *config = fg_mem_alloc(form->config_bytes);
    if (config == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_status status =
        fg_args_split(form->spec, &fg_serve_spec, argc, argv, environment, &args, err);
    if (status != FG_OK) {
        goto free_config;
    }
    fg_conf_input input = { .argc = args.flag_count,
                            .argv = args.flags,
                            .environment = args.environment };
    status = fg_conf_parse(form->spec, &input, config, &asked, err);
    if (status == FG_OK && asked.help) {
        *code = fg_args_print_help(form->spec, asked.help_word);
    } else if (status == FG_OK && args.word_count + args.passed_count > 0) {
        status = fg_fail(err, FG_BAD_INPUT, "unexpected argument '%.60s': see %s --help",
                         args.word_count > 0 ? args.words[0] : args.passed[0], form->spec->command);
    } else if (status == FG_OK) {
        status = form->run(config, err);
    }
    fg_args_free(&args);

free_config:
    fg_mem_free(config);
    return status;
}

int fg_bench_main(int argc, const char *const *argv, const char *const *environment)
{
    static const fg_bench_form *const forms[] = { &fg_bench_throughput, &fg_bench_step,
                                                  &fg_bench_kernels, &peak_form };
    const char *word = argc > 0 ? argv[0] : "--help";
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        fputs(help, stdout);
        return 0;
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strcmp(word, forms[i]->word) != 0) {
            continue;
        }
        fg_error err = { 0 };
        int code = 0;
        fg_status status = parse_and_run(forms[i], argc - 1, argv + 1, environment, &code, &err);
        if (status != FG_OK) {
            fprintf(stderr, "%s: %s\n", forms[i]->spec->command, err.text);
            code = status == FG_BAD_INPUT ? 2 : 1;
        }
        return code;
    }
    fprintf(stderr, "forge bench: there is no form \"%.60s\": `forge bench --help` lists them\n",
            word);
    return 2;
}
