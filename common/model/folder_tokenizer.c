#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/model/folder_internal.h"
#include "common/model/vocab.h"

enum { TOKENS_MAX = 1 << 22, TOKEN_BYTES_MAX = 1 << 10, ENDS_MAX = 64, NO_ID = UINT32_MAX };
/* Added tokens, and how many of them may be left out. */
enum { ADDED_MAX = 1 << 16, LEFT_OUT_MAX = 1 << 10 };

/* Reading under way. */
typedef struct reading {
    const fg_folder_texts *texts;
    const fg_json_node *model; /* of tokenizer.json */
    fg_folder_cuts cuts;
    fg_folder_vocab vocab;
    fg_meta_writer *out;
    fg_error *err;
} reading;

static bool is_true(const fg_json_node *object, const char *name)
{
    bool value = false;
    (void)fg_json_bool(fg_folder_get(object, name), &value);
    return value;
}

/* ---- what is refused ---- */

static fg_status check_model(const reading *r)
{
    static const char *const parts[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const fg_json_node *type = fg_folder_get(r->model, "type");
    if (!fg_folder_says(type, "BPE") &&
        !(type == NULL && fg_folder_get(r->model, "merges") != NULL)) {
        const char *name = fg_json_string(type, NULL);
        return fg_fail(r->err, FG_BAD_INPUT,
                       "tokenizer.json: model %.32s is not supported (BPE is): take a GGUF file of "
                       "the model",
                       name != NULL ? name : "of no type");
    }
    for (size_t i = 0; i < 2; i++) {
        const fg_json_node *node = fg_folder_get(r->model, parts[i]);
        if (node != NULL && !fg_folder_says(node, "")) {
            return fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: '%s' is not supported", parts[i]);
        }
    }
    double dropout = 0.0;
    if (fg_json_number(fg_folder_get(r->model, "dropout"), &dropout) && dropout != 0.0) {
        return fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: 'dropout' is not supported");
    }
    return FG_OK;
}

/* ---- the vocabulary ---- */

static bool is_byte_name(const char *text, size_t length)
{
    static const char hex[] = "0123456789ABCDEFabcdef";
    return length == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' &&
           memchr(hex, text[3], sizeof hex - 1) != NULL &&
           memchr(hex, text[4], sizeof hex - 1) != NULL;
}

static fg_status put(reading *r, int64_t id, const char *text, size_t length, uint8_t kind)
{
    if (length > TOKEN_BYTES_MAX) {
        return fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: token %lld has more than %d bytes",
                       (long long)id, TOKEN_BYTES_MAX);
    }
    fg_folder_token *token = &r->vocab.tokens[id];
    if (token->text == NULL) {
        *token = (fg_folder_token){ .text = text, .length = (uint32_t)length, .kind = kind };
        return FG_OK;
    }
    /* An added token is in the vocabulary as well, in many files. */
    bool same = token->length == length && memcmp(token->text, text, length) == 0;
    return same && kind == FG_TOKEN_NORMAL
               ? FG_OK
               : fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: two tokens have the id %lld",
                         (long long)id);
}

/* Tokens that are taken out of a text before it is cut. Beyond the embedding's rows there may be some for pictures, which
 * text never needs. */
