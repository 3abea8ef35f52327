#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/panel_group.h"
#include "kernels/cpu/plain.h"

enum { LANES = 8 };

/* The largest magnitude, as bits (fg_cpu_is_odd). */
static uint32_t peak_bits_of(const float *x, int count)
{
    uint32_t peak_bits = 0;
    for (int i = 0; i < count; i++) {
        uint32_t bits = fg_f32_bits(x[i]) & INT32_MAX;
        peak_bits = bits > peak_bits ? bits : peak_bits;
    }
    return peak_bits;
}

/* A group as bytes; their sums in columns 0..15 and 16..31. */
static void quantize_group(const float *x, float inverse, int8_t *quants, int32_t sums[2])
{
    sums[0] = sums[1] = 0;
    for (int i = 0; i < FG_QUANT_GROUP; i++) {
        int32_t q = fg_cpu_round(x[i] * inverse);
        quants[i] = (int8_t)q;
        sums[i / 16] += q;
    }
}

static void plain_quantize_row(const float *values, uint32_t columns, int8_t *quants,
                               fg_quant_group *groups)
{
    for (uint32_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        int8_t *q = quants + (size_t)g * FG_QUANT_GROUP;
        uint32_t peak_bits = peak_bits_of(x, FG_QUANT_GROUP);
        if (fg_cpu_is_odd(peak_bits)) {
            groups[g] = fg_cpu_no_group(q);
            continue;
        }
        float peak = fg_f32_from_bits(peak_bits);
        bool zero = !(peak >= FG_CPU_QUANT_TINY);
        int32_t sums[2];
        quantize_group(x, zero ? 0.0f : 127.0f / peak, q, sums);
        groups[g] = fg_cpu_quant_group(zero ? 0.0f : peak / 127.0f, sums[0], sums[1]);
    }
}

void fg_cpu_plain_quantize_supers(const float *values, uint32_t columns, int8_t *quants,
                                  fg_quant_super *supers)
{
    for (uint32_t s = 0; s < columns / FG_QUANT_SUPER; s++) {
        const float *x = values + (size_t)s * FG_QUANT_SUPER;
        int8_t *q = quants + (size_t)s * FG_QUANT_SUPER;
        uint32_t peak_bits = peak_bits_of(x, FG_QUANT_SUPER);
        if (fg_cpu_is_odd(peak_bits)) {
            supers[s] = fg_cpu_no_super(q);
            continue;
        }
        fg_cpu_super_scale with = fg_cpu_super_scale_of(fg_f32_from_bits(peak_bits));
        supers[s] = (fg_quant_super){ .scale = with.scale };
        for (int g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
            const float *group = x + (size_t)g * FG_QUANT_GROUP;
            float peak = fg_f32_from_bits(peak_bits_of(group, FG_QUANT_GROUP));
            int32_t shift = fg_cpu_super_shift(peak, with.inverse);
            int32_t sums[2];
            quantize_group(group, with.inverse * fg_cpu_power(-shift),
                           q + (size_t)g * FG_QUANT_GROUP, sums);
            fg_cpu_put_super_group(&supers[s], g, shift, sums[0], sums[1]);
        }
    }
}

static void plain_pair_row(const float *values, uint32_t columns, uint32_t *pairs)
{
    for (uint32_t k = 0; k < columns; k += 2) {
        pairs[k / 2] = fg_cpu_pair(values + k, columns - k);
    }
}

void fg_cpu_plain_rmsnorm_row(const float *in, const float *weight, uint32_t columns, float epsilon,
                              float *out)
{
    float lanes[LANES] = { 0 };
    for (uint32_t i = 0; i < columns; i++) {
        lanes[i % LANES] = fmaf(in[i], in[i], lanes[i % LANES]);
    }
    float mean = fg_cpu_fold(lanes) / (float)columns;
    float factor = 1.0f / sqrtf(mean + epsilon);
    for (uint32_t i = 0; i < columns; i++) {
        out[i] = in[i] * factor * weight[i];
    }
}

static void plain_swiglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_swiglu(gate, up, count, out);
}

static void plain_geglu(const float *gate, const float *up, size_t count, float *out)
{
    fg_cpu_geglu(gate, up, count, out);
}

/* Rows of the product that share one unpacking of the weights; it bounds the accumulators. */
enum { PLAIN_ROWS = 8 };

/* One output of one panel, and the rows that meet it. */
typedef struct output_job {
    const fg_linear *linear;
    const fg_activations *in;
    fg_panel_shape shape;
    const uint8_t *panel;
    uint32_t output;
    uint32_t lane; /* of the output in its panel */
} output_job;

