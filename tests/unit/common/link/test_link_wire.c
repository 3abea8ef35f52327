#include "common/link/link_wire.h"

#include <string.h>

#include "common/base/limits.h"
#include "common/link/ticket.h"
#include "tests/support/test.h"

static const fg_link_wire good[] = {
    { .kind = FG_LINK_DATA,
      .from = 1,
      .to = 2,
      .ticket = 3,
      .count = 4,
      .first = 5,
      .first_block = 6 },
    { .kind = FG_LINK_COMMIT, .from = 1, .to = 2, .ticket = 3, .count = 2, .first = UINT32_MAX },
    { .kind = FG_LINK_ANSWER, .from = 1, .to = 2, .ticket = UINT64_MAX, .count = 3 },
    { .kind = FG_LINK_ANSWER, .from = 1, .to = 2, .ticket = 3 },
    { .kind = FG_LINK_FENCE, .from = 1, .to = 2, .ticket = 3 },
    { .kind = FG_LINK_FENCED, .from = 1, .to = 2, .ticket = 3 },
    { .kind = FG_LINK_GONE, .from = 1, .to = 2, .ticket = UINT64_MAX },
};
enum { GOOD_COUNT = sizeof good / sizeof good[0] };

static size_t message_bytes(const fg_link_wire *wire)
{
    return FG_LINK_HEADER_BYTES + fg_link_wire_payload_bytes(wire->kind, wire->count);
}

Test(link_wire, every_kind_comes_back_as_it_was)
{
    for (int i = 0; i < GOOD_COUNT; i++) {
        uint8_t bytes[256] = { 0 };
        fg_link_wire back;
        fg_link_wire_header(&good[i], bytes);
        cr_assert(fg_link_wire_parse(bytes, message_bytes(&good[i]), &back), "kind %d",
                  (int)good[i].kind);
        cr_assert(back.kind == good[i].kind && back.from == 1 && back.to == 2);
        cr_assert(back.ticket == good[i].ticket && back.count == good[i].count);
        cr_assert(back.first == good[i].first && back.first_block == good[i].first_block);
        cr_assert(back.payload == bytes + FG_LINK_HEADER_BYTES);
    }
}

Test(link_wire, any_other_length_is_refused)
{
    for (int i = 0; i < GOOD_COUNT; i++) {
        uint8_t bytes[256] = { 0 };
        fg_link_wire back;
        fg_link_wire_header(&good[i], bytes);
        for (size_t size = 0; size <= sizeof bytes; size++) {
            cr_assert_eq(fg_link_wire_parse(bytes, size, &back), size == message_bytes(&good[i]),
                         "kind %d, %zu bytes", (int)good[i].kind, size);
        }
    }
}

Test(link_wire, impossible_fields_are_refused)
{
    struct {
        const char *name;
        fg_link_wire wire;
    } cases[] = {
        { "kind 0", { .kind = (fg_link_kind)0 } },
        { "kind 7", { .kind = (fg_link_kind)7 } },
        { "kind at its maximum", { .kind = (fg_link_kind)65535 } },
        { "data without blocks", { .kind = FG_LINK_DATA } },
        { "data of too many blocks", { .kind = FG_LINK_DATA, .count = FG_TICKET_BLOCKS_MAX + 1 } },
        { "data beyond any ticket",
          { .kind = FG_LINK_DATA, .count = 2, .first = FG_TICKET_BLOCKS_MAX - 1 } },
        { "data index that wraps", { .kind = FG_LINK_DATA, .count = 2, .first = UINT32_MAX } },
        { "data to an impossible block",
          { .kind = FG_LINK_DATA, .count = 1, .first_block = FG_LIMIT_BLOCKS } },
        { "commit of nothing", { .kind = FG_LINK_COMMIT } },
        { "commit of too much", { .kind = FG_LINK_COMMIT, .count = FG_TICKET_BLOCKS_MAX + 1 } },
        { "commit of 4 Gi blocks", { .kind = FG_LINK_COMMIT, .count = UINT32_MAX } },
        { "commit with a block", { .kind = FG_LINK_COMMIT, .count = 1, .first_block = 1 } },
        { "answer of 4 Gi blocks", { .kind = FG_LINK_ANSWER, .count = UINT32_MAX } },
        { "answer with an index", { .kind = FG_LINK_ANSWER, .first = 1 } },
        { "fence with a count", { .kind = FG_LINK_FENCE, .count = 1 } },
        { "gone with an index", { .kind = FG_LINK_GONE, .first = 1 } },
    };
    static uint8_t bytes[FG_LINK_HEADER_BYTES + 8 * (FG_TICKET_BLOCKS_MAX + 2)];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_link_wire back;
        size_t size = message_bytes(&cases[i].wire);
        fg_link_wire_header(&cases[i].wire, bytes);
        cr_assert(!fg_link_wire_parse(bytes, size < sizeof bytes ? size : sizeof bytes, &back),
                  "%s", cases[i].name);
    }
    uint8_t header[FG_LINK_HEADER_BYTES];
    fg_link_wire back;
    const struct {
        const char *name;
        size_t at;
    } changed[] = { { "magic", 0 }, { "version", 4 }, { "reserved", 44 }, { "reserved end", 47 } };
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        fg_link_wire_header(&good[4], header);
        cr_assert(fg_link_wire_parse(header, sizeof header, &back));
        header[changed[i].at] ^= 0x80;
        cr_assert(!fg_link_wire_parse(header, sizeof header, &back), "%s", changed[i].name);
    }
}

