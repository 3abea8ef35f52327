#include "common/base/arena.h"

#include <stdint.h>
#include <string.h>

#include "common/base/mem.h"

enum { CHUNK_MIN_BYTES = 16 * 1024 };

typedef struct chunk {
    struct chunk *next;
    size_t capacity;
    size_t used;
    _Alignas(16) unsigned char bytes[];
} chunk;

struct fg_arena {
    chunk *current; /* newest first */
    size_t limit;
    size_t held;
    size_t used;
};

fg_arena *fg_arena_create(size_t limit_bytes)
{
    fg_arena *arena = fg_mem_alloc(sizeof *arena);
    if (arena != NULL) {
        arena->limit = limit_bytes;
    }
    return arena;
}

void fg_arena_destroy(fg_arena *arena)
{
    if (arena == NULL) {
        return;
    }
    while (arena->current != NULL) {
        chunk *next = arena->current->next;
        fg_mem_free(arena->current);
        arena->current = next;
    }
    fg_mem_free(arena);
}

static chunk *add_chunk(fg_arena *arena, size_t need)
{
    size_t left = arena->limit - arena->held;
    size_t capacity = need > CHUNK_MIN_BYTES ? need : CHUNK_MIN_BYTES;
    if (capacity > left) {
        capacity = left;
    }
    if (capacity < need || capacity > SIZE_MAX - sizeof(chunk)) {
        return NULL;
    }
    chunk *fresh = fg_mem_alloc(sizeof *fresh + capacity);
    if (fresh == NULL) {
        return NULL;
    }
    fresh->capacity = capacity;
    fresh->next = arena->current;
    arena->current = fresh;
    arena->held += capacity;
    return fresh;
}

void *fg_arena_alloc(fg_arena *arena, size_t size_bytes)
{
    if (size_bytes > SIZE_MAX - 16) {
        return NULL;
    }
    size_t need = (size_bytes + 15) & ~(size_t)15;
    chunk *place = arena->current;
    if (place == NULL || place->capacity - place->used < need) {
        place = add_chunk(arena, need);
        if (place == NULL) {
            return NULL;
        }
    }
    void *memory = place->bytes + place->used;
    place->used += need;
    arena->used += need;
    memset(memory, 0, need);
    return memory;
}

void *fg_arena_array(fg_arena *arena, size_t count, size_t item_bytes)
{
    size_t size_bytes;
    if (__builtin_mul_overflow(count, item_bytes, &size_bytes)) {
        return NULL;
    }
    return fg_arena_alloc(arena, size_bytes);
}

char *fg_arena_strndup(fg_arena *arena, const char *text, size_t length)
{
    if (length == SIZE_MAX) {
        return NULL;
    }
    char *copy = fg_arena_alloc(arena, length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
    }
    return copy;
}

void fg_arena_reset(fg_arena *arena)
{
    while (arena->current != NULL && arena->current->next != NULL) {
        chunk *next = arena->current->next;
        arena->held -= arena->current->capacity;
        fg_mem_free(arena->current);
        arena->current = next;
    }
    if (arena->current != NULL) {
        arena->current->used = 0;
    }
    arena->used = 0;
}

size_t fg_arena_used(const fg_arena *arena)
{
    return arena->used;
}
