/*
 * link_ucx_warm - what the first push towards a peer would pay for, done before: the connection, and the
 * page tables of the blocks that will be written (a first touch costs more than the copy itself).
 *
 * A hint each, never an error: blocks that find no place in the queue, or whose pages cannot be had, are
 * touched by the push as they would have been.
 */
#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/link/link_ucx.h"

/* In one turn of the loop, about half a millisecond: others want it as well. */
#define WARM_BYTES_A_TURN (4u * 1024u * 1024u)

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

uint64_t *ucx_warm_map(uint32_t block_count)
{
    return fg_mem_array((block_count + 63) / 64, sizeof(uint64_t));
}

/* Fills the page tables over these bytes by reading: an arena in shared memory has all its pages, and a
 * writable mapping of it takes writes from then on without another fault. */
static void touch(const uint8_t *at, size_t size_bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)at & ~(page - 1);
    uintptr_t end = ((uintptr_t)at + size_bytes + page - 1) & ~(page - 1);
    if (madvise((void *)first, end - first, MADV_POPULATE_READ) == 0) {
        return;
    }
    for (const volatile uint8_t *byte = at; byte < at + size_bytes; byte += page) {
        (void)*byte;
    }
}

/* The blocks and their map of this entry; false: the peer is gone, or its memory is not in reach. */
static bool find_memory(const ucx_link *link, const ucx_warm *warm, const uint8_t **arena_out,
                        uint64_t **map_out, uint32_t *count_out)
{
    if (warm->peer == FG_LINK_PEER_NONE) {
        *arena_out = link->base.arena;
        *map_out = link->warm_map;
        *count_out = link->base.block_count;
        return link->warm_map != NULL;
    }
    const ucx_peer *peer = (const ucx_peer *)link->base.peers[warm->peer];
    if (peer == NULL || peer->mapped == NULL || peer->base.close_started) {
        return false;
    }
    *arena_out = peer->mapped;
    *map_out = peer->warm_map;
    *count_out = peer->base.block_count;
    return peer->warm_map != NULL;
}

bool ucx_warm_turn(ucx_link *link)
{
    size_t block_bytes = link->base.block_bytes, done = 0;
    while (link->warm_first != link->warm_end && done < WARM_BYTES_A_TURN) {
        ucx_warm *warm = &link->warm[link->warm_first % UCX_WARM_MAX];
        const uint8_t *arena;
        uint64_t *map;
        uint32_t block_count;
        if (warm->count == 0 || !find_memory(link, warm, &arena, &map, &block_count)) {
            link->warm_first++;
            continue;
        }
        uint32_t block = warm->first++;
        warm->count--;
        /* The index of a peer may be another's by now: its blocks are warmed for nothing, then. */
        if (block >= block_count || (map[block / 64] >> (block % 64) & 1) != 0) {
            continue;
        }
        map[block / 64] |= 1ull << (block % 64);
        touch(arena + block * block_bytes, block_bytes);
        done += block_bytes;
    }
    return link->warm_first != link->warm_end;
}

void ucx_prepare(fg_link *base, fg_link_peer *base_peer, const uint32_t *blocks, uint32_t count,
                 bool own)
{
    ucx_link *link = (ucx_link *)base;
    ucx_peer *peer = (ucx_peer *)base_peer;
    if (!peer->greeted) {
        peer->greeted = true;
        ucx_greet(link, peer);
    }
    if (!own && peer->lent && !peer->rehearsed) {
        peer->rehearsed = true;
        ucx_rehearse(link, peer);
    }
    if (own ? !base_peer->writes_here : peer->mapped == NULL) {
        return;
    }
    uint32_t run;
    for (uint32_t i = 0; i < count && link->warm_end - link->warm_first < UCX_WARM_MAX; i += run) {
        run = 1;
        while (i + run < count && blocks[i + run] == blocks[i] + run) {
            run++;
        }
        link->warm[link->warm_end++ % UCX_WARM_MAX] = (ucx_warm){
            .peer = own ? FG_LINK_PEER_NONE : base_peer->index, .first = blocks[i], .count = run
        };
    }
}
