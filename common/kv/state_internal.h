/*
 * state - how pool, prefix and tier write down what they know at rest, and read it again. Copies in a fixed
 * order, so neither side needs alignment or leaves a byte unwritten; numbers as this machine has them. The
 * size is a multiple of 8 and follows from the counts at the beginning, which the reader checks first: the
 * functions here check no bounds.
 */
#ifndef FORGE_COMMON_KV_STATE_INTERNAL_H
#define FORGE_COMMON_KV_STATE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/kv/list_internal.h"

static inline size_t fg_state_round(size_t size_bytes)
{
    return (size_bytes + 7) & ~(size_t)7;
}

static inline uint8_t *fg_state_put(uint8_t *at, const void *from, size_t size_bytes)
{
    memcpy(at, from, size_bytes);
    return at + size_bytes;
}

static inline uint8_t *fg_state_put_u32(uint8_t *at, uint32_t value)
{
    return fg_state_put(at, &value, sizeof value);
}

static inline uint8_t *fg_state_put_list(uint8_t *at, const fg_list *list,
                                         const fg_list_link *links)
{
    for (uint32_t id = list->head; id != FG_LIST_END; id = links[id].next) {
        at = fg_state_put_u32(at, id);
    }
    return at;
}

static inline const uint8_t *fg_state_get(const uint8_t *at, void *to, size_t size_bytes)
{
    memcpy(to, at, size_bytes);
    return at + size_bytes;
}

static inline const uint8_t *fg_state_get_u32(const uint8_t *at, uint32_t *value_out)
{
    return fg_state_get(at, value_out, sizeof *value_out);
}

/* From the last number up to the end of the state. */
static inline bool fg_state_is_zero(const uint8_t *at, const uint8_t *end)
{
    while (at < end && *at == 0) {
        at++;
    }
    return at == end;
}

#endif
