/*
 * bench - `forge bench`: how fast a model or a kernel is on this machine, offline, as a share of what the
 * machine can do in the same minute.
 */
#ifndef FORGE_CLI_BENCH_H
#define FORGE_CLI_BENCH_H

#include <stddef.h>

#include "common/base/buf.h"
#include "common/conf/conf.h"

/* One for each form of the command. */
extern const fg_conf_spec fg_bench_throughput_spec, fg_bench_step_spec, fg_bench_kernels_spec,
    fg_bench_peak_spec;

/* argv: what follows the word `bench`. Returns the exit code: 0, 1 a measurement failed, 2 bad flags or a
 * bad model file. */
int fg_bench_main(int argc, const char *const *argv, const char *const *environment);

/* A list of numbers, "1,8,16". */
enum { FG_BENCH_LIST_MAX = 32 };

typedef struct fg_bench_list {
    uint32_t count;
    uint32_t items[FG_BENCH_LIST_MAX];
} fg_bench_list;

/* "" and "0" are an empty list. FG_BAD_INPUT names the flag. */
fg_status fg_bench_list_parse(const char *flag, const char *text, uint32_t max,
                              fg_bench_list *list_out, fg_error *err);

/* Rows of a form's option table that several forms have. */
#define FG_BENCH_OPTION_MODEL(config, section)                                                     \
    {                                                                                              \
        .name = "model", .brief = 'm', .type = FG_OPTION_STRING, .group = section,                 \
        .value_name = "PATH", .offset = offsetof(config, model),                                   \
        .help = "The model: a GGUF file or a folder."                                              \
    }
#define FG_BENCH_OPTION_THREADS(config, section)                                                   \
    {                                                                                              \
        .name = "threads", .brief = 't', .type = FG_OPTION_U32, .default_text = "0", .max = 256,   \
        .group = section, .offset = offsetof(config, threads),                                     \
        .help = "Compute threads; 0 uses all cores."                                               \
    }
#define FG_BENCH_OPTION_CPU_ISA(config, section)                                                   \
    {                                                                                              \
        .name = "cpu-isa", .type = FG_OPTION_STRING, .default_text = "auto", .group = section,     \
        .value_name = "NAME", .offset = offsetof(config, cpu_isa),                                 \
        .help = "Instruction set of the kernels, as for `forge serve`."                            \
    }
#define FG_BENCH_OPTION_DEVICE(config, section)                                                    \
    {                                                                                              \
        .name = "device", .type = FG_OPTION_STRING, .default_text = "cpu", .group = section,       \
        .value_name = "NAME", .offset = offsetof(config, device),                                  \
        .help = "What computes, as for `forge serve`: cpu, cuda or cuda:N."                        \
    }
#define FG_BENCH_OPTION_KV_DTYPE(config, section)                                                  \
    {                                                                                              \
        .name = "kv-dtype", .type = FG_OPTION_STRING, .default_text = "auto", .group = section,    \
        .value_name = "NAME", .offset = offsetof(config, kv_dtype),                                \
        .help = "Number type of the KV cache, as for `forge serve`."                               \
    }
#define FG_BENCH_OPTION_JSON(config, section, text)                                                \
    {                                                                                              \
        .name = "json", .type = FG_OPTION_BOOL, .default_text = "false", .group = section,         \
        .offset = offsetof(config, json), .help = text                                             \
    }

/* Mean, standard deviation and best of samples. */
typedef struct fg_bench_stats {
    double mean, deviation, best;
} fg_bench_stats;

fg_bench_stats fg_bench_stats_of(const double *samples, uint32_t count);

/* --- the forms; `argv` follows the form's word --- */

/* What all of them do around their work: flags, help, errors. `run` gets the parsed config. */
typedef struct fg_bench_form {
    const char *word;
    const fg_conf_spec *spec;
    size_t config_bytes;
    fg_status (*run)(const void *config, fg_error *err);
} fg_bench_form;

extern const fg_bench_form fg_bench_throughput, fg_bench_step, fg_bench_kernels;

#endif
