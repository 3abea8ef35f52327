#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/model/folder_internal.h"

/* How a tensor becomes GGUF's. */
typedef enum tensor_kind {
    MATRIX,
    Q_ROWS, /* a matrix whose rows are those of the query heads */
    K_ROWS, /* and of the key heads */
    EXPERTS,
    FLOATS, /* becomes F32 */
    NORM,   /* the same, and more by 1 where an architecture keeps norms less 1 */
} tensor_kind;

typedef struct tensor_name {
    const char *name; /* behind model.layers.N.; %u: the expert */
    const char *gguf; /* behind blk.N. */
    tensor_kind kind;
    uint32_t traits; /* of the architectures that have it: all of these */
} tensor_name;

static const tensor_name layer_names[] = {
    { "input_layernorm.weight", "attn_norm.weight", NORM, 0 },
    { "self_attn.q_proj.weight", "attn_q.weight", Q_ROWS, FG_TRAIT_APART },
    { "self_attn.k_proj.weight", "attn_k.weight", K_ROWS, FG_TRAIT_APART },
    { "self_attn.v_proj.weight", "attn_v.weight", MATRIX, FG_TRAIT_APART },
    { "self_attn.qkv_proj.weight", "attn_qkv.weight", MATRIX, FG_TRAIT_FUSED },
    { "self_attn.o_proj.weight", "attn_output.weight", MATRIX, 0 },
    { "self_attn.q_proj.bias", "attn_q.bias", FLOATS, FG_TRAIT_BIAS },
    { "self_attn.k_proj.bias", "attn_k.bias", FLOATS, FG_TRAIT_BIAS },
    { "self_attn.v_proj.bias", "attn_v.bias", FLOATS, FG_TRAIT_BIAS },
    { "self_attn.q_norm.weight", "attn_q_norm.weight", NORM, FG_TRAIT_QK_NORM },
    { "self_attn.k_norm.weight", "attn_k_norm.weight", NORM, FG_TRAIT_QK_NORM },
    { "post_attention_layernorm.weight", "ffn_norm.weight", NORM, FG_TRAIT_PLAIN_NORMS },
    { "post_attention_layernorm.weight", "post_attention_norm.weight", NORM, FG_TRAIT_POST_NORMS },
    { "pre_feedforward_layernorm.weight", "ffn_norm.weight", NORM, FG_TRAIT_POST_NORMS },
    { "post_feedforward_layernorm.weight", "post_ffw_norm.weight", NORM, FG_TRAIT_POST_NORMS },
    { "mlp.gate_proj.weight", "ffn_gate.weight", MATRIX, FG_TRAIT_DENSE | FG_TRAIT_APART },
    { "mlp.up_proj.weight", "ffn_up.weight", MATRIX, FG_TRAIT_DENSE | FG_TRAIT_APART },
    { "mlp.gate_up_proj.weight", "ffn_up.weight", MATRIX, FG_TRAIT_FUSED },
    { "mlp.down_proj.weight", "ffn_down.weight", MATRIX, FG_TRAIT_DENSE },
    { "mlp.gate.weight", "ffn_gate_inp.weight", FLOATS, FG_TRAIT_MIXTURE },
    { "mlp.experts.%u.gate_proj.weight", "ffn_gate_exps.weight", EXPERTS, FG_TRAIT_MIXTURE },
    { "mlp.experts.%u.up_proj.weight", "ffn_up_exps.weight", EXPERTS, FG_TRAIT_MIXTURE },
    { "mlp.experts.%u.down_proj.weight", "ffn_down_exps.weight", EXPERTS, FG_TRAIT_MIXTURE },
    { "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", MATRIX, FG_TRAIT_SHARED },
    { "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", MATRIX, FG_TRAIT_SHARED },
    { "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", MATRIX, FG_TRAIT_SHARED },
    { "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", FLOATS, FG_TRAIT_SHARED },
    { "block_sparse_moe.gate.weight", "ffn_gate_inp.weight", FLOATS, FG_TRAIT_MIXTRAL },
    { "block_sparse_moe.experts.%u.w1.weight", "ffn_gate_exps.weight", EXPERTS, FG_TRAIT_MIXTRAL },
    { "block_sparse_moe.experts.%u.w3.weight", "ffn_up_exps.weight", EXPERTS, FG_TRAIT_MIXTRAL },
    { "block_sparse_moe.experts.%u.w2.weight", "ffn_down_exps.weight", EXPERTS, FG_TRAIT_MIXTRAL },
};
enum { LAYER_NAMES = sizeof layer_names / sizeof layer_names[0], MODEL_TENSORS = 6 };
enum { NAME_ROOM = 64, EXPERTS_MAX = 1024 };

