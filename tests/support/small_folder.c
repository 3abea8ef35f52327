#include "tests/support/small_folder.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"

enum { E = SMALL_FOLDER_EMBEDDING, F = SMALL_FOLDER_FFN, D = SMALL_FOLDER_HEAD_DIM };
enum { Q = SMALL_FOLDER_HEADS * D, KV = SMALL_FOLDER_KV_HEADS * D };

const char *const small_folder_classes[] = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "SmolLM3ForCausalLM",
    "GraniteForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "Phi3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma3ForCausalLM",
    NULL,
};

/* ---- weights ---- */

typedef struct writing {
    fg_buf head, data;
} writing;

/* A tensor of BF16 numbers between 1 and 2 that its name decides; rows 0: a vector. */
static void put(writing *w, const char *name, uint32_t rows, uint32_t columns)
{
    size_t begin = w->data.size, count = (size_t)(rows == 0 ? 1 : rows) * columns;
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = fg_hash64(name, strlen(name), i);
        const uint16_t bits = (uint16_t)(0x3F80 | (hash & 0x7F));
        fg_buf_append(&w->data, &bits, sizeof bits);
    }
    fg_buf_printf(&w->head, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[", w->head.size > 1 ? "," : "",
                  name);
    if (rows > 0) {
        fg_buf_printf(&w->head, "%u,", rows);
    }
    fg_buf_printf(&w->head, "%u],\"data_offsets\":[%zu,%zu]}", columns, begin, w->data.size);
}

static void put_layer(writing *w, const char *part, uint32_t rows, uint32_t columns)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.0.%s", part);
    put(w, name, rows, columns);
}

