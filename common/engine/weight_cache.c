#include "common/engine/weight_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

/* How often a waiting process looks whether the writer is done. */
enum { LOOK_AGAIN_MS = 10 };

/* ---- places ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* Adds the path unless it is too long to be one. */
static void add_place(fg_cache_places *places, const char *directory, const char *name,
                      const char *suffix)
{
    int length = snprintf(places->paths[places->count], FG_CACHE_PATH_MAX, "%s%s%s.fgp", directory,
                          name, suffix);
    if (length > 0 && length < FG_CACHE_PATH_MAX) {
        places->count++;
    }
}

/* The user's cache directory for weights, with a slash at its end. */
static bool user_directory(char *out, size_t size_bytes)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    bool xdg = cache != NULL && cache[0] == '/';
    if (!xdg && (home == NULL || home[0] != '/')) {
        return false;
    }
    int length =
        snprintf(out, size_bytes, "%s%s/forge/weights/", xdg ? cache : home, xdg ? "" : "/.cache");
    return length > 0 && (size_t)length < size_bytes;
}

void fg_cache_places_find(const fg_weights_file *file, const fg_panel_model *model,
                          const char *directory, fg_cache_places *places_out)
{
    /* In a directory of many models, one name may stand for several files. */
    char suffix[24], room[FG_CACHE_PATH_MAX];
    snprintf(suffix, sizeof suffix, "-%016llx", (unsigned long long)model->fingerprint.low);
    places_out->count = 0;
    if (directory != NULL) {
        snprintf(room, sizeof room, "%s/", directory);
        add_place(places_out, room, base_name(file->path), suffix);
        return;
    }
    add_place(places_out, "", file->path, "");
    if (user_directory(room, sizeof room)) {
        add_place(places_out, room, base_name(file->path), suffix);
    }
}

/* ---- reading ---- */

/* A sidecar is executed upon, like the model itself: whoever could have written it must be one whom we
 * obey already. */
static bool trusted(const struct stat *info, uint32_t model_owner)
{
    bool owner = info->st_uid == geteuid() || info->st_uid == 0 || info->st_uid == model_owner;
    return owner && (info->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

static fg_status read_header(int fd, const fg_panel_plan *plan, void *header, size_t *size_out,
                             fg_error *err)
{
    size_t size = 0;
    while (size < plan->header_bytes) {
        ssize_t got = pread(fd, (char *)header + size, plan->header_bytes - size, (off_t)size);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return fg_fail(err, FG_BAD_INPUT, "cannot be read: %s", strerror(errno));
        }
        if (got == 0) {
            break;
        }
        size += (size_t)got;
    }
    *size_out = size;
    return FG_OK;
}

static fg_status check_file(int fd, const fg_panel_plan *plan, const fg_panel_model *model,
                            uint32_t model_owner, void *header, const uint64_t **digests_out,
                            fg_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return fg_fail(err, FG_BAD_INPUT, "is not a regular file");
    }
    if (!trusted(&info, model_owner)) {
        return fg_fail(err, FG_BAD_INPUT, "belongs to another user or may be written by others");
    }
    size_t size = 0;
    fg_status status = read_header(fd, plan, header, &size, err);
    if (status == FG_OK) {
        status = fg_panel_header_check(plan, model, header, size, digests_out, err);
    }
    if (status == FG_OK && (uint64_t)info.st_size != plan->data_offset + plan->data_bytes) {
        status = fg_fail(err, FG_BAD_INPUT, "is truncated");
    }
    return status;
}

fg_status fg_cache_open(const char *path, const fg_panel_plan *plan, const fg_panel_model *model,
                        uint32_t model_owner, int *fd_out, void **header_out,
                        const uint64_t **digests_out, fg_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
    if (fd < 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        return fg_fail(err, absent ? FG_AGAIN : FG_BAD_INPUT, "cannot be opened: %s",
                       strerror(errno));
    }
    void *header = fg_mem_alloc(plan->header_bytes);
    fg_status status = header == NULL
                           ? fg_fail(err, FG_BAD_INPUT, "has no memory for its header")
                           : check_file(fd, plan, model, model_owner, header, digests_out, err);
    if (status != FG_OK) {
        fg_mem_free(header);
        close(fd);
        return status;
    }
    *fd_out = fd;
    *header_out = header;
    return FG_OK;
}

/* ---- writing ---- */

static fg_status cannot(const fg_cache_writer *writer, fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "cannot write %s: %s", writer->temporary, strerror(errno));
}