/* Tensors on their way into the table. */
typedef struct placing {
    fg_weights *weights;
    struct fg_folder *folder;
    const fg_folder_config *config;
    const fg_folder_sources *sources;
    uint32_t capacity;
    fg_error *err;
} placing;

static void *take_block(placing *p, size_t size_bytes)
{
    struct fg_folder *folder = p->folder;
    if (folder->block_count == folder->block_capacity) {
        uint32_t capacity = 2 * folder->block_capacity + 64;
        void **blocks = fg_mem_resize(folder->blocks, capacity, sizeof *blocks);
        if (blocks == NULL) {
            return NULL;
        }
        folder->blocks = blocks;
        folder->block_capacity = capacity;
    }
    void *block = fg_mem_alloc(size_bytes);
    if (block != NULL) {
        folder->blocks[folder->block_count++] = block;
    }
    return block;
}

static fg_status no_memory(const placing *p)
{
    return fg_fail(p->err, FG_AGAIN, "out of memory for the model's tensors");
}

/* The tensor that the folder has under that name, which is used now. */
static fg_status find(placing *p, const char *name, const fg_safetensor **tensor_out)
{
    fg_folder_source *source = fg_folder_find(p->sources, name);
    if (source == NULL) {
        return fg_fail(p->err, FG_BAD_INPUT, "tensor '%s' is missing", name);
    }
    source->used = true;
    *tensor_out = source->tensor;
    return FG_OK;
}

static fg_status type_of(const placing *p, const fg_safetensor *tensor, uint32_t *type_out)
{
    bool known = true;
    if (strcmp(tensor->dtype, "BF16") == 0) {
        *type_out = FG_BF16;
    } else if (strcmp(tensor->dtype, "F16") == 0) {
        *type_out = FG_F16;
    } else if (strcmp(tensor->dtype, "F32") == 0) {
        *type_out = FG_F32;
    } else {
        known = false;
    }
    return known ? FG_OK
                 : fg_fail(p->err, FG_BAD_INPUT,
                           "tensor '%s' is %s, which is not read (BF16, F16, F32): take the model "
                           "in BF16, or a GGUF file",
                           tensor->name, tensor->dtype);
}

/* Adds `gguf` to the table with the sizes of `source`, reversed. */
static fg_status add(placing *p, const char *gguf, const fg_safetensor *source, uint32_t type,
                     fg_tensor **tensor_out)
{
    fg_weights *weights = p->weights;
    FG_ASSERT(weights->tensor_count < p->capacity, "the table has room for all names");
    if (source->dim_count < 1 || source->dim_count > 2) {
        return fg_fail(p->err, FG_BAD_INPUT, "tensor '%s' has %u dimensions (1 or 2 are read)",
                       source->name, source->dim_count);
    }
    uint32_t index = weights->tensor_count;
    char *name = weights->tensor_names + (size_t)index * NAME_ROOM;
    fg_tensor *tensor = &weights->tensors[index];
    snprintf(name, NAME_ROOM, "%s", gguf);
    *tensor = (fg_tensor){ .name = name,
                           .type = type,
                           .dim_count = source->dim_count,
                           .dims = { 1, 1, 1, 1 },
                           .data = source->data,
                           .size_bytes = source->size_bytes };
    for (uint32_t i = 0; i < source->dim_count; i++) {
        tensor->dims[i] = source->dims[source->dim_count - 1 - i];
    }
    if (tensor->size_bytes == 0) {
        return fg_fail(p->err, FG_BAD_INPUT, "tensor '%s' is empty", source->name);
    }
    FG_ASSERT(fg_weights_index_tensor(weights, index), "names of the table differ");
    weights->tensor_count++;
    *tensor_out = tensor;
    return FG_OK;
}

/* Rows that are not in order, or lie anywhere: `count` matrices of as many rows. */
static fg_status scatter(placing *p, fg_tensor *tensor, uint32_t count, uint32_t head_rows,
                         const void ***matrices_out)
{
    fg_tensor_rows *rows = take_block(p, sizeof *rows);
    const void **matrices = rows == NULL ? NULL : take_block(p, count * sizeof *matrices);
    if (matrices == NULL) {
        return no_memory(p);
    }
    *rows = (fg_tensor_rows){ .matrices = matrices, .head_rows = head_rows };
    matrices[0] = tensor->data;
    tensor->rows = rows;
    tensor->data = NULL;
    *matrices_out = matrices;
    return FG_OK;
}

static bool is_aligned(const void *data, uint32_t type)
{
    return (uintptr_t)data % fg_dtype_block_bytes(type) == 0;
}

