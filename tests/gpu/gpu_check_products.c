/*
 * Products, and what is chosen from them.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/model/sampler.h"
#include "tests/gpu/gpu_check.h"

/* ---- products ---- */

static const uint32_t row_counts[] = {
    1, 2, 7, 8, 9, 16, 17, 24, 25, 32, 33, 64, 65, 128, 129, 200
};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

/* One output by the contract, and the sum of magnitudes, which errors of float sums are held against. */
static double product_of(const float *w, const float *x, uint32_t columns, double *size_out)
{
    double sum = 0.0, size = 0.0;
    for (uint32_t k = 0; k < columns; k++) {
        float a = brain(w[k]), b = brain(x[k]);
        sum += (double)a * b;
        size += fabs((double)a * b);
    }
    *size_out = size;
    return sum;
}

typedef struct product_case {
    uint32_t type, outputs, columns;
    uint32_t up_type; /* of gated ones; 0: as `type` */
} product_case;

/* All rows at once; then fewer, whose bits must be the same. */
static void check_linear(check *c, const product_case *p)
{
    enum { ROWS = 200 };
    uint32_t most = c->quick ? 65 : ROWS;
    fg_matrix matrix;
    void *data = random_matrix(&c->rng, p->type, p->outputs, p->columns, &matrix);
    float *weights = unpacked(&matrix);
    fg_panels panels;
    fg_error err;
    if (fg_device_pack(c->device, &matrix, &panels, &err) != FG_OK) {
        tell(c, false, "pack %s: %s", fg_dtype_name(p->type), err.text);
        return;
    }
    rows_in in = make_rows(c, most, p->columns);
    size_t count = (size_t)most * p->outputs;
    float *out = put(c, NULL, count * sizeof(float));
    float *all = fg_mem_array(count, sizeof(float)), *some = fg_mem_array(count, sizeof(float));
    fg_linear linear = { .weight = panels, .out = out, .out_stride = p->outputs };
    poison(c, out, count);
    fg_op_linear(c->stream, &linear, 1, &in.a, most);
    get(c, all, out, count * sizeof(float));
    double worst = 0.0;
    for (uint32_t row = 0; row < most; row++) {
        for (uint32_t o = 0; o < p->outputs; o++) {
            double size, want = product_of(weights + (size_t)o * p->columns,
                                           in.host + (size_t)row * p->columns, p->columns, &size);
            double error = fabs(all[(size_t)row * p->outputs + o] - want) / (size + 1e-30);
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    tell(c, worst < 2e-6, "linear %s %ux%u: worst error %.3g of the sizes", fg_dtype_name(p->type),
         p->columns, p->outputs, worst);
    for (uint32_t i = 0; i < ROW_COUNTS && row_counts[i] <= most; i++) {
        uint32_t rows = row_counts[i];
        poison(c, out, count);
        fg_op_linear(c->stream, &linear, 1, &in.a, rows);
        get(c, some, out, count * sizeof(float));
        tell(c, memcmp(all, some, (size_t)rows * p->outputs * sizeof(float)) == 0,
             "linear %s %ux%u: %u rows have other bits than %u", fg_dtype_name(p->type), p->columns,
             p->outputs, rows, most);
        uint32_t unused;
        memcpy(&unused, some + (size_t)rows * p->outputs - 1 + (rows < most), sizeof unused);
        tell(c, rows == most || unused == UINT32_MAX, "linear %s: %u rows wrote more rows",
             fg_dtype_name(p->type), rows);
    }
    /* Added to what is there, twice in one call. */
    fg_linear both[3] = { linear, linear, linear };
    float *second = put(c, NULL, count * sizeof(float)),
          *third = put(c, NULL, count * sizeof(float));
    both[1].out = second;
    both[2].out = third;
    both[2].accumulate = true;
    fg_device_copy(c->stream, third, all == NULL ? NULL : out, count * sizeof(float));
    uint32_t rows = 5;
    fg_op_linear(c->stream, both, 3, &in.a, rows);
    get(c, some, second, count * sizeof(float));
    tell(c, memcmp(all, some, (size_t)rows * p->outputs * sizeof(float)) == 0,
         "linear %s: second of three", fg_dtype_name(p->type));
    get(c, some, third, count * sizeof(float));
    bool doubled = true;
    for (size_t i = 0; i < (size_t)rows * p->outputs; i++) {
        doubled = doubled && some[i] == all[i] + all[i];
    }
    tell(c, doubled, "linear %s: added to what was there", fg_dtype_name(p->type));
    drop(c, second);
    drop(c, third);
    drop(c, out);
    drop_rows(c, &in);
    fg_mem_free(all);
    fg_mem_free(some);
    fg_mem_free(weights);
    fg_mem_free(data);
}

/* Fewer rows than all that `in` has, whose bits must be the same. */
static void check_gated_bits(check *c, const product_case *p, const fg_gated *gated,
                             const rows_in *in, const uint32_t *all)
{
    size_t words = pair_words(in->rows, p->outputs);
    uint32_t *some = fg_mem_array(words, sizeof *some);
    for (uint32_t i = 0; i < ROW_COUNTS && row_counts[i] <= in->rows; i++) {
        uint32_t rows = row_counts[i];
        poison(c, (float *)gated->out.pairs, words);
        fg_op_gated(c->stream, gated, &in->a, rows);
        get(c, some, gated->out.pairs, words * sizeof(uint32_t));
        bool same = true;
        for (uint32_t row = 0; row < rows; row++) {
            for (uint32_t o = 0; o < p->outputs; o++) {
                same = same &&
                       pair_value(all, row, o, p->outputs) == pair_value(some, row, o, p->outputs);
            }
        }
        tell(c, same, "gated %s %ux%u: %u rows have other bits than %u", fg_dtype_name(p->type),
             p->columns, p->outputs, rows, in->rows);
    }
    fg_mem_free(some);
}

static void check_gated(check *c, const product_case *p)
{
    uint32_t most = c->quick ? 65 : 200;
    uint32_t up_type = p->up_type == 0 ? p->type : p->up_type;
    fg_matrix matrices[2];
    void *data[2];
    float *weights[2];
    fg_panels panels[2];
    for (int i = 0; i < 2; i++) {
        data[i] = random_matrix(&c->rng, i == 0 ? p->type : up_type, p->outputs, p->columns,
                                &matrices[i]);
        weights[i] = unpacked(&matrices[i]);
        FG_ASSERT(fg_device_pack(c->device, &matrices[i], &panels[i], NULL) == FG_OK);
    }
    rows_in in = make_rows(c, most, p->columns);
    size_t words = pair_words(most, p->outputs), count = (size_t)most * p->outputs;
    fg_gated gated = { .gate = panels[0], .up = panels[1], .forms = FG_FORM_PAIRS };
    gated.out.columns = p->outputs;
    gated.out.pairs = put(c, NULL, words * sizeof(uint32_t));
    gated.out.values = put(c, NULL, count * sizeof(float));
    uint32_t *all = fg_mem_array(words, sizeof *all);
    float *values = fg_mem_array(count, sizeof *values);
    fg_op_gated(c->stream, &gated, &in.a, most);
    get(c, all, gated.out.pairs, words * sizeof(uint32_t));
    gated.forms = 0;
    fg_op_gated(c->stream, &gated, &in.a, most);
    get(c, values, gated.out.values, count * sizeof(float));
    gated.forms = FG_FORM_PAIRS;
    bool paired = true;
    double worst = 0.0;
    for (uint32_t row = 0; row < most; row++) {
        for (uint32_t o = 0; o < p->outputs; o++) {
            double size, up_size;
            const float *x = in.host + (size_t)row * p->columns;
            double g = product_of(weights[0] + (size_t)o * p->columns, x, p->columns, &size);
            double u = product_of(weights[1] + (size_t)o * p->columns, x, p->columns, &up_size);
            double want = g / (1.0 + exp(-g)) * u;
            double got = pair_value(all, row, o, p->outputs);
            double error = fabs(got - want) / (fabs(want) + 1e-4 * size * up_size + 1e-6);
            worst = error > worst || isnan(error) ? error : worst;
            paired = paired && brain(values[(size_t)row * p->outputs + o]) == (float)got;
        }
        /* What reads them multiplies the rest of the last step too. */
        for (uint32_t o = p->outputs; o % 16 != 0; o++) {
            paired = paired && pair_value(all, row, o, p->outputs) == 0.0f;
        }
    }
    tell(c, paired, "gated %s %ux%u: pairs are not its values, or not 0 behind them",
         fg_dtype_name(p->type), p->columns, p->outputs);
    tell(c, worst < 0.005, "gated %s %ux%u: worst error %.3g", fg_dtype_name(p->type), p->columns,
         p->outputs, worst);
    check_gated_bits(c, p, &gated, &in, all);
    drop(c, gated.out.pairs);
    drop(c, gated.out.values);
    drop_rows(c, &in);
    for (int i = 0; i < 2; i++) {
        fg_mem_free(weights[i]);
        fg_mem_free(data[i]);
    }
    fg_mem_free(all);
    fg_mem_free(values);
}

/* Quantised weights lie in units of 64 columns: parts that begin and end within one, and strips that do. */
static void check_units(check *c, uint32_t type)
{
    static const uint32_t small[] = { 32, 96, 160, 576, 800, 1056 };
    static const uint32_t large[] = { 256, 512, 1280, 1792 };
    bool super = fg_dtype_block_count(type) == 256;
    uint32_t count = super ? sizeof large / sizeof *large : sizeof small / sizeof *small;
    for (uint32_t i = 0; i < count; i++) {
        product_case p = { type, i % 2 == 0 ? 40 : 16, super ? large[i] : small[i], 0 };
        check_linear(c, &p);
        p.outputs = 32;
        check_gated(c, &p);
    }
}

/* More than is expanded at a time for many rows, against few rows, which expand nothing. */
static void check_pieces(check *c)
{
    enum { FEW = 40, LINEARS = 3 };
    uint32_t outputs = c->quick ? 272 : 16416, columns = c->quick ? 1024 : 4096;
    uint32_t many = c->quick ? 72 : 1000; /* so many are expanded even where wide_quant.cu is */
    fg_matrix matrices[2];
    void *data[2];
    fg_panels panels[2];
    for (int i = 0; i < 2; i++) {
        data[i] = random_matrix(&c->rng, FG_Q4_0, outputs, columns, &matrices[i]);
        FG_ASSERT(fg_device_pack(c->device, &matrices[i], &panels[i], NULL) == FG_OK);
    }
    rows_in in = make_rows(c, many, columns);
    size_t words = pair_words(many, outputs), count = (size_t)many * outputs;
    fg_gated gated = { .gate = panels[0], .up = panels[1], .forms = FG_FORM_PAIRS };
    gated.out.columns = outputs;
    gated.out.pairs = put(c, NULL, words * sizeof(uint32_t));
    uint32_t *pairs[2] = { fg_mem_array(words, sizeof **pairs),
                           fg_mem_array(words, sizeof **pairs) };
    fg_linear linears[LINEARS];
    float *values[2] = { fg_mem_array(count, sizeof **values),
                         fg_mem_array(count, sizeof **values) };
    for (int i = 0; i < LINEARS; i++) {
        linears[i] = (fg_linear){ .weight = panels[i % 2],
                                  .out = put(c, NULL, count * sizeof(float)),
                                  .out_stride = outputs };
    }
    bool same = true, same_gated = true;
    for (int turn = 0; turn < 2; turn++) {
        poison(c, (float *)gated.out.pairs, words);
        fg_op_gated(c->stream, &gated, &in.a, turn == 0 ? many : FEW);
        get(c, pairs[turn], gated.out.pairs, words * sizeof(uint32_t));
    }
    for (uint32_t row = 0; row < FEW; row++) {
        for (uint32_t o = 0; o < outputs; o++) {
            same_gated = same_gated && pair_value(pairs[0], row, o, outputs) ==
                                           pair_value(pairs[1], row, o, outputs);
        }
    }
    fg_op_linear(c->stream, linears, LINEARS, &in.a, many);
    for (int i = 0; i < LINEARS; i++) {
        get(c, values[0], linears[i].out, count * sizeof(float));
        poison(c, linears[i].out, count);
        fg_op_linear(c->stream, &linears[i], 1, &in.a, FEW);
        get(c, values[1], linears[i].out, count * sizeof(float));
        same = same && memcmp(values[0], values[1], (size_t)FEW * outputs * sizeof(float)) == 0;
        drop(c, linears[i].out);
    }
    tell(c, same, "linear %ux%u in pieces: other bits", columns, outputs);
    tell(c, same_gated, "gated %ux%u in pieces: other bits", columns, outputs);
    drop(c, gated.out.pairs);
    drop_rows(c, &in);
    for (int i = 0; i < 2; i++) {
        fg_mem_free(data[i]);
        fg_mem_free(pairs[i]);
        fg_mem_free(values[i]);
    }
}

/* Rows that are computed in tiles of several sizes, several tiles a block, whose last rows and outputs are not whole ones;
 * products that are one launch (floats are, since all are BF16 when they are packed), and one that is added. Against 64
 * rows at a time; quantised weights against 16, of which no kernel of many rows has any. */
static void check_many_linear(check *c, uint32_t type, uint32_t rows, const uint32_t *outputs,
                              uint32_t columns)
{
    enum { LINEARS = 3, ADDED = 1 };
    static const uint32_t floats[LINEARS] = { FG_BF16, FG_F16, FG_F32 };
    bool is_quant = fg_dtype_block_count(type) > 1;
    const uint32_t few = is_quant ? 16 : 64;
    rows_in in = make_rows(c, rows, columns);
    fg_linear linears[LINEARS];
    void *data[LINEARS];
    float *outs[LINEARS][2], *got[2];
    for (int i = 0; i < LINEARS; i++) {
        fg_matrix matrix;
        size_t count = (size_t)rows * outputs[i];
        data[i] = random_matrix(&c->rng, is_quant ? type : floats[i], outputs[i], columns, &matrix);
        linears[i] = (fg_linear){ .out_stride = outputs[i], .accumulate = i == ADDED };
        FG_ASSERT(fg_device_pack(c->device, &matrix, &linears[i].weight, NULL) == FG_OK);
        float *start = random_floats(&c->rng, count, 1.0f);
        for (int turn = 0; turn < 2; turn++) {
            outs[i][turn] = put(c, i == ADDED ? start : NULL, count * sizeof(float));
            if (i != ADDED) {
                poison(c, outs[i][turn], count);
            }
        }
        fg_mem_free(start);
    }
    FG_ASSERT(columns % 64 == 0);
    for (uint32_t first = 0; first < rows; first += few) {
        fg_activations part = in.a;
        part.pairs += (size_t)first / 64 * 32 * columns + first % 64 / 8 * 256;
        for (int i = 0; i < LINEARS; i++) {
            linears[i].out = outs[i][1] + (size_t)first * outputs[i];
        }
        fg_op_linear(c->stream, linears, LINEARS, &part, rows - first < few ? rows - first : few);
    }
    for (int i = 0; i < LINEARS; i++) {
        linears[i].out = outs[i][0];
    }
    fg_op_linear(c->stream, linears, LINEARS, &in.a, rows);
    for (int i = 0; i < LINEARS; i++) {
        size_t count = (size_t)rows * outputs[i];
        for (int turn = 0; turn < 2; turn++) {
            got[turn] = fg_mem_array(count, sizeof(float));
            get(c, got[turn], outs[i][turn], count * sizeof(float));
        }
        tell(c, memcmp(got[0], got[1], count * sizeof(float)) == 0,
             "linear %s %d of %d, %ux%u: %u rows have other bits than %u", fg_dtype_name(type), i,
             LINEARS, columns, outputs[i], rows, few);
        for (int turn = 0; turn < 2; turn++) {
            fg_mem_free(got[turn]);
            drop(c, outs[i][turn]);
        }
        fg_mem_free(data[i]);
    }
    drop_rows(c, &in);
}

static void check_many_gated(check *c, uint32_t type, uint32_t rows, uint32_t outputs,
                             uint32_t columns)
{
    bool is_quant = fg_dtype_block_count(type) > 1, same = true;
    const uint32_t few = is_quant ? 16 : 64;
    rows_in in = make_rows(c, rows, columns);
    fg_gated gated = { .forms = FG_FORM_PAIRS, .out.columns = outputs };
    fg_panels *panels[2] = { &gated.gate, &gated.up };
    void *data[2];
    size_t words = pair_words(rows, outputs);
    uint32_t *out[2], *got[2];
    for (int i = 0; i < 2; i++) {
        fg_matrix matrix;
        uint32_t kind = is_quant ? type : i == 0 ? FG_F16 : FG_F32;
        data[i] = random_matrix(&c->rng, kind, outputs, columns, &matrix);
        FG_ASSERT(fg_device_pack(c->device, &matrix, panels[i], NULL) == FG_OK);
        out[i] = put(c, NULL, words * sizeof(uint32_t));
        poison(c, (float *)out[i], words);
        got[i] = fg_mem_array(words, sizeof(uint32_t));
    }
    gated.out.pairs = out[0];
    fg_op_gated(c->stream, &gated, &in.a, rows);
    get(c, got[0], out[0], words * sizeof(uint32_t));
    gated.out.pairs = out[1];
    FG_ASSERT(columns % 64 == 0);
    for (uint32_t first = 0; first < rows; first += few) {
        fg_activations part = in.a;
        uint32_t count = rows - first < few ? rows - first : few;
        part.pairs += (size_t)first / 64 * 32 * columns + first % 64 / 8 * 256;
        fg_op_gated(c->stream, &gated, &part, count);
        get(c, got[1], out[1], pair_words(count, outputs) * sizeof(uint32_t));
        for (uint32_t row = 0; row < count; row++) {
            for (uint32_t o = 0; o < outputs; o++) {
                same = same && pair_value(got[0], first + row, o, outputs) ==
                                   pair_value(got[1], row, o, outputs);
            }
        }
    }
    tell(c, same, "gated %s %ux%u: %u rows have other bits than %u", fg_dtype_name(type), columns,
         outputs, rows, few);
    for (int i = 0; i < 2; i++) {
        drop(c, out[i]);
        fg_mem_free(got[i]);
        fg_mem_free(data[i]);
    }
    drop_rows(c, &in);
}

static const uint32_t many_outputs[][3] = { { 144, 1000, 24 },
                                            { 8200, 1040, 100 },
                                            { 80, 136, 248 } };

static void check_many(check *c)
{
    static const uint32_t counts[] = { 193, 257, 385, 600, 1000 };
    if (c->quick) {
        check_many_linear(c, FG_BF16, 200, many_outputs[2], 128);
        check_many_linear(c, FG_Q5_K, 70, many_outputs[2], 512);
        check_many_gated(c, FG_Q5_K, 70, 176, 512);
        check_many_gated(c, FG_BF16, 200, 176, 128);
        return;
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (uint32_t j = 0; j < 3; j++) {
            check_many_linear(c, FG_BF16, counts[i], many_outputs[j], j == 0 ? 4096 : 512);
        }
        check_many_gated(c, FG_BF16, counts[i], 4208, 512);
        check_many_gated(c, FG_BF16, counts[i], 48, 1536);
    }
}

/* Columns that end within a step, and outputs that do, which are columns of what follows. */
static void check_ends(check *c, uint32_t type)
{
    static const uint32_t columns[] = { 2, 40, 172, 1034 };
    for (uint32_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        product_case p = { type, 36, columns[i], 0 };
        check_linear(c, &p);
        p.outputs = columns[3 - i] % 200;
        check_gated(c, &p);
    }
}

/* What no product is made of: one line that says what can be. */
static void check_refused(check *c)
{
    static const uint32_t kinds[] = { FG_F32, FG_F16, FG_BF16 };
    for (uint32_t i = 0; i < 3; i++) {
        fg_matrix matrix;
        void *data = random_matrix(&c->rng, kinds[i], 16, 33, &matrix);
        fg_panels panels = { .columns = 7 };
        fg_error err = { .text = "" };
        fg_status status = fg_device_pack(c->device, &matrix, &panels, &err);
        tell(c, status == FG_BAD_INPUT && panels.columns == 7 && err.status == status,
             "pack %s of 33 columns: status %d", fg_dtype_name(kinds[i]), (int)status);
        tell(c, strstr(err.text, "33 columns") != NULL && strstr(err.text, "even numbers") != NULL,
             "pack %s of 33 columns: \"%s\"", fg_dtype_name(kinds[i]), err.text);
        fg_mem_free(data);
    }
}

/* Quantised weights of which wide_quant.cu makes bf16, in tiles of both widths: of the first outputs several blocks share
 * the parts, of the second none does, of the third parts begin within 256 columns. The last rows are too many for it. Then
 * outputs of which blocks have two wide tiles. */
static void check_many_quantised(check *c, uint32_t type)
{
    static const uint32_t counts[] = { 33, 65, 128, 192, 300, 520 };
    static const uint32_t columns[] = { 4096, 512, 1536 };
    static const uint32_t most[] = { 12000, 760, 40 };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (uint32_t j = 0; j < 3; j++) {
            check_many_linear(c, type, counts[i], many_outputs[j], columns[j]);
        }
        check_many_gated(c, type, counts[i], 4208, 512);
        check_many_gated(c, type, counts[i], 48, 1536);
    }
    check_many_linear(c, type, 250, most, 512);
    check_many_gated(c, type, 120, 12800, 512);
}

void check_products(check *c)
{
    open_device(c, 4, 2, 64, BLOCK);
    for (uint32_t i = 0; i < TYPES; i++) {
        bool super = fg_dtype_block_count(types[i]) == 256;
        product_case cases[] = { { types[i], 48, super ? 256 : 64, 0 },
                                 { types[i], 100, super ? 768 : 576, 0 },
                                 { types[i], 272, super ? 2048 : 1536, 0 } };
        for (uint32_t j = 0; j < (c->quick ? 2u : 3u); j++) {
            check_linear(c, &cases[j]);
            cases[j].outputs = cases[j].outputs / 16 * 16;
            check_gated(c, &cases[j]);
        }
        if (fg_dtype_block_count(types[i]) > 1) {
            check_units(c, types[i]);
        } else {
            check_ends(c, types[i]);
        }
        if (fg_dtype_block_count(types[i]) > 1 && !c->quick) {
            check_many_quantised(c, types[i]);
        }
    }
    product_case tall = { FG_BF16, 1000, 4096, 0 };
    if (!c->quick) {
        check_linear(c, &tall);
    }
    product_case mixed[] = { { FG_Q4_K, 64, 768, FG_Q6_K },
                             { FG_F16, 64, 768, FG_Q4_K },
                             { FG_F32, 40, 768, FG_F16 } };
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        check_gated(c, &mixed[i]);
    }
    check_refused(c);
    check_pieces(c);
    check_many(c);
    close_device(c);
}

