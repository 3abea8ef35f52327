#include "tests/support/gguf_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/dtype.h"
#include "common/base/mem.h"

enum { ALIGNMENT = 32 };

/* A list of fields within one of the builder's parts. */
typedef struct field_list {
    fg_gguf_field *items;
    size_t count;
} field_list;

struct fg_gguf_builder {
    fg_buf meta, infos, data;
    uint64_t meta_count, tensor_count;
    uint64_t announced_bytes; /* of tensors that the caller writes, behind `data` */
    field_list meta_fields, info_fields, all_fields;
    fg_rng rng;
};

fg_gguf_builder *fg_gguf_builder_create(void)
{
    fg_gguf_builder *builder = fg_mem_alloc(sizeof *builder);
    FG_ASSERT(builder != NULL, "out of memory");
    fg_buf_init(&builder->meta, 0);
    fg_buf_init(&builder->infos, 0);
    fg_buf_init(&builder->data, 0);
    return builder;
}

void fg_gguf_builder_destroy(fg_gguf_builder *builder)
{
    if (builder == NULL) {
        return;
    }
    fg_buf_deinit(&builder->meta);
    fg_buf_deinit(&builder->infos);
    fg_buf_deinit(&builder->data);
    fg_mem_free(builder->meta_fields.items);
    fg_mem_free(builder->info_fields.items);
    fg_mem_free(builder->all_fields.items);
    fg_mem_free(builder);
}

static void note(field_list *list, const char *what, size_t at, uint32_t size_bytes)
{
    list->items = fg_mem_resize(list->items, list->count + 1, sizeof *list->items);
    FG_ASSERT(list->items != NULL, "out of memory");
    list->items[list->count++] = (fg_gguf_field){ what, at, size_bytes };
}

static void put(fg_buf *part, const void *bytes, size_t size_bytes)
{
    bool added = fg_buf_append(part, bytes, size_bytes);
    FG_ASSERT(added || size_bytes == 0, "out of memory");
}

static void put_u32(fg_buf *part, field_list *list, const char *what, uint32_t value)
{
    note(list, what, part->size, sizeof value);
    put(part, &value, sizeof value);
}

static void put_u64(fg_buf *part, field_list *list, const char *what, uint64_t value)
{
    note(list, what, part->size, sizeof value);
    put(part, &value, sizeof value);
}

static void put_text(fg_buf *part, field_list *list, const char *what, const char *text)
{
    put_u64(part, list, what, strlen(text));
    put(part, text, strlen(text));
}

static void begin_value(fg_gguf_builder *builder, const char *key, uint32_t type)
{
    put_text(&builder->meta, &builder->meta_fields, "key length", key);
    put_u32(&builder->meta, &builder->meta_fields, "metadata type", type);
    builder->meta_count++;
}

void fg_gguf_add_value(fg_gguf_builder *builder, const char *key, uint32_t type, const void *value,
                       size_t size_bytes)
{
    begin_value(builder, key, type);
    if (size_bytes == 4 || size_bytes == 8) {
        note(&builder->meta_fields, "value", builder->meta.size, (uint32_t)size_bytes);
    }
    put(&builder->meta, value, size_bytes);
}

void fg_gguf_add_u32(fg_gguf_builder *builder, const char *key, uint32_t value)
{
    fg_gguf_add_value(builder, key, FG_META_U32, &value, sizeof value);
}

void fg_gguf_add_f32(fg_gguf_builder *builder, const char *key, float value)
{
    fg_gguf_add_value(builder, key, FG_META_F32, &value, sizeof value);
}

void fg_gguf_add_bool(fg_gguf_builder *builder, const char *key, bool value)
{
    unsigned char byte = value;
    fg_gguf_add_value(builder, key, FG_META_BOOL, &byte, sizeof byte);
}

void fg_gguf_add_string(fg_gguf_builder *builder, const char *key, const char *text)
{
    begin_value(builder, key, FG_META_STRING);
    put_text(&builder->meta, &builder->meta_fields, "text length", text);
}

static void begin_array(fg_gguf_builder *builder, const char *key, uint32_t item_type, size_t count)
{
    begin_value(builder, key, FG_META_ARRAY);
    put_u32(&builder->meta, &builder->meta_fields, "item type", item_type);
    put_u64(&builder->meta, &builder->meta_fields, "item count", count);
}

