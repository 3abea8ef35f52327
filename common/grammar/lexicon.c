#include "common/grammar/lexicon.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/grammar/lexicon_internal.h"

/* A token while they are sorted: its first bytes as a number, so that most are told apart at once. */
typedef struct entry {
    uint64_t head;
    const char *text;
    uint32_t length;
    uint32_t id;
} entry;

enum { HEAD_BYTES = 8 };

static int entry_order(const void *left, const void *right)
{
    const entry *a = (const entry *)left;
    const entry *b = (const entry *)right;
    if (a->head != b->head) {
        return a->head < b->head ? -1 : 1;
    }
    uint32_t both = a->length < b->length ? a->length : b->length;
    int order = both <= HEAD_BYTES
                    ? 0
                    : memcmp(a->text + HEAD_BYTES, b->text + HEAD_BYTES, both - HEAD_BYTES);
    if (order != 0) {
        return order;
    }
    if (a->length != b->length) {
        return a->length < b->length ? -1 : 1;
    }
    return (a->id > b->id) - (a->id < b->id);
}

static uint64_t head_of(const char *text, uint32_t length)
{
    uint64_t head = 0;
    for (uint32_t i = 0; i < HEAD_BYTES; i++) {
        head = head << 8 | (i < length ? (unsigned char)text[i] : 0);
    }
    return head;
}

/* Copies texts, end marks. */
static fg_status read_tokens(fg_lexicon *lexicon, fg_lexicon_text_fn *text, fg_lexicon_end_fn *end,
                             void *ctx, fg_error *err)
{
    fg_buf texts;
    fg_buf_init(&texts, 0);
    for (uint32_t id = 0; id < lexicon->count; id++) {
        size_t length = 0;
        lexicon->text_at[id] = (uint32_t)texts.size;
        if (end(ctx, id)) {
            lexicon->is_end[id / 64] |= (uint64_t)1 << (id % 64);
            lexicon->end_count++;
            continue;
        }
        const char *bytes = text(ctx, id, &length);
        if (length > 0 && length <= FG_LEXICON_TOKEN_BYTES_MAX) {
            fg_buf_append(&texts, bytes, length);
        }
    }
    fg_buf_putc(&texts, '\0');
    if (texts.failed || texts.size > UINT32_MAX) {
        fg_buf_deinit(&texts);
        return fg_fail(err, FG_AGAIN, "no memory for the texts of a vocabulary");
    }
    lexicon->text_at[lexicon->count] = (uint32_t)texts.size - 1;
    lexicon->texts = texts.data;
    uint32_t ends = 0;
    lexicon->ends = (uint32_t *)fg_mem_array(lexicon->end_count + 1, sizeof *lexicon->ends);
    for (uint32_t id = 0; lexicon->ends != NULL && id < lexicon->count; id++) {
        if (fg_lexicon_is_end(lexicon, id)) {
            lexicon->ends[ends++] = id;
        }
    }
    return lexicon->ends == NULL ? fg_fail(err, FG_AGAIN, "no memory for a vocabulary") : FG_OK;
}

static uint32_t common_length(const entry *a, const entry *b)
{
    uint32_t at = 0;
    while (at < a->length && at < b->length && a->text[at] == b->text[at]) {
        at++;
    }
    return at;
}

static bool take_nodes(fg_lexicon *lexicon, uint32_t nodes, uint32_t tokens)
{
    lexicon->node_count = nodes;
    lexicon->byte = (uint8_t *)fg_mem_array(nodes + 1, sizeof *lexicon->byte);
    lexicon->behind = (uint32_t *)fg_mem_array(nodes + 1, sizeof *lexicon->behind);
    lexicon->tokens = (uint32_t *)fg_mem_array(nodes + 1, sizeof *lexicon->tokens);
    lexicon->height = (uint16_t *)fg_mem_array(nodes + 1, sizeof *lexicon->height);
    lexicon->used = (fg_ascii_set *)fg_mem_array(nodes + 1, sizeof *lexicon->used);
    lexicon->utf8 = (uint8_t *)fg_mem_array(nodes + 1, sizeof *lexicon->utf8);
    lexicon->ids = (uint32_t *)fg_mem_array(tokens + 1, sizeof *lexicon->ids);
    return lexicon->byte != NULL && lexicon->behind != NULL && lexicon->tokens != NULL &&
           lexicon->height != NULL && lexicon->used != NULL && lexicon->utf8 != NULL &&
           lexicon->ids != NULL;
}

/* A node is complete: what lies below it ends before `node_end`. */
static void close_node(fg_lexicon *lexicon, uint32_t node, uint32_t node_end)
{
    unsigned bit = fg_ascii_bit(lexicon->byte[node]);
    lexicon->behind[node] = node_end;
    lexicon->height[node]++;
    lexicon->used[node].bits[bit / 64] |= (uint64_t)1 << (bit % 64);
    unsigned below = lexicon->utf8[node];
    lexicon->utf8[node] = 0;
    for (unsigned state = 0; state < FG_UTF8_STATES; state++) {
        fg_utf8_state next = fg_utf8_next((fg_utf8_state)state, lexicon->byte[node]);
        bool valid = next != FG_UTF8_STATES && (below >> next & 1);
        lexicon->utf8[node] |= (uint8_t)(valid << state);
    }
}

static void tell_parent(fg_lexicon *lexicon, uint32_t parent, uint32_t node)
{
    if (lexicon->height[parent] < lexicon->height[node]) {
        lexicon->height[parent] = lexicon->height[node];
    }
    lexicon->used[parent].bits[0] |= lexicon->used[node].bits[0];
    lexicon->used[parent].bits[1] |= lexicon->used[node].bits[1];
    lexicon->utf8[parent] &= lexicon->utf8[node];
}

