#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/utf8.h"
#include "common/model/folder_internal.h"
#include "common/model/vocab.h"

enum { MERGES_MAX = 1 << 21, MERGE_BYTES_MAX = 1 << 14, NO_ID = UINT32_MAX };

/* The two parts of a merge. */
typedef struct pair {
    const char *left, *right;
    size_t left_length, right_length;
} pair;

/* Both spellings: "left right", or a list of two. */
static fg_status read_pair(const fg_json_node *node, size_t rank, pair *out, fg_error *err)
{
    size_t length = 0;
    const char *text = fg_json_string(node, &length);
    if (text != NULL) {
        const char *space = memchr(text, ' ', length);
        out->left = text;
        out->left_length = space == NULL ? 0 : (size_t)(space - text);
        out->right = space == NULL ? text : space + 1;
        out->right_length = length - (size_t)(out->right - text);
        if (memchr(out->right, ' ', out->right_length) != NULL) {
            out->left_length = 0;
        }
    } else {
        bool two = fg_json_size(node) == 2;
        out->left = fg_json_string(two ? fg_json_at(node, 0) : NULL, &out->left_length);
        out->right = fg_json_string(two ? fg_json_at(node, 1) : NULL, &out->right_length);
    }
    bool fits = out->left != NULL && out->right != NULL && out->left_length > 0 &&
                out->right_length > 0 && out->left_length + out->right_length <= MERGE_BYTES_MAX;
    return fits ? FG_OK
                : fg_fail(err, FG_BAD_INPUT, "tokenizer.json: merge %zu is not two texts", rank);
}

/* ---- byte-level BPE ---- */

static fg_status write_pairs(const fg_json_node *merges, fg_meta_writer *out, fg_error *err)
{
    char text[MERGE_BYTES_MAX + 1];
    fg_meta_array(out, "tokenizer.ggml.merges", FG_META_STRING, fg_json_size(merges));
    for (size_t i = 0; i < fg_json_size(merges); i++) {
        pair p;
        fg_status status = read_pair(fg_json_at(merges, i), i, &p, err);
        if (status != FG_OK) {
            return status;
        }
        if (memchr(p.left, ' ', p.left_length) != NULL ||
            memchr(p.right, ' ', p.right_length) != NULL) {
            return fg_fail(err, FG_BAD_INPUT, "tokenizer.json: merge %zu has a space in it", i);
        }
        memcpy(text, p.left, p.left_length);
        text[p.left_length] = ' ';
        memcpy(text + p.left_length + 1, p.right, p.right_length);
        fg_meta_item(out, text, p.left_length + 1 + p.right_length);
    }
    return FG_OK;
}

/* ---- SentencePiece's way ----
 *
 * There the two neighbours merge whose text together has the best score, so a token has one score, however it came about.
 * A list of merges says the same when all merges into a token stand together in the list, and all pairs of tokens that make
 * a token are in it. Both is so in lists that were made from scores. A score is then the place in the list, negative. */

typedef struct score_table {
    const fg_folder_vocab *vocab;
    uint32_t *slots; /* of ids, open addressing; NO_ID: empty */
    uint32_t mask;
    float *scores;
    uint32_t *merges; /* into each token, in the list */
    bool *scored;
} score_table;

static uint32_t find_id(const score_table *table, const char *text, size_t length)
{
    uint32_t at = (uint32_t)fg_hash64(text, length, 0) & table->mask;
    for (; table->slots[at] != NO_ID; at = (at + 1) & table->mask) {
        const fg_folder_token *token = &table->vocab->tokens[table->slots[at]];
        if (token->length == length && memcmp(token->text, text, length) == 0) {
            return table->slots[at];
        }
    }
    return NO_ID;
}

static fg_status make_table(const fg_folder_vocab *vocab, score_table *table, fg_error *err)
{
    uint32_t size = 16;
    while (size / 2 < vocab->size) {
        size *= 2;
    }
    *table = (score_table){ .vocab = vocab,
                            .slots = fg_mem_array(size, sizeof *table->slots),
                            .mask = size - 1,
                            .scores = fg_mem_array(vocab->size, sizeof *table->scores),
                            .merges = fg_mem_array(vocab->size, sizeof *table->merges),
                            .scored = fg_mem_array(vocab->size, sizeof *table->scored) };
    if (table->slots == NULL || table->scores == NULL || table->merges == NULL ||
        table->scored == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u scores", vocab->size);
    }
    memset(table->slots, 0xFF, size * sizeof *table->slots);
    for (uint32_t id = 0; id < vocab->size; id++) {
        const fg_folder_token *token = &vocab->tokens[id];
        if (token->kind != FG_TOKEN_NORMAL || find_id(table, token->text, token->length) != NO_ID) {
            continue;
        }
        uint32_t at = (uint32_t)fg_hash64(token->text, token->length, 0) & table->mask;
        while (table->slots[at] != NO_ID) {
            at = (at + 1) & table->mask;
        }
        table->slots[at] = id;
    }
    return FG_OK;
}

