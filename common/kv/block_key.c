#include "common/kv/block_key.h"

#include <string.h>

#include "common/base/status.h"
#include "common/kv/layout.h"

enum {
    DIGEST_WORDS = 4,
    /* First words of what is hashed, so that a root is never a block's key. */
    ROOT_DOMAIN = 0x746F6F72,
    BLOCK_DOMAIN = 0x636F6C62,
};

static uint32_t *put_digest(uint32_t *at, fg_digest128 digest)
{
    memcpy(at, &digest, sizeof digest);
    return at + DIGEST_WORDS;
}

/* The secret is hashed and seeds the hash, too: an outsider who does not know it cannot steer the
 * hash's inner products to a value of his choice. */
static fg_digest128 hash_words(const fg_block_namer *namer, const uint32_t *words,
                               const uint32_t *end)
{
    return fg_hash128(words, (size_t)(end - words) * sizeof *words,
                      namer->secret.low ^ fg_hash_mix(namer->secret.high));
}

fg_digest128 fg_block_identity(fg_digest128 fingerprint, const char *numerics_class,
                               uint32_t kv_dtype)
{
    fg_digest128 identity =
        fg_hash128(numerics_class, strlen(numerics_class), fingerprint.low ^ kv_dtype);
    identity.high ^= fingerprint.high;
    return identity;
}

fg_digest128 fg_block_root(const fg_block_namer *namer, uint64_t salt_low, uint64_t salt_high)
{
    uint32_t words[1 + 3 * DIGEST_WORDS] = { ROOT_DOMAIN };
    uint32_t *end = put_digest(words + 1, namer->secret);
    end = put_digest(end, namer->identity);
    end = put_digest(end, (fg_digest128){ .low = salt_low, .high = salt_high });
    return hash_words(namer, words, end);
}

fg_digest128 fg_block_key(const fg_block_namer *namer, fg_digest128 parent, uint32_t depth,
                          const uint32_t *tokens)
{
    uint32_t words[2 + 2 * DIGEST_WORDS + FG_KV_BLOCK_SIZE_MAX];
    FG_ASSERT(namer->block_size >= 1 && namer->block_size <= FG_KV_BLOCK_SIZE_MAX);
    uint32_t *end = words;
    *end++ = BLOCK_DOMAIN;
    *end++ = depth;
    end = put_digest(end, namer->secret);
    end = put_digest(end, parent);
    memcpy(end, tokens, namer->block_size * sizeof *tokens);
    return hash_words(namer, words, end + namer->block_size);
}
