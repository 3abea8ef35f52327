/*
 * ops - the operations of a forward pass: one contract for every back end. Each takes the stream it
 * runs in; tensors are row-major, `rows` counts tokens, all sizes in elements unless they say bytes.
 *
 * Numerics (docs/ARCHITECTURE.md, "the numerics contract"): what a row becomes is a pure function of
 * that row, its weights and, in attention, the slots at or before its position. The number of rows,
 * the threads and the instruction set never show. Two reductions are used everywhere (but for 16 lanes
 * of weights over an int8 cache):
 *
 *   lanes(i): element i of a sum goes to lane i % 8 by one fused multiply-add, in rising order of i;
 *   fold(v): ((v0 + v4) + (v2 + v6)) + ((v1 + v5) + (v3 + v7)).
 *
 * Sizes are the engine's to check when it opens: the operations trust them.
 */
#ifndef FORGE_KERNELS_OPS_H
#define FORGE_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/panel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Activations are quantised in groups of 32 columns; in super-groups of 256 these share a scale, but for a power of two. */
enum {
    FG_QUANT_GROUP = 32,
    FG_QUANT_SUPER = 256,
    FG_QUANT_SUPER_GROUPS = FG_QUANT_SUPER / FG_QUANT_GROUP
};

/* What a group's 32 bytes stand for: value = scale * q. */
typedef struct fg_quant_group {
    float scale;
    float offset; /* scale * sum(q), which multiplies the minimum of weight types that have one */
    int16_t sums[2]; /* of q in columns 0..15 and 16..31 */
    int32_t negated; /* minus the sum of q */
} fg_quant_group;

/* The same of a super-group: value = scale * 2^shift of its group * q. */
enum { FG_QUANT_SHIFT_MAX = 3 };
typedef struct fg_quant_super {
    int32_t shifts[FG_QUANT_SUPER_GROUPS];
    /* 2^shift times the sums of q in columns 0..15 and 16..31 of each group, and in all of them. */
    int16_t halves[FG_QUANT_SUPER_GROUPS][2];
    int16_t sums[FG_QUANT_SUPER_GROUPS];
    float scale;
    float unused[11]; /* to the end of the second cache line */
} fg_quant_super;

/* A group of sixteen rows: what processors with tiles multiply. Rows of one half, which a thread quantises while another has
 * the other half, share no cache line with those. */
enum { FG_TILE_ROWS = 16, FG_TILE_HALF = FG_TILE_ROWS / 2 };
typedef struct fg_quant_tile {
    int8_t quants[FG_TILE_ROWS][FG_QUANT_GROUP];
    struct {
        float scales[FG_TILE_HALF];
        float offsets[FG_TILE_HALF];
    } halves[2];
} fg_quant_tile;

static inline size_t fg_quant_tile_count(size_t rows, uint32_t columns)
{
    return (rows + FG_TILE_ROWS - 1) / FG_TILE_ROWS * (columns / FG_QUANT_GROUP);
}

/*
 * Rows as a matrix product reads them: floats, and beside them what the weight types of the product
 * want. All are row-major: [rows][columns], groups [rows][columns / 32], supers [rows][columns / 256], pairs
 * [rows][fg_pair_stride]. Which columns are a pair is the back end's to say.
 */
typedef struct fg_activations {
    float *values;
    int8_t *quants; /* |q| <= 127 */
    fg_quant_group *groups;
    fg_quant_super *supers;
    uint32_t *pairs;            /* bf16 in upper and lower halves, 0 where there is no column */
    fg_quant_tile *quant_tiles; /* [rows / 16][columns / 32], upwards; NULL: none */
    uint32_t columns;
} fg_activations;

/* From one row of pairs to the next: whole cache lines, that is blocks of 32 columns, an odd number of them, because
 * a first-level cache could not hold the same columns of many rows that are a power of two apart. */
static inline uint32_t fg_pair_stride(uint32_t columns)
{
    return ((fg_panel_pairs(columns) + 15) / 16 | 1) * 16;
}

/* What a product may read instead of `values`; a set of them is a sum of flags. */
enum {
    FG_FORM_QUANTS = 1, /* quants and groups */
    FG_FORM_PAIRS = 2,
    /* quants and supers. With QUANTS: groups too, of the same quants, and no tiles: who reads only one of the two then
     * takes a copy without `quant_tiles`. */
    FG_FORM_SUPERS = 4
};

/* The form that products with this weight type read. CPU: SUPERS for Q4_K, Q5_K and Q6_K, QUANTS for other quantised types,
 * PAIRS for BF16, else 0. CUDA: PAIRS for all. */