void fg_gguf_add_strings(fg_gguf_builder *builder, const char *key, const char *const *texts,
                         size_t count)
{
    begin_array(builder, key, FG_META_STRING, count);
    for (size_t i = 0; i < count; i++) {
        put_text(&builder->meta, &builder->meta_fields, "item length", texts[i]);
    }
}

void fg_gguf_add_array(fg_gguf_builder *builder, const char *key, fg_meta_type item_type,
                       const void *items, size_t count)
{
    static const unsigned char sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    begin_array(builder, key, item_type, count);
    put(&builder->meta, items, count * sizes[item_type]);
}

/* Uniform in [-1, 1). */
static float random_unit(fg_rng *rng)
{
    return (float)(int32_t)(fg_rng_next(rng) >> 32) * 0x1p-31f;
}

static void put_half(unsigned char *at, float value)
{
    uint16_t half = fg_f16_from_f32(value);
    memcpy(at, &half, sizeof half);
}

/* Scales of a quantised block whose other bits are random already. */
static void set_scales(uint32_t type, unsigned char *block, float scale, fg_rng *rng)
{
    /* Blocks differ in strength by up to two. */
    float s = scale * (0.75f + 0.25f * random_unit(rng));
    switch (type) {
    case FG_Q4_0:
        put_half(block, s / 8);
        break;
    case FG_Q4_1:
        put_half(block, s / 7.5f);
        put_half(block + 2, -s);
        break;
    case FG_Q5_0:
        put_half(block, s / 16);
        break;
    case FG_Q5_1:
        put_half(block, s / 15.5f);
        put_half(block + 2, -s);
        break;
    case FG_Q8_0:
        put_half(block, s / 127);
        break;
    case FG_Q4_K: /* scale 0..63, q 0..15, minimum 0..63 */
        put_half(block, s / (31.5f * 7.5f));
        put_half(block + 2, s / 31.5f);
        break;
    case FG_Q5_K:
        put_half(block, s / (31.5f * 15.5f));
        put_half(block + 2, s / 31.5f);
        break;
    default: /* FG_Q6_K: signed scale, q -32..31 */
        put_half(block + 208, s / (73.0f * 32));
        break;
    }
}

void fg_gguf_fill_random(uint32_t type, void *out, uint64_t count, float scale, fg_rng *rng)
{
    unsigned char *bytes = out;
    uint32_t block_count = fg_dtype_block_count(type), block_bytes = fg_dtype_block_bytes(type);
    FG_ASSERT(block_count > 0 && count % block_count == 0, "no whole blocks");
    for (uint64_t i = 0; i < count; i += block_count, bytes += block_bytes) {
        float value = scale * random_unit(rng);
        if (type == FG_F32) {
            memcpy(bytes, &value, sizeof value);
        } else if (type == FG_F16) {
            put_half(bytes, value);
        } else if (type == FG_BF16) {
            uint16_t brain = (uint16_t)(fg_f32_bits(value) >> 16);
            memcpy(bytes, &brain, sizeof brain);
        } else {
            for (uint32_t b = 0; b < block_bytes; b++) {
                bytes[b] = (unsigned char)fg_rng_next(rng);
            }
            set_scales(type, bytes, scale, rng);
        }
    }
}

