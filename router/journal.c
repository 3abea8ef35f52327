#include "router/journal.h"

#include "common/base/mem.h"

typedef struct entry {
    uint64_t digest;
    fg_logprobs *logprobs; /* NULL once they were read */
    uint32_t id;
    bool filled;
    bool said; /* in this attempt */
} entry;

struct fg_journal {
    uint32_t token_max;
    uint32_t read;
    uint32_t top;       /* behind the last one ever filled */
    fg_logprobs *shown; /* of the one read last */
    entry entries[];
};

fg_journal *fg_journal_begin(uint32_t token_max)
{
    fg_journal *journal = fg_mem_alloc(sizeof *journal + (size_t)token_max * sizeof(entry));
    if (journal != NULL) {
        journal->token_max = token_max;
    }
    return journal;
}

void fg_journal_end(fg_journal *journal)
{
    if (journal == NULL) {
        return;
    }
    for (uint32_t i = journal->read; i < journal->top; i++) {
        fg_mem_free(journal->entries[i].logprobs);
    }
    fg_mem_free(journal->shown);
    fg_mem_free(journal);
}

fg_journal_news fg_journal_append(fg_journal *journal, uint32_t index,
                                  const fg_journal_token *token)
{
    if (index >= journal->token_max || journal->entries[index].said) {
        return FG_JOURNAL_DROPPED;
    }
    entry *e = &journal->entries[index];
    e->said = true;
    if (e->filled) {
        bool same = e->id == token->id && e->digest == token->digest;
        return same ? FG_JOURNAL_KNOWN : FG_JOURNAL_OTHER;
    }
    *e = (entry){ .digest = token->digest, .id = token->id, .filled = true, .said = true };
    e->logprobs = token->logprobs != NULL ? fg_mem_alloc(sizeof *e->logprobs) : NULL;
    if (e->logprobs != NULL) {
        *e->logprobs = *token->logprobs;
    }
    journal->top = index >= journal->top ? index + 1 : journal->top;
    return FG_JOURNAL_NEW;
}

bool fg_journal_read(fg_journal *journal, uint32_t *index_out, fg_journal_token *token_out)
{
    if (journal->read == journal->token_max || !journal->entries[journal->read].filled) {
        return false;
    }
    entry *e = &journal->entries[journal->read];
    fg_mem_free(journal->shown);
    journal->shown = e->logprobs;
    e->logprobs = NULL;
    *index_out = journal->read++;
    *token_out = (fg_journal_token){ .id = e->id, .digest = e->digest, .logprobs = journal->shown };
    return true;
}

void fg_journal_again(fg_journal *journal)
{
    while (journal->top > journal->read) {
        entry *e = &journal->entries[--journal->top];
        fg_mem_free(e->logprobs);
        *e = (entry){ 0 };
    }
    for (uint32_t i = 0; i < journal->read; i++) {
        journal->entries[i].said = false;
    }
}

uint32_t fg_journal_count(const fg_journal *journal)
{
    return journal->read;
}

void fg_journal_ids(const fg_journal *journal, uint32_t *ids_out)
{
    for (uint32_t i = 0; i < journal->read; i++) {
        ids_out[i] = journal->entries[i].id;
    }
}
