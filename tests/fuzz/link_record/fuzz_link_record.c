/*
 * Any bytes as a link's handshake record and as a link message: no crash, nothing read outside, and
 * what is accepted is what the encoder writes. A record's digest hides its inside from the fuzzer, so
 * the bytes are tried a second time with the digest put right.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/link/link_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void try_record(const uint8_t *bytes, size_t size_bytes)
{
    fg_link_record record;
    fg_error err;
    if (fg_link_record_parse(bytes, size_bytes, &record, &err) != FG_OK) {
        return;
    }
    fg_buf again;
    fg_buf_init(&again, 0);
    FG_ASSERT(fg_link_record_encode(&record, &again), "encode");
    FG_ASSERT(again.size == size_bytes && memcmp(again.data, bytes, size_bytes) == 0,
              "a record that encode would not write");
    fg_buf_deinit(&again);
}

static void try_message(const uint8_t *bytes, size_t size_bytes)
{
    fg_link_wire wire;
    if (!fg_link_wire_parse(bytes, size_bytes, &wire)) {
        return;
    }
    uint8_t header[FG_LINK_HEADER_BYTES];
    fg_link_wire_header(&wire, header);
    FG_ASSERT(memcmp(header, bytes, sizeof header) == 0, "a header that would not be written");
    size_t payload = fg_link_wire_payload_bytes(wire.kind, wire.count);
    FG_ASSERT(size_bytes == FG_LINK_HEADER_BYTES + payload);
    volatile uint8_t sum = 0;
    for (size_t i = 0; i < payload; i++) {
        sum = (uint8_t)(sum + wire.payload[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    try_message(bytes, size_bytes);
    try_record(bytes, size_bytes);
    if (size_bytes >= 8) {
        uint8_t *copy = malloc(size_bytes);
        if (copy == NULL) {
            return 0;
        }
        memcpy(copy, bytes, size_bytes);
        fg_link_put64(copy + size_bytes - 8, fg_hash64(copy, size_bytes - 8, 0x524C4746));
        try_record(copy, size_bytes);
        free(copy);
    }
    return 0;
}