uint32_t fg_op_linear_form(const fg_device_stream *stream, uint32_t type);

/* These forms from values.
 *   QUANTS, per group: scale = max|x| / 127, q = round(x * (127 / max|x|)), to even on ties; a group of
 *          zeros has scale 0, one with a NaN or an infinity has scale NaN and zeros.
 *   SUPERS, per super-group: scale = max|x| / 1016; a group's shift is the least, 0 to 3, with which its own
 *          max|x| * (1016 / max|x| of all) is at most 127 * 2^shift; q = round(x * (1016 / max|x| of all * 2^-shift)).
 *          Zeros, NaN and infinities as above.
 *   PAIRS: x to the nearest bf16, to even on ties; what is then below 2^-50 becomes 0, NaN stays NaN.
 * How a back end writes them may depend on the number of rows: products have as many rows as were prepared. */
void fg_op_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                   uint32_t rows);

/* out[row][o] (= or +=) sum over k of weight[o][k] * in[row][k], one float accumulator per output:
 *   F32, F16: one fma per column, in rising order;
 *   BF16: of each 32 columns two chains of one fma per column, in rising order and from 0, of the first 16 and of
 *   the others; the sum of both is added to the output. Activations as the pairs of `in`, weights below 2^-50
 *   taken as 0. So every product and every sum is 0 or at least 2^-114: instructions that take denormals for
 *   zeros agree with all others;
 *   quantised types but for what follows, per group in rising order: an fma of the weight's minimum with offset, where the
 *   type has minima, then an fma of (d * scale) with the exact integer sum of the group's products;
 *   Q4_K, Q5_K and Q6_K, per super-group in rising order: with minima an fma of -(dmin * scale) with the exact integer sum
 *   of the groups' minima times the sums of their quants, then an fma of (d * scale) with the exact integer sum of all
 *   products, each times its weight's integer scale, where quants count 2^shift times. */
typedef struct fg_linear {
    fg_panels weight;
    float *out;
    uint32_t out_stride;
    bool accumulate;
    bool out_is_near; /* a back end's own: the rows' outputs are in the cache of who multiplies */
} fg_linear;
/* Several products of the same rows, done as one. */
void fg_op_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                  const fg_activations *in, uint32_t rows);

/* How far a gate opens: g / (1 + e^-t). */
typedef enum fg_gate_kind {
    FG_GATE_SILU, /* t = g */
    FG_GATE_GELU /* t = g * (2 sqrt(2 / pi) * (1 + 0.044715 g^2)): half of g times 1 + tanh(t / 2) */
} fg_gate_kind;

/* out[row][c] = opened(gate . in[row]) * (up . in[row]), both products as fg_op_linear's, and these forms of it
 * as fg_op_prepare makes them. out.values is the result where there are no forms, else room. CUDA: FG_GATE_SILU alone. */
typedef struct fg_gated {
    fg_panels gate;
    fg_panels up; /* of the same size */
    fg_gate_kind kind;
    uint32_t forms;
    fg_activations out;
} fg_gated;
void fg_op_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                 uint32_t rows);

/* ---- mixtures of experts ---- */

/* At most so many experts, and so many of them for a row. */
enum { FG_EXPERTS_MAX = 1024, FG_EXPERTS_USED_MAX = 32 };

/* Which experts rows go to. Each row has a slot for each of its experts; slots lie expert by expert, and of one expert in the
 * rows' order. All arrays are memory that operations use. */
typedef struct fg_expert_slots {
    uint32_t expert_count;
    uint32_t used_count; /* experts of a row */
    uint32_t *experts;   /* [rows][used_count], rising */
    float *weights;      /* [rows][used_count], theirs */
    uint32_t *firsts; /* [expert_count + 1]: where an expert's slots begin; the next one's follow */
    uint32_t *slot_rows; /* [rows * used_count] */
    float *slot_weights; /* [rows * used_count] */
} fg_expert_slots;

/* How much a chosen expert weighs. With p[e] = e^(logits[e] - the highest logit): */
typedef enum fg_expert_weighing {
    FG_EXPERTS_BY_CHOSEN, /* p[e] / the chosen ones' p added in rising order of experts, from 0 */
    FG_EXPERTS_BY_ALL,    /* p[e] / all p added in lane e % 8, from 0, then fold */
    FG_EXPERTS_ALONE,     /* 1 / (1 + e^-logits[e]) */
} fg_expert_weighing;

/* Chooses each row's experts: the `used_count` highest logits, the first of equal ones; NaN counts as -inf, but weighs NaN
 * alone. Each one's weight is multiplied by `scale`. Beside others weights are NaN where no logit is above -inf, or one is
 * +inf. */
