#include "cli/kv_room.h"

#include "common/base/limits.h"

enum { BLOCKS_LEAST = 512 };
#define HOST_BYTES_MOST (512ull << 20)
/* A mirror is committed and then page-locked: two seconds, if both together pass 2 GiB a second. 32,000 tokens of an 8B
 * model with 8 KV heads, or eight times what a worker on the CPU takes. */
#define MIRROR_BYTES_MOST (4ull << 30)

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t budget_of(const fg_kv_room *room)
{
    if (!room->device_apart) {
        return least(room->host_free_bytes / 16, HOST_BYTES_MOST);
    }
    if (room->no_mirror) {
        return room->device_free_bytes / 4;
    }
    uint64_t quarter = least(room->device_free_bytes, room->host_free_bytes) / 4;
    return room->mirror_used ? least(quarter, MIRROR_BYTES_MOST) : quarter;
}

uint32_t fg_kv_room_blocks(const fg_kv_room *room)
{
    uint64_t count = budget_of(room) / room->block_bytes;
    count = count < BLOCKS_LEAST ? BLOCKS_LEAST : count;
    return (uint32_t)least(least(count, room->useful_blocks), FG_LIMIT_BLOCKS);
}
