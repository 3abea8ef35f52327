#include "common/base/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/mem.h"

static const fg_shared none = { .memory = NULL, .fd = -1 };

static fg_status map(int fd, size_t size_bytes, fg_shared *shared_out, fg_error *err)
{
    void *memory = fg_fault_hit()
                       ? MAP_FAILED
                       : mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return fg_fail(err, FG_AGAIN, "no room for %zu MiB of shared memory", size_bytes >> 20);
    }
    madvise(memory, size_bytes, MADV_HUGEPAGE);
    *shared_out = (fg_shared){ .memory = memory, .size_bytes = size_bytes, .fd = fd };
    return FG_OK;
}

fg_status fg_shared_create(size_t size_bytes, bool commit, fg_shared *shared_out, fg_error *err)
{
    *shared_out = none;
    /* The system would find it out by killing somebody. */
    if (commit && size_bytes > fg_mem_available_bytes()) {
        return fg_fail(err, FG_AGAIN, "no %zu MiB of shared memory: %llu are free",
                       size_bytes >> 20, (unsigned long long)(fg_mem_available_bytes() >> 20));
    }
    int fd = fg_fault_hit() ? -1 : memfd_create("forge", MFD_CLOEXEC);
    if (fd < 0) {
        return fg_fail(err, FG_AGAIN, "no shared memory: %s", strerror(errno));
    }
    int failed = ftruncate(fd, (off_t)size_bytes) != 0 ? errno : 0;
    while (failed == 0 && commit) {
        failed = posix_fallocate(fd, 0, (off_t)size_bytes);
        if (failed != EINTR) {
            break;
        }
        failed = 0;
    }
    if (failed != 0) {
        close(fd);
        return fg_fail(err, FG_AGAIN, "no %zu MiB of shared memory: %s", size_bytes >> 20,
                       strerror(failed));
    }
    fg_status status = map(fd, size_bytes, shared_out, err);
    if (status != FG_OK) {
        close(fd);
    }
    return status;
}

void fg_shared_close(fg_shared *shared)
{
    if (shared->memory == NULL) {
        return;
    }
    if (shared->fd >= 0) {
        munmap(shared->memory, shared->size_bytes);
        close(shared->fd);
    } else {
        shmdt(shared->memory);
    }
    *shared = none;
}

/* A line of /proc/self/maps. */
typedef struct mapping {
    uint64_t start, end, offset, inode;
    unsigned major, minor;
    char flags[5];
    char path[32]; /* its beginning */
} mapping;

static bool find_mapping(const void *memory, mapping *found)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t room = 0;
    bool is_found = false;
    while (file != NULL && !is_found && getline(&line, &room, file) > 0) {
        unsigned long start, end, offset, inode;
        found->path[0] = '\0';
        int fields = sscanf(line, "%lx-%lx %4s %lx %x:%x %lu %31s", &start, &end, found->flags,
                            &offset, &found->major, &found->minor, &inode, found->path);
        found->start = start;
        found->end = end;
        found->offset = offset;
        found->inode = inode;
        is_found = fields >= 7 && (uintptr_t)memory >= start && (uintptr_t)memory < end;
    }
    free(line);
    if (file != NULL) {
        fclose(file);
    }
    return is_found;
}

/* A descriptor of this process for a file; -1: none. */
static int find_descriptor(const mapping *wanted)
{
    DIR *directory = opendir("/proc/self/fd");
    struct dirent *entry;
    int found = -1;
    while (directory != NULL && found < 0 && (entry = readdir(directory)) != NULL) {
        struct stat file;
        char *end;
        long fd = strtol(entry->d_name, &end, 10);
        if (*end == '\0' && end != entry->d_name && fstat((int)fd, &file) == 0 &&
            file.st_ino == wanted->inode && major(file.st_dev) == wanted->major &&
            minor(file.st_dev) == wanted->minor) {
            found = (int)fd;
        }
    }
    if (directory != NULL) {
        closedir(directory);
    }
    return found;
}

fg_shared_name fg_shared_find(const void *memory)
{
    mapping found;
    fg_shared_name name = { .kind = FG_SHARED_NONE, .id = -1 };
    if (!find_mapping(memory, &found) || found.flags[3] != 's' ||
        found.start != (uintptr_t)memory || found.offset != 0) {
        return name;
    }
    /* proc(5): the inode of such a mapping is the segment's id. */
    if (strncmp(found.path, "/SYSV", 5) == 0) {
        return (fg_shared_name){ .kind = FG_SHARED_SYSV, .id = (int32_t)found.inode };
    }
    int fd = find_descriptor(&found);
    return fd < 0 ? name : (fg_shared_name){ .kind = FG_SHARED_FILE, .id = fd };
}

static fg_status attach_file(int fd, size_t size_bytes, fg_shared *shared_out, fg_error *err)
{
    struct stat file;
    if (fstat(fd, &file) != 0 || (uint64_t)file.st_size < size_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "descriptor %d is not shared memory of %zu MiB", fd,
                       size_bytes >> 20);
    }
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        return fg_fail(err, FG_AGAIN, "descriptor %d: %s", fd, strerror(errno));
    }
    fg_status status = map(own, size_bytes, shared_out, err);
    if (status != FG_OK) {
        close(own);
    }
    return status;
}

static fg_status attach_segment(int id, size_t size_bytes, fg_shared *shared_out, fg_error *err)
{
    struct shmid_ds segment;
    if (shmctl(id, IPC_STAT, &segment) != 0 || segment.shm_segsz < size_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "segment %d is not shared memory of %zu MiB", id,
                       size_bytes >> 20);
    }
    void *memory = fg_fault_hit() ? (void *)-1 : shmat(id, NULL, 0);
    if (memory == (void *)-1) {
        return fg_fail(err, FG_AGAIN, "no room for %zu MiB of shared memory", size_bytes >> 20);
    }
    *shared_out = (fg_shared){ .memory = memory, .size_bytes = size_bytes, .fd = -1 };
    return FG_OK;
}

fg_status fg_shared_attach(fg_shared_name name, size_t size_bytes, fg_shared *shared_out,
                           fg_error *err)
{
    *shared_out = none;
    switch ((fg_shared_kind)name.kind) {
    case FG_SHARED_FILE:
        return attach_file(name.id, size_bytes, shared_out, err);
    case FG_SHARED_SYSV:
        return attach_segment(name.id, size_bytes, shared_out, err);
    case FG_SHARED_NONE:
        break;
    }
    return fg_fail(err, FG_BAD_INPUT, "memory that is not shared");
}