typedef struct fg_choose_experts {
    const float *logits; /* [rows][expert_count] */
    fg_expert_weighing weighing;
    float scale;
    fg_expert_slots slots;
} fg_choose_experts;
void fg_op_choose_experts(fg_device_stream *stream, const fg_choose_experts *args, uint32_t rows);

/* One matrix of each expert, all of one size. */
typedef struct fg_expert_panels {
    fg_panels first;     /* expert 0's */
    size_t stride_bytes; /* from one expert's to the next one's */
} fg_expert_panels;

/* Of each slot, with the matrices of its expert: out[slot][c] = (silu(gate . in[row]) * (up . in[row])) * the slot's weight,
 * products as fg_op_linear's, and these forms of it. `in` has no quant_tiles, nor has `out`. */
typedef struct fg_gated_experts {
    const fg_expert_slots *slots;
    fg_expert_panels gate, up;
    uint32_t forms;
    fg_activations room; /* for a row for each slot, with what products read: a back end's own */
    fg_activations out;
} fg_gated_experts;
void fg_op_gated_experts(fg_device_stream *stream, const fg_gated_experts *args,
                         const fg_activations *in, uint32_t rows);

/* out[row][o] += down . in[slot], one float addition for each of the row's slots in rising order of experts; products as
 * fg_op_linear's. `in` has a row for each slot, and no quant_tiles. */
typedef struct fg_add_experts {
    const fg_expert_slots *slots;
    fg_expert_panels down;
    float *out;
    uint32_t out_stride;
} fg_add_experts;
void fg_op_add_experts(fg_device_stream *stream, const fg_add_experts *args,
                       const fg_activations *in, uint32_t rows);

/* choices[row] = the output of weight . in[row], as fg_op_linear's, that is highest, the first of equal ones; NaN
 * counts as -inf, and where nothing is higher than that it is 0. tops[row] is how high it is. The product never is in
 * memory as a whole. */
enum {
    FG_HIGHEST_ROWS = 64
}; /* at most, on a device with the host's memory; others take as many as a step can have */
void fg_op_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                   uint32_t rows, uint32_t *choices, float *tops);

/* What chooses a token from a row of logits, as fg_sampler_pick (common/model) does. */
typedef struct fg_choice_row {
    uint64_t seed;
    uint32_t choice;
    uint32_t position; /* of the token that is chosen */
    float temperature; /* 0: the highest logit */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint32_t top_k;    /* 0: off */
    uint32_t wanted;   /* 0: nothing is chosen from this row */
    uint32_t unused;
} fg_choice_row;

/* choices[row] = the token of logits[row] that the sampler picks, bit for bit; tops[row] = its logit. Rows that are
 * not wanted leave both as they are. FG_CHOICE_NONE: more tokens would have to be sorted than the device does, and the
 * caller chooses from this row, as it may from any. Only on a device with memory of its own. `wanted`, `choices` and `tops` are
 * shared memory, read and written when the operation runs, in a replay too. */
#define FG_CHOICE_NONE UINT32_MAX
typedef struct fg_choose {
    const float *logits; /* [rows][columns] */
    uint32_t columns;
    const fg_choice_row *wanted;
    uint32_t *choices;
    float *tops;
} fg_choose;
void fg_op_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows);

/* out[row][columns] = scale times row tokens[row] of the table, dequantised. Tokens are below table.outputs. On a device
 * with memory of its own a token may be FG_TOKEN_CHOSEN | r: the one that fg_op_highest or fg_op_choose, whichever was
 * given to the stream last before this, has chosen for its row r, one of the first FG_CHOSEN_ROWS, in a replay too. Where
 * that is FG_CHOICE_NONE, or nothing was wanted of the row, it is any token. */
enum { FG_CHOSEN_ROWS = 256 };
#define FG_TOKEN_CHOSEN 0x80000000u
void fg_op_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                 uint32_t rows, float scale, float *out);

/* out.values[row] = x * (1 / sqrt(mean(x^2) + epsilon)) * weight, x = in[row_ids ? row_ids[row] :
 * row]; and these forms of it, as fg_op_prepare makes them. Columns sum_first and on of it are added to those of
 * `sum`, where there is one; CUDA has none. */
typedef struct fg_rmsnorm {
    const float *in;
    const uint32_t *row_ids; /* NULL: rows in order */
    const float *weight;     /* [columns] */
    float epsilon;
    uint32_t forms;
    fg_activations out;
    float *sum; /* NULL, or [rows][columns] */
    uint32_t sum_first, sum_count;
} fg_rmsnorm;
void fg_op_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows);

