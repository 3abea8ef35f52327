#include "common/base/mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/fault.h"

static _Atomic uint64_t taken;

uint64_t fg_mem_count(void)
{
    return atomic_load_explicit(&taken, memory_order_relaxed);
}

/* Counts one taking; false: it is made to fail. */
static bool may_take(void)
{
    atomic_fetch_add_explicit(&taken, 1, memory_order_relaxed);
    return !fg_fault_hit();
}

void *fg_mem_alloc(size_t size_bytes)
{
    if (!may_take()) {
        return NULL;
    }
    return calloc(1, size_bytes == 0 ? 1 : size_bytes);
}

void *fg_mem_array(size_t count, size_t item_bytes)
{
    size_t size_bytes;
    if (__builtin_mul_overflow(count, item_bytes, &size_bytes)) {
        return NULL;
    }
    return fg_mem_alloc(size_bytes);
}

void *fg_mem_resize(void *memory, size_t count, size_t item_bytes)
{
    size_t size_bytes;
    if (__builtin_mul_overflow(count, item_bytes, &size_bytes) || !may_take()) {
        return NULL;
    }
    return realloc(memory, size_bytes == 0 ? 1 : size_bytes);
}

char *fg_mem_strdup(const char *text)
{
    return fg_mem_dup(text, strlen(text) + 1);
}

void *fg_mem_dup(const void *bytes, size_t size_bytes)
{
    void *copy = fg_mem_alloc(size_bytes);
    if (copy != NULL && size_bytes > 0) {
        memcpy(copy, bytes, size_bytes);
    }
    return copy;
}

void fg_mem_free(void *memory)
{
    free(memory);
}

void *fg_mem_map(size_t size_bytes)
{
    if (!may_take()) {
        return NULL;
    }
    void *memory =
        mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    madvise(memory, size_bytes, MADV_HUGEPAGE);
    return memory;
}

void fg_mem_unmap(void *memory, size_t size_bytes)
{
    if (memory != NULL) {
        munmap(memory, size_bytes);
    }
}

/* Reads one number from a file of /proc or /sys; UINT64_MAX when absent or "max". */
static uint64_t read_number(const char *path)
{
    FILE *file = fopen(path, "re");
    unsigned long long value = 0;
    int fields = 0;
    if (file != NULL) {
        fields = fscanf(file, "%llu", &value);
        fclose(file);
    }
    return fields == 1 ? (uint64_t)value : UINT64_MAX;
}

static uint64_t limit_left(const char *limit_path, const char *used_path)
{
    uint64_t limit = read_number(limit_path);
    uint64_t used = read_number(used_path);
    if (limit == UINT64_MAX || used == UINT64_MAX) {
        return UINT64_MAX;
    }
    return limit > used ? limit - used : 0;
}

uint64_t fg_mem_available_bytes(void)
{
    uint64_t available = UINT64_MAX;
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long long kib;
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) {
            available = (uint64_t)kib * 1024;
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    uint64_t v2 = limit_left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    uint64_t v1 = limit_left("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                             "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    available = v2 < available ? v2 : available;
    return v1 < available ? v1 : available;
}
