#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/bench_limit.h"
#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/kv/layout.h"
#include "kernels/bench/peak.h"
#include "kernels/ops.h"

enum {
    ROWS_MAX = 4096,
    CONTEXT_MAX = 65536,
    COLD_BYTES = 192 << 20, /* copies of a matrix take turns, so that none is left in a cache */
    BLOCK_SIZE = 16,
    RUNS_MIN = 3,
    TYPES_MAX = 16,
    KV_DTYPES_MAX = 4,
    SHAPES_MAX = 8,
    LINES_MAX = 128,
};

/* In the order of their names in parse_ops. */
enum { OP_LINEAR, OP_GATED, OP_ATTEND, OP_OTHER, OPS };

typedef struct kernels_config {
    const char *ops, *types, *rows, *shapes, *contexts, *heads, *kv_dtypes, *cpu_isa;
    uint32_t threads, budget_ms;
    bool warm, json;
} kernels_config;

#define AT(member) .offset = offsetof(kernels_config, member)
static const char group_what[] = "What is measured";
static const char group_how[] = "How";

static const fg_option options[] = {
    { .name = "ops",
      .type = FG_OPTION_STRING,
      .default_text = "linear,gated,attend,other",
      .group = group_what,
      .value_name = "LIST",
      AT(ops),
      .help = "linear: matrix products; gated: the same matrix as a gate and an up half, with what "
              "follows them; attend: attention; other: quantisation, norm." },
    { .name = "types",
      .type = FG_OPTION_STRING,
      .default_text = "q4_0,q4_1,q5_0,q5_1,q8_0,q4_k,q5_k,q6_k,f16,bf16,f32",
      .group = group_what,
      .value_name = "LIST",
      AT(types),
      .help = "Weight types of the matrix products." },
    { .name = "rows",
      .type = FG_OPTION_STRING,
      .default_text = "1,2,4,8,16,32,128,512",
      .group = group_what,
      .value_name = "LIST",
      AT(rows),
      .help = "Rows (tokens) of an operation, M." },
    { .name = "shapes",
      .type = FG_OPTION_STRING,
      .default_text = "8192x2048",
      .group = group_what,
      .value_name = "LIST",
      AT(shapes),
      .help =
          "Matrices as OUTPUTSxCOLUMNS; columns are multiples of 32. Types whose blocks have 256 "
          "columns are left out where these do not fit." },
    { .name = "contexts",
      .type = FG_OPTION_STRING,
      .default_text = "512,4096",
      .group = group_what,
      .value_name = "LIST",
      AT(contexts),
      .help = "Tokens that attention looks back at. Rows are as many sequences (decode), and one "
              "more test has the last 128 tokens of one sequence (prefill)." },
    { .name = "heads",
      .type = FG_OPTION_STRING,
      .default_text = "32x8x64",
      .group = group_what,
      .value_name = "HxKxD",
      AT(heads),
      .help = "Attention's heads, KV heads and the size of a head." },
    { .name = "kv-dtype",
      .type = FG_OPTION_STRING,
      .default_text = "bf16,int8",
      .group = group_what,
      .value_name = "LIST",
      AT(kv_dtypes),
      .help = "Number types of the KV cache that attention reads, as for `forge serve`." },
    { .name = "warm",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = group_how,
      AT(warm),
      .help = "One copy of a matrix, which stays in the caches if it fits; without this, copies of "
              "192 MiB take turns, as the layers of a model do." },
    { .name = "budget-ms",
      .type = FG_OPTION_U32,
      .default_text = "50",
      .min = 1,
      .max = 10000,
      .group = group_how,
      .value_name = "MS",
      AT(budget_ms),
      .help = "Time for each line; its best run counts." },
    FG_BENCH_OPTION_THREADS(kernels_config, group_how),
    FG_BENCH_OPTION_CPU_ISA(kernels_config, group_how),
    FG_BENCH_OPTION_JSON(kernels_config, group_how, "One JSON object per line."),
};
#undef AT

