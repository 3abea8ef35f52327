#include "common/link/link_wire.h"

#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/link/ticket.h"

enum {
    MESSAGE_MAGIC = 0x4B4C4746, /* "FGLK" */
    RECORD_MAGIC = 0x524C4746,  /* "FGLR" */
    RECORD_FIXED_BYTES = 72,
    RECORD_DIGEST_BYTES = 8,
};

uint32_t fg_link_get32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

uint64_t fg_link_get64(const uint8_t *bytes)
{
    return (uint64_t)fg_link_get32(bytes) | (uint64_t)fg_link_get32(bytes + 4) << 32;
}

void fg_link_put32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(value >> (8 * i));
    }
}

void fg_link_put64(uint8_t *bytes, uint64_t value)
{
    fg_link_put32(bytes, (uint32_t)value);
    fg_link_put32(bytes + 4, (uint32_t)(value >> 32));
}

size_t fg_link_wire_payload_bytes(fg_link_kind kind, uint32_t count)
{
    switch (kind) {
    case FG_LINK_COMMIT:
        return 8 + 8 * (size_t)count;
    case FG_LINK_ANSWER:
        return 4 * (size_t)count;
    default:
        return 0;
    }
}

void fg_link_wire_header(const fg_link_wire *wire, uint8_t *bytes_out)
{
    fg_link_put32(bytes_out, MESSAGE_MAGIC);
    fg_link_put32(bytes_out + 4, FG_LINK_VERSION | (uint32_t)wire->kind << 16);
    fg_link_put64(bytes_out + 8, wire->from);
    fg_link_put64(bytes_out + 16, wire->to);
    fg_link_put64(bytes_out + 24, wire->ticket);
    fg_link_put32(bytes_out + 32, wire->count);
    fg_link_put32(bytes_out + 36, wire->first);
    fg_link_put32(bytes_out + 40, wire->first_block);
    fg_link_put32(bytes_out + 44, 0);
}

/* Each kind's own bounds; fields it does not use must be zero. */
static bool fields_fit(const fg_link_wire *wire)
{
    switch (wire->kind) {
    case FG_LINK_DATA:
        return wire->count > 0 && wire->count <= FG_TICKET_BLOCKS_MAX &&
               wire->first < FG_TICKET_BLOCKS_MAX &&
               wire->count <= FG_TICKET_BLOCKS_MAX - wire->first &&
               wire->first_block < FG_LIMIT_BLOCKS;
    case FG_LINK_COMMIT:
        return wire->count > 0 && wire->count <= FG_TICKET_BLOCKS_MAX && wire->first_block == 0;
    case FG_LINK_ANSWER:
        return wire->count <= FG_TICKET_BLOCKS_MAX && wire->first == 0 && wire->first_block == 0;
    case FG_LINK_FENCE:
    case FG_LINK_FENCED:
    case FG_LINK_GONE:
        return wire->count == 0 && wire->first == 0 && wire->first_block == 0;
    default:
        return false;
    }
}

bool fg_link_wire_parse(const void *bytes, size_t size_bytes, fg_link_wire *wire_out)
{
    const uint8_t *at = bytes;
    if (size_bytes < FG_LINK_HEADER_BYTES || fg_link_get32(at) != MESSAGE_MAGIC ||
        (fg_link_get32(at + 4) & 0xFFFF) != FG_LINK_VERSION || fg_link_get32(at + 44) != 0) {
        return false;
    }
    fg_link_wire wire = {
        .kind = (fg_link_kind)(fg_link_get32(at + 4) >> 16),
        .from = fg_link_get64(at + 8),
        .to = fg_link_get64(at + 16),
        .ticket = fg_link_get64(at + 24),
        .count = fg_link_get32(at + 32),
        .first = fg_link_get32(at + 36),
        .first_block = fg_link_get32(at + 40),
        .payload = at + FG_LINK_HEADER_BYTES,
    };
    if (!fields_fit(&wire) ||
        size_bytes - FG_LINK_HEADER_BYTES != fg_link_wire_payload_bytes(wire.kind, wire.count)) {
        return false;
    }
    *wire_out = wire;
    return true;
}

/*
 * Record: magic 0, version 4, link id 8, host id 16, pid 24, block count 28, process start 32, block
 * bytes 40, arena base 48, address bytes 56, key bytes 60, medium 64, zero 68, then address, key, and a
 * digest of all before it (against truncation and damage; the bus authenticates).
 */
