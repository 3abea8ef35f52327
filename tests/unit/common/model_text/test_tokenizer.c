#include "common/model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/seed.h"
#include "tests/support/small_vocab.h"
#include "tests/support/test.h"

enum { IDS_MAX = 4096 };

static fg_tokenizer *open_bytes(const fg_buf *file)
{
    fg_weights *weights = NULL;
    fg_tokenizer *tokenizer = NULL;
    fg_error err = { 0 };
    cr_assert_eq(fg_weights_open_memory(file->data, file->size, &weights, &err), FG_OK, "%s",
                 err.text);
    cr_assert_eq(fg_tokenizer_open(weights, &tokenizer, &err), FG_OK, "%s", err.text);
    fg_weights_close(weights);
    return tokenizer;
}

static fg_tokenizer *open_bpe(const char *pre)
{
    fg_buf file;
    fg_buf_init(&file, 0);
    small_bpe(&file, pre, NULL);
    fg_tokenizer *tokenizer = open_bytes(&file);
    fg_buf_deinit(&file);
    return tokenizer;
}

static fg_tokenizer *open_spm(bool add_space_prefix)
{
    fg_buf file;
    fg_buf_init(&file, 0);
    small_spm(&file, add_space_prefix);
    fg_tokenizer *tokenizer = open_bytes(&file);
    fg_buf_deinit(&file);
    return tokenizer;
}

static void check_ids(const char *name, const uint32_t *have, size_t count, const uint32_t *want,
                      size_t want_count)
{
    cr_assert_eq(count, want_count, "%s: %zu ids, not %zu", name, count, want_count);
    for (size_t i = 0; i < count; i++) {
        cr_assert_eq(have[i], want[i], "%s: id %zu is %u, not %u", name, i, have[i], want[i]);
    }
}

/* `want` ends with FG_TOKEN_NONE. */
typedef struct encode_case {
    const char *name;
    const char *text;
    bool parse_special;
    bool add_bos;
    uint32_t want[12];
} encode_case;

static void check_cases(const fg_tokenizer *tokenizer, const encode_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t ids[IDS_MAX];
        size_t id_count;
        fg_error err;
        fg_encode_options options = { .add_bos = cases[i].add_bos,
                                      .parse_special = cases[i].parse_special };
        cr_assert_eq(fg_tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), options,
                                         ids, IDS_MAX, &id_count, &err),
                     FG_OK);
        size_t want_count = 0;
        while (cases[i].want[want_count] != FG_TOKEN_NONE) {
            want_count++;
        }
        check_ids(cases[i].name, ids, id_count, cases[i].want, want_count);
    }
}

#define END FG_TOKEN_NONE

Test(tokenizer, bpe_merges_by_rank_and_finds_special_tokens)
{
    static const encode_case cases[] = {
        { "empty", "", false, false, { END } },
        { "empty with BOS", "", false, true, { SMALL_BPE_END_OF_TEXT, END } },
        { "no BOS where the model asks for none", "h", false, true, { 'h', END } },
        { "a word", "hello", false, false, { SMALL_BPE_HELLO, END } },
        { "rank before position", "hellx", false, false, { SMALL_BPE_HELL, 'x', END } },
        { "left before right", "lll", false, false, { SMALL_BPE_LL, 'l', END } },
        { "ll before lo", "llo", false, false, { SMALL_BPE_LL, 'o', END } },
        { "merges stay inside words",
          "he.ll",
          false,
          false,
          { SMALL_BPE_HE, '.', SMALL_BPE_LL, END } },
        { "a space joins", "hello w", false, false, { SMALL_BPE_HELLO, SMALL_BPE_SPACE_W, END } },
        { "a better rank that appears later", "aaaaa", false, false, { SMALL_BPE_AAAA, 'a', END } },
        { "no bytes are lost", "\xFF\xC3z", false, false, { 0xFF, 0xC3, 'z', END } },
        { "control tokens are text",
          "<|im_end|>",
          false,
          false,
          { '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', END } },
        { "control tokens when parsed",
          "he<|im_end|>he",
          true,
          false,
          { SMALL_BPE_HE, SMALL_BPE_IM_END, SMALL_BPE_HE, END } },
        { "the longest control token",
          "<|im_x<|im_start|>",
          true,
          false,
          { SMALL_BPE_IM, '_', 'x', SMALL_BPE_IM_START, END } },
        { "user-defined always",
          "a<tool>a<tool",
          false,
          false,
          { 'a', SMALL_BPE_TOOL, 'a', '<', 't', 'o', 'o', 'l', END } },
        { "only special tokens",
          "<tool><|endoftext|>",
          true,
          false,
          { SMALL_BPE_TOOL, SMALL_BPE_END_OF_TEXT, END } },
    };
    fg_tokenizer *tokenizer = open_bpe("gpt-2");
    check_cases(tokenizer, cases, sizeof(cases) / sizeof(cases[0]));
    fg_tokenizer_close(tokenizer);
}