/* The token of the next step's row `row` is what was chosen last for row `rows` - 1 - `row`. */
static void check_followed(check *c, const char *what, const uint32_t *choices, uint32_t rows,
                           uint32_t outputs)
{
    enum { COLUMNS = 2 };
    uint32_t tokens[FG_CHOSEN_ROWS], positions[FG_CHOSEN_ROWS] = { 0 };
    fg_kv_row kv_rows[FG_CHOSEN_ROWS] = { { .block_ids = NULL } };
    rows = rows < FG_CHOSEN_ROWS ? rows : FG_CHOSEN_ROWS;
    float *table = fg_mem_array((size_t)outputs * COLUMNS, sizeof *table), got[FG_CHOSEN_ROWS][2];
    for (uint32_t i = 0; i < outputs * COLUMNS; i++) {
        table[i] = (float)i;
    }
    for (uint32_t row = 0; row < rows; row++) {
        tokens[row] = FG_TOKEN_CHOSEN | (rows - 1 - row);
    }
    fg_matrix there = { .type = FG_F32, .outputs = outputs, .columns = COLUMNS };
    there.data = put(c, table, (size_t)outputs * COLUMNS * sizeof *table);
    float *out = put(c, NULL, sizeof got);
    fg_op_stage(c->stream,
                &(fg_step_rows){
                    .tokens = tokens, .positions = positions, .kv_rows = kv_rows, .rows = rows });
    fg_op_embed(c->stream, &there, tokens, rows, 1.0f, out);
    get(c, got, out, rows * sizeof got[0]);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t choice = choices[rows - 1 - row];
        /* Nothing was wanted of the row, or it was left to the host. */
        bool any =
            choice >= outputs && got[row][0] >= 0.0f && got[row][0] < (float)(outputs * COLUMNS);
        tell(c, any || got[row][0] == (float)choice * COLUMNS,
             "%s: row %u of %u follows %g, not token %u", what, row, rows,
             (double)got[row][0] / COLUMNS, choice);
    }
    drop(c, out);
    drop(c, (void *)there.data);
    fg_mem_free(table);
}

