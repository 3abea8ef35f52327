/* A file of records is read, and run again: what is noted must be what comes next in it. */
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/obs/flight_internal.h"

static size_t padded(size_t bytes)
{
    return (bytes + 7) & ~(size_t)7;
}

/* ---- reading ---- */

static fg_status check_header(const fg_flight_header *header, size_t size_bytes, uint64_t shape,
                              fg_error *err)
{
    if (size_bytes < sizeof *header || memcmp(header->magic, FG_FLIGHT_MAGIC, 8) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "it is no flight record");
    }
    if (header->version != FG_FLIGHT_VERSION || header->header_bytes != sizeof *header) {
        return fg_fail(err, FG_BAD_INPUT, "version %u of flight records; this program reads %u",
                       header->version, FG_FLIGHT_VERSION);
    }
    if (shape != 0 && header->shape != shape) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "it was written by another build of forge, or by another kind of process: run the one "
            "that wrote it");
    }
    if (memchr(header->process, '\0', sizeof header->process) == NULL ||
        header->preface_bytes > FG_FLIGHT_PREFACE_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "it is damaged: its header is nonsense");
    }
    return FG_OK;
}

/* The number of records, each of which lies within the chunk. */
static bool count_records(const unsigned char *bytes, uint64_t size_bytes, uint64_t *count_out)
{
    uint64_t at = 0, count = 0;
    while (at < size_bytes) {
        if (size_bytes - at < sizeof(fg_flight_record)) {
            return false;
        }
        const fg_flight_record *record = (const fg_flight_record *)(bytes + at);
        uint64_t size = sizeof *record + padded(record->bytes);
        if (record->kind == 0 || size > size_bytes - at) {
            return false;
        }
        at += size;
        count++;
    }
    *count_out = count;
    return true;
}

static fg_status check_chunks(const unsigned char *bytes, size_t size_bytes, uint64_t counts[2],
                              fg_flight_file *file, fg_error *err)
{
    const fg_flight_header *header = file->header;
    uint64_t at = sizeof *header + padded(header->preface_bytes);
    for (int i = 0; i < 2; i++) {
        const fg_flight_chunk *part = &header->chunks[i];
        if (at > size_bytes || part->bytes > size_bytes - at || part->bytes % 8 != 0 ||
            part->kind > FG_FLIGHT_CONTINUED) {
            return fg_fail(err, FG_BAD_INPUT, "it is cut off: %zu bytes are not all of it",
                           size_bytes);
        }
        file->chunks[i] = bytes + at;
        if (fg_hash64(bytes + at, part->bytes, 0) != part->hash ||
            !count_records(bytes + at, part->bytes, &counts[i])) {
            return fg_fail(err, FG_BAD_INPUT, "it is damaged: part %d is not as it was written",
                           i + 1);
        }
        at += part->bytes;
    }
    if (at != size_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "it is damaged: %llu bytes too many",
                       (unsigned long long)(size_bytes - at));
    }
    return FG_OK;
}

static bool begins(uint32_t kind)
{
    return kind == FG_FLIGHT_START || kind == FG_FLIGHT_REST;
}

fg_status fg_flight_parse(const void *bytes, size_t size_bytes, uint64_t shape,
                          fg_flight_file *file_out, fg_error *err)
{
    uint64_t counts[2];
    fg_flight_file file = { .header = bytes };
    fg_status status = check_header(file.header, size_bytes, shape, err);
    if (status == FG_OK) {
        status = check_chunks(bytes, size_bytes, counts, &file, err);
    }
    if (status != FG_OK) {
        return status;
    }
    file.preface = file.header + 1;
    if (fg_hash64(file.preface, file.header->preface_bytes, 0) != file.header->preface_hash) {
        return fg_fail(err, FG_BAD_INPUT,
                       "it is damaged: its options are not as they were written");
    }
    file.can_run = begins(file.header->chunks[0].kind) || begins(file.header->chunks[1].kind);
    file.first = begins(file.header->chunks[0].kind) ? 0 : 1;
    file.records = file.first == 0 ? counts[0] + counts[1] : counts[1];
    *file_out = file;
    return FG_OK;
}

/* ---- comparing ---- */

/* Past the end of a chunk the next one goes on; one that begins anew is joined to it all the same. */
static void settle(fg_flight *flight)
{
    while (flight->at_chunk < 2 &&
           flight->at == flight->file.header->chunks[flight->at_chunk].bytes) {
        flight->at_chunk++;
        flight->at = 0;
    }
}

fg_status fg_flight_check(const fg_flight_file *file, fg_flight **flight_out, fg_error *err)
{
    if (!file->can_run) {
        return fg_fail(err, FG_BAD_INPUT, "its beginning was overwritten, so it cannot be run");
    }
    fg_flight *flight = fg_mem_alloc(sizeof *flight);
    if (flight == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    flight->checks = true;
    flight->file = *file;
    flight->at_chunk = file->first;
    flight->partial = file->header->chunks[file->first].kind == FG_FLIGHT_REST;
    fg_buf_init(&flight->scratch, 0);
    settle(flight);
    *flight_out = flight;
    return FG_OK;
}

const fg_flight_record *fg_flight_peek(const fg_flight *flight)
{
    if (flight == NULL || !flight->checks || flight->at_chunk == 2 || flight->difference.found) {
        return NULL;
    }
    return (const fg_flight_record *)(flight->file.chunks[flight->at_chunk] + flight->at);
}

void fg_flight_skip(fg_flight *flight)
{
    const fg_flight_record *record = fg_flight_peek(flight);
    if (record != NULL) {
        flight->at += sizeof *record + padded(record->bytes);
        flight->index++;
        settle(flight);
    }
}

const void *fg_flight_told(const fg_flight *flight, uint32_t kind, size_t *bytes_out)
{
    const fg_flight_record *record = fg_flight_peek(flight);
    if (record == NULL || record->kind != kind) {
        return NULL;
    }
    *bytes_out = record->bytes;
    return fg_flight_bytes(record);
}

bool fg_flight_is_partial(const fg_flight *flight)
{
    return flight != NULL && flight->partial;
}

bool fg_flight_checks(const fg_flight *flight)
{
    return flight != NULL && flight->checks;
}

void *fg_flight_check_open(fg_flight *flight, uint32_t kind, size_t bytes)
{
    if (flight->difference.found) {
        return NULL;
    }
    fg_buf_clear(&flight->scratch);
    void *data = fg_buf_reserve(&flight->scratch, bytes + 8);
    flight->difference.kind = kind;
    flight->difference.bytes = (uint32_t)bytes;
    flight->difference.now = data;
    return data;
}

void fg_flight_check_commit(fg_flight *flight)
{
    fg_flight_difference *seen = &flight->difference;
    const fg_flight_record *record = fg_flight_peek(flight);
    if (record == NULL) {
        seen->beyond = true;
        return;
    }
    if (record->kind != seen->kind || record->bytes != seen->bytes ||
        memcmp(fg_flight_bytes(record), seen->now, seen->bytes) != 0) {
        seen->index = flight->index;
        seen->wanted = record;
        seen->found = true;
        return;
    }
    fg_flight_skip(flight);
}

const fg_flight_difference *fg_flight_differs(const fg_flight *flight)
{
    return &flight->difference;
}

uint64_t fg_flight_index(const fg_flight *flight)
{
    return flight->index;
}
