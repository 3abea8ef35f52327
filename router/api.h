/*
 * api - the outside formats: a request body becomes one fg_request by one table of limits; answers,
 * chunks and errors are rendered back. Pure: no I/O, no clock, no randomness of its own.
 *
 * A refusal says what an OpenAI client needs to raise the right exception: HTTP status, type, the
 * parameter's name and a code. Nothing of a refused request stays behind except what its arena holds.
 */
#ifndef FORGE_ROUTER_API_H
#define FORGE_ROUTER_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "common/model/chat.h"
#include "common/model/tokenizer.h"
#include "router/dispatch.h"
#include "router/request.h"
#include "router/service.h"

/* Room for everything that one request may keep: its texts, its rendered prompt and its token ids. */
#define FG_API_ARENA_BYTES (64u * 1024u * 1024u)

/* Where what a model thinks goes. */
typedef enum fg_reasoning_format {
    FG_REASONING_AUTO = 0, /* apart, where the chat template knows thoughts */
    FG_REASONING_NONE,     /* it is text like the rest */
    FG_REASONING_APART,    /* apart, whatever the template knows */
} fg_reasoning_format;

/* What every request of one server is measured against. */
typedef struct fg_api_server {
    const fg_tokenizer *tokenizer;
    const fg_chat *chat;
    const char *model_name;  /* what `model` must be */
    const char *fingerprint; /* system_fingerprint, or NULL */
    uint32_t context_max;    /* largest prompt + output, in tokens */
    uint32_t max_tokens_default;
    const fg_service *service;     /* tenants and classes; NULL: none */
    fg_reasoning_format reasoning; /* of requests that do not say */
    uint32_t embedding_length;     /* numbers of an embedding */
    uint32_t pooling;              /* fg_pooling of the model */
} fg_api_server;

/* What is drawn from outside for one request. */
typedef struct fg_api_call {
    const char *id; /* copied */
    int64_t created_s;
    uint64_t seed;      /* used when the client gives none */
    const char *caller; /* whose it is, whatever it says; NULL and "": as it says */
} fg_api_call;

typedef struct fg_api_error {
    int http_status;
    const char *type; /* a constant, e.g. "invalid_request_error" */
    const char *code; /* a constant, or NULL */
    uint32_t wait_s;  /* for Retry-After, where this request's own time is known; 0: by the load */
    char param[96];   /* "": null */
    char text[FG_ERROR_TEXT_MAX];
} fg_api_error;