void check_highest(check *c)
{
    enum { OUTPUTS = 999, COLUMNS = 64, ROWS = 70 };
    open_device(c, 4, 2, 64, BLOCK);
    fg_matrix matrix;
    void *data = random_matrix(&c->rng, FG_BF16, OUTPUTS, COLUMNS, &matrix);
    uint16_t *weights = data;
    /* Two outputs that are equal, and one that is no number for any row. */
    memcpy(weights + 700 * COLUMNS, weights + 300 * COLUMNS, COLUMNS * 2);
    weights[10 * COLUMNS + 3] = 0x7FC0;
    fg_panels panels;
    FG_ASSERT(fg_device_pack(c->device, &matrix, &panels, NULL) == FG_OK);
    rows_in in = make_rows(c, ROWS, COLUMNS);
    for (uint32_t k = 0; k < COLUMNS; k++) {
        in.host[5 * COLUMNS + k] = k == 0 ? NAN : 0.0f;
        /* Row 6 points where outputs 300 and 700 do. */
        in.host[6 * COLUMNS + k] = 100.0f * fg_bf16_to_f32(weights[300 * COLUMNS + k]);
    }
    fg_device_copy(c->stream, in.a.values, in.host, ROWS * COLUMNS * sizeof(float));
    fg_op_prepare(c->stream, &in.a, FG_FORM_PAIRS, ROWS);
    float *out = put(c, NULL, ROWS * OUTPUTS * sizeof(float)),
          *logits = fg_mem_array(ROWS * OUTPUTS, sizeof(float));
    fg_linear linear = { .weight = panels, .out = out, .out_stride = OUTPUTS };
    fg_op_linear(c->stream, &linear, 1, &in.a, ROWS);
    get(c, logits, out, ROWS * OUTPUTS * sizeof(float));
    uint32_t *choices = fg_device_alloc(c->device, FG_MEMORY_SHARED, ROWS * sizeof *choices);
    float *tops = fg_device_alloc(c->device, FG_MEMORY_SHARED, ROWS * sizeof *tops);
    const uint32_t counts[] = { 1, 9, 33, ROWS };
    for (int i = 0; i < 4; i++) {
        fg_op_highest(c->stream, &panels, &in.a, counts[i], choices, tops);
        wait_for(c);
        for (uint32_t row = 0; row < counts[i]; row++) {
            uint32_t want = 0;
            float top = -INFINITY;
            for (uint32_t o = 0; o < OUTPUTS; o++) {
                if (logits[row * OUTPUTS + o] > top) {
                    top = logits[row * OUTPUTS + o];
                    want = o;
                }
            }
            tell(c, choices[row] == want && tops[row] == top,
                 "highest: row %u of %u is %u (%g), not %u (%g)", row, counts[i], want, (double)top,
                 choices[row], (double)tops[row]);
        }
        check_followed(c, "highest", choices, counts[i], OUTPUTS);
    }
    tell(c, choices[6] == 300, "highest: the first of equal ones, not %u", choices[6]);
    fg_device_free(c->device, FG_MEMORY_SHARED, choices, 0);
    fg_device_free(c->device, FG_MEMORY_SHARED, tops, 0);
    drop(c, out);
    drop_rows(c, &in);
    fg_mem_free(logits);
    fg_mem_free(data);
    close_device(c);
}

