#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/engine/forward_internal.h"

enum { LAYER_MATRICES = 12 };
/* For the rank that packs what all of them map: a large model on few cores. */
enum { RANK_WAIT_MS = 30 * 60 * 1000 };

/* The matrices of products, until the store has packed them: each, who wants to know where, and which outputs. */
typedef struct panel_list {
    fg_panel_source *sources;
    fg_panels **targets;
    fg_tp_part *parts;
    uint32_t count;
} panel_list;

/* NULL, with the reason in err, when the model lacks it; `layer_index` UINT32_MAX: not of a layer. */
static const fg_tensor *find_tensor(const fg_weights *weights, uint32_t layer_index,
                                    const char *name, fg_error *err)
{
    char full[64];
    if (layer_index == UINT32_MAX) {
        snprintf(full, sizeof full, "%s", name);
    } else {
        snprintf(full, sizeof full, "blk.%u.%s", layer_index, name);
    }
    const fg_tensor *tensor = fg_weights_find(weights, full);
    if (tensor == NULL) {
        fg_fail(err, FG_BAD_INPUT, "the model has no tensor %s", full);
    }
    return tensor;
}

/* `depth` matrices of this size in one tensor are one, of so many times the outputs. */
static fg_status find_matrix(const fg_weights *weights, uint32_t layer_index, const char *name,
                             const uint32_t sizes[3], fg_matrix *matrix_out, fg_error *err)
{
    uint32_t columns = sizes[0], outputs = sizes[1], depth = sizes[2];
    const fg_tensor *tensor = find_tensor(weights, layer_index, name, err);
    if (tensor == NULL) {
        return FG_BAD_INPUT;
    }
    uint32_t block = fg_dtype_block_count(tensor->type);
    if (block == 0 || columns % block != 0 || tensor->dims[0] != columns ||
        tensor->dims[1] != outputs || tensor->dims[2] != depth || tensor->dims[3] != 1) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor %s is not %u x %u x %u of a type that Forge computes", tensor->name,
                       columns, outputs, depth);
    }
    *matrix_out = (fg_matrix){
        .data = tensor->data, .type = tensor->type, .outputs = outputs * depth, .columns = columns
    };
    return FG_OK;
}

/* A matrix of products, and what this rank needs of its outputs. */
typedef struct matrix_row {
    const char *name;
    uint32_t outputs;
    uint32_t columns;
    fg_tp_part part;
    fg_panels *panels;
    /* Where it lies in a tensor of more rows: the first one's index, and how many the tensor has; else 0. */
    fg_tp_part among;
    uint32_t experts; /* that have such a matrix each, one behind the other; 0: there is one */
} matrix_row;

/* Puts a matrix of products on the list. */
static fg_status want_panels(panel_list *list, const fg_weights *weights, uint32_t layer_index,
                             const matrix_row *row, fg_error *err)
{
    fg_matrix matrix;
    uint32_t rows = row->among.count > 0 ? row->among.count : row->outputs;
    uint32_t depth = row->experts > 0 ? row->experts : 1;
    fg_status status = find_matrix(weights, layer_index, row->name,
                                   (const uint32_t[]){ row->columns, rows, depth }, &matrix, err);
    if (status != FG_OK) {
        return status;
    }
    const fg_tensor *tensor = find_tensor(weights, layer_index, row->name, err);
    *row->panels =
        (fg_panels){ .type = matrix.type, .outputs = row->part.count, .columns = row->columns };
    fg_panel_source *source = &list->sources[list->count];
    *source = (fg_panel_source){ .name = tensor->name,
                                 .rows = matrix,
                                 .scattered = tensor->rows != NULL ? tensor : NULL };
    fg_panel_source_cut(source, row->among.first, row->outputs * depth);
    list->parts[list->count] = row->part;
    list->targets[list->count++] = row->panels;
    return FG_OK;
}

