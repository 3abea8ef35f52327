/*
 * cpu - what the files of the CPU back end share: the device struct, and the table of row kernels
 * that each instruction set fills. Every table gives the same bits (tests/unit/kernels compares
 * them); the plain one is the oracle and compiles for any processor. The operations at the end are the
 * members of fg_cpu_backend.
 */
#ifndef FORGE_KERNELS_CPU_CPU_H
#define FORGE_KERNELS_CPU_CPU_H

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/team.h"
#include "kernels/backend.h"

/* kernels/cpu/attend.h */
typedef struct fg_cpu_attend fg_cpu_attend;
typedef struct fg_cpu_attend_plan fg_cpu_attend_plan;

/* X(name, type) for each quantised type, of groups or of super-groups: vector kernels are compiled once per type. */
#define FG_CPU_EACH_GROUPED(X)                                                                     \
    X(q4_0, FG_Q4_0)                                                                               \
    X(q4_1, FG_Q4_1)                                                                               \
    X(q5_0, FG_Q5_0)                                                                               \
    X(q5_1, FG_Q5_1)                                                                               \
    X(q8_0, FG_Q8_0)
#define FG_CPU_EACH_SUPER(X)                                                                       \
    X(q4_k, FG_Q4_K)                                                                               \
    X(q5_k, FG_Q5_K)                                                                               \
    X(q6_k, FG_Q6_K)
#define FG_CPU_EACH_QUANTIZED(X) FG_CPU_EACH_GROUPED(X) FG_CPU_EACH_SUPER(X)

/* Pairs of a chain of products with BF16 weights (ops.h); a block of 32 columns has two chains. */
enum { FG_CPU_CHAIN_PAIRS = 8, FG_CPU_CHAIN_COLUMNS = 2 * FG_CPU_CHAIN_PAIRS };

/* Rows that are normed together. */
enum { FG_CPU_NORM_ROWS = 4 };

typedef struct fg_cpu_kernels {
    const char *name;
    void (*quantize_row)(const float *values, uint32_t columns, int8_t *quants,
                         fg_quant_group *groups);
    /* Whole super-groups of a row. */
    void (*quantize_supers)(const float *values, uint32_t columns, int8_t *quants,
                            fg_quant_super *supers);
    /* Some columns of several rows, `stride` floats apart, to rows of `out_columns`. NULL: row by row. */
    void (*quantize_rows)(const float *values, size_t stride, uint32_t rows, uint32_t columns,
                          int8_t *quants, fg_quant_group *groups, size_t out_columns);
    /* Columns 2j and 2j + 1, the first in the upper half. */
    void (*pair_row)(const float *values, uint32_t columns, uint32_t *pairs);
    /* Pairs as products read them: the same, or columns 32j + i and 32j + 16 + i. */
    void (*product_pairs)(const float *values, uint32_t columns, uint32_t *pairs);
    /* Products of so many rows and more may read tiles. 0: none do. */
    uint32_t tile_rows_least;
    /* Whether products of so many rows read nothing else, of any quantised type without
     * super-groups. */
    bool (*tiles_alone)(uint32_t rows);
    /* Whole groups of some rows, `stride` floats apart, to rows `place` and on of as many tiles: as quantize_row would. */
    void (*quantize_tiles)(const float *values, size_t stride, uint32_t rows, uint32_t group_count,
                           uint32_t place, fg_quant_tile *tiles);
    /* So many columns of long rows pass several panels of the type before the next do; NULL or 0: all. */
    uint32_t (*sliced_columns)(uint32_t type, uint32_t rows);
    /* Whether pairs of so many rows become floats, once for all panels of a call. NULL: no. */
    bool (*widens_pairs)(uint32_t rows);
    /* Panels first .. first + count - 1 of one product, for all rows. */
    void (*linear)(const fg_linear *linear, const fg_activations *in, uint32_t rows, uint32_t first,
                   uint32_t count);
    /* `out` may be `in`. */
    void (*rmsnorm_row)(const float *in, const float *weight, uint32_t columns, float epsilon,
                        float *out);
    /* Several rows, to rows `stride` floats apart. NULL: row by row. */
    void (*rmsnorm_rows)(const float *const in[FG_CPU_NORM_ROWS], const float *weight,
                         uint32_t columns, float epsilon, float *out, size_t stride);
    /* What opens a gate of each fg_gate_kind. */
    void (*swiglu)(const float *gate, const float *up, size_t count, float *out);
    void (*geglu)(const float *gate, const float *up, size_t count, float *out);
    void (*attend)(const fg_cpu_attend *args);
    bool tall_tiles; /* of attention over small heads: FG_ATTEND_TALL_TILE */
    /* Turns the pairs (i, i + pair_count) of one head by {cos, sin} of each. */
    void (*rotate)(float *x, const float *turns, uint32_t pair_count);
    /* The same for the pairs (2i, 2i + 1). */
    void (*rotate_neighbours)(float *x, const float *turns, uint32_t pair_count);
    void (*to_halves)(const float *values, uint32_t count, uint16_t *halves);
} fg_cpu_kernels;

