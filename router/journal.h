/*
 * journal - the answer of one live request so far: tokens by index, each once, in order, however the
 * workers' messages overtake each other. What a client has seen is a prefix of it. One owner.
 */
#ifndef FORGE_ROUTER_JOURNAL_H
#define FORGE_ROUTER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fg_journal fg_journal;

/* NULL: out of memory. */
fg_journal *fg_journal_begin(uint32_t token_max);
void fg_journal_end(fg_journal *journal);
/* False when the index is out of range or was filled before (a double): dropped. */
bool fg_journal_append(fg_journal *journal, uint32_t index, uint32_t id, uint64_t digest);
/* The next token in order that was not read yet. */
bool fg_journal_read(fg_journal *journal, uint32_t *index_out, uint32_t *id_out,
                     uint64_t *digest_out);
/* Forgets what was appended and not yet read: a worker that has failed said it. */
void fg_journal_forget(fg_journal *journal);
/* Tokens read so far. */
uint32_t fg_journal_count(const fg_journal *journal);

#endif