static fg_status place_matrix(placing *p, const char *gguf, const char *name, uint32_t heads)
{
    const fg_safetensor *source = NULL;
    uint32_t type = FG_F32;
    fg_tensor *tensor = NULL;
    const void **matrices;
    fg_status status = find(p, name, &source);
    status = status != FG_OK ? status : type_of(p, source, &type);
    status = status != FG_OK ? status : add(p, gguf, source, type, &tensor);
    if (status != FG_OK) {
        return status;
    }
    if (heads == 0) {
        return is_aligned(tensor->data, type) ? FG_OK : scatter(p, tensor, 1, 0, &matrices);
    }
    uint64_t rows = (uint64_t)heads * p->config->head_dim;
    if (tensor->dim_count != 2 || tensor->dims[1] != rows || p->config->head_dim % 2 != 0) {
        return fg_fail(p->err, FG_BAD_INPUT,
                       "tensor '%s' is not a matrix of %u heads of %u rows, an even number", name,
                       heads, p->config->head_dim);
    }
    return scatter(p, tensor, 1, p->config->head_dim, &matrices);
}

static float float_at(const void *data, uint32_t type, uint64_t index)
{
    uint16_t half;
    float value;
    if (type == FG_F32) {
        memcpy(&value, (const char *)data + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)data + index * sizeof half, sizeof half);
    return type == FG_F16 ? fg_f16_to_f32(half) : fg_bf16_to_f32(half);
}

static fg_status place_floats(placing *p, const char *gguf, const char *name, bool plus_1)
{
    const fg_safetensor *source = NULL;
    uint32_t type = FG_F32;
    fg_tensor *tensor = NULL;
    fg_status status = find(p, name, &source);
    status = status != FG_OK ? status : type_of(p, source, &type);
    status = status != FG_OK ? status : add(p, gguf, source, FG_F32, &tensor);
    if (status != FG_OK) {
        return status;
    }
    uint64_t count = tensor->size_bytes / fg_dtype_block_bytes(type);
    if (tensor->dim_count == 2 && tensor->dims[1] == 1) {
        tensor->dim_count = 1;
    }
    tensor->size_bytes = count * sizeof(float);
    if (type == FG_F32 && !plus_1 && is_aligned(tensor->data, type)) {
        return FG_OK;
    }
    float *values = take_block(p, tensor->size_bytes);
    if (values == NULL) {
        return no_memory(p);
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i] = float_at(source->data, type, i) + (plus_1 ? 1.0f : 0.0f);
    }
    tensor->data = values;
    return FG_OK;
}

/* `name` has the expert's number in it: an expert's matrix behind the other. */
static fg_status place_experts(placing *p, const char *gguf, unsigned layer, const tensor_name *row)
{
    fg_tensor *tensor = NULL;
    const void **matrices = NULL;
    const fg_safetensor *first = NULL, *source = NULL;
    for (uint32_t i = 0; i < p->config->experts; i++) {
        char suffix[NAME_ROOM], name[2 * NAME_ROOM];
        size_t before = (size_t)(strstr(row->name, "%u") - row->name);
        snprintf(suffix, sizeof suffix, "%.*s%u%s", (int)before, row->name, i,
                 row->name + before + 2);
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, suffix);
        fg_status status = find(p, name, &source);
        if (status == FG_OK && i == 0) {
            uint32_t type = FG_F32;
            first = source;
            status = type_of(p, source, &type);
            status = status != FG_OK ? status : add(p, gguf, source, type, &tensor);
            status =
                status != FG_OK ? status : scatter(p, tensor, p->config->experts, 0, &matrices);
        }
        if (status != FG_OK) {
            return status;
        }
        if (strcmp(source->dtype, first->dtype) != 0 || source->dim_count != 2 ||
            memcmp(source->dims, first->dims, 2 * sizeof source->dims[0]) != 0) {
            return fg_fail(p->err, FG_BAD_INPUT, "tensor '%s' is not like that of expert 0", name);
        }
        matrices[i] = source->data;
    }
    tensor->dim_count = 3;
    tensor->dims[2] = p->config->experts;
    tensor->size_bytes *= p->config->experts;
    return FG_OK;
}

static fg_status place_layer(placing *p, unsigned layer)
{
    const fg_folder_config *config = p->config;
    bool pairs = (config->traits & FG_TRAIT_PAIRS) != 0;
    fg_status status = FG_OK;
    for (size_t i = 0; i < LAYER_NAMES && status == FG_OK; i++) {
        const tensor_name *row = &layer_names[i];
        char gguf[NAME_ROOM], name[2 * NAME_ROOM];
        if ((row->traits & ~config->traits) != 0) {
            continue;
        }
        snprintf(gguf, sizeof gguf, "blk.%u.%s", layer, row->gguf);
        snprintf(name, sizeof name, "model.layers.%u.%s", layer, row->name);
        switch (row->kind) {
        case MATRIX:
            status = place_matrix(p, gguf, name, 0);
            break;
        case Q_ROWS:
            status = place_matrix(p, gguf, name, pairs ? config->heads : 0);
            break;
        case K_ROWS:
            status = place_matrix(p, gguf, name, pairs ? config->kv_heads : 0);
            break;
        case EXPERTS:
            status = place_experts(p, gguf, layer, row);
            break;
        case FLOATS:
            status = place_floats(p, gguf, name, false);
            break;
        case NORM:
            status = place_floats(p, gguf, name, (config->traits & FG_TRAIT_NORM_1) != 0);
            break;
        }
    }
    return status;
}