const fg_conf_spec fg_bench_kernels_spec = {
    .command = "forge bench kernels",
    .intro =
        "Speed of single operations, without a model: multiply-adds and bytes per second, and the "
        "share\n"
        "of what this machine could do, by its int8, bf16 or float and memory probes of the same "
        "minute,\n"
        "whichever is the tighter limit. Above 100 % of `read` the data came from a cache.\n"
        "\n"
        "  forge bench kernels                                      everything, about a minute\n"
        "  forge bench kernels --ops linear --types q4_k,q6_k       two types, for 1 to 512 rows\n"
        "  forge bench kernels --ops linear --rows 1 --threads 1    what one thread streams",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

typedef struct shape {
    uint32_t outputs, columns;
} shape;

/* What an operation does in one run. */
typedef struct work {
    double bytes;
    fg_bench_macs macs; /* of one kind */
} work;

typedef struct line {
    const char *op;
    char what[64];
    uint32_t rows;
    double seconds;
    work work;
} line;

typedef struct bench {
    const kernels_config *config;
    uint32_t threads;
    fg_bench_list rows, contexts;
    uint32_t types[TYPES_MAX], type_count;
    shape shapes[SHAPES_MAX];
    uint32_t shape_count;
    uint32_t heads, kv_heads, head_dim;
    uint32_t kv_dtypes[KV_DTYPES_MAX], kv_dtype_count;
    bool ops[OPS]; /* that are wanted */
    uint32_t row_max, column_max, output_max;
    fg_peaks *peaks;
    fg_bench_rates before, best; /* what the probes said: last, and around a group of lines */
    line lines[LINES_MAX];
    uint32_t line_count;
    fg_device *device;
    fg_device_stream *stream;
    fg_activations in, out;
    float *values;    /* [rows][outputs] */
    char *row_memory; /* these, in and out */
    size_t row_bytes;
    char *memory;
    size_t memory_bytes;
} bench;

/* ---- timing and output ---- */

typedef void (*run_fn)(bench *b, void *args, uint32_t turn);

/* Seconds of the best run, each long enough for the clock. */
static double best_seconds(bench *b, run_fn run, void *args)
{
    fg_clock clock = fg_clock_real();
    uint64_t began_at_ns = fg_clock_now_ns(&clock), now_ns = began_at_ns;
    uint64_t budget_ns = b->config->budget_ms * 1000000ull;
    double best = 0.0;
    run(b, args, 0);
    for (uint32_t turn = 1; turn <= RUNS_MIN || now_ns - began_at_ns < budget_ns;) {
        uint64_t run_at_ns = fg_clock_now_ns(&clock);
        uint32_t count = 0;
        do {
            run(b, args, turn++);
            count++;
            now_ns = fg_clock_now_ns(&clock);
        } while (now_ns - run_at_ns < 20000);
        double seconds = (double)(now_ns - run_at_ns) * 1e-9 / count;
        best = best == 0.0 || seconds < best ? seconds : best;
    }
    return best;
}

static void print_head(const bench *b)
{
    if (!b->config->json) {
        printf("isa %s, %u threads; probes: int8 %.1f, bf16 %.1f, float %.1f Gmac/s, read %.1f "
               "GB/s\n\n"
               "| op | what | M | us | Gmac/s | GB/s | share of limit |\n"
               "| --- | --- | --: | --: | --: | --: | --: |\n",
               fg_device_isa(b->device), b->threads, b->before.int8 * 1e-9, b->before.bf16 * 1e-9,
               b->before.floats * 1e-9, b->before.read * 1e-9);
    }
}

/* Keeps a line until the probes behind it have been measured too. */
static void keep_line(bench *b, const char *op, const char *what, uint32_t rows, double seconds,
                      const work *w)
{
    FG_ASSERT(b->line_count < LINES_MAX, "too many lines in a group");
    line *l = &b->lines[b->line_count++];
    *l = (line){ .op = op, .rows = rows, .seconds = seconds, .work = *w };
    snprintf(l->what, sizeof l->what, "%s", what);
}

static void print_line(const bench *b, const line *l)
{
    const work *w = &l->work;
    double macs = w->macs.int8 + w->macs.bf16 + w->macs.floats;
    fg_bench_cost cost = { .layers = w->macs, .weight_bytes = w->bytes };
    const char *probe;
    double limit =
        fg_bench_limit(&cost, &(fg_bench_work){ .rows = 1, .weight_reads = 1 }, &b->best, &probe);
    if (!b->config->json) {
        printf("| %s | %s | %u | %.1f | %.1f | %.2f | %.1f %% of %s |\n", l->op, l->what, l->rows,
               l->seconds * 1e6, macs / l->seconds * 1e-9, w->bytes / l->seconds * 1e-9,
               100.0 * limit / l->seconds, probe);
        return;
    }
    printf("{\"op\":\"%s\",\"what\":\"%s\",\"rows\":%u,\"isa\":\"%s\",\"threads\":%u,\"us\":%.3f,"
           "\"gmac_s\":%.3f,\"gb_s\":%.3f,\"share_of_probe\":%.4f,\"probe\":\"%s\",",
           l->op, l->what, l->rows, fg_device_isa(b->device), b->threads, l->seconds * 1e6,
           macs / l->seconds * 1e-9, w->bytes / l->seconds * 1e-9, limit / l->seconds, probe);
    printf("\"probe_int8_gmac_s\":%.2f,\"probe_bf16_gmac_s\":%.2f,\"probe_float_gmac_s\":%.2f,"
           "\"probe_read_gb_s\":%.2f}\n",
           b->best.int8 * 1e-9, b->best.bf16 * 1e-9, b->best.floats * 1e-9, b->best.read * 1e-9);
}

static fg_bench_rates measure_probes(const bench *b)
{
    static const fg_bench_cost all = { .layers = { .int8 = 1, .bf16 = 1, .floats = 1 } };
    return fg_bench_rates_measure(b->peaks, b->threads, &all, 0);
}

/* Prints what was measured since the last call, as shares of the probes before and after. */
static void end_group(bench *b)
{
    fg_bench_rates after = measure_probes(b);
    b->best = fg_bench_rates_max(b->before, after);
    b->before = after;
    for (uint32_t i = 0; i < b->line_count; i++) {
        print_line(b, &b->lines[i]);
    }
    b->line_count = 0;
    fflush(stdout);
}

/* ---- matrix products ---- */

typedef struct product {
    fg_linear linear;
    uint32_t rows, copies;
    size_t copy_bytes;
} product;

static void run_product(bench *b, void *args, uint32_t turn)
{
    product *p = args;
    p->linear.weight.data = b->memory + (turn % p->copies) * p->copy_bytes;
    fg_op_linear(b->stream, &p->linear, 1, &b->in, p->rows);
}

/* What a product of so many rows reads depends on how many they are. */
static void prepare_rows(bench *b, uint32_t type, uint32_t rows)
{
    fg_op_prepare(b->stream, &b->in, fg_op_linear_form(b->stream, type), rows);
}

static void bench_products(bench *b, uint32_t type, shape s)
{
    product p = { .copy_bytes = fg_panel_count(s.outputs) * fg_panel_bytes(type, s.columns) };
    p.copies = b->config->warm ? 1 : (uint32_t)(b->memory_bytes / p.copy_bytes);
    p.linear = (fg_linear){
        .weight = { .type = type, .outputs = s.outputs, .columns = s.columns },
        .out = b->values,
        .out_stride = s.outputs,
    };
    b->in.columns = s.columns;
    char what[64];
    snprintf(what, sizeof what, "%s %ux%u", fg_dtype_name(type), s.outputs, s.columns);
    for (uint32_t i = 0; i < b->rows.count; i++) {
        p.rows = b->rows.items[i];
        prepare_rows(b, type, p.rows);
        work w = { .bytes = (double)p.copy_bytes };
        *fg_bench_macs_of(&w.macs, type) = (double)s.outputs * s.columns * p.rows;
        keep_line(b, "linear", what, p.rows, best_seconds(b, run_product, &p), &w);
    }
}

/* The matrix's first half as a gate, its second as what is gated: as much work as the whole as a product. */
typedef struct gated_halves {
    fg_gated gated;
    uint32_t rows, copies;
    size_t half_bytes;
} gated_halves;

static void run_gated(bench *b, void *args, uint32_t turn)
{
    gated_halves *g = args;
    g->gated.gate.data = b->memory + (turn % g->copies) * 2 * g->half_bytes;
    g->gated.up.data = (const char *)g->gated.gate.data + g->half_bytes;
    fg_op_gated(b->stream, &g->gated, &b->in, g->rows);
}

static void bench_gated(bench *b, uint32_t type, shape s)
{
    if (s.outputs % (2 * FG_QUANT_GROUP) != 0) {
        return; /* the next product reads whole groups */
    }
    fg_panels half = { .type = type, .outputs = s.outputs / 2, .columns = s.columns };
    bool supers =
        fg_op_linear_form(b->stream, type) == FG_FORM_SUPERS && half.outputs % FG_QUANT_SUPER == 0;
    gated_halves g = {
        .gated = { .gate = half, .up = half, .forms = supers ? FG_FORM_SUPERS : FG_FORM_QUANTS },
        .half_bytes = fg_panel_count(half.outputs) * fg_panel_bytes(type, s.columns)
    };
    g.copies = b->config->warm ? 1 : (uint32_t)(b->memory_bytes / (2 * g.half_bytes));
    g.gated.out = b->out;
    g.gated.out.columns = half.outputs;
    b->in.columns = s.columns;
    char what[64];
    snprintf(what, sizeof what, "%s 2x%ux%u", fg_dtype_name(type), half.outputs, s.columns);
    for (uint32_t i = 0; i < b->rows.count; i++) {
        g.rows = b->rows.items[i];
        prepare_rows(b, type, g.rows);
        work w = { .bytes = (double)(2 * g.half_bytes) };
        *fg_bench_macs_of(&w.macs, type) = (double)s.outputs * s.columns * g.rows;
        keep_line(b, "gated", what, g.rows, best_seconds(b, run_gated, &g), &w);
    }
}

/* ---- attention ---- */

typedef struct attention {
    fg_paged_kv kv;
    fg_attend attend;
    uint32_t rows, layers;
    size_t layer_bytes;
} attention;

static void run_attention(bench *b, void *args, uint32_t turn)
{
    attention *a = args;
    fg_paged_kv kv = a->kv;
    size_t layer = (turn % a->layers) * a->layer_bytes;
    kv.key_offset += layer;
    kv.value_offset += layer;
    fg_op_attend(b->stream, &kv, &a->attend, a->rows);
}

/* Multiply-adds of both products, in the numbers in which they may be made. */
static fg_bench_macs attention_macs(uint32_t dtype, double count)
{
    return dtype == FG_I8     ? (fg_bench_macs){ .int8 = count }
           : dtype == FG_BF16 ? (fg_bench_macs){ .bf16 = count }
                              : (fg_bench_macs){ .floats = count };
}

/* Of attention: `sequences` at the same context; each has its `rows` last tokens run. */
typedef struct attended {
    uint32_t dtype, context, sequences, rows;
} attended;

static void bench_attention(bench *b, const attended *of, fg_kv_row *kv_rows, uint32_t *block_ids)
{
    fg_kv_layout layout;
    uint32_t context = of->context, sequences = of->sequences, rows = of->rows;
    uint32_t blocks = fg_kv_blocks_for(context, BLOCK_SIZE);
    if (fg_kv_layout_init(&layout, 1, b->kv_heads, b->head_dim, BLOCK_SIZE, of->dtype, NULL) !=
        FG_OK) {
        return;
    }
    /* As many layers as the memory holds take turns, like a model's. */
    uint32_t layers =
        (uint32_t)(b->memory_bytes / ((size_t)blocks * sequences * layout.layer_bytes));
    if (layers == 0 || rows > context) {
        return; /* too much for this bench */
    }
    for (uint32_t i = 0; i < blocks * sequences; i++) {
        block_ids[i] = i;
    }
    for (uint32_t s = 0; s < sequences; s++) {
        for (uint32_t r = 0; r < rows; r++) {
            kv_rows[s * rows + r] = (fg_kv_row){ .block_ids = block_ids + (size_t)s * blocks,
                                                 .position = context - rows + r };
        }
    }
    attention a = {
        .kv = { .arena = b->memory,
                .block_bytes = layers * layout.layer_bytes,
                .value_offset = fg_kv_layout_offset(&layout, 0, 1, 0),
                .head_bytes = layout.head_bytes,
                .scale_offset = layout.scale_offset,
                .block_size = BLOCK_SIZE,
                .dtype = of->dtype,
                .kv_head_count = b->kv_heads,
                .head_dim = b->head_dim },
        .attend = { .q = b->in.values,
                    .kv_rows = kv_rows,
                    .head_count = b->heads,
                    .scale = 0.125f,
                    .out = b->values },
        .rows = sequences * rows,
        .layers = b->config->warm ? 1 : layers,
        .layer_bytes = layout.layer_bytes,
    };
    double macs = 2.0 * a.rows * (context - rows / 2.0) * b->heads * b->head_dim;
    double head_bytes = (double)b->head_dim * fg_dtype_kv_bytes(of->dtype) +
                        (of->dtype == FG_I8 ? sizeof(float) : 0); /* the scale */
    double kv_bytes = 2.0 * context * b->kv_heads * head_bytes;
    work w = { .macs = attention_macs(of->dtype, macs), .bytes = sequences * kv_bytes };
    char what[64];
    snprintf(what, sizeof what, "%s %s, context %u", fg_dtype_name(of->dtype),
             rows == 1 ? "decode" : "prefill", context);
    keep_line(b, "attend", what, a.rows, best_seconds(b, run_attention, &a), &w);
}

static fg_status bench_attentions(bench *b, fg_error *err)
{
    enum { PREFILL_ROWS = 128 };
    uint32_t most = b->row_max > PREFILL_ROWS ? b->row_max : PREFILL_ROWS;
    fg_kv_row *kv_rows = fg_mem_array(most, sizeof *kv_rows);
    uint32_t *block_ids = fg_mem_array(COLD_BYTES / BLOCK_SIZE / 16, sizeof *block_ids);
    if (kv_rows == NULL || block_ids == NULL) {
        fg_mem_free(kv_rows);
        fg_mem_free(block_ids);
        return fg_fail(err, FG_AGAIN, "out of memory for attention");
    }
    for (uint32_t t = 0; t < b->kv_dtype_count * b->contexts.count; t++) {
        attended of = { .dtype = b->kv_dtypes[t / b->contexts.count],
                        .context = b->contexts.items[t % b->contexts.count],
                        .rows = 1 };
        for (uint32_t i = 0; i < b->rows.count; i++) {
            of.sequences = b->rows.items[i];
            if (of.sequences <= 32) {
                bench_attention(b, &of, kv_rows, block_ids);
            }
        }
        if (b->row_max >= PREFILL_ROWS) {
            of.sequences = 1;
            of.rows = PREFILL_ROWS;
            bench_attention(b, &of, kv_rows, block_ids);
        }
        end_group(b);
    }
    fg_mem_free(kv_rows);
    fg_mem_free(block_ids);
    return FG_OK;
}

/* ---- the rest ---- */

typedef struct other {
    uint32_t rows;
} other;

static void run_quantize(bench *b, void *args, uint32_t turn)
{
    (void)turn;
    fg_op_prepare(b->stream, &b->in, FG_FORM_QUANTS, ((other *)args)->rows);
}

static void run_round(bench *b, void *args, uint32_t turn)
{
    (void)turn;
    fg_op_prepare(b->stream, &b->in, FG_FORM_PAIRS, ((other *)args)->rows);
}

static void run_norm(bench *b, void *args, uint32_t turn)
{
    (void)turn;
    fg_rmsnorm norm = { .in = b->in.values,
                        .weight = b->in.values,
                        .epsilon = 1e-5f,
                        .forms = FG_FORM_QUANTS,
                        .out = b->out };
    fg_op_rmsnorm(b->stream, &norm, ((other *)args)->rows);
}

static void bench_others(bench *b)
{
    static const struct {
        const char *name;
        run_fn run;
        double bytes; /* of a column: floats read, floats and codes written */
    } ops[] = {
        { "quantize", run_quantize, 4 + 1 },
        { "round", run_round, 4 + 2 },
        { "rmsnorm", run_norm, 4 + 4 + 1 },
    };
    b->in.columns = b->out.columns = b->column_max;
    char what[64];
    snprintf(what, sizeof what, "%u columns", b->column_max);
    for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++) {
        for (uint32_t i = 0; i < b->rows.count; i++) {
            other o = { .rows = b->rows.items[i] };
            work w = { .bytes = ops[op].bytes * o.rows * b->column_max };
            keep_line(b, ops[op].name, what, o.rows, best_seconds(b, ops[op].run, &o), &w);
        }
    }
}