static uint64_t aligned(uint64_t size_bytes)
{
    return (size_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Returns the bytes of the tensor's data. */
static size_t put_info(fg_gguf_builder *builder, const char *name, uint32_t type,
                       uint32_t dim_count, const uint64_t *dims, uint64_t offset)
{
    put_text(&builder->infos, &builder->info_fields, "name length", name);
    put_u32(&builder->infos, &builder->info_fields, "dim count", dim_count);
    uint64_t count = 1;
    for (uint32_t d = 0; d < dim_count; d++) {
        put_u64(&builder->infos, &builder->info_fields, "dim", dims[d]);
        count *= dims[d];
    }
    put_u32(&builder->infos, &builder->info_fields, "tensor type", type);
    put_u64(&builder->infos, &builder->info_fields, "tensor offset", offset);
    builder->tensor_count++;
    return count / fg_dtype_block_count(type) * fg_dtype_block_bytes(type);
}

void fg_gguf_add_tensor(fg_gguf_builder *builder, const char *name, uint32_t type,
                        uint32_t dim_count, const uint64_t *dims, const void *data)
{
    static const char zeros[ALIGNMENT];
    FG_ASSERT(builder->announced_bytes == 0, "announced tensors come last");
    put(&builder->data, zeros, aligned(builder->data.size) - builder->data.size);
    size_t size_bytes = put_info(builder, name, type, dim_count, dims, builder->data.size);
    char *at = fg_buf_reserve(&builder->data, size_bytes);
    FG_ASSERT(at != NULL, "out of memory");
    if (data != NULL) {
        memcpy(at, data, size_bytes);
    } else {
        uint64_t count = size_bytes / fg_dtype_block_bytes(type) * fg_dtype_block_count(type);
        fg_gguf_fill_random(type, at, count, 1.0f, &builder->rng);
    }
    builder->data.size += size_bytes;
}

void fg_gguf_announce_tensor(fg_gguf_builder *builder, const char *name, uint32_t type,
                             uint32_t dim_count, const uint64_t *dims)
{
    uint64_t offset = aligned(builder->data.size + builder->announced_bytes);
    uint64_t end = offset + put_info(builder, name, type, dim_count, dims, offset);
    builder->announced_bytes = end - builder->data.size;
}

static void note_part(fg_gguf_builder *builder, const field_list *part, size_t base)
{
    for (size_t i = 0; i < part->count; i++) {
        const fg_gguf_field *field = &part->items[i];
        note(&builder->all_fields, field->what, base + field->at, field->size_bytes);
    }
}

void *fg_gguf_finish(fg_gguf_builder *builder, size_t *size_bytes_out)
{
    fg_buf file;
    fg_buf_init(&file, 0);
    builder->all_fields.count = 0;
    put(&file, "GGUF", 4);
    put_u32(&file, &builder->all_fields, "version", 3);
    put_u64(&file, &builder->all_fields, "tensor count", builder->tensor_count);
    put_u64(&file, &builder->all_fields, "metadata count", builder->meta_count);
    note_part(builder, &builder->meta_fields, file.size);
    put(&file, builder->meta.data, builder->meta.size);
    note_part(builder, &builder->info_fields, file.size);
    put(&file, builder->infos.data, builder->infos.size);
    while (file.size % ALIGNMENT != 0) {
        put(&file, "", 1);
    }
    put(&file, builder->data.data, builder->data.size);
    /* A copy of exactly this size, so that sanitizers see the first byte read beyond it. */
    void *exact = malloc(file.size);
    FG_ASSERT(exact != NULL, "out of memory");
    memcpy(exact, file.data, file.size);
    *size_bytes_out = file.size;
    fg_buf_deinit(&file);
    return exact;
}

const fg_gguf_field *fg_gguf_fields(const fg_gguf_builder *builder, size_t *count_out)
{
    *count_out = builder->all_fields.count;
    return builder->all_fields.items;
}

/* A vocabulary under construction. */
typedef struct vocab {
    char text[512][24];
    float scores[512];
    int32_t types[512];
    uint32_t count;
} vocab;

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_BYTE = 6 };

static void add_token(vocab *v, const char *text, int32_t type)
{
    snprintf(v->text[v->count], sizeof v->text[0], "%s", text);
    v->types[v->count] = type;
    v->scores[v->count] = type == TYPE_NORMAL ? -(float)v->count : 0.0f;
    v->count++;
}

/* Pairs that merge, in order; "_" stands for the space's own character. */
static const char *const pairs[][2] = {
    { "_", "t" },  { "h", "e" }, { "i", "n" }, { "r", "e" }, { "_t", "he" }, { "_", "a" },
    { "o", "n" },  { "e", "r" }, { "_", "s" }, { "n", "d" }, { "_a", "nd" }, { "o", "u" },
    { "e", "s" },  { "_", "w" }, { "a", "t" }, { "i", "t" }, { "_", "b" },   { "l", "l" },
    { "in", "g" }, { "_", "o" }, { "e", "n" }, { "_", "c" }, { "i", "s" },   { "_", "h" },
    { "o", "r" },  { "e", "d" }, { "_", "m" }, { "a", "r" }, { "_o", "f" },  { "_", "p" },
};

enum { PAIR_COUNT = sizeof pairs / sizeof pairs[0] };

/* Copies `text` with "_" replaced by `space`. */
static void spell(const char *text, const char *space, char *out, size_t capacity)
{
    snprintf(out, capacity, "%s%s", text[0] == '_' ? space : "", text[0] == '_' ? text + 1 : text);
}

static void add_pair_tokens(vocab *v, const char *space)
{
    for (size_t i = 0; i < PAIR_COUNT; i++) {
        char left[12], right[12], joined[24];
        spell(pairs[i][0], space, left, sizeof left);
        spell(pairs[i][1], space, right, sizeof right);
        snprintf(joined, sizeof joined, "%s%s", left, right);
        add_token(v, joined, TYPE_NORMAL);
    }
}

static void put_vocab(fg_gguf_builder *builder, const vocab *v, const char *model)
{
    const char *texts[512];
    for (uint32_t i = 0; i < v->count; i++) {
        texts[i] = v->text[i];
    }
    fg_gguf_add_string(builder, "tokenizer.ggml.model", model);
    fg_gguf_add_strings(builder, "tokenizer.ggml.tokens", texts, v->count);
    fg_gguf_add_array(builder, "tokenizer.ggml.token_type", FG_META_I32, v->types, v->count);
}

/* Bytes that are shown as themselves by GPT-2's byte alphabet; the others get U+0100 and up. */
static bool is_shown(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

static uint32_t add_gpt2_vocab(fg_gguf_builder *builder)
{
    vocab v = { .count = 0 };
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t code = is_shown(byte) ? byte : next++;
        char text[3] = { (char)code, 0, 0 };
        if (code >= 0x80) {
            text[0] = (char)(0xC0 | code >> 6);
            text[1] = (char)(0x80 | (code & 0x3F));
        }
        add_token(&v, text, TYPE_NORMAL);
    }
    add_token(&v, "<|endoftext|>", TYPE_CONTROL);
    add_token(&v, "<|im_start|>", TYPE_CONTROL);
    add_token(&v, "<|im_end|>", TYPE_CONTROL);
    add_pair_tokens(&v, "\xC4\xA0");
    put_vocab(builder, &v, "gpt2");
    char merges[PAIR_COUNT][32];
    const char *merge_texts[PAIR_COUNT];
    for (size_t i = 0; i < PAIR_COUNT; i++) {
        char left[12], right[12];
        spell(pairs[i][0], "\xC4\xA0", left, sizeof left);
        spell(pairs[i][1], "\xC4\xA0", right, sizeof right);
        snprintf(merges[i], sizeof merges[i], "%s %s", left, right);
        merge_texts[i] = merges[i];
    }
    fg_gguf_add_string(builder, "tokenizer.ggml.pre", "smollm");
    fg_gguf_add_strings(builder, "tokenizer.ggml.merges", merge_texts, PAIR_COUNT);
    fg_gguf_add_u32(builder, "tokenizer.ggml.bos_token_id", 257);
    fg_gguf_add_u32(builder, "tokenizer.ggml.eos_token_id", 258);
    fg_gguf_add_bool(builder, "tokenizer.ggml.add_bos_token", false);
    return v.count;
}

static uint32_t add_spm_vocab(fg_gguf_builder *builder)
{
    vocab v = { .count = 0 };
    add_token(&v, "<unk>", TYPE_UNKNOWN);
    add_token(&v, "<s>", TYPE_CONTROL);
    add_token(&v, "</s>", TYPE_CONTROL);
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        add_token(&v, text, TYPE_BYTE);
    }
    add_token(&v, "\xE2\x96\x81", TYPE_NORMAL);
    for (char letter = 'a'; letter <= 'z'; letter++) {
        add_token(&v, (char[2]){ letter, 0 }, TYPE_NORMAL);
    }
    add_pair_tokens(&v, "\xE2\x96\x81");
    put_vocab(builder, &v, "llama");
    fg_gguf_add_array(builder, "tokenizer.ggml.scores", FG_META_F32, v.scores, v.count);
    fg_gguf_add_u32(builder, "tokenizer.ggml.bos_token_id", 1);
    fg_gguf_add_u32(builder, "tokenizer.ggml.eos_token_id", 2);
    fg_gguf_add_u32(builder, "tokenizer.ggml.unknown_token_id", 0);
    return v.count;
}