/* Rows of the embedding are read where they are, so they are in order and aligned. */
static fg_status place_embedding(placing *p)
{
    fg_status status = place_matrix(p, "token_embd.weight", "model.embed_tokens.weight", 0);
    fg_tensor *tensor = &p->weights->tensors[0];
    if (status != FG_OK || tensor->rows == NULL) {
        return status;
    }
    void *copy = take_block(p, tensor->size_bytes);
    if (copy == NULL) {
        return no_memory(p);
    }
    memcpy(copy, tensor->rows->matrices[0], tensor->size_bytes);
    tensor->rows = NULL;
    tensor->data = copy;
    return FG_OK;
}

static fg_status place_divisors(placing *p, const char *gguf, const float *values)
{
    const fg_safetensor source = { .name = gguf,
                                   .dtype = "F32",
                                   .dim_count = 1,
                                   .dims = { p->config->rope_count },
                                   .data = values,
                                   .size_bytes = p->config->rope_count * sizeof *values };
    fg_tensor *tensor = NULL;
    if (values == NULL) {
        return FG_OK;
    }
    fg_status status = add(p, gguf, &source, FG_F32, &tensor);
    void *copy = status != FG_OK ? NULL : take_block(p, source.size_bytes);
    if (status != FG_OK || copy == NULL) {
        return status != FG_OK ? status : no_memory(p);
    }
    memcpy(copy, values, source.size_bytes);
    tensor->data = copy;
    return FG_OK;
}

static fg_status place_model(placing *p)
{
    fg_status status = place_embedding(p);
    if (status == FG_OK) {
        bool plus_1 = (p->config->traits & FG_TRAIT_NORM_1) != 0;
        status = place_floats(p, "output_norm.weight", "model.norm.weight", plus_1);
    }
    if (status == FG_OK && !p->config->tied) {
        status = place_matrix(p, "output.weight", "lm_head.weight", 0);
    } else if (status == FG_OK) {
        /* Some files keep the head of a tied model as well: the embedding again. */
        fg_folder_source *head = fg_folder_find(p->sources, "lm_head.weight");
        if (head != NULL) {
            head->used = true;
        }
    }
    status =
        status != FG_OK ? status : place_divisors(p, "rope_freqs.weight", p->config->rope_freqs);
    status = status != FG_OK ? status
                             : place_divisors(p, "rope_factors_long.weight", p->config->rope_long);
    return status != FG_OK ? status
                           : place_divisors(p, "rope_factors_short.weight", p->config->rope_short);
}

/* What a tensor that nobody uses would have done to the answers nobody knows. */
static fg_status refuse_strangers(const placing *p)
{
    static const char buffer[] = ".rotary_emb.inv_freq"; /* follows from config.json */
    for (uint32_t i = 0; i < p->sources->count; i++) {
        const fg_folder_source *source = &p->sources->items[i];
        const char *name = source->tensor->name;
        size_t length = strlen(name);
        if (source->used ||
            (length > sizeof buffer && strcmp(name + length - (sizeof buffer - 1), buffer) == 0)) {
            continue;
        }
        return fg_fail(p->err, FG_BAD_INPUT, "tensor '%s' has no place in %s", name,
                       p->config->class_name);
    }
    return FG_OK;
}

fg_status fg_folder_place_tensors(fg_weights *weights, const fg_folder_config *config,
                                  const fg_folder_sources *sources, fg_error *err)
{
    uint32_t capacity = config->layers * (uint32_t)LAYER_NAMES + MODEL_TENSORS;
    placing p = { .weights = weights,
                  .folder = weights->folder,
                  .config = config,
                  .sources = sources,
                  .capacity = capacity,
                  .err = err };
    if (config->experts > EXPERTS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "config.json: %u experts are not supported (at most %d)",
                       config->experts, EXPERTS_MAX);
    }
    weights->tensors = fg_mem_array(capacity, sizeof *weights->tensors);
    weights->tensor_names = fg_mem_array(capacity, NAME_ROOM);
    if (weights->tensors == NULL || weights->tensor_names == NULL ||
        !fg_name_table_init(&weights->tensor_table, capacity)) {
        return no_memory(&p);
    }
    fg_status status = place_model(&p);
    for (uint32_t layer = 0; layer < config->layers && status == FG_OK; layer++) {
        status = place_layer(&p, layer);
    }
    return status == FG_OK ? refuse_strangers(&p) : status;
}
