/* What mixtures of experts say of themselves, and what of it is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/model/hparams.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

typedef enum value_kind { NONE, WHOLE, REAL, TRUTH, TEXT } value_kind;

/* A key below the architecture's name; NONE: it is left out. */
typedef struct key_row {
    const char *name;
    value_kind kind;
    double number;
} key_row;

typedef struct tensor_row {
    const char *name;
    uint32_t type;
    uint64_t dims[4]; /* up to the first 0; none: it is left out */
} tensor_row;

/* 1 layer, 32 wide, 4 heads on 2 KV heads of 8, 4 experts of 64, 2 of them for a row, 8 tokens. */
static const key_row base_keys[] = {
    { "block_count", WHOLE, 1 },
    { "context_length", WHOLE, 128 },
    { "embedding_length", WHOLE, 32 },
    { "feed_forward_length", WHOLE, 64 },
    { "attention.head_count", WHOLE, 4 },
    { "attention.head_count_kv", WHOLE, 2 },
    { "attention.layer_norm_rms_epsilon", REAL, 1e-5 },
    { "expert_count", WHOLE, 4 },
    { "expert_used_count", WHOLE, 2 },
};

static const tensor_row base_tensors[] = {
    { "token_embd.weight", FG_Q4_0, { 32, 8 } },
    { "output_norm.weight", FG_F32, { 32 } },
    { "blk.0.attn_norm.weight", FG_F32, { 32 } },
    { "blk.0.attn_q.weight", FG_Q8_0, { 32, 32 } },
    { "blk.0.attn_k.weight", FG_F16, { 32, 16 } },
    { "blk.0.attn_v.weight", FG_F16, { 32, 16 } },
    { "blk.0.attn_output.weight", FG_F32, { 32, 32 } },
    { "blk.0.ffn_norm.weight", FG_F32, { 32 } },
    { "blk.0.ffn_gate_inp.weight", FG_F32, { 32, 4 } },
    { "blk.0.ffn_gate_exps.weight", FG_BF16, { 32, 64, 4 } },
    { "blk.0.ffn_up_exps.weight", FG_Q5_1, { 32, 64, 4 } },
    { "blk.0.ffn_down_exps.weight", FG_Q4_1, { 64, 32, 4 } },
};

static const tensor_row qwen2_tensors[] = {
    { "blk.0.attn_q.bias", FG_F32, { 32 } },
    { "blk.0.attn_k.bias", FG_F32, { 16 } },
    { "blk.0.attn_v.bias", FG_F32, { 16 } },
    { "blk.0.ffn_gate_inp_shexp.weight", FG_F32, { 32 } },
    { "blk.0.ffn_gate_shexp.weight", FG_F32, { 32, 64 } },
    { "blk.0.ffn_up_shexp.weight", FG_F32, { 32, 64 } },
    { "blk.0.ffn_down_shexp.weight", FG_F32, { 64, 32 } },
};

static const tensor_row qwen3_tensors[] = { { "blk.0.attn_q_norm.weight", FG_F32, { 8 } },
                                            { "blk.0.attn_k_norm.weight", FG_F32, { 8 } } };

/* Changes to the base: a row with a known name replaces it, another is added. */
typedef struct change {
    const char *what;
    const char *arch; /* NULL: llama */
    const char *want; /* in the error line; NULL: accepted */
    key_row keys[2];
    tensor_row tensor;
} change;

static void add_key(fg_gguf_builder *builder, const char *arch, const key_row *row)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", arch, row->name);
    switch (row->kind) {
    case NONE:
        break;
    case WHOLE:
        fg_gguf_add_u32(builder, key, (uint32_t)row->number);
        break;
    case REAL:
        fg_gguf_add_f32(builder, key, (float)row->number);
        break;
    case TRUTH:
        fg_gguf_add_bool(builder, key, row->number != 0);
        break;
    case TEXT:
        fg_gguf_add_string(builder, key, "2");
        break;
    }
}

static void add_tensor(fg_gguf_builder *builder, const tensor_row *row)
{
    uint32_t count = 0;
    while (count < 4 && row->dims[count] != 0) {
        count++;
    }
    if (count > 0) {
        fg_gguf_add_tensor(builder, row->name, row->type, count, row->dims, NULL);
    }
}

static bool is_one_of(const char *name, const key_row keys[2])
{
    return (keys[0].name != NULL && strcmp(keys[0].name, name) == 0) ||
           (keys[1].name != NULL && strcmp(keys[1].name, name) == 0);
}

static void add_tensors(fg_gguf_builder *builder, const tensor_row *rows, size_t count,
                        const change *c)
{
    for (size_t i = 0; i < count; i++) {
        if (c->tensor.name == NULL || strcmp(c->tensor.name, rows[i].name) != 0) {
            add_tensor(builder, &rows[i]);
        }
    }
}

