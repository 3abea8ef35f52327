/*
 * admit - whether a request may wait, when the next try makes sense, and when a waiting one goes to its
 * workers. Pure: numbers go in, a verdict comes out; no clock, no memory.
 *
 * A refusal costs nothing that was computed: it is made when a request comes, from the line's bounds and
 * from what placement predicts. What is not known never refuses anybody. Retry-After is the predicted
 * time until this very request would be let in if nobody else came, so it is never longer than that;
 * who comes meanwhile may still be first.
 */
#ifndef FORGE_ROUTER_ADMIT_H
#define FORGE_ROUTER_ADMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define FG_ADMIT_UNKNOWN     UINT64_MAX /* of a time in ns */
#define FG_ADMIT_RETRY_MAX_S 60u

typedef enum fg_admit_reason {
    FG_ADMIT_OK = 0,
    FG_ADMIT_QUEUE_FULL, /* requests, tokens or live ones at their bound */
    FG_ADMIT_TENANT_CAP,
    FG_ADMIT_TTFT,     /* would miss its class's time to the first token */
    FG_ADMIT_ITL,      /* would miss its class's time between tokens */
    FG_ADMIT_DEADLINE, /* would not be done in its own time */
    FG_ADMIT_REASONS,
} fg_admit_reason;

typedef struct fg_admit_load {
    uint32_t queued; /* requests that no worker has yet */
    uint64_t queued_tokens;
    uint32_t live;           /* queued and running */
    double ended_per_second; /* recent rate of requests that ended; 0 when unknown */
    double
        prompt_tokens_per_second; /* recent rate at which prompts leave the line; 0 when unknown */
    uint64_t tokens_ahead;        /* prompt tokens that would go before this request */
    uint32_t tenant_queued;
    uint64_t tenant_queued_tokens;
    double tenant_share; /* its part of the service while others wait, (0, 1]; 0 counts as 1 */
} fg_admit_load;

typedef struct fg_admit_limits {
    uint32_t queued_max;
    uint64_t queued_tokens_max;
    uint32_t live_max;
    uint32_t tenant_queued_max; /* of one tenant; 0: no cap of its own */
    uint64_t tenant_queued_tokens_max;
} fg_admit_limits;

/* What a class of service promises; 0: nothing. */
typedef struct fg_admit_slo {
    uint64_t ttft_ns, itl_ns;
} fg_admit_slo;

typedef struct fg_admit_class {
    const char *name;
    fg_admit_slo slo;
} fg_admit_class;

/* One request and what placement predicts for it. */
typedef struct fg_admit_request {
    uint32_t prompt_tokens;
    uint32_t output_tokens; /* expected; at least 1 */
    uint64_t start_ns;   /* until a worker could start it if nobody waited; or FG_ADMIT_UNKNOWN */
    uint64_t prefill_ns; /* from there to its first token; or FG_ADMIT_UNKNOWN */
    uint64_t itl_ns;     /* beside what decodes now; or FG_ADMIT_UNKNOWN */
    fg_admit_slo slo;
    uint64_t deadline_ns; /* from now to its last token; 0: it has all the time */
} fg_admit_request;

typedef struct fg_admit_verdict {
    fg_admit_reason reason;
    uint32_t retry_after_s; /* 1..60; 0 with FG_ADMIT_OK */
    uint64_t ttft_ns;       /* predicted, its wait in the line included; or FG_ADMIT_UNKNOWN */
} fg_admit_verdict;

/* The first reason against it, and the time after which the last one is gone: 1 s where no rate is known,
 * 60 s where waiting does not help (a prompt that alone takes longer than its target). */
void fg_admit_judge(const fg_admit_request *request, const fg_admit_load *load,
                    const fg_admit_limits *limits, fg_admit_verdict *verdict_out);
/* Until the line has room for a request of which nothing is known, 1..60; 1 where it has. */
uint32_t fg_admit_retry_s(const fg_admit_load *load, const fg_admit_limits *limits);
/* Text for people: "the queue is full", ... */
const char *fg_admit_reason_text(fg_admit_reason reason);

/* The class of that name; NULL: there is none. NULL, "" and "none" name the class without promises. */
const fg_admit_slo *fg_admit_find_class(const fg_admit_class *classes, size_t count,
                                        const char *name);

/* When an admitted request that still waits has become hopeless: even started at once, it would miss its
 * target for the first token or its deadline. In the clock of `arrived_ns`; 0: never. It is what
 * fg_queue_item.give_up_ns takes. */
uint64_t fg_admit_give_up_ns(const fg_admit_request *request, uint64_t arrived_ns);

/* ---- late reservation ---- */

typedef enum fg_admit_move {
    FG_ADMIT_PLACE = 0,
    FG_ADMIT_HOLD_DECODE,  /* decode has no room: no prefill is spent on what could not go on */
    FG_ADMIT_HOLD_PREFILL, /* prefill comes to it later: decode's blocks would idle until then */
} fg_admit_move;

typedef struct fg_admit_times {
    bool unsplit; /* one worker does all: its own line holds nothing of others */
    uint64_t
        prefill_free_ns; /* from now until prefill would start it; FG_ADMIT_UNKNOWN: nobody knows */
    uint64_t decode_free_ns; /* likewise until decode has room for its prompt; 0: it has */
    uint64_t lead_ns;        /* what RESERVE, TICKET and PREFILL take, and some slack */
    uint64_t held_ns;        /* how long it was held for prefill's sake already */
    uint64_t held_max_ns;    /* a prediction that is wrong costs no more than this */
    bool ample; /* decode has much more room than this takes: to idle there keeps nobody out */
} fg_admit_times;

/* Whether the pair is asked now. *again_ns_out: from now until the answer may be another one, 0 with
 * FG_ADMIT_PLACE and where only an event can tell. */
fg_admit_move fg_admit_hold(const fg_admit_times *times, uint64_t *again_ns_out);

#endif
