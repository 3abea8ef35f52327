/* Models that may guess for each other, and what is said of those that may not. */
#include "common/model/vocab_pair.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

enum { TOKENS = 5, PADDED = 7 };

typedef struct vocabulary {
    const char *kind;
    const char *texts[PADDED];
    uint32_t count;
    int32_t types[PADDED];
    uint32_t eos, eot; /* 99: none */
} vocabulary;

static const vocabulary plain = { "gpt2", { "a", "b", "c", "<end>", "<more>" },
                                  TOKENS, { 1, 1, 1, 3, 3 },
                                  3,      99 };

typedef struct file {
    void *bytes;
    fg_weights *weights;
} file;

static file make(const vocabulary *v)
{
    file f;
    size_t size_bytes;
    fg_error err = { 0 };
    fg_gguf_builder *builder = fg_gguf_builder_create();
    if (v->kind != NULL) {
        fg_gguf_add_string(builder, "tokenizer.ggml.model", v->kind);
    }
    if (v->count > 0) {
        fg_gguf_add_strings(builder, "tokenizer.ggml.tokens", v->texts, v->count);
        fg_gguf_add_array(builder, "tokenizer.ggml.token_type", FG_META_I32, v->types, v->count);
    }
    if (v->eos != 99) {
        fg_gguf_add_u32(builder, "tokenizer.ggml.eos_token_id", v->eos);
    }
    if (v->eot != 99) {
        fg_gguf_add_u32(builder, "tokenizer.ggml.eot_token_id", v->eot);
    }
    f.bytes = fg_gguf_finish(builder, &size_bytes);
    fg_gguf_builder_destroy(builder);
    cr_assert_eq(fg_weights_open_memory(f.bytes, size_bytes, &f.weights, &err), FG_OK, "%s",
                 err.text);
    return f;
}

static void unmake(file *f)
{
    fg_weights_close(f->weights);
    free(f->bytes);
}

Test(vocab_pair, what_differs_is_said)
{
    static const struct {
        const char *name, *says; /* NULL: nothing differs */
        vocabulary draft;
    } cases[] = {
        { "the same",
          NULL,
          { "gpt2", { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "another kind",
          "of another kind: \"llama\", the model's \"gpt2\"",
          { "llama", { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "no kind",
          "of another kind: \"\"",
          { NULL, { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "fewer",
          "it has 4 tokens, the model 5, and those beyond are in use",
          { "gpt2", { "a", "b", "c", "<end>" }, 4, { 1, 1, 1, 3 }, 3, 99 } },
        { "more, unused",
          NULL,
          { "gpt2",
            { "a", "b", "c", "<end>", "<more>", "[PAD5]", "[PAD6]" },
            PADDED,
            { 1, 1, 1, 3, 3, 5, 5 },
            3,
            99 } },
        { "more, one of them in use",
          "it has 7 tokens, the model 5, and those beyond are in use",
          { "gpt2",
            { "a", "b", "c", "<end>", "<more>", "[PAD5]", "d" },
            PADDED,
            { 1, 1, 1, 3, 3, 5, 1 },
            3,
            99 } },
        { "more, and another text before them",
          "its token 1 is \"B\", the model's \"b\"",
          { "gpt2",
            { "a", "B", "c", "<end>", "<more>", "[PAD5]" },
            6,
            { 1, 1, 1, 3, 3, 5 },
            3,
            99 } },
        { "none", "has no vocabulary", { "gpt2", { NULL }, 0, { 0 }, 3, 99 } },
        { "another text",
          "its token 1 is \"B\", the model's \"b\"",
          { "gpt2", { "a", "B", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "a longer text",
          "its token 4 is \"<more>>\"",
          { "gpt2", { "a", "b", "c", "<end>", "<more>>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "a text that would break the line",
          "its token 2 is \"..c\"",
          { "gpt2", { "a", "b", "\n\"c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "two in each other's place",
          "its token 0 is \"b\"",
          { "gpt2", { "b", "a", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 99 } },
        { "another type",
          "its token 4 is of type 1, the model's of 3",
          { "gpt2", { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 1 }, 3, 99 } },
        { "another end",
          "its eos token is 4, the model's 3",
          { "gpt2", { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 4, 99 } },
        { "no end",
          "its eos token is -1",
          { "gpt2", { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 99, 99 } },
        { "one end more",
          "its eot token is 4, the model's -1",
          { "gpt2", { "a", "b", "c", "<end>", "<more>" }, TOKENS, { 1, 1, 1, 3, 3 }, 3, 4 } },
    };
    file model = make(&plain);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_error err = { 0 };
        file draft = make(&cases[i].draft);
        fg_status status = fg_vocab_pair_check(model.weights, draft.weights, &err);
        cr_assert_eq(status, cases[i].says == NULL ? FG_OK : FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert(cases[i].says == NULL || strstr(err.text, cases[i].says) != NULL, "%s: %s",
                  cases[i].name, err.text);
        cr_assert(strchr(err.text, '\n') == NULL, "%s", cases[i].name);
        if (cases[i].says == NULL) { /* nor the other way round */
            cr_assert_eq(fg_vocab_pair_check(draft.weights, model.weights, &err), FG_OK);
        }
        unmake(&draft);
    }
    unmake(&model);
}