/* Makes the directories that lead to `path`; where one cannot be made, the next use of it says why. */
static void make_directories(const char *path)
{
    char room[FG_CACHE_PATH_MAX + 8];
    snprintf(room, sizeof room, "%s", path);
    for (char *slash = strchr(room + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(room, 0755);
        *slash = '/';
    }
}

/* Opens the temporary file, which is nobody else's: a link planted under its name would have us write
 * over a stranger's file. */
static fg_status open_temporary(fg_cache_writer *writer, fg_error *err)
{
    const int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    writer->fd = open(writer->temporary, flags, 0600);
    if (writer->fd < 0 && errno == ENOENT) {
        make_directories(writer->temporary);
        writer->fd = open(writer->temporary, flags, 0600);
    }
    if (writer->fd < 0) {
        return cannot(writer, err);
    }
    struct stat info;
    if (fstat(writer->fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid() ||
        info.st_nlink > 1) {
        close(writer->fd);
        writer->fd = -1;
        return fg_fail(err, FG_BAD_INPUT, "cannot write %s: it is there and not ours",
                       writer->temporary);
    }
    return FG_OK;
}

/* With the lock held: is this file still the one under the temporary name? A writer renames it before
 * the lock is free. */
static bool still_temporary(const fg_cache_writer *writer)
{
    struct stat mine, named;
    return fstat(writer->fd, &mine) == 0 && lstat(writer->temporary, &named) == 0 &&
           mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

/* One try: FG_AGAIN while another process writes. */
static fg_status try_lock(fg_cache_writer *writer, fg_error *err)
{
    fg_status status = open_temporary(writer, err);
    if (status != FG_OK) {
        return status;
    }
    if (flock(writer->fd, LOCK_EX | LOCK_NB) == 0) {
        if (still_temporary(writer)) {
            return FG_OK;
        }
        status = FG_AGAIN; /* it was published just now */
    } else {
        status = errno == EWOULDBLOCK ? FG_AGAIN : cannot(writer, err);
    }
    close(writer->fd);
    writer->fd = -1;
    return status;
}

/* Empties what a dead writer left, and takes the room, so that a full disk shows before the work. */
static fg_status make_room(const fg_cache_writer *writer, const fg_panel_plan *plan, uint32_t mode,
                           fg_error *err)
{
    if (ftruncate(writer->fd, 0) != 0 || fchmod(writer->fd, (mode & 0444) | 0600) != 0) {
        return cannot(writer, err);
    }
    int failed = fallocate(writer->fd, 0, (off_t)plan->data_offset, (off_t)plan->data_bytes);
    if (failed != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        return cannot(writer, err);
    }
    return FG_OK;
}

fg_status fg_cache_begin(const char *path, const fg_panel_plan *plan, uint32_t mode,
                         uint32_t wait_ms, fg_cache_writer *writer_out, fg_error *err)
{
    fg_clock clock = fg_clock_real();
    uint64_t until_ns = fg_clock_now_ns(&clock) + (uint64_t)wait_ms * 1000000u;
    fg_cache_writer *writer = writer_out;
    *writer = (fg_cache_writer){ .fd = -1, .path = path };
    snprintf(writer->temporary, sizeof writer->temporary, "%s.tmp", path);
    fg_status status;
    while ((status = try_lock(writer, err)) == FG_AGAIN) {
        writer->waited = true;
        if (fg_clock_now_ns(&clock) >= until_ns) {
            return fg_fail(err, FG_TIMEOUT, "another process has been writing %s for %u s", path,
                           wait_ms / 1000);
        }
        nanosleep(&(struct timespec){ .tv_nsec = LOOK_AGAIN_MS * 1000000 }, NULL);
    }
    if (status != FG_OK) {
        return status;
    }
    status = make_room(writer, plan, mode, err);
    if (status != FG_OK) {
        fg_cache_end(writer, false);
    }
    return status;
}

fg_status fg_cache_write(const fg_cache_writer *writer, uint64_t offset, const void *bytes,
                         size_t size_bytes, fg_error *err)
{
    for (size_t done = 0; done < size_bytes;) {
        ssize_t put = pwrite(writer->fd, (const char *)bytes + done, size_bytes - done,
                             (off_t)(offset + done));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return cannot(writer, err);
        }
        done += (size_t)put;
    }
    return FG_OK;
}

/* The rename itself is on the disk when the directory is; where that cannot be had, a crash may lose the
 * file, no more. */
static void sync_directory(const char *path)
{
    char directory[FG_CACHE_PATH_MAX];
    snprintf(directory, sizeof directory, "%s", path);
    char *slash = strrchr(directory, '/');
    if (slash == NULL) {
        snprintf(directory, sizeof directory, ".");
    } else {
        slash[slash == directory ? 1 : 0] = '\0';
    }
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

fg_status fg_cache_publish(fg_cache_writer *writer, fg_error *err)
{
    if (fsync(writer->fd) != 0) {
        return cannot(writer, err);
    }
    if (rename(writer->temporary, writer->path) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "cannot replace %s: %s", writer->path, strerror(errno));
    }
    sync_directory(writer->path);
    return FG_OK;
}

void fg_cache_end(fg_cache_writer *writer, bool published)
{
    if (writer->fd < 0) {
        return;
    }
    if (!published) {
        unlink(writer->temporary); /* while the lock is held: it is ours */
    }
    close(writer->fd);
    writer->fd = -1;
}