/* Fills `error_out` and returns `status`. `param` and `code` may be NULL. */
fg_status fg_api_refuse(fg_api_error *error_out, fg_status status, int http_status,
                        const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

/* FG_BAD_INPUT or FG_AGAIN (out of memory): *error_out is filled. On FG_OK everything in *request_out
 * lives in `arena`, which stays the caller's. */
fg_status fg_api_parse(const fg_api_server *server, fg_api_kind kind, const char *body,
                       size_t body_bytes, const fg_api_call *call, fg_arena *arena,
                       fg_request *request_out, fg_api_error *error_out);
/* Its two halves, for a body that is part of another. What is read keeps nothing of the JSON. */
fg_status fg_api_parse_json(const char *body, size_t body_bytes, size_t values_max,
                            fg_json **json_out, fg_api_error *error_out);
fg_status fg_api_read(const fg_api_server *server, fg_api_kind kind, const fg_json_node *root,
                      const fg_api_call *call, fg_arena *arena, fg_request *request_out,
                      fg_api_error *error_out);

/* POST /tokenize and /detokenize: `body` to the JSON of the answer, appended to `out`. Statuses are those of
 * fg_api_parse. */
typedef enum fg_api_text_kind { FG_API_TOKENIZE, FG_API_DETOKENIZE } fg_api_text_kind;
fg_status fg_api_answer_text(const fg_api_server *server, fg_api_text_kind kind, const char *body,
                             size_t body_bytes, int64_t now_s, fg_buf *out,
                             fg_api_error *error_out);

/* A stretch of an answer: what was thought and answered, and the tokens that arrived with it (where the client asked). */
typedef struct fg_api_piece {
    const char *text;
    size_t text_length;
    const char *thought; /* comes before the text */
    size_t thought_length;
    const uint32_t *ids;         /* `token_count` of each, or NULL when not asked for */
    const uint64_t *digests;     /* of each token's logits row */
    const fg_logprobs *logprobs; /* of each token, or NULL when not asked for */
    size_t token_count;
    uint64_t rolling_digest; /* after the last of these tokens */
    size_t text_offset;      /* characters of the tokens before them */
    const fg_tokenizer *tokenizer;
    /* Of the prompt, what stands in front of all that: its text, and its tokens echo_first, ... where logprobs are asked
     * for. */
    const char *echo;
    size_t echo_length;
    uint32_t echo_first, echo_count;
    fg_prompt prompt;
    const fg_scores *scores; /* number i is about token i + 1 of the prompt; NULL: nobody asks */
} fg_api_piece;

/* A call that the model makes, or a stretch of one. */
typedef struct fg_api_call_part {
    uint32_t index;       /* of the choice's calls */
    uint32_t name_length; /* 0: it was named before */
    size_t arguments_length;
} fg_api_call_part;

/* Parts in their order; `text` are the name and the arguments of each, one behind the other. */
typedef struct fg_api_calls {
    const fg_api_call_part *parts;
    size_t count;
    const char *text;
} fg_api_calls;

/* What is told of one choice: all of it in a whole answer, a stretch in an event. */
typedef struct fg_api_choice {
    uint32_t index;
    fg_api_piece piece;
    fg_finish finish;                 /* NONE: it goes on */
    bool called;                      /* an answer that stopped has called tools */
    fg_api_calls calls;               /* of a whole answer */
    const fg_dispatch_report *report; /* NULL: without `timings` */
} fg_api_choice;

/* What a request cost: its prompt once, the tokens of all of its choices. */
typedef struct fg_api_usage {
    uint32_t cached_tokens;
    uint64_t completion_tokens;
    uint64_t reasoning_tokens; /* of these */
} fg_api_usage;

/* The rolling digest goes on from `rolling` (0 before the first token) over one row's digest. */
uint64_t fg_api_roll_digest(uint64_t rolling, uint64_t row_digest);

/* ,"logprobs":... of a choice; null when not asked for. */
void fg_api_put_logprobs(fg_buf *out, const fg_request *request, const fg_api_piece *piece);
/* ,"prompt_logprobs":[..], where asked for; and beside it or the echo ,"prompt_token_ids":[..], likewise. */
void fg_api_put_prompt(fg_buf *out, const fg_request *request, const fg_api_piece *piece);
/* Characters of a token's text; 0 for a piece of one. */
size_t fg_api_characters_of(const fg_tokenizer *tokenizer, uint32_t id);

/* "stop" or "length". */
const char *fg_api_finish_name(fg_finish finish);
/* The same of a choice, or "tool_calls". */
const char *fg_api_choice_finish_name(const fg_api_choice *choice);

/* Each appends to `out`, whose `failed` says when it did not fit. `choices` are those of the request,
 * request->choice_count of them. The timings of a single choice stand beside it, those of several
 * inside each. */
void fg_api_render_answer(fg_buf *out, const fg_request *request, const fg_api_choice *choices,
                          const fg_api_usage *usage);
/* Embeddings: of each text, in their order, what fg_api_put_embedding says of it, which is made as it comes. */
void fg_api_put_embedding(fg_buf *out, const fg_request *request, const float *embedding);
size_t fg_api_embedding_bytes(const fg_request *request); /* of that at most */
void fg_api_begin_embeddings(fg_buf *out, const fg_request *request);
void fg_api_add_embedding(fg_buf *out, uint32_t index, const char *text, size_t length);
void fg_api_end_embeddings(fg_buf *out, const fg_request *request, const fg_api_usage *usage);
void fg_api_render_error(fg_buf *out, const fg_api_error *error);
void fg_api_render_model(fg_buf *out, const fg_api_server *server, int64_t created_s);
void fg_api_render_models(fg_buf *out, const fg_api_server *server, int64_t created_s);

/* Server-sent events. The first one of a chat's choice names the role; the last one with its text has
 * the finish (FG_FINISH_NONE before); the usage event follows only when it was asked for. Timings of
 * a single choice go with the last of them: `report` is NULL, or what they are made of. */
void fg_api_event_role(fg_buf *out, const fg_request *request, uint32_t index);
void fg_api_event_choice(fg_buf *out, const fg_request *request, const fg_api_choice *choice);
/* Each part as one event, or as two where it has a name and arguments. */
void fg_api_event_calls(fg_buf *out, const fg_request *request, uint32_t index,
                        const fg_api_calls *calls);
void fg_api_event_usage(fg_buf *out, const fg_request *request, const fg_api_usage *usage,
                        const fg_dispatch_report *report);
void fg_api_event_error(fg_buf *out, const fg_api_error *error);
void fg_api_event_done(fg_buf *out);

#endif