/* Rows in another order are put in order in memory first. */
static fg_status pack_on_device(fg_forward *forward, const fg_panel_source *source,
                                fg_panels *panels, fg_error *err)
{
    fg_matrix rows = source->rows;
    if (source->scattered == NULL) {
        return fg_device_pack(forward->device, &rows, panels, err);
    }
    size_t size_bytes = (size_t)rows.outputs * (rows.columns / fg_dtype_block_count(rows.type)) *
                        fg_dtype_block_bytes(rows.type);
    void *copy = fg_mem_map(size_bytes);
    if (copy == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the rows of %s", source->name);
    }
    fg_tensor_copy_rows(source->scattered, source->first, rows.outputs, copy);
    rows.data = copy;
    fg_status status = fg_device_pack(forward->device, &rows, panels, err);
    fg_mem_unmap(copy, size_bytes);
    return status;
}

/* Has all on the list packed into the device's memory; their rows are not read again. */
static fg_status pack_panels(fg_forward *forward, const fg_engine_options *options,
                             const panel_list *list, fg_error *err)
{
    fg_clock clock = fg_clock_real();
    uint64_t began_ns = fg_clock_now_ns(&clock);
    fg_weight_report report = { .origin = FG_WEIGHTS_DEVICE };
    fg_status status = FG_OK;
    for (uint32_t i = 0; i < list->count && status == FG_OK; i++) {
        fg_matrix *rows = &list->sources[i].rows;
        fg_panel_source_cut(&list->sources[i], list->parts[i].first, list->parts[i].count);
        status = pack_on_device(forward, &list->sources[i], list->targets[i], err);
        /* A device may keep them as another type. */
        uint32_t type = status == FG_OK ? list->targets[i]->type : rows->type;
        report.bytes += (uint64_t)rows->outputs * (rows->columns / fg_dtype_block_count(type)) *
                        fg_dtype_block_bytes(type);
        fg_weights_release(options->weights,
                           fg_weights_find(options->weights, list->sources[i].name));
    }
    report.pack_ns = fg_clock_now_ns(&clock) - began_ns;
    forward->device_report = report;
    return status;
}

static const char *cache_of(const fg_engine_options *options)
{
    return options->weights_cache != NULL ? options->weights_cache : "off";
}

/* Whether the ranks of a host share one file of all panels, each its own ones; else each packs its own rows. */
static bool keeps_whole(const fg_engine_options *options, const panel_list *list)
{
    bool whole = strcmp(cache_of(options), "off") != 0;
    for (uint32_t i = 0; i < list->count; i++) {
        whole = whole && list->parts[i].first % FG_PANEL_OUTPUTS == 0;
    }
    return whole;
}

/* Has all on the list packed, or finds them packed; their rows are not read again, but for those of the
 * embedding that tokens name. */
static fg_status load_panels(fg_forward *forward, const fg_engine_options *options,
                             const panel_list *list, fg_error *err)
{
    bool whole = keeps_whole(options, list);
    bool alone = forward->tp == NULL;
    fg_weight_store_options store = {
        .weights = options->weights,
        .cache = whole ? cache_of(options) : "off",
        .fingerprint = options->fingerprint,
        /* Whoever packs has all ranks' cores, for they wait; and they end with their worker. */
        .thread_count = options->thread_count * (whole ? fg_tp_size(forward->tp) : 1),
        .wait_ms = alone ? 0 : RANK_WAIT_MS,
        .only_file = whole && !alone
    };
    fg_status status = FG_CANCELLED;
    if (whole) {
        status = fg_weight_store_open(&store, list->sources, list->count, &forward->store, err);
    }
    if (status == FG_CANCELLED) {
        whole = false;
        for (uint32_t i = 0; i < list->count; i++) {
            fg_panel_source_cut(&list->sources[i], list->parts[i].first, list->parts[i].count);
        }
        store.cache = "off";
        store.only_file = false;
        store.thread_count = options->thread_count;
        status = fg_weight_store_open(&store, list->sources, list->count, &forward->store, err);
    }
    for (uint32_t i = 0; i < list->count && status == FG_OK; i++) {
        const fg_matrix *rows = &list->sources[i].rows;
        size_t panel_bytes = fg_panel_bytes(rows->type, rows->columns);
        size_t first = whole ? list->parts[i].first / FG_PANEL_OUTPUTS * panel_bytes : 0;
        const uint8_t *panels = fg_weight_store_panels(forward->store, i);
        status = fg_device_load(forward->device, panels + first,
                                fg_panel_count(list->parts[i].count) * panel_bytes,
                                &list->targets[i]->data, err);
        fg_weights_release(options->weights,
                           fg_weights_find(options->weights, list->sources[i].name));
    }
    return status;
}

