/*
 * mem - the heap, with overflow-checked sizes and injectable failures (fault.h). Failure returns
 * NULL; the caller answers FG_AGAIN. Any thread.
 */
#ifndef FORGE_COMMON_BASE_MEM_H
#define FORGE_COMMON_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed memory. */
void *fg_mem_alloc(size_t size_bytes);
/* Zeroed array of `count` items of `item_bytes`; NULL also when the product overflows. */
void *fg_mem_array(size_t count, size_t item_bytes);
/* Resizes an array; new items are NOT zeroed. On failure the old array stays valid. */
void *fg_mem_resize(void *memory, size_t count, size_t item_bytes);
/* Blocks that this process took from the heap or mapped so far, through this header; for tests and for
 * whoever watches that a running engine takes none. */
uint64_t fg_mem_count(void);
char *fg_mem_strdup(const char *text);
void *fg_mem_dup(const void *bytes, size_t size_bytes);
void fg_mem_free(void *memory);

/* Page-aligned zeroed memory for arenas and weights, huge pages advised. Free with the same size. */
void *fg_mem_map(size_t size_bytes);
void fg_mem_unmap(void *memory, size_t size_bytes);

/* Bytes that can still be taken without swapping: the smaller of MemAvailable and what the cgroup
 * (v1 or v2) leaves. */
uint64_t fg_mem_available_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
