/*
 * worker_internal - what the files of the worker share. Private to common/worker.
 *
 *   worker.c       creation, joining, messages, time
 *   worker_seq.c   the life of sequences: adding, ending, tickets, recount
 *   worker_cache.c the prefix cache and the tier: matching, publishing, expecting
 *   worker_plan.c  snapshot, plan, and its application: preempting, admitting, building a step
 *   worker_draft.c tokens guessed to follow, and what became of them
 *   worker_ask.c   who asks a draft model for such
 *   worker_grammar.c  what answers are held to
 *   worker_scores.c  what the model says of a prompt's tokens
 *   worker_book.c  a step has ended: tokens, digests, copies, ends
 *   worker_link.c  the link's news
 *   worker_doors.c every way in: time, and what the flight recorder keeps of a call
 *   worker_flight.c, worker_rest.c   the rest of what it keeps (worker_records.h)
 *   worker_news.c  what the router is told about the prefix cache
 *   worker_pins.c  prefixes that stay for a while
 */
#ifndef FORGE_COMMON_WORKER_WORKER_INTERNAL_H
#define FORGE_COMMON_WORKER_WORKER_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/base/map.h"
#include "common/engine/staging.h"
#include "common/worker/worker.h"

/* Of one router's introduction: another's is another entry, of another epoch, with a link of its own. */
typedef struct fg_worker_peer {
    uint32_t router;
    char name[FG_LIMIT_NAME_BYTES + 1];
    uint64_t epoch;
    uint32_t index;     /* the link's */
    uint64_t broken_ns; /* since when its link refuses work; 0: it does not */
} fg_worker_peer;

/* Which ticket block of which sequence a digest of a step belongs to. */
typedef struct fg_worker_digest {
    fg_seq *seq;
    uint32_t index;
    bool alone; /* the sequence has no item in this step, which would move it on */
} fg_worker_digest;

/* What a copy of a step is for. */
typedef enum fg_worker_copy_why {
    FG_COPY_FORK,    /* a shared block becomes private */
    FG_COPY_SWAP,    /* a victim's block goes to its slot */
    FG_COPY_STORE,   /* an evicted block goes to the tier */
    FG_COPY_RESTORE, /* a victim's block comes back; the slot is given up */
    FG_COPY_FETCH,   /* a cached block comes from the tier; the slot is locked */
} fg_worker_copy_why;

typedef struct fg_worker_copy {
    fg_worker_copy_why why;
    fg_seq *seq;    /* SWAP, RESTORE, FETCH */
    uint32_t index; /* in its table */
} fg_worker_copy;

typedef struct fg_worker_moving {
    fg_seq *seq;
    bool back; /* from the tier; else into it */
} fg_worker_moving;

/* One step and all that its booking needs; of fixed size. */
typedef struct fg_worker_frame {
    fg_step step;
    fg_step_seq *items;
    fg_seq **item_seqs;
    fg_step_digest *digests;
    fg_worker_digest *digest_owners;
    fg_step_copy *copies;
    fg_worker_copy *copy_owners;
    /* What its items say of prompts; taken when somebody asks first. Room for all tokens of a step. */
    fg_scores scores;   /* count: used */
    size_t likely_used; /* of its likely ones */
    uint32_t swaps;     /* copies of blocks that are already back in the pool */
    uint32_t *released; /* references to drop when this step has ended */
    uint32_t released_count;
    fg_worker_moving *moving; /* sequences that its copies take out or bring back */
    uint32_t moving_count;
    fg_cost_step cost;
    fg_step_ask *asks; /* NULL: there is no draft model */
    fg_seq **ask_seqs;
    bool is_trial; /* none of them is expected to pay */
    fg_trace_step trace;
} fg_worker_frame;

/* A waiting sequence's part of the cache. */
typedef struct fg_worker_hit {
    uint32_t blocks; /* leading blocks in the pool */
    uint32_t
        idle_blocks; /* those of them that nobody uses: borrowing takes them from the available */
    uint32_t tier_blocks; /* blocks after those that are in the tier */
    fg_seq *fork_of;      /* a sibling whose part of the last block can be copied; NULL */
} fg_worker_hit;

