#include "common/kv/index_internal.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/base/status.h"

bool fg_index_init(fg_index *index, uint32_t node_count)
{
    uint32_t bucket_count = 1;
    while (bucket_count < node_count) {
        bucket_count *= 2;
    }
    *index = (fg_index){ .mask = bucket_count - 1, .node_count = node_count };
    index->heads = fg_mem_array(bucket_count, sizeof *index->heads);
    index->nodes = fg_mem_array(node_count, sizeof *index->nodes);
    if (index->heads == NULL || index->nodes == NULL) {
        return false;
    }
    memset(index->heads, 0xff, bucket_count * sizeof *index->heads); /* FG_INDEX_NONE */
    return true;
}

void fg_index_deinit(fg_index *index)
{
    fg_mem_free(index->heads);
    fg_mem_free(index->nodes);
}

static uint32_t *head_of(const fg_index *index, fg_digest128 key)
{
    return &index->heads[key.low & index->mask];
}

uint32_t fg_index_find(const fg_index *index, fg_digest128 key)
{
    uint32_t node = *head_of(index, key);
    while (node != FG_INDEX_NONE && !fg_digest_same(index->nodes[node].key, key)) {
        node = index->nodes[node].next;
    }
    return node;
}

void fg_index_link(fg_index *index, uint32_t node, fg_digest128 key)
{
    uint32_t *head = head_of(index, key);
    FG_ASSERT(node < index->node_count && !index->nodes[node].is_linked, "node %u", node);
    FG_ASSERT_SLOW(fg_index_find(index, key) == FG_INDEX_NONE);
    index->nodes[node] = (fg_index_node){ .key = key, .next = *head, .is_linked = true };
    *head = node;
    index->linked++;
}

void fg_index_unlink(fg_index *index, uint32_t node)
{
    FG_ASSERT(node < index->node_count && index->nodes[node].is_linked, "node %u", node);
    uint32_t *at = head_of(index, index->nodes[node].key);
    while (*at != node) {
        FG_ASSERT(*at != FG_INDEX_NONE, "node %u is in no bucket", node);
        at = &index->nodes[*at].next;
    }
    *at = index->nodes[node].next;
    index->nodes[node].is_linked = false;
    index->linked--;
}

void fg_index_check(const fg_index *index)
{
    uint32_t reached = 0, linked = 0;
    for (uint32_t i = 0; i < index->node_count; i++) {
        linked += index->nodes[i].is_linked;
    }
    for (uint32_t bucket = 0; bucket <= index->mask; bucket++) {
        for (uint32_t node = index->heads[bucket]; node != FG_INDEX_NONE;
             node = index->nodes[node].next) {
            FG_ASSERT(node < index->node_count && index->nodes[node].is_linked, "node %u", node);
            FG_ASSERT((index->nodes[node].key.low & index->mask) == bucket, "node %u", node);
            FG_ASSERT(fg_index_find(index, index->nodes[node].key) == node, "key twice: %u", node);
            FG_ASSERT(++reached <= linked, "a bucket has a loop");
        }
    }
    FG_ASSERT(reached == linked && linked == index->linked, "%u reached, %u linked, %u counted",
              reached, linked, index->linked);
}
