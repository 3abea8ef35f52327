/*
 * ops_linear - what operations on matrix products share: ops_linear.c has it, ops_experts.c uses it too.
 */
#ifndef FORGE_KERNELS_CPU_OPS_LINEAR_H
#define FORGE_KERNELS_CPU_OPS_LINEAR_H

#include "kernels/cpu/cpu.h"

/* Rows `row` and on. Tiles begin with whole tiles: other rows are read without. */
fg_activations fg_cpu_activations_from(const fg_activations *a, uint32_t row);

/* As many rows, at most `most`, as stay in a core's second-level cache while panel after panel passes them. */
uint32_t fg_cpu_rows_per_block(const fg_device *device, uint32_t form, uint32_t columns,
                               uint32_t rows, uint32_t most);

/* A piece of so many bytes of weights, or of so many multiplications, some 60 us, is worth a claim. */
enum { FG_CPU_PIECE_BYTES = 48 * 1024, FG_CPU_PIECE_MACS = 6 * 1000 * 1000 };

/* Work of so many multiplications, in pieces: too little to call the team for is done here. */
void fg_cpu_share(fg_device_stream *stream, uint64_t macs, uint32_t pieces, fg_team_piece_fn fn,
                  void *job);

/* Outputs `first`, a panel's first, and on. */
fg_panels fg_cpu_panels_from(const fg_panels *weight, uint32_t first, uint32_t count);
/* Their product, to rows of `out` that are as long. */
void fg_cpu_multiply_part(const fg_cpu_kernels *kernels, const fg_panels *weight,
                          const fg_activations *in, uint32_t rows, uint32_t first, uint32_t count,
                          float *out);

/* Columns that the next product's forms are made of together. */
static inline uint32_t fg_cpu_gated_unit(uint32_t forms)
{
    return (forms & FG_FORM_SUPERS) != 0 ? FG_QUANT_SUPER : FG_QUANT_GROUP;
}

/* So many rows of them, from both products, have room in a member's scratch, in whole tiles of any kernel. */
enum { FG_CPU_WHOLE_TILES = 48 };
static inline uint32_t fg_cpu_gated_rows_most(const fg_device *device, uint32_t forms)
{
    uint32_t rows = (uint32_t)device->scratch_floats / (2 * fg_cpu_gated_unit(forms));
    return rows / FG_CPU_WHOLE_TILES * FG_CPU_WHOLE_TILES;
}

static inline float *fg_cpu_scratch(const fg_device *device, uint32_t member)
{
    return device->scratch + member * device->scratch_floats;
}

/* So many panels and more that are whole units. */
static inline uint32_t fg_cpu_gated_panels(uint32_t forms, uint32_t panels)
{
    uint32_t unit = fg_cpu_gated_unit(forms) / FG_PANEL_OUTPUTS;
    return (panels + unit - 1) / unit * unit;
}

/* Rows of a gated product, at most fg_cpu_gated_rows_most. */
typedef struct fg_cpu_gated_rows {
    const fg_device *device;
    const fg_gated *gated; /* its forms are fg_cpu_forms' */
    fg_activations in;     /* from the first of them on */
    uint32_t row;          /* that one's in the result */
    uint32_t rows;
    const float *weights; /* NULL, or what each row is multiplied with at last */
} fg_cpu_gated_rows;

/* Columns first .. end - 1 of them, by way of the member's scratch. */
void fg_cpu_gated_columns(const fg_cpu_gated_rows *rows_of, uint32_t first, uint32_t end,
                          uint32_t member);

#endif