Test(tokenizer, llama3_takes_whole_words_and_one_bos)
{
    static const encode_case cases[] = {
        { "a word that no merges reach",
          "lo llo",
          false,
          false,
          { SMALL_BPE_LO, ' ', SMALL_BPE_LL, 'o', END } },
        { "BOS in front", "hello", false, true, { SMALL_BPE_END_OF_TEXT, SMALL_BPE_HELLO, END } },
        { "BOS once",
          "<|endoftext|>hello",
          true,
          true,
          { SMALL_BPE_END_OF_TEXT, SMALL_BPE_HELLO, END } },
        { "BOS typed is no BOS", "<", true, true, { SMALL_BPE_END_OF_TEXT, '<', END } },
    };
    static const char *const pres[] = { "llama-bpe", "tekken" };
    for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]); i++) {
        fg_tokenizer *tokenizer = open_bpe(pres[i]);
        check_cases(tokenizer, cases, sizeof(cases) / sizeof(cases[0]));
        fg_tokenizer_close(tokenizer);
    }
}

Test(tokenizer, spm_merges_by_score_and_falls_back_to_bytes)
{
    enum { BYTE_0 = 3 };
    static const encode_case cases[] = {
        { "empty", "", false, false, { END } },
        { "empty with BOS", "", false, true, { 1, END } },
        { "space in front", "ab", false, false, { SMALL_SPM_SPACE_AB, END } },
        { "with BOS", "a", false, true, { 1, SMALL_SPM_SPACE_A, END } },
        { "best score first", "aba", false, false, { SMALL_SPM_SPACE_A, SMALL_SPM_BA, END } },
        { "a byte each",
          "z\xC3\xA9\xC3",
          false,
          false,
          { SMALL_SPM_SPACE, BYTE_0 + 'z', SMALL_SPM_E_ACUTE, BYTE_0 + 0xC3, END } },
        { "both kinds of space",
          "a \xE2\x96\x81",
          false,
          false,
          { SMALL_SPM_SPACE_A, SMALL_SPM_SPACE, SMALL_SPM_SPACE, END } },
        { "merges never spell a control token",
          "</s>",
          false,
          false,
          { SMALL_SPM_SPACE, SMALL_SPM_LESS, SMALL_SPM_SLASH_S_MORE, END } },
        { "a space after each special token",
          "a</s>a",
          true,
          false,
          { SMALL_SPM_SPACE_A, 2, SMALL_SPM_SPACE_A, END } },
        { "byte names are text",
          "<0x61>",
          false,
          false,
          { SMALL_SPM_SPACE, SMALL_SPM_LESS, BYTE_0 + '0', BYTE_0 + 'x', BYTE_0 + '6', BYTE_0 + '1',
            SMALL_SPM_MORE, END } },
    };
    fg_tokenizer *tokenizer = open_spm(true);
    check_cases(tokenizer, cases, sizeof(cases) / sizeof(cases[0]));
    fg_tokenizer_close(tokenizer);
    static const encode_case bare[] = {
        { "no space in front", "ab", false, false, { SMALL_SPM_AB, END } },
        { "a pair that another one took", "aba", false, false, { SMALL_SPM_A, SMALL_SPM_BA, END } },
    };
    tokenizer = open_spm(false);
    check_cases(tokenizer, bare, sizeof(bare) / sizeof(bare[0]));
    fg_tokenizer_close(tokenizer);
}

