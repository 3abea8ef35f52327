/*
 * request - one request after parsing: what dispatch, the workers and the renderers need, whatever the
 * outside format was. Built by api, owned by the stream that answers it.
 */
#ifndef FORGE_ROUTER_REQUEST_H
#define FORGE_ROUTER_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/model/tool_parse.h"
#include "common/obs/traceparent.h"
#include "proto/wire.h"
#include "router/admit.h"

typedef enum fg_api_kind { FG_API_CHAT, FG_API_COMPLETION, FG_API_EMBEDDING } fg_api_kind;

/* The trace that a request belongs to; all zero: none. */
typedef struct fg_request_trace {
    fg_traceparent own; /* the span of the request itself */
    uint64_t parent;    /* of that span; 0: the trace begins with it */
    const char *state;  /* the caller's tracestate; NULL: none */
    bool known;         /* there is a trace */
    bool recorded;      /* and this process writes spans of it */
} fg_request_trace;

/* Whether the model may, must or must not call a tool. */
typedef enum fg_tool_choice {
    FG_TOOL_CHOICE_NONE = 0,
    FG_TOOL_CHOICE_AUTO,
    FG_TOOL_CHOICE_REQUIRED, /* at least one call */
    FG_TOOL_CHOICE_NAMED,    /* one call, of this tool */
} fg_tool_choice;

typedef struct fg_request_tools {
    fg_tool_choice choice;
    uint32_t named;            /* index of the tool of FG_TOOL_CHOICE_NAMED */
    fg_tool_dialect dialect;   /* how calls are found in an answer; NONE: none are looked for */
    const fg_tool_name *names; /* of the tools that the model was shown */
    uint32_t count;
    bool single;   /* the answer ends with its first call */
    bool unmarked; /* it has to be calls, and begins with no marker */
} fg_request_tools;

/* What the model thinks, told from what it answers. */
typedef struct fg_request_thoughts {
    bool split;  /* it is looked for */
    bool opened; /* the prompt has opened it */
    bool hidden; /* and it is left out */
} fg_request_thoughts;

/* One of the prompts of a request. */
typedef struct fg_prompt {
    const uint32_t *tokens;
    uint32_t token_count;
    /* Where it is echoed: its text, and of each token (and the end) how many characters of it come before; NULL where nobody
     * asks. */
    const char *text;
    size_t text_length;
    const uint32_t *offsets;
} fg_prompt;

typedef struct fg_request {
    fg_api_kind kind;
    fg_arena *arena;        /* everything below lives here */
    const uint32_t *tokens; /* of the first prompt */
    uint32_t token_count;
    const fg_prompt *prompts; /* NULL: that is the only one, and it is not echoed */
    uint32_t prompt_count;
    /* `n` of each prompt, one prompt after the other: choice i of a prompt is what the same request with seed + i answers
     * alone. */
    uint32_t choice_count;
    fg_wire_params params;    /* of choice 0: max_tokens resolved, seed drawn */
    const char *const *stops; /* stop strings */
    const size_t *stop_lengths;
    size_t stop_count;
    bool show_stop;           /* the one that was found is a part of the answer */
    const uint32_t *stop_ids; /* tokens that end an answer */
    size_t stop_id_count;
    bool stream;
    bool include_usage;
    bool return_token_ids;    /* choices[].token_ids */
    bool echo;                /* the prompt's text stands in front of each choice's */
    bool no_answer;           /* `max_tokens` 0: the one token that comes is not shown */
    uint32_t dimensions;      /* of embeddings */
    bool as_base64;           /* likewise */
    uint32_t prompt_logprobs; /* 0: none; else how many likely tokens, and one more */
    bool logits_digest;       /* choices[].forge; params.want_digests is the same wish */
    bool return_timings;      /* `timings` beside or in each choice */
    const char *model;        /* as the client named it, or the served name */
    const char *id;           /* "chatcmpl-...", say: in the answer and in x-request-id */
    const char *fingerprint;  /* system_fingerprint; NULL: null */
    int64_t created_s;        /* seconds since 1970 */
    uint64_t tenant;          /* whose share it is; 0: nobody in particular */
    fg_admit_slo slo;         /* what its class promises */
    uint64_t deadline_ns;     /* to its last token; 0: it has all the time */
    fg_request_trace trace;
    fg_request_tools tools;
    fg_request_thoughts thoughts;
} fg_request;

static inline uint32_t fg_request_prompts(const fg_request *request)
{
    return request->prompts != NULL ? request->prompt_count : 1;
}

static inline fg_prompt fg_request_prompt(const fg_request *request, uint32_t index)
{
    return request->prompts != NULL
               ? request->prompts[index]
               : (fg_prompt){ .tokens = request->tokens, .token_count = request->token_count };
}

/* Of all prompts. */
static inline uint64_t fg_request_prompt_tokens(const fg_request *request)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < fg_request_prompts(request); i++) {
        count += fg_request_prompt(request, i).token_count;
    }
    return count;
}

#endif
