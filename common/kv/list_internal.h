/*
 * list - a list of block or slot ids, linked through an array that several lists may share: an id is on
 * one of them at most. All operations are O(1) and allocate nothing.
 */
#ifndef FORGE_COMMON_KV_LIST_INTERNAL_H
#define FORGE_COMMON_KV_LIST_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define FG_LIST_END UINT32_MAX

typedef struct fg_list_link {
    uint32_t prev, next;
} fg_list_link;

typedef struct fg_list {
    uint32_t head, tail, count;
} fg_list;

static inline void fg_list_init(fg_list *list)
{
    *list = (fg_list){ .head = FG_LIST_END, .tail = FG_LIST_END };
}

static inline void fg_list_push_head(fg_list *list, fg_list_link *links, uint32_t id)
{
    links[id] = (fg_list_link){ .prev = FG_LIST_END, .next = list->head };
    *(list->head == FG_LIST_END ? &list->tail : &links[list->head].prev) = id;
    list->head = id;
    list->count++;
}

static inline void fg_list_push_tail(fg_list *list, fg_list_link *links, uint32_t id)
{
    links[id] = (fg_list_link){ .prev = list->tail, .next = FG_LIST_END };
    *(list->tail == FG_LIST_END ? &list->head : &links[list->tail].next) = id;
    list->tail = id;
    list->count++;
}

/* `id` is on this list. */
static inline void fg_list_remove(fg_list *list, fg_list_link *links, uint32_t id)
{
    fg_list_link link = links[id];
    FG_ASSERT(list->count > 0, "id %u is not on the list", id);
    *(link.prev == FG_LIST_END ? &list->head : &links[link.prev].next) = link.next;
    *(link.next == FG_LIST_END ? &list->tail : &links[link.next].prev) = link.prev;
    list->count--;
}

/* Walks the list, asks `belongs` about each id, and aborts when a link or the count is wrong. An id that
 * is on the list twice shows as a link that does not lead back. */
static inline void fg_list_check(const fg_list *list, const fg_list_link *links, uint32_t id_count,
                                 bool (*belongs)(const void *ctx, uint32_t id), const void *ctx)
{
    uint32_t count = 0, prev = FG_LIST_END;
    for (uint32_t id = list->head; id != FG_LIST_END; id = links[id].next) {
        FG_ASSERT(id < id_count && count < list->count, "id %u, %u on the list", id, list->count);
        FG_ASSERT(links[id].prev == prev, "id %u: wrong link back", id);
        FG_ASSERT(belongs(ctx, id), "id %u is on the wrong list", id);
        prev = id;
        count++;
    }
    FG_ASSERT(count == list->count && list->tail == prev, "%u of %u on the list", count,
              list->count);
}

#endif
