/*
 * gpu_check - the operations of a CUDA device against references computed here, and against themselves: every row's
 * bits must not depend on how many rows are computed with it, nor on how a sequence is cut into steps.
 *
 *   gpu_check [--device cuda:0] [--quick] [--seed N] [--only TEXT]
 *
 * One line a case that failed, one a group of cases; the last one is `N passed, N failed`. Exit 1 when one failed, 77
 * when there is no device.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/gpu/gpu_check.h"

void tell(check *c, bool good, const char *format, ...)
{
    c->passed += good;
    c->failed += !good;
    if (!good) {
        va_list list;
        va_start(list, format);
        printf("not ok - ");
        vprintf(format, list);
        printf("\n");
        va_end(list);
    }
}

void open_device(check *c, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t block_size)
{
    fg_error err;
    fg_device_options options = { .kind = c->device_name,
                                  .thread_count = 1,
                                  .step_rows_max = STEP_ROWS,
                                  .step_seqs_max = 64,
                                  .context_max = CONTEXT,
                                  .head_count = heads,
                                  .kv_head_count = kv_heads,
                                  .head_dim = dim,
                                  .block_size = block_size };
    if (fg_device_open(&options, &c->device, &err) != FG_OK ||
        fg_device_stream_open(c->device, &c->stream, &err) != FG_OK) {
        printf("%s\n", err.text);
        exit(77);
    }
}

void close_device(check *c)
{
    fg_device_stream_close(c->stream);
    fg_device_close(c->device);
}

void wait_for(check *c)
{
    fg_device_event_wait(c->stream, fg_device_event_record(c->stream));
}

void *put(check *c, const void *host, size_t bytes)
{
    void *memory = fg_device_alloc(c->device, FG_MEMORY_DEVICE, bytes);
    FG_ASSERT(memory != NULL, "no device memory for %zu bytes", bytes);
    if (host != NULL) {
        fg_device_copy(c->stream, memory, host, bytes);
        wait_for(c);
    }
    return memory;
}

void drop(check *c, void *memory)
{
    fg_device_free(c->device, FG_MEMORY_DEVICE, memory, 0);
}

void get(check *c, void *host, const void *memory, size_t bytes)
{
    fg_device_copy(c->stream, host, memory, bytes);
    wait_for(c);
}

void poison(check *c, float *memory, size_t count)
{
    float *nan = fg_mem_array(count, sizeof *nan);
    memset(nan, 0xFF, count * sizeof *nan);
    fg_device_copy(c->stream, memory, nan, count * sizeof *nan);
    wait_for(c);
    fg_mem_free(nan);
}

float brain(float x)
{
    return fg_bf16_to_f32(fg_bf16_from_f32(x));
}

float *unpacked(const fg_matrix *matrix)
{
    test_device cpu;
    FG_ASSERT(open_test_device("plain", 1, &cpu));
    size_t count = (size_t)matrix->outputs * matrix->columns;
    float *values = fg_mem_array(count, sizeof *values);
    uint32_t *tokens = fg_mem_array(matrix->outputs, sizeof *tokens);
    for (uint32_t i = 0; i < matrix->outputs; i++) {
        tokens[i] = i;
    }
    fg_op_embed(cpu.stream, matrix, tokens, matrix->outputs, 1.0f, values);
    fg_mem_free(tokens);
    close_test_device(&cpu);
    return values;
}

size_t pair_words(uint32_t rows, uint32_t columns)
{
    return (size_t)(rows + 63) / 64 * 64 * fg_pair_stride(columns);
}

rows_in make_rows(check *c, uint32_t rows, uint32_t columns)
{
    rows_in in = { .host = random_floats(&c->rng, (size_t)rows * columns, 1.0f), .rows = rows };
    in.a.columns = columns;
    in.a.values = put(c, in.host, (size_t)rows * columns * sizeof(float));
    in.a.pairs = put(c, NULL, pair_words(rows, columns) * sizeof(uint32_t));
    fg_op_prepare(c->stream, &in.a, FG_FORM_PAIRS, rows);
    return in;
}

void drop_rows(check *c, rows_in *in)
{
    drop(c, in->a.values);
    drop(c, in->a.pairs);
    fg_mem_free(in->host);
}

const uint32_t types[TYPES] = { FG_F32,  FG_F16,  FG_BF16, FG_Q4_0, FG_Q4_1, FG_Q5_0,
                                FG_Q5_1, FG_Q8_0, FG_Q4_K, FG_Q5_K, FG_Q6_K };

float pair_value(const uint32_t *pairs, uint32_t row, uint32_t k, uint32_t columns)
{
    uint32_t all = (columns + 15) / 16 * 16, first = k / 64 * 64;
    uint32_t width = all - first < 64 ? all - first : 64;
    uint32_t word = pairs[(size_t)(row / 64) * 32 * all + (size_t)first * 32 +
                          row % 64 / 8 * width * 4 + k % 64 / 8 * 32 + row % 8 * 4 + k % 8 / 2];
    return fg_bf16_to_f32((uint16_t)(k % 2 == 0 ? word : word >> 16));
}

/* ---- rows ---- */