/* ---- flags ---- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* "q4_0,f16": fills types. */
static fg_status parse_types(bench *b, const char *text, fg_error *err)
{
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, ",");
        uint32_t type = 0;
        while (type < 64 &&
               (fg_dtype_block_count(type) == 0 || strlen(fg_dtype_name(type)) != length ||
                memcmp(fg_dtype_name(type), at, length) != 0)) {
            type++;
        }
        if (type == 64 || b->type_count == TYPES_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "--types %.*s is not known, as in q4_0,q6_k,bf16",
                           (int)(length < 40 ? length : 40), at);
        }
        b->types[b->type_count++] = type;
        at += length + (at[length] == ',');
    }
    return FG_OK;
}

/* "bf16,int8": fills kv_dtypes. */
static fg_status parse_kv_dtypes(bench *b, const char *text, fg_error *err)
{
    const char *at = text;
    do {
        char name[16];
        size_t length = strcspn(at, ",");
        uint32_t dtype = FG_DTYPE_AUTO;
        snprintf(name, sizeof name, "%.*s", (int)(length < 15 ? length : 15), at);
        if (!fg_dtype_find_kv(name, &dtype) || dtype == FG_DTYPE_AUTO ||
            b->kv_dtype_count == KV_DTYPES_MAX) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--kv-dtype %.60s: give some of f16, bf16, int8 and f32", text);
        }
        b->kv_dtypes[b->kv_dtype_count++] = dtype;
        at += length;
    } while (*at++ == ',');
    return FG_OK;
}

