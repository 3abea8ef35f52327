/*
 * residency - which worker holds which KV blocks: the prefix tree of the router. Owned by the loop thread.
 *
 * A block is named by a key that depends on all tokens before it, so a key stands for a whole prefix
 * (common/kv/prefix.h; here the low half is enough). The tree keeps runs: up to FG_RESIDENCY_RUN keys
 * that follow each other, with marks of who holds them. Most workers hold all of a run or nothing of it,
 * which is one bit; who holds a part has a record with a mask. A table finds any key's run, so a lookup
 * costs a probe for each run and a comparison for each block.
 *
 * It is a hint, never the truth: workers check again. What always holds, whatever events come:
 *   - a key has one place; a worker counts as holding exactly what its events since its last reset say,
 *     or less: marks are lost when memory is short, and never invented;
 *   - the memory is taken at creation and never grows. When it is full the least recently used run that no
 *     other run continues is reclaimed, a pinned one last;
 *   - a run without marks is kept only while another one continues it.
 *
 * A worker's slot: unknown -join-> following -a number is missing-> lost -RESET-> following; forget makes
 * it unknown again. Time is an argument; it may stand still, and a step back counts as standing still.
 */
#ifndef FORGE_ROUTER_RESIDENCY_H
#define FORGE_ROUTER_RESIDENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/status.h"

enum {
    FG_RESIDENCY_RUN = 64,    /* blocks of a run, at most */
    FG_RESIDENCY_PINS = 1024, /* pinned prefixes at a time */
    FG_RESIDENCY_HEAT = 256,  /* what one match adds to the heat of a run */
};
#define FG_RESIDENCY_BYTES_MIN ((size_t)1 << 18)
/* After so long the heat of a run that nobody asked for has halved. */
#define FG_RESIDENCY_HALF_LIFE_NS (8ull << 30)

typedef struct fg_residency fg_residency;

typedef enum fg_residency_tier {
    FG_TIER_DEVICE,
    FG_TIER_HOST,
    FG_TIERS,
} fg_residency_tier;

typedef enum fg_residency_kind {
    FG_RESIDENCY_RESET, /* a snapshot begins: STORED events of all that the worker has follow */
    FG_RESIDENCY_STORED,
    FG_RESIDENCY_REMOVED,
    FG_RESIDENCY_CLEARED,
} fg_residency_kind;

/* Values come from a peer as they are: they are checked here. */
typedef struct fg_residency_event {
    uint32_t kind, tier;
    uint64_t parent;      /* STORED: the key before keys[0]; 0: keys[0] begins a prompt */
    const uint64_t *keys; /* borrowed; STORED: in chain order. A key is never 0 */
    uint32_t count;
} fg_residency_event;

typedef struct fg_residency_frame {
    uint64_t epoch, number; /* a worker counts its frames from 1 */
    const fg_residency_event *events;
    uint32_t count;
} fg_residency_frame;

typedef struct fg_residency_options {
    size_t bytes_max;    /* taken at creation, touched when used; at least FG_RESIDENCY_BYTES_MIN */
    uint32_t slot_count; /* 1 .. FG_LIMIT_WORKERS; marks are smaller with 64 and fewer */
    uint64_t seed;       /* of the table: who does not know it cannot make keys collide there */
} fg_residency_options;

/* A worker that has leading blocks of a prompt: so many on the device; so many when its host memory
 * counts, too. */
typedef struct fg_residency_hit {
    uint32_t slot, device, total;
} fg_residency_hit;

typedef struct fg_residency_stats {
    uint64_t blocks, runs, partials, predictions, pins; /* there are now; pins may have run out */
    uint64_t bytes;          /* of all these, with their share of the table */
    uint64_t bytes_reserved; /* taken at creation */
    uint64_t frames, events; /* applied */
    uint64_t stale, repeated, gaps, ignored, refused; /* frames that were not, and why */
    uint64_t unknown;   /* keys removed that were not held, parents that were not known */
    uint64_t reclaimed; /* blocks */
    uint64_t dropped;   /* marks or keys for which there was no room */
    uint64_t splits, merges;
} fg_residency_stats;

/* FG_BAD_INPUT: an option is out of bounds; FG_AGAIN: no memory. */
fg_status fg_residency_create(const fg_residency_options *options, fg_residency **tree_out,
                              fg_error *err);
void fg_residency_destroy(fg_residency *tree);

/* The worker of this slot begins anew, with nothing; its first frame has the number 1. */
void fg_residency_join(fg_residency *tree, uint32_t slot, uint64_t epoch);
/* The worker is lost, and all its marks with it. Costs as much as there are marks. */
void fg_residency_forget(fg_residency *tree, uint32_t slot);

/* FG_AGAIN: a frame is missing; the marks stay as hints, and all frames before the next RESET are
 * ignored: ask the worker for a resync. FG_CANCELLED: of another epoch, or had before: dropped.
 * FG_BAD_INPUT: no frame of a sane worker, nothing of it was applied; it counts as missing. */
fg_status fg_residency_apply(fg_residency *tree, uint32_t slot, const fg_residency_frame *frame,
                             uint64_t now_ns);

/* Who holds leading blocks of this chain, in order of slots. hits_out has room for slot_count. Returns
 * how many; warms the runs that it passes. */
uint32_t fg_residency_match(fg_residency *tree, const uint64_t *keys, uint32_t count,
                            uint64_t now_ns, fg_residency_hit *hits_out);

/* A request was placed there: these blocks count as held on the device until its worker says so, or
 * until `until_ns`. What is predicted for a worker on one run shares the latest of these times. `blocks` is as a STORED event; its kind and tier are not looked at. FG_AGAIN:
 * no room, or the slot is unknown. */
fg_status fg_residency_predict(fg_residency *tree, uint32_t slot, const fg_residency_event *blocks,
                               uint64_t until_ns, uint64_t now_ns);

/* What the tree knows of this prefix now is reclaimed after all else, until then (12 days at most). Pinned
 * again, it holds until the later time. FG_AGAIN: FG_RESIDENCY_PINS prefixes are pinned. */
fg_status fg_residency_pin(fg_residency *tree, const uint64_t *keys, uint32_t count,
                           uint64_t until_ns, uint64_t now_ns);

/* Recent matches that went through the last block of this prefix, FG_RESIDENCY_HEAT each, halved every
 * FG_RESIDENCY_HALF_LIFE_NS; 0 for a block that is not known. */
uint32_t fg_residency_heat(const fg_residency *tree, const uint64_t *keys, uint32_t count,
                           uint64_t now_ns);

bool fg_residency_is_lost(const fg_residency *tree, uint32_t slot);
/* Blocks that this worker is marked to hold, predictions left out. */
uint64_t fg_residency_slot_blocks(const fg_residency *tree, uint32_t slot, fg_residency_tier tier);
void fg_residency_stats_get(const fg_residency *tree, fg_residency_stats *stats_out);
/* Counts everything again and compares; aborts on a difference. Walks the whole tree. */
void fg_residency_check(const fg_residency *tree);

#endif
