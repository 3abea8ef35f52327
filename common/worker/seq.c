#include "common/worker/seq.h"

#include <string.h>

#include "common/kv/layout.h"

void fg_seq_append(fg_seq_list *list, fg_seq *seq)
{
    FG_ASSERT(seq->list == NULL);
    seq->list = list;
    seq->next = NULL;
    seq->previous = list->last;
    if (list->last != NULL) {
        list->last->next = seq;
    } else {
        list->first = seq;
    }
    list->last = seq;
    list->count++;
}

void fg_seq_unlink(fg_seq *seq)
{
    fg_seq_list *list = seq->list;
    if (list == NULL) {
        return;
    }
    if (seq->previous != NULL) {
        seq->previous->next = seq->next;
    } else {
        list->first = seq->next;
    }
    if (seq->next != NULL) {
        seq->next->previous = seq->previous;
    } else {
        list->last = seq->previous;
    }
    list->count--;
    seq->list = NULL;
    seq->next = NULL;
    seq->previous = NULL;
}

fg_seq *fg_seq_create(uint64_t request, uint32_t attempt, const uint32_t *prompt,
                      uint32_t prompt_count, const fg_wire_sampling *params, uint32_t block_size)
{
    /* Tokens, blocks and the ticket's three arrays: well below 32 bytes a token. */
    size_t token_max = (size_t)prompt_count + params->max_tokens;
    fg_arena *arena = fg_arena_create(65536 + token_max * 32);
    if (arena == NULL) {
        return NULL;
    }
    fg_seq *seq = fg_arena_alloc(arena, sizeof *seq);
    if (seq == NULL) {
        fg_arena_destroy(arena);
        return NULL;
    }
    seq->arena = arena;
    seq->request = request;
    seq->attempt = attempt;
    seq->params = *params;
    seq->prompt_count = prompt_count;
    seq->token_count = prompt_count;
    seq->token_max = (uint32_t)token_max;
    seq->block_max = fg_kv_blocks_for(seq->token_max, block_size);
    seq->tokens = fg_arena_array(arena, token_max, sizeof *seq->tokens);
    seq->blocks = fg_arena_array(arena, seq->block_max, sizeof *seq->blocks);
    if (seq->tokens == NULL || seq->blocks == NULL) {
        fg_arena_destroy(arena);
        return NULL;
    }
    memcpy(seq->tokens, prompt, prompt_count * sizeof *prompt);
    return seq;
}

void fg_seq_destroy(fg_seq *seq)
{
    if (seq != NULL) {
        fg_arena_destroy(seq->arena);
    }
}

bool fg_seq_open_ticket(fg_seq *seq, fg_seq_side side, uint32_t peer, uint64_t ticket,
                        uint32_t block_count)
{
    seq->digests = fg_arena_array(seq->arena, block_count, sizeof *seq->digests);
    seq->bad = fg_arena_array(seq->arena, block_count, sizeof *seq->bad);
    seq->target_blocks = fg_arena_array(seq->arena, block_count, sizeof *seq->target_blocks);
    if (seq->digests == NULL || seq->bad == NULL || seq->target_blocks == NULL) {
        return false;
    }
    seq->side = side;
    seq->peer = peer;
    seq->ticket = ticket;
    seq->ticket_blocks = block_count;
    return true;
}
