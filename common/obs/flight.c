#include "common/obs/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/obs/flight_internal.h"

static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

fg_status fg_flight_create(const fg_flight_options *options, fg_flight **flight_out, fg_error *err)
{
    fg_flight *flight = fg_mem_alloc(sizeof *flight);
    if (flight == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the flight recorder");
    }
    FG_ASSERT(options->preface_bytes <= FG_FLIGHT_PREFACE_BYTES, "the preface is too long");
    flight->chunk_bytes = options->bytes / 2 & ~(size_t)7;
    flight->shape = options->shape;
    flight->pid = (uint64_t)getpid();
    snprintf(flight->process, sizeof flight->process, "%s", options->process);
    int length = snprintf(flight->path, sizeof flight->path, "%s/forge-flight-%s-%d.bin",
                          options->directory, options->process, (int)getpid());
    fg_status status = FG_OK;
    if (length < 0 || (size_t)length >= sizeof flight->path) {
        status = fg_fail(err, FG_BAD_INPUT, "the folder for flight records has too long a name");
    }
    for (int i = 0; status == FG_OK && i < 2; i++) {
        flight->chunks[i].memory = fg_mem_map(flight->chunk_bytes);
        if (flight->chunks[i].memory == NULL) {
            status = fg_fail(err, FG_AGAIN, "out of memory for the flight recorder");
        }
    }
    if (status == FG_OK) {
        flight->preface = fg_mem_dup(options->preface, options->preface_bytes);
        flight->preface_bytes = (uint32_t)options->preface_bytes;
        if (flight->preface == NULL) {
            status = fg_fail(err, FG_AGAIN, "out of memory for the flight recorder");
        }
    }
    if (status != FG_OK) {
        fg_flight_destroy(flight);
        return status;
    }
    flight->chunks[0].kind = FG_FLIGHT_START;
    *flight_out = flight;
    return FG_OK;
}

void fg_flight_destroy(fg_flight *flight)
{
    if (flight == NULL) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (flight->chunks[i].memory != NULL) {
            fg_mem_unmap(flight->chunks[i].memory, flight->chunk_bytes);
        }
    }
    fg_buf_deinit(&flight->scratch);
    fg_mem_free(flight->preface);
    fg_mem_free(flight);
}

/* ---- keeping ---- */

static void turn(fg_flight *flight, fg_flight_chunk_kind kind)
{
    chunk *fresh = &flight->chunks[flight->now ^ 1u];
    fresh->used = 0;
    fresh->kind = kind;
    __atomic_signal_fence(__ATOMIC_RELEASE);
    flight->now ^= 1u;
}

void *fg_flight_open(fg_flight *flight, uint32_t kind, size_t bytes)
{
    if (flight == NULL) {
        return NULL;
    }
    if (flight->checks) {
        return fg_flight_check_open(flight, kind, bytes);
    }
    size_t size = sizeof(fg_flight_record) + padded(bytes);
    if (size > flight->chunk_bytes) {
        /* A gap: what is kept of now cannot be run beyond it. */
        flight->dropped++;
        turn(flight, FG_FLIGHT_CONTINUED);
        turn(flight, FG_FLIGHT_CONTINUED);
        return NULL;
    }
    if (flight->chunks[flight->now].used + size > flight->chunk_bytes) {
        turn(flight, FG_FLIGHT_CONTINUED);
    }
    chunk *into = &flight->chunks[flight->now];
    fg_flight_record *record = (fg_flight_record *)(into->memory + into->used);
    *record = (fg_flight_record){ .bytes = (uint32_t)bytes, .kind = kind };
    unsigned char *data = (unsigned char *)(record + 1);
    if (bytes & 7) {
        memset(data + (bytes & ~(size_t)7), 0, 8);
    }
    flight->opened = size;
    return data;
}

void fg_flight_commit(fg_flight *flight)
{
    if (flight->checks) {
        fg_flight_check_commit(flight);
        return;
    }
    /* A signal handler of this thread sees the record whole or not at all. */
    __atomic_signal_fence(__ATOMIC_RELEASE);
    flight->chunks[flight->now].used += flight->opened;
}

void fg_flight_note(fg_flight *flight, uint32_t kind, const void *bytes, size_t size_bytes)
{
    void *data = fg_flight_open(flight, kind, size_bytes);
    if (data != NULL) {
        memcpy(data, bytes, size_bytes);
        fg_flight_commit(flight);
    }
}

void fg_flight_note_with(fg_flight *flight, uint32_t kind, const void *head, size_t head_bytes,
                         const void *more, size_t more_bytes)
{
    unsigned char *data = fg_flight_open(flight, kind, head_bytes + more_bytes);
    if (data != NULL) {
        memcpy(data, head, head_bytes);
        if (more_bytes > 0) {
            memcpy(data + head_bytes, more, more_bytes);
        }
        fg_flight_commit(flight);
    }
}

void fg_flight_inside(fg_flight *flight, bool inside)
{
    if (flight != NULL) {
        flight->inside = inside;
    }
}

static bool begins(fg_flight_chunk_kind kind)
{
    return kind == FG_FLIGHT_START || kind == FG_FLIGHT_REST;
}

bool fg_flight_wants_rest(const fg_flight *flight)
{
    if (flight == NULL || flight->checks) {
        return false;
    }
    bool can_run = begins(flight->chunks[0].kind) || begins(flight->chunks[1].kind);
    return !can_run || flight->chunks[flight->now].used >= flight->chunk_bytes / 2;
}

