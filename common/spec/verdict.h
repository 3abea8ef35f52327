/*
 * verdict - what becomes of a round of speculation. A sequence of n tokens, the last of which has no KV
 * yet, and k drafted ones after it go through one forward; then
 *
 *   tokens     t[n-1]   d[0]   d[1]   ...  d[k-1]      the step's k + 1 tokens, at positions n-1 ..
 *   choices      c[0]   c[1]   c[2]   ...    c[k]      the target's own next token after each
 *
 * d[i] stays as long as all before it stay and it is c[i]. The first c[i] that differs takes the place of
 * d[i] and ends the round; when all stay, c[k] comes for nothing. So the round emits c[0 .. accepted], at
 * least one token, and the sequence is the one that plain decoding gives: every c was chosen after a
 * prefix of that sequence, by highest logit or by the sampler's noise for its position. An end token cuts
 * the round short.
 *
 * After a round of m emitted tokens the KV of n + m - 1 tokens is right, as after plain decoding; what
 * lies beyond is rolled back (fg_table_truncate), for the draft's own cache as well. Pure.
 */
#ifndef FORGE_COMMON_SPEC_VERDICT_H
#define FORGE_COMMON_SPEC_VERDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fg_verdict {
    uint32_t accepted; /* drafted tokens that stay */
    uint32_t emitted;  /* those and the target's own, unless an accepted one ends the sequence */
    bool
        rejected; /* a drafted token was looked at and dropped; those behind it were not looked at */
    bool ended;   /* the last token emitted is an end token */
} fg_verdict;

/* Which tokens end a sequence. */
typedef struct fg_ends {
    bool (*is_end)(void *ctx, uint32_t token); /* NULL: none does */
    void *ctx;
} fg_ends;

static inline bool fg_ends_has(const fg_ends *ends, uint32_t token)
{
    return ends->is_end != NULL && ends->is_end(ends->ctx, token);
}

/* `choices` are draft_count + 1; the round's tokens are the first `emitted` of them. */
fg_verdict fg_verdict_exact(const uint32_t *draft, uint32_t draft_count, const uint32_t *choices,
                            const fg_ends *ends);

#endif