enum {
    /* Ended requests whose doubled messages are still recognised as such. */
    FG_WORKER_ENDED_MAX = 512,
    /* Steps in flight, and the one whose items they may follow. */
    FG_WORKER_FRAMES = FG_ENGINE_STEPS_MAX + 1,
    /* Waiting sequences that one plan looks at. */
    FG_WORKER_WAITS_MAX = 16,
    /* Those it may pass over because they wait for somebody's prefix. */
    FG_WORKER_LOOKS_MAX = 256,
    /* Prefixes that stay for a while, at a time. */
    FG_WORKER_PINS_MAX = 64,
};

/* The leading blocks of a prompt, each with a reference. */
typedef struct fg_worker_pin_record {
    uint32_t *blocks;
    uint32_t count;
    uint64_t until_ns;
} fg_worker_pin_record;

struct fg_worker_news;
typedef struct fg_worker_grammars fg_worker_grammars;

/* One router, and the connection to it. */
typedef struct fg_worker_router {
    bool joined, up, stalled;
    uint64_t epoch;
    uint32_t roles;           /* what the router made of it; first the option */
    uint64_t up_ns;           /* since when the connection stands */
    uint32_t refusals;        /* in a row */
    uint64_t reconnect_at_ns; /* 0: no reconnection pending */
    uint64_t load_sequence, load_sent_ns, load_period_ns;
    bool load_dirty;
    struct fg_worker_news *news;
} fg_worker_router;

struct fg_worker {
    fg_worker_options options;
    char name[FG_LIMIT_NAME_BYTES + 1];
    fg_pool *pool;
    fg_prefix *prefix;
    fg_seq_list preempted, waiting, running, others, closing;
    fg_worker_grammars *grammars; /* NULL: there was none yet */
    uint32_t *ends;               /* the model's end tokens; NULL: nobody needed them yet */
    uint32_t end_count;
    fg_map *by_request;                  /* (request, attempt) mixed -> fg_seq, not CLOSING */
    fg_map *by_ticket;                   /* ticket -> fg_seq while the ticket is open */
    uint64_t ended[FG_WORKER_ENDED_MAX]; /* keys of by_request, the oldest overwritten first */
    uint32_t ended_next;
    fg_worker_peer *peers;
    uint32_t peer_count;
    uint64_t first_ticket, next_ticket;
    uint64_t next_arrival;

    uint32_t depth;      /* of calls into the worker */
    uint64_t entered_ns; /* of the outermost one: the time for all that it does */
    /* What makes other numbers for the flight recorder: of the secret and of prompts, and of tickets. Two, for whoever
     * guesses a ticket, which are counted, has the second. */
    uint64_t disguise, ticket_disguise;
    fg_digest128 secret_name; /* what it calls the secret */

    fg_worker_router routers[FG_WORKER_ROUTERS_MAX];
    uint32_t router_count;
    uint32_t hearing; /* whose frame is being read */
    bool draining;
    fg_digest128 secret;     /* of the routers that it has joined */
    bool load_dirty;         /* something changed since the last tick; then it is each router's */
    uint64_t moved_ns;       /* nothing stood still until then (give_way) */
    uint64_t broken_said_ns; /* when the log was last told that the model breaks down; 0: never */

    /* Steps: frames[(first + i) % FG_WORKER_FRAMES] for i < in_flight are with the engine. */
    fg_worker_frame frames[FG_WORKER_FRAMES];
    uint32_t first_frame, in_flight;
    uint32_t drafting; /* sequences with guesses, or asks, in a step under way */
    /* Those of a step that has ended whose last token is new, and what may follow it. */
    fg_seq **guessers;
    struct fg_work_guess *guesses;
    fg_worker_frame *building; /* while a plan is applied: where copies and releases go */
    uint32_t item_max, digest_max, copy_max, released_max;
    fg_staging *staging; /* block tables as the steps in flight see them */
    fg_cost cost;
    fg_asking asking; /* of the draft model, if there is one */
    bool *places;     /* of its, which are taken: seqs_max */
    fg_asking_seq *asking_seqs;
    uint64_t step_number, plans;
    uint32_t copies_reserved; /* places in the step's list of copies that evictions leave alone */

