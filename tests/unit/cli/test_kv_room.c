#include "cli/kv_room.h"

#include "common/base/limits.h"
#include "tests/support/test.h"

#define GIB (1ull << 30)
#define MIB (1ull << 20)

enum { MANY = 1 << 30 };

/* Free memory in GiB; `used`: by a link or a tier. */
static const struct {
    const char *name;
    uint64_t host, device;
    bool apart, used;
    uint64_t block_bytes, useful;
    uint32_t want;
    bool no_mirror;
} cases[] = {
    { "a sixteenth of the host's", 4, 0, false, false, MIB / 8, MANY, 2048, false },
    { "512 MiB of a large host", 256, 0, false, true, MIB / 8, MANY, 4096, false },
    { "512 blocks, large as they are", 1, 0, false, false, 2 * MIB, MANY, 512, false },
    { "no more than are of use", 64, 0, false, false, MIB, 40, 40, false },
    { "a quarter of a device, alone", 256, 80, true, false, 2 * MIB, MANY, 10240, false },
    { "a quarter of the host that has the mirror", 16, 80, true, false, 2 * MIB, MANY, 2048,
      false },
    { "a mirror of 4 GiB", 256, 80, true, true, 2 * MIB, MANY, 2048, false },
    { "a mirror of a small device", 256, 8, true, true, 2 * MIB, MANY, 1024, false },
    { "a full device", 256, 0, true, true, 2 * MIB, MANY, 512, false },
    { "a device, no more than are of use", 256, 80, true, true, MIB, 700, 700, false },
    { "a quarter of a device whose memory others reach", 1, 80, true, true, 2 * MIB, MANY, 10240,
      true },
    { "as many as there may be", 1 << 20, 1 << 20, true, false, 4096, MANY, FG_LIMIT_BLOCKS,
      false },
};

Test(kv_room, blocks_fit_the_memory_that_is_free_and_a_short_start)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_kv_room room = { .host_free_bytes = cases[i].host * GIB,
                            .device_free_bytes = cases[i].device * GIB,
                            .device_apart = cases[i].apart,
                            .mirror_used = cases[i].used,
                            .no_mirror = cases[i].no_mirror,
                            .block_bytes = cases[i].block_bytes,
                            .useful_blocks = cases[i].useful };
        uint32_t blocks = fg_kv_room_blocks(&room);
        cr_assert_eq(blocks, cases[i].want, "%s: %u", cases[i].name, blocks);
    }
}
