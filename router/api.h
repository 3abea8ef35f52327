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
#include "common/base/status.h"
#include "common/model/chat.h"
#include "common/model/tokenizer.h"
#include "router/request.h"

/* Room for everything that one request may keep: its texts, its rendered prompt and its token ids. */
#define FG_API_ARENA_BYTES (64u * 1024u * 1024u)

/* What every request of one server is measured against. */
typedef struct fg_api_server {
    const fg_tokenizer *tokenizer;
    const fg_chat *chat;
    const char *model_name;  /* what `model` must be */
    const char *fingerprint; /* system_fingerprint, or NULL */
    uint32_t context_max;    /* largest prompt + output, in tokens */
    uint32_t max_tokens_default;
} fg_api_server;

/* What is drawn from outside for one request. */
typedef struct fg_api_call {
    const char *id; /* copied */
    int64_t created_s;
    uint64_t seed; /* used when the client gives none */
} fg_api_call;

typedef struct fg_api_error {
    int http_status;
    const char *type; /* a constant, e.g. "invalid_request_error" */
    const char *code; /* a constant, or NULL */
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

/* A stretch of an answer: text, and the tokens that arrived with it (where the client asked). */
typedef struct fg_api_piece {
    const char *text;
    size_t text_length;
    const uint32_t *ids;     /* `token_count` of each, or NULL when not asked for */
    const uint64_t *digests; /* of each token's logits row */
    size_t token_count;
    uint64_t rolling_digest; /* after the last of these tokens */
} fg_api_piece;

/* The rolling digest goes on from `rolling` (0 before the first token) over one row's digest. */
uint64_t fg_api_roll_digest(uint64_t rolling, uint64_t row_digest);

/* "stop" or "length". */
const char *fg_api_finish_name(fg_finish finish);

/* Each appends to `out`, whose `failed` says when it did not fit. */
void fg_api_render_answer(fg_buf *out, const fg_request *request, const fg_api_piece *answer,
                          fg_finish finish, uint32_t completion_tokens);
void fg_api_render_error(fg_buf *out, const fg_api_error *error);
void fg_api_render_model(fg_buf *out, const fg_api_server *server, int64_t created_s);
void fg_api_render_models(fg_buf *out, const fg_api_server *server, int64_t created_s);

/* Server-sent events. The first one of a chat names the role; the last one with text has the finish
 * (FG_FINISH_NONE before); the usage event follows only when it was asked for. */
void fg_api_event_role(fg_buf *out, const fg_request *request);
void fg_api_event_piece(fg_buf *out, const fg_request *request, const fg_api_piece *piece,
                        fg_finish finish);
void fg_api_event_usage(fg_buf *out, const fg_request *request, uint32_t completion_tokens);
void fg_api_event_error(fg_buf *out, const fg_api_error *error);
void fg_api_event_done(fg_buf *out);

#endif
