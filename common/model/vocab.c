#include "common/model/vocab.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/model/least.h"

enum {
    TOKENS_MAX = 1 << 22,
    TOKEN_BYTES_MAX = 1 << 16,
};

static const char TOKENS_KEY[] = "tokenizer.ggml.tokens";
static const char TYPES_KEY[] = "tokenizer.ggml.token_type";
static const char SCORES_KEY[] = "tokenizer.ggml.scores";

static bool text_is(const char *text, size_t length, const char *wanted)
{
    return strlen(wanted) == length && memcmp(text, wanted, length) == 0;
}

/* Names under which chat models end a turn or an answer. */
static const char *const end_names[] = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<|eot|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "[EOS]",
    "[EOT]",
    "<end_of_utterance>",
    "<|eos|>",
    "<|endofturn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
};

bool fg_vocab_is_end_name(const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof(end_names) / sizeof(end_names[0]); i++) {
        if (text_is(text, length, end_names[i])) {
            return true;
        }
    }
    return false;
}

static fg_status load_pretokenizer(fg_vocab *vocab, const fg_weights *weights, fg_error *err)
{
    const char *name = "default";
    size_t length = strlen(name);
    (void)fg_weights_get_string(weights, "tokenizer.ggml.pre", &name, &length);
    const fg_pretokenizer_name *known = fg_pretokenizer_find(name, length);
    if (known == NULL) {
        char list[192];
        fg_pretokenizer_list(list, sizeof(list));
        return fg_fail(err, FG_BAD_INPUT,
                       "pre-tokenizer '%.*s' (tokenizer.ggml.pre) is not supported "
                       "(%s, others of these families)",
                       (int)(length < 64 ? length : 64), name, list);
    }
    vocab->pre = known->pre;
    vocab->ignore_merges = known->ignore_merges;
    vocab->add_bos = known->add_bos;
    return FG_OK;
}

/* model and pre-tokenizer names, flags. */
static fg_status load_family(fg_vocab *vocab, const fg_weights *weights, fg_error *err)
{
    const char *model;
    size_t length;
    if (!fg_weights_get_string(weights, "tokenizer.ggml.model", &model, &length)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "model has no tokenizer (tokenizer.ggml.model is absent)");
    }
    vocab->spm = text_is(model, length, "llama");
    if (!vocab->spm && !text_is(model, length, "gpt2")) {
        return fg_fail(err, FG_BAD_INPUT, "tokenizer model '%.*s' is not supported (gpt2, llama)",
                       (int)(length < 64 ? length : 64), model);
    }
    vocab->add_bos = vocab->spm;
    if (!vocab->spm) {
        fg_status status = load_pretokenizer(vocab, weights, err);
        if (status != FG_OK) {
            return status;
        }
    }
    vocab->add_space_prefix = vocab->spm;
    (void)fg_weights_get_bool(weights, "tokenizer.ggml.add_bos_token", &vocab->add_bos);
    (void)fg_weights_get_bool(weights, FG_VOCAB_WHOLE_KEY, &vocab->ignore_merges);
    if (vocab->spm) {
        (void)fg_weights_get_bool(weights, "tokenizer.ggml.add_space_prefix",
                                  &vocab->add_space_prefix);
        (void)fg_weights_get_bool(weights, FG_VOCAB_FIRST_KEY, &vocab->space_first_only);
    }
    return FG_OK;
}

fg_status fg_vocab_check(const fg_weights *weights, fg_error *err)
{
    fg_vocab vocab = { 0 };
    return load_family(&vocab, weights, err);
}

