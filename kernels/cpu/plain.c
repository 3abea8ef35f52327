#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/unpack.h"

enum { LANES = 8 };

static void plain_quantize_row(const float *values, uint32_t columns, int8_t *quants, float *scales)
{
    for (uint32_t g = 0; g < columns / FG_QUANT_GROUP; g++) {
        const float *x = values + (size_t)g * FG_QUANT_GROUP;
        float peak = 0.0f;
        for (int i = 0; i < FG_QUANT_GROUP; i++) {
            peak = fabsf(x[i]) > peak ? fabsf(x[i]) : peak;
        }
        bool zero = !(peak >= FG_CPU_QUANT_TINY);
        float scale = zero ? 0.0f : peak / 127.0f;
        float inverse = zero ? 0.0f : 127.0f / peak;
        int32_t sum = 0;
        for (int i = 0; i < FG_QUANT_GROUP; i++) {
            int32_t q = fg_cpu_round(x[i] * inverse);
            quants[(size_t)g * FG_QUANT_GROUP + (size_t)i] = (int8_t)q;
            sum += q;
        }
        scales[8 * (size_t)g] = scale;
        scales[8 * (size_t)g + 4] = scale * (float)sum;
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

/* Rows of the product that share one unpacking of the weights; it bounds the accumulators. */
enum { PLAIN_ROWS = 8 };

static void finish(const fg_linear *linear, uint32_t row, uint32_t output, float sum)
{
    float *out = &linear->out[(size_t)row * linear->out_stride + output];
    *out = linear->accumulate ? *out + sum : sum;
}

static void quantized_output(const fg_linear *linear, const fg_activations *in, uint32_t first_row,
                             uint32_t row_count, uint32_t output)
{
    const fg_matrix *w = &linear->weight;
    uint32_t group_count = w->columns / FG_QUANT_GROUP;
    size_t row_bytes =
        (size_t)(w->columns / fg_dtype_block_count(w->type)) * fg_dtype_block_bytes(w->type);
    const uint8_t *weights = (const uint8_t *)w->data + output * row_bytes;
    float factor = fg_cpu_minimum_factor(w->type);
    float lanes[PLAIN_ROWS][LANES] = { { 0 } };
    float minima[PLAIN_ROWS] = { 0 };
    for (uint32_t g = 0; g < group_count; g++) {
        fg_cpu_group group;
        fg_cpu_unpack(w->type, weights, g, &group);
        for (uint32_t r = 0; r < row_count; r++) {
            uint32_t row = first_row + r;
            const int8_t *x = in->quants + (size_t)row * w->columns + (size_t)g * FG_QUANT_GROUP;
            const float *scales = in->scales + ((size_t)(row / 4) * group_count + g) * 8 + row % 4;
            float scale = group.d * scales[0];
            for (int lane = 0; lane < LANES; lane++) {
                int32_t sum = 0;
                for (int i = 4 * lane; i < 4 * lane + 4; i++) {
                    sum += group.q[i] * x[i];
                }
                sum *= group.scale[lane / 4];
                lanes[r][lane] = fmaf(scale, (float)sum, lanes[r][lane]);
            }
            minima[r] = fmaf(group.minimum, scales[4], minima[r]);
        }
    }
    for (uint32_t r = 0; r < row_count; r++) {
        float sum = fg_cpu_fold(lanes[r]);
        sum = factor != 0.0f ? sum + factor * minima[r] : sum;
        finish(linear, first_row + r, output, sum);
    }
}

static void float_output(const fg_linear *linear, const fg_activations *in, uint32_t row,
                         uint32_t output)
{
    const fg_matrix *w = &linear->weight;
    size_t row_bytes = (size_t)w->columns * fg_dtype_block_bytes(w->type);
    const uint8_t *weights = (const uint8_t *)w->data + output * row_bytes;
    const float *x = in->values + (size_t)row * w->columns;
    float lanes[LANES] = { 0 };
    /* The last vector is filled up with zeros, as a register is: a product of zeros may still turn
     * a lane of -0 into +0. */
    uint32_t padded = (w->columns + LANES - 1) / LANES * LANES;
    for (uint32_t k = 0; k < padded; k++) {
        float a = k < w->columns ? fg_cpu_float_at(w->type, weights, k) : 0.0f;
        float b = k < w->columns ? x[k] : 0.0f;
        lanes[k % LANES] = fmaf(a, b, lanes[k % LANES]);
    }
    finish(linear, row, output, fg_cpu_fold(lanes));
}

void fg_cpu_plain_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                         uint32_t first, uint32_t count)
{
    bool quantized = fg_op_linear_is_quantized(linear->weight.type);
    for (uint32_t output = first; output < first + count; output++) {
        for (uint32_t row = 0; row < rows; row += quantized ? PLAIN_ROWS : 1) {
            if (quantized) {
                uint32_t left = rows - row;
                quantized_output(linear, in, row, left < PLAIN_ROWS ? left : PLAIN_ROWS, output);
            } else {
                float_output(linear, in, row, output);
            }
        }
    }
}

const fg_cpu_kernels fg_cpu_plain = {
    .name = "plain",
    .quantize_row = plain_quantize_row,
    .linear = fg_cpu_plain_linear,
    .rmsnorm_row = fg_cpu_plain_rmsnorm_row,
    .swiglu = plain_swiglu,
    .attend = fg_cpu_plain_attend,
};