static void *build(const change *c, size_t *size_bytes_out)
{
    const char *arch = c->arch == NULL ? "llama" : c->arch;
    fg_gguf_builder *builder = fg_gguf_builder_create();
    fg_gguf_add_string(builder, "general.architecture", arch);
    for (size_t i = 0; i < sizeof base_keys / sizeof base_keys[0]; i++) {
        if (!is_one_of(base_keys[i].name, c->keys)) {
            add_key(builder, arch, &base_keys[i]);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        if (c->keys[i].name != NULL) {
            add_key(builder, arch, &c->keys[i]);
        }
    }
    add_tensors(builder, base_tensors, sizeof base_tensors / sizeof base_tensors[0], c);
    if (strcmp(arch, "qwen3moe") == 0) {
        add_tensors(builder, qwen3_tensors, 2, c);
    } else if (strcmp(arch, "qwen2moe") == 0) {
        add_tensors(builder, qwen2_tensors, sizeof qwen2_tensors / sizeof qwen2_tensors[0], c);
    }
    if (c->tensor.name != NULL) {
        add_tensor(builder, &c->tensor);
    }
    void *bytes = fg_gguf_finish(builder, size_bytes_out);
    fg_gguf_builder_destroy(builder);
    return bytes;
}

#define GATE "blk.0.ffn_gate_exps.weight"
#define DOWN "blk.0.ffn_down_exps.weight"

static const change cases[] = {
    { .what = "llama" },
    { .what = "qwen3moe", .arch = "qwen3moe" },
    { .what = "granitemoe", .arch = "granitemoe" },
    { .what = "qwen2moe", .arch = "qwen2moe" },
    { "one shared expert, said",
      "qwen2moe",
      NULL,
      { { "expert_shared_count", WHOLE, 1 }, { "expert_shared_feed_forward_length", WHOLE, 64 } },
      { 0 } },
    { "two shared experts",
      "qwen2moe",
      "'qwen2moe.expert_shared_count' is 2",
      { { "expert_shared_count", WHOLE, 2 } },
      { 0 } },
    { "another length of the shared expert",
      "qwen2moe",
      "'blk.0.ffn_gate_shexp.weight' is 32 x 64 x 1 x 1, expected 32 x 96",
      { { "expert_shared_feed_forward_length", WHOLE, 96 } },
      { 0 } },
    { "a shared expert without a gate of its own",
      "qwen2moe",
      "'blk.0.ffn_gate_inp_shexp.weight' is missing",
      { { 0 } },
      { "blk.0.ffn_gate_inp_shexp.weight", 0, { 0 } } },
    { "a shared expert's gate in f16",
      "qwen2moe",
      "'blk.0.ffn_gate_inp_shexp.weight' has type f16",
      { { 0 } },
      { "blk.0.ffn_gate_inp_shexp.weight", FG_F16, { 32 } } },
    { "a shared expert that is not there",
      "granitemoe",
      "'blk.0.ffn_gate_shexp.weight' is missing",
      { { "expert_shared_feed_forward_length", WHOLE, 64 } },
      { 0 } },
    { "a shared expert's length as text",
      "granitemoe",
      "'granitemoe.expert_shared_feed_forward_length' is not a whole number",
      { { "expert_shared_feed_forward_length", TEXT, 0 } },
      { 0 } },
    { "experts of another architecture",
      "granite",
      "mixes 4 experts, which is not supported",
      { { 0 } },
      { 0 } },
    { "an architecture of experts without any",
      "qwen3moe",
      "'qwen3moe.expert_count' is missing",
      { { "expert_count", NONE, 0 } },
      { 0 } },
    { "none at all",
      "granitemoe",
      "'granitemoe.expert_count' is 0",
      { { "expert_count", WHOLE, 0 } },
      { 0 } },
    { "llama without experts has others' tensors",
      NULL,
      "'blk.0.ffn_gate.weight' is missing",
      { { "expert_count", WHOLE, 0 } },
      { 0 } },
    { "too many experts",
      NULL,
      "'llama.expert_count' is 1025",
      { { "expert_count", WHOLE, 1025 } },
      { 0 } },
    { "more experts than there are",
      NULL,
      "'blk.0.ffn_gate_inp.weight' is 32 x 4 x 1 x 1, expected 32 x 5",
      { { "expert_count", WHOLE, 5 } },
      { 0 } },
    { "none for a row",
      NULL,
      "'llama.expert_used_count' is 0",
      { { "expert_used_count", WHOLE, 0 } },
      { 0 } },
    { "nobody says how many for a row",
      NULL,
      "'llama.expert_used_count' is missing",
      { { "expert_used_count", NONE, 0 } },
      { 0 } },
    { "more for a row than there are",
      NULL,
      "'llama.expert_used_count' is 5, more than the 4 experts",
      { { "expert_used_count", WHOLE, 5 } },
      { 0 } },
    { "too many for a row",
      NULL,
      "'llama.expert_used_count' is 33 (1 to 32 is supported)",
      { { "expert_used_count", WHOLE, 33 } },
      { 0 } },
    { "all for a row", NULL, NULL, { { "expert_used_count", WHOLE, 4 } }, { 0 } },
    { "an expert's length of its own",
      "qwen3moe",
      NULL,
      { { "expert_feed_forward_length", WHOLE, 64 }, { "feed_forward_length", WHOLE, 192 } },
      { 0 } },
    { "another length than the experts have",
      "qwen3moe",
      "'" GATE "' is 32 x 64 x 4 x 1, expected 32 x 96 x 4",
      { { "expert_feed_forward_length", WHOLE, 96 } },
      { 0 } },
    { "an expert's length of nothing",
      NULL,
      "'llama.expert_feed_forward_length' is 0",
      { { "expert_feed_forward_length", WHOLE, 0 } },
      { 0 } },
    { "softmax", NULL, NULL, { { "expert_gating_func", WHOLE, 1 } }, { 0 } },
    { "sigmoid",
      NULL,
      "'llama.expert_gating_func' is 2 (at most 1 is supported)",
      { { "expert_gating_func", WHOLE, 2 } },
      { 0 } },
    { "a function as text",
      NULL,
      "'llama.expert_gating_func' is not a whole number",
      { { "expert_gating_func", TEXT, 0 } },
      { 0 } },
    { "shared experts",
      NULL,
      "'llama.expert_shared_count' is 1",
      { { "expert_shared_count", WHOLE, 1 } },
      { 0 } },
    { "no shared experts", NULL, NULL, { { "expert_shared_count", WHOLE, 0 } }, { 0 } },
    { "a shared expert's length",
      "qwen3moe",
      "'qwen3moe.expert_shared_feed_forward_length' is 64 (at most 0",
      { { "expert_shared_feed_forward_length", WHOLE, 64 } },
      { 0 } },
    { "groups",
      NULL,
      "'llama.expert_group_count' is 2",
      { { "expert_group_count", WHOLE, 2 } },
      { 0 } },
    { "one group", NULL, NULL, { { "expert_group_count", WHOLE, 1 } }, { 0 } },
    { "layers without experts",
      NULL,
      "'llama.leading_dense_block_count' is 1",
      { { "leading_dense_block_count", WHOLE, 1 } },
      { 0 } },
    { "every other layer",
      NULL,
      "'llama.interleave_moe_layer_step' is 2",
      { { "interleave_moe_layer_step", WHOLE, 2 } },
      { 0 } },
    { "layers that guess",
      "qwen3moe",
      "'qwen3moe.nextn_predict_layers' is 1",
      { { "nextn_predict_layers", WHOLE, 1 } },
      { 0 } },
    { "weights that are not normalised",
      NULL,
      NULL,
      { { "expert_weights_norm", TRUTH, 0 } },
      { 0 } },
    { "a number for a truth",
      NULL,
      "'llama.expert_weights_norm' is neither true nor false",
      { { "expert_weights_norm", WHOLE, 1 } },
      { 0 } },
    { "a scale", NULL, NULL, { { "expert_weights_scale", REAL, 2.5 } }, { 0 } },
    { "a negative scale",
      NULL,
      "'llama.expert_weights_scale' is -1",
      { { "expert_weights_scale", REAL, -1 } },
      { 0 } },
    { "a scale that is none",
      NULL,
      "'llama.expert_weights_scale' is nan",
      { { "expert_weights_scale", REAL, NAN } },
      { 0 } },
    { "no router",
      NULL,
      "'blk.0.ffn_gate_inp.weight' is missing",
      { { 0 } },
      { "blk.0.ffn_gate_inp.weight", 0, { 0 } } },
    { "a router in f16",
      NULL,
      "'blk.0.ffn_gate_inp.weight' has type f16, expected f32",
      { { 0 } },
      { "blk.0.ffn_gate_inp.weight", FG_F16, { 32, 4 } } },
    { "a bias of the router",
      NULL,
      "'blk.0.ffn_gate_inp.bias': biases are not supported",
      { { 0 } },
      { "blk.0.ffn_gate_inp.bias", FG_F32, { 4 } } },
    { "no gates", NULL, "'" GATE "' is missing", { { 0 } }, { GATE, 0, { 0 } } },
    { "a gate for one expert",
      NULL,
      "'" GATE "' is 32 x 64 x 1 x 1, expected 32 x 64 x 4",
      { { 0 } },
      { GATE, FG_BF16, { 32, 64 } } },
    { "a fourth size",
      NULL,
      "'" GATE "' is 32 x 64 x 4 x 2",
      { { 0 } },
      { GATE, FG_BF16, { 32, 64, 4, 2 } } },
    { "down the other way round",
      NULL,
      "'" DOWN "' is 32 x 64 x 4 x 1, expected 64 x 32 x 4",
      { { 0 } },
      { DOWN, FG_BF16, { 32, 64, 4 } } },
    { "a feed-forward beside",
      "qwen3moe",
      "'blk.0.ffn_up.weight' has no place in architecture qwen3moe",
      { { 0 } },
      { "blk.0.ffn_up.weight", FG_F16, { 32, 64 } } },
    { "a shared expert beside",
      "granitemoe",
      "'blk.0.ffn_up_shexp.weight' has no place in architecture granitemoe",
      { { 0 } },
      { "blk.0.ffn_up_shexp.weight", FG_F16, { 32, 64 } } },
    { "biases of choices",
      NULL,
      "'blk.0.exp_probs_b.bias': biases are not supported",
      { { 0 } },
      { "blk.0.exp_probs_b.bias", FG_F32, { 4 } } },
};

static fg_status read_case(const change *c, fg_hparams *hp, fg_error *err)
{
    size_t size_bytes;
    void *bytes = build(c, &size_bytes);
    fg_weights *weights;
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, err), FG_OK, "%s: %s", c->what,
                 err->text);
    fg_status status = fg_hparams_read(weights, hp, err);
    fg_weights_close(weights);
    free(bytes);
    return status;
}