Test(tokenizer, plain_spans_keep_special_tokens_out)
{
    fg_tokenizer *tokenizer = open_bpe("gpt-2");
    static const char text[] = "<|im_start|>he<|im_end|>ll<|im_end|>";
    static const struct {
        const char *name;
        fg_text_span spans[3];
        size_t count;
        size_t ids; /* how many: each special token that is not parsed is 10 or 12 */
    } cases[] = {
        { "none", { { 0, 0 } }, 0, 5 },
        { "the one in the middle", { { 12, 14 } }, 1, 14 },
        { "one byte of it: the shorter \"<|im\" is left", { { 20, 1 } }, 1, 11 },
        { "its last byte only", { { 23, 1 } }, 1, 11 },
        { "its first byte only", { { 14, 1 } }, 1, 14 },
        { "empty spans", { { 12, 0 }, { 14, 0 } }, 2, 5 },
        { "everything", { { 0, sizeof(text) - 1 } }, 1, 34 },
        { "two", { { 12, 12 }, { 26, 10 } }, 2, 23 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t ids[64];
        size_t count;
        fg_error err;
        fg_encode_options options = { .parse_special = true,
                                      .plain = cases[i].spans,
                                      .plain_count = cases[i].count };
        cr_assert_eq(
            fg_tokenizer_encode(tokenizer, text, sizeof(text) - 1, options, ids, 64, &count, &err),
            FG_OK);
        size_t starts = 0;
        size_t ends = 0;
        for (size_t k = 0; k < count; k++) {
            starts += ids[k] == SMALL_BPE_IM_START;
            ends += ids[k] == SMALL_BPE_IM_END;
        }
        cr_log_info("%s: %zu ids, %zu starts, %zu ends", cases[i].name, count, starts, ends);
        cr_assert_eq(count, cases[i].ids, "%s: %zu ids", cases[i].name, count);
    }
    fg_tokenizer_close(tokenizer);
}

Test(tokenizer, capacity_is_never_passed)
{
    fg_tokenizer *tokenizer = open_bpe("gpt-2");
    for (size_t capacity = 0; capacity <= 8; capacity++) {
        uint32_t ids[9];
        memset(ids, 0xEE, sizeof(ids));
        size_t count = 99;
        fg_error err;
        fg_status status = fg_tokenizer_encode(tokenizer, "abcdefg", 7, (fg_encode_options){ 0 },
                                               ids, capacity, &count, &err);
        cr_assert_eq(status, capacity >= 7 ? FG_OK : FG_BAD_INPUT);
        cr_assert_eq(count, capacity >= 7 ? 7u : capacity);
        cr_assert_eq(ids[capacity], 0xEEEEEEEEu);
    }
    fg_tokenizer_close(tokenizer);
}

/* The definition of byte-level BPE: of all pairs that merge, the one of lowest rank, leftmost. */
static size_t slow_bpe(const char *text, size_t length, uint32_t *ids)
{
    static const uint32_t merges[][3] = {
        { 'h', 'e', SMALL_BPE_HE },
        { 'l', 'l', SMALL_BPE_LL },
        { SMALL_BPE_HE, SMALL_BPE_LL, SMALL_BPE_HELL },
        { SMALL_BPE_HELL, 'o', SMALL_BPE_HELLO },
        { ' ', 'w', SMALL_BPE_SPACE_W },
        { SMALL_BPE_AA, SMALL_BPE_AA, SMALL_BPE_AAAA },
        { 'a', 'a', SMALL_BPE_AA },
        { 'l', 'o', SMALL_BPE_LO },
    };
    size_t count = length;
    for (size_t i = 0; i < length; i++) {
        ids[i] = (unsigned char)text[i];
    }
    for (;;) {
        size_t best = SIZE_MAX;
        size_t best_rank = SIZE_MAX;
        for (size_t i = 0; i + 1 < count; i++) {
            for (size_t rank = 0; rank < sizeof(merges) / sizeof(merges[0]); rank++) {
                bool fits = merges[rank][0] == ids[i] && merges[rank][1] == ids[i + 1];
                if (fits && rank < best_rank) {
                    best = i;
                    best_rank = rank;
                }
            }
        }
        if (best == SIZE_MAX) {
            return count;
        }
        ids[best] = merges[best_rank][2];
        memmove(ids + best + 1, ids + best + 2, (count - best - 2) * sizeof(ids[0]));
        count--;
    }
}

Test(tokenizer, merging_equals_its_definition)
{
    uint64_t seed = test_seed(__func__);
    fg_rng rng = { seed };
    fg_tokenizer *tokenizer = open_bpe("gpt-2");
    for (int round = 0; round < 5000; round++) {
        char text[64];
        size_t length = fg_rng_below(&rng, sizeof(text));
        for (size_t i = 0; i < length; i++) {
            text[i] = "heloaaal"[fg_rng_below(&rng, 8)]; /* letters: one word */
        }
        uint32_t want[64];
        uint32_t have[64];
        size_t count;
        fg_error err;
        size_t want_count = slow_bpe(text, length, want);
        cr_assert_eq(fg_tokenizer_encode(tokenizer, text, length, (fg_encode_options){ 0 }, have,
                                         64, &count, &err),
                     FG_OK);
        check_ids(text, have, count, want, want_count);
    }
    fg_tokenizer_close(tokenizer);
}

/* Quadratic work would take minutes here; the harness's time limit is the judge. */
Test(tokenizer, long_words_are_no_trap)
{
    enum { LENGTH = 1 << 20 };
    char *text = fg_mem_alloc(LENGTH);
    uint32_t *ids = fg_mem_array(LENGTH + 8, sizeof(*ids));
    cr_assert_not_null(text);
    cr_assert_not_null(ids);
    static const struct {
        char fill;
        size_t bpe_count, spm_count;
    } cases[] = {
        { 'a', LENGTH / 4, LENGTH },
        { ' ', LENGTH, LENGTH + 1 },
        { '<', LENGTH, LENGTH + 1 },
        { '\xE2', LENGTH, LENGTH + 1 },
    };
    fg_tokenizer *bpe = open_bpe("llama-bpe");
    fg_tokenizer *spm = open_spm(true);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(text, cases[i].fill, LENGTH);
        size_t count;
        fg_error err;
        fg_encode_options options = { .parse_special = true };
        cr_assert_eq(fg_tokenizer_encode(bpe, text, LENGTH, options, ids, LENGTH + 8, &count, &err),
                     FG_OK);
        cr_assert_eq(count, cases[i].bpe_count, "%zu: %zu", i, count);
        cr_assert_eq(fg_tokenizer_encode(spm, text, LENGTH, options, ids, LENGTH + 8, &count, &err),
                     FG_OK);
        cr_assert_eq(count, cases[i].spm_count, "%zu: %zu", i, count);
        cr_assert_eq(fg_tokenizer_encode(spm, text, LENGTH, options, ids, 1000, &count, &err),
                     FG_BAD_INPUT);
    }
    fg_tokenizer_close(spm);
    fg_tokenizer_close(bpe);
    fg_mem_free(ids);
    fg_mem_free(text);
}

