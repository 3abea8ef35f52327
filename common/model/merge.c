#include "common/model/merge.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/base/utf8.h"

enum { NO_SYMBOL = UINT32_MAX };

void fg_merger_init(fg_merger *merger, const fg_vocab *vocab)
{
    *merger = (fg_merger){ .vocab = vocab };
}

void fg_merger_deinit(fg_merger *merger)
{
    fg_mem_free(merger->symbols);
    fg_mem_free(merger->heap);
    *merger = (fg_merger){ 0 };
}

static fg_status reserve(fg_merger *merger, size_t count, fg_error *err)
{
    if (count <= merger->capacity) {
        return FG_OK;
    }
    size_t capacity = count < 64 ? 64 : count;
    fg_mem_free(merger->symbols);
    fg_mem_free(merger->heap);
    merger->capacity = 0;
    merger->symbols = fg_mem_array(capacity, sizeof(merger->symbols[0]));
    /* n - 1 pairs at first; each merge takes one candidate out and puts at most two in. */
    merger->heap = fg_mem_array(capacity, 2 * sizeof(merger->heap[0]));
    if (merger->symbols == NULL || merger->heap == NULL) {
        return fg_fail(err, FG_AGAIN, "tokenizer: out of memory for a word of %zu characters",
                       count);
    }
    merger->capacity = capacity;
    return FG_OK;
}

static void heap_push(fg_merger *merger, fg_merge_candidate item)
{
    fg_merge_candidate *heap = merger->heap;
    uint32_t at = merger->heap_count++;
    while (at > 0) {
        uint32_t parent = (at - 1) / 2;
        if (heap[parent].order <= item.order) {
            break;
        }
        heap[at] = heap[parent];
        at = parent;
    }
    heap[at] = item;
}

static fg_merge_candidate heap_pop(fg_merger *merger)
{
    fg_merge_candidate *heap = merger->heap;
    fg_merge_candidate top = heap[0];
    uint32_t count = --merger->heap_count;
    fg_merge_candidate item = heap[count];
    uint32_t at = 0;
    for (;;) {
        uint64_t child = 2 * (uint64_t)at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && heap[child + 1].order < heap[child].order) {
            child++;
        }
        if (item.order <= heap[child].order) {
            break;
        }
        heap[at] = heap[child];
        at = (uint32_t)child;
    }
    heap[at] = item;
    return top;
}

/* Floats as integers in descending order. */
static uint32_t score_order(float score)
{
    float value = score + 0.0f; /* -0 becomes 0 */
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

/* Enters the pair that starts with symbol `left` if its text is a token. */
static void consider(fg_merger *merger, const char *word, uint32_t left)
{
    if (left == NO_SYMBOL || merger->symbols[left].next == NO_SYMBOL) {
        return;
    }
    const fg_vocab *vocab = merger->vocab;
    const fg_merge_symbol *a = &merger->symbols[left];
    const fg_merge_symbol *b = &merger->symbols[a->next];
    fg_merge_candidate item = { .length = a->length + b->length };
    uint32_t order;
    if (vocab->spm) {
        item.id = fg_vocab_find(vocab, word + a->start, item.length);
        if (item.id == FG_TOKEN_NONE) {
            return;
        }
        order = score_order(vocab->scores[item.id]);
    } else {
        const fg_merge_slot *slot = fg_vocab_merge(vocab, a->id, b->id);
        if (slot == NULL) {
            return;
        }
        item.id = slot->merged;
        order = slot->rank;
    }
    item.order = (uint64_t)order << 32 | left;
    heap_push(merger, item);
}

/* Bytes (BPE) or characters (SPM) of the word, as a linked row. */
static void split(fg_merger *merger, const char *word, uint32_t length)
{
    const fg_vocab *vocab = merger->vocab;
    uint32_t count = 0;
    for (uint32_t at = 0; at < length;) {
        fg_merge_symbol *symbol = &merger->symbols[count];
        uint32_t step = 1;
        if (vocab->spm) {
            size_t wide = fg_utf8_length(word + at, length - at);
            step = wide == 0 ? 1 : (uint32_t)wide;
        }
        *symbol = (fg_merge_symbol){ .start = at,
                                     .length = step,
                                     .previous = count == 0 ? NO_SYMBOL : count - 1,
                                     .next = at + step < length ? count + 1 : NO_SYMBOL };
        symbol->id = vocab->spm ? fg_vocab_find(vocab, word + at, step)
                                : vocab->byte_ids[(unsigned char)word[at]];
        at += step;
        count++;
    }
    merger->symbol_count = count;
}

fg_status fg_merger_run(fg_merger *merger, const char *word, uint32_t length, fg_error *err)
{
    fg_status status = reserve(merger, length, err);
    if (status != FG_OK) {
        return status;
    }
    split(merger, word, length);
    merger->heap_count = 0;
    for (uint32_t i = 0; i + 1 < merger->symbol_count; i++) {
        consider(merger, word, i);
    }
    while (merger->heap_count > 0) {
        fg_merge_candidate best = heap_pop(merger);
        uint32_t at = (uint32_t)best.order;
        fg_merge_symbol *left = &merger->symbols[at];
        if (left->length == 0 || left->next == NO_SYMBOL) {
            continue;
        }
        fg_merge_symbol *right = &merger->symbols[left->next];
        /* Symbols only ever grow, so an equal length means the very pair that was entered. */
        if (left->length + right->length != best.length) {
            continue;
        }
        left->length = best.length;
        left->id = best.id;
        right->length = 0;
        left->next = right->next;
        if (left->next != NO_SYMBOL) {
            merger->symbols[left->next].previous = at;
        }
        consider(merger, word, left->previous);
        consider(merger, word, at);
    }
    return FG_OK;
}
