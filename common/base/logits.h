/*
 * logits - what is added to a row of logits for a client, and what the client is told of it: of the token chosen from it,
 * and of the likeliest ones. Travels between router and engine.
 */
#ifndef FORGE_COMMON_BASE_LOGITS_H
#define FORGE_COMMON_BASE_LOGITS_H

#include <stdint.h>

/* Likeliest tokens that may be asked for. */
enum { FG_LOGPROBS_MAX = 20 };

/* Added to a token's logit. As it travels: one word. */
typedef struct fg_bias {
    _Alignas(8) uint32_t id;
    float bias;
} fg_bias;

/* As it travels: one word. */
typedef struct fg_likely {
    _Alignas(8) uint32_t id;
    float logprob;
} fg_likely;

typedef struct fg_logprobs {
    float chosen;
    uint32_t count;                    /* of `likely`: as many as were asked for */
    fg_likely likely[FG_LOGPROBS_MAX]; /* the likeliest first, ties to the lowest id */
} fg_logprobs;

/* What the model said of tokens that were given to it, a run of a prompt, in columns. */
typedef struct fg_scores {
    float *chosen;   /* of the token that is there */
    uint32_t *ranks; /* how many were likelier, and one more; ties go to the lowest id */
    fg_likely
        *likely; /* likely_count of each token, as in fg_logprobs; FG_LIKELY_NONE: there is none */
    uint32_t count; /* of tokens */
    uint32_t likely_count;
} fg_scores;
#define FG_LIKELY_NONE UINT32_MAX

#endif