static void stage_plain(check *c, const uint32_t *tokens, const uint32_t *positions,
                        const uint32_t *row_ids, uint32_t rows)
{
    static fg_kv_row padding[STEP_ROWS];
    fg_step_rows staged = { .tokens = tokens,
                            .positions = positions,
                            .kv_rows = padding,
                            .row_ids = row_ids,
                            .rows = rows,
                            .row_id_count = rows };
    fg_op_stage(c->stream, &staged);
}

enum { ODD_ROWS = 37 };

static void check_embed(check *c, const uint32_t *tokens)
{
    for (uint32_t i = 0; i < TYPES; i++) {
        fg_matrix matrix;
        void *data = random_matrix(&c->rng, types[i], 50, 768, &matrix);
        float *want = unpacked(&matrix), *got = fg_mem_array(ODD_ROWS * 768, sizeof *got);
        for (uint32_t k = 0; k < 50 * 768; k++) {
            want[k] *= 0.7f;
        }
        size_t bytes =
            50 * (size_t)(768 / fg_dtype_block_count(types[i])) * fg_dtype_block_bytes(types[i]);
        fg_matrix there = matrix;
        FG_ASSERT(fg_device_load(c->device, data, bytes, &there.data, NULL) == FG_OK);
        float *out = put(c, NULL, ODD_ROWS * 768 * sizeof(float));
        fg_op_embed(c->stream, &there, tokens, ODD_ROWS, 0.7f, out);
        get(c, got, out, ODD_ROWS * 768 * sizeof(float));
        bool same = true;
        for (uint32_t row = 0; row < ODD_ROWS; row++) {
            same = same && memcmp(got + row * 768, want + (size_t)tokens[row] * 768,
                                  768 * sizeof(float)) == 0;
        }
        tell(c, same, "embed %s: other floats than the CPU's", fg_dtype_name(types[i]));
        drop(c, out);
        fg_mem_free(got);
        fg_mem_free(want);
        fg_mem_free(data);
    }
}

static void check_norm(check *c, const uint32_t *row_ids, uint32_t columns)
{
    rows_in in = make_rows(c, ODD_ROWS, columns);
    float *weight = random_floats(&c->rng, columns, 1.0f);
    float *device_weight = put(c, weight, columns * sizeof(float));
    size_t count = (size_t)ODD_ROWS * columns, words = pair_words(ODD_ROWS, columns);
    fg_rmsnorm args = { .in = in.a.values,
                        .row_ids = row_ids,
                        .weight = device_weight,
                        .epsilon = 1e-5f,
                        .forms = FG_FORM_PAIRS };
    args.out.columns = columns;
    args.out.values = put(c, NULL, count * sizeof(float));
    args.out.pairs = put(c, NULL, words * sizeof(uint32_t));
    float *got = fg_mem_array(count, sizeof *got);
    uint32_t *pairs = fg_mem_array(words, sizeof *pairs);
    fg_op_rmsnorm(c->stream, &args, ODD_ROWS);
    get(c, got, args.out.values, count * sizeof(float));
    get(c, pairs, args.out.pairs, words * sizeof(uint32_t));
    double worst = 0.0;
    bool paired = true;
    for (uint32_t row = 0; row < ODD_ROWS; row++) {
        const float *x = in.host + (size_t)row_ids[row] * columns;
        double sum = 0.0;
        for (uint32_t k = 0; k < columns; k++) {
            sum += (double)x[k] * x[k];
        }
        double factor = 1.0 / sqrt(sum / columns + 1e-5);
        for (uint32_t k = 0; k < columns; k++) {
            double error = fabs(got[(size_t)row * columns + k] - x[k] * factor * weight[k]);
            worst = error > worst || isnan(error) ? error : worst;
            paired = paired &&
                     pair_value(pairs, row, k, columns) == brain(got[(size_t)row * columns + k]);
        }
    }
    tell(c, worst < 2e-6, "rmsnorm of %u: worst error %.3g", columns, worst);
    tell(c, paired, "rmsnorm of %u: pairs are not its values", columns);
    uint32_t *finite = fg_device_alloc(c->device, FG_MEMORY_SHARED, ODD_ROWS * sizeof *finite);
    in.host[3 * columns + 1] = INFINITY;
    in.host[(size_t)4 * columns + columns - 1] = NAN;
    fg_device_copy(c->stream, in.a.values, in.host, count * sizeof(float));
    fg_op_finite(c->stream, in.a.values, columns, ODD_ROWS, finite);
    wait_for(c);
    bool right = true;
    for (uint32_t row = 0; row < ODD_ROWS; row++) {
        right = right && finite[row] == (row != 3 && row != 4);
    }
    tell(c, right, "finite of %u", columns);
    fg_device_free(c->device, FG_MEMORY_SHARED, finite, 0);
    drop(c, args.out.values);
    drop(c, args.out.pairs);
    drop(c, device_weight);
    drop_rows(c, &in);
    fg_mem_free(got);
    fg_mem_free(pairs);
    fg_mem_free(weight);
}

