/*
 * prefix - finds KV blocks by the tokens that they hold. Owned by the loop thread.
 *
 * Every full block has a key: a keyed 128-bit hash of (its predecessor's key, its depth, its tokens).
 * The first predecessor, the root, is made of the cluster's secret, the model's identity and the
 * request's salt, so that the keys of one cluster, model and salt are a world of their own, and nobody
 * outside can make two prompts meet. A key finds an entry; the entry's tokens and its predecessor's key
 * are compared too before it counts as a hit, so a hit is never a stranger's.
 *
 * A block is published only when its KV is complete. A published block stays with the sequences that
 * use it; when the last one lets go, the pool keeps it as cached, and evicts the least recently used one
 * first.
 */
#ifndef FORGE_COMMON_KV_PREFIX_H
#define FORGE_COMMON_KV_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/status.h"
#include "common/kv/block_key.h"
#include "common/kv/pool.h"

typedef struct fg_prefix fg_prefix;

/* A block's identity and content, as told to whoever may want to keep a copy of it. */
typedef struct fg_prefix_entry {
    fg_digest128 key, parent;
    const uint32_t *tokens; /* block_size of them */
    uint32_t block_id;
} fg_prefix_entry;

typedef struct fg_prefix_options {
    fg_pool *pool;                    /* outlives the prefix, which becomes its eviction listener */
    uint32_t block_count, block_size; /* block_count is the pool's */
    fg_digest128 identity; /* of model and numerics: blocks of another one never meet these */
    /* A cached block is about to be reused; its bytes are still there. May be NULL. */
    void (*on_evict)(void *ctx, const fg_prefix_entry *entry);
    /* An entry comes or goes; fg_prefix_clear tells nothing. May be NULL. */
    fg_block_watch on_change;
    void *ctx;
} fg_prefix_options;

/* All in entries: those that there are, those that came, went and were refused. */
typedef struct fg_prefix_stats {
    uint32_t entries;
    uint64_t published, duplicates, evicted, collisions, cleared;
} fg_prefix_stats;

fg_status fg_prefix_create(const fg_prefix_options *options, fg_prefix **prefix_out, fg_error *err);
/* Clears first: the pool keeps no block that nobody could find. */
void fg_prefix_destroy(fg_prefix *prefix);

/* The cluster's secret, zero until it is known; another one than before forgets everything, as
 * fg_prefix_clear does. */
void fg_prefix_set_secret(fg_prefix *prefix, fg_digest128 secret);
fg_digest128 fg_prefix_root(const fg_prefix *prefix, uint64_t salt_low, uint64_t salt_high);
/* The key of the block that holds `tokens` (block_size of them) at `depth` (0: the first of a prompt). */
fg_digest128 fg_prefix_key(const fg_prefix *prefix, fg_digest128 parent, uint32_t depth,
                           const uint32_t *tokens);

/* The leading blocks of a chain that are here: keys[i] belongs to tokens[i * block_size ..]. Returns how
 * many, their ids in block_ids_out; takes no reference. */
uint32_t fg_prefix_match(const fg_prefix *prefix, fg_digest128 root, const fg_digest128 *keys,
                         const uint32_t *tokens, uint32_t count, uint32_t *block_ids_out);
/* The block's KV is complete. Returns the block to use from now on: `block_id`, which is kept from now
 * on, or the one that already holds the same tokens. (A key that another chain's block has, which takes
 * a broken secret, publishes nothing and returns block_id.) The block is in use. */
uint32_t fg_prefix_publish(fg_prefix *prefix, fg_digest128 parent, fg_digest128 key,
                           const uint32_t *tokens, uint32_t block_id);
/* The published block of this key and content, or UINT32_MAX. */
uint32_t fg_prefix_find(const fg_prefix *prefix, fg_digest128 parent, fg_digest128 key,
                        const uint32_t *tokens);

/* A running sequence will publish this key: an equal prompt does well to wait for it. Counted: every
 * expect needs its unexpect. FG_AGAIN: block_count other keys are expected already, nothing changed. */
fg_status fg_prefix_expect(fg_prefix *prefix, fg_digest128 key);
void fg_prefix_unexpect(fg_prefix *prefix, fg_digest128 key);
bool fg_prefix_is_expected(const fg_prefix *prefix, fg_digest128 key);

/* Forgets every entry: cached blocks become free, blocks in use stay with their sequences and are freed
 * when those end. Expectations stay. */
void fg_prefix_clear(fg_prefix *prefix);
/* The entry that this block holds. False: none. */
bool fg_prefix_at(const fg_prefix *prefix, uint32_t block_id, fg_digest128 *parent_out,
                  fg_digest128 *key_out);
void fg_prefix_stats_get(const fg_prefix *prefix, fg_prefix_stats *stats_out);
/* Every entry names a kept block, every kept block has its entry, counters agree; aborts otherwise. */
void fg_prefix_check(const fg_prefix *prefix);

/* The cache at rest, as bytes: nothing is expected. Equal caches give equal bytes; the size is a multiple of
 * 8 and goes with the entries. */
size_t fg_prefix_state_bytes(const fg_prefix *prefix);
/* Every entry's key and predecessor, and the stats, into fg_prefix_state_bytes bytes, each of which is
 * written. What users wrote is not among them, nor is the secret that makes keys of it. */
void fg_prefix_state_get(const fg_prefix *prefix, void *state_out);
/* Takes a state over that may come from anybody, in a cache without entries or history whose pool has taken
 * over the pool's state of that moment: blocks with an entry are the kept ones. The tokens of all entries are
 * zero then, and nobody is told. A secret that the cache needs is set before: another one forgets everything.
 * False: it is not the state of a cache over such a pool, and this one is as it was. Allocates nothing. */
bool fg_prefix_state_set(fg_prefix *prefix, const void *state, size_t size_bytes);

#endif