/* `experts` matrices in one tensor; 0: one. */
static void add_matrices(fg_gguf_builder *builder, const char *name, uint32_t type,
                         uint64_t columns, uint64_t rows, uint64_t experts)
{
    uint64_t dims[3] = { columns, rows, experts };
    uint64_t count = columns * rows * (experts > 0 ? experts : 1);
    size_t size_bytes = count / fg_dtype_block_count(type) * fg_dtype_block_bytes(type);
    void *data = fg_mem_alloc(size_bytes);
    FG_ASSERT(data != NULL, "out of memory");
    /* About 1/sqrt(columns): activations keep their size from layer to layer. */
    float scale = 1.7f;
    for (uint64_t c = 1; c * c < columns; c++) {
        scale = 1.7f / (float)(c + 1);
    }
    fg_gguf_fill_random(type, data, count, scale, &builder->rng);
    fg_gguf_add_tensor(builder, name, type, experts > 0 ? 3 : 2, dims, data);
    fg_mem_free(data);
}

static void add_matrix(fg_gguf_builder *builder, const char *name, uint32_t type, uint64_t columns,
                       uint64_t rows)
{
    add_matrices(builder, name, type, columns, rows, 0);
}

static void add_vector(fg_gguf_builder *builder, const char *name, uint64_t count, float low,
                       float high)
{
    float *data = fg_mem_array(count, sizeof *data);
    FG_ASSERT(data != NULL, "out of memory");
    for (uint64_t i = 0; i < count; i++) {
        data[i] = low + (high - low) * (0.5f + 0.5f * random_unit(&builder->rng));
    }
    fg_gguf_add_tensor(builder, name, FG_F32, 1, &count, data);
    fg_mem_free(data);
}