/* finite[row] = 1 where none of the row's values is NaN or infinite, else 0. */
void fg_op_finite(fg_device_stream *stream, const float *values, uint32_t columns, uint32_t rows,
                  uint32_t *finite);

/* How far each pair of a head's dimensions turns from one position to the next. */
typedef struct fg_rope_shape {
    float theta;
    uint32_t pair_count;
    const float *divisors; /* a divisor for each pair, or NULL */
    float factor; /* the context is this many times `original_context`; 1 changes nothing */
    /* YaRN: pairs that turn more than `beta_fast` times in the original context stay as they are, those of less than
     * `beta_slow` turns are divided by the factor, and between them lies a ramp. false: all are divided. */
    bool yarn;
    float beta_fast, beta_slow;
    uint32_t original_context; /* theta is above 1 then */
} fg_rope_shape;

/* In double, on the host: theta^(-2i / (2 * pair_count)) / divisors[i], and slower as the factor asks. */
void fg_rope_frequencies(const fg_rope_shape *shape, double *frequencies_out);
/* By how much longer vectors are made where YaRN's factor spreads them: 1 + 0.1 ln(factor). */
float fg_rope_yarn_magnitude(float factor);

/* table[row][pair] = magnitude * {cos, sin} of positions[row] * frequencies[pair], all in double. */
typedef struct fg_rope_turns {
    const double *frequencies;
    uint32_t pair_count;
    double magnitude;
} fg_rope_turns;
void fg_op_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                      const fg_rope_turns *turns, float *table);

/* Slots whose keys lie together, dimension by dimension. A block smaller than that is one piece. */
enum { FG_KV_PIECE = 16 };

/*
 * The paged KV of one layer as attention sees it. Slot s of a sequence lies in block
 * block_ids[s / block_size] of its table, at s % block_size:
 *   from key_offset on    [KV head][piece][dim][slot of the piece], a piece being 16 slots or the block
 *   from value_offset on  [KV head][slot][dim]
 * bf16 keeps pairs of dimensions of K and pairs of slots of V, the later one first:
 *   [KV head][piece][dim / 2][slot of the piece][dim 1, dim 0]
 *   [KV head][slot / 2][dim][slot 1, slot 0], in blocks of one slot [KV head][dim]
 * int8 keeps fours, in order (values in blocks of fewer slots [KV head][slot][dim]):
 *   [KV head][piece][dim / 4][slot of the piece][dim 0..3]
 *   [KV head][slot / 4][dim][slot 0..3]
 * and in each head's region a scale per slot [slot] float from scale_offset on. A back end with memory of its own may
 * have another order in a head's region (kernels/cuda/cuda.h): nobody else looks into it.
 */
typedef struct fg_paged_kv {
    void *arena;
    size_t block_bytes;
    size_t key_offset;   /* of this layer's K inside a block */
    size_t value_offset; /* of this layer's V */
    size_t head_bytes;   /* from one KV head to the next */
    size_t scale_offset; /* inside a head's region; FG_I8 alone reads it */
    uint32_t block_size; /* slots, a power of two */
    uint32_t dtype;      /* FG_F16, FG_F32, FG_BF16 or FG_I8 */
    uint32_t kv_head_count;
    uint32_t head_dim;
} fg_paged_kv;

/* One row of a ragged batch: its position, and its sequence's block table. */
typedef struct fg_kv_row {
    const uint32_t *block_ids;
    uint32_t position;
    void *twin; /* NULL, or another block that its slot is written in too, laid out alike */
} fg_kv_row;

/* The rows of a step, before the operations that read them: a device with memory of its own copies them now. It reads
 * them from there afterwards: `tokens`, `positions`, `kv_rows` and `row_ids` of operations are these arrays, or parts of
 * them. Rows of one sequence follow each other, with the same block_ids and rising positions. A row without block_ids
 * pads: it is computed, stores nothing, and what comes of it means nothing. The CPU copies nothing. */
typedef struct fg_step_rows {
    const uint32_t *tokens;
    const uint32_t *positions;
    const fg_kv_row *kv_rows;
    const uint32_t *row_ids; /* rows with a choice after them */
    uint32_t rows;
    uint32_t row_id_count;
} fg_step_rows;
void fg_op_stage(fg_device_stream *stream, const fg_step_rows *rows);

/* Makes of products what attention reads, all in place, each step only where the model has it: adds biases, one float
 * addition an element; normalises every head of q and of k, as fg_op_rmsnorm does a row of head_dim columns; rotates q
 * and k. Then rounds k and v to the KV type and writes them to their slots. int8: per
 * slot and head scale = max|x| / 127, q = round(x * (127 / max|x|)), to even on ties, both 0 where max|x| is below
 * 1e-30. bf16: what
 * is then below 2^-50 becomes 0.
 *   q [row][head_count][head_dim], k and v [row][kv_head_count][head_dim]
 *   pairs: interleaved (2i, 2i+1), else (i, i + pair_count); dims beyond 2 * pair_count stay. */
