/*
 * flight - the recent inputs of a process, kept in memory to be written out after a crash or on demand.
 * Owned by the loop thread. What a record means is its writer's business (router/flight_records.h).
 *
 *   START -> CONTINUED -> ...        what no longer fits goes over the older of two chunks
 *         -> REST -> CONTINUED ...   begun by the owner, which first notes all that it knows
 *
 * A file is a header, what the owner said of itself, the older chunk, the newer one. It can be run again
 * from a chunk that is START or REST.
 *
 * What always holds: a note allocates nothing and calls nobody; what a chunk cannot hold is counted and
 * ends its use for replaying. A chunk's records below its size are whole at every instant, so a signal
 * handler may write them out. A flight made from a file compares instead of keeping: each note must equal
 * the next record.
 */
#ifndef FORGE_COMMON_OBS_FLIGHT_H
#define FORGE_COMMON_OBS_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

#define FG_FLIGHT_VERSION 2u
#define FG_FLIGHT_MAGIC   "FGFLIGHT"

enum { FG_FLIGHT_PROCESS_BYTES = 96, FG_FLIGHT_PREFACE_BYTES = 64 * 1024, FG_FLIGHT_PARTS = 2 };

typedef enum fg_flight_chunk_kind {
    FG_FLIGHT_NONE = 0,  /* nothing was kept there yet */
    FG_FLIGHT_START,     /* begins with the process */
    FG_FLIGHT_REST,      /* begins with all that the process knew */
    FG_FLIGHT_CONTINUED, /* goes on where the other one ends */
} fg_flight_chunk_kind;

typedef struct fg_flight_chunk {
    uint64_t bytes, hash;
    uint32_t kind; /* fg_flight_chunk_kind */
    uint32_t pad;
} fg_flight_chunk;

/* As it lies in the file, in the byte order of the machine. */
typedef struct fg_flight_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t shape; /* of the records: another build may lay them out otherwise */
    uint64_t pid, dropped;
    uint32_t signal; /* that ended the process; 0: it went on */
    uint32_t preface_bytes;
    uint64_t preface_hash;
    uint32_t inside; /* the last call that is in the records had not ended */
    uint32_t pad;
    char process[FG_FLIGHT_PROCESS_BYTES];
    fg_flight_chunk chunks[2]; /* the older one first */
} fg_flight_header;

/* Before each record's bytes, which are followed by zeros up to a multiple of eight. */
typedef struct fg_flight_record {
    uint32_t bytes;
    uint32_t kind; /* from 1 on */
} fg_flight_record;

/* What kinds of records number: calls below FG_FLIGHT_KNOWN, then what the owner knew when a part of the file
 * begins, what it was told during a call, and what it did. */
enum { FG_FLIGHT_KNOWN = 32, FG_FLIGHT_TOLD = 48, FG_FLIGHT_DID = 64 };

/* The beginning of each call's record. */
typedef struct fg_flight_call {
    uint64_t now_ns;
    uint32_t depth;  /* 0: from outside; else from inside another call */
    uint32_t sunken; /* how far that one had come, in the owner's measure */
} fg_flight_call;

typedef struct fg_flight fg_flight;

typedef struct fg_flight_options {
    size_t bytes; /* of both chunks together */
    uint64_t shape;
    const char *process;   /* copied: names the files */
    const char *directory; /* copied: where fg_flight_write puts them */
    const void *preface;   /* copied: what the owner needs to be made again */
    size_t preface_bytes;
} fg_flight_options;

/* FG_AGAIN: out of memory. FG_BAD_INPUT: the directory's name is too long. */
fg_status fg_flight_create(const fg_flight_options *options, fg_flight **flight_out, fg_error *err);
void fg_flight_destroy(fg_flight *flight);

/* All below take NULL: nobody keeps anything. */

/* Where the next record's `bytes` go, eight-byte aligned and not zeroed; NULL: it is not kept. Nothing is there before
 * fg_flight_commit. */