extern const fg_cpu_kernels fg_cpu_plain;
#if defined(__x86_64__)
extern const fg_cpu_kernels fg_cpu_avx2;
extern const fg_cpu_kernels fg_cpu_avx_vnni;
extern const fg_cpu_kernels fg_cpu_avx512;
extern const fg_cpu_kernels fg_cpu_avx512_bf16;
extern const fg_cpu_kernels fg_cpu_amx;
#elif defined(__aarch64__)
extern const fg_cpu_kernels fg_cpu_neon;
#endif

/* What a group's bytes stand for, from its scale and the sums of its halves. */
static inline fg_quant_group fg_cpu_quant_group(float scale, int32_t first, int32_t second)
{
    return (fg_quant_group){ .scale = scale,
                             .offset = scale * (float)(first + second),
                             .sums = { (int16_t)first, (int16_t)second },
                             .negated = -(first + second) };
}

/* A group with a NaN or an infinity: whatever is multiplied with it becomes NaN, at every level. */
static inline fg_quant_group fg_cpu_no_group(int8_t *quants)
{
    memset(quants, 0, FG_QUANT_GROUP);
    return (fg_quant_group){ .scale = __builtin_nanf(""), .offset = __builtin_nanf("") };
}

static inline fg_quant_super fg_cpu_no_super(int8_t *quants)
{
    memset(quants, 0, FG_QUANT_SUPER);
    return (fg_quant_super){ .scale = __builtin_nanf("") };
}

/* Whether the largest magnitude of a group, as bits, is no number. As integers magnitudes have the order that they have as
 * floats, and infinity and NaN come after all others: a maximum of floats may lose a NaN. */
static inline bool fg_cpu_is_odd(uint32_t peak_bits)
{
    return __builtin_expect(peak_bits >= 0x7F800000u, 0);
}

/* A form beside those of ops.h: the quants' tiles. */
enum { FG_CPU_FORM_TILES = 1u << 8 };

/* Whether products of so many rows read their quants, which are no super-groups', as tiles and not
 * otherwise. */
static inline bool fg_cpu_tiles_alone(const fg_cpu_kernels *kernels, const fg_activations *a,
                                      uint32_t rows)
{
    return a->quant_tiles != NULL && kernels->tiles_alone != NULL && kernels->tiles_alone(rows);
}

/* Whether there are tiles of so many rows in these forms: of QUANTS, or of SUPERS, whose tiles hold
 * the same bytes and nothing beside them. Products of both forms do without, since they would have
 * to share them. */