/* ---- choices, as the sampler makes them on the CPU ---- */

/* Logits of some kind: usual ones, with ties, with what is no number. */
static void fill_logits(check *c, uint32_t kind, float *row, uint32_t columns)
{
    uint32_t one = (uint32_t)fg_rng_below(&c->rng, columns),
             other = (uint32_t)fg_rng_below(&c->rng, columns);
    float size = kind % 3 == 0 ? 2.0f : kind % 3 == 1 ? 8.0f : 30.0f;
    for (uint32_t i = 0; i < columns; i++) {
        float u = (float)(fg_rng_next(&c->rng) >> 40) * 0x1p-24f;
        float x = size * (2.0f * u - 1.0f);
        row[i] = kind == 3                               ? 1.5f
                 : kind == 4 || kind == 5                ? rintf(x)
                 : kind == 6                             ? NAN
                 : kind == 7                             ? -INFINITY
                 : kind == 8 && fg_rng_below(&c->rng, 3) ? NAN
                 : kind == 9 && i % 100 != one % 100     ? -INFINITY
                                                         : x;
    }
    if (kind == 10 || kind == 11) {
        row[one] = INFINITY;
        row[kind == 10 ? one : other] = INFINITY;
    } else if (kind == 12) {
        row[one] = 200.0f;
    } else if (kind == 13) {
        row[0] = NAN;
        row[columns - 1] = -0.0f;
    }
}

