#include "common/model/folder.h"

#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/model/hparams.h"
#include "common/model/tokenizer.h"
#include "tests/support/small_folder.h"
#include "tests/support/test.h"

enum { E = SMALL_FOLDER_EMBEDDING, F = SMALL_FOLDER_FFN, D = SMALL_FOLDER_HEAD_DIM };

static fg_weights *open_folder(const small_folder *folder)
{
    fg_weights *weights = NULL;
    fg_error err = { .status = FG_OK };
    cr_assert_eq(fg_folder_open_memory(&folder->files, &weights, &err), FG_OK, "%s", err.text);
    return weights;
}

/* What small_folder puts there. */
static float value_of(const char *name, size_t index)
{
    uint64_t hash = fg_hash64(name, strlen(name), index);
    return fg_bf16_to_f32((uint16_t)(0x3F80 | (hash & 0x7F)));
}

static void check_row(const fg_tensor *tensor, uint64_t row, const char *name, size_t source_row)
{
    uint16_t bits[F];
    fg_tensor_copy_rows(tensor, row, 1, bits);
    for (size_t i = 0; i < tensor->dims[0]; i++) {
        cr_assert_eq(fg_bf16_to_f32(bits[i]), value_of(name, source_row * tensor->dims[0] + i),
                     "%s row %d", tensor->name, (int)row);
    }
}

Test(folder, every_class_becomes_a_model)
{
    for (size_t i = 0; small_folder_classes[i] != NULL; i++) {
        small_folder folder;
        fg_hparams hp;
        fg_error err = { .status = FG_OK };
        small_folder_make(&folder, small_folder_classes[i]);
        fg_weights *weights = open_folder(&folder);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s: %s", small_folder_classes[i],
                     err.text);
        cr_assert(hp.layer_count == 1 && hp.embedding_length == E && hp.head_dim == D &&
                  hp.vocab_size == SMALL_FOLDER_VOCAB && hp.context_length == 256);
        cr_assert_str_eq(hp.name, "small");
        fg_weights_close(weights);
        small_folder_free(&folder);
    }
}

Test(folder, rows_of_rotated_pairs_stand_side_by_side)
{
    small_folder folder;
    small_folder_make(&folder, "LlamaForCausalLM");
    fg_weights *weights = open_folder(&folder);
    const fg_tensor *q = fg_weights_find(weights, "blk.0.attn_q.weight");
    const fg_tensor *v = fg_weights_find(weights, "blk.0.attn_v.weight");
    cr_assert_null(q->data);
    static const size_t order[] = { 0, 2, 1, 3, 4, 6, 5, 7 };
    for (size_t row = 0; row < 8; row++) {
        check_row(q, row, "model.layers.0.self_attn.q_proj.weight", order[row]);
    }
    for (size_t row = 0; row < 4; row++) {
        check_row(v, row, "model.layers.0.self_attn.v_proj.weight", row);
    }
    fg_weights_close(weights);
    small_folder_free(&folder);
    small_folder_make(&folder, "Qwen3ForCausalLM");
    weights = open_folder(&folder);
    q = fg_weights_find(weights, "blk.0.attn_q.weight");
    check_row(q, 1, "model.layers.0.self_attn.q_proj.weight", 1);
    fg_weights_close(weights);
    small_folder_free(&folder);
}

Test(folder, experts_are_one_tensor)
{
    small_folder folder;
    small_folder_make(&folder, "Qwen3MoeForCausalLM");
    fg_weights *weights = open_folder(&folder);
    const fg_tensor *up = fg_weights_find(weights, "blk.0.ffn_up_exps.weight");
    cr_assert(up->dims[0] == E && up->dims[1] == F && up->dims[2] == SMALL_FOLDER_EXPERTS);
    cr_assert_eq(up->size_bytes, (uint64_t)E * F * SMALL_FOLDER_EXPERTS * 2);
    check_row(up, 0, "model.layers.0.mlp.experts.0.up_proj.weight", 0);
    check_row(up, F + 3, "model.layers.0.mlp.experts.1.up_proj.weight", 3);
    check_row(up, 3 * F - 1, "model.layers.0.mlp.experts.2.up_proj.weight", F - 1);
    const fg_tensor *router = fg_weights_find(weights, "blk.0.ffn_gate_inp.weight");
    cr_assert_eq(router->type, FG_F32);
    cr_assert_eq(((const float *)router->data)[9], value_of("model.layers.0.mlp.gate.weight", 9));
    fg_weights_close(weights);
    small_folder_free(&folder);
}

