#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/grammar/grammar_internal.h"

/* What is repeated more often than this and takes more positions than this is made a rule. */
enum { COPIES_MAX = 2, COPY_POSITIONS_MAX = 3 };
enum { CODE_MOST = 0x10FFFF, SURROGATE_FIRST = 0xD800, SURROGATE_LAST = 0xDFFF };

fg_status fg_build_init(fg_build *build, fg_error *err)
{
    memset(build, 0, sizeof *build);
    build->err = err;
    build->arena = fg_arena_create(FG_GRAMMAR_BUILD_BYTES_MAX);
    if (build->arena == NULL) {
        return fg_fail(err, FG_AGAIN, "no memory for a grammar");
    }
    fg_build_rule(build, "(none)"); /* 0 is never a rule */
    if (build->status != FG_OK) {
        fg_arena_destroy(build->arena);
    }
    return build->status;
}

void fg_build_deinit(fg_build *build)
{
    fg_arena_destroy(build->arena);
}

bool fg_build_ok(const fg_build *build)
{
    return build->status == FG_OK;
}

fg_gnode *fg_build_fail(fg_build *build, const char *format, ...)
{
    if (build->status == FG_OK) {
        char text[FG_ERROR_TEXT_MAX];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        build->status = fg_fail(build->err, FG_BAD_INPUT, "%s", text);
    }
    return NULL;
}

void *fg_build_alloc(fg_build *build, size_t count, size_t item_bytes)
{
    void *memory = NULL;
    if (build->status == FG_OK) {
        memory = fg_arena_array(build->arena, count == 0 ? 1 : count, item_bytes);
        if (memory == NULL && fg_arena_used(build->arena) + count * item_bytes >
                                  (size_t)FG_GRAMMAR_BUILD_BYTES_MAX / 2) {
            fg_build_fail(build, "the grammar is too large");
        } else if (memory == NULL) {
            build->status = fg_fail(build->err, FG_AGAIN, "no memory for a grammar");
        }
    }
    return memory;
}

/* Room for one more item: the array or a larger copy of it. NULL fails the build. */
static void *grown(fg_build *build, void *items, uint32_t count, uint32_t *capacity,
                   size_t item_bytes)
{
    if (count < *capacity) {
        return items;
    }
    uint32_t larger = *capacity == 0 ? 4 : *capacity * 2;
    void *copy = fg_build_alloc(build, larger, item_bytes);
    if (copy != NULL) {
        if (count > 0) {
            memcpy(copy, items, count * item_bytes);
        }
        *capacity = larger;
    }
    return copy;
}

static fg_gnode *make(fg_build *build, fg_gnode_kind kind, uint32_t number, uint64_t size)
{
    fg_gnode *node = (fg_gnode *)fg_build_alloc(build, 1, sizeof *node);
    if (node != NULL) {
        node->kind = kind;
        node->number = number;
        node->size = size;
    }
    return node;
}

fg_gnode *fg_build_empty(fg_build *build)
{
    return make(build, FG_NODE_EMPTY, 0, 0);
}

fg_gnode *fg_build_never(fg_build *build)
{
    return make(build, FG_NODE_NEVER, 0, 0);
}

fg_gnode *fg_build_set(fg_build *build, const fg_byte_set *set)
{
    if (!fg_build_ok(build)) {
        return NULL;
    }
    uint32_t bucket =
        fg_hash64(set, sizeof *set, 0) % (sizeof build->set_buckets / sizeof build->set_buckets[0]);
    uint32_t at = build->set_buckets[bucket];
    while (at != 0 && memcmp(&build->sets[at - 1], set, sizeof *set) != 0) {
        at = build->set_chain[at - 1];
    }
    if (at == 0) {
        uint32_t capacity = build->set_capacity;
        fg_byte_set *sets =
            (fg_byte_set *)grown(build, build->sets, build->set_count, &capacity, sizeof *sets);
        uint32_t *chain = (uint32_t *)grown(build, build->set_chain, build->set_count,
                                            &build->set_capacity, sizeof *chain);
        if (sets == NULL || chain == NULL) {
            return NULL;
        }
        build->sets = sets;
        build->set_chain = chain;
        build->sets[build->set_count] = *set;
        build->set_chain[build->set_count] = build->set_buckets[bucket];
        at = ++build->set_count;
        build->set_buckets[bucket] = at;
    }
    return make(build, FG_NODE_SET, at - 1, 1);
}