static void finish(const output_job *job, uint32_t row, float sum)
{
    const fg_linear *linear = job->linear;
    float *out = &linear->out[(size_t)row * linear->out_stride + job->output];
    *out = linear->accumulate ? *out + sum : sum;
}

static void quantized_output(const output_job *job, uint32_t first_row, uint32_t row_count)
{
    const fg_panels *w = &job->linear->weight;
    const fg_activations *in = job->in;
    uint32_t group_count = w->columns / FG_QUANT_GROUP;
    bool has_minimum = fg_cpu_has_minimum(w->type);
    float sums[PLAIN_ROWS] = { 0 };
    for (uint32_t g = 0; g < group_count; g++) {
        fg_cpu_group group;
        fg_cpu_panel_group(w->type, &job->shape, job->panel, g, job->lane, &group);
        for (uint32_t r = 0; r < row_count; r++) {
            size_t at = (size_t)(first_row + r) * group_count + g;
            const int8_t *x = in->quants + at * FG_QUANT_GROUP;
            const fg_quant_group *quant = &in->groups[at];
            int32_t sum = 0;
            for (int i = 0; i < FG_QUANT_GROUP; i++) {
                sum += group.scale[i / 16] * group.q[i] * x[i];
            }
            if (has_minimum) {
                sums[r] = fmaf(group.minimum, quant->offset, sums[r]);
            }
            sums[r] = fmaf(group.d * quant->scale, (float)sum, sums[r]);
        }
    }
    for (uint32_t r = 0; r < row_count; r++) {
        finish(job, first_row + r, sums[r]);
    }
}

/* What a super-group of one row adds up to. */
typedef struct super_sums {
    int32_t products;
    int32_t minima;
} super_sums;

static void add_super_group(const output_job *job, uint32_t g, uint32_t first_row,
                            uint32_t row_count, fg_cpu_group *group, super_sums *sums)
{
    const fg_activations *in = job->in;
    uint32_t type = job->linear->weight.type;
    int32_t minimum =
        fg_cpu_has_minimum(type) ? fg_cpu_panel_minimum(&job->shape, job->panel, g, job->lane) : 0;
    fg_cpu_panel_group(type, &job->shape, job->panel, g, job->lane, group);
    for (uint32_t r = 0; r < row_count; r++) {
        size_t row = first_row + r;
        const int8_t *x = in->quants + row * in->columns + (size_t)g * FG_QUANT_GROUP;
        const fg_quant_super *super =
            &in->supers[row * (in->columns / FG_QUANT_SUPER) + g / FG_QUANT_SUPER_GROUPS];
        int32_t products = 0;
        for (int i = 0; i < FG_QUANT_GROUP; i++) {
            products += group->scale[i / 16] * group->q[i] * x[i];
        }
        sums[r].products += products * (1 << super->shifts[g % FG_QUANT_SUPER_GROUPS]);
        sums[r].minima += minimum * super->sums[g % FG_QUANT_SUPER_GROUPS];
    }
}

static void super_output(const output_job *job, uint32_t first_row, uint32_t row_count)
{
    const fg_panels *w = &job->linear->weight;
    uint32_t super_count = w->columns / FG_QUANT_SUPER;
    float totals[PLAIN_ROWS] = { 0 };
    for (uint32_t s = 0; s < super_count; s++) {
        super_sums sums[PLAIN_ROWS] = { 0 };
        fg_cpu_group group;
        for (uint32_t g = 0; g < FG_QUANT_SUPER_GROUPS; g++) {
            add_super_group(job, s * FG_QUANT_SUPER_GROUPS + g, first_row, row_count, &group, sums);
        }
        for (uint32_t r = 0; r < row_count; r++) {
            float scale = job->in->supers[(size_t)(first_row + r) * super_count + s].scale;
            if (fg_cpu_has_minimum(w->type)) {
                totals[r] = fmaf(group.minimum * scale, (float)sums[r].minima, totals[r]);
            }
            totals[r] = fmaf(group.d * scale, (float)sums[r].products, totals[r]);
        }
    }
    for (uint32_t r = 0; r < row_count; r++) {
        finish(job, first_row + r, totals[r]);
    }
}

static void float_output(const output_job *job, uint32_t row)
{
    const fg_panels *w = &job->linear->weight;
    const float *x = job->in->values + (size_t)row * w->columns;
    float sum = 0.0f;
    for (uint32_t k = 0; k < w->columns; k++) {
        size_t at = (size_t)k * FG_PANEL_OUTPUTS + job->lane;
        sum = fmaf(fg_cpu_float_at(w->type, job->panel, at), x[k], sum);
    }
    finish(job, row, sum);
}

