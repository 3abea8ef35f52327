/*
 * api_keys - who may ask for what over HTTP. Clients show a key as "Authorization: Bearer KEY". Opened at start, owned by
 * the process; the loop thread asks and reloads.
 *
 * A file of API keys holds none of them, only what tells one when it is shown, as `forge keygen --api` writes it:
 *
 *   key DIGEST NAME [SCOPE[,SCOPE...]] [until YYYY-MM-DD]
 *
 * DIGEST is BLAKE2b-256 of the key's text, 64 digits (`printf %s "$KEY" | b2sum -l 256`). Without scopes the key is for
 * infer alone. It holds to the end of its last day, UTC. Lines and files are those of key_file.h.
 */
#ifndef FORGE_COMMON_NET_API_KEYS_H
#define FORGE_COMMON_NET_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/status.h"

enum { FG_API_DIGEST_BYTES = 32, FG_API_DIGEST_TEXT_BYTES = 64, FG_API_KEY_BYTES_MAX = 256 };

/* What a route is for, and what a key opens: bits. */
typedef enum fg_api_scope {
    FG_API_ANYONE = 0,
    FG_API_INFER = 1,   /* answers, and what belongs to them: models, tokens, batches */
    FG_API_METRICS = 2, /* looking: metrics and state */
    FG_API_ADMIN = 4,   /* changing, and looking at what may hold more than numbers */
    FG_API_ALL = 7,
} fg_api_scope;

typedef struct fg_api_keys fg_api_keys;

typedef struct fg_api_keys_options {
    const char *file; /* NULL: none */
    const char *key;  /* one more, in plain text, that opens everything; NULL: none */
} fg_api_keys_options;

/* FG_BAD_INPUT: something is missing, unsafe or malformed; `err` says what and what to do. */
fg_status fg_api_keys_open(const fg_api_keys_options *options, fg_api_keys **keys_out,
                           fg_error *err);
/* Reads the file again. When that fails the old keys stay in force. */
fg_status fg_api_keys_reload(fg_api_keys *keys, fg_error *err);
void fg_api_keys_close(fg_api_keys *keys); /* NULL is fine */
uint32_t fg_api_keys_count(const fg_api_keys *keys);
bool fg_api_keys_have_file(const fg_api_keys *keys); /* false for NULL */

typedef enum fg_api_verdict {
    FG_API_FINE,
    FG_API_UNKNOWN, /* no key, another one, or one whose last day has passed: 401, nobody is told which */
    FG_API_NOT_FOR, /* 403: a good key that does not open this */
} fg_api_verdict;

/* Takes the same time for every key that is shown. `authorization`: the header's value, NULL without it. name_out: the good
 * key's, valid until the next reload; "" for the one in plain text, and where nobody needs a key, as with NULL. */
fg_api_verdict fg_api_keys_check(const fg_api_keys *keys, const char *authorization, uint32_t scope,
                                 int64_t unix_s, const char **name_out);

/* What a client is told with FG_API_UNKNOWN, beside "WWW-Authenticate: Bearer". */
#define FG_API_KEY_WANTED                                                                          \
    "a valid API key is needed here, as the header 'Authorization: Bearer KEY'"

/* --- the format --- */

typedef struct fg_api_entry {
    uint8_t digest[FG_API_DIGEST_BYTES];
    char name[FG_LIMIT_NAME_BYTES + 1];
    uint32_t scopes;
    int64_t until_s; /* it ends before this second of 1970's count; INT64_MAX: never */
} fg_api_entry;

/* At most `max` entries go to `entries`. FG_BAD_INPUT: "LABEL:LINE: why", without any of the text. */
fg_status fg_api_keys_parse(const char *label, const char *text, size_t size_bytes,
                            fg_api_entry *entries, uint32_t max, uint32_t *count_out,
                            fg_error *err);
/* "infer,metrics" in any order. 0: something else. */
uint32_t fg_api_scopes_parse(const char *text, size_t length);
/* The first second after that day. False: no such day. */
bool fg_api_day_parse(const char *text, size_t length, int64_t *until_s_out);

enum { FG_API_KEY_TEXT_BYTES = 49 }; /* of those that are made here */

/* A new key, from the system's randomness, and its digest in hex. The caller wipes it. */
fg_status fg_api_key_make(char key_out[FG_API_KEY_TEXT_BYTES + 1],
                          char digest_out[FG_API_DIGEST_TEXT_BYTES + 1], fg_error *err);

#endif