fg_gnode *fg_build_bytes(fg_build *build, const char *bytes, size_t length)
{
    fg_gnode *node = make(build, FG_NODE_BYTES, (uint32_t)length, length);
    char *copy = (char *)fg_build_alloc(build, length, 1);
    if (node == NULL || copy == NULL) {
        return NULL;
    }
    if (length > 0) {
        memcpy(copy, bytes, length);
    }
    node->bytes = copy;
    return node;
}

fg_gnode *fg_build_text(fg_build *build, const char *text)
{
    return fg_build_bytes(build, text, strlen(text));
}

void fg_list_add(fg_build *build, fg_glist *list, fg_gnode *node)
{
    fg_gnode **items =
        (fg_gnode **)grown(build, list->items, list->count, &list->capacity, sizeof *items);
    if (items != NULL && node != NULL) {
        list->items = items;
        list->items[list->count++] = node;
    }
}

static fg_gnode *list_node(fg_build *build, fg_gnode_kind kind, const fg_glist *list)
{
    fg_gnode *node = make(build, kind, list->count, 0);
    if (node == NULL) {
        return NULL;
    }
    node->items = list->items;
    for (uint32_t i = 0; i < list->count; i++) {
        node->size += list->items[i]->size + (kind == FG_NODE_ALT);
    }
    return node;
}

fg_gnode *fg_build_cat(fg_build *build, const fg_glist *list)
{
    if (list->count == 1 && fg_build_ok(build)) {
        return list->items[0];
    }
    return list_node(build, FG_NODE_CAT, list);
}

/* Sets among the alternatives become one; what never matches is left out. */
fg_gnode *fg_build_alt(fg_build *build, const fg_glist *list)
{
    fg_byte_set all = { { 0 } };
    fg_glist rest = { 0 };
    uint32_t sets = 0;
    for (uint32_t i = 0; i < list->count && fg_build_ok(build); i++) {
        fg_gnode *item = list->items[i];
        if (item->kind == FG_NODE_SET) {
            sets++;
            for (int word = 0; word < 4; word++) {
                all.bits[word] |= build->sets[item->number].bits[word];
            }
        } else if (item->kind == FG_NODE_BYTES && item->number == 1) {
            sets++;
            fg_byte_set_add(&all, (unsigned char)item->bytes[0], (unsigned char)item->bytes[0]);
        } else if (item->kind != FG_NODE_NEVER) {
            fg_list_add(build, &rest, item);
        }
    }
    if (sets > 0) {
        fg_list_add(build, &rest, fg_build_set(build, &all));
    }
    if (!fg_build_ok(build)) {
        return NULL;
    }
    if (rest.count == 0) {
        return fg_build_never(build);
    }
    return rest.count == 1 ? rest.items[0] : list_node(build, FG_NODE_ALT, &rest);
}

fg_gnode *fg_build_seq(fg_build *build, uint32_t count, ...)
{
    fg_glist list = { 0 };
    va_list arguments;
    va_start(arguments, count);
    for (uint32_t i = 0; i < count; i++) {
        fg_list_add(build, &list, va_arg(arguments, fg_gnode *));
    }
    va_end(arguments);
    return fg_build_ok(build) ? fg_build_cat(build, &list) : NULL;
}