size_t fg_flight_room(const fg_flight *flight)
{
    return flight == NULL ? 0 : flight->chunk_bytes;
}

void fg_flight_rest(fg_flight *flight)
{
    turn(flight, FG_FLIGHT_REST);
}

/* ---- out ---- */

static fg_flight_header header_of(const fg_flight *flight, uint32_t number)
{
    fg_flight_header header = { .version = FG_FLIGHT_VERSION,
                                .header_bytes = sizeof header,
                                .shape = flight->shape,
                                .pid = flight->pid,
                                .dropped = flight->dropped,
                                .signal = number,
                                .preface_bytes = flight->preface_bytes,
                                .inside = flight->inside };
    memcpy(header.magic, FG_FLIGHT_MAGIC, sizeof header.magic);
    memcpy(header.process, flight->process, sizeof header.process);
    header.preface_hash = fg_hash64(flight->preface, flight->preface_bytes, 0);
    for (uint32_t i = 0; i < 2; i++) {
        const chunk *from = &flight->chunks[flight->now ^ 1u ^ i];
        header.chunks[i] = (fg_flight_chunk){ .bytes = from->used,
                                              .kind = from->kind,
                                              .hash = fg_hash64(from->memory, from->used, 0) };
    }
    return header;
}

bool fg_flight_render(const fg_flight *flight, fg_buf *out)
{
    fg_flight_header header = header_of(flight, 0);
    const chunk *older = &flight->chunks[flight->now ^ 1u], *newer = &flight->chunks[flight->now];
    return fg_buf_append(out, &header, sizeof header) &&
           fg_buf_append(out, flight->preface, flight->preface_bytes) &&
           fg_buf_append(out, "\0\0\0\0\0\0\0",
                         padded(flight->preface_bytes) - flight->preface_bytes) &&
           fg_buf_append(out, older->memory, older->used) &&
           fg_buf_append(out, newer->memory, newer->used);
}

static bool write_all(int file, const void *bytes, size_t size_bytes)
{
    const char *at = bytes;
    while (size_bytes > 0) {
        ssize_t done = write(file, at, size_bytes);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return false;
        }
        at += done;
        size_bytes -= (size_t)done;
    }
    return true;
}

/* A new file, which nobody else has prepared or opened. */
static int create_file(const fg_flight *flight)
{
    return open(flight->path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

bool fg_flight_can_write(const fg_flight *flight)
{
    int file = create_file(flight);
    if (file < 0) {
        return errno == EEXIST;
    }
    close(file);
    unlink(flight->path);
    return true;
}

bool fg_flight_write(const fg_flight *flight, uint32_t number)
{
    if (flight == NULL || flight->checks) {
        return false;
    }
    fg_flight_header header = header_of(flight, number);
    const chunk *older = &flight->chunks[flight->now ^ 1u], *newer = &flight->chunks[flight->now];
    unlink(flight->path);
    int file = create_file(flight);
    if (file < 0) {
        return false;
    }
    bool ok =
        write_all(file, &header, sizeof header) &&
        write_all(file, flight->preface, flight->preface_bytes) &&
        write_all(file, "\0\0\0\0\0\0\0", padded(flight->preface_bytes) - flight->preface_bytes) &&
        write_all(file, older->memory, older->used) && write_all(file, newer->memory, newer->used);
    return close(file) == 0 && ok;
}

const char *fg_flight_path(const fg_flight *flight)
{
    return flight->path;
}

/* ---- crashes ---- */

static fg_flight *at_crash[FG_FLIGHT_PARTS]; /* the handler's */

static void crashed(int number)
{
    int saved = errno;
    static const char text[] = "forge: flight record written\n";
    for (size_t i = 0; i < FG_FLIGHT_PARTS; i++) {
        fg_flight *flight = at_crash[i];
        at_crash[i] = NULL; /* a fault in here ends the process at once */
        if (flight != NULL && fg_flight_write(flight, (uint32_t)number)) {
            write_all(STDERR_FILENO, text, sizeof text - 1);
        }
    }
    errno = saved;
    raise(number); /* SA_RESETHAND: the system's own way */
}

static void handle_crashes(bool here)
{
    static const int numbers[] = { SIGABRT,
#ifndef FORGE_SANITIZED
                                   SIGSEGV, SIGBUS, SIGFPE, SIGILL
#endif
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action = { .sa_handler = here ? crashed : SIG_DFL,
                                    .sa_flags = here ? (int)SA_RESETHAND : 0 };
        sigemptyset(&action.sa_mask);
        sigaction(numbers[i], &action, NULL);
    }
}

void fg_flight_on_crash(fg_flight *flight)
{
    size_t at = 0;
    while (at < FG_FLIGHT_PARTS && at_crash[at] != NULL) {
        at++;
    }
    FG_ASSERT(at < FG_FLIGHT_PARTS, "more flight records than a process has parts");
    at_crash[at] = flight;
    handle_crashes(true);
}

void fg_flight_off_crash(const fg_flight *flight)
{
    bool any = false;
    for (size_t i = 0; i < FG_FLIGHT_PARTS; i++) {
        at_crash[i] = at_crash[i] == flight ? NULL : at_crash[i];
        any = any || at_crash[i] != NULL;
    }
    handle_crashes(any);
}