static void fill_nodes(fg_lexicon *lexicon, const entry *entries, uint32_t count, uint32_t *path)
{
    uint32_t depth = 0;
    uint32_t node = 0;
    for (uint32_t i = 0; i <= count; i++) {
        uint32_t shared = i == 0 || i == count ? 0 : common_length(&entries[i - 1], &entries[i]);
        while (depth > shared) {
            close_node(lexicon, path[depth - 1], node);
            depth--;
            if (depth > 0) {
                tell_parent(lexicon, path[depth - 1], path[depth]);
            }
        }
        if (i == count) {
            break;
        }
        while (depth < entries[i].length) {
            lexicon->byte[node] = (uint8_t)entries[i].text[depth];
            lexicon->tokens[node] = i;
            lexicon->utf8[node] = UINT8_MAX; /* all states, until a byte says otherwise */
            path[depth++] = node++;
        }
        lexicon->ids[i] = entries[i].id;
    }
    lexicon->tokens[node] = count;
}

static fg_status make_tree(fg_lexicon *lexicon, fg_error *err)
{
    fg_status status = FG_OK;
    uint32_t count = 0;
    uint32_t nodes = 0;
    uint32_t path[FG_LEXICON_TOKEN_BYTES_MAX];
    entry *entries = (entry *)fg_mem_array(lexicon->count, sizeof *entries);
    if (entries == NULL) {
        return fg_fail(err, FG_AGAIN, "no memory for a vocabulary");
    }
    for (uint32_t id = 0; id < lexicon->count; id++) {
        size_t length;
        const char *text = fg_lexicon_text(lexicon, id, &length);
        if (length > 0) {
            entries[count++] =
                (entry){ head_of(text, (uint32_t)length), text, (uint32_t)length, id };
            lexicon->longest = length > lexicon->longest ? (uint16_t)length : lexicon->longest;
        }
    }
    qsort(entries, count, sizeof *entries, entry_order);
    for (uint32_t i = 0; i < count; i++) {
        nodes += entries[i].length - (i == 0 ? 0 : common_length(&entries[i - 1], &entries[i]));
    }
    if (take_nodes(lexicon, nodes, count)) {
        fill_nodes(lexicon, entries, count, path);
    } else {
        status = fg_fail(err, FG_AGAIN, "no memory for a vocabulary");
    }
    fg_mem_free(entries);
    return status;
}

fg_status fg_lexicon_create(uint32_t count, fg_lexicon_text_fn *text, fg_lexicon_end_fn *end,
                            void *ctx, fg_lexicon **lexicon_out, fg_error *err)
{
    if (count == 0 || count > FG_LEXICON_TOKENS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "a vocabulary of %u tokens", count);
    }
    fg_lexicon *lexicon = (fg_lexicon *)fg_mem_alloc(sizeof *lexicon);
    if (lexicon == NULL) {
        return fg_fail(err, FG_AGAIN, "no memory for a vocabulary");
    }
    fg_status status = FG_OK;
    lexicon->count = count;
    lexicon->is_end = (uint64_t *)fg_mem_array(fg_lexicon_words(lexicon), sizeof *lexicon->is_end);
    lexicon->text_at = (uint32_t *)fg_mem_array((size_t)count + 1, sizeof *lexicon->text_at);
    if (lexicon->is_end == NULL || lexicon->text_at == NULL) {
        status = fg_fail(err, FG_AGAIN, "no memory for a vocabulary");
    }
    if (status == FG_OK) {
        status = read_tokens(lexicon, text, end, ctx, err);
    }
    if (status == FG_OK) {
        status = make_tree(lexicon, err);
    }
    if (status != FG_OK) {
        fg_lexicon_destroy(lexicon);
        return status;
    }
    *lexicon_out = lexicon;
    return FG_OK;
}

void fg_lexicon_destroy(fg_lexicon *lexicon)
{
    if (lexicon != NULL) {
        fg_mem_free(lexicon->ends);
        fg_mem_free(lexicon->is_end);
        fg_mem_free(lexicon->text_at);
        fg_mem_free(lexicon->texts);
        fg_mem_free(lexicon->byte);
        fg_mem_free(lexicon->behind);
        fg_mem_free(lexicon->tokens);
        fg_mem_free(lexicon->height);
        fg_mem_free(lexicon->used);
        fg_mem_free(lexicon->utf8);
        fg_mem_free(lexicon->ids);
        fg_mem_free(lexicon);
    }
}

uint32_t fg_lexicon_count(const fg_lexicon *lexicon)
{
    return lexicon->count;
}

size_t fg_lexicon_words(const fg_lexicon *lexicon)
{
    return ((size_t)lexicon->count + 63) / 64;
}

bool fg_lexicon_is_end(const fg_lexicon *lexicon, uint32_t id)
{
    return id < lexicon->count && (lexicon->is_end[id / 64] >> (id % 64) & 1);
}

const char *fg_lexicon_text(const fg_lexicon *lexicon, uint32_t id, size_t *length_out)
{
    if (id >= lexicon->count) {
        *length_out = 0;
        return "";
    }
    *length_out = lexicon->text_at[id + 1] - lexicon->text_at[id];
    return lexicon->texts + lexicon->text_at[id];
}

size_t fg_lexicon_bytes(const fg_lexicon *lexicon)
{
    size_t node_bytes = sizeof *lexicon->byte + sizeof *lexicon->behind + sizeof *lexicon->tokens +
                        sizeof *lexicon->height + sizeof *lexicon->used + sizeof *lexicon->utf8;
    return sizeof *lexicon + lexicon->text_at[lexicon->count] +
           lexicon->count * (sizeof *lexicon->ids + sizeof *lexicon->text_at) +
           lexicon->node_count * node_bytes;
}