Test(folder, vectors_become_floats_and_gemmas_norms_get_their_1_back)
{
    static const struct {
        const char *class_name;
        float more;
    } rows[] = { { "LlamaForCausalLM", 0.0f }, { "GemmaForCausalLM", 1.0f } };
    for (size_t i = 0; i < 2; i++) {
        small_folder folder;
        small_folder_make(&folder, rows[i].class_name);
        fg_weights *weights = open_folder(&folder);
        const fg_tensor *norm = fg_weights_find(weights, "output_norm.weight");
        cr_assert(norm->type == FG_F32 && norm->size_bytes == E * sizeof(float));
        for (size_t k = 0; k < E; k++) {
            cr_assert_eq(((const float *)norm->data)[k],
                         value_of("model.norm.weight", k) + rows[i].more);
        }
        fg_weights_close(weights);
        small_folder_free(&folder);
    }
}

Test(folder, data_that_is_not_aligned_is_read_all_the_same)
{
    for (size_t shift = 0; shift < 8; shift++) {
        small_folder folder;
        fg_hparams hp;
        small_folder_make(&folder, "LlamaForCausalLM");
        small_folder_shift_weights(&folder, shift);
        fg_weights *weights = open_folder(&folder);
        cr_assert_eq(fg_hparams_read(weights, &hp, NULL), FG_OK);
        const fg_tensor *embedding = fg_weights_find(weights, "token_embd.weight");
        cr_assert_null(embedding->rows);
        cr_assert_eq((uintptr_t)embedding->data % 2, 0);
        check_row(embedding, 5, "model.embed_tokens.weight", 5);
        check_row(fg_weights_find(weights, "blk.0.ffn_down.weight"), 5,
                  "model.layers.0.mlp.down_proj.weight", 5);
        fg_weights_close(weights);
        small_folder_free(&folder);
    }
}

static void check_ids(const fg_weights *weights, const char *text, const uint32_t *want,
                      size_t want_count)
{
    fg_tokenizer *tokenizer = NULL;
    fg_error err = { .status = FG_OK };
    uint32_t ids[32];
    size_t count;
    const fg_encode_options options = { .parse_special = true, .add_bos = true };
    cr_assert_eq(fg_tokenizer_open(weights, &tokenizer, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_tokenizer_encode(tokenizer, text, strlen(text), options, ids, 32, &count, &err),
                 FG_OK);
    cr_assert_eq(count, want_count, "%d ids", (int)count);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(ids[i], want[i], "id %d is %u", (int)i, ids[i]);
    }
    fg_tokenizer_close(tokenizer);
}

Test(folder, the_tokenizer_is_the_folders)
{
    small_folder folder;
    small_folder_make(&folder, "LlamaForCausalLM");
    fg_weights *weights = open_folder(&folder);
    const uint32_t want[] = { SMALL_FOLDER_BEGIN, SMALL_FOLDER_HELL, 'o', ' ',
                              SMALL_FOLDER_TOOL,  SMALL_FOLDER_TURN, '1' };
    check_ids(weights, "hello <tool><turn>1", want, 7);
    fg_tokenizer *tokenizer = NULL;
    cr_assert_eq(fg_tokenizer_open(weights, &tokenizer, NULL), FG_OK);
    cr_assert(fg_tokenizer_is_end(tokenizer, SMALL_FOLDER_END) &&
              fg_tokenizer_is_end(tokenizer, SMALL_FOLDER_TURN) &&
              !fg_tokenizer_is_end(tokenizer, SMALL_FOLDER_BEGIN));
    fg_tokenizer_close(tokenizer);
    const char *text;
    size_t length;
    cr_assert(fg_weights_get_string(weights, "tokenizer.chat_template", &text, &length));
    cr_assert_eq(length, strlen("{{ messages[0]['content'] }}"));
    cr_assert(fg_weights_array_string(weights, "tokenizer.ggml.tokens", 265, &text, &length));
    cr_assert(length == 8 && memcmp(text, "[PAD265]", 8) == 0);
    fg_weights_close(weights);
    small_folder_free(&folder);
}