static void put_experts(writing *w, bool mixtral)
{
    static const char *const qwen[] = { "gate_proj", "up_proj", "down_proj" };
    static const char *const mistral[] = { "w1", "w3", "w2" };
    for (uint32_t i = 0; i < SMALL_FOLDER_EXPERTS; i++) {
        for (uint32_t k = 0; k < 3; k++) {
            char part[64];
            snprintf(part, sizeof part, "%s.experts.%u.%s.weight",
                     mixtral ? "block_sparse_moe" : "mlp", i, mixtral ? mistral[k] : qwen[k]);
            put_layer(w, part, k < 2 ? F : E, k < 2 ? E : F);
        }
    }
    put_layer(w, mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight", SMALL_FOLDER_EXPERTS,
              E);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static void put_feed_forward(writing *w, const char *class_name)
{
    if (begins(class_name, "Mixtral") || strstr(class_name, "Moe") != NULL) {
        put_experts(w, begins(class_name, "Mixtral"));
    } else if (begins(class_name, "Phi3")) {
        put_layer(w, "mlp.gate_up_proj.weight", 2 * F, E);
        put_layer(w, "mlp.down_proj.weight", E, F);
    } else {
        put_layer(w, "mlp.gate_proj.weight", F, E);
        put_layer(w, "mlp.up_proj.weight", F, E);
        put_layer(w, "mlp.down_proj.weight", E, F);
    }
    if (begins(class_name, "Qwen2Moe")) {
        put_layer(w, "mlp.shared_expert.gate_proj.weight", F, E);
        put_layer(w, "mlp.shared_expert.up_proj.weight", F, E);
        put_layer(w, "mlp.shared_expert.down_proj.weight", E, F);
        put_layer(w, "mlp.shared_expert_gate.weight", 1, E);
    }
}

static void put_attention(writing *w, const char *class_name)
{
    if (begins(class_name, "Phi3")) {
        put_layer(w, "self_attn.qkv_proj.weight", Q + 2 * KV, E);
    } else {
        put_layer(w, "self_attn.q_proj.weight", Q, E);
        put_layer(w, "self_attn.k_proj.weight", KV, E);
        put_layer(w, "self_attn.v_proj.weight", KV, E);
    }
    put_layer(w, "self_attn.o_proj.weight", E, Q);
    if (begins(class_name, "Qwen2")) {
        put_layer(w, "self_attn.q_proj.bias", 0, Q);
        put_layer(w, "self_attn.k_proj.bias", 0, KV);
        put_layer(w, "self_attn.v_proj.bias", 0, KV);
    }
    if (begins(class_name, "Qwen3") || begins(class_name, "Gemma3")) {
        put_layer(w, "self_attn.q_norm.weight", 0, D);
        put_layer(w, "self_attn.k_norm.weight", 0, D);
    }
}

static void write_weights(const char *class_name, fg_buf *out)
{
    writing w;
    fg_buf_init(&w.head, 0);
    fg_buf_init(&w.data, 0);
    fg_buf_putc(&w.head, '{');
    put(&w, "model.embed_tokens.weight", SMALL_FOLDER_VOCAB, E);
    put(&w, "model.norm.weight", 0, E);
    put_layer(&w, "input_layernorm.weight", 0, E);
    put_layer(&w, "post_attention_layernorm.weight", 0, E);
    if (begins(class_name, "Gemma3")) {
        put_layer(&w, "pre_feedforward_layernorm.weight", 0, E);
        put_layer(&w, "post_feedforward_layernorm.weight", 0, E);
    }
    put_attention(&w, class_name);
    put_feed_forward(&w, class_name);
    put(&w, "lm_head.weight", SMALL_FOLDER_VOCAB, E);
    fg_buf_puts(&w.head, ",\"__metadata__\":{\"format\":\"pt\"}}");
    while (w.head.size % 8 != 0) {
        fg_buf_putc(&w.head, ' ');
    }
    const uint64_t length = w.head.size;
    fg_buf_append(out, &length, sizeof length);
    fg_buf_append(out, w.head.data, w.head.size);
    fg_buf_append(out, w.data.data, w.data.size);
    fg_buf_deinit(&w.head);
    fg_buf_deinit(&w.data);
}

/* ---- texts ---- */

static void write_config(const char *class_name, fg_buf *out)
{
    bool gemma = begins(class_name, "Gemma");
    fg_buf_printf(out,
                  "{\"architectures\":[\"%s\"],\"hidden_size\":%d,\"intermediate_size\":%d,"
                  "\"num_hidden_layers\":1,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
                  "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
                  "\"rope_scaling\":null,\"tie_word_embeddings\":false,\"eos_token_id\":%d",
                  class_name, E, F, SMALL_FOLDER_HEADS, SMALL_FOLDER_KV_HEADS, SMALL_FOLDER_END);
    fg_buf_printf(out, ",\"hidden_act\":\"%s\",\"head_dim\":%d",
                  gemma ? "gelu_pytorch_tanh" : "silu", D);
    if (begins(class_name, "Gemma3")) {
        fg_buf_printf(out, ",\"query_pre_attn_scalar\":%d,\"sliding_window\":64", D);
    }
    if (begins(class_name, "Granite")) {
        fg_buf_puts(out, ",\"embedding_multiplier\":12,\"residual_multiplier\":0.25,"
                         "\"attention_multiplier\":0.5,\"logits_scaling\":8");
    }
    if (begins(class_name, "Mixtral")) {
        fg_buf_printf(out, ",\"num_local_experts\":%d,\"num_experts_per_tok\":2",
                      SMALL_FOLDER_EXPERTS);
    }
    if (strstr(class_name, "Moe") != NULL) {
        fg_buf_printf(out,
                      ",\"num_experts\":%d,\"num_experts_per_tok\":2,\"moe_intermediate_size\":%d,"
                      "\"shared_expert_intermediate_size\":%d,\"norm_topk_prob\":true",
                      SMALL_FOLDER_EXPERTS, F, F);
    }
    fg_buf_putc(out, '}');
}

/* The character of byte-level BPE's alphabet that stands for a byte, in JSON. */
static void put_byte(fg_buf *out, unsigned byte, unsigned *moved)
{
    bool shown = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    unsigned code = shown ? byte : 0x100 + (*moved)++;
    fg_buf_printf(out, "\"\\u%04x\":%u,", code, byte);
}

static void write_tokenizer(fg_buf *out)
{
    static const struct {
        int id;
        const char *text;
        bool special;
    } added[] = { { SMALL_FOLDER_BEGIN, "<s>", true },
                  { SMALL_FOLDER_END, "</s>", true },
                  { SMALL_FOLDER_TURN, "<turn>", true },
                  { SMALL_FOLDER_TOOL, "<tool>", false } };
    fg_buf_puts(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (size_t i = 0; i < sizeof added / sizeof added[0]; i++) {
        fg_buf_printf(out, "%s{\"id\":%d,\"content\":\"%s\",\"special\":%s}", i > 0 ? "," : "",
                      added[i].id, added[i].text, added[i].special ? "true" : "false");
    }
    fg_buf_puts(out,
                "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                "\"add_prefix_space\":false,\"use_regex\":true},\"post_processor\":{"
                "\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}"
                "},{\"Sequence\":{\"id\":\"A\"}}]},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    unsigned moved = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        put_byte(out, byte, &moved);
    }
    fg_buf_printf(out,
                  "\"he\":%d,\"ll\":%d,\"hell\":%d},\"merges\":[\"h e\",[\"l\",\"l\"],\"he ll\"]}}",
                  SMALL_FOLDER_HE, SMALL_FOLDER_LL, SMALL_FOLDER_HELL);
}

void small_folder_make_spm(small_folder *folder)
{
    fg_buf *out = &folder->tokenizer;
    fg_buf_clear(out);
    fg_buf_puts(out, "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
                     "{\"id\":1,\"content\":\"<s>\",\"special\":true},"
                     "{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
                     "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                     "{\"type\":\"Prepend\",\"prepend\":\"\\u2581\"},{\"type\":\"Replace\","
                     "\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]},"
                     "\"pre_tokenizer\":null,\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
                     "\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,");
    for (unsigned byte = 0; byte < 256; byte++) {
        fg_buf_printf(out, "\"<0x%02X>\":%u,", byte, byte + 3);
    }
    fg_buf_puts(out, "\"\\u2581\":259,\"a\":260,\"b\":261,\"ab\":262,\"\\u2581a\":263,"
                     "\"\\u2581ab\":264},\"merges\":[\"a b\",\"\\u2581 a\",\"\\u2581 ab\","
                     "\"\\u2581a b\"]}}");
    folder->files.tokenizer.bytes = out->data;
    folder->files.tokenizer.size_bytes = out->size;
    small_folder_replace(folder, &folder->config, "\"eos_token_id\":260", "\"eos_token_id\":2");
    small_folder_replace(folder, &folder->generation_config, "[260,261]", "[2]");
}

/* ---- together ---- */

static void refresh(small_folder *f)
{
    const struct {
        const char *name;
        fg_buf *text;
        fg_folder_file *file;
    } rows[] = { { "config.json", &f->config, &f->files.config },
                 { "tokenizer.json", &f->tokenizer, &f->files.tokenizer },
                 { "tokenizer_config.json", &f->tokenizer_config, &f->files.tokenizer_config },
                 { "generation_config.json", &f->generation_config, &f->files.generation_config },
                 { "model.safetensors", &f->weights, &f->weight_file } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        FG_ASSERT(!rows[i].text->failed, "a test has memory");
        *rows[i].file = (fg_folder_file){ .name = rows[i].name,
                                          .bytes = rows[i].text->data,
                                          .size_bytes = rows[i].text->size };
    }
}

void small_folder_make(small_folder *folder, const char *class_name)
{
    *folder = (small_folder){ .files = { .name = "small",
                                         .index.name = "model.safetensors.index.json",
                                         .chat_template.name = "chat_template.jinja",
                                         .pooling.name = "1_Pooling/config.json",
                                         .weight_count = 1 } };
    fg_buf *const texts[] = { &folder->config, &folder->tokenizer, &folder->tokenizer_config,
                              &folder->generation_config, &folder->weights };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fg_buf_init(texts[i], 0);
    }
    write_config(class_name, &folder->config);
    write_tokenizer(&folder->tokenizer);
    fg_buf_puts(&folder->tokenizer_config,
                "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                "\"chat_template\":\"{{ messages[0]['content'] }}\"}");
    fg_buf_printf(&folder->generation_config, "{\"eos_token_id\":[%d,%d]}", SMALL_FOLDER_END,
                  SMALL_FOLDER_TURN);
    write_weights(class_name, &folder->weights);
    refresh(folder);
    folder->files.weights = &folder->weight_file;
}

void small_folder_free(small_folder *folder)
{
    fg_buf_deinit(&folder->config);
    fg_buf_deinit(&folder->tokenizer);
    fg_buf_deinit(&folder->tokenizer_config);
    fg_buf_deinit(&folder->generation_config);
    fg_buf_deinit(&folder->weights);
}

void small_folder_replace(small_folder *folder, fg_buf *text, const char *from, const char *to)
{
    fg_buf changed;
    const char *at = memmem(text->data, text->size, from, strlen(from));
    FG_ASSERT(at != NULL, "%s is not there", from);
    fg_buf_init(&changed, 0);
    fg_buf_append(&changed, text->data, (size_t)(at - text->data));
    fg_buf_puts(&changed, to);
    at += strlen(from);
    fg_buf_append(&changed, at, (size_t)(text->data + text->size - at));
    if (text == &folder->weights) {
        uint64_t length;
        memcpy(&length, changed.data, sizeof length);
        length += strlen(to) - strlen(from);
        memcpy(changed.data, &length, sizeof length);
    }
    fg_buf_deinit(text);
    *text = changed;
    refresh(folder);
}

void small_folder_shift_weights(small_folder *folder, size_t bytes)
{
    fg_buf shifted;
    uint64_t length;
    const char *data = folder->weights.data;
    memcpy(&length, data, sizeof length);
    const uint64_t longer = length + bytes;
    fg_buf_init(&shifted, 0);
    fg_buf_append(&shifted, &longer, sizeof longer);
    fg_buf_append(&shifted, data + 8, (size_t)length);
    for (size_t i = 0; i < bytes; i++) {
        fg_buf_putc(&shifted, ' ');
    }
    fg_buf_append(&shifted, data + 8 + length, folder->weights.size - 8 - (size_t)length);
    fg_buf_deinit(&folder->weights);
    folder->weights = shifted;
    refresh(folder);
}