fg_gnode *fg_build_or(fg_build *build, uint32_t count, ...)
{
    fg_glist list = { 0 };
    va_list arguments;
    va_start(arguments, count);
    for (uint32_t i = 0; i < count; i++) {
        fg_list_add(build, &list, va_arg(arguments, fg_gnode *));
    }
    va_end(arguments);
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

fg_gnode *fg_build_repeat(fg_build *build, fg_gnode *node, uint32_t least, uint32_t most)
{
    if (node == NULL || !fg_build_ok(build)) {
        return NULL;
    }
    if (most < least) {
        return fg_build_never(build);
    }
    uint64_t copies = most == FG_REPEAT_ENDLESS ? (uint64_t)least + 1 : most;
    if (copies > COPIES_MAX && node->size > COPY_POSITIONS_MAX) {
        uint32_t rule = fg_build_rule(build, "a repetition");
        fg_build_define(build, rule, node);
        node = fg_build_call(build, rule);
    }
    fg_gnode *repeat = node == NULL ? NULL : make(build, FG_NODE_REPEAT, least, 0);
    if (repeat == NULL) {
        return NULL;
    }
    repeat->most = most;
    repeat->size = copies * (node->size + 1);
    repeat->items = (fg_gnode **)fg_build_alloc(build, 1, sizeof *repeat->items);
    if (repeat->items == NULL) {
        return NULL;
    }
    repeat->items[0] = node;
    if (repeat->size > FG_GRAMMAR_POSITIONS_MAX) {
        return fg_build_fail(build,
                             "the grammar is too large when its repetitions are written out");
    }
    return repeat;
}

fg_gnode *fg_build_maybe(fg_build *build, fg_gnode *node)
{
    return fg_build_repeat(build, node, 0, 1);
}

uint32_t fg_build_rule(fg_build *build, const char *name)
{
    uint32_t capacity = build->rule_capacity;
    fg_gnode **rules =
        (fg_gnode **)grown(build, build->rules, build->rule_count, &capacity, sizeof *rules);
    const char **names = (const char **)grown(build, build->rule_names, build->rule_count,
                                              &build->rule_capacity, sizeof *names);
    if (rules == NULL || names == NULL) {
        return 0;
    }
    build->rules = rules;
    build->rule_names = names;
    build->rules[build->rule_count] = NULL;
    build->rule_names[build->rule_count] = name;
    return build->rule_count++;
}

void fg_build_define(fg_build *build, uint32_t rule, fg_gnode *node)
{
    if (rule != 0) {
        build->rules[rule] = node;
    }
}

fg_gnode *fg_build_call(fg_build *build, uint32_t rule)
{
    return make(build, FG_NODE_CALL, rule, 1);
}

/* --- many texts ------------------------------------------------------------------------------------ */

static int text_order(const void *left, const void *right)
{
    const fg_text *a = (const fg_text *)left;
    const fg_text *b = (const fg_text *)right;
    size_t both = a->length < b->length ? a->length : b->length;
    int order = both == 0 ? 0 : memcmp(a->bytes, b->bytes, both);
    return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

static size_t common_length(const fg_text *a, const fg_text *b)
{
    size_t at = 0;
    while (at < a->length && at < b->length && a->bytes[at] == b->bytes[at]) {
        at++;
    }
    return at;
}

/* Sorted texts that are alike up to `at`. What all of them share is one run of bytes; each level below has at least
 * one text less, and texts that share much are few: the depth is what nested prefixes make it. */
static fg_gnode *tree_of(fg_build *build, const fg_text *texts, size_t count, size_t at,
                         unsigned depth)
{
    if (depth > 1000) {
        return fg_build_fail(build, "too many texts that begin with each other");
    }
    size_t shared = common_length(&texts[0], &texts[count - 1]);
    fg_glist branches = { 0 };
    size_t first = 0;
    while (first < count && texts[first].length == shared) {
        first++;
    }
    if (first > 0) {
        fg_list_add(build, &branches, fg_build_empty(build));
    }
    while (first < count && fg_build_ok(build)) {
        size_t last = first + 1;
        while (last < count && texts[last].bytes[shared] == texts[first].bytes[shared]) {
            last++;
        }
        fg_list_add(build, &branches,
                    tree_of(build, texts + first, last - first, shared, depth + 1));
        first = last;
    }
    return fg_build_seq(build, 2, fg_build_bytes(build, texts[0].bytes + at, shared - at),
                        fg_build_alt(build, &branches));
}

void fg_texts_sort(fg_text *texts, size_t count)
{
    if (count > 1) {
        qsort(texts, count, sizeof *texts, text_order);
    }
}

fg_gnode *fg_build_texts(fg_build *build, fg_text *texts, size_t count)
{
    if (count == 0) {
        return fg_build_never(build);
    }
    fg_texts_sort(texts, count);
    return tree_of(build, texts, count, 0, 0);
}

/* --- characters ------------------------------------------------------------------------------------ */

void fg_chars_add(fg_build *build, fg_chars *chars, uint32_t first, uint32_t last)
{
    fg_char_range *ranges = (fg_char_range *)grown(build, chars->ranges, chars->count,
                                                   &chars->capacity, sizeof *ranges);
    if (ranges != NULL && first <= last) {
        chars->ranges = ranges;
        chars->ranges[chars->count++] = (fg_char_range){ first, last };
    }
}

static int range_order(const void *left, const void *right)
{
    const fg_char_range *a = (const fg_char_range *)left;
    const fg_char_range *b = (const fg_char_range *)right;
    return (a->first > b->first) - (a->first < b->first);
}

void fg_chars_settle(fg_chars *chars)
{
    if (chars->count > 1) {
        qsort(chars->ranges, chars->count, sizeof *chars->ranges, range_order);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < chars->count; i++) {
        fg_char_range range = chars->ranges[i];
        if (kept > 0 && range.first <= chars->ranges[kept - 1].last + 1) {
            if (range.last > chars->ranges[kept - 1].last) {
                chars->ranges[kept - 1].last = range.last;
            }
        } else {
            chars->ranges[kept++] = range;
        }
    }
    chars->count = kept;
}

void fg_chars_remove(fg_build *build, fg_chars *chars, const fg_chars *without)
{
    fg_chars left = { 0 };
    uint32_t w = 0;
    for (uint32_t i = 0; i < chars->count; i++) {
        uint32_t first = chars->ranges[i].first;
        uint32_t last = chars->ranges[i].last;
        while (w < without->count && without->ranges[w].last < first) {
            w++;
        }
        for (uint32_t j = w; j < without->count && without->ranges[j].first <= last; j++) {
            if (without->ranges[j].first > first) {
                fg_chars_add(build, &left, first, without->ranges[j].first - 1);
            }
            first = without->ranges[j].last + 1;
        }
        if (first <= last) {
            fg_chars_add(build, &left, first, last);
        }
    }
    *chars = left;
}

void fg_chars_invert(fg_build *build, fg_chars *chars)
{
    fg_chars all = { 0 };
    fg_chars_add(build, &all, 0, CODE_MOST);
    fg_chars_settle(chars);
    fg_chars_remove(build, &all, chars);
    *chars = all;
}

static unsigned encode(uint32_t code, unsigned char bytes[4])
{
    if (code < 0x80) {
        bytes[0] = (unsigned char)code;
        return 1;
    }
    unsigned length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (unsigned i = length - 1; i > 0; i--, code >>= 6) {
        bytes[i] = (unsigned char)(0x80 | (code & 0x3F));
    }
    bytes[0] = (unsigned char)(lead[length] | code);
    return length;
}

/* Characters whose codings have the same length and differ in a way that ranges of bytes can say. */
static void add_sequence(fg_build *build, fg_glist *list, uint32_t first, uint32_t last)
{
    unsigned char low[4], high[4];
    unsigned length = encode(first, low);
    encode(last, high);
    fg_glist bytes = { 0 };
    for (unsigned i = 0; i < length; i++) {
        fg_byte_set set = { { 0 } };
        fg_byte_set_add(&set, low[i], high[i]);
        fg_list_add(build, &bytes, fg_build_set(build, &set));
    }
    if (fg_build_ok(build)) {
        fg_list_add(build, list, fg_build_cat(build, &bytes));
    }
}

static void add_range(fg_build *build, fg_glist *list, uint32_t first, uint32_t last)
{
    static const uint32_t ends[] = { 0x7F, 0x7FF, 0xFFFF, CODE_MOST };
    while (first <= last && fg_build_ok(build)) {
        uint32_t end = last;
        for (unsigned i = 0; i < 4; i++) {
            if (first <= ends[i]) {
                end = end > ends[i] ? ends[i] : end;
                break;
            }
        }
        if (first <= SURROGATE_LAST && end >= SURROGATE_FIRST) {
            if (first >= SURROGATE_FIRST) {
                first = SURROGATE_LAST + 1;
                continue;
            }
            end = SURROGATE_FIRST - 1;
        }
        for (uint32_t low = 0x3F; low <= 0x3FFFF && first >= 0x80; low = low << 6 | 0x3F) {
            if ((first & ~low) != (end & ~low)) {
                if ((first & low) != 0) {
                    end = first | low;
                    break;
                }
                if ((end & low) != low) {
                    end = (end & ~low) - 1;
                }
            }
        }
        add_sequence(build, list, first, end);
        first = end + 1;
    }
}

/* What must be escaped inside a JSON string, in the shortest way. */
static void add_escaped(fg_build *build, fg_glist *list, uint32_t code)
{
    static const char letters[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    char text[16];
    snprintf(text, sizeof text, "\\u%04X", code);
    for (size_t i = 0; i + 1 < sizeof letters; i += 2) {
        if ((uint32_t)(unsigned char)letters[i] == code) {
            snprintf(text, sizeof text, "\\%c", letters[i + 1]);
        }
    }
    fg_list_add(build, list, fg_build_text(build, text));
    for (char *c = text + 2; text[1] == 'u' && *c != '\0'; c++) {
        if (*c >= 'A') { /* the same in small letters */
            *c = (char)(*c + 'a' - 'A');
            fg_list_add(build, list, fg_build_text(build, text));
        }
    }
}

fg_gnode *fg_build_chars(fg_build *build, fg_chars *chars, fg_spelling spelling)
{
    fg_glist list = { 0 };
    fg_chars_settle(chars);
    if (spelling == FG_SPELL_JSON) {
        fg_chars escaped = { 0 };
        fg_chars_add(build, &escaped, 0, 0x1F);
        fg_chars_add(build, &escaped, '"', '"');
        fg_chars_add(build, &escaped, '\\', '\\');
        for (uint32_t i = 0; i < chars->count && fg_build_ok(build); i++) {
            uint32_t last = chars->ranges[i].last < '\\' ? chars->ranges[i].last : '\\';
            for (uint32_t code = chars->ranges[i].first; code <= last; code++) {
                /* \u0000 is nothing that readers agree on. */
                if (code != 0 && (code < 0x20 || code == '"' || code == '\\')) {
                    add_escaped(build, &list, code);
                }
            }
        }
        fg_chars plain = *chars;
        fg_chars_remove(build, &plain, &escaped);
        *chars = plain;
    }
    for (uint32_t i = 0; i < chars->count && fg_build_ok(build); i++) {
        add_range(build, &list, chars->ranges[i].first, chars->ranges[i].last);
    }
    return fg_build_ok(build) ? fg_build_alt(build, &list) : NULL;
}

bool fg_repeat_number(const char *text, size_t length, size_t *at, uint32_t *number_out)
{
    size_t began = *at;
    uint32_t number = 0;
    while (*at < length && text[*at] >= '0' && text[*at] <= '9') {
        number = number * 10 + (uint32_t)(text[(*at)++] - '0');
        number = number > FG_GRAMMAR_REPEAT_MAX ? FG_GRAMMAR_REPEAT_MAX + 1 : number;
    }
    *number_out = number;
    return *at > began;
}