/* "8192x2048,2048x8192": fills shapes. */
static fg_status parse_shapes(bench *b, const char *text, fg_error *err)
{
    for (const char *at = text; *at != '\0';) {
        shape s = { 0 };
        int used = 0;
        bool fine = sscanf(at, "%6ux%6u%n", &s.outputs, &s.columns, &used) == 2 &&
                    (at[used] == ',' || at[used] == '\0') && b->shape_count < SHAPES_MAX;
        if (!fine || s.outputs == 0 || s.outputs > 262144 || s.columns == 0 || s.columns > 65536 ||
            s.columns % FG_QUANT_GROUP != 0) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--shapes %.60s: give OUTPUTSxCOLUMNS, columns in steps of 32, as in "
                           "8192x2048",
                           text);
        }
        b->shapes[b->shape_count++] = s;
        b->column_max = larger(b->column_max, s.columns);
        b->output_max = larger(b->output_max, s.outputs);
        at += used + (at[used] == ',');
    }
    return FG_OK;
}

static fg_status parse_heads(bench *b, const char *text, fg_error *err)
{
    int used = 0;
    bool fine = sscanf(text, "%4ux%4ux%4u%n", &b->heads, &b->kv_heads, &b->head_dim, &used) == 3 &&
                text[used] == '\0' && b->heads > 0 && b->heads <= 256 && b->kv_heads > 0 &&
                b->heads % b->kv_heads == 0 && b->head_dim > 0 && b->head_dim <= 512;
    return fine ? FG_OK
                : fg_fail(err, FG_BAD_INPUT,
                          "--heads %.60s: give heads, KV heads and a head's size, as in 32x8x64",
                          text);
}