typedef struct fg_rope_store {
    float *q; /* NULL, with a head_count of 0: K and V alone; the CPU's alone, as is the next */
    float *k; /* NULL, as v is then: q alone, and nothing is stored */
    float *v;
    const float *q_bias; /* [head_count][head_dim]; NULL: none, as with all five */
    const float *k_bias; /* [kv_head_count][head_dim] */
    const float *v_bias;
    const float *q_norm; /* [head_dim] */
    const float *k_norm;
    float norm_epsilon;
    const fg_kv_row *kv_rows;
    const float *table; /* of fg_op_rope_table */
    uint32_t pair_count;
    uint32_t head_count;
    bool interleaved;
} fg_rope_store;
void fg_op_rope_store(fg_device_stream *stream, const fg_paged_kv *kv, const fg_rope_store *args,
                      uint32_t rows);

/* Slots per chunk of attention: chunks begin at multiples of this. */
enum { FG_ATTEND_CHUNK = 256 };

/*
 * out[row][head] = softmax(q . K * scale) V over the slots position - window + 1 .. position (window 0:
 * from slot 0 on; CUDA knows no other), K and V read as stored. head_count is a multiple of kv_head_count; head h reads KV
 * head h / (head_count / kv_head_count). In each chunk that holds such slots, and only over these:
 *   score[s] = one fma chain over d of (q[d] * (scale * log2 e)) * k[s][d]
 *   weight[s] = 2^(score[s] - the chunk's maximum); sum = weights added in lane s % 8, then fold
 *   o[d] = one fma chain over s of weight[s] * v[s][d], from 0
 * bf16: score and o are sums of chains as in products with BF16 weights, of 32 d and of 32 slots of the chunk, those
 * not seen left out. q[d] * (scale * log2 e) and the weights are rounded to bf16, half to even, and before that
 * score[s] - the maximum to a multiple of 1/128, half to even. The sum is of the rounded weights, in lane (s / 2) % 16,
 * lanes i and i + 8, then fold. A q[d] below 2^-50 is 0, and a weight where score[s], so rounded, is more than 50
 * below the maximum. So no product and no sum is a denormal, and instructions that multiply pairs of bf16, adding
 * first the product of the upper halves, then that of the lower ones, give these bits.
 * int8: products are summed as integers, exactly. q becomes q8 = round(q[d] * (127 / max|q|)), half to even, all 0
 * where max|q| is below 1e-30; NaN counts as 0,
 *   score[s] = (sum over d of q8[d] * k[s][d]) * k's scale * (max|q| / 127 * (scale * log2 e))
 *   weight[s] as bf16's before it is rounded; sum = weights added in lane s % 16, lanes i and i + 8, then fold
 *   p[s] = weight[s] * v's scale; peak = the largest of them; below 1e-30 all are 0
 *   p8[s] = trunc(fma(p[s], 255 / peak, rounder(s))), at most 255, where rounder(s) = (2 * (9 * s mod 16) + 1) / 32
 *   o[d] = (sum over s of p8[s] * v[s][d]) * (peak * (1 / 255))
 * Rounders differ from slot to slot, so that many small weights do not all become 0.
 * Chunks are merged in rising order: with the larger maximum m, f = 2^(old - m) and g = 2^(new - m),
 * sum = fma(new sum, g, sum * f), o = fma(new o, g, o * f). At the end out = o * (1 / sum).
 */
typedef struct fg_attend {
    const float *q;
    const fg_kv_row *kv_rows;
    uint32_t head_count;
    uint32_t window; /* slots that a row sees, its own included; 0: all */
    float scale;
    float *out; /* [row][head_count][head_dim]; NULL: only `pairs` are wanted */
    /* NULL, or where the PAIRS form of out goes; not on the CPU, whose form is made from whole rows. */
    uint32_t *pairs;
} fg_attend;
void fg_op_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                  uint32_t rows);

/* digests[i] = fg_hash64, with seed 0, of the block_bytes at base + ids[i] * block_bytes. */
typedef struct fg_digest_blocks {
    const void *base;
    size_t block_bytes;  /* a multiple of 16, more than 240 */
    const uint32_t *ids; /* both arrays are of FG_MEMORY_SHARED */
    uint64_t *digests;
} fg_digest_blocks;
void fg_op_digest(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