static const struct {
    const char *name;
    bool biases, head_norms, fused, scales;
    uint32_t experts, used;
    bool shared;
} architectures[] = {
    [FG_TINY_LLAMA] = { .name = "llama" },
    [FG_TINY_QWEN2] = { .name = "qwen2", .biases = true },
    [FG_TINY_QWEN3] = { .name = "qwen3", .head_norms = true },
    [FG_TINY_PHI3] = { .name = "phi3", .fused = true },
    [FG_TINY_GRANITE] = { .name = "granite", .scales = true },
    [FG_TINY_GEMMA3] = { .name = "gemma3", .head_norms = true },
    [FG_TINY_QWEN3MOE] = { .name = "qwen3moe", .head_norms = true, .experts = 8, .used = 3 },
    [FG_TINY_MIXTRAL] = { .name = "llama", .experts = 4, .used = 2 },
    [FG_TINY_GRANITEMOE] = { .name = "granitemoe", .scales = true, .experts = 8, .used = 3 },
    [FG_TINY_QWEN2MOE] = { .name = "qwen2moe",
                           .biases = true,
                           .experts = 6,
                           .used = 2,
                           .shared = true },
};

static void fill_defaults(fg_tiny_llama *o)
{
    bool is_k = fg_dtype_block_count(o->weight_type) == 256;
    o->layer_count = o->layer_count != 0 ? o->layer_count : 2;
    o->head_count = o->head_count != 0 ? o->head_count : 4;
    o->kv_head_count = o->kv_head_count != 0 ? o->kv_head_count : 2;
    o->embedding_length = o->embedding_length != 0 ? o->embedding_length : is_k ? 256 : 64;
    o->head_dim = o->head_dim != 0 ? o->head_dim : is_k ? 64 : 16;
    o->ffn_length = o->ffn_length != 0 ? o->ffn_length : is_k ? 256 : 128;
    o->context_length = o->context_length != 0 ? o->context_length : 512;
}

/* Of the expert for all rows; 0: there is none. Whole blocks of K types. */
static uint32_t shared_length(const fg_tiny_llama *o)
{
    uint32_t block = fg_dtype_block_count(o->weight_type);
    uint32_t half = o->ffn_length / 2;
    return architectures[o->arch].shared ? 2 * o->ffn_length + (half % block == 0 ? half : block)
                                         : 0;
}

