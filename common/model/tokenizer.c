#include "common/model/tokenizer.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/model/least.h"
#include "common/model/merge.h"
#include "common/model/pretokenize_internal.h"
#include "common/model/vocab.h"

struct fg_tokenizer {
    fg_vocab vocab;
};

/* One encoding under way. */
typedef struct encoder {
    const fg_vocab *vocab;
    const fg_encode_options *options;
    const char *text;
    size_t length;
    size_t plain_at;    /* first plain span that does not end before the position looked at */
    bool after_special; /* nothing, or a special token, comes before what follows */
    uint32_t *ids;
    size_t capacity;
    size_t count;
    fg_merger merger;
} encoder;

fg_status fg_tokenizer_check(const fg_weights *weights, fg_error *err)
{
    return fg_vocab_check(weights, err);
}

fg_status fg_tokenizer_open(const fg_weights *weights, fg_tokenizer **tokenizer_out, fg_error *err)
{
    fg_tokenizer *tokenizer = fg_mem_alloc(sizeof(*tokenizer));
    if (tokenizer == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory");
    }
    fg_status status = fg_vocab_load(&tokenizer->vocab, weights, err);
    if (status != FG_OK) {
        fg_mem_free(tokenizer);
        return status;
    }
    *tokenizer_out = tokenizer;
    return FG_OK;
}

void fg_tokenizer_close(fg_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    fg_vocab_deinit(&tokenizer->vocab);
    fg_mem_free(tokenizer);
}

static fg_status too_many(encoder *e, fg_error *err)
{
    e->count = e->capacity;
    return fg_fail(err, FG_BAD_INPUT, "text has more than %zu tokens", e->capacity);
}

static fg_status emit(encoder *e, uint32_t id, fg_error *err)
{
    if (e->count == e->capacity) {
        return too_many(e, err);
    }
    e->ids[e->count++] = id;
    return FG_OK;
}

