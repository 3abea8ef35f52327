/*
 * gpu_bench - how fast the operations of a CUDA device are, beside what the device's memory can do in the same minute.
 *
 *   gpu_bench [--device cuda:0] [--json] [--type bf16] [--rows N]... [--only TEXT]...
 *
 * Shapes are those of Llama-3.1-8B and Llama-3.2-1B. Each line: time of a call, bytes that it must move and operations
 * that it must do, their rates, and the share of the copy probe. Weights come from a ring of matrices that is larger
 * than any cache; --type says what they are, --rows how many rows the products have.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "kernels/ops.h"
#include "tests/unit/kernels/kernel_data.h"

enum { ONLY_MAX = 32, ROWS_MAX = 32 };

typedef struct bench {
    const char *device_name;
    const char *only[ONLY_MAX]; /* operations whose name has one of these in it */
    uint32_t only_count;        /* 0: all */
    uint32_t type;              /* of weights */
    uint32_t rows[ROWS_MAX], row_count;
    bool json;
    fg_device *device;
    fg_device_stream *stream;
    double copy_rate; /* bytes read and written in a second */
} bench;

enum { STEP_ROWS = 8192, CONTEXT = 16384, BLOCK = 16 };

static bool is_asked(const bench *b, const char *name)
{
    for (uint32_t i = 0; i < b->only_count; i++) {
        if (strstr(name, b->only[i]) != NULL) {
            return true;
        }
    }
    return b->only_count == 0;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void wait_for(bench *b)
{
    fg_device_event_wait(b->stream, fg_device_event_record(b->stream));
}

static void *take(bench *b, size_t bytes)
{
    void *memory = fg_device_alloc(b->device, FG_MEMORY_DEVICE, bytes);
    FG_ASSERT(memory != NULL, "no device memory for %zu bytes", bytes);
    return memory;
}

static void drop(bench *b, void *memory)
{
    fg_device_free(b->device, FG_MEMORY_DEVICE, memory, 0);
}

static void open_device(bench *b, uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    fg_error err;
    fg_device_options options = { .kind = b->device_name,
                                  .thread_count = 1,
                                  .step_rows_max = STEP_ROWS,
                                  .step_seqs_max = 256,
                                  .context_max = CONTEXT,
                                  .head_count = heads,
                                  .kv_head_count = kv_heads,
                                  .head_dim = dim,
                                  .block_size = BLOCK };
    if (fg_device_open(&options, &b->device, &err) != FG_OK ||
        fg_device_stream_open(b->device, &b->stream, &err) != FG_OK) {
        printf("%s\n", err.text);
        exit(77);
    }
}

static void close_device(bench *b)
{
    fg_device_stream_close(b->stream);
    fg_device_close(b->device);
}

/* The median of a few rounds of `calls` calls. */
static double time_of(bench *b, void (*run)(bench *b, void *ctx, uint32_t call), void *ctx,
                      uint32_t calls)
{
    enum { ROUNDS = 7 };
    double rounds[ROUNDS];
    run(b, ctx, 0);
    wait_for(b);
    for (int r = 0; r < ROUNDS; r++) {
        double from = now_s();
        for (uint32_t i = 0; i < calls; i++) {
            run(b, ctx, i);
        }
        wait_for(b);
        double took = (now_s() - from) / calls;
        int at = r;
        for (; at > 0 && rounds[at - 1] > took; at--) {
            rounds[at] = rounds[at - 1];
        }
        rounds[at] = took;
    }
    return rounds[ROUNDS / 2];
}

static void tell(bench *b, const char *name, double seconds, double bytes, double flops)
{
    if (b->json) {
        printf("{\"op\":\"%s\",\"us\":%.2f,\"gb_per_s\":%.1f,\"tflops\":%.2f,\"share_of_copy\":%."
               "3f}\n",
               name, seconds * 1e6, bytes / seconds * 1e-9, flops / seconds * 1e-12,
               bytes / seconds / b->copy_rate);
    } else {
        printf("%-44s %9.2f us %8.1f GB/s %8.2f TFLOP/s %6.1f %%\n", name, seconds * 1e6,
               bytes / seconds * 1e-9, flops / seconds * 1e-12,
               100.0 * bytes / seconds / b->copy_rate);
    }
    fflush(stdout);
}

typedef struct copy_job {
    uint8_t *from, *to;
    size_t bytes;
} copy_job;

static void run_copy(bench *b, void *ctx, uint32_t call)
{
    copy_job *job = ctx;
    fg_device_copy(b->stream, job->to, job->from, job->bytes);
}

static void probe(bench *b)
{
    copy_job job = { .bytes = (size_t)1 << 30 };
    job.from = take(b, job.bytes);
    job.to = take(b, job.bytes);
    double seconds = time_of(b, run_copy, &job, 5);
    b->copy_rate = 2.0 * (double)job.bytes / seconds;
    tell(b, "probe: copy of 1 GiB", seconds, 2.0 * (double)job.bytes, 0.0);
    drop(b, job.from);
    drop(b, job.to);
}

enum { RING_MAX = 64 };

typedef struct linear_job {
    fg_panels panels[RING_MAX];
    uint32_t ring, rows;
    fg_activations in;
    fg_linear linear;
    fg_gated gated;
} linear_job;

static void run_linear(bench *b, void *ctx, uint32_t call)
{
    linear_job *job = ctx;
    job->linear.weight = job->panels[call % job->ring];
    fg_op_linear(b->stream, &job->linear, 1, &job->in, job->rows);
}

static void run_gated(bench *b, void *ctx, uint32_t call)
{
    linear_job *job = ctx;
    job->gated.gate = job->panels[2 * call % job->ring];
    job->gated.up = job->panels[(2 * call + 1) % job->ring];
    fg_op_gated(b->stream, &job->gated, &job->in, job->rows);
}

static fg_activations take_rows(bench *b, uint32_t rows, uint32_t columns)
{
    fg_rng rng = { .state = 7 };
    size_t count = (size_t)rows * columns;
    float *host = random_floats(&rng, count, 1.0f);
    fg_activations a = { .columns = columns };
    a.values = take(b, count * sizeof(float));
    a.pairs = take(b, (size_t)(rows + 63) / 64 * 64 * fg_pair_stride(columns) * sizeof(uint32_t));
    fg_device_copy(b->stream, a.values, host, count * sizeof(float));
    wait_for(b);
    fg_op_prepare(b->stream, &a, FG_FORM_PAIRS, rows);
    wait_for(b);
    fg_mem_free(host);
    return a;
}

typedef struct product {
    const char *name;
    uint32_t outputs, columns;
    bool gated;
} product;

static const uint32_t product_rows[] = { 1, 8, 16, 32, 64, 128, 256, 2048, 8192 };
enum { PRODUCT_ROWS = sizeof product_rows / sizeof *product_rows, PRODUCT_NAME_MAX = 64 };
_Static_assert((int)PRODUCT_ROWS <= (int)ROWS_MAX, "product_rows");

/* Whether it is asked for with so many rows; its name then. */
static bool is_product_asked(const bench *b, const product *p, uint32_t rows,
                             char name_out[PRODUCT_NAME_MAX])
{
    bool usual = b->type == FG_BF16;
    snprintf(name_out, PRODUCT_NAME_MAX, "%s%s%s, %u rows", p->name, usual ? "" : " ",
             usual ? "" : fg_dtype_name(b->type), rows);
    return is_asked(b, name_out) && (rows <= 256 || p->outputs < 100000);
}

/* A ring of the product's weights, larger than any cache. */
static void pack_ring(bench *b, const product *p, size_t bytes, linear_job *job)
{
    job->ring = (uint32_t)(((size_t)400 << 20) / bytes) / 2 * 2;
    job->ring = job->ring < 2 ? 2 : job->ring > RING_MAX ? RING_MAX : job->ring;
    fg_rng rng = { .state = 3 };
    fg_matrix matrix;
    void *data = random_matrix(&rng, b->type, p->outputs, p->columns, &matrix);
    for (uint32_t i = 0; i < job->ring; i++) {
        FG_ASSERT(fg_device_pack(b->device, &matrix, &job->panels[i], NULL) == FG_OK);
    }
    fg_mem_free(data);
}

static void bench_product(bench *b, const product *p)
{
    static linear_job job;
    char name[PRODUCT_NAME_MAX];
    bool is_any = false;
    for (uint32_t r = 0; r < b->row_count; r++) {
        is_any = is_any || is_product_asked(b, p, b->rows[r], name);
    }
    if (!is_any) {
        return;
    }
    open_device(b, 4, 2, 64);
    size_t count = (size_t)p->outputs * p->columns;
    size_t bytes = count / fg_dtype_block_count(b->type) * fg_dtype_block_bytes(b->type);
    pack_ring(b, p, bytes, &job);
    for (uint32_t r = 0; r < b->row_count; r++) {
        uint32_t rows = b->rows[r];
        if (!is_product_asked(b, p, rows, name)) {
            continue;
        }
        job.rows = rows;
        job.in = take_rows(b, rows, p->columns);
        float *out = take(b, (size_t)(rows + 63) / 64 * 64 * p->outputs * sizeof(float));
        job.linear = (fg_linear){ .out = out, .out_stride = p->outputs };
        job.gated =
            (fg_gated){ .forms = FG_FORM_PAIRS,
                        .out = { .columns = p->outputs, .pairs = (uint32_t *)(void *)out } };
        uint32_t calls = rows > 256 ? 6 : 40;
        double seconds = time_of(b, p->gated ? run_gated : run_linear, &job, calls);
        double factor = p->gated ? 2.0 : 1.0;
        tell(b, name, seconds, factor * (double)bytes, 2.0 * factor * (double)count * rows);
        drop(b, out);
        drop(b, job.in.values);
        drop(b, job.in.pairs);
    }
    close_device(b);
}

static void bench_products(bench *b)
{
    static const product products[] = {
        { "8B qkv", 6144, 4096, false },     { "8B out", 4096, 4096, false },
        { "8B gate+up", 14336, 4096, true }, { "8B down", 4096, 14336, false },
        { "1B out", 2048, 2048, false },     { "1B down", 2048, 8192, false },
        { "head", 128256, 2048, false }
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        bench_product(b, &products[i]);
    }
}

typedef struct attend_bench {
    fg_paged_kv kv;
    fg_attend attend;
    fg_step_rows staged;
    uint32_t rows;
} attend_bench;

static void run_attend(bench *b, void *ctx, uint32_t call)
{
    attend_bench *job = ctx;
    fg_op_attend(b->stream, &job->kv, &job->attend, job->rows);
}

/* `seqs` sequences whose last `rows` of `context` slots are computed. */
static void bench_attend(bench *b, const char *name, uint32_t seqs, uint32_t rows, uint32_t context,
                         uint32_t heads, uint32_t kv_heads, uint32_t dim)
{
    static uint32_t positions[STEP_ROWS], tokens[STEP_ROWS];
    static fg_kv_row kv_rows[STEP_ROWS];
    char text[96];
    snprintf(text, sizeof text, "attend %s, %u x %u rows behind %u", name, seqs, rows,
             context - rows);
    if (!is_asked(b, text)) {
        return;
    }
    open_device(b, heads, kv_heads, dim);
    uint32_t blocks = (context + BLOCK - 1) / BLOCK;
    size_t head = (size_t)BLOCK * dim * 2, block_bytes = head * 2 * kv_heads;
    uint32_t *ids = fg_mem_array((size_t)seqs * blocks, sizeof *ids);
    for (uint32_t i = 0; i < seqs * blocks; i++) {
        ids[i] = (uint32_t)((i * 7919ull) % (seqs * blocks));
    }
    uint32_t count = 0;
    for (uint32_t s = 0; s < seqs; s++) {
        for (uint32_t i = 0; i < rows; i++) {
            positions[count] = context - rows + i;
            kv_rows[count] =
                (fg_kv_row){ .block_ids = ids + (size_t)s * blocks, .position = positions[count] };
            count++;
        }
    }
    size_t q = (size_t)count * heads * dim;
    attend_bench job = { .rows = count };
    job.kv = (fg_paged_kv){ .arena = take(b, (size_t)seqs * blocks * block_bytes),
                            .block_bytes = block_bytes,
                            .value_offset = head * kv_heads,
                            .head_bytes = head,
                            .block_size = BLOCK,
                            .dtype = FG_BF16,
                            .kv_head_count = kv_heads,
                            .head_dim = dim };
    fg_rng rng = { .state = 5 };
    float *host = random_floats(&rng, q, 2.0f), *there = take(b, q * sizeof(float));
    fg_device_copy(b->stream, there, host, q * sizeof(float));
    /* Anything that is no NaN: halves of random floats. */
    size_t arena_bytes = (size_t)seqs * blocks * block_bytes;
    for (size_t at = 0; at < arena_bytes; at += q * sizeof(float)) {
        size_t left = arena_bytes - at;
        fg_device_copy(b->stream, (uint8_t *)job.kv.arena + at, there, left < q * 4 ? left : q * 4);
    }
    job.attend = (fg_attend){ .q = there,
                              .kv_rows = kv_rows,
                              .head_count = heads,
                              .scale = 1.0f / sqrtf((float)dim),
                              .out = take(b, q * sizeof(float)) };
    job.staged = (fg_step_rows){ .tokens = tokens,
                                 .positions = positions,
                                 .kv_rows = kv_rows,
                                 .row_ids = tokens,
                                 .rows = count };
    fg_op_stage(b->stream, &job.staged);
    double seconds = time_of(b, run_attend, &job, rows > 1 ? 4 : 20);
    double pairs = (double)seqs * ((double)rows * (context - rows) + (double)rows * (rows + 1) / 2);
    tell(b, text, seconds, (double)seqs * context * 2.0 * kv_heads * dim * 2.0,
         4.0 * pairs * heads * dim);
    drop(b, there);
    drop(b, job.attend.out);
    drop(b, job.kv.arena);
    fg_mem_free(host);
    fg_mem_free(ids);
    close_device(b);
}

enum { CHOOSE_ROWS = 128 };

static void run_choose(bench *b, void *ctx, uint32_t call)
{
    const fg_choose *args = ctx;
    fg_op_choose(b->stream, args, CHOOSE_ROWS);
}

/* 128 rows of a large vocabulary, whose logits are somewhat like a model's: few are high. */
static void bench_choose(bench *b, const char *name, float top_p, uint32_t top_k)
{
    enum { ROWS = CHOOSE_ROWS, COLUMNS = 128256 };
    char text[96];
    snprintf(text, sizeof text, "choose %s, %d x %d", name, ROWS, COLUMNS);
    if (!is_asked(b, text)) {
        return;
    }
    open_device(b, 32, 8, 128);
    size_t count = (size_t)ROWS * COLUMNS;
    fg_rng rng = { .state = 7 };
    float *host = random_floats(&rng, count, 1.0f), *there = take(b, count * sizeof(float));
    for (size_t i = 0; i < count; i++) {
        host[i] = fabsf(host[i]) < 0.999f ? 4.0f * host[i] : 4.0f - logf(1.0f - fabsf(host[i]));
    }
    fg_device_copy(b->stream, there, host, count * sizeof(float));
    wait_for(b);
    fg_choice_row *wanted =
        fg_device_alloc(b->device, FG_MEMORY_SHARED, (size_t)ROWS * sizeof *wanted);
    for (uint32_t row = 0; row < ROWS; row++) {
        wanted[row] = (fg_choice_row){ .seed = row,
                                       .position = 1000,
                                       .temperature = 0.7f,
                                       .top_p = top_p,
                                       .top_k = top_k,
                                       .wanted = 1 };
    }
    fg_choose args = { .logits = there, .columns = COLUMNS, .wanted = wanted };
    args.choices = fg_device_alloc(b->device, FG_MEMORY_SHARED, ROWS * sizeof(uint32_t));
    args.tops = fg_device_alloc(b->device, FG_MEMORY_SHARED, ROWS * sizeof(float));
    double seconds = time_of(b, run_choose, &args, 20);
    uint32_t left = 0;
    for (uint32_t row = 0; row < ROWS; row++) {
        left += args.choices[row] == FG_CHOICE_NONE;
    }
    tell(b, text, seconds, (double)count * sizeof(float), 0.0);
    if (left > 0) {
        fprintf(b->json ? stderr : stdout, "  %u rows left to the host\n", left);
    }
    fg_device_free(b->device, FG_MEMORY_SHARED, wanted, 0);
    fg_device_free(b->device, FG_MEMORY_SHARED, args.choices, 0);
    fg_device_free(b->device, FG_MEMORY_SHARED, args.tops, 0);
    drop(b, there);
    fg_mem_free(host);
    close_device(b);
}

/* False: there is no such type. */
static bool find_type(const char *name, uint32_t *type_out)
{
    static const uint32_t types[] = { FG_F32,  FG_F16,  FG_BF16, FG_Q4_0, FG_Q4_1, FG_Q5_0,
                                      FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, fg_dtype_name(types[i])) == 0) {
            *type_out = types[i];
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    static bench b = { .device_name = "cuda:0", .type = FG_BF16 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            b.json = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            b.device_name = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--type") == 0 &&
                   find_type(argv[i + 1], &b.type)) {
            i++;
        } else if (i + 1 < argc && strcmp(argv[i], "--rows") == 0 && b.row_count < ROWS_MAX &&
                   atoi(argv[i + 1]) > 0 && atoi(argv[i + 1]) <= STEP_ROWS) {
            b.rows[b.row_count++] = (uint32_t)atoi(argv[++i]);
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0 && b.only_count < ONLY_MAX) {
            b.only[b.only_count++] = argv[++i];
        } else {
            fprintf(stderr, "gpu_bench [--device cuda:0] [--json] [--type bf16] [--rows N]... "
                            "[--only TEXT]...\n");
            return 2;
        }
    }
    for (uint32_t r = 0; b.row_count == 0 && r < PRODUCT_ROWS; r++) {
        b.rows[r] = product_rows[r];
    }
    b.row_count = b.row_count == 0 ? PRODUCT_ROWS : b.row_count;
    open_device(&b, 4, 2, 64);
    probe(&b);
    close_device(&b);
    bench_choose(&b, "of all", 1.0f, 0);
    bench_choose(&b, "of the 50 highest", 1.0f, 50);
    bench_choose(&b, "of the 50 highest and 0.9", 0.9f, 50);
    bench_choose(&b, "of 0.9", 0.9f, 0);
    bench_attend(&b, "8B", 1, 1, 1024, 32, 8, 128);
    bench_attend(&b, "8B", 1, 1, 8192, 32, 8, 128);
    bench_attend(&b, "8B", 32, 1, 4096, 32, 8, 128);
    bench_attend(&b, "8B", 64, 1, 1024, 32, 8, 128);
    bench_attend(&b, "8B", 256, 1, 1024, 32, 8, 128);
    bench_attend(&b, "1B", 1, 1, 1024, 32, 8, 64);
    bench_attend(&b, "1B", 64, 1, 1024, 32, 8, 64);
    bench_attend(&b, "8B", 1, 1024, 1024, 32, 8, 128);
    bench_attend(&b, "8B", 1, 8192, 8192, 32, 8, 128);
    bench_attend(&b, "1B", 1, 8192, 8192, 32, 8, 64);
    bench_products(&b);
    return 0;
}