static uint32_t type_of(const fg_tiny_llama *o, const char *matrix)
{
    static const char *const mixed[] = { "attn_k", "attn_v", "ffn_up", "ffn_up_exps",
                                         "ffn_gate_shexp" };
    for (size_t i = 0; i < sizeof mixed / sizeof mixed[0]; i++) {
        if (o->mixed_type != 0 && strcmp(matrix, mixed[i]) == 0) {
            return o->mixed_type;
        }
    }
    return o->weight_type;
}

static void add_layer(fg_gguf_builder *builder, const fg_tiny_llama *o, uint32_t layer)
{
    uint32_t embed = o->embedding_length, ffn = o->ffn_length;
    uint32_t q = o->head_count * o->head_dim, kv = o->kv_head_count * o->head_dim;
    bool fused = architectures[o->arch].fused;
    uint32_t experts = architectures[o->arch].experts, shared = shared_length(o);
    uint32_t q_bias = architectures[o->arch].biases ? q : 0,
             kv_bias = architectures[o->arch].biases ? kv : 0,
             norm = architectures[o->arch].head_norms ? o->head_dim : 0,
             post_norm = o->arch == FG_TINY_GEMMA3 ? embed : 0;
    const struct {
        const char *name;
        uint32_t columns, rows; /* rows 0: not in this architecture */
        uint32_t experts;
    } matrices[] = {
        { "attn_q", embed, fused ? 0 : q, 0 },
        { "attn_k", embed, fused ? 0 : kv, 0 },
        { "attn_v", embed, fused ? 0 : kv, 0 },
        { "attn_qkv", embed, fused ? q + 2 * kv : 0, 0 },
        { "attn_output", q, embed, 0 },
        { "ffn_gate", embed, fused || experts > 0 ? 0 : ffn, 0 },
        { "ffn_up", embed,
          experts > 0 ? 0
          : fused     ? 2 * ffn
                      : ffn,
          0 },
        { "ffn_down", ffn, experts > 0 ? 0 : embed, 0 },
        { "ffn_gate_exps", embed, experts > 0 ? ffn : 0, experts },
        { "ffn_up_exps", embed, experts > 0 ? ffn : 0, experts },
        { "ffn_down_exps", ffn, experts > 0 ? embed : 0, experts },
        { "ffn_gate_shexp", embed, shared, 0 },
        { "ffn_up_shexp", embed, shared, 0 },
        { "ffn_down_shexp", shared, shared > 0 ? embed : 0, 0 },
    };
    const struct {
        const char *name;
        uint32_t count; /* 0: not in this architecture */
        float low, high;
    } vectors[] = {
        { "attn_norm.weight", embed, 0.9f, 1.1f },
        { "ffn_norm.weight", embed, 0.9f, 1.1f },
        { "attn_q.bias", q_bias, -1.0f, 1.0f },
        { "attn_k.bias", kv_bias, -4.0f, 4.0f },
        { "attn_v.bias", kv_bias, -0.5f, 0.5f },
        { "attn_q_norm.weight", norm, 0.5f, 2.0f },
        { "attn_k_norm.weight", norm, 0.5f, 2.0f },
        { "post_attention_norm.weight", post_norm, 0.2f, 1.0f },
        { "post_ffw_norm.weight", post_norm, 0.2f, 1.0f },
        { "ffn_gate_inp_shexp.weight", shared > 0 ? embed : 0, -0.25f, 0.25f },
    };
    char name[64];
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        if (vectors[i].count > 0) {
            snprintf(name, sizeof name, "blk.%u.%s", layer, vectors[i].name);
            add_vector(builder, name, vectors[i].count, vectors[i].low, vectors[i].high);
        }
    }
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        if (matrices[i].rows > 0) {
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, matrices[i].name);
            add_matrices(builder, name, type_of(o, matrices[i].name), matrices[i].columns,
                         matrices[i].rows, matrices[i].experts);
        }
    }
    if (experts > 0) {
        snprintf(name, sizeof name, "blk.%u.ffn_gate_inp.weight", layer);
        add_matrix(builder, name, FG_F32, embed, experts);
    }
}

