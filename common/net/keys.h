/*
 * keys - who may speak on the bus: this process's secret key, and the public keys that it trusts.
 * Opened at start, owned by the process; the loop thread reads and reloads.
 *
 * The keys of one process lie in one directory, as `forge keygen` writes them:
 *
 *   secret    "secret KEY NAME"   its own secret key; nobody else may read the file
 *   router    "public KEY"        a worker: the router's public key
 *   allowed   "public KEY NAME"   a router: one line for each worker; without NAME, for any name
 *
 * KEY is Z85 (ZeroMQ's 40 characters for 32 bytes). Lines that begin with '#' and empty lines are
 * skipped; no key begins with '#', because the first digit of a Z85 group never reaches that value. A file
 * ends with a newline, so that one that was cut short is noticed. A secret is zeroed before its memory is
 * given back and never part of a message.
 */
#ifndef FORGE_COMMON_NET_KEYS_H
#define FORGE_COMMON_NET_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/status.h"

enum { FG_KEY_BYTES = 32, FG_KEY_TEXT_BYTES = 40 };

typedef struct fg_keys fg_keys;

typedef struct fg_keys_options {
    const char *directory; /* holds `secret`, or a directory called `name` that does */
    const char *name;      /* "router", or the worker's --name; NULL: not known */
    bool server;           /* reads `allowed`, else `router` */
} fg_keys_options;

/* FG_BAD_INPUT: something is missing, unsafe or malformed; `err` says what and what to do. */
fg_status fg_keys_open(const fg_keys_options *options, fg_keys **keys_out, fg_error *err);
/* Server: reads `allowed` again. When that fails the old list stays in force. */
fg_status fg_keys_reload(fg_keys *keys, fg_error *err);
void fg_keys_close(fg_keys *keys); /* NULL is fine */

const char *fg_keys_name(const fg_keys *keys);   /* whom the secret was made for; "": not said */
const char *fg_keys_secret(const fg_keys *keys); /* Z85, like the next two */
const char *fg_keys_public(const fg_keys *keys);
const char *fg_keys_router(const fg_keys *keys);     /* of a client */
uint32_t fg_keys_allowed_count(const fg_keys *keys); /* of a server */

typedef enum fg_key_verdict { FG_KEY_FINE, FG_KEY_UNKNOWN, FG_KEY_OTHER_NAME } fg_key_verdict;

/* May the owner of this public key come, and be called `name` (NULL: not known yet)? A key that is bound to
 * a name gets only that one, and a name that some key is bound to is for the keys bound to it. */
fg_key_verdict fg_keys_check(const fg_keys *keys, const char *public_key, const char *name);

typedef struct fg_key_pair {
    char public_key[FG_KEY_TEXT_BYTES + 1], secret_key[FG_KEY_TEXT_BYTES + 1];
} fg_key_pair;

/* From the system's randomness. The caller zeroes it with fg_keys_wipe. */
fg_status fg_keys_make_pair(fg_key_pair *pair_out, fg_error *err);
void fg_keys_wipe(void *memory, size_t size_bytes);
/* Letters, digits, '.', '_' and '-', and not "." or "..": it is a part of paths. */
bool fg_keys_name_valid(const char *name, size_t length);

/* --- the format --- */

typedef enum fg_key_kind { FG_KEY_SECRET, FG_KEY_PUBLIC } fg_key_kind;

typedef struct fg_key_entry {
    char key[FG_KEY_TEXT_BYTES + 1];
    char name[FG_LIMIT_NAME_BYTES + 1]; /* "": any */
    uint32_t line;
} fg_key_entry;

typedef struct fg_key_text {
    const char *label; /* what messages call it: the path */
    const char *text;
    size_t size_bytes;
    fg_key_kind kind; /* the only one that the text may hold */
} fg_key_text;

/* At most `max` entries go to `entries`. FG_BAD_INPUT: "LABEL:LINE: why", without any of the key's text. */
fg_status fg_keys_parse(const fg_key_text *text, fg_key_entry *entries, uint32_t max,
                        uint32_t *count_out, fg_error *err);

#endif