bool fg_link_record_encode(const fg_link_record *record, fg_buf *out)
{
    uint8_t fixed[RECORD_FIXED_BYTES] = { 0 };
    fg_link_put32(fixed, RECORD_MAGIC);
    fg_link_put32(fixed + 4, FG_LINK_VERSION);
    fg_link_put64(fixed + 8, record->link_id);
    fg_link_put64(fixed + 16, record->host_id);
    fg_link_put32(fixed + 24, record->pid);
    fg_link_put32(fixed + 28, record->block_count);
    fg_link_put64(fixed + 32, record->started_at);
    fg_link_put64(fixed + 40, record->block_bytes);
    fg_link_put64(fixed + 48, record->arena_base);
    fg_link_put32(fixed + 56, record->address_bytes);
    fg_link_put32(fixed + 60, record->key_bytes);
    fg_link_put32(fixed + 64, (uint32_t)record->medium);
    size_t start = out->size;
    if (!fg_buf_append(out, fixed, sizeof fixed) ||
        !fg_buf_append(out, record->address, record->address_bytes) ||
        !fg_buf_append(out, record->key, record->key_bytes)) {
        return false;
    }
    uint8_t digest[RECORD_DIGEST_BYTES];
    fg_link_put64(digest, fg_hash64(out->data + start, out->size - start, RECORD_MAGIC));
    return fg_buf_append(out, digest, sizeof digest);
}

fg_status fg_link_record_parse(const void *bytes, size_t size_bytes, fg_link_record *record_out,
                               fg_error *err)
{
    const uint8_t *at = bytes;
    if (size_bytes < RECORD_FIXED_BYTES + RECORD_DIGEST_BYTES ||
        fg_link_get32(at) != RECORD_MAGIC) {
        return fg_fail(err, FG_BAD_INPUT, "link record: %zu bytes that are not a record",
                       size_bytes);
    }
    if (fg_link_get32(at + 4) != FG_LINK_VERSION) {
        return fg_fail(err, FG_BAD_INPUT, "link record: version %u, this build speaks %d",
                       fg_link_get32(at + 4), FG_LINK_VERSION);
    }
    fg_link_record record = {
        .link_id = fg_link_get64(at + 8),
        .host_id = fg_link_get64(at + 16),
        .pid = fg_link_get32(at + 24),
        .block_count = fg_link_get32(at + 28),
        .started_at = fg_link_get64(at + 32),
        .block_bytes = fg_link_get64(at + 40),
        .arena_base = fg_link_get64(at + 48),
        .address_bytes = fg_link_get32(at + 56),
        .key_bytes = fg_link_get32(at + 60),
        .medium = (fg_link_medium)fg_link_get32(at + 64),
    };
    size_t rest = size_bytes - RECORD_FIXED_BYTES - RECORD_DIGEST_BYTES;
    if (record.address_bytes > FG_LINK_ADDRESS_MAX || record.key_bytes > FG_LINK_KEY_MAX ||
        rest != (size_t)record.address_bytes + record.key_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "link record: lengths do not fit %zu bytes", size_bytes);
    }
    if (fg_link_get64(at + size_bytes - RECORD_DIGEST_BYTES) !=
        fg_hash64(at, size_bytes - RECORD_DIGEST_BYTES, RECORD_MAGIC)) {
        return fg_fail(err, FG_BAD_INPUT, "link record: damaged (digest differs)");
    }
    if (record.medium > FG_LINK_CUDA ||
        (record.medium == FG_LINK_PRIVATE) != (record.key_bytes == 0) ||
        fg_link_get32(at + 68) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "link record: memory key and medium do not agree");
    }
    uint64_t arena_bytes;
    if (record.link_id == 0 || record.block_bytes == 0 || record.block_count == 0 ||
        record.block_count > FG_LIMIT_BLOCKS ||
        __builtin_mul_overflow(record.block_bytes, (uint64_t)record.block_count, &arena_bytes) ||
        arena_bytes > UINT64_MAX - record.arena_base) {
        return fg_fail(err, FG_BAD_INPUT, "link record: impossible arena");
    }
    record.address = at + RECORD_FIXED_BYTES;
    record.key = record.address + record.address_bytes;
    *record_out = record;
    return FG_OK;
}