/* The chain of pairs first .. end - 1: one fma per column, of the pair's upper half first. */
static float pair_chain(const output_job *job, const uint32_t *x, uint32_t first, uint32_t end)
{
    float chain = 0.0f;
    for (uint32_t j = first; j < end; j++) {
        uint32_t w;
        memcpy(&w, job->panel + ((size_t)j * FG_PANEL_OUTPUTS + job->lane) * sizeof w, sizeof w);
        chain = fmaf(fg_cpu_pair_first(w), fg_cpu_pair_first(x[j]), chain);
        chain = fmaf(fg_cpu_pair_second(w), fg_cpu_pair_second(x[j]), chain);
    }
    return chain;
}

static void pair_output(const output_job *job, uint32_t row)
{
    enum { CHAIN = FG_CPU_CHAIN_PAIRS };
    uint32_t count = fg_panel_pairs(job->linear->weight.columns);
    const uint32_t *x = job->in->pairs + (size_t)row * fg_pair_stride(job->in->columns);
    float sum = 0.0f;
    for (uint32_t j = 0; j < count; j += 2 * CHAIN) {
        uint32_t middle = count - j < CHAIN ? count : j + CHAIN;
        uint32_t end = count - j < 2 * CHAIN ? count : j + 2 * CHAIN;
        sum += pair_chain(job, x, j, middle) + pair_chain(job, x, middle, end);
    }
    finish(job, row, sum);
}

void fg_cpu_plain_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                         uint32_t first, uint32_t count)
{
    const fg_panels *w = &linear->weight;
    output_job job = { .linear = linear,
                       .in = in,
                       .shape = fg_panel_shape_of(w->type, w->columns) };
    uint32_t end = (first + count) * FG_PANEL_OUTPUTS;
    end = end < w->outputs ? end : w->outputs;
    for (job.output = first * FG_PANEL_OUTPUTS; job.output < end; job.output++) {
        job.lane = job.output % FG_PANEL_OUTPUTS;
        job.panel =
            (const uint8_t *)w->data + job.output / FG_PANEL_OUTPUTS * job.shape.panel_bytes;
        uint32_t form = fg_cpu_op_linear_form(w->type);
        if (form == 0 || form == FG_FORM_PAIRS) {
            for (uint32_t row = 0; row < rows; row++) {
                (form == FG_FORM_PAIRS ? pair_output : float_output)(&job, row);
            }
            continue;
        }
        for (uint32_t row = 0; row < rows; row += PLAIN_ROWS) {
            uint32_t left = rows - row;
            (form == FG_FORM_SUPERS ? super_output : quantized_output)(
                &job, row, left < PLAIN_ROWS ? left : PLAIN_ROWS);
        }
    }
}

void fg_cpu_plain_rotate(float *x, const float *turns, uint32_t pair_count)
{
    for (uint32_t i = 0; i < pair_count; i++) {
        float cosine = turns[2 * i];
        float sine = turns[2 * i + 1];
        float a = x[i];
        float b = x[i + pair_count];
        x[i] = a * cosine - b * sine;
        x[i + pair_count] = a * sine + b * cosine;
    }
}

void fg_cpu_plain_rotate_neighbours(float *x, const float *turns, uint32_t pair_count)
{
    for (uint32_t pair = 0; pair < pair_count; pair++) {
        float cosine = turns[2 * pair];
        float sine = turns[2 * pair + 1];
        float a = x[2 * pair];
        float b = x[2 * pair + 1];
        x[2 * pair] = a * cosine - b * sine;
        x[2 * pair + 1] = a * sine + b * cosine;
    }
}

void fg_cpu_plain_to_halves(const float *values, uint32_t count, uint16_t *halves)
{
    for (uint32_t i = 0; i < count; i++) {
        halves[i] = fg_f16_from_f32(values[i]);
    }
}

const fg_cpu_kernels fg_cpu_plain = {
    .name = "plain",
    .quantize_row = plain_quantize_row,
    .quantize_supers = fg_cpu_plain_quantize_supers,
    .pair_row = plain_pair_row,
    .product_pairs = plain_pair_row,
    .linear = fg_cpu_plain_linear,
    .rmsnorm_row = fg_cpu_plain_rmsnorm_row,
    .swiglu = plain_swiglu,
    .geglu = plain_geglu,
    .attend = fg_cpu_plain_attend,
    .rotate = fg_cpu_plain_rotate,
    .rotate_neighbours = fg_cpu_plain_rotate_neighbours,
    .to_halves = fg_cpu_plain_to_halves,
};