void *fg_flight_open(fg_flight *flight, uint32_t kind, size_t bytes);
void fg_flight_commit(fg_flight *flight);
/* Both in one. */
void fg_flight_note(fg_flight *flight, uint32_t kind, const void *bytes, size_t size_bytes);
/* A head with what follows it, which may be nothing. */
void fg_flight_note_with(fg_flight *flight, uint32_t kind, const void *head, size_t head_bytes,
                         const void *more, size_t more_bytes);
/* Whether the owner is at work on the call that it noted last. */
void fg_flight_inside(fg_flight *flight, bool inside);
/* It is time for a new chunk, once the process is at rest: half of the present one is used, or
 * nothing that is kept could be run. */
bool fg_flight_wants_rest(const fg_flight *flight);
/* Bytes of all that a chunk holds. */
size_t fg_flight_room(const fg_flight *flight);
/* Begins one; the owner notes all that it knows next. */
void fg_flight_rest(fg_flight *flight);

/* ---- out ---- */

/* Appends the file. False: no room in `out`. */
bool fg_flight_render(const fg_flight *flight, fg_buf *out);
/* Writes DIRECTORY/forge-flight-PROCESS-PID.bin, mode 0600, in place of the one before; `signal` goes into the
 * header. Safe in a signal handler. False: it could not be written. */
bool fg_flight_write(const fg_flight *flight, uint32_t signal);
/* Whether it could be written now, tried with an empty file, which is gone again; a record that is there stays. False:
 * errno says why not. */
bool fg_flight_can_write(const fg_flight *flight);
const char *fg_flight_path(const fg_flight *flight);
/* From now on a crash (SIGABRT and, but under sanitizers, SIGSEGV, SIGBUS, SIGFPE, SIGILL) writes this flight
 * before the process ends by the same signal. FG_FLIGHT_PARTS in a process at most. */
void fg_flight_on_crash(fg_flight *flight);
/* Not any more. */
void fg_flight_off_crash(const fg_flight *flight);

/* ---- in ---- */

typedef struct fg_flight_file {
    const fg_flight_header *header; /* all of these lie in the caller's bytes */
    const void *preface;
    const unsigned char *chunks[2];
    bool can_run;     /* its beginning was not overwritten */
    uint32_t first;   /* the chunk that it runs from */
    uint64_t records; /* from there on */
} fg_flight_file;

/* `bytes` are aligned to eight and outlive the file. FG_BAD_INPUT says what is wrong: no such file, another
 * version, another build (`shape`; 0: any), damaged or cut off. */
fg_status fg_flight_parse(const void *bytes, size_t size_bytes, uint64_t shape,
                          fg_flight_file *file_out, fg_error *err);

/* A flight that compares, from the file's first record that can be run. */
fg_status fg_flight_check(const fg_flight_file *file, fg_flight **flight_out, fg_error *err);
/* The next record, or NULL: none is left, or a difference was found. Also NULL where nothing is compared. */
const fg_flight_record *fg_flight_peek(const fg_flight *flight);
/* Goes past it. */
void fg_flight_skip(fg_flight *flight);
/* What the next record says, if it is of this kind; else NULL. */
const void *fg_flight_told(const fg_flight *flight, uint32_t kind, size_t *bytes_out);
/* What the process knew is in the file only as far as it was asked for. */
bool fg_flight_is_partial(const fg_flight *flight);
/* It was made from a file. */
bool fg_flight_checks(const fg_flight *flight);

typedef struct fg_flight_difference {
    bool found, beyond;             /* beyond: no record was left to compare with */
    uint64_t index;                 /* of the record, from the first that was run */
    const fg_flight_record *wanted; /* NULL: none was left */
    uint32_t kind;                  /* of what came instead */
    uint32_t bytes;
    const void *now; /* its bytes, until the flight is destroyed */
} fg_flight_difference;
const fg_flight_difference *fg_flight_differs(const fg_flight *flight);
uint64_t fg_flight_index(const fg_flight *flight); /* of the next record */

static inline const void *fg_flight_bytes(const fg_flight_record *record)
{
    return record + 1;
}

#endif
