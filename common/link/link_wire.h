/*
 * link_wire - the bytes that links exchange: the handshake record (over the bus) and the messages
 * (over the link itself). Pure; knows no transport. Little-endian, fixed layouts, every length exact:
 * whatever does not fit to the byte is refused. Messages name tickets and block indices, never
 * addresses.
 */
#ifndef FORGE_COMMON_LINK_LINK_WIRE_H
#define FORGE_COMMON_LINK_LINK_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

enum {
    FG_LINK_VERSION = 1,
    FG_LINK_HEADER_BYTES = 48,
    FG_LINK_ADDRESS_MAX = 4096, /* a worker address is 38-79 bytes, a memory key 10-35 */
    FG_LINK_KEY_MAX = 4096,
};

typedef enum fg_link_kind {
    FG_LINK_DATA = 1, /* sender: blocks follow (transports without remote writes) */
    FG_LINK_COMMIT,   /* sender: all blocks are there */
    FG_LINK_ANSWER,   /* receiver: verdict */
    FG_LINK_FENCE,    /* receiver: stop writing this ticket and say so */
    FG_LINK_FENCED,   /* sender: writes this ticket no more */
    FG_LINK_GONE, /* sender: writes no ticket of this introduction any more (`ticket` names it) */
} fg_link_kind;

/* A message taken apart. `payload` points into the bytes given to the parser. */
typedef struct fg_link_wire {
    fg_link_kind kind;
    uint64_t from, to; /* link ids: a message for an earlier life of a process is for nobody */
    uint64_t ticket;
    uint32_t count;       /* DATA: blocks; COMMIT: blocks of the ticket; ANSWER: bad blocks */
    uint32_t first;       /* DATA: index in the ticket of the first; COMMIT: first token */
    uint32_t first_block; /* DATA: the arena block that the first goes to */
    const uint8_t
        *payload; /* COMMIT: first digest, then `count` digests; ANSWER: `count` indices */
} fg_link_wire;

/* False: not a message of this version, or a length or count that does not fit. For DATA, `bytes` is
 * the header alone. */
bool fg_link_wire_parse(const void *bytes, size_t size_bytes, fg_link_wire *wire_out);
/* Writes the FG_LINK_HEADER_BYTES header. */
void fg_link_wire_header(const fg_link_wire *wire, uint8_t *bytes_out);
/* What follows the header of a message of this kind and count. */
size_t fg_link_wire_payload_bytes(fg_link_kind kind, uint32_t count);

uint32_t fg_link_get32(const uint8_t *bytes);
uint64_t fg_link_get64(const uint8_t *bytes);
void fg_link_put32(uint8_t *bytes, uint32_t value);
void fg_link_put64(uint8_t *bytes, uint64_t value);

/* What kind of memory an arena is. */
typedef enum fg_link_medium {
    FG_LINK_PRIVATE, /* nobody else can write it */
    FG_LINK_POSIX,
    FG_LINK_SYSV,
    FG_LINK_PLAIN, /* its owner's transport does the writing */
    FG_LINK_CUDA,  /* a device's; other processes' devices write it */
} fg_link_medium;

/* Who a link is and how to reach it. */
typedef struct fg_link_record {
    uint64_t link_id;
    uint64_t host_id; /* equal: shared memory can work between the two processes */
    uint32_t pid;
    uint64_t started_at; /* of the process, in the kernel's ticks: tells a reused pid */
    uint64_t block_bytes;
    uint32_t block_count;
    uint64_t arena_base; /* where puts go; never in a message */
    const uint8_t *address;
    uint32_t address_bytes;
    const uint8_t *key; /* none: the arena cannot be written remotely */
    uint32_t key_bytes;
    fg_link_medium medium;
} fg_link_record;

bool fg_link_record_encode(const fg_link_record *record, fg_buf *out);
/* `record_out` points into `bytes`. FG_BAD_INPUT for anything that encode does not write. */
fg_status fg_link_record_parse(const void *bytes, size_t size_bytes, fg_link_record *record_out,
                               fg_error *err);

#endif