/* Text that is no token: its bytes, each the byte's token, the unknown token or nothing. */
static fg_status emit_bytes(encoder *e, const char *text, size_t length, fg_error *err)
{
    for (size_t i = 0; i < length; i++) {
        uint32_t id = e->vocab->byte_ids[(unsigned char)text[i]];
        id = id == FG_TOKEN_NONE ? e->vocab->unknown : id;
        fg_status status = id == FG_TOKEN_NONE ? FG_OK : emit(e, id, err);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

/* Ordinary text that surely has more ids than may still come is refused before work is spent on it. */
static fg_status check_least(encoder *e, const char *text, size_t length, fg_error *err)
{
    size_t refuse_at = e->options->refuse_at;
    size_t most = refuse_at > 0 && refuse_at <= e->capacity ? refuse_at - 1 : e->capacity;
    size_t room = e->count < most ? most - e->count : 0;
    if (length <= room) {
        return FG_OK; /* each id is a byte, or more */
    }
    size_t least = fg_least_ids(e->vocab, text, length);
    if (least <= room) {
        return FG_OK;
    }
    if (most == e->capacity) {
        return too_many(e, err);
    }
    e->count += least;
    return fg_fail(err, FG_BAD_INPUT, "text has at least %zu tokens", e->count);
}

static fg_status encode_word(encoder *e, const char *word, size_t length, fg_error *err)
{
    const fg_vocab *vocab = e->vocab;
    if (vocab->ignore_merges) {
        uint32_t id = fg_vocab_find(vocab, word, length);
        if (id != FG_TOKEN_NONE) {
            return emit(e, id, err);
        }
    }
    fg_status status = check_least(e, word, length, err);
    if (status == FG_OK) {
        status = fg_merger_run(&e->merger, word, (uint32_t)length, err);
    }
    uint32_t at = 0;
    while (status == FG_OK && at != UINT32_MAX) {
        const fg_merge_symbol *symbol = &e->merger.symbols[at];
        status = symbol->id != FG_TOKEN_NONE
                     ? emit(e, symbol->id, err)
                     : emit_bytes(e, word + symbol->start, symbol->length, err);
        at = symbol->next;
    }
    return status;
}

static fg_status encode_bpe(encoder *e, const char *text, size_t length, fg_error *err)
{
    fg_status status = check_least(e, text, length, err);
    for (size_t at = 0; status == FG_OK && at < length;) {
        size_t size = fg_pretokenize_next(e->vocab->pre, text + at, length - at);
        status = encode_word(e, text + at, size, err);
        at += size;
    }
    return status;
}

/* Cuts before each run of spaces where no token reaches over such a place: the same ids in less
 * memory. */
static fg_status encode_spm_words(encoder *e, const char *text, size_t length, fg_error *err)
{
    fg_status status = check_least(e, text, length, err);
    size_t start = 0;
    for (size_t at = 1; status == FG_OK && at <= length; at++) {
        bool cut =
            at == length || (e->vocab->splits_at_spaces && text[at] == ' ' && text[at - 1] != ' ');
        if (cut) {
            status = encode_word(e, text + start, at - start, err);
            start = at;
        }
    }
    return status;
}

/* U+2581. */
static bool starts_blank(const char *text, size_t length)
{
    return length >= 3 && memcmp(text, "\xE2\x96\x81", 3) == 0;
}

static fg_status encode_spm(encoder *e, const char *text, size_t length, fg_error *err)
{
    char *copy = fg_mem_alloc(length + 1);
    if (copy == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory for %zu bytes of text", length);
    }
    size_t size = 0;
    bool is_prefixed = e->vocab->add_space_prefix && e->after_special;
    if (e->vocab->space_first_only) {
        is_prefixed =
            is_prefixed && text == e->text && text[0] != ' ' && !starts_blank(text, length);
    }
    if (is_prefixed) {
        copy[size++] = ' ';
    }
    /* The vocabulary writes a space as U+2581; in a text both are the same. */
    for (size_t at = 0; at < length;) {
        if (starts_blank(text + at, length - at)) {
            copy[size++] = ' ';
            at += 3;
        } else {
            copy[size++] = text[at++];
        }
    }
    fg_status status = encode_spm_words(e, copy, size, err);
    fg_mem_free(copy);
    return status;
}

static fg_status encode_ordinary(encoder *e, const char *text, size_t length, fg_error *err)
{
    if (length == 0) {
        return FG_OK;
    }
    fg_status status =
        e->vocab->spm ? encode_spm(e, text, length, err) : encode_bpe(e, text, length, err);
    e->after_special = false;
    return status;
}

/* The special token that the text has at `at` (longest first), or FG_TOKEN_NONE. Control tokens only
 * where they are parsed and wholly outside of plain spans. Positions must not decrease. */
static uint32_t special_at(encoder *e, size_t at, size_t *length_out)
{
    const fg_vocab *vocab = e->vocab;
    unsigned char byte = (unsigned char)e->text[at];
    uint32_t best = FG_TOKEN_NONE;
    *length_out = 0;
    if (vocab->defined.first[byte]) {
        best = fg_vocab_match(vocab, &vocab->defined, e->text + at, e->length - at, length_out);
    }
    if (!e->options->parse_special || !vocab->controls.first[byte]) {
        return best;
    }
    const fg_text_span *plain = e->options->plain;
    while (e->plain_at < e->options->plain_count &&
           plain[e->plain_at].start + plain[e->plain_at].length <= at) {
        e->plain_at++;
    }
    size_t end = e->length;
    if (e->plain_at < e->options->plain_count && plain[e->plain_at].start < end) {
        end = plain[e->plain_at].start;
    }
    if (end > at) {
        size_t length;
        uint32_t id = fg_vocab_match(vocab, &vocab->controls, e->text + at, end - at, &length);
        if (id != FG_TOKEN_NONE && length > *length_out) {
            *length_out = length;
            best = id;
        }
    }
    return best;
}

static bool strips(const encoder *e, uint32_t id, uint8_t side)
{
    return e->vocab->strips != NULL && (e->vocab->strips[id] & side) != 0;
}

static bool is_white(const encoder *e, size_t at, size_t *step_out)
{
    uint32_t code;
    *step_out = fg_pre_decode(e->text, e->length, at, &code);
    return fg_unicode_classify(code) == FG_UNICODE_WHITE;
}

/* End of the white space at `at`. */
static size_t white_end(const encoder *e, size_t at)
{
    size_t step;
    while (at < e->length && is_white(e, at, &step)) {
        at += step;
    }
    return at;
}

/* Where the white space begins that ends at `end`, not before `start`. */
static size_t white_start(const encoder *e, size_t start, size_t end)
{
    size_t first = end, step;
    for (size_t at = start; at < end; at += step) {
        bool white = is_white(e, at, &step);
        first = !white ? end : first == end ? at : first;
    }
    return first;
}

static fg_status encode_all(encoder *e, fg_error *err)
{
    fg_status status = FG_OK;
    size_t start = 0;
    for (size_t at = 0; status == FG_OK && at < e->length;) {
        size_t length;
        uint32_t id = special_at(e, at, &length);
        if (id == FG_TOKEN_NONE) {
            at++;
            continue;
        }
        size_t end = strips(e, id, FG_STRIP_LEFT) ? white_start(e, start, at) : at;
        status = encode_ordinary(e, e->text + start, end - start, err);
        if (status == FG_OK) {
            status = emit(e, id, err);
        }
        e->after_special = true;
        at += length;
        at = strips(e, id, FG_STRIP_RIGHT) ? white_end(e, at) : at;
        start = at;
    }
    return status == FG_OK ? encode_ordinary(e, e->text + start, e->length - start, err) : status;
}

/* BOS where the model or an empty text asks for it, once: templates often write it themselves. */
static fg_status encode_bos(encoder *e, fg_error *err)
{
    const fg_vocab *vocab = e->vocab;
    bool wanted =
        e->options->add_bos && vocab->bos != FG_TOKEN_NONE && (vocab->add_bos || e->length == 0);
    if (wanted && e->length > 0) {
        size_t length;
        wanted = special_at(e, 0, &length) != vocab->bos;
    }
    return wanted ? emit(e, vocab->bos, err) : FG_OK;
}

fg_status fg_tokenizer_encode(const fg_tokenizer *tokenizer, const char *text, size_t length,
                              fg_encode_options options, uint32_t *ids_out, size_t capacity,
                              size_t *count_out, fg_error *err)
{
    const fg_vocab *vocab = &tokenizer->vocab;
    encoder e = { .vocab = vocab,
                  .options = &options,
                  .text = text,
                  .length = length,
                  .after_special = true,
                  .ids = ids_out,
                  .capacity = capacity };
    if (length > UINT32_MAX / 4) {
        *count_out = capacity;
        return too_many(&e, err);
    }
    fg_merger_init(&e.merger, vocab);
    fg_status status = encode_bos(&e, err);
    if (status == FG_OK) {
        status = encode_all(&e, err);
    }
    fg_merger_deinit(&e.merger);
    *count_out = e.count;
    return status;
}

const char *fg_tokenizer_piece(const fg_tokenizer *tokenizer, uint32_t id, bool special,
                               size_t *length_out)
{
    const fg_vocab *vocab = &tokenizer->vocab;
    *length_out = 0;
    if (id >= vocab->size) {
        return "";
    }
    bool hidden = vocab->kinds[id] == FG_TOKEN_CONTROL || vocab->kinds[id] == FG_TOKEN_UNKNOWN;
    return hidden && !special ? "" : fg_vocab_text(vocab, id, length_out);
}

uint32_t fg_tokenizer_vocab_size(const fg_tokenizer *tokenizer)
{
    return tokenizer->vocab.size;
}

uint32_t fg_tokenizer_bos(const fg_tokenizer *tokenizer)
{
    return tokenizer->vocab.bos;
}

uint32_t fg_tokenizer_eos(const fg_tokenizer *tokenizer)
{
    return tokenizer->vocab.eos;
}

uint32_t fg_tokenizer_behind(const fg_tokenizer *tokenizer)
{
    return tokenizer->vocab.behind;
}

bool fg_tokenizer_is_end(const fg_tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->vocab.size && tokenizer->vocab.ends[id];
}

bool fg_tokenizer_adds_space(const fg_tokenizer *tokenizer)
{
    return tokenizer->vocab.add_space_prefix;
}

uint32_t fg_tokenizer_find(const fg_tokenizer *tokenizer, const char *text, size_t length)
{
    const fg_vocab *vocab = &tokenizer->vocab;
    size_t matched = 0;
    uint32_t id = fg_vocab_match(vocab, &vocab->controls, text, length, &matched);
    if (id != FG_TOKEN_NONE && matched == length) {
        return id;
    }
    return fg_vocab_find(vocab, text, length);
}

size_t fg_tokenizer_piece_max(const fg_tokenizer *tokenizer)
{
    /* A byte that is not valid UTF-8 comes out as the three bytes of U+FFFD. */
    return 3 * tokenizer->vocab.piece_max;
}