static fg_status read_added(reading *r)
{
    const fg_json_node *list = fg_folder_get(r->texts->tokenizer, "added_tokens");
    const char *unknown = fg_json_string(fg_folder_get(r->model, "unk_token"), NULL);
    if (fg_json_size(list) > ADDED_MAX) {
        return fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: it has more than %d added tokens",
                       ADDED_MAX);
    }
    for (size_t i = 0; i < fg_json_size(list); i++) {
        const fg_json_node *item = fg_json_at(list, i);
        size_t length = 0;
        int64_t id = -1;
        const char *text = fg_json_string(fg_folder_get(item, "content"), &length);
        if (text == NULL || length == 0 || !fg_json_integer(fg_folder_get(item, "id"), &id) ||
            id < 0) {
            return fg_fail(r->err, FG_BAD_INPUT,
                           "tokenizer.json: added token %zu has no id or no text", i);
        }
        if (id >= r->vocab.size) {
            continue;
        }
        if (is_true(item, "single_word")) {
            return fg_fail(r->err, FG_BAD_INPUT,
                           "tokenizer.json: added token %lld is a 'single_word', which is not "
                           "supported",
                           (long long)id);
        }
        bool is_unknown = r->cuts.spm && unknown != NULL && strcmp(unknown, text) == 0;
        uint8_t kind = is_unknown                 ? FG_TOKEN_UNKNOWN
                       : is_true(item, "special") ? FG_TOKEN_CONTROL
                                                  : FG_TOKEN_USER_DEFINED;
        fg_status status = put(r, id, text, length, kind);
        if (status != FG_OK) {
            return status;
        }
        r->vocab.tokens[id].strips = (uint8_t)((is_true(item, "lstrip") ? FG_STRIP_LEFT : 0) |
                                               (is_true(item, "rstrip") ? FG_STRIP_RIGHT : 0));
    }
    return FG_OK;
}

/* Whether `id` is an added token's, one that was left out. */
static bool is_left_out(const reading *r, int64_t id)
{
    const fg_json_node *list = fg_folder_get(r->texts->tokenizer, "added_tokens");
    int64_t other = -1;
    for (size_t i = 0; i < fg_json_size(list); i++) {
        if (fg_json_integer(fg_folder_get(fg_json_at(list, i), "id"), &other) && other == id) {
            return true;
        }
    }
    return false;
}

static fg_status read_vocab(reading *r)
{
    const fg_json_node *vocab = fg_folder_get(r->model, "vocab");
    const char *unknown = fg_json_string(fg_folder_get(r->model, "unk_token"), NULL);
    void *cursor = NULL;
    const char *text;
    uint32_t left_out = 0;
    if (!fg_json_is(vocab, FG_JSON_OBJECT) || fg_json_size(vocab) == 0) {
        return fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: it has no vocabulary");
    }
    for (const fg_json_node *node; (node = fg_json_next(vocab, &cursor, &text)) != NULL;) {
        int64_t id = -1;
        size_t length = strlen(text);
        if (!fg_json_integer(node, &id) || id < 0) {
            return fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: token '%.64s' has no id", text);
        }
        if (id >= r->vocab.size && left_out < LEFT_OUT_MAX && is_left_out(r, id)) {
            left_out++;
            continue;
        }
        if (id >= r->vocab.size) {
            return fg_fail(r->err, FG_BAD_INPUT,
                           "tokenizer.json: token %lld is beyond the embedding's %u rows",
                           (long long)id, r->vocab.size);
        }
        bool is_unknown = r->cuts.spm && unknown != NULL && strcmp(unknown, text) == 0;
        uint8_t kind = FG_TOKEN_NORMAL;
        if (r->cuts.spm && is_byte_name(text, length)) {
            kind = FG_TOKEN_BYTE;
        }
        fg_folder_token *token = &r->vocab.tokens[id];
        bool unseen = token->text == NULL;
        fg_status status = put(r, id, text, length, FG_TOKEN_NORMAL);
        if (status != FG_OK) {
            return status;
        }
        if (unseen) {
            token->kind = is_unknown ? FG_TOKEN_UNKNOWN : kind;
        }
    }
    return FG_OK;
}

static uint32_t find_id(const reading *r, const char *text, size_t length)
{
    for (uint32_t id = 0; text != NULL && id < r->vocab.size; id++) {
        const fg_folder_token *token = &r->vocab.tokens[id];
        if (token->text != NULL && token->length == length &&
            memcmp(token->text, text, length) == 0) {
            return id;
        }
    }
    return NO_ID;
}