/* Checks the lists against each other and takes the memory. */
static fg_status measure(fg_vocab *vocab, const fg_weights *weights, fg_error *err)
{
    fg_meta_type type;
    uint64_t count;
    if (!fg_weights_get_array(weights, TOKENS_KEY, &type, &count) || type != FG_META_STRING ||
        count == 0 || count > TOKENS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "%s: not a list of 1 to %d strings", TOKENS_KEY,
                       TOKENS_MAX);
    }
    vocab->size = (uint32_t)count;
    uint64_t total = 0;
    for (uint64_t id = 0; id < count; id++) {
        const char *text;
        size_t length;
        if (!fg_weights_array_string(weights, TOKENS_KEY, id, &text, &length) ||
            length > TOKEN_BYTES_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "%s: token %llu is longer than %d bytes", TOKENS_KEY,
                           (unsigned long long)id, TOKEN_BYTES_MAX);
        }
        total += length;
    }
    if (total > UINT32_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "%s: more than 4 GiB of text", TOKENS_KEY);
    }
    uint64_t other;
    if (fg_weights_get_array(weights, TYPES_KEY, &type, &other) && other != count) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %llu entries for %llu tokens", TYPES_KEY,
                       (unsigned long long)other, (unsigned long long)count);
    }
    if (vocab->spm && (!fg_weights_get_array(weights, SCORES_KEY, &type, &other) ||
                       other != count || type != FG_META_F32)) {
        return fg_fail(err, FG_BAD_INPUT, "%s: not one float for each of %llu tokens", SCORES_KEY,
                       (unsigned long long)count);
    }
    vocab->bytes = fg_mem_alloc((size_t)total + 1);
    vocab->offsets = fg_mem_array((size_t)count + 1, sizeof(vocab->offsets[0]));
    vocab->kinds = fg_mem_array((size_t)count, sizeof(vocab->kinds[0]));
    vocab->ends = fg_mem_array((size_t)count, sizeof(vocab->ends[0]));
    vocab->scores = fg_mem_array(vocab->spm ? (size_t)count : 1, sizeof(vocab->scores[0]));
    if (vocab->bytes == NULL || vocab->offsets == NULL || vocab->kinds == NULL ||
        vocab->ends == NULL || vocab->scores == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory for %llu tokens",
                       (unsigned long long)count);
    }
    return FG_OK;
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte of a token named <0xHH>, or -1. */
static int byte_of_name(const char *text, size_t length)
{
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    int high = hex_value(text[3]);
    int low = hex_value(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Copies `text` with U+2581 turned into spaces. */
static size_t spm_decode(const char *text, size_t length, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < length;) {
        if (length - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0) {
            out[written++] = ' ';
            at += 3;
        } else {
            out[written++] = text[at++];
        }
    }
    return written;
}

/* Writes the bytes that a token stands for; returns how many. */
static size_t decode_text(fg_vocab *vocab, uint32_t id, const char *text, size_t length, char *out)
{
    uint8_t kind = vocab->kinds[id];
    bool by_name = kind == FG_TOKEN_CONTROL || kind == FG_TOKEN_UNKNOWN;
    if (vocab->spm && kind == FG_TOKEN_BYTE) {
        int byte = byte_of_name(text, length);
        if (byte >= 0) {
            vocab->byte_ids[byte] = id;
            out[0] = (char)byte;
            return 1;
        }
    }
    if (vocab->spm && !by_name) {
        return spm_decode(text, length, out);
    }
    if (!vocab->spm && !by_name && kind != FG_TOKEN_USER_DEFINED) {
        size_t written = fg_byte_level_decode(text, length, out);
        if (written != SIZE_MAX) {
            return written;
        }
    }
    memcpy(out, text, length);
    return length;
}

static uint8_t token_kind(const fg_vocab *vocab, const fg_weights *weights, uint32_t id,
                          const char *text, size_t length)
{
    int64_t kind;
    if (!fg_weights_array_i64(weights, TYPES_KEY, id, &kind)) {
        kind = vocab->spm && byte_of_name(text, length) >= 0 ? FG_TOKEN_BYTE : FG_TOKEN_NORMAL;
    }
    if (kind < FG_TOKEN_NORMAL || kind > FG_TOKEN_BYTE) {
        kind = FG_TOKEN_NORMAL;
    }
    /* Some converters forget to mark these; unmarked, a user could type one. */
    bool like_control = length > 4 && memcmp(text, "<|", 2) == 0 &&
                        memcmp(text + length - 2, "|>", 2) == 0 &&
                        fg_vocab_is_end_name(text, length);
    return like_control ? FG_TOKEN_CONTROL : (uint8_t)kind;
}

static void load_texts(fg_vocab *vocab, const fg_weights *weights)
{
    uint32_t used = 0;
    vocab->splits_at_spaces = true;
    for (uint32_t id = 0; id < vocab->size; id++) {
        const char *text = "";
        size_t length = 0;
        (void)fg_weights_array_string(weights, TOKENS_KEY, id, &text, &length);
        vocab->kinds[id] = token_kind(vocab, weights, id, text, length);
        if (vocab->spm) {
            (void)fg_weights_array_f32(weights, SCORES_KEY, id, &vocab->scores[id]);
        }
        char *out = vocab->bytes + used;
        size_t size = decode_text(vocab, id, text, length, out);
        vocab->offsets[id] = used;
        used += (uint32_t)size;
        vocab->piece_max = size > vocab->piece_max ? size : vocab->piece_max;
        if (vocab->kinds[id] == FG_TOKEN_NORMAL || vocab->kinds[id] == FG_TOKEN_USER_DEFINED) {
            for (size_t i = 1; i < size; i++) {
                if (out[i] == ' ' && out[i - 1] != ' ') {
                    vocab->splits_at_spaces = false;
                }
            }
        }
    }
    vocab->offsets[vocab->size] = used;
}

static uint32_t id_of_key(const fg_vocab *vocab, const fg_weights *weights, const char *key,
                          uint32_t otherwise)
{
    uint32_t id;
    if (!fg_weights_get_u32(weights, key, &id)) {
        id = otherwise;
    }
    return id < vocab->size ? id : FG_TOKEN_NONE;
}

/* The tokens with a part to play: BOS, EOS, unknown, and all that end generation. */
static void load_roles(fg_vocab *vocab, const fg_weights *weights)
{
    /* SPM files may leave out what SentencePiece fixes: <unk> 0, <s> 1, </s> 2. */
    vocab->bos =
        id_of_key(vocab, weights, "tokenizer.ggml.bos_token_id", vocab->spm ? 1 : FG_TOKEN_NONE);
    vocab->eos =
        id_of_key(vocab, weights, "tokenizer.ggml.eos_token_id", vocab->spm ? 2 : FG_TOKEN_NONE);
    vocab->unknown = id_of_key(vocab, weights, "tokenizer.ggml.unknown_token_id",
                               vocab->spm ? 0 : FG_TOKEN_NONE);
    bool adds_eos = false;
    (void)fg_weights_get_bool(weights, "tokenizer.ggml.add_eos_token", &adds_eos);
    vocab->behind =
        id_of_key(vocab, weights, FG_VOCAB_BEHIND_KEY, adds_eos ? vocab->eos : FG_TOKEN_NONE);
    if (vocab->unknown != FG_TOKEN_NONE && vocab->kinds[vocab->unknown] != FG_TOKEN_UNKNOWN) {
        /* Some files name <|endoftext|> here; a strange byte in a prompt must not end it. */
        vocab->unknown = FG_TOKEN_NONE;
    }
    const uint32_t ends[] = {
        vocab->eos,
        id_of_key(vocab, weights, "tokenizer.ggml.eot_token_id", FG_TOKEN_NONE),
        id_of_key(vocab, weights, "tokenizer.ggml.eom_token_id", FG_TOKEN_NONE),
    };
    uint32_t end = FG_TOKEN_NONE;
    bool has_return = false;
    bool has_call = false;
    for (uint32_t id = 0; id < vocab->size; id++) {
        size_t length;
        const char *text = fg_vocab_text(vocab, id, &length);
        bool special =
            vocab->kinds[id] == FG_TOKEN_CONTROL || vocab->kinds[id] == FG_TOKEN_USER_DEFINED;
        if (!special) {
            continue;
        }
        vocab->ends[id] = fg_vocab_is_end_name(text, length);
        has_return = has_return || text_is(text, length, "<|return|>");
        has_call = has_call || text_is(text, length, "<|call|>");
        end = text_is(text, length, "<|end|>") ? id : end;
    }
    /* In the harmony format <|end|> only closes one message of an answer. */
    if (has_return && has_call && end != FG_TOKEN_NONE) {
        vocab->ends[end] = false;
    }
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (ends[i] != FG_TOKEN_NONE) {
            vocab->ends[ends[i]] = true;
        }
    }
    int64_t id;
    for (uint64_t i = 0; fg_weights_array_i64(weights, FG_VOCAB_ENDS_KEY, i, &id); i++) {
        if (id >= 0 && id < vocab->size) {
            vocab->ends[id] = true;
        }
    }
}

