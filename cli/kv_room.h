/*
 * kv_room - how many KV blocks a worker takes where nobody says how many. Pure.
 *
 * Where operations use the host's memory: a sixteenth of what is free, since several workers may share the host. On a
 * device with memory of its own: a quarter of what is free there, since weights come after it, and of the host's, if it
 * has a mirror of the blocks. What is committed at start has a bound, so that a start takes seconds.
 */
#ifndef FORGE_CLI_KV_ROOM_H
#define FORGE_CLI_KV_ROOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fg_kv_room {
    uint64_t host_free_bytes;
    uint64_t device_free_bytes; /* where device_apart; of all devices that share the blocks */
    bool device_apart;          /* the device has memory of its own */
    bool mirror_used;           /* by a link or a tier: then the host takes all of it at start */
    bool no_mirror;             /* whoever else wants the blocks reaches the device's memory */
    uint64_t block_bytes;
    uint64_t useful_blocks; /* what all sequences of the longest context can use */
} fg_kv_room;

/* At least 512, but never more than are useful, or than FG_LIMIT_BLOCKS. */
uint32_t fg_kv_room_blocks(const fg_kv_room *room);

#endif