Test(hparams_experts, accepts_what_fits_and_names_what_does_not)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const change *c = &cases[i];
        fg_error err = { 0 };
        fg_hparams hp = { .layer_count = 4242 };
        fg_status status = read_case(c, &hp, &err);
        cr_assert_eq(status, c->want == NULL ? FG_OK : FG_BAD_INPUT, "%s: %s", c->what, err.text);
        if (c->want != NULL) {
            cr_assert_not_null(strstr(err.text, c->want), "%s: got \"%s\"", c->what, err.text);
            cr_assert_eq(hp.layer_count, 4242, "%s: output kept", c->what);
        }
    }
}

Test(hparams_experts, reads_every_number)
{
    static const change cases_read[] = {
        { .what = "usual" },
        { "its own",
          "qwen3moe",
          NULL,
          { { "expert_feed_forward_length", WHOLE, 64 }, { "feed_forward_length", WHOLE, 192 } },
          { 0 } },
        { "other weights",
          "granitemoe",
          NULL,
          { { "expert_weights_norm", TRUTH, 0 }, { "expert_weights_scale", REAL, 2.5 } },
          { 0 } },
        { .what = "shared", .arch = "qwen2moe" },
        { "a scale of 0", NULL, NULL, { { "expert_weights_scale", REAL, 0 } }, { 0 } },
    };
    for (size_t i = 0; i < sizeof cases_read / sizeof cases_read[0]; i++) {
        fg_error err = { 0 };
        fg_hparams hp;
        cr_assert_eq(read_case(&cases_read[i], &hp, &err), FG_OK, "%s", err.text);
        cr_assert(hp.expert_count == 4 && hp.expert_used_count == 2 && hp.ffn_length == 64, "%s",
                  cases_read[i].what);
        cr_assert(hp.expert_weights_normalised == (i != 2 && i != 3), "%s", cases_read[i].what);
        cr_assert(hp.shared_ffn_length == (i == 3 ? 64 : 0) && hp.shared_gate == (i == 3));
        cr_assert(fg_hparams_hidden_rows(&hp) == 2, "%s", cases_read[i].what);
        cr_assert(hp.expert_weights_scale == (i == 2 ? 2.5f : 1.0f), "%s", cases_read[i].what);
    }
}

Test(hparams_experts, hidden_rows_have_room_for_each_expert_of_a_row)
{
    static const struct {
        uint32_t experts, used, length, shared, want;
    } sizes[] = {
        { 0, 0, 128, 0, 1 },   { 8, 3, 128, 0, 3 },    { 8, 3, 128, 256, 3 },
        { 8, 3, 128, 257, 4 }, { 8, 1, 64, 1024, 17 }, { 8, 8, 64, 64, 8 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const fg_hparams hp = { .expert_count = sizes[i].experts,
                                .expert_used_count = sizes[i].used,
                                .ffn_length = sizes[i].length,
                                .shared_ffn_length = sizes[i].shared };
        cr_assert_eq(fg_hparams_hidden_rows(&hp), sizes[i].want, "row %zu", i);
    }
}
