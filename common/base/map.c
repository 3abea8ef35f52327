#include "common/base/map.h"

#include <stdbool.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

enum { SLOTS_MIN = 16 };

typedef struct slot {
    uint64_t key;
    void *value; /* NULL: free */
} slot;

struct fg_map {
    slot *slots;
    size_t mask; /* slot count - 1, a power of two minus one */
    size_t count;
    size_t count_max;
};

fg_map *fg_map_create(size_t count_max)
{
    fg_map *map = fg_mem_alloc(sizeof *map);
    if (map == NULL) {
        return NULL;
    }
    map->slots = fg_mem_array(SLOTS_MIN, sizeof *map->slots);
    if (map->slots == NULL) {
        fg_mem_free(map);
        return NULL;
    }
    map->mask = SLOTS_MIN - 1;
    map->count_max = count_max;
    return map;
}

void fg_map_destroy(fg_map *map)
{
    if (map != NULL) {
        fg_mem_free(map->slots);
        fg_mem_free(map);
    }
}

/* The slot that holds `key`, or the free slot where it would go. One slot is always free. */
static size_t find(const slot *slots, size_t mask, uint64_t key)
{
    size_t at = (size_t)fg_hash_mix(key) & mask;
    while (slots[at].value != NULL && slots[at].key != key) {
        at = (at + 1) & mask;
    }
    return at;
}

static bool grow(fg_map *map)
{
    size_t slot_count = (map->mask + 1) * 2;
    slot *slots = slot_count == 0 ? NULL : fg_mem_array(slot_count, sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    for (size_t i = 0; i <= map->mask; i++) {
        if (map->slots[i].value != NULL) {
            slots[find(slots, slot_count - 1, map->slots[i].key)] = map->slots[i];
        }
    }
    fg_mem_free(map->slots);
    map->slots = slots;
    map->mask = slot_count - 1;
    return true;
}

fg_status fg_map_put(fg_map *map, uint64_t key, void *value)
{
    FG_ASSERT(value != NULL, "a map holds no NULL");
    size_t at = find(map->slots, map->mask, key);
    if (map->slots[at].value != NULL) {
        map->slots[at].value = value;
        return FG_OK;
    }
    if (map->count >= map->count_max) {
        return FG_AGAIN;
    }
    /* At most three quarters full: linear probing slows down sharply beyond. */
    if (map->count + 1 > (map->mask + 1) / 4 * 3) {
        if (!grow(map)) {
            return FG_AGAIN;
        }
        at = find(map->slots, map->mask, key);
    }
    map->slots[at] = (slot){ .key = key, .value = value };
    map->count++;
    return FG_OK;
}

void *fg_map_get(const fg_map *map, uint64_t key)
{
    return map->slots[find(map->slots, map->mask, key)].value;
}

void *fg_map_remove(fg_map *map, uint64_t key)
{
    size_t hole = find(map->slots, map->mask, key);
    void *value = map->slots[hole].value;
    if (value == NULL) {
        return NULL;
    }
    /* Close the hole: an entry further along moves into it unless its own place lies after the
     * hole. */
    for (size_t at = (hole + 1) & map->mask; map->slots[at].value != NULL;
         at = (at + 1) & map->mask) {
        size_t home = (size_t)fg_hash_mix(map->slots[at].key) & map->mask;
        if (((at - home) & map->mask) >= ((at - hole) & map->mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole] = (slot){ 0 };
    map->count--;
    return value;
}

size_t fg_map_count(const fg_map *map)
{
    return map->count;
}

void *fg_map_next(const fg_map *map, size_t *cursor, uint64_t *key_out)
{
    while (*cursor <= map->mask) {
        const slot *here = &map->slots[(*cursor)++];
        if (here->value != NULL) {
            if (key_out != NULL) {
                *key_out = here->key;
            }
            return here->value;
        }
    }
    return NULL;
}