/* Rows of the embedding that no token has are called so in GGUF files as well. */
static void write_tokens(const reading *r)
{
    const fg_folder_vocab *vocab = &r->vocab;
    fg_meta_array(r->out, "tokenizer.ggml.tokens", FG_META_STRING, vocab->size);
    for (uint32_t id = 0; id < vocab->size; id++) {
        char pad[24];
        if (vocab->tokens[id].text != NULL) {
            fg_meta_item(r->out, vocab->tokens[id].text, vocab->tokens[id].length);
        } else {
            snprintf(pad, sizeof pad, "[PAD%u]", id);
            fg_meta_item(r->out, pad, strlen(pad));
        }
    }
    fg_meta_array(r->out, "tokenizer.ggml.token_type", FG_META_I32, vocab->size);
    for (uint32_t id = 0; id < vocab->size; id++) {
        const int32_t kind =
            vocab->tokens[id].text == NULL ? FG_TOKEN_UNUSED : vocab->tokens[id].kind;
        fg_buf_append(&r->out->out, &kind, sizeof kind);
    }
}

/* Tokens that take white space with them. */
static void write_strips(const reading *r, const char *key, uint8_t side)
{
    uint32_t count = 0;
    for (uint32_t id = 0; id < r->vocab.size; id++) {
        count += (r->vocab.tokens[id].strips & side) != 0;
    }
    if (count == 0) {
        return;
    }
    fg_meta_array(r->out, key, FG_META_U32, count);
    for (uint32_t id = 0; id < r->vocab.size; id++) {
        if ((r->vocab.tokens[id].strips & side) != 0) {
            fg_buf_append(&r->out->out, &id, sizeof id);
        }
    }
}

/* ---- what is put before and behind a text ---- */

typedef struct frame {
    uint32_t before, behind; /* NO_ID: nothing */
} frame;

static fg_status read_special(const reading *r, const fg_json_node *item, uint32_t *id_out)
{
    size_t length = 0;
    const fg_json_node *special = fg_folder_get(item, "SpecialToken");
    const char *name = fg_json_string(fg_folder_get(special, "id"), &length);
    *id_out = find_id(r, name, length);
    return *id_out != NO_ID
               ? FG_OK
               : fg_fail(r->err, FG_BAD_INPUT,
                         "tokenizer.json: its post_processor names a token that is none");
}

/* Of a template, the tokens that it puts around a text. FG_BAD_INPUT where it does anything else. */
static fg_status read_template(const reading *r, const fg_json_node *post, frame *out)
{
    const fg_json_node *list = fg_folder_get(post, "single");
    size_t count = fg_json_size(list), at = 0;
    while (at < count && fg_folder_get(fg_json_at(list, at), "Sequence") == NULL) {
        at++;
    }
    if (at == count || at > 1 || count - at > 2) {
        return fg_fail(r->err, FG_BAD_INPUT,
                       "tokenizer.json: its post_processor does more than to put one token before "
                       "a text and one behind it, which is not supported");
    }
    fg_status status = FG_OK;
    if (at == 1) {
        status = read_special(r, fg_json_at(list, 0), &out->before);
    }
    if (status == FG_OK && count - at == 2) {
        status = read_special(r, fg_json_at(list, at + 1), &out->behind);
    }
    return status;
}