static void check_rope_table(check *c, const uint32_t *positions)
{
    double frequencies[64];
    fg_rope_frequencies(&(fg_rope_shape){ .theta = 500000.0f, .pair_count = 64, .factor = 1.0f },
                        frequencies);
    fg_rope_turns turns = { .frequencies = frequencies, .pair_count = 64, .magnitude = 1.25 };
    float *table = put(c, NULL, ODD_ROWS * 128 * sizeof(float)), got[ODD_ROWS * 128];
    fg_op_rope_table(c->stream, positions, ODD_ROWS, &turns, table);
    get(c, got, table, sizeof got);
    double worst = 0.0;
    for (uint32_t i = 0; i < ODD_ROWS * 64; i++) {
        double angle = (double)positions[i / 64] * frequencies[i % 64];
        double error =
            fmax(fabs(got[2 * i] - 1.25 * cos(angle)), fabs(got[2 * i + 1] - 1.25 * sin(angle)));
        worst = error > worst || isnan(error) ? error : worst;
    }
    tell(c, worst < 2e-7, "rope table: worst error %.3g", worst);
    drop(c, table);
}

static void check_rows(check *c)
{
    open_device(c, 4, 2, 64, BLOCK);
    uint32_t tokens[ODD_ROWS], positions[ODD_ROWS], row_ids[ODD_ROWS];
    for (uint32_t i = 0; i < ODD_ROWS; i++) {
        tokens[i] = fg_rng_below(&c->rng, 50);
        positions[i] = fg_rng_below(&c->rng, 100000);
        row_ids[i] = ODD_ROWS - 1 - i;
    }
    stage_plain(c, tokens, positions, row_ids, ODD_ROWS);
    check_embed(c, tokens);
    const uint32_t widths[] = { 64, 172, 576, 2048, 8192 };
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        check_norm(c, row_ids, widths[i]);
    }
    check_rope_table(c, positions);
    close_device(c);
}

/* ---- steps that are started again ---- */

