/*
 * index - finds a node, named by a small number, by its 128-bit key: chained buckets over arrays of a
 * fixed size, so nothing is allocated after init. Keys come out of a keyed hash, so their low bits choose
 * the bucket as they are.
 */
#ifndef FORGE_COMMON_KV_INDEX_INTERNAL_H
#define FORGE_COMMON_KV_INDEX_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"

#define FG_INDEX_NONE UINT32_MAX

typedef struct fg_index_node {
    fg_digest128 key;
    uint32_t next;
    bool is_linked;
} fg_index_node;

typedef struct fg_index {
    uint32_t *heads;
    fg_index_node *nodes;
    uint32_t mask, node_count;
    uint32_t linked; /* nodes that can be found */
} fg_index;

/* False when out of memory; deinit is right then, too. */
bool fg_index_init(fg_index *index, uint32_t node_count);
void fg_index_deinit(fg_index *index);

static inline bool fg_digest_same(fg_digest128 a, fg_digest128 b)
{
    return a.low == b.low && a.high == b.high;
}

uint32_t fg_index_find(const fg_index *index, fg_digest128 key);
/* The key is not here yet and the node is not linked. */
void fg_index_link(fg_index *index, uint32_t node, fg_digest128 key);
void fg_index_unlink(fg_index *index, uint32_t node);
/* Walks all buckets; aborts when a node is lost, twice here or in the wrong bucket. */
void fg_index_check(const fg_index *index);

#endif
