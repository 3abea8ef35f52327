/*
 * journal - the answer of one live request so far: tokens by index, each once, in order, however the
 * workers' messages overtake each other. What a client has seen is a prefix of it, and stays: another
 * attempt says it again, and must say the same. One owner.
 */
#ifndef FORGE_ROUTER_JOURNAL_H
#define FORGE_ROUTER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/logits.h"

typedef struct fg_journal fg_journal;

typedef enum fg_journal_news {
    FG_JOURNAL_DROPPED = 0, /* a double of this attempt, or out of range */
    FG_JOURNAL_NEW,
    FG_JOURNAL_KNOWN, /* an earlier attempt said the same, and it was read */
    FG_JOURNAL_OTHER, /* an earlier attempt said something else, and it was read */
} fg_journal_news;

typedef struct fg_journal_token {
    uint32_t id;
    uint64_t digest;
    const fg_logprobs *logprobs;
} fg_journal_token;

/* NULL: out of memory. */
fg_journal *fg_journal_begin(uint32_t token_max);
void fg_journal_end(fg_journal *journal);
/* `logprobs` may be NULL; they are copied, and lost where there is no memory for them. */
fg_journal_news fg_journal_append(fg_journal *journal, uint32_t index,
                                  const fg_journal_token *token);
/* The next token in order that was not read yet; its logprobs are valid until the next call. */
bool fg_journal_read(fg_journal *journal, uint32_t *index_out, fg_journal_token *token_out);
/* Another attempt begins: what was not read yet is forgotten, as a worker that has failed said it. */
void fg_journal_again(fg_journal *journal);
/* Tokens read so far. */
uint32_t fg_journal_count(const fg_journal *journal);
/* Their ids. */
void fg_journal_ids(const fg_journal *journal, uint32_t *ids_out);

#endif