    /* What a plan is made from and into. */
    fg_sched_limits limits_now;
    fg_sched_seq *snapshot;
    fg_seq **snapshot_seqs;
    fg_sched_wait waits[FG_WORKER_WAITS_MAX];
    fg_seq *wait_seqs[FG_WORKER_WAITS_MAX];
    fg_worker_hit hits[FG_WORKER_WAITS_MAX];
    uint32_t wait_count;
    fg_sched_plan plan;
    fg_seq **admitted;
    uint32_t *scratch; /* block ids; block_count of them */
    uint32_t *recount; /* references per block, for fg_worker_check */
    fg_wire_token *tokens_out;
    uint32_t tokens_out_count;
    /* Whose those are, and room to sort them, where there are several routers; else NULL. */
    uint32_t *tokens_router;
    fg_wire_token *tokens_share;

    fg_worker_pin_record pins[FG_WORKER_PINS_MAX];
    uint32_t pin_count, pinned_blocks;
    fg_buf out;
    fg_buf plain; /* a frame as the flight recorder keeps it */
    fg_arena *inbox;
    fg_worker_stats stats;
};

/* worker_doors.c calls these. */
void fg_worker_do_up(fg_worker *worker, uint32_t router);
void fg_worker_do_frame(fg_worker *worker, uint32_t router, const void *bytes, size_t size_bytes);
void fg_worker_do_down(fg_worker *worker, uint32_t router);
void fg_worker_do_engine(fg_worker *worker);
void fg_worker_do_tick(fg_worker *worker);
void fg_worker_do_drain(fg_worker *worker);
void fg_worker_do_clear(fg_worker *worker);
void fg_worker_do_commit(fg_worker *worker, const fg_link_commit *commit);
void fg_worker_do_fenced(fg_worker *worker, uint64_t ticket);
void fg_worker_do_answer(fg_worker *worker, uint64_t ticket, const uint32_t *bad,
                         uint32_t bad_count);
void fg_worker_do_drained(fg_worker *worker, uint64_t ticket);

/* worker_flight.c */
/* `router`: whose news it is, where it is one's. */
fg_flight_call fg_worker_call(const fg_worker *worker, uint32_t router);
/* A ticket as it stands in a record: of this worker, and of one that it writes to. */
uint64_t fg_worker_own_ticket(const fg_worker *worker, uint64_t ticket);
uint64_t fg_worker_peer_ticket(const fg_worker *worker, uint64_t ticket);
/* The secret is this one from now on. */
void fg_worker_note_secret(fg_worker *worker, fg_digest128 secret);
/* `msg` NULL: it could not be read. */
void fg_worker_note_frame(fg_worker *worker, const fg_msg *msg);
/* worker->out is the frame. */
void fg_worker_note_sent(fg_worker *worker, const fg_msg *msg, fg_status status);
void fg_worker_reconnect(fg_worker *worker, uint32_t router);
/* The root, keys and name that the record has for a prompt; only keys. False: nobody compares, or they are others. */
bool fg_worker_told_prompt(fg_worker *worker, fg_seq *seq, uint32_t block_count);
bool fg_worker_told_keys(fg_worker *worker, fg_digest128 *keys, uint32_t count);
/* Names the prompt, where it matters. */
void fg_worker_note_prompt(fg_worker *worker, fg_seq *seq);
void fg_worker_note_keys(fg_worker *worker, const fg_digest128 *keys, uint32_t count);
void fg_worker_note_began(fg_worker *worker, const fg_worker_frame *frame);
/* A step has ended and is not booked yet. */
void fg_worker_note_step(fg_worker *worker, const fg_worker_frame *frame);
bool fg_worker_has_link(const fg_worker *worker);
bool fg_worker_link_describe(fg_worker *worker, fg_buf *out);
/* PEER. */
fg_status fg_worker_link_add_peer(fg_worker *worker, const fg_msg *msg, uint32_t *index_out,
                                  fg_error *err);
void fg_worker_link_lose_peer(fg_worker *worker, uint32_t peer);
bool fg_worker_link_usable(fg_worker *worker, uint32_t peer);
void fg_worker_link_fence(fg_worker *worker, const fg_seq *seq);
void fg_worker_link_prepare(fg_worker *worker, const fg_seq *seq);
void fg_worker_link_abort(fg_worker *worker, const fg_seq *seq);
/* Where the receiver's arena lies, held until it is released; NULL: its blocks are to be pushed. */
void *fg_worker_link_hold(fg_worker *worker, const fg_seq *seq);
void fg_worker_link_release(fg_worker *worker, const fg_seq *seq);

