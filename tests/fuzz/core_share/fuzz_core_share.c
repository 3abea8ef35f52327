/*
 * Any bytes in the file that processes share: a width stays within what a process has, and one that comes or
 * goes meanwhile does no harm. Input: the time, and the bytes that are laid over the file again and again.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/core_share.h"
#include "common/base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

enum { THREADS = 5 };

typedef struct room {
    char directory[64], path[128];
    uint8_t *memory;
    size_t size_bytes;
    uint64_t now_ns;
    fg_clock clock;
    cpu_set_t cpus;
    fg_core_share *stays;
} room;

static fg_core_share *join(room *r)
{
    fg_core_share_options options = { .directory = r->directory,
                                      .cpus = &r->cpus,
                                      .cores = 4,
                                      .threads = THREADS,
                                      .clock = &r->clock };
    fg_core_share *share;
    FG_ASSERT(fg_core_share_open(&options, &share, NULL) == FG_OK);
    return share;
}

static room the_only_room;

static void clean_up(void)
{
    fg_core_share_close(the_only_room.stays);
    unlink(the_only_room.path);
    rmdir(the_only_room.directory);
}

/* Made by the first input, for all of them. */
static room *the_room(void)
{
    room *r = &the_only_room;
    if (r->stays != NULL) {
        return r;
    }
    snprintf(r->directory, sizeof r->directory, "/tmp/fuzz_core_share_XXXXXX");
    FG_ASSERT(mkdtemp(r->directory) != NULL);
    snprintf(r->path, sizeof r->path, "%s/forge-cores-%u-v1", r->directory, (unsigned)geteuid());
    r->clock = fg_clock_manual(&r->now_ns);
    memset(&r->cpus, 0x5A, sizeof r->cpus);
    r->stays = join(r);
    int file = open(r->path, O_RDWR | O_CLOEXEC);
    struct stat facts;
    FG_ASSERT(file >= 0 && fstat(file, &facts) == 0);
    r->size_bytes = (size_t)facts.st_size;
    r->memory = mmap(NULL, r->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    FG_ASSERT(r->memory != MAP_FAILED);
    close(file);
    atexit(clean_up);
    return r;
}

static void lay(room *r, const uint8_t *bytes, size_t size_bytes)
{
    for (size_t at = 0; at < r->size_bytes; at += size_bytes) {
        size_t left = r->size_bytes - at;
        memcpy(r->memory + at, bytes, left < size_bytes ? left : size_bytes);
    }
}

static void check(fg_core_share *share)
{
    uint32_t width = fg_core_share_width(share);
    FG_ASSERT(width >= 1 && width <= THREADS, "%u", width);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    room *r = the_room();
    if (size_bytes <= sizeof r->now_ns) {
        return 0;
    }
    memcpy(&r->now_ns, bytes, sizeof r->now_ns);
    lay(r, bytes + sizeof r->now_ns, size_bytes - sizeof r->now_ns);
    check(r->stays);
    fg_core_share_begin(r->stays);
    fg_core_share *comes = join(r);
    check(comes);
    check(r->stays);
    lay(r, bytes, size_bytes);
    check(comes);
    fg_core_share_end(r->stays);
    fg_core_share_close(comes);
    check(r->stays);
    return 0;
}