/* A vector of floats of a layer or of the model. */
typedef struct vector_row {
    const char *name;
    uint32_t count; /* 0: not in this architecture */
    const float **vector;
} vector_row;

static fg_status load_vector(fg_forward *forward, const fg_weights *weights, uint32_t layer_index,
                             const vector_row *row, fg_error *err)
{
    const fg_tensor *tensor = find_tensor(weights, layer_index, row->name, err);
    if (tensor == NULL) {
        return FG_BAD_INPUT;
    }
    if (tensor->type != FG_F32 || tensor->dims[0] != row->count || tensor->dims[1] != 1) {
        return fg_fail(err, FG_BAD_INPUT, "tensor %s is not %u x f32", tensor->name, row->count);
    }
    const void *data;
    fg_status status =
        fg_device_load(forward->device, tensor->data, tensor->size_bytes, &data, err);
    if (status == FG_OK) {
        *row->vector = data;
    }
    return status;
}

static fg_status load_layer_vectors(fg_forward *forward, const fg_weights *weights, uint32_t index,
                                    fg_error *err)
{
    const fg_hparams *h = &forward->hparams;
    layer_weights *layer = &forward->layers[index];
    uint32_t q_bias = h->qkv_bias ? h->head_count * h->head_dim : 0;
    uint32_t kv_bias = h->qkv_bias ? h->kv_head_count * h->head_dim : 0;
    uint32_t norm = h->qk_norm ? h->head_dim : 0;
    uint32_t post_norm = h->post_norms ? h->embedding_length : 0;
    const vector_row vectors[] = {
        { "attn_norm.weight", h->embedding_length, &layer->attn_norm },
        { "ffn_norm.weight", h->embedding_length, &layer->ffn_norm },
        { "attn_q.bias", q_bias, &layer->q_bias },
        { "attn_k.bias", kv_bias, &layer->k_bias },
        { "attn_v.bias", kv_bias, &layer->v_bias },
        { "attn_q_norm.weight", norm, &layer->q_norm },
        { "attn_k_norm.weight", norm, &layer->k_norm },
        { "post_attention_norm.weight", post_norm, &layer->attn_post_norm },
        { "post_ffw_norm.weight", post_norm, &layer->ffn_post_norm },
    };
    fg_status status = FG_OK;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0] && status == FG_OK; i++) {
        if (vectors[i].count > 0) {
            status = load_vector(forward, weights, index, &vectors[i], err);
        }
    }
    if (q_bias > 0 && status == FG_OK) {
        layer->q_bias += forward->parts.q.first;
        layer->k_bias += forward->parts.kv.first;
        layer->v_bias += forward->parts.kv.first;
    }
    return status;
}

/* Tensors that hold several matrices, one behind the other. */
static void fuse_rows(const fg_hparams *h, matrix_row *q, matrix_row *gate)
{
    uint32_t q_rows = q[0].outputs, kv_rows = q[1].outputs;
    uint32_t qkv_firsts[] = { 0, q_rows, q_rows + kv_rows }, gated_firsts[] = { 0, h->ffn_length };
    for (uint32_t i = 0; i < 3; i++) {
        q[i].name = "attn_qkv.weight";
        q[i].among = (fg_tp_part){ .first = qkv_firsts[i], .count = q_rows + 2 * kv_rows };
    }
    for (uint32_t i = 0; i < 2; i++) {
        gate[i].name = "ffn_up.weight";
        gate[i].among = (fg_tp_part){ .first = gated_firsts[i], .count = 2 * h->ffn_length };
    }
}