Test(tokenizer, tells_the_parts_of_special_tokens)
{
    fg_tokenizer *bpe = open_bpe("gpt-2");
    cr_assert_eq(fg_tokenizer_vocab_size(bpe), SMALL_BPE_COUNT);
    cr_assert_eq(fg_tokenizer_bos(bpe), SMALL_BPE_END_OF_TEXT);
    cr_assert_eq(fg_tokenizer_eos(bpe), SMALL_BPE_END_OF_TEXT);
    cr_assert(fg_tokenizer_is_end(bpe, SMALL_BPE_END_OF_TEXT));
    cr_assert(fg_tokenizer_is_end(bpe, SMALL_BPE_IM_END));
    cr_assert(!fg_tokenizer_is_end(bpe, SMALL_BPE_IM_START));
    cr_assert(!fg_tokenizer_is_end(bpe, SMALL_BPE_COUNT));
    cr_assert(!fg_tokenizer_is_end(bpe, FG_TOKEN_NONE));
    cr_assert_eq(fg_tokenizer_find(bpe, "<|im_end|>", 10), SMALL_BPE_IM_END);
    cr_assert_eq(fg_tokenizer_find(bpe, "<tool>", 6), SMALL_BPE_TOOL);
    cr_assert_eq(fg_tokenizer_find(bpe, " w", 2), SMALL_BPE_SPACE_W);
    cr_assert_eq(fg_tokenizer_find(bpe, "<|im_end|>x", 11), FG_TOKEN_NONE);
    cr_assert_eq(fg_tokenizer_find(bpe, "", 0), FG_TOKEN_NONE);
    size_t length;
    cr_assert_str_eq(fg_tokenizer_piece(bpe, SMALL_BPE_IM_END, false, &length), "");
    cr_assert_eq(length, 0);
    cr_assert(memcmp(fg_tokenizer_piece(bpe, SMALL_BPE_IM_END, true, &length), "<|im_end|>", 10) ==
              0);
    cr_assert_eq(length, 10);
    fg_tokenizer_piece(bpe, FG_TOKEN_NONE, true, &length);
    cr_assert_eq(length, 0);
    fg_tokenizer_close(bpe);
    fg_tokenizer *spm = open_spm(true);
    cr_assert_eq(fg_tokenizer_bos(spm), 1);
    cr_assert_eq(fg_tokenizer_eos(spm), 2);
    cr_assert(fg_tokenizer_is_end(spm, 2));
    cr_assert(!fg_tokenizer_is_end(spm, 1));
    fg_tokenizer_close(spm);
    fg_tokenizer_close(NULL);
}