static fg_sampling draw_sampling(check *c, bool narrow)
{
    static const float temperatures[] = { 0.0f, 0.1f, 0.5f, 0.7f, 1.0f, 1.3f, 2.0f, 5.0f };
    static const float least[] = { 0.0f, 0.0f, 0.01f, 0.1f, 0.5f, 1.0f };
    static const float shares[] = { 1.0f, 0.0f, 0.3f, 0.8f, 0.9f, 0.95f, 0.999f };
    static const uint32_t ranks[] = { 0, 0, 0, 1, 2, 5, 40, 50, 100, 500, 1024, 5000 };
    return (fg_sampling){ .temperature = temperatures[fg_rng_below(&c->rng, 8)],
                          .top_p = narrow ? shares[fg_rng_below(&c->rng, 7)] : 1.0f,
                          .top_k = narrow ? ranks[fg_rng_below(&c->rng, 12)] : 0,
                          .min_p = least[fg_rng_below(&c->rng, 6)],
                          .seed = fg_rng_next(&c->rng) };
}

static void check_choices(check *c, uint32_t columns, uint32_t rows, uint32_t rounds, bool narrow)
{
    uint32_t left = 0, drawn = 0;
    enum { KINDS = 14 };
    size_t bytes = (size_t)rows * columns * sizeof(float);
    float *logits = fg_mem_array((size_t)rows * columns, sizeof *logits), *there;
    there = put(c, NULL, bytes);
    fg_sampling *samplings = fg_mem_array(rows, sizeof *samplings);
    fg_sampler *sampler = fg_sampler_create(columns);
    fg_choice_row *wanted =
        fg_device_alloc(c->device, FG_MEMORY_SHARED, (size_t)rows * sizeof *wanted);
    uint32_t *choices = fg_device_alloc(c->device, FG_MEMORY_SHARED, rows * sizeof *choices);
    float *tops = fg_device_alloc(c->device, FG_MEMORY_SHARED, rows * sizeof *tops);
    const fg_choose args = {
        .logits = there, .columns = columns, .wanted = wanted, .choices = choices, .tops = tops
    };
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t row = 0; row < rows; row++) {
            fill_logits(c, (row + round) % (2 * KINDS), logits + (size_t)row * columns, columns);
            samplings[row] = draw_sampling(c, narrow);
            wanted[row] = (fg_choice_row){ .seed = samplings[row].seed,
                                           .choice = (uint32_t)fg_rng_below(&c->rng, 3),
                                           .position = (uint32_t)fg_rng_below(&c->rng, 100000),
                                           .temperature = samplings[row].temperature,
                                           .top_p = samplings[row].top_p,
                                           .top_k = samplings[row].top_k,
                                           .min_p = samplings[row].min_p,
                                           .wanted = fg_rng_below(&c->rng, 16) != 0 };
            choices[row] = UINT32_MAX - 1;
        }
        fg_device_copy(c->stream, there, logits, bytes);
        fg_op_choose(c->stream, &args, rows);
        wait_for(c);
        check_followed(c, "choose", choices, rows, columns);
        for (uint32_t row = 0; row < rows; row++) {
            const fg_choice_row *w = &wanted[row];
            const float *at = logits + (size_t)row * columns;
            if (narrow && w->wanted != 0) {
                drawn++;
                left += choices[row] == FG_CHOICE_NONE;
                if (choices[row] == FG_CHOICE_NONE) {
                    continue;
                }
            }
            uint32_t want = w->wanted == 0 ? UINT32_MAX - 1
                                           : fg_sampler_pick(sampler, at, &samplings[row],
                                                             w->choice, w->position);
            tell(
                c, choices[row] == want,
                "choose: row %u of %u: %u, not %u of %u (temperature %g, top-p %g, min-p %g, top-k "
                "%u)",
                row, rows, choices[row], want, columns, (double)w->temperature, (double)w->top_p,
                (double)w->min_p, w->top_k);
            tell(c, want == UINT32_MAX - 1 || memcmp(&tops[row], &at[want], sizeof *tops) == 0,
                 "choose: row %u of %u: logit %g, not %g", row, rows, (double)tops[row],
                 want == UINT32_MAX - 1 ? 0.0 : (double)at[want]);
        }
    }
    tell(c, left <= drawn / 2, "choose: %u of %u rows of %u left to the host", left, drawn,
         columns);
    if (narrow) {
        printf("choose: %u of %u rows of %u left to the host\n", left, drawn, columns);
    }
    fg_device_free(c->device, FG_MEMORY_SHARED, wanted, 0);
    fg_device_free(c->device, FG_MEMORY_SHARED, choices, 0);
    fg_device_free(c->device, FG_MEMORY_SHARED, tops, 0);
    fg_sampler_destroy(sampler);
    drop(c, there);
    fg_mem_free(samplings);
    fg_mem_free(logits);
}

void check_choose(check *c)
{
    open_device(c, 4, 2, 64, BLOCK);
    for (int narrow = 0; narrow < 2; narrow++) {
        check_choices(c, 7, 3, 20, narrow);
        check_choices(c, 999, 30, c->quick ? 8 : 200, narrow);
        check_choices(c, 4097, 33, c->quick ? 3 : 50, narrow);
        if (!c->quick) {
            check_choices(c, 32000, 64, 40, narrow);
            check_choices(c, 128256, 64, 10, narrow);
        }
    }
    close_device(c);
}
