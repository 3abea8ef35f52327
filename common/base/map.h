/*
 * map - a bounded hash map from 64-bit keys to pointers (open addressing, linear probing). One
 * owner.
 *
 * The table grows by doubling, up to the limit given at creation, so that a lookup never meets more
 * than a few entries. Values are borrowed: the map frees none of them.
 */
#ifndef FORGE_COMMON_BASE_MAP_H
#define FORGE_COMMON_BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_map fg_map;

/* At most `count_max` keys. NULL when out of memory. */
fg_map *fg_map_create(size_t count_max);
void fg_map_destroy(fg_map *map);

/* Adds or replaces. `value` is not NULL. FG_AGAIN when full or out of memory (nothing changed). */
fg_status fg_map_put(fg_map *map, uint64_t key, void *value);
/* NULL when absent. */
void *fg_map_get(const fg_map *map, uint64_t key);
/* Takes the key out and returns its value; NULL when absent. Never allocates. */
void *fg_map_remove(fg_map *map, uint64_t key);
size_t fg_map_count(const fg_map *map);

/* Walks all entries in no particular order: *cursor starts at 0; returns NULL at the end. The map
 * must not change during a walk. `key_out` may be NULL. */
void *fg_map_next(const fg_map *map, size_t *cursor, uint64_t *key_out);

#endif