/* What the record says of so many guesses; none where it says nothing of them. NULL: nobody compares. */
const struct fg_work_guess *fg_worker_told_guesses(fg_worker *worker, uint32_t count);

/* worker_rest.c */
/* Begins a new part of the record with all that is known, if nothing goes on. */
void fg_worker_note_rest(fg_worker *worker);

/* worker_plan.c */
fg_status fg_worker_plan_create(fg_worker *worker, fg_error *err);
void fg_worker_plan_destroy(fg_worker *worker);
/* Makes and starts steps while the engine takes them and there is work. */
void fg_worker_run(fg_worker *worker);

/* worker_draft.c */
/* What its next item may have of them; as far as that is known while its last token is still being chosen. */
void fg_worker_offer_drafts(const fg_worker *worker, const fg_seq *seq, fg_sched_seq *out);
/* Blocks for `count` guesses behind `after` tokens, if there are any left now: how many may be computed, all or none. */
uint32_t fg_worker_fit_drafts(fg_worker *worker, fg_seq *seq, uint32_t after, uint32_t count);
/* The item gets `count` of them. */
void fg_worker_add_drafts(fg_worker *worker, fg_seq *seq, fg_step_seq *item, uint32_t count);
/* A token was chosen without a guess in its step: whether the guess was right. */
void fg_worker_note_guess(fg_worker *worker, fg_seq *seq, uint32_t token);
/* How many of its item's guesses were right: the tokens chosen after those and after the token before them hold. */
uint32_t fg_worker_accepted(const fg_seq *seq);
/* A step with guesses has ended: what was computed too much is given back. Returns how many of `choices` hold: none where
 * the model broke down, maybe at a guess. */
uint32_t fg_worker_settle_drafts(fg_worker *worker, fg_seq *seq, const fg_step_seq *item);

/* worker_ask.c */
/* The step being built has all its items: what the draft model is asked behind it. */
void fg_worker_ask(fg_worker *worker);
/* Such a step has ended; before its items are booked. */
void fg_worker_book_asks(fg_worker *worker, const fg_worker_frame *frame);
/* The sequence is asked about no more, for now or for ever. */
void fg_worker_forget_draft(fg_worker *worker, fg_seq *seq);

/* worker_scores.c */
/* Room for what steps say of prompts. False: out of memory. */
bool fg_worker_scores_ready(fg_worker *worker);
void fg_worker_scores_destroy(fg_worker *worker);
/* What the item is to say of its prompt, as far as the router has not heard it. */
void fg_worker_ask_scores(fg_worker *worker, fg_seq *seq, fg_step_seq *item);
/* It has ended: tells the router. */
void fg_worker_book_scores(fg_worker *worker, fg_seq *seq, const fg_step_seq *item);

/* worker_grammar.c */
/* Holds the sequence's answer to what `params` say, whose text is borrowed. */
fg_status fg_worker_take_grammar(fg_worker *worker, fg_seq *seq, const fg_wire_params *params,
                                 fg_error *err);
/* The sequence is about to go. */
void fg_worker_give_grammar(fg_worker *worker, fg_seq *seq);
/* Once all sequences are gone. */
void fg_worker_grammars_destroy(fg_worker *worker);

/* worker_book.c */
void fg_worker_book(fg_worker *worker, fg_worker_frame *frame);

/* worker_seq.c */
void fg_worker_send_done(fg_worker *worker, const fg_msg *about, fg_finish finish,
                         const char *text);