static fg_status load_strips(fg_vocab *vocab, const fg_weights *weights, fg_error *err)
{
    static const struct {
        const char *key;
        uint8_t bit;
    } rows[] = { { FG_VOCAB_STRIP_LEFT_KEY, FG_STRIP_LEFT },
                 { FG_VOCAB_STRIP_RIGHT_KEY, FG_STRIP_RIGHT } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t id;
        for (uint64_t k = 0; fg_weights_array_i64(weights, rows[i].key, k, &id); k++) {
            if (vocab->strips == NULL) {
                vocab->strips = fg_mem_alloc(vocab->size);
            }
            if (vocab->strips == NULL) {
                return fg_fail(err, FG_AGAIN, "tokenizer: out of memory");
            }
            if (id >= 0 && id < vocab->size) {
                vocab->strips[id] |= rows[i].bit;
            }
        }
    }
    return FG_OK;
}

static void find_bytes(fg_vocab *vocab)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        if (vocab->byte_ids[byte] == FG_TOKEN_NONE) {
            vocab->byte_ids[byte] = fg_vocab_find(vocab, &text, 1);
        }
    }
}

fg_status fg_vocab_load(fg_vocab *vocab, const fg_weights *weights, fg_error *err)
{
    *vocab = (fg_vocab){ 0 };
    memset(vocab->byte_ids, 0xFF, sizeof(vocab->byte_ids));
    fg_status status = load_family(vocab, weights, err);
    if (status != FG_OK) {
        return status;
    }
    status = measure(vocab, weights, err);
    if (status != FG_OK) {
        goto deinit;
    }
    load_texts(vocab, weights);
    load_roles(vocab, weights);
    status = load_strips(vocab, weights, err);
    if (status != FG_OK) {
        goto deinit;
    }
    status = fg_vocab_build_text_table(vocab, err);
    if (status != FG_OK) {
        goto deinit;
    }
    find_bytes(vocab);
    status = fg_least_build(vocab, err);
    if (status != FG_OK) {
        goto deinit;
    }
    status = vocab->spm ? FG_OK : fg_vocab_build_merges(vocab, weights, err);
    if (status != FG_OK) {
        goto deinit;
    }
    status = fg_vocab_build_specials(vocab, err);
    if (status != FG_OK) {
        goto deinit;
    }
    return FG_OK;

deinit:
    fg_vocab_deinit(vocab);
    return status;
}

void fg_vocab_deinit(fg_vocab *vocab)
{
    fg_mem_free(vocab->reach);
    fg_mem_free(vocab->defined.ids);
    fg_mem_free(vocab->controls.ids);
    fg_mem_free(vocab->merge_slots);
    fg_mem_free(vocab->text_slots);
    fg_mem_free(vocab->scores);
    fg_mem_free(vocab->ends);
    fg_mem_free(vocab->strips);
    fg_mem_free(vocab->kinds);
    fg_mem_free(vocab->offsets);
    fg_mem_free(vocab->bytes);
    *vocab = (fg_vocab){ 0 };
}