static inline bool fg_cpu_has_tiles(const fg_cpu_kernels *kernels, const fg_activations *a,
                                    uint32_t forms, uint32_t rows)
{
    uint32_t quants = forms & (FG_FORM_QUANTS | FG_FORM_SUPERS);
    return (quants == FG_FORM_QUANTS || quants == FG_FORM_SUPERS) && a->quant_tiles != NULL &&
           kernels->tile_rows_least > 0 && rows >= kernels->tile_rows_least;
}

/* What products of so many rows may read. */
static inline uint32_t fg_cpu_forms(const fg_cpu_kernels *kernels, const fg_activations *a,
                                    uint32_t forms, uint32_t rows)
{
    if (!fg_cpu_has_tiles(kernels, a, forms, rows)) {
        return forms;
    }
    bool alone = (forms & FG_FORM_QUANTS) != 0 && fg_cpu_tiles_alone(kernels, a, rows);
    return (alone ? forms - FG_FORM_QUANTS : forms) | FG_CPU_FORM_TILES;
}

/* Some columns of some rows, whole groups, and where they are: `stride` floats apart. */
typedef struct fg_cpu_part {
    const float *values;
    size_t stride;
    uint32_t row;
    uint32_t rows;
    uint32_t column;
    uint32_t columns;
} fg_cpu_part;

/* These forms of them (fg_cpu_forms). */
void fg_cpu_prepare(const fg_cpu_kernels *kernels, const fg_activations *a, uint32_t forms,
                    const fg_cpu_part *part);

/* These forms of whole rows, by all members. */
void fg_cpu_prepare_all(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                        uint32_t rows);

/* Below this many touched elements the caller works alone: a fork costs more than it saves. */
enum { FG_CPU_ALONE_ELEMENTS = 8192 };

/* What a member has for what it makes and uses up within a piece, where the second-level cache is less than 2 MiB and where
 * it is not: it stays there. (Tiles, whose machines have as much, were timed with the former.) */
enum { FG_CPU_SCRATCH_FLOATS = 32 << 10, FG_CPU_LARGE_SCRATCH_FLOATS = 80 << 10 };

struct fg_device {
    const fg_backend *backend; /* first (backend.h) */
    const fg_cpu_kernels *kernels;
    fg_team *team;
    float *scratch; /* of each member */
    size_t scratch_floats;
    size_t block_bytes; /* of activations that one piece of a product reads again and again */
};

struct fg_device_stream {
    const fg_backend *backend; /* first (backend.h) */
    fg_device *device;
    fg_cpu_attend_plan *attend_plan;
    uint64_t sequence; /* operations given so far; all of them have ended */
};

uint32_t fg_cpu_op_linear_form(uint32_t type);
void fg_cpu_op_stage(fg_device_stream *stream, const fg_step_rows *rows);
void fg_cpu_op_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                       uint32_t rows);
void fg_cpu_op_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                      const fg_activations *in, uint32_t rows);
void fg_cpu_op_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                     uint32_t rows);
void fg_cpu_op_choose_experts(fg_device_stream *stream, const fg_choose_experts *args,
                              uint32_t rows);
void fg_cpu_op_gated_experts(fg_device_stream *stream, const fg_gated_experts *args,
                             const fg_activations *in, uint32_t rows);
void fg_cpu_op_add_experts(fg_device_stream *stream, const fg_add_experts *args,
                           const fg_activations *in, uint32_t rows);
void fg_cpu_op_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                       uint32_t rows, uint32_t *choices, float *tops);
void fg_cpu_op_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                     uint32_t rows, float scale, float *out);
void fg_cpu_op_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows);
void fg_cpu_op_finite(fg_device_stream *stream, const float *values, uint32_t columns,
                      uint32_t rows, uint32_t *finite);
void fg_cpu_op_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                          const fg_rope_turns *turns, float *table);
void fg_cpu_op_rope_store(fg_device_stream *stream, const fg_paged_kv *kv,
                          const fg_rope_store *args, uint32_t rows);
void fg_cpu_op_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                      uint32_t rows);

#endif