/* Of the router that is being heard. */
fg_seq *fg_worker_find_request(fg_worker *worker, uint64_t request, uint32_t attempt);
/* Every sequence that is not CLOSING. */
void fg_worker_end_all(fg_worker *worker, fg_finish finish, const char *why);
/* Those of one router, silently. */
void fg_worker_cancel_of(fg_worker *worker, uint32_t router);
/* Frees a CLOSING sequence when nothing uses it any more. */
void fg_worker_settle(fg_worker *worker, fg_seq *seq);
/* How blocks are copied and let go while steps are in flight. */
fg_table_ops fg_worker_table_ops(fg_worker *worker);
/* Pins the blocks from index `from` on that an open ticket names. */
void fg_worker_pin(fg_worker *worker, const fg_seq *seq, uint32_t from);
/* Lets the blocks beyond `block_count` go, unpinning them where the ticket is open. */
void fg_worker_shrink(fg_worker *worker, fg_seq *seq, uint32_t block_count);
/* A span of the trace: the sequence leaves its state. */
void fg_worker_trace_state(fg_worker *worker, fg_seq *seq);
/* worker_spans.c: the state that a traced sequence leaves now, as spans. */
void fg_worker_add_spans(fg_worker *worker, const fg_seq *seq, uint64_t now);

/* worker_cache.c */
fg_status fg_worker_cache_create(fg_worker *worker, fg_error *err);
/* Blocks that a sequence is promised in all when it is admitted: for what it has now, or for all that it
 * may come to have, where nobody is to be evicted for it. */
uint32_t fg_worker_blocks_aside(const fg_worker *worker, const fg_seq *seq);
void fg_worker_first_keys(fg_worker *worker, fg_seq *seq);
void fg_worker_match(fg_worker *worker, fg_seq *seq, fg_worker_hit *hit_out);
/* Whether somebody computes right now what this one needs next. */
bool fg_worker_should_defer(fg_worker *worker, fg_seq *seq, const fg_worker_hit *hit);
/* Takes what was matched: borrows, forks, orders copies from the tier. False: nothing was taken, the
 * blocks are not to be had after all. */
bool fg_worker_take_hit(fg_worker *worker, fg_seq *seq, const fg_worker_hit *hit);
/* All of its prompt, which is whole blocks, out of the cache. False: some of it is not there; nothing was taken. */
bool fg_worker_borrow_prompt(fg_worker *worker, fg_seq *seq);
void fg_worker_unexpect(fg_worker *worker, fg_seq *seq);
/* Takes blocks out of the table's promise for copies into them; what these blocks evict is stored only
 * where that leaves room for the copies. */
void fg_worker_grow_for_copies(fg_worker *worker, fg_seq *seq, uint32_t block_count);
/* Room for copies in the step being built. */
bool fg_worker_copy_room(const fg_worker *worker, uint32_t count);
void fg_worker_add_copy(fg_worker *worker, const fg_step_copy *copy, const fg_worker_copy *owner);

/* worker_pins.c */
/* The sequence's prompt is computed and published, and it asked for its blocks to stay. */
void fg_worker_pin_prefix(fg_worker *worker, const fg_seq *seq);
void fg_worker_expire_pins(fg_worker *worker, uint64_t now_ns);
/* Somebody is short of blocks: the pin that would end first ends now. False: there is none. */
bool fg_worker_yield_pin(fg_worker *worker);
void fg_worker_drop_pins(fg_worker *worker);
void fg_worker_recount_pins(const fg_worker *worker, uint32_t *recount);

/* worker_news.c */
/* Of each router. */
fg_status fg_worker_news_create(fg_worker *worker, fg_error *err);
void fg_worker_news_destroy(fg_worker *worker);
/* A new connection: everything is told, in frames numbered from 1. */
void fg_worker_news_begin(fg_worker *worker, uint32_t router);
/* Everything is told again. */
void fg_worker_news_again(fg_worker *worker, uint32_t router);
void fg_worker_news_cleared(fg_worker *worker);
/* fg_block_watch of the pool's prefix and of the tier; ctx is the worker. */
void fg_worker_news_on_pool(void *ctx, bool here, fg_digest128 parent, fg_digest128 key);
void fg_worker_news_on_tier(void *ctx, bool here, fg_digest128 parent, fg_digest128 key);
/* Sends what has come together. */
void fg_worker_news_tell(fg_worker *worker, uint32_t router);
/* That, and the next page of a retelling. */
void fg_worker_news_flush(fg_worker *worker);
uint64_t fg_worker_news_sequence(const fg_worker *worker, uint32_t router);
/* Nothing waits to be told. */
bool fg_worker_news_at_rest(const fg_worker *worker, uint32_t router);
/* All was told, up to that frame. */
void fg_worker_news_go_on(fg_worker *worker, uint32_t router, uint64_t sequence);

#endif
