/*
 * rig - a worker of both roles and no link over a simulated engine that is turned by hand, for tests of
 * its cache and its preemption. The rig keeps the router's books: every token that comes is compared with
 * what the request alone would have given, in order, what is said of its prompt before, once, and a second
 * end is refused; so a test only says what is special about it. After each call the worker's books are recounted.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_WORKER_RIG_H
#define FORGE_TESTS_UNIT_COMMON_WORKER_RIG_H

#include "common/worker/worker.h"

enum { RIG_VOCAB = 50, RIG_REQUESTS_MAX = 64, RIG_TOKENS_MAX = 512 };
#define RIG_NO_EOS UINT32_MAX
extern const char rig_letters[RIG_VOCAB + 1];

/* A second simulated engine that guesses for the first. */
typedef enum rig_drafts {
    RIG_NO_DRAFT,
    RIG_DRAFT_RIGHT, /* as long as its own KV is */
    RIG_DRAFT_WRONG,
    RIG_DRAFT_MIXED, /* now this, now that */
} rig_drafts;

typedef struct rig_options {
    uint32_t blocks, block_size, slots; /* 0 slots: no tier */
    uint32_t seqs, step_tokens, chunk;  /* 0: 4, 64, 64 */
    uint32_t vocab;                     /* 0: RIG_VOCAB. In few tokens texts repeat */
    uint32_t eos;                       /* 0: RIG_NO_EOS, so that answers have their full length */
    bool overlap, no_cache;
    rig_drafts draft;
    uint32_t draft_blocks, draft_context; /* 0: enough for everybody */
    bool draft_alone;                     /* nothing is looked up in the text */
    uint64_t draft_ns;                    /* of a guess; 0: it takes no time */
    uint32_t breaks_at;  /* the model breaks down after so many tokens of a sequence; 0: never */
    size_t flight_bytes; /* of a flight recorder; 0: none */
    fg_spans *spans;     /* of traced requests; may be NULL */
    fg_sched_limits policies; /* order, victim, preemption, admission, watermark, skip_max */
} rig_options;

typedef struct rig_request {
    uint32_t attempt;                /* grows when the number is used anew */
    fg_grammar *grammar;             /* what its answer is held to; NULL: nothing */
    fg_automaton *automaton;         /* of the rig's own */
    uint32_t tokens[RIG_TOKENS_MAX]; /* prompt, then what has come */
    uint32_t prompt_count, count;
    fg_wire_params params;
    bool sent, started, done, refused, broken, cancelled;
    uint32_t cached_tokens, chunks, preemptions;
    uint32_t scored; /* tokens of the prompt that something was said of */
    uint64_t queue_ns;
    fg_finish finish;
} rig_request;

typedef struct rig {
    rig_options options;
    uint64_t now_ns;
    fg_kv_layout layout;
    void *arena;
    fg_tier *tier;
    fg_engine *engine, *draft_engine;
    void *draft_arena;
    struct fg_drafter *drafter; /* NULL: none */
    uint64_t draft_steps, draft_rows;
    fg_worker *worker;
    fg_flight *flight;
    fg_arena *inbox;
    fg_lexicon *lexicon; /* token i is the letter rig_letters[i]; NULL: nobody asked yet */
    rig_request requests[RIG_REQUESTS_MAX]; /* request n at n */
    uint64_t heard;                         /* messages */
    uint32_t ends_at; /* 0, or the token that ends a request, not options.eos */
    bool unchecked;   /* no recounts (long runs) */
} rig;

/* Opens and joins. */
void rig_open(rig *r, const rig_options *options);
/* Nothing may run any more: checks that every block, promise and slot came back. */
void rig_close(rig *r);

/* What a finished or running request has answered, as text; until the next call. */
const char *rig_text(const rig_request *request);
/* Parameters of a greedy request. */
fg_wire_params rig_greedy(uint32_t max_tokens);
void rig_give(rig *r, const fg_msg *msg);
/* Sends request `id` (from 1), which may be used anew once it has ended. */
rig_request *rig_send(rig *r, uint64_t id, const uint32_t *prompt, uint32_t prompt_count,
                      const fg_wire_params *params);
/* With what an earlier worker is said to have said of the answer. */
rig_request *rig_send_said(rig *r, uint64_t id, const uint32_t *prompt, uint32_t prompt_count,
                           const fg_wire_params *params, const uint32_t *said, uint32_t said_count);
/* As rig_send, greedy, with the tokens first, first + 1, ... */
rig_request *rig_ask(rig *r, uint64_t id, uint32_t first, uint32_t prompt_count,
                     uint32_t max_tokens);
void rig_cancel(rig *r, uint64_t id);
void rig_clear(rig *r);
/* The oldest step ends and is booked. False: there is none. */
bool rig_step(rig *r);
/* Until nothing is in flight. */
void rig_run(rig *r);
/* Steps until the request has its first token. */
void rig_run_until_started(rig *r, uint64_t id);
/* What an undisturbed run of the request's prompt would answer: `count` tokens. */
void rig_alone(const rig *r, const rig_request *request, uint32_t *tokens_out, uint32_t count);

fg_worker_stats rig_stats(const rig *r);
/* Free, cached or promised to nobody: all of them when nothing runs. */
uint32_t rig_available(const rig *r);

#endif