/* --- refused files ---------------------------------------------------------------------------- */

typedef enum fault_kind {
    NO_MODEL,
    UNKNOWN_MODEL,
    UNKNOWN_PRE,
    NO_TOKENS,
    EMPTY_TOKENS,
    TYPES_SHORT,
    SCORES_ABSENT,
    SCORES_LONG,
    MERGES_ABSENT,
    TOKEN_TOO_LONG,
} fault_kind;

static void build_refused(fg_buf *out, fault_kind kind)
{
    static const char *const tokens[] = { "a", "b", "ab" };
    static char long_token[(1 << 16) + 2];
    memset(long_token, 'x', sizeof(long_token) - 1);
    const char *long_tokens[] = { "a", long_token };
    static const int32_t types[] = { 1, 1 };
    static const float scores[] = { 0, 0, 0, 0 };
    bool spm = kind == SCORES_ABSENT || kind == SCORES_LONG;
    fg_gguf_builder *file = fg_gguf_builder_create();
    fg_gguf_add_string(file, "general.architecture", "llama");
    if (kind != NO_MODEL) {
        fg_gguf_add_string(file, "tokenizer.ggml.model",
                           kind == UNKNOWN_MODEL ? "rwkv"
                           : spm                 ? "llama"
                                                 : "gpt2");
    }
    fg_gguf_add_string(file, "tokenizer.ggml.pre", kind == UNKNOWN_PRE ? "kimi-k2" : "gpt-2");
    if (kind == TOKEN_TOO_LONG) {
        fg_gguf_add_strings(file, "tokenizer.ggml.tokens", long_tokens, 2);
    } else if (kind != NO_TOKENS) {
        fg_gguf_add_strings(file, "tokenizer.ggml.tokens", tokens, kind == EMPTY_TOKENS ? 0 : 3);
    }
    if (kind == TYPES_SHORT) {
        fg_gguf_add_array(file, "tokenizer.ggml.token_type", FG_META_I32, types, 2);
    }
    if (kind == SCORES_LONG) {
        fg_gguf_add_array(file, "tokenizer.ggml.scores", FG_META_F32, scores, 4);
    }
    size_t size_bytes;
    void *bytes = fg_gguf_finish(file, &size_bytes);
    fg_buf_append(out, bytes, size_bytes);
    free(bytes);
    fg_gguf_builder_destroy(file);
}