/* All ranks choose, so each has the whole router. Its columns of each expert it finds in what all of them have: parts of
 * the experts lie apart. */
static void mix_rows(const fg_hparams *h, matrix_row *gate, matrix_row *router)
{
    static const char *const names[] = { "ffn_gate_exps.weight", "ffn_up_exps.weight",
                                         "ffn_down_exps.weight" };
    for (uint32_t i = 0; i < 3; i++) {
        gate[i].name = names[i];
        gate[i].experts = h->expert_count;
        gate[i].part = (fg_tp_part){ .count = gate[i].outputs * h->expert_count };
    }
    router->name = "ffn_gate_inp.weight";
}

/* The expert for all rows, as if it were one of one. */
static void share_rows(const fg_hparams *h, layer_weights *layer, matrix_row *shared)
{
    uint32_t embedding = h->embedding_length, length = h->shared_ffn_length;
    const matrix_row rows[] = {
        { "ffn_gate_shexp.weight", length, embedding, { 0 }, &layer->shared_gate, { 0 }, 0 },
        { "ffn_up_shexp.weight", length, embedding, { 0 }, &layer->shared_up, { 0 }, 0 },
        { "ffn_down_shexp.weight", embedding, length, { 0 }, &layer->shared_down, { 0 }, 0 },
        { "ffn_gate_inp_shexp.weight", 1, embedding, { 0 }, &layer->shared_router, { 0 }, 0 },
    };
    for (uint32_t i = 0; i < (h->shared_gate ? 4 : 3); i++) {
        shared[i] = rows[i];
        shared[i].part.count = rows[i].outputs;
    }
}

static fg_status load_layer(fg_forward *forward, const fg_weights *weights, uint32_t index,
                            panel_list *list, fg_error *err)
{
    const fg_hparams *h = &forward->hparams;
    layer_weights *layer = &forward->layers[index];
    uint32_t q_columns = h->head_count * h->head_dim;
    uint32_t kv_columns = h->kv_head_count * h->head_dim;
    uint32_t embedding = h->embedding_length, ffn = h->ffn_length;
    const rank_parts *parts = &forward->parts;
    enum { Q, K, V, OUTPUT, GATE, UP, DOWN, ROUTER, SHARED };
    matrix_row rows[LAYER_MATRICES] = {
        [Q] = { "attn_q.weight", q_columns, embedding, parts->q, &layer->q, { 0 }, 0 },
        [K] = { "attn_k.weight", kv_columns, embedding, parts->kv, &layer->k, { 0 }, 0 },
        [V] = { "attn_v.weight", kv_columns, embedding, parts->kv, &layer->v, { 0 }, 0 },
        [OUTPUT] = { .name = "attn_output.weight",
                     .outputs = embedding,
                     .columns = q_columns,
                     .part = parts->embedding,
                     .panels = &layer->output },
        [GATE] = { "ffn_gate.weight", ffn, embedding, parts->ffn, &layer->gate, { 0 }, 0 },
        [UP] = { "ffn_up.weight", ffn, embedding, parts->ffn, &layer->up, { 0 }, 0 },
        [DOWN] = { "ffn_down.weight", embedding, ffn, parts->embedding, &layer->down, { 0 }, 0 },
        [ROUTER] = { .outputs = h->expert_count,
                     .columns = embedding,
                     .part = { .count = h->expert_count },
                     .panels = &layer->router },
    };
    if (h->fused) {
        fuse_rows(h, &rows[Q], &rows[GATE]);
    }
    if (h->expert_count > 0) {
        mix_rows(h, &rows[GATE], &rows[ROUTER]);
    }
    if (h->shared_ffn_length > 0) {
        share_rows(h, layer, &rows[SHARED]);
    }
    for (size_t i = 0; i < LAYER_MATRICES; i++) {
        fg_status status =
            rows[i].name == NULL ? FG_OK : want_panels(list, weights, index, &rows[i], err);
        if (status != FG_OK) {
            return status;
        }
    }
    return load_layer_vectors(forward, weights, index, err);
}

