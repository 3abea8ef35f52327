#include <string.h>

#include "common/model/folder_internal.h"

enum { STEPS_MAX = 8, NESTED_MAX = 4 };

/* The steps of a pre-tokenizer or a normalizer, sequences undone. */
typedef struct steps {
    const fg_json_node *items[STEPS_MAX];
    uint32_t count;
} steps;

static bool is_true(const fg_json_node *object, const char *name, bool otherwise)
{
    bool value = otherwise;
    (void)fg_json_bool(fg_json_get(object, name), &value);
    return value;
}

/* False: more than so many steps, or nested too deeply. */
static bool collect(const fg_json_node *node, const char *list_name, uint32_t depth, steps *out)
{
    if (node == NULL || fg_json_is(node, FG_JSON_NULL)) {
        return true;
    }
    if (!fg_folder_says(fg_json_get(node, "type"), "Sequence")) {
        if (out->count == STEPS_MAX) {
            return false;
        }
        out->items[out->count++] = node;
        return true;
    }
    const fg_json_node *list = fg_json_get(node, list_name);
    bool fits = depth < NESTED_MAX && fg_json_is(list, FG_JSON_ARRAY);
    for (size_t i = 0; fits && i < fg_json_size(list); i++) {
        fits = collect(fg_json_at(list, i), list_name, depth + 1, out);
    }
    return fits;
}

/* ---- byte-level BPE ---- */

/* Expressions as published models have them, and the GGUF name of what cuts the same. */
typedef struct expression {
    const char *text;
    const char *pre;
} expression;

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define BEFORE       "[^\\r\\n\\p{L}\\p{N}]?"