Test(tokenizer, refuses_what_it_does_not_know_by_name)
{
    static const struct {
        fault_kind kind;
        const char *says;
    } cases[] = {
        { NO_MODEL, "tokenizer.ggml.model" },
        { UNKNOWN_MODEL, "'rwkv'" },
        { UNKNOWN_PRE, "'kimi-k2'" },
        { NO_TOKENS, "tokenizer.ggml.tokens" },
        { EMPTY_TOKENS, "tokenizer.ggml.tokens" },
        { TYPES_SHORT, "tokenizer.ggml.token_type" },
        { SCORES_ABSENT, "tokenizer.ggml.scores" },
        { SCORES_LONG, "tokenizer.ggml.scores" },
        { MERGES_ABSENT, "tokenizer.ggml.merges" },
        { TOKEN_TOO_LONG, "token 1 " },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fg_buf file;
        fg_buf_init(&file, 0);
        build_refused(&file, cases[i].kind);
        fg_weights *weights = NULL;
        fg_tokenizer *tokenizer = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_weights_open_memory(file.data, file.size, &weights, &err), FG_OK, "%s",
                     err.text);
        cr_assert_eq(fg_tokenizer_open(weights, &tokenizer, &err), FG_BAD_INPUT, "case %zu", i);
        cr_assert_not_null(strstr(err.text, cases[i].says), "case %zu: %s", i, err.text);
        cr_assert_null(tokenizer);
        bool by_name = cases[i].kind <= UNKNOWN_PRE;
        cr_assert_eq(fg_tokenizer_check(weights, &err), by_name ? FG_BAD_INPUT : FG_OK, "case %zu",
                     i);
        fg_weights_close(weights);
        fg_buf_deinit(&file);
    }
}

static bool try_open(void *ctx)
{
    fg_tokenizer *tokenizer = NULL;
    fg_error err;
    if (fg_tokenizer_open(ctx, &tokenizer, &err) != FG_OK) {
        return false;
    }
    fg_tokenizer_close(tokenizer);
    return true;
}

static bool try_encode(void *ctx)
{
    uint32_t ids[64];
    size_t count;
    fg_error err;
    return fg_tokenizer_encode(ctx, "hello w", 7, (fg_encode_options){ 0 }, ids, 64, &count,
                               &err) == FG_OK;
}

Test(tokenizer, survives_every_failed_allocation)
{
    for (int spm = 0; spm < 2; spm++) {
        fg_buf file;
        fg_buf_init(&file, 0);
        if (spm) {
            small_spm(&file, true);
        } else {
            small_bpe(&file, "gpt-2", NULL);
        }
        fg_weights *weights = NULL;
        fg_error err;
        cr_assert_eq(fg_weights_open_memory(file.data, file.size, &weights, &err), FG_OK);
        cr_assert(fg_fault_each(try_open, weights) >= 8);
        fg_weights_close(weights);
        fg_tokenizer *tokenizer = open_bytes(&file);
        cr_assert(fg_fault_each(try_encode, tokenizer) >= 2);
        fg_tokenizer_close(tokenizer);
        fg_buf_deinit(&file);
    }
}

/* --- what a text has at least ------------------------------------------------------------------- */

enum { LEAST_BYTES = 600 };

