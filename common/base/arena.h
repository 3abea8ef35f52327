/*
 * arena - memory of one request or one step: taken in pieces, dropped whole. Bounded. One owner.
 */
#ifndef FORGE_COMMON_BASE_ARENA_H
#define FORGE_COMMON_BASE_ARENA_H

#include <stddef.h>

typedef struct fg_arena fg_arena;

/* At most `limit_bytes` are ever held. NULL when out of memory. */
fg_arena *fg_arena_create(size_t limit_bytes);
void fg_arena_destroy(fg_arena *arena);
/* Zeroed, 16-byte aligned, valid until reset or destroy; NULL when the limit or memory is reached. */
void *fg_arena_alloc(fg_arena *arena, size_t size_bytes);
/* As above for count * item_bytes; NULL on overflow. */
void *fg_arena_array(fg_arena *arena, size_t count, size_t item_bytes);
char *fg_arena_strndup(fg_arena *arena, const char *text, size_t length);
/* Forgets everything; keeps the first chunk for reuse. */
void fg_arena_reset(fg_arena *arena);
size_t fg_arena_used(const fg_arena *arena);

#endif