static const expression expressions[] = {
    { CONTRACTIONS "|" BEFORE "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES,
      "dbrx" },
    { CONTRACTIONS "|" BEFORE "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, "qwen2" },
    { CONTRACTIONS "|" BEFORE "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES,
      "qwen35" },
    { BEFORE UPPER "*" LOWER "+|" BEFORE UPPER "+" LOWER
                   "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
      "tekken" },
    { BEFORE UPPER "*" LOWER "+" CONTRACTIONS "?|" BEFORE UPPER "+" LOWER "*" CONTRACTIONS
                   "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
      "gpt-4o" },
    { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
      "gpt-2" },
    { "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "gpt-2" },
};

/* A Split that leaves every match as a word; each of the expressions matches all there is. */
static const char *pre_of_split(const fg_json_node *step)
{
    const fg_json_node *regex = fg_json_get(fg_json_get(step, "pattern"), "Regex");
    bool invert = is_true(step, "invert", false);
    const fg_json_node *behavior = fg_json_get(step, "behavior");
    if (!fg_folder_says(behavior, "Isolated") && !(fg_folder_says(behavior, "Removed") && invert)) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof expressions / sizeof expressions[0]; i++) {
        if (fg_folder_says(regex, expressions[i].text)) {
            return expressions[i].pre;
        }
    }
    return NULL;
}

/* NULL: none that is known. */
static const char *byte_level_pre(const steps *cuts)
{
    const fg_json_node *last = cuts->count == 0 ? NULL : cuts->items[cuts->count - 1];
    if (!fg_folder_says(fg_json_get(last, "type"), "ByteLevel") || cuts->count > 2 ||
        is_true(last, "add_prefix_space", true)) {
        return NULL;
    }
    bool by_gpt2 = is_true(last, "use_regex", true);
    if (cuts->count == 1) {
        return by_gpt2 ? "gpt-2" : NULL;
    }
    const fg_json_node *first = cuts->items[0];
    const fg_json_node *type = fg_json_get(first, "type");
    if (by_gpt2) {
        return fg_folder_says(type, "Digits") && is_true(first, "individual_digits", false)
                   ? "smollm"
                   : NULL;
    }
    return fg_folder_says(type, "Split") ? pre_of_split(first) : NULL;
}

/* ---- SentencePiece's ---- */

static const char BLANK[] = "\xE2\x96\x81"; /* U+2581, which stands for a space */

static bool turns_spaces(const fg_json_node *step)
{
    return fg_folder_says(fg_json_get(step, "type"), "Replace") &&
           fg_folder_says(fg_json_get(fg_json_get(step, "pattern"), "String"), " ") &&
           fg_folder_says(fg_json_get(step, "content"), BLANK);
}

/* What spaces become and whether one is put before a text: in the normalizer, or in the pre-tokenizer as Metaspace. The only
 * other step there may be cuts at spaces, of which there are none by then. */
static bool read_spm(const steps *normal, const steps *cuts, fg_folder_cuts *out)
{
    bool turned = false, prefix = false;
    for (uint32_t i = 0; i < normal->count; i++) {
        const fg_json_node *step = normal->items[i];
        bool puts = fg_folder_says(fg_json_get(step, "type"), "Prepend") &&
                    fg_folder_says(fg_json_get(step, "prepend"), BLANK);
        if (puts == turns_spaces(step) || turned) {
            return false;
        }
        prefix = prefix || puts;
        turned = !puts;
    }
    for (uint32_t i = 0; i < cuts->count; i++) {
        const fg_json_node *step = cuts->items[i];
        const fg_json_node *type = fg_json_get(step, "type");
        const fg_json_node *pattern = fg_json_get(fg_json_get(step, "pattern"), "String");
        if (turned && fg_folder_says(type, "Split") && fg_folder_says(pattern, " ")) {
            continue;
        }
        const fg_json_node *scheme = fg_json_get(step, "prepend_scheme");
        bool never = fg_folder_says(scheme, "never");
        if (turned || !fg_folder_says(type, "Metaspace") || is_true(step, "split", true) ||
            !fg_folder_says(fg_json_get(step, "replacement"), BLANK) ||
            !(never || fg_folder_says(scheme, "first"))) {
            return false;
        }
        turned = true;
        prefix = !never;
        out->first_only = prefix;
    }
    out->space_prefix = prefix;
    return turned;
}

/* ---- both ---- */

static fg_status refuse(const steps *list, const char *what, fg_error *err)
{
    const char *type = "";
    for (uint32_t i = 0; i < list->count && type[0] == '\0'; i++) {
        const char *text = fg_json_string(fg_json_get(list->items[i], "type"), NULL);
        type = text != NULL ? text : "";
    }
    return fg_fail(err, FG_BAD_INPUT,
                   "tokenizer.json: its %s (%.40s) is not one that is known: take a GGUF file of "
                   "the model",
                   what, type);
}

fg_status fg_folder_read_cuts(const fg_json_node *tokenizer, fg_folder_cuts *cuts_out,
                              fg_error *err)
{
    steps normal = { .count = 0 }, cuts = { .count = 0 };
    if (!collect(fg_json_get(tokenizer, "normalizer"), "normalizers", 0, &normal)) {
        return refuse(&normal, "normalizer", err);
    }
    if (!collect(fg_json_get(tokenizer, "pre_tokenizer"), "pretokenizers", 0, &cuts)) {
        return refuse(&cuts, "pre_tokenizer", err);
    }
    *cuts_out =
        (fg_folder_cuts){ .spm = is_true(fg_json_get(tokenizer, "model"), "byte_fallback", false) };
    if (cuts_out->spm) {
        return read_spm(&normal, &cuts, cuts_out)
                   ? FG_OK
                   : refuse(cuts.count > 0 ? &cuts : &normal, "way to treat spaces", err);
    }
    /* NFC changes nothing in texts as people send them; GGUF files do not even say that a model has it. */
    for (uint32_t i = 0; i < normal.count; i++) {
        if (!fg_folder_says(fg_json_get(normal.items[i], "type"), "NFC")) {
            return refuse(&normal, "normalizer", err);
        }
    }
    cuts_out->pre = byte_level_pre(&cuts);
    return cuts_out->pre != NULL ? FG_OK : refuse(&cuts, "pre_tokenizer", err);
}