/* Words of the vocabulary cut anywhere, runs of one byte, letters, and bytes of any kind. */
static size_t draw_text(const fg_tokenizer *tokenizer, fg_rng *rng, char *text)
{
    size_t length = 0, most = 1 + fg_rng_below(rng, LEAST_BYTES);
    uint64_t kind = fg_rng_below(rng, 4);
    while (length < most) {
        size_t size = 1;
        char byte = (char)(kind == 2 ? 'a' + fg_rng_below(rng, 26) : fg_rng_below(rng, 256));
        const char *piece = &byte;
        for (int i = 0; kind == 0 && i < 16; i++) { /* mostly longer than a byte */
            size_t whole;
            uint32_t id = (uint32_t)fg_rng_below(rng, fg_tokenizer_vocab_size(tokenizer));
            const char *text_of = fg_tokenizer_piece(tokenizer, id, true, &whole);
            if (whole > size) {
                piece = text_of;
                size = whole - (fg_rng_below(rng, 4) == 0 ? fg_rng_below(rng, whole) : 0);
            }
        }
        size_t times = kind == 1 ? 1 + fg_rng_below(rng, 200) : 1;
        for (; times > 0 && size > 0 && length + size <= LEAST_BYTES; times--) {
            memcpy(text + length, piece, size);
            length += size;
        }
        most = length + size > LEAST_BYTES ? length : most;
    }
    return length;
}

/* Refused for what it has at least, never for more than it has: with one id more to go it is encoded as ever. */
static void check_least(const fg_tokenizer *tokenizer, const char *name, uint32_t rounds)
{
    fg_rng rng = { test_seed(__func__) };
    static uint32_t want[LEAST_BYTES + 8], have[LEAST_BYTES + 8];
    char text[LEAST_BYTES];
    uint32_t refused = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        size_t length = draw_text(tokenizer, &rng, text), count, again;
        fg_error err;
        fg_encode_options options = { .parse_special = round % 2 == 0 };
        cr_assert_eq(fg_tokenizer_encode(tokenizer, text, length, options, want, LEAST_BYTES + 8,
                                         &count, &err),
                     FG_OK);
        options.refuse_at = count + 1;
        cr_assert_eq(fg_tokenizer_encode(tokenizer, text, length, options, have, LEAST_BYTES + 8,
                                         &again, &err),
                     FG_OK, "%s: %zu ids, %s", name, count, err.text);
        check_ids(name, have, again, want, count);
        options.refuse_at = count / 8 + 1;
        fg_status status = fg_tokenizer_encode(tokenizer, text, length, options, have,
                                               LEAST_BYTES + 8, &again, &err);
        refused += status == FG_BAD_INPUT;
        cr_assert(status == FG_OK || (again > count / 8 && again <= count), "%s: %zu of %zu", name,
                  again, count);
    }
    cr_assert(refused > rounds / 20, "%s: %u of %u are refused", name, refused, rounds);
}

/* Bytes that are no part of a token are left out: nothing is needed for them. */
static fg_tokenizer *open_sparse(void)
{
    static const char *const tokens[] = { "a", "b", "ab", "bab" };
    static const char *const merges[] = { "a b", "b ab" };
    fg_gguf_builder *builder = fg_gguf_builder_create();
    fg_gguf_add_string(builder, "general.architecture", "llama");
    fg_gguf_add_string(builder, "tokenizer.ggml.model", "gpt2");
    fg_gguf_add_string(builder, "tokenizer.ggml.pre", "gpt-2");
    fg_gguf_add_strings(builder, "tokenizer.ggml.tokens", tokens, 4);
    fg_gguf_add_strings(builder, "tokenizer.ggml.merges", merges, 2);
    size_t size_bytes;
    void *bytes = fg_gguf_finish(builder, &size_bytes);
    fg_buf file;
    fg_buf_init(&file, 0);
    fg_buf_append(&file, bytes, size_bytes);
    fg_tokenizer *tokenizer = open_bytes(&file);
    fg_buf_deinit(&file);
    free(bytes);
    fg_gguf_builder_destroy(builder);
    return tokenizer;
}

Test(tokenizer, what_a_text_has_at_least_is_never_more_than_it_has)
{
    fg_tokenizer *sparse = open_sparse();
    check_least(sparse, "sparse", 3000);
    fg_tokenizer_close(sparse);
    static const char *const pres[] = { "gpt-2",  "smollm",       "llama-bpe",  "qwen2",
                                        "tekken", "deepseek-llm", "deepseek-v3" };
    for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]); i++) {
        fg_tokenizer *tokenizer = open_bpe(pres[i]);
        check_least(tokenizer, pres[i], 3000);
        fg_tokenizer_close(tokenizer);
    }
    for (int spaced = 0; spaced < 2; spaced++) {
        fg_tokenizer *tokenizer = open_spm(spaced == 1);
        check_least(tokenizer, "spm", 3000);
        fg_tokenizer_close(tokenizer);
    }
}