static void check_behind(const small_folder *folder, uint32_t want, const char *what)
{
    fg_weights *weights = open_folder(folder);
    fg_tokenizer *tokenizer = NULL;
    cr_assert_eq(fg_tokenizer_open(weights, &tokenizer, NULL), FG_OK);
    cr_assert_eq(fg_tokenizer_behind(tokenizer), want, "%s", what);
    /* Prompts are to be continued. */
    const uint32_t ids[] = { SMALL_FOLDER_BEGIN, 'o' };
    fg_tokenizer_close(tokenizer);
    check_ids(weights, "o", ids, 2);
    fg_weights_close(weights);
}

Test(folder, what_comes_behind_a_whole_text)
{
    static const char text[] = "{\"Sequence\":{\"id\":\"A\"}}";
    static const char more[] =
        "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<turn>\"}}";
    small_folder folder;
    small_folder_make(&folder, "LlamaForCausalLM");
    check_behind(&folder, FG_TOKEN_NONE, "nothing");
    small_folder_replace(&folder, &folder.tokenizer_config, "{\"bos",
                         "{\"add_eos_token\":true,\"bos");
    check_behind(&folder, SMALL_FOLDER_END, "EOS");
    small_folder_replace(&folder, &folder.tokenizer, text, more);
    check_behind(&folder, SMALL_FOLDER_TURN, "the template's");
    small_folder_free(&folder);
}

/* What sentence-transformers keep beside a model. */
Test(folder, how_an_embedding_is_made)
{
    static const struct {
        const char *text;
        uint32_t pooling;
    } rows[] = {
        { NULL, FG_POOLING_NONE },
        { "{}", FG_POOLING_NONE },
        { "{\"pooling_mode_lasttoken\":true,\"pooling_mode_mean_tokens\":false}", FG_POOLING_LAST },
        { "{\"pooling_mode_mean_tokens\":true}", FG_POOLING_MEAN },
        { "{\"pooling_mode_cls_token\":true}", FG_POOLING_CLS },
        { "{\"pooling_mode_cls_token\":1}", FG_POOLING_NONE },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        small_folder folder;
        fg_hparams hp;
        small_folder_make(&folder, "Qwen3ForCausalLM");
        folder.files.pooling = (fg_folder_file){ "1_Pooling/config.json", rows[i].text,
                                                 rows[i].text != NULL ? strlen(rows[i].text) : 0 };
        fg_weights *weights = open_folder(&folder);
        cr_assert_eq(fg_hparams_read(weights, &hp, NULL), FG_OK);
        cr_assert_eq(hp.pooling, rows[i].pooling, "row %zu", i);
        fg_weights_close(weights);
        small_folder_free(&folder);
    }
    small_folder folder;
    fg_weights *weights = NULL;
    fg_error err = { .status = FG_OK };
    small_folder_make(&folder, "Qwen3ForCausalLM");
    folder.files.pooling = (fg_folder_file){ "1_Pooling/config.json", "[", 1 };
    cr_assert_eq(fg_folder_open_memory(&folder.files, &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "1_Pooling/config.json"), "%s", err.text);
    small_folder_free(&folder);
}

/* Of a model that was kept without its head. */
Test(folder, names_may_lack_their_beginning)
{
    small_folder folder;
    small_folder_make(&folder, "Qwen3ForCausalLM");
    fg_weights *weights = open_folder(&folder);
    uint64_t count = fg_weights_tensor_count(weights);
    fg_weights_close(weights);
    static const char *const names[] = { "\"model.embed", "\"model.norm", "\"model.layers" };
    static const char *const others[] = { "\"embed", "\"norm", "\"layers" };
    for (size_t i = 0; i < 3; i++) {
        while (memmem(folder.weights.data, folder.weights.size, names[i], strlen(names[i])) !=
               NULL) {
            small_folder_replace(&folder, &folder.weights, names[i], others[i]);
        }
    }
    weights = open_folder(&folder);
    cr_assert_eq(fg_weights_tensor_count(weights), count);
    check_row(fg_weights_find(weights, "blk.0.attn_q.weight"), 1,
              "model.layers.0.self_attn.q_proj.weight", 1);
    fg_weights_close(weights);
    small_folder_free(&folder);
}

