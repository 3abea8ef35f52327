#include "router/journal.h"

#include "common/base/mem.h"

typedef struct entry {
    uint64_t digest;
    uint32_t id;
    bool filled;
    bool said; /* in this attempt */
} entry;

struct fg_journal {
    uint32_t token_max;
    uint32_t read;
    uint32_t top; /* behind the last one ever filled */
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
    fg_mem_free(journal);
}

fg_journal_news fg_journal_append(fg_journal *journal, uint32_t index, uint32_t id, uint64_t digest)
{
    if (index >= journal->token_max || journal->entries[index].said) {
        return FG_JOURNAL_DROPPED;
    }
    entry *e = &journal->entries[index];
    e->said = true;
    if (e->filled) {
        return e->id == id && e->digest == digest ? FG_JOURNAL_KNOWN : FG_JOURNAL_OTHER;
    }
    *e = (entry){ .digest = digest, .id = id, .filled = true, .said = true };
    journal->top = index >= journal->top ? index + 1 : journal->top;
    return FG_JOURNAL_NEW;
}

bool fg_journal_read(fg_journal *journal, uint32_t *index_out, uint32_t *id_out,
                     uint64_t *digest_out)
{
    if (journal->read == journal->token_max || !journal->entries[journal->read].filled) {
        return false;
    }
    const entry *e = &journal->entries[journal->read];
    *index_out = journal->read++;
    *id_out = e->id;
    *digest_out = e->digest;
    return true;
}

void fg_journal_again(fg_journal *journal)
{
    while (journal->top > journal->read) {
        journal->entries[--journal->top] = (entry){ 0 };
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
