/*
 * client - HTTP requests, many at a time. The only code that knows libcurl. One owner, one thread:
 * everything happens inside fg_client_wait.
 *
 * A request ends exactly once, in `on_end`; destroy cancels what is left without a call. Answers are
 * held in memory, up to 64 MiB each.
 */
#ifndef FORGE_CLI_CLIENT_H
#define FORGE_CLI_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef struct fg_client fg_client;

typedef struct fg_client_answer {
    int status;          /* 0: there is none, and `problem` says why */
    const char *problem; /* "" where there is an answer */
    const char *body;    /* NUL-terminated too; valid during the call, as all texts */
    size_t body_bytes;
    const char *request_id; /* header x-request-id; "" */
    uint32_t retry_after_s; /* 0: not named */
} fg_client_answer;

typedef struct fg_client_options {
    uint32_t max;        /* requests at a time */
    uint32_t timeout_s;  /* for one request, connecting included */
    const char *api_key; /* shown with each; copied; NULL: none */
    void (*on_end)(void *ctx, void *user, const fg_client_answer *answer);
    void *ctx;
} fg_client_options;

fg_status fg_client_create(const fg_client_options *options, fg_client **client_out, fg_error *err);
void fg_client_destroy(fg_client *client);
/* GET for a NULL body, else POST of JSON. Texts are copied. FG_AGAIN: `max` are under way, or out of
 * memory. */
fg_status fg_client_send(fg_client *client, const char *url, const char *body, size_t body_bytes,
                         void *user, fg_error *err);
/* Works for up to `wait_ms`, or until something has ended. */
fg_status fg_client_wait(fg_client *client, uint32_t wait_ms, fg_error *err);

/* What to do about an answer that is none: "" or, for one that a key would change, ": ...". */
const char *fg_client_advice(int status);

/* FG_BAD_INPUT unless this is http:// or https:// with a host, or a host alone. */
fg_status fg_client_check_url(const char *url, fg_error *err);

#endif
