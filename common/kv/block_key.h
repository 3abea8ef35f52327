/*
 * block_key - the names of KV blocks: keyed hashes that chain along a prompt. Pure.
 *
 * A block's key is made of its predecessor's key, its depth and its tokens, so one key names a whole
 * prefix. The first predecessor, the root, is made of the cluster's secret, the identity of model and
 * numerics, and the request's salt. Router and workers compute the same keys from the same parts; nobody
 * without the secret can steer two prompts to one key, or learn tokens from keys.
 */
#ifndef FORGE_COMMON_KV_BLOCK_KEY_H
#define FORGE_COMMON_KV_BLOCK_KEY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"

/* What all keys of a cluster have in common. */
typedef struct fg_block_namer {
    fg_digest128 secret;   /* of the cluster */
    fg_digest128 identity; /* of model and numerics: blocks of another one never meet these */
    uint32_t block_size;   /* 1 .. FG_KV_BLOCK_SIZE_MAX */
} fg_block_namer;

fg_digest128 fg_block_identity(fg_digest128 fingerprint, const char *numerics_class,
                               uint32_t kv_dtype);
fg_digest128 fg_block_root(const fg_block_namer *namer, uint64_t salt_low, uint64_t salt_high);
/* The key of the block that holds `tokens` (block_size of them) at `depth` (0: the first of a prompt). */
fg_digest128 fg_block_key(const fg_block_namer *namer, fg_digest128 parent, uint32_t depth,
                          const uint32_t *tokens);

/* Told when a block of that name can be found from now on (`here`), or no longer. */
typedef void (*fg_block_watch)(void *ctx, bool here, fg_digest128 parent, fg_digest128 key);

#endif
