/*
 * merge - joins the pieces of one word, best pair first, until no pair is a token: by rank for
 * byte-level BPE, by score for SPM. Part of tokenizer. O(n log n) in the word's length.
 *
 * Memory is scratch that grows to the longest word seen. One owner.
 */
#ifndef FORGE_COMMON_MODEL_MERGE_H
#define FORGE_COMMON_MODEL_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/model/vocab.h"

typedef struct fg_merge_symbol {
    uint32_t start, length; /* bytes of the word; length 0: joined to its left neighbour */
    uint32_t previous, next;
    uint32_t id; /* FG_TOKEN_NONE: no token has this text */
} fg_merge_symbol;

typedef struct fg_merge_candidate {
    uint64_t order; /* high half: the better the lower; low half: index of the left symbol */
    uint32_t length;
    uint32_t id;
} fg_merge_candidate;

typedef struct fg_merger {
    const fg_vocab *vocab;
    fg_merge_symbol *symbols;
    fg_merge_candidate *heap; /* least order first */
    uint32_t symbol_count;
    uint32_t heap_count;
    size_t capacity; /* symbols; the heap has room for twice as many */
} fg_merger;

void fg_merger_init(fg_merger *merger, const fg_vocab *vocab);
void fg_merger_deinit(fg_merger *merger);

/* Leaves the word's final symbols in `symbols`, first at index 0, linked by `next` (UINT32_MAX ends).
 * `length` is above zero. FG_AGAIN: out of memory. */
fg_status fg_merger_run(fg_merger *merger, const char *word, uint32_t length, fg_error *err);

#endif