static void check_replay(check *c)
{
    enum { ROWS = 8, COLUMNS = 64, OUTPUTS = 48 };
    open_device(c, 4, 2, 64, BLOCK);
    fg_matrix matrix;
    void *data = random_matrix(&c->rng, FG_BF16, OUTPUTS, COLUMNS, &matrix);
    fg_panels panels;
    FG_ASSERT(fg_device_pack(c->device, &matrix, &panels, NULL) == FG_OK);
    fg_matrix table = { .type = FG_BF16, .outputs = OUTPUTS, .columns = COLUMNS };
    FG_ASSERT(fg_device_load(c->device, data, OUTPUTS * COLUMNS * 2, &table.data, NULL) == FG_OK);
    rows_in in = make_rows(c, ROWS, COLUMNS);
    float *out = put(c, NULL, ROWS * OUTPUTS * 4), first[ROWS * OUTPUTS], again[ROWS * OUTPUTS];
    fg_linear linear = { .weight = panels, .out = out, .out_stride = OUTPUTS };
    for (uint32_t turn = 0; turn < 4; turn++) {
        uint32_t tokens[ROWS], positions[ROWS] = { 0 };
        for (uint32_t i = 0; i < ROWS; i++) {
            tokens[i] = (i * 7 + turn) % OUTPUTS;
        }
        stage_plain(c, tokens, positions, positions, ROWS);
        fg_op_embed(c->stream, &table, tokens, ROWS, 1.0f, in.a.values);
        fg_op_prepare(c->stream, &in.a, FG_FORM_PAIRS, ROWS);
        fg_op_linear(c->stream, &linear, 1, &in.a, ROWS);
        get(c, first, out, sizeof first);
        poison(c, out, ROWS * OUTPUTS);
        stage_plain(c, tokens, positions, positions, ROWS);
        bool replayed = fg_device_replay_begin(c->stream, 17);
        if (!replayed) {
            fg_op_embed(c->stream, &table, tokens, ROWS, 1.0f, in.a.values);
            fg_op_prepare(c->stream, &in.a, FG_FORM_PAIRS, ROWS);
            fg_op_linear(c->stream, &linear, 1, &in.a, ROWS);
            fg_device_replay_end(c->stream);
        }
        get(c, again, out, sizeof again);
        tell(c, memcmp(first, again, sizeof first) == 0, "replay: other bits in turn %u", turn);
        tell(c, replayed == (turn > 0), "replay: %s in turn %u",
             replayed ? "started again" : "not started again", turn);
    }
    drop(c, out);
    drop_rows(c, &in);
    fg_mem_free(data);
    close_device(c);
}

/* Blocks of which the last part is of any length, in any order, some twice. */
static void check_digests(check *c)
{
    static const size_t sizes[] = { 256,    272,    960,     1008,    1024,   1040,  1088,
                                    2032,   2048,   2064,    8192,    33792,  36864, 131072,
                                    262160, 368640, 1 << 20, 2 << 20, 4 << 20 };
    open_device(c, 8, 2, 64, 16);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i];
        uint32_t blocks = c->quick && size > 65536 ? 2 : 9, count = 2 * blocks + 1;
        uint8_t *host = fg_mem_array(blocks, size);
        for (size_t at = 0; at < blocks * size; at += 8) {
            uint64_t word = fg_rng_next(&c->rng);
            memcpy(host + at, &word, 8);
        }
        void *device = put(c, host, blocks * size);
        uint32_t *ids = fg_device_alloc(c->device, FG_MEMORY_SHARED, count * sizeof *ids);
        uint64_t *digests = fg_device_alloc(c->device, FG_MEMORY_SHARED, count * sizeof *digests);
        for (uint32_t k = 0; k < count; k++) {
            ids[k] = (count - k) % blocks;
            digests[k] = 0;
        }
        const fg_digest_blocks args = {
            .base = device, .block_bytes = size, .ids = ids, .digests = digests
        };
        fg_op_digest(c->stream, &args, count);
        wait_for(c);
        for (uint32_t k = 0; k < count; k++) {
            tell(c, digests[k] == fg_hash64(host + ids[k] * size, size, 0),
                 "digest %u of blocks of %zu bytes", k, size);
        }
        fg_device_free(c->device, FG_MEMORY_SHARED, ids, count * sizeof *ids);
        fg_device_free(c->device, FG_MEMORY_SHARED, digests, count * sizeof *digests);
        drop(c, device);
        fg_mem_free(host);
    }
    close_device(c);
}

int main(int argc, char **argv)
{
    static check c = { .device_name = "cuda:0", .rng = { .state = 1 } };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            c.quick = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            c.device_name = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            c.rng.state = strtoull(argv[++i], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            c.only = argv[++i];
        } else {
            fprintf(stderr, "gpu_check [--device cuda:0] [--quick] [--seed N] [--only TEXT]\n");
            return 2;
        }
    }
    static const struct {
        const char *name;
        void (*run)(check *c);
    } groups[] = { { "rows", check_rows },       { "stores", check_stores },
                   { "replay", check_replay },   { "highest", check_highest },
                   { "choose", check_choose },   { "products", check_products },
                   { "weights", check_weights }, { "attention", check_attention },
                   { "digests", check_digests } };
    printf("seed %llu\n", (unsigned long long)c.rng.state);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (c.only != NULL && strstr(groups[i].name, c.only) == NULL) {
            continue;
        }
        uint32_t passed = c.passed, failed = c.failed;
        groups[i].run(&c);
        printf("%s: %u passed, %u failed\n", groups[i].name, c.passed - passed, c.failed - failed);
        fflush(stdout);
    }
    printf("%u passed, %u failed\n", c.passed, c.failed);
    return c.failed == 0 ? 0 : 1;
}