static fg_status read_post(const reading *r, const fg_json_node *post, frame *out)
{
    const fg_json_node *type = fg_folder_get(post, "type");
    if (post == NULL || fg_folder_says(type, "ByteLevel")) {
        return FG_OK;
    }
    if (fg_folder_says(type, "TemplateProcessing")) {
        return read_template(r, post, out);
    }
    const fg_json_node *list = fg_folder_get(post, "processors");
    if (!fg_folder_says(type, "Sequence") || fg_json_size(list) > 4) {
        const char *name = fg_json_string(type, NULL);
        return fg_fail(r->err, FG_BAD_INPUT,
                       "tokenizer.json: its post_processor (%.40s) is not one that is known",
                       name != NULL ? name : "");
    }
    for (size_t i = 0; i < fg_json_size(list); i++) {
        const fg_json_node *item = fg_json_at(list, i);
        fg_status status =
            fg_folder_says(fg_folder_get(item, "type"), "Sequence")
                ? fg_fail(r->err, FG_BAD_INPUT, "tokenizer.json: its post_processor is nested")
                : read_post(r, item, out);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

/* The token that tokenizer_config.json calls so: a text, or an object with one. */
static uint32_t configured(const reading *r, const char *name)
{
    size_t length = 0;
    const fg_json_node *node = fg_folder_get(r->texts->tokenizer_config, name);
    if (fg_json_is(node, FG_JSON_OBJECT)) {
        node = fg_folder_get(node, "content");
    }
    const char *text = fg_json_string(node, &length);
    return find_id(r, text, length);
}

static fg_status write_frame(const reading *r)
{
    frame around = { .before = NO_ID, .behind = NO_ID };
    fg_status status = read_post(r, fg_folder_get(r->texts->tokenizer, "post_processor"), &around);
    if (status != FG_OK) {
        return status;
    }
    bool adds = around.before != NO_ID;
    (void)fg_json_bool(fg_folder_get(r->texts->tokenizer_config, "add_bos_token"), &adds);
    if (around.behind == NO_ID && is_true(r->texts->tokenizer_config, "add_eos_token")) {
        around.behind = configured(r, "eos_token");
    }
    if (around.behind != NO_ID) {
        fg_meta_u32(r->out, FG_VOCAB_BEHIND_KEY, around.behind);
    }
    int64_t number = -1;
    uint32_t id = around.before != NO_ID ? around.before : configured(r, "bos_token");
    if (id == NO_ID && fg_json_integer(fg_folder_get(r->texts->config, "bos_token_id"), &number) &&
        number >= 0 && number < r->vocab.size) {
        id = (uint32_t)number;
    }
    if (id != NO_ID) {
        fg_meta_u32(r->out, "tokenizer.ggml.bos_token_id", id);
    }
    fg_meta_bool(r->out, "tokenizer.ggml.add_bos_token", adds && id != NO_ID);
    return FG_OK;
}

/* ---- what ends an answer ---- */

/* Ids of a number or of a list; 0: there is none. */
static fg_status read_ids(const reading *r, const fg_json_node *node, uint32_t ids[ENDS_MAX],
                          uint32_t *count_out)
{
    bool is_list = fg_json_is(node, FG_JSON_ARRAY);
    size_t count = is_list ? fg_json_size(node) : node != NULL;
    *count_out = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t id = -1;
        if (count > ENDS_MAX || !fg_json_integer(is_list ? fg_json_at(node, i) : node, &id) ||
            id < 0 || id >= r->vocab.size) {
            return fg_fail(r->err, FG_BAD_INPUT,
                           "'eos_token_id' is not a token's id, or a list of at most %d", ENDS_MAX);
        }
        ids[i] = (uint32_t)id;
    }
    *count_out = (uint32_t)count;
    return FG_OK;
}

static fg_status write_ends(const reading *r)
{
    uint32_t ids[ENDS_MAX], count;
    const fg_json_node *node = fg_folder_get(r->texts->generation_config, "eos_token_id");
    fg_status status = read_ids(
        r, node != NULL ? node : fg_folder_get(r->texts->config, "eos_token_id"), ids, &count);
    if (status != FG_OK) {
        return status;
    }
    uint32_t eos = configured(r, "eos_token");
    if (eos == NO_ID && count > 0) {
        eos = ids[0];
    }
    if (eos != NO_ID) {
        fg_meta_u32(r->out, "tokenizer.ggml.eos_token_id", eos);
    }
    if (count > 0) {
        fg_meta_array(r->out, FG_VOCAB_ENDS_KEY, FG_META_U32, count);
        fg_buf_append(&r->out->out, ids, count * sizeof ids[0]);
    }
    return FG_OK;
}

/* ---- the chat template ---- */

static void write_template(const reading *r, const char *key, const fg_json_node *node)
{
    size_t length = 0;
    const char *text = fg_json_string(node, &length);
    if (text != NULL) {
        fg_meta_string(r->out, key, text, length);
    }
}

/* A file of its own counts; else the text in tokenizer_config.json, or of several the one of that name. */
static void write_templates(const reading *r)
{
    static const char *const names[][2] = { { "default", "tokenizer.chat_template" },
                                            { "tool_use", "tokenizer.chat_template.tool_use" } };
    const fg_folder_file *file = r->texts->chat_template;
    const fg_json_node *node = fg_folder_get(r->texts->tokenizer_config, "chat_template");
    if (file->bytes != NULL) {
        fg_meta_string(r->out, names[0][1], file->bytes, file->size_bytes);
        return;
    }
    write_template(r, names[0][1], node);
    bool written[2] = { false };
    for (size_t i = 0; fg_json_is(node, FG_JSON_ARRAY) && i < fg_json_size(node); i++) {
        for (size_t k = 0; k < 2; k++) {
            if (!written[k] &&
                fg_folder_says(fg_folder_get(fg_json_at(node, i), "name"), names[k][0])) {
                write_template(r, names[k][1], fg_folder_get(fg_json_at(node, i), "template"));
                written[k] = true;
            }
        }
    }
}

/* ---- all of it ---- */

static fg_status write_model(const reading *r)
{
    const char *model = r->cuts.spm ? "llama" : "gpt2";
    fg_meta_string(r->out, "tokenizer.ggml.model", model, strlen(model));
    if (r->cuts.spm) {
        size_t length = 0;
        const char *text = fg_json_string(fg_folder_get(r->model, "unk_token"), &length);
        uint32_t unknown = find_id(r, text, length);
        fg_meta_bool(r->out, "tokenizer.ggml.add_space_prefix", r->cuts.space_prefix);
        fg_meta_bool(r->out, FG_VOCAB_FIRST_KEY, r->cuts.first_only);
        if (unknown != NO_ID) {
            fg_meta_u32(r->out, "tokenizer.ggml.unknown_token_id", unknown);
        }
    } else {
        fg_meta_string(r->out, "tokenizer.ggml.pre", r->cuts.pre, strlen(r->cuts.pre));
        fg_meta_bool(r->out, FG_VOCAB_WHOLE_KEY, is_true(r->model, "ignore_merges"));
    }
    write_tokens(r);
    write_strips(r, FG_VOCAB_STRIP_LEFT_KEY, FG_STRIP_LEFT);
    write_strips(r, FG_VOCAB_STRIP_RIGHT_KEY, FG_STRIP_RIGHT);
    return fg_folder_write_merges(&r->vocab, fg_folder_get(r->model, "merges"), r->out, r->err);
}

fg_status fg_folder_read_tokenizer(const fg_folder_texts *texts, fg_meta_writer *out, fg_error *err)
{
    reading r = {
        .texts = texts, .model = fg_folder_get(texts->tokenizer, "model"), .out = out, .err = err
    };
    fg_status status = check_model(&r);
    status = status != FG_OK ? status : fg_folder_read_cuts(texts->tokenizer, &r.cuts, err);
    if (status != FG_OK) {
        return status;
    }
    if (texts->vocab_size == 0 || texts->vocab_size > TOKENS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "an embedding of %u rows is not supported (at most %d)",
                       texts->vocab_size, TOKENS_MAX);
    }
    r.vocab = (fg_folder_vocab){ .tokens = fg_mem_array(texts->vocab_size, sizeof *r.vocab.tokens),
                                 .size = texts->vocab_size,
                                 .spm = r.cuts.spm };
    if (r.vocab.tokens == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u tokens", texts->vocab_size);
    }
    status = read_added(&r);
    status = status != FG_OK ? status : read_vocab(&r);
    status = status != FG_OK ? status : write_model(&r);
    status = status != FG_OK ? status : write_frame(&r);
    status = status != FG_OK ? status : write_ends(&r);
    if (status == FG_OK) {
        write_templates(&r);
    }
    fg_mem_free(r.vocab.tokens);
    return status;
}