/* "linear,attend": fills ops. */
static fg_status parse_ops(bench *b, const char *text, fg_error *err)
{
    static const char *const names[] = { "linear", "gated", "attend", "other" };
    const char *at = text;
    do {
        size_t length = strcspn(at, ",");
        uint32_t op = 0;
        while (op < OPS && (strlen(names[op]) != length || memcmp(names[op], at, length) != 0)) {
            op++;
        }
        if (op == OPS) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--ops %.60s: give some of linear, gated, attend and other", text);
        }
        b->ops[op] = true;
        at += length;
    } while (*at++ == ',');
    return FG_OK;
}

static fg_status parse(bench *b, fg_error *err)
{
    const kernels_config *c = b->config;
    fg_status status = parse_ops(b, c->ops, err);
    if (status == FG_OK) {
        status = fg_bench_list_parse("--rows", c->rows, ROWS_MAX, &b->rows, err);
    }
    if (status == FG_OK) {
        status = fg_bench_list_parse("--contexts", c->contexts, CONTEXT_MAX, &b->contexts, err);
    }
    if (status == FG_OK) {
        status = parse_types(b, c->types, err);
    }
    if (status == FG_OK) {
        status = parse_shapes(b, c->shapes, err);
    }
    if (status == FG_OK) {
        status = parse_heads(b, c->heads, err);
    }
    if (status == FG_OK) {
        status = parse_kv_dtypes(b, c->kv_dtypes, err);
    }
    for (uint32_t i = 0; i < b->rows.count; i++) {
        b->row_max = larger(b->row_max, b->rows.items[i]);
    }
    if (status == FG_OK && (b->rows.count == 0 || b->shape_count == 0)) {
        status = fg_fail(err, FG_BAD_INPUT, "nothing to measure: --rows 1,16 --shapes 8192x2048");
    }
    return status;
}