static const uint8_t address[] = "an address", key[] = "a key";

static fg_link_record sample(void)
{
    return (fg_link_record){
        .link_id = 1,
        .host_id = 2,
        .pid = 3,
        .started_at = 4,
        .block_bytes = 4096,
        .block_count = 10,
        .arena_base = 0x7F0000000000u,
        .address = address,
        .address_bytes = sizeof address,
        .key = key,
        .key_bytes = sizeof key,
        .medium = FG_LINK_POSIX,
    };
}

Test(link_wire, a_record_comes_back_as_it_was)
{
    fg_link_record record = sample(), back;
    fg_buf bytes;
    fg_error err;
    fg_buf_init(&bytes, 0);
    fg_buf_putc(&bytes, '!'); /* appended to what is there, at any alignment */
    cr_assert(fg_link_record_encode(&record, &bytes));
    cr_assert_eq(fg_link_record_parse(bytes.data + 1, bytes.size - 1, &back, &err), FG_OK);
    cr_assert(back.link_id == 1 && back.host_id == 2 && back.pid == 3 && back.started_at == 4);
    cr_assert(back.block_bytes == 4096 && back.block_count == 10);
    cr_assert(back.arena_base == record.arena_base && back.medium == FG_LINK_POSIX);
    cr_assert(back.address_bytes == sizeof address && memcmp(back.address, address, 11) == 0);
    cr_assert(back.key_bytes == sizeof key && memcmp(back.key, key, 6) == 0);
    fg_buf_deinit(&bytes);
}

Test(link_wire, impossible_records_are_refused)
{
    enum { CASES = 10 };
    fg_link_record cases[CASES];
    for (int i = 0; i < CASES; i++) {
        cases[i] = sample();
    }
    cases[0].link_id = 0;
    cases[1].block_bytes = 0;
    cases[2].block_count = 0;
    cases[3].block_count = FG_LIMIT_BLOCKS + 1;
    cases[4].block_bytes = UINT64_MAX;
    cases[5].arena_base = UINT64_MAX - 4096;
    cases[6].medium = FG_LINK_PRIVATE; /* and yet a key */
    cases[7].key_bytes = 0;            /* no key, and yet shared */
    cases[8].medium = (fg_link_medium)(FG_LINK_CUDA + 1);
    static uint8_t long_address[FG_LINK_ADDRESS_MAX + 1];
    cases[9].address = long_address;
    cases[9].address_bytes = sizeof long_address;
    for (int i = 0; i < CASES; i++) {
        fg_link_record back;
        fg_buf bytes;
        fg_error err;
        fg_buf_init(&bytes, 0);
        cr_assert(fg_link_record_encode(&cases[i], &bytes));
        cr_assert_eq(fg_link_record_parse(bytes.data, bytes.size, &back, &err), FG_BAD_INPUT,
                     "case %d", i);
        fg_buf_deinit(&bytes);
    }
}