Test(folder, merges_of_sentencepiece_become_scores)
{
    small_folder folder;
    small_folder_make(&folder, "LlamaForCausalLM");
    small_folder_make_spm(&folder);
    fg_weights *weights = open_folder(&folder);
    check_ids(weights, "ab ab!", (const uint32_t[]){ 264, 264, '!' + 3 },
              3); /* no BOS is asked for */
    fg_weights_close(weights);
    small_folder_free(&folder);
}

/* With Metaspace, only what begins a text, and does not begin with a space, gets one. */
Test(folder, a_space_before_a_text_is_put_once_or_never)
{
    static const struct {
        const char *scheme, *text;
        uint32_t ids[4];
        size_t count;
    } rows[] = {
        { "first", "ab</s>ab", { 264, 2, 262 }, 3 },
        { "first", " ab", { 264 }, 1 },
        { "first", "</s>ab", { 2, 262 }, 2 },
        { "never", "ab ab", { 262, 264 }, 2 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        small_folder folder;
        char cuts[160];
        small_folder_make(&folder, "LlamaForCausalLM");
        small_folder_make_spm(&folder);
        small_folder_replace(&folder, &folder.tokenizer, "\"normalizer\"", "\"x\"");
        snprintf(cuts, sizeof cuts,
                 "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
                 "\"prepend_scheme\":\"%s\",\"split\":false}",
                 rows[i].scheme);
        small_folder_replace(&folder, &folder.tokenizer, "\"pre_tokenizer\":null", cuts);
        fg_weights *weights = open_folder(&folder);
        check_ids(weights, rows[i].text, rows[i].ids, rows[i].count);
        fg_weights_close(weights);
        small_folder_free(&folder);
    }
}

Test(folder, added_tokens_may_take_white_space_with_them)
{
    small_folder folder;
    small_folder_make(&folder, "LlamaForCausalLM");
    small_folder_replace(&folder, &folder.tokenizer, "{\"id\":261", "{\"rstrip\":true,\"id\":261");
    small_folder_replace(&folder, &folder.tokenizer, "{\"id\":262", "{\"lstrip\":true,\"id\":262");
    fg_weights *weights = open_folder(&folder);
    const uint32_t want[] = {
        SMALL_FOLDER_BEGIN, SMALL_FOLDER_TURN, 'a', ' ', 'b', SMALL_FOLDER_TOOL, ' ',
        SMALL_FOLDER_TURN,  SMALL_FOLDER_TOOL
    };
    check_ids(weights,
              "<turn> \n\xC2\xA0"
              "a b \n <tool> <turn> <tool>",
              want, 9);
    fg_weights_close(weights);
    small_folder_free(&folder);
}

/* A chat template of its own file comes first; of several in a list, the one of that name. */
Test(folder, chat_templates_have_three_places)
{
    small_folder folder;
    const char *text;
    size_t length;
    small_folder_make(&folder, "LlamaForCausalLM");
    folder.files.chat_template.bytes = "{{ 1 }}";
    folder.files.chat_template.size_bytes = 7;
    fg_weights *weights = open_folder(&folder);
    cr_assert(fg_weights_get_string(weights, "tokenizer.chat_template", &text, &length));
    cr_assert(length == 7 && memcmp(text, "{{ 1 }}", 7) == 0);
    fg_weights_close(weights);
    folder.files.chat_template.bytes = NULL;
    small_folder_replace(&folder, &folder.tokenizer_config, "\"{{ messages[0]['content'] }}\"",
                         "[{\"name\":\"tool_use\",\"template\":\"tools\"},"
                         "{\"name\":\"default\",\"template\":\"plain\"}]");
    weights = open_folder(&folder);
    cr_assert(fg_weights_get_string(weights, "tokenizer.chat_template", &text, &length));
    cr_assert(length == 5 && memcmp(text, "plain", 5) == 0);
    cr_assert(fg_weights_get_string(weights, "tokenizer.chat_template.tool_use", &text, &length));
    fg_weights_close(weights);
    small_folder_free(&folder);
}

typedef enum which_text { CONFIG, TOKENIZER, TOKENIZER_CONFIG, GENERATION, WEIGHTS } which_text;

typedef struct refusal {
    const char *class_name;
    which_text which;
    const char *from, *to;
    const char *text; /* of the error; NULL: it is accepted */
} refusal;

#define LLAMA "LlamaForCausalLM"

static const refusal refusals[] = {
    /* config.json */
    { LLAMA, CONFIG, "[\"LlamaForCausalLM\"]", "[\"OPTForCausalLM\"]",
      "OPTForCausalLM is not read" },
    { LLAMA, CONFIG, "[\"LlamaForCausalLM\"]", "[]", "not a list of one name" },
    { LLAMA, CONFIG, "{\"arch", "[{\"arch", "config.json: " },
    { LLAMA, CONFIG, "\"hidden_size\":8", "\"x\":8", "'hidden_size' is missing" },
    { LLAMA, CONFIG, "\"hidden_size\":8", "\"hidden_size\":\"8\"", "not a whole number" },
    { LLAMA, CONFIG, "\"hidden_size\":8", "\"hidden_size\":-8", "not a whole number" },
    { LLAMA, CONFIG, "\"num_hidden_layers\":1", "\"num_hidden_layers\":2",
      "'model.layers.1.input_layernorm.weight' is missing" },
    { LLAMA, CONFIG, "\"num_hidden_layers\":1", "\"num_hidden_layers\":4000000000", "layers of" },
    { LLAMA, CONFIG, "\"num_attention_heads\":2", "\"num_attention_heads\":0",
      "of 0 heads are not supported" },
    { LLAMA, CONFIG, "\"rms_norm_eps\":1e-05", "\"rms_norm_eps\":\"x\"",
      "'rms_norm_eps' is not a" },
    { LLAMA, CONFIG, "\"silu\"", "\"relu\"", "'hidden_act' is not silu" },
    { LLAMA, CONFIG, "\"head_dim\":4", "\"head_dim\":5", "not a matrix of 2 heads of 5 rows" },
    { LLAMA, CONFIG, "\"head_dim\":4", "\"head_dim\":4,\"partial_rotary_factor\":0.5",
      "'partial_rotary_factor' is 0.5" },
    { LLAMA, CONFIG, "\"head_dim\":4",
      "\"head_dim\":4,\"quantization_config\":{\"quant_method\":\"awq\"}", "quantised by awq" },
    { LLAMA, CONFIG, "\"head_dim\":4", "\"head_dim\":4,\"final_logit_softcapping\":null", NULL },
    { LLAMA, CONFIG, "\"tie_word_embeddings\":false", "\"tie_word_embeddings\":true", NULL },
    { LLAMA, CONFIG, "\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"dynamic\"}",
      "rope scaling 'dynamic' is not supported" },
    { LLAMA, CONFIG, "\"rope_scaling\":null", "\"rope_scaling\":7", "is no object" },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0.5}",
      "'factor' is not a number from" },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}", NULL },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":true}", NULL },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"truncate\":false}", "'truncate'" },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2,\"attention_factor\":1.5}",
      "'attention_factor'" },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8,\"rope_theta\":500000}", NULL },
    { LLAMA, CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"rope_type\":\"llama3\",\"low_freq_factor\":4}", "is not above" },
    { LLAMA, CONFIG, "\"rope_scaling\":null", "\"rope_scaling\":{\"type\":\"longrope\"}",
      "longrope is not supported for LlamaForCausalLM" },
    { "Phi3ForCausalLM", CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1,2],\"short_factor\":[1,1]}",
      NULL },
    { "Phi3ForCausalLM", CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1],\"short_factor\":[1,1]}",
      "'long_factor' is not a list of 2" },
    { "Phi3ForCausalLM", CONFIG, "\"rope_scaling\":null",
      "\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1,0],\"short_factor\":[1,1]}",
      "no divisor" },
    { "Qwen3MoeForCausalLM", CONFIG, "\"num_experts\":3", "\"num_experts\":0", "without experts" },
    { "Qwen3MoeForCausalLM", CONFIG, "\"num_experts\":3", "\"num_experts\":4",
      "'model.layers.0.mlp.experts.3.gate_proj.weight' is missing" },
    { "Qwen3MoeForCausalLM", CONFIG, "\"num_experts\":3", "\"num_experts\":4000000000",
      "experts are not supported" },
    { "Qwen3MoeForCausalLM", CONFIG, "\"num_experts\":3",
      "\"num_experts\":3,\"mlp_only_layers\":[0]", "layers without experts" },
    { "Gemma3ForCausalLM", CONFIG, "\"query_pre_attn_scalar\":4", "\"query_pre_attn_scalar\":5",
      "'query_pre_attn_scalar' is 5" },
    { "Gemma3ForCausalLM", CONFIG, "\"sliding_window\":64",
      "\"sliding_window\":64,\"layer_types\":[\"full_attention\"]", NULL },
    { "Gemma3ForCausalLM", CONFIG, "\"sliding_window\":64",
      "\"sliding_window\":64,\"layer_types\":[\"other\"]", "'layer_types' has an order" },
    { "SmolLM3ForCausalLM", CONFIG, "\"rope_scaling\":null", "\"no_rope_layers\":[0]",
      "'no_rope_layers' has an order" },
    { "Qwen2ForCausalLM", CONFIG, "\"rope_scaling\":null", "\"sliding_window\":8", NULL },
    /* tokenizer.json */
    { LLAMA, TOKENIZER, "\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model Unigram" },
    { LLAMA, TOKENIZER, "\"use_regex\":true", "\"use_regex\":false", "pre_tokenizer (ByteLevel)" },
    { LLAMA, TOKENIZER, "\"add_prefix_space\":false", "\"add_prefix_space\":true",
      "pre_tokenizer (ByteLevel)" },
    { LLAMA, TOKENIZER, "{\"type\":\"ByteLevel\"", "{\"type\":\"Whitespace\"",
      "pre_tokenizer (Whitespace)" },
    { LLAMA, TOKENIZER, "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", NULL },
    { LLAMA, TOKENIZER, "\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}",
      "normalizer (Lowercase)" },
    { LLAMA, TOKENIZER, "\"normalizer\":null",
      "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":5}", "normalizer" },
    { LLAMA, TOKENIZER, "\"he\":256", "\"he\":257", "two tokens have the id 257" },
    { LLAMA, TOKENIZER, "\"he\":256", "\"he\":1000", "beyond the embedding's 266 rows" },
    { LLAMA, TOKENIZER, "\"he\":256", "\"he\":-1", "has no id" },
    { LLAMA, TOKENIZER, "\"he\":256", "\"he\":\"a\"", "has no id" },
    { LLAMA, TOKENIZER, "{\"id\":262", "{\"id\":1000", NULL },
    { LLAMA, TOKENIZER, "{\"id\":262", "{\"id\":255", "two tokens have the id 255" },
    { LLAMA, TOKENIZER, "{\"id\":262", "{\"id\":-1", "added token 3" },
    { LLAMA, TOKENIZER, "{\"id\":262", "{\"single_word\":true,\"id\":262", "'single_word'" },
    { LLAMA, TOKENIZER, "\"h e\"", "\"he\"", "merge 0 is not two texts" },
    { LLAMA, TOKENIZER, "\"h e\"", "\"h e e\"", "merge 0 is not two texts" },
    { LLAMA, TOKENIZER, "\"h e\"", "5", "merge 0 is not two texts" },
    { LLAMA, TOKENIZER, "[\"l\",\"l\"]", "[\"l\"]", "merge 1 is not two texts" },
    { LLAMA, TOKENIZER, "[\"l\",\"l\"]", "[\"l \",\"l\"]", "merge 1 has a space" },
    { LLAMA, TOKENIZER, "\"merges\":[", "\"x\":[", "no list of at most" },
    { LLAMA, TOKENIZER, "{\"Sequence\":{\"id\":\"A\"}}",
      "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}},"
      "{\"SpecialToken\":{\"id\":\"</s>\"}}",
      "post_processor does more" },
    { LLAMA, TOKENIZER, "{\"Sequence\":{\"id\":\"A\"}}", "{\"SpecialToken\":{\"id\":\"</s>\"}}",
      "post_processor does more" },
    { LLAMA, TOKENIZER, "{\"Sequence\":{\"id\":\"A\"}}",
      "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}",
      "post_processor does more" },
    { LLAMA, TOKENIZER, "{\"Sequence\":{\"id\":\"A\"}}",
      "{\"Sequence\":{\"id\":\"A\"}},{\"Sequence\":{\"id\":\"B\"}}", "names a token that is none" },
    { LLAMA, TOKENIZER, "{\"Sequence\":{\"id\":\"A\"}}",
      "{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<none>\"}}",
      "names a token that is none" },
    { LLAMA, TOKENIZER, "{\"SpecialToken\":{\"id\":\"<s>\"}}",
      "{\"SpecialToken\":{\"id\":\"<none>\"}}", "names a token that is none" },
    { LLAMA, TOKENIZER, "\"TemplateProcessing\"", "\"BertProcessing\"",
      "post_processor (BertProcessing)" },
    { LLAMA, TOKENIZER, "\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.5", "'dropout'" },
    { LLAMA, TOKENIZER, "\"type\":\"BPE\"", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"",
      "'end_of_word_suffix'" },
    { "spm", TOKENIZER, "\"\\u2581 ab\",", "", "token 264 is made in 1 ways, not 2" },
    { "spm", TOKENIZER, "\"\\u2581 ab\",\"\\u2581a b\"", "\"\\u2581 ab\",\"a b\",\"\\u2581a b\"",
      "merge 3" },
    { "spm", TOKENIZER, "\"Prepend\"", "\"Strip\"", "way to treat spaces" },
    { "spm", TOKENIZER, "\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Digits\"}",
      "way to treat spaces (Digits)" },
    { "spm", TOKENIZER, "\"pre_tokenizer\":null",
      "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"}}", NULL },
    /* what else there is */
    { LLAMA, TOKENIZER_CONFIG, "{\"bos", "[\"bos", "tokenizer_config.json: " },
    { LLAMA, GENERATION, "[260,261]", "[260,1000]", "'eos_token_id' is not a token's id" },
    { LLAMA, GENERATION, "[260,261]", "\"</s>\"", "'eos_token_id' is not a token's id" },
    { LLAMA, GENERATION, "[260,261]", "null", NULL },
    { LLAMA, WEIGHTS, "mlp.down_proj", "mlp.xown_proj", "mlp.down_proj.weight' is missing" },
    { LLAMA, WEIGHTS, "\"lm_head.weight\"", "\"xx_head.weight\"", "'lm_head.weight' is missing" },
    { LLAMA, WEIGHTS, "\"dtype\":\"BF16\"", "\"dtype\":\"I16\" ", "is I16, which is not read" },
    { LLAMA, WEIGHTS, "{\"format\"", "[\"format\"", "model.safetensors: " },
    { LLAMA, WEIGHTS, "[16,8]", "[8,16]", "blk.0.ffn_gate.weight" },
    { LLAMA, WEIGHTS, "\"shape\":[8]", "\"shape\":[2,2,2]", "has 3 dimensions" },
    { "Qwen3MoeForCausalLM", WEIGHTS, "[16,8]", "[8,16]", "is not like that of expert 0" },
    { "Phi3ForCausalLM", WEIGHTS, "self_attn.qkv_proj", "self_attn.qkw_proj", "qkv_proj" },
};