/* --- the corpus ------------------------------------------------------------------------------- */

static void read_command(const char *command, fg_buf *out)
{
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    size_t got;
    do {
        char *place = fg_buf_reserve(out, 1 << 16);
        cr_assert_not_null(place);
        got = fread(place, 1, 1 << 16, pipe);
        out->size += got;
    } while (got > 0);
    cr_assert_eq(pclose(pipe), 0, "failed: %s", command);
    fg_buf_append(out, "", 0);
}

/* The file of a vocabulary of the corpus, unpacked where it is packed. */
static void read_vector_file(const char *corpus, const char *model, const char *ending, fg_buf *out)
{
    char command[1024];
    fg_buf_init(out, 0);
    snprintf(command, sizeof(command), "%s '%s/tokenizers/ggml-vocab-%s.gguf%s'",
             strcmp(ending, ".xz") == 0 ? "xz -dc" : "cat", corpus, model, ending);
    read_command(command, out);
}

static void check_vectors(const char *corpus, const char *model)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    fg_buf file;
    fg_buf inputs;
    fg_buf outputs;
    read_vector_file(corpus, model, ".xz", &file);
    read_vector_file(corpus, model, ".inp", &inputs);
    read_vector_file(corpus, model, ".out", &outputs);
    fg_tokenizer *tokenizer = open_bytes(&file);
    char *line = outputs.data;
    size_t vector_count = 0;
    for (const char *text = inputs.data; text != NULL; vector_count++) {
        const char *end = strstr(text, separator);
        size_t length = end == NULL ? strlen(text) : (size_t)(end - text);
        uint32_t want[IDS_MAX];
        size_t want_count = 0;
        cr_assert(*line != '\0' || length == 0, "%s: fewer lines than texts", model);
        char *line_end = line + strcspn(line, "\n");
        for (char *at = line; at < line_end && want_count < IDS_MAX;) {
            char *next;
            unsigned long id = strtoul(at, &next, 10);
            if (next == at || next > line_end) {
                break;
            }
            want[want_count++] = (uint32_t)id;
            at = next;
        }
        uint32_t have[IDS_MAX];
        size_t count;
        fg_error err;
        cr_assert_eq(fg_tokenizer_encode(tokenizer, text, length, (fg_encode_options){ 0 }, have,
                                         IDS_MAX, &count, &err),
                     FG_OK);
        char name[96];
        snprintf(name, sizeof(name), "%s vector %zu", model, vector_count);
        check_ids(name, have, count, want, want_count);
        line = line_end + (*line_end == '\n');
        text = end == NULL ? NULL : end + sizeof(separator) - 1;
    }
    cr_assert(vector_count > 40, "%s: only %zu vectors", model, vector_count);
    cr_log_info("%s: %zu vectors equal", model, vector_count);
    check_least(tokenizer, model, 2000);
    fg_tokenizer_close(tokenizer);
    fg_buf_deinit(&file);
    fg_buf_deinit(&inputs);
    fg_buf_deinit(&outputs);
}

static void check_corpus(const char *model)
{
    const char *corpus = getenv("FORGE_CORPUS");
    if (corpus == NULL) {
        cr_skip("FORGE_CORPUS is not set");
    }
    check_vectors(corpus, model);
}

Test(tokenizer, equals_the_vectors_of_gpt_2)
{
    check_corpus("gpt-2");
}

Test(tokenizer, equals_the_vectors_of_llama_bpe)
{
    check_corpus("llama-bpe");
}

Test(tokenizer, equals_the_vectors_of_llama_spm)
{
    check_corpus("llama-spm");
}

Test(tokenizer, equals_the_vectors_of_qwen2)
{
    check_corpus("qwen2");
}