/* The numbers, under the architecture's own keys. */
static void add_numbers(fg_gguf_builder *builder, const fg_tiny_llama *o)
{
    const char *arch = architectures[o->arch].name;
    uint32_t experts = architectures[o->arch].experts;
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {
        { "block_count", o->layer_count },
        { "context_length", o->context_length },
        { "embedding_length", o->embedding_length },
        { "feed_forward_length", o->ffn_length },
        { "attention.head_count", o->head_count },
        { "attention.head_count_kv", o->kv_head_count },
        { "attention.key_length", o->head_dim },
        { "attention.value_length", o->head_dim },
        { "rope.dimension_count", o->head_dim },
        { "expert_count", experts },
        { "expert_used_count", architectures[o->arch].used },
        { "expert_feed_forward_length", experts > 0 ? o->ffn_length : 0 },
        { "expert_shared_feed_forward_length", shared_length(o) },
    };
    char text[64];
    snprintf(text, sizeof text, "tiny random %s", arch);
    fg_gguf_add_string(builder, "general.architecture", arch);
    fg_gguf_add_string(builder, "general.name", text);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(text, sizeof text, "%s.%s", arch, numbers[i].name);
        if (numbers[i].value > 0) {
            fg_gguf_add_u32(builder, text, numbers[i].value);
        }
    }
    snprintf(text, sizeof text, "%s.attention.layer_norm_rms_epsilon", arch);
    fg_gguf_add_f32(builder, text, 1e-5f);
    snprintf(text, sizeof text, "%s.rope.freq_base", arch);
    fg_gguf_add_f32(builder, text, 10000.0f);
    if (architectures[o->arch].scales) {
        static const struct {
            const char *name;
            float value;
        } scales[] = { { "embedding_scale", 12.0f },
                       { "residual_scale", 0.22f },
                       { "attention.scale", 0.125f },
                       { "logit_scale", 8.0f } };
        for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
            snprintf(text, sizeof text, "%s.%s", arch, scales[i].name);
            fg_gguf_add_f32(builder, text, scales[i].value);
        }
    } else if (o->arch == FG_TINY_PHI3) {
        fg_gguf_add_u32(builder, "phi3.rope.scaling.original_context_length", 64);
        fg_gguf_add_f32(builder, "phi3.rope.scaling.attn_factor", 1.25f);
    } else if (o->arch == FG_TINY_GEMMA3) {
        fg_gguf_add_u32(builder, "gemma3.attention.sliding_window", 24);
        fg_gguf_add_u32(builder, "gemma3.attention.sliding_window_pattern", 2);
        fg_gguf_add_f32(builder, "gemma3.rope.freq_base_swa", 100.0f);
    }
}

void fg_gguf_add_tiny_llama(fg_gguf_builder *builder, const fg_tiny_llama *options)
{
    fg_tiny_llama o = *options;
    fill_defaults(&o);
    builder->rng.state = o.seed;
    add_numbers(builder, &o);
    if (o.chat_template != NULL) {
        fg_gguf_add_string(builder, "tokenizer.chat_template", o.chat_template);
    }
    uint32_t vocab_size = o.vocab == FG_TINY_MANY ? 5000 : 8;
    if (o.vocab != FG_TINY_BARE && o.vocab != FG_TINY_MANY) {
        vocab_size = o.vocab == FG_TINY_GPT2 ? add_gpt2_vocab(builder) : add_spm_vocab(builder);
    }
    add_matrix(builder, "token_embd.weight", o.weight_type, o.embedding_length, vocab_size);
    add_vector(builder, "output_norm.weight", o.embedding_length, 0.9f, 1.1f);
    if (o.separate_output) {
        add_matrix(builder, "output.weight", o.weight_type, o.embedding_length, vocab_size);
    }
    if (o.rope_freqs) {
        add_vector(builder, "rope_freqs.weight", o.head_dim / 2, 1.0f, 8.0f);
    }
    if (o.arch == FG_TINY_PHI3) {
        add_vector(builder, "rope_factors_long.weight", o.head_dim / 2, 1.0f, 8.0f);
        add_vector(builder, "rope_factors_short.weight", o.head_dim / 2, 1.0f, 1.5f);
    }
    for (uint32_t layer = 0; layer < o.layer_count; layer++) {
        add_layer(builder, &o, layer);
    }
}

void *fg_gguf_build_tiny_llama(const fg_tiny_llama *options, size_t *size_bytes_out)
{
    fg_gguf_builder *builder = fg_gguf_builder_create();
    fg_gguf_add_tiny_llama(builder, options);
    void *bytes = fg_gguf_finish(builder, size_bytes_out);
    fg_gguf_builder_destroy(builder);
    return bytes;
}