static fg_buf *text_of(small_folder *folder, which_text which)
{
    fg_buf *const texts[] = { &folder->config, &folder->tokenizer, &folder->tokenizer_config,
                              &folder->generation_config, &folder->weights };
    return texts[which];
}

Test(folder, what_is_not_read_is_refused_in_a_line)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const refusal *row = &refusals[i];
        small_folder folder;
        fg_weights *weights = NULL;
        fg_hparams hp;
        fg_error err = { .status = FG_OK };
        bool spm = strcmp(row->class_name, "spm") == 0;
        small_folder_make(&folder, spm ? LLAMA : row->class_name);
        if (spm) {
            small_folder_make_spm(&folder);
        }
        small_folder_replace(&folder, text_of(&folder, row->which), row->from, row->to);
        fg_status status = fg_folder_open_memory(&folder.files, &weights, &err);
        if (status == FG_OK) {
            status = fg_hparams_read(weights, &hp, &err);
        }
        if (row->text == NULL) {
            cr_assert_eq(status, FG_OK, "row %d (%s): %s", (int)i, row->to, err.text);
        } else {
            cr_assert_eq(status, FG_BAD_INPUT, "row %d (%s)", (int)i, row->to);
            cr_assert(strstr(err.text, row->text) != NULL && strchr(err.text, '\n') == NULL,
                      "row %d (%s): %s", (int)i, row->to, err.text);
        }
        fg_weights_close(weights);
        small_folder_free(&folder);
    }
}

