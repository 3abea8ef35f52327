#include "common/worker/seq.h"

#include <string.h>

#include "common/kv/layout.h"

/* Behind `after`; at the front when that is NULL. */
static void insert(fg_seq_list *list, fg_seq *after, fg_seq *seq)
{
    FG_ASSERT(seq->list == NULL);
    seq->list = list;
    seq->previous = after;
    seq->next = after != NULL ? after->next : list->first;
    *(after != NULL ? &after->next : &list->first) = seq;
    *(seq->next != NULL ? &seq->next->previous : &list->last) = seq;
    list->count++;
}

void fg_seq_append(fg_seq_list *list, fg_seq *seq)
{
    insert(list, list->last, seq);
}

void fg_seq_insert_by_rank(fg_seq_list *list, fg_seq *seq)
{
    fg_seq *after = list->last;
    while (after != NULL && after->rank > seq->rank) {
        after = after->previous;
    }
    insert(list, after, seq);
}

void fg_seq_insert_by_arrival(fg_seq_list *list, fg_seq *seq)
{
    fg_seq *after = list->last;
    while (after != NULL && after->arrival > seq->arrival) {
        after = after->previous;
    }
    insert(list, after, seq);
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
                      uint32_t prompt_count, const fg_wire_params *params, uint32_t block_size)
{
    /* Per token 4 bytes; per block an id, a key, a slot and the ticket's three arrays, 40 bytes. */
    size_t token_max = (size_t)prompt_count + params->max_tokens;
    size_t wishes = params->bias_count * sizeof(fg_bias);
    wishes += params->want_embedding ? FG_WIRE_EMBEDDING_MAX * sizeof(float) : 0;
    fg_arena *arena = fg_arena_create(65536 + token_max * 64 + wishes);
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
    uint32_t block_max = fg_kv_blocks_for(seq->token_max, block_size);
    uint32_t *blocks = fg_arena_array(arena, block_max, sizeof *blocks);
    seq->tokens = fg_arena_array(arena, token_max, sizeof *seq->tokens);
    seq->keys = fg_arena_array(arena, block_max, sizeof *seq->keys);
    seq->slots = fg_arena_array(arena, block_max, sizeof *seq->slots);
    if (blocks == NULL || seq->tokens == NULL || seq->keys == NULL || seq->slots == NULL) {
        fg_arena_destroy(arena);
        return NULL;
    }
    seq->key_max = block_max;
    fg_table_init(&seq->table, blocks, block_max, block_size);
    memcpy(seq->tokens, prompt, prompt_count * sizeof *prompt);
    return seq;
}

void fg_seq_destroy(fg_seq *seq)
{
    if (seq != NULL) {
        fg_arena_destroy(seq->arena);
    }
}

static bool keep_biases(fg_seq *seq)
{
    uint32_t count = seq->params.bias_count;
    fg_bias *kept = count > 0 ? fg_arena_array(seq->arena, count, sizeof *kept) : NULL;
    if (kept != NULL) {
        memcpy(kept, seq->params.biases, count * sizeof *kept);
    }
    seq->params.biases = kept; /* those of the message go with it */
    return count == 0 || kept != NULL;
}

bool fg_seq_shape(fg_seq *seq, const uint32_t *ends, uint32_t end_count)
{
    const fg_wire_params *params = &seq->params;
    bool repeats = params->repetition_penalty != 0.0f && params->repetition_penalty != 1.0f;
    bool shaped = params->bias_count > 0 || repeats || params->frequency_penalty != 0.0f ||
                  params->presence_penalty != 0.0f || params->min_tokens > 0;
    if (!keep_biases(seq)) {
        return false;
    }
    if (shaped) {
        seq->shape = fg_arena_alloc(seq->arena, sizeof *seq->shape);
        if (seq->shape == NULL) {
            return false;
        }
        *seq->shape = (fg_shape){ .biases = params->biases,
                                  .bias_count = params->bias_count,
                                  .repetition = params->repetition_penalty,
                                  .frequency = params->frequency_penalty,
                                  .presence = params->presence_penalty,
                                  .min_tokens = params->min_tokens,
                                  .ends = ends,
                                  .end_count = end_count };
    }
    if (params->want_logprobs > 0) {
        seq->logprobs =
            fg_arena_array(seq->arena, 2 * (FG_LOOKAHEAD_MAX + 1), sizeof *seq->logprobs);
        return seq->logprobs != NULL;
    }
    return true;
}

fg_logprobs *fg_seq_next_logprobs(fg_seq *seq)
{
    seq->logprobs_turn ^= 1;
    return seq->logprobs == NULL ? NULL
                                 : seq->logprobs + seq->logprobs_turn * (FG_LOOKAHEAD_MAX + 1);
}

void fg_seq_foretell(fg_seq *seq, const uint32_t *said, uint32_t count)
{
    seq->said = count > 0 ? fg_arena_array(seq->arena, count, sizeof *said) : NULL;
    if (seq->said != NULL) {
        memcpy(seq->said, said, count * sizeof *said);
        seq->said_count = count;
    }
}

bool fg_seq_open_ticket(fg_seq *seq, const fg_seq_ticket *ticket)
{
    uint32_t count = ticket->block_count;
    seq->digests = fg_arena_array(seq->arena, count, sizeof *seq->digests);
    seq->bad = fg_arena_array(seq->arena, count, sizeof *seq->bad);
    seq->target_blocks = fg_arena_array(seq->arena, count, sizeof *seq->target_blocks);
    if (seq->digests == NULL || seq->bad == NULL || seq->target_blocks == NULL) {
        return false;
    }
    seq->side = ticket->side;
    seq->peer = ticket->peer;
    seq->ticket = ticket->ticket;
    seq->ticket_first = ticket->first_block;
    seq->ticket_blocks = count;
    seq->direct_from = UINT32_MAX;
    return true;
}

const char *fg_seq_state_name(fg_seq_state state)
{
    static const char *const names[] = {
        [FG_SEQ_WAITING] = "waiting",     [FG_SEQ_RUNNING] = "running",
        [FG_SEQ_PREEMPTED] = "preempted", [FG_SEQ_RESTORING] = "restoring",
        [FG_SEQ_EXPECTING] = "expecting", [FG_SEQ_CHECKING] = "checking",
        [FG_SEQ_HANDING] = "handing",     [FG_SEQ_CLOSING] = "closing",
    };
    return names[state];
}
