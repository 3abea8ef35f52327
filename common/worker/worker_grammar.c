/* Grammars that requests' answers are held to, each compiled once for all requests of the same text, with the states and
 * masks that they have come to so far. A few that nobody uses are kept: clients ask for the same again. */
#include "common/worker/worker_internal.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"

enum {
    /* In use at a time; another one is refused, and tried elsewhere. */
    GRAMMARS_MAX = 64,
    GRAMMARS_KEPT = 8,
};
/* States and masks of one grammar; what it needs beyond is forgotten and found again. */
#define AUTOMATON_BYTES ((size_t)16 << 20)

struct fg_worker_grammar {
    fg_worker_grammar *next; /* the one used last comes first */
    fg_grammar_kind kind;
    size_t text_bytes;
    uint64_t name; /* of kind and text: a first look */
    uint32_t users;
    fg_grammar *grammar;
    fg_automaton *automaton; /* the engine's while a step is in flight */
    char text[];
};

struct fg_worker_grammars {
    fg_lexicon *lexicon; /* made for the first of them */
    fg_worker_grammar *first;
    uint32_t count;
};

static uint64_t name_of(const fg_wire_params *params)
{
    return fg_hash64(params->grammar, params->grammar_bytes, params->grammar_kind);
}

/* A client that makes two texts of one name is not taken for another one. */
static bool is_of(const fg_worker_grammar *it, uint64_t name, const fg_wire_params *params)
{
    return it->name == name && it->kind == (fg_grammar_kind)params->grammar_kind &&
           it->text_bytes == params->grammar_bytes &&
           (it->text_bytes == 0 || memcmp(it->text, params->grammar, it->text_bytes) == 0);
}

static void destroy(fg_worker_grammar *it)
{
    fg_automaton_destroy(it->automaton);
    fg_grammar_destroy(it->grammar);
    fg_mem_free(it);
}

static fg_status create(fg_worker *worker, const fg_wire_params *params,
                        fg_worker_grammar **grammar_out, fg_error *err)
{
    fg_worker_grammar *it = fg_mem_alloc(sizeof *it + params->grammar_bytes);
    if (it == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a grammar");
    }
    it->kind = (fg_grammar_kind)params->grammar_kind;
    it->text_bytes = params->grammar_bytes;
    it->name = name_of(params);
    if (it->text_bytes > 0) {
        memcpy(it->text, params->grammar, it->text_bytes);
    }
    fg_status status = fg_grammar_compile((fg_grammar_kind)params->grammar_kind, params->grammar,
                                          params->grammar_bytes, &it->grammar, err);
    if (status == FG_OK) {
        status = fg_automaton_check(it->grammar, err);
    }
    if (status == FG_OK) {
        status = fg_automaton_create(it->grammar, worker->grammars->lexicon, AUTOMATON_BYTES,
                                     &it->automaton, err);
    }
    if (status != FG_OK) {
        destroy(it);
        return status;
    }
    *grammar_out = it;
    return FG_OK;
}

static fg_status make_lexicon(fg_worker *worker, fg_error *err)
{
    const fg_worker_options *options = &worker->options;
    if (worker->grammars == NULL) {
        worker->grammars = fg_mem_alloc(sizeof *worker->grammars);
    }
    if (worker->grammars == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for grammars");
    }
    if (worker->grammars->lexicon != NULL) {
        return FG_OK;
    }
    if (options->token_text == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "this worker does not know its tokens' texts");
    }
    return fg_lexicon_create(options->vocab_size, options->token_text, options->is_end,
                             options->ctx, &worker->grammars->lexicon, err);
}

/* The link to the grammar that `params` ask for, or the last link. */
static fg_worker_grammar **find(fg_worker_grammars *all, const fg_wire_params *params)
{
    uint64_t name = name_of(params);
    fg_worker_grammar **at = &all->first;
    while (*at != NULL && !is_of(*at, name, params)) {
        at = &(*at)->next;
    }
    return at;
}

/* Those that nobody uses, but for the `kept` that were used last. */
static void forget(fg_worker_grammars *all, uint32_t kept)
{
    uint32_t idle = 0;
    for (fg_worker_grammar **at = &all->first; *at != NULL;) {
        fg_worker_grammar *it = *at;
        idle += it->users == 0;
        if (it->users == 0 && idle > kept) {
            *at = it->next;
            all->count--;
            destroy(it);
        } else {
            at = &it->next;
        }
    }
}

static fg_status add(fg_worker *worker, const fg_wire_params *params, fg_error *err)
{
    fg_worker_grammars *all = worker->grammars;
    if (all->count == GRAMMARS_MAX) {
        forget(all, 0);
    }
    if (all->count == GRAMMARS_MAX) {
        return fg_fail(err, FG_AGAIN, "this worker holds answers to %d other grammars already",
                       GRAMMARS_MAX);
    }
    fg_worker_grammar *made = NULL;
    fg_status status = create(worker, params, &made, err);
    if (status == FG_OK) {
        made->next = all->first;
        all->first = made;
        all->count++;
    }
    return status;
}

fg_status fg_worker_take_grammar(fg_worker *worker, fg_seq *seq, const fg_wire_params *params,
                                 fg_error *err)
{
    seq->params.grammar = NULL; /* it goes with the message */
    seq->params.grammar_bytes = 0;
    if (params->grammar_kind == FG_GRAMMAR_NONE) {
        return FG_OK;
    }
    fg_status status = make_lexicon(worker, err);
    if (status != FG_OK) {
        return status;
    }
    fg_worker_grammar **at = find(worker->grammars, params);
    if (*at == NULL) {
        status = add(worker, params, err);
        at = &worker->grammars->first;
    }
    if (status != FG_OK) {
        return status;
    }
    fg_worker_grammar *it = *at;
    *at = it->next;
    it->next = worker->grammars->first;
    worker->grammars->first = it;
    it->users++;
    seq->grammar = it;
    seq->constraint = (fg_constraint){ .automaton = it->automaton };
    return FG_OK;
}

void fg_worker_give_grammar(fg_worker *worker, fg_seq *seq)
{
    if (seq->grammar != NULL) {
        FG_ASSERT(seq->grammar->users > 0);
        seq->grammar->users--;
        seq->grammar = NULL;
        forget(worker->grammars, GRAMMARS_KEPT);
    }
}

void fg_worker_grammars_destroy(fg_worker *worker)
{
    if (worker->grammars != NULL) {
        forget(worker->grammars, 0);
        fg_lexicon_destroy(worker->grammars->lexicon);
        fg_mem_free(worker->grammars);
    }
}
