/*
 * shared - memory that several processes map: made here, or found by where it is mapped, and mapped again by a process
 * that was told its name. Any thread.
 */
#ifndef FORGE_COMMON_BASE_SHARED_H
#define FORGE_COMMON_BASE_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Zeroed, page-aligned, without a name in any directory: gone when nobody has it any more. */
typedef struct fg_shared {
    void *memory; /* NULL: none */
    size_t size_bytes;
    int fd; /* -1: none */
} fg_shared;

/* FG_AGAIN when there is no memory. `commit`: all of it is taken now, so that it is not short later. */
fg_status fg_shared_create(size_t size_bytes, bool commit, fg_shared *shared_out, fg_error *err);
/* Of a struct of zeros, or one that was closed, too. */
void fg_shared_close(fg_shared *shared);

typedef enum fg_shared_kind {
    FG_SHARED_NONE,
    FG_SHARED_FILE, /* `id` is a descriptor of this process */
    FG_SHARED_SYSV, /* `id` is a System V segment's */
} fg_shared_kind;

typedef struct fg_shared_name {
    uint32_t kind; /* fg_shared_kind */
    int32_t id;
} fg_shared_name;

/* What the memory at this address is part of, which this process, or a library in it, has mapped shared and whole; it is
 * read from /proc. FG_SHARED_NONE: it is private, or nobody kept a descriptor of it. */
fg_shared_name fg_shared_find(const void *memory);
/* Maps what a name says, of which the memory has `size_bytes`. FG_BAD_INPUT when that is not there. */
fg_status fg_shared_attach(fg_shared_name name, size_t size_bytes, fg_shared *shared_out,
                           fg_error *err);

#endif