/* What would be searched for each token is not without end. */
Test(folder, added_tokens_and_their_lengths_have_limits)
{
    const struct {
        const char *from, *open, *item, *close, *text;
        uint32_t count;
    } rows[] = {
        { "\"added_tokens\":[", "\"added_tokens\":[", "{},", "", "more than 65536 added tokens",
          65537 },
        { "\"he\":256", "\"", "x", "\":256", "token 256 has more than 1024 bytes", 1025 },
        { "\"he\":256", "\"", "x", "\":256", NULL, 1024 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        small_folder folder;
        fg_weights *weights = NULL;
        fg_error err = { .status = FG_OK };
        fg_buf to;
        fg_buf_init(&to, 0);
        fg_buf_puts(&to, rows[i].open);
        for (uint32_t k = 0; k < rows[i].count; k++) {
            fg_buf_puts(&to, rows[i].item);
        }
        fg_buf_puts(&to, rows[i].close);
        small_folder_make(&folder, LLAMA);
        small_folder_replace(&folder, &folder.tokenizer, rows[i].from, to.data);
        fg_status status = fg_folder_open_memory(&folder.files, &weights, &err);
        cr_assert_eq(status, rows[i].text == NULL ? FG_OK : FG_BAD_INPUT, "row %zu: %s", i,
                     err.text);
        cr_assert(rows[i].text == NULL || strstr(err.text, rows[i].text) != NULL, "%s", err.text);
        fg_weights_close(weights);
        small_folder_free(&folder);
        fg_buf_deinit(&to);
    }
}

static bool open_once(void *ctx)
{
    const small_folder *folder = ctx;
    fg_weights *weights = NULL;
    fg_error err;
    fg_status status = fg_folder_open_memory(&folder->files, &weights, &err);
    cr_assert(status == FG_OK || status == FG_AGAIN, "%s", err.text);
    fg_weights_close(weights);
    return status == FG_OK;
}

Test(folder, survives_each_failed_allocation)
{
    static const char *const names[] = { "Qwen3MoeForCausalLM", "spm", "Phi3ForCausalLM" };
    for (size_t i = 0; i < 3; i++) {
        small_folder folder;
        bool spm = strcmp(names[i], "spm") == 0;
        small_folder_make(&folder, spm ? LLAMA : names[i]);
        if (spm) {
            small_folder_make_spm(&folder);
            small_folder_replace(&folder, &folder.config, "\"rope_scaling\":null",
                                 "\"rope_scaling\":{\"rope_type\":\"llama3\"}");
        } else if (i == 2) {
            small_folder_replace(&folder, &folder.config, "\"rope_scaling\":null",
                                 "\"rope_scaling\":{\"type\":\"longrope\",\"long_factor\":[1,2],"
                                 "\"short_factor\":[1,1]}");
        }
        small_folder_shift_weights(&folder, 1);
        cr_assert_gt(fg_fault_each(open_once, &folder), 50);
        small_folder_free(&folder);
    }
}