/* ---- the form ---- */

/* A part of what begins at `base`, in whole cache lines as the engine has it. `base` NULL: only counts. */
static void *part(char *base, size_t *used, size_t bytes)
{
    void *at = base == NULL ? NULL : base + *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

static void lay_activations(fg_activations *a, size_t rows, uint32_t columns, char *base,
                            size_t *used)
{
    size_t elements = rows * columns;
    a->values = part(base, used, elements * sizeof(float));
    a->quants = part(base, used, elements);
    a->groups = part(base, used, elements / FG_QUANT_GROUP * sizeof *a->groups);
    a->supers = part(base, used, elements / FG_QUANT_SUPER * sizeof *a->supers);
    a->pairs = part(base, used, rows * fg_pair_stride(columns) * sizeof *a->pairs);
    a->quant_tiles = part(base, used, fg_quant_tile_count(rows, columns) * sizeof *a->quant_tiles);
    a->columns = columns;
}

static void lay_rows(bench *b, uint32_t rows, uint32_t columns)
{
    b->row_bytes = 0;
    b->values = part(b->row_memory, &b->row_bytes,
                     (size_t)rows * larger(b->output_max, columns) * sizeof(float));
    lay_activations(&b->in, rows, columns, b->row_memory, &b->row_bytes);
    lay_activations(&b->out, rows, larger(columns, b->output_max / 2), b->row_memory,
                    &b->row_bytes);
}

static fg_status open_bench(bench *b, fg_error *err)
{
    fg_device_options device = { .kind = "cpu",
                                 .isa = b->config->cpu_isa,
                                 .thread_count = b->threads };
    fg_status status = fg_device_open(&device, &b->device, err);
    if (status == FG_OK) {
        status = fg_device_stream_open(b->device, &b->stream, err);
    }
    if (status == FG_OK) {
        status = fg_peaks_open(b->threads, &b->peaks, err);
    }
    if (status != FG_OK) {
        return status;
    }
    /* At least one copy of the largest matrix, in floats. */
    size_t largest = (size_t)(b->output_max + FG_PANEL_OUTPUTS) * b->column_max * sizeof(float);
    b->memory_bytes = largest > COLD_BYTES ? largest : COLD_BYTES;
    b->memory = fg_mem_map(b->memory_bytes);
    uint32_t rows = larger(b->row_max, 128);
    uint32_t columns = larger(b->column_max, b->heads * b->head_dim);
    size_t elements = (size_t)rows * columns;
    lay_rows(b, rows, columns);
    b->row_memory = fg_mem_map(b->row_bytes);
    if (b->memory == NULL || b->row_memory == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory: fewer --rows or smaller --shapes");
    }
    lay_rows(b, rows, columns);
    /* Finite whatever it is read as: the half 0x2c2c is 0.065, the float about 2e-12. */
    memset(b->memory, 0x2C, b->memory_bytes);
    for (size_t i = 0; i < elements; i++) {
        b->in.values[i] = (float)(i * 7919 % 2001) * 1e-3f - 1.0f;
    }
    return FG_OK;
}

static void close_bench(bench *b)
{
    if (b->row_memory != NULL) {
        fg_mem_unmap(b->row_memory, b->row_bytes);
    }
    if (b->memory != NULL) {
        fg_mem_unmap(b->memory, b->memory_bytes);
    }
    fg_peaks_close(b->peaks);
    if (b->stream != NULL) {
        fg_device_stream_close(b->stream);
    }
    if (b->device != NULL) {
        fg_device_close(b->device);
    }
    fg_mem_free(b);
}

static fg_status measure_all(bench *b, fg_error *err)
{
    b->before = measure_probes(b);
    print_head(b);
    for (uint32_t t = 0; t < b->type_count; t++) {
        for (uint32_t s = 0; s < b->shape_count; s++) {
            if (b->shapes[s].columns % fg_dtype_block_count(b->types[t]) != 0) {
                fprintf(stderr, "forge bench: %s has blocks of %u columns: no %ux%u of it\n",
                        fg_dtype_name(b->types[t]), fg_dtype_block_count(b->types[t]),
                        b->shapes[s].outputs, b->shapes[s].columns);
                continue;
            }
            if (b->ops[OP_LINEAR]) {
                bench_products(b, b->types[t], b->shapes[s]);
            }
            if (b->ops[OP_GATED]) {
                bench_gated(b, b->types[t], b->shapes[s]);
            }
            if (b->line_count > 0) {
                end_group(b);
            }
        }
    }
    fg_status status = b->ops[OP_ATTEND] ? bench_attentions(b, err) : FG_OK;
    if (status == FG_OK && b->ops[OP_OTHER]) {
        bench_others(b);
        end_group(b);
    }
    return status;
}

static fg_status run_kernels(const void *config, fg_error *err)
{
    bench *b = fg_mem_alloc(sizeof *b);
    if (b == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    b->config = config;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    b->threads = b->config->threads != 0 ? b->config->threads : cores > 0 ? (uint32_t)cores : 1;
    fg_status status = parse(b, err);
    if (status == FG_OK) {
        status = open_bench(b, err);
    }
    if (status == FG_OK) {
        status = measure_all(b, err);
    }
    close_bench(b);
    return status;
}

const fg_bench_form fg_bench_kernels = {
    .word = "kernels",
    .spec = &fg_bench_kernels_spec,
    .config_bytes = sizeof(kernels_config),
    .run = run_kernels,
};