/* The norm before the head. Logits are divided where they come from: what is normalised is smaller by as much. */
static fg_status load_output_norm(fg_forward *forward, const fg_weights *weights, fg_error *err)
{
    const fg_hparams *h = &forward->hparams;
    const vector_row norm = { "output_norm.weight", h->embedding_length, &forward->output_norm };
    fg_status status = load_vector(forward, weights, UINT32_MAX, &norm, err);
    if (status != FG_OK || h->logit_scale == 1.0f) {
        return status;
    }
    const float *weight = fg_weights_find(weights, norm.name)->data;
    forward->scaled_norm = fg_mem_array(norm.count, sizeof(float));
    if (forward->scaled_norm == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a norm");
    }
    for (uint32_t i = 0; i < norm.count; i++) {
        forward->scaled_norm[i] = weight[i] / h->logit_scale;
    }
    const void *data = NULL;
    status = fg_device_load(forward->device, forward->scaled_norm, norm.count * sizeof(float),
                            &data, err);
    forward->output_norm = data;
    return status;
}

static fg_status load_tensors(fg_forward *forward, const fg_weights *weights, panel_list *list,
                              fg_error *err)
{
    const fg_hparams *h = &forward->hparams;
    fg_status status = find_matrix(weights, UINT32_MAX, "token_embd.weight",
                                   (const uint32_t[]){ h->embedding_length, h->vocab_size, 1 },
                                   &forward->embedding, err);
    if (status != FG_OK) {
        return status;
    }
    size_t size_bytes = (size_t)h->vocab_size *
                        (h->embedding_length / fg_dtype_block_count(forward->embedding.type)) *
                        fg_dtype_block_bytes(forward->embedding.type);
    status = fg_device_load(forward->device, forward->embedding.data, size_bytes,
                            &forward->embedding.data, err);
    if (status != FG_OK) {
        return status;
    }
    const matrix_row head = { .name = h->tied_output ? "token_embd.weight" : "output.weight",
                              .outputs = h->vocab_size,
                              .columns = h->embedding_length,
                              .part = forward->parts.vocab,
                              .panels = &forward->head_weight };
    status = want_panels(list, weights, UINT32_MAX, &head, err);
    if (status != FG_OK) {
        return status;
    }
    status = load_output_norm(forward, weights, err);
    for (uint32_t i = 0; i < h->layer_count && status == FG_OK; i++) {
        status = load_layer(forward, weights, i, list, err);
    }
    return status;
}

fg_status fg_forward_load(fg_forward *forward, const fg_engine_options *options, fg_error *err)
{
    size_t count_max = (size_t)forward->hparams.layer_count * LAYER_MATRICES + 1;
    panel_list list = { .sources = fg_mem_array(count_max, sizeof *list.sources),
                        .targets = fg_mem_array(count_max, sizeof *list.targets),
                        .parts = fg_mem_array(count_max, sizeof *list.parts) };
    fg_status status = list.sources == NULL || list.targets == NULL || list.parts == NULL
                           ? fg_fail(err, FG_AGAIN, "out of memory for the list of weights")
                           : load_tensors(forward, options->weights, &list, err);
    if (status == FG_OK) {
        status = forward->is_host ? load_panels(forward, options, &list, err)
                                  : pack_panels(forward, options, &list, err);
    }
    if (status == FG_OK && forward->is_host) {
        fg_weights_prefetch(options->weights,
                            fg_weights_find(options->weights, "token_embd.weight"));
    }
    fg_mem_free(list.parts);
    fg_mem_free(list.targets);
    fg_mem_free(list.sources);
    return status;
}