static void free_table(score_table *table)
{
    fg_mem_free(table->slots);
    fg_mem_free(table->scores);
    fg_mem_free(table->merges);
    fg_mem_free(table->scored);
}

static fg_status refuse_list(size_t rank, fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT,
                   "tokenizer.json: its merges are not those of a SentencePiece vocabulary (merge "
                   "%zu): take a GGUF file of the model",
                   rank);
}

static fg_status score(score_table *table, const fg_json_node *merges, fg_error *err)
{
    char text[MERGE_BYTES_MAX];
    uint32_t last = NO_ID;
    for (size_t i = 0; i < fg_json_size(merges); i++) {
        pair p;
        fg_status status = read_pair(fg_json_at(merges, i), i, &p, err);
        if (status != FG_OK) {
            return status;
        }
        memcpy(text, p.left, p.left_length);
        memcpy(text + p.left_length, p.right, p.right_length);
        uint32_t id = find_id(table, text, p.left_length + p.right_length);
        if (id == NO_ID) {
            continue; /* into one that is taken from the text before anything merges */
        }
        if (id != last && table->scored[id]) {
            return refuse_list(i, err);
        }
        if (id != last) {
            table->scores[id] = -(float)i;
        }
        table->scored[id] = true;
        table->merges[id]++;
        last = id;
    }
    return FG_OK;
}

static bool may_be_symbol(const score_table *table, const char *text, size_t length)
{
    return fg_utf8_length(text, length) == length || find_id(table, text, length) != NO_ID;
}

/* As many merges make each token as there are ways to cut it into two that can occur. */
static fg_status check_all(const score_table *table, fg_error *err)
{
    for (uint32_t id = 0; id < table->vocab->size; id++) {
        const fg_folder_token *token = &table->vocab->tokens[id];
        uint32_t ways = 0;
        size_t step = 0;
        if (token->kind != FG_TOKEN_NORMAL || find_id(table, token->text, token->length) != id) {
            continue;
        }
        for (size_t at = fg_utf8_length(token->text, token->length); at < token->length;
             at += step) {
            ways += may_be_symbol(table, token->text, at) &&
                    may_be_symbol(table, token->text + at, token->length - at);
            step = fg_utf8_length(token->text + at, token->length - at);
            FG_ASSERT(step > 0, "JSON's texts are UTF-8");
        }
        if (ways != table->merges[id]) {
            return fg_fail(err, FG_BAD_INPUT,
                           "tokenizer.json: its merges are not those of a SentencePiece vocabulary "
                           "(token %u is made in %u ways, not %u): take a GGUF file of the model",
                           id, table->merges[id], ways);
        }
    }
    return FG_OK;
}

static fg_status write_scores(const fg_folder_vocab *vocab, const fg_json_node *merges,
                              fg_meta_writer *out, fg_error *err)
{
    score_table table;
    fg_status status = make_table(vocab, &table, err);
    status = status != FG_OK ? status : score(&table, merges, err);
    status = status != FG_OK ? status : check_all(&table, err);
    if (status == FG_OK) {
        fg_meta_array(out, "tokenizer.ggml.scores", FG_META_F32, vocab->size);
        fg_buf_append(&out->out, table.scores, vocab->size * sizeof *table.scores);
    }
    free_table(&table);
    return status;
}

fg_status fg_folder_write_merges(const fg_folder_vocab *vocab, const fg_json_node *merges,
                                 fg_meta_writer *out, fg_error *err)
{
    if (!fg_json_is(merges, FG_JSON_ARRAY) || fg_json_size(merges) > MERGES_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "tokenizer.json: it has no list of at most %d merges",
                       MERGES_MAX);
    }
    return vocab->spm ? write_scores(vocab, merges, out, err) : write_pairs(merges, out, err);
}
