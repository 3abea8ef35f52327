#include "common/net/keys.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zmq.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/net/key_file.h"

struct fg_keys {
    bool server;
    char directory[PATH_MAX];
    char secret_key[FG_KEY_TEXT_BYTES + 1], public_key[FG_KEY_TEXT_BYTES + 1];
    char router_key[FG_KEY_TEXT_BYTES + 1];
    char name[FG_LIMIT_NAME_BYTES + 1];
    fg_key_entry *allowed; /* by key, rising */
    uint32_t allowed_count;
};

/* --- files --- */

static fg_status read_keys(const char *path, fg_key_kind kind, fg_key_entry *entries, uint32_t max,
                           uint32_t *count_out, fg_error *err)
{
    char *text = NULL;
    size_t size = 0;
    fg_status status =
        fg_key_file_read(path, kind == FG_KEY_SECRET,
                         " (`forge keygen` makes the files that --keys takes)", &text, &size, err);
    if (status == FG_OK) {
        fg_key_text source = { .label = path, .text = text, .size_bytes = size, .kind = kind };
        status = fg_keys_parse(&source, entries, max, count_out, err);
        fg_key_file_drop(text);
    }
    return status;
}

static fg_status path_in(const fg_keys *keys, const char *file, char path_out[PATH_MAX],
                         fg_error *err)
{
    int length = snprintf(path_out, PATH_MAX, "%s/%s", keys->directory, file);
    return length < PATH_MAX ? FG_OK : fg_fail(err, FG_BAD_INPUT, "--keys: the path is too long");
}

/* A file with exactly one key. */
static fg_status read_one(const fg_keys *keys, const char *file, fg_key_kind kind,
                          fg_key_entry *entry_out, fg_error *err)
{
    char path[PATH_MAX];
    uint32_t count = 0;
    fg_status status = path_in(keys, file, path, err);
    if (status == FG_OK) {
        status = read_keys(path, kind, entry_out, 1, &count, err);
    }
    return status == FG_OK && count == 0 ? fg_fail(err, FG_BAD_INPUT, "%s holds no key", path)
                                         : status;
}

/* --- the allow-list --- */

static int by_key(const void *left, const void *right)
{
    return strcmp(((const fg_key_entry *)left)->key, ((const fg_key_entry *)right)->key);
}

fg_status fg_keys_reload(fg_keys *keys, fg_error *err)
{
    FG_ASSERT(keys->server, "a worker has no list");
    char path[PATH_MAX];
    uint32_t count = 0;
    fg_status status = path_in(keys, "allowed", path, err);
    fg_key_entry *entries = fg_mem_array(FG_LIMIT_KEYS, sizeof *entries);
    if (status == FG_OK && entries == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for %s", path);
    }
    if (status == FG_OK) {
        status = read_keys(path, FG_KEY_PUBLIC, entries, FG_LIMIT_KEYS, &count, err);
    }
    if (status == FG_OK) {
        qsort(entries, count, sizeof *entries, by_key);
    }
    for (uint32_t i = 1; status == FG_OK && i < count; i++) {
        if (by_key(&entries[i - 1], &entries[i]) == 0) {
            uint32_t a = entries[i - 1].line, b = entries[i].line;
            status = fg_fail(err, FG_BAD_INPUT, "%s:%u: the key of line %u again", path,
                             a > b ? a : b, a > b ? b : a);
        }
    }
    if (status != FG_OK) {
        fg_mem_free(entries);
        return status;
    }
    fg_mem_free(keys->allowed);
    keys->allowed = entries;
    keys->allowed_count = count;
    return FG_OK;
}

fg_key_verdict fg_keys_check(const fg_keys *keys, const char *public_key, const char *name)
{
    fg_key_entry wanted = { 0 };
    if (public_key == NULL || strlen(public_key) != FG_KEY_TEXT_BYTES) {
        return FG_KEY_UNKNOWN;
    }
    memcpy(wanted.key, public_key, FG_KEY_TEXT_BYTES);
    const fg_key_entry *entry =
        keys->allowed_count == 0
            ? NULL
            : bsearch(&wanted, keys->allowed, keys->allowed_count, sizeof wanted, by_key);
    if (entry == NULL) {
        return FG_KEY_UNKNOWN;
    }
    if (name == NULL) {
        return FG_KEY_FINE;
    }
    if (entry->name[0] != '\0') {
        return strcmp(entry->name, name) == 0 ? FG_KEY_FINE : FG_KEY_OTHER_NAME;
    }
    for (uint32_t i = 0; i < keys->allowed_count; i++) {
        if (strcmp(keys->allowed[i].name, name) == 0) {
            return FG_KEY_OTHER_NAME;
        }
    }
    return FG_KEY_FINE;
}

/* --- opening --- */

/* The directory itself, or the one of `name` inside it. */
static fg_status find_directory(fg_keys *keys, const fg_keys_options *options, fg_error *err)
{
    const char *top = options->directory, *name = options->name;
    struct stat info;
    if (stat(top, &info) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "--keys %s: %s%s", top, strerror(errno),
                       errno == ENOENT ? ": `forge keygen DIR` makes one" : "");
    }
    if (!S_ISDIR(info.st_mode)) {
        return fg_fail(err, FG_BAD_INPUT, "--keys %s is not a directory", top);
    }
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/secret", top);
    bool here = length < PATH_MAX && access(path, F_OK) == 0;
    const char *sub = here || name == NULL ? "" : name;
    length = snprintf(keys->directory, PATH_MAX, "%s%s%s", top, sub[0] != '\0' ? "/" : "", sub);
    if (length >= PATH_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "--keys: the path is too long");
    }
    if (!here && (sub[0] == '\0' || stat(keys->directory, &info) != 0)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--keys %s: there is neither a file %s/secret nor a directory %s/%s", top,
                       top, top, name != NULL ? name : "NAME (give --name)");
    }
    /* In a sticky directory nobody replaces the files of another. */
    if ((info.st_mode & 022) != 0 && (info.st_mode & S_ISVTX) == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "others than its owner can replace files in %s: chmod go-w %s",
                       keys->directory, keys->directory);
    }
    return FG_OK;
}

static fg_status read_all(fg_keys *keys, fg_error *err)
{
    fg_key_entry entry = { 0 };
    fg_status status = read_one(keys, "secret", FG_KEY_SECRET, &entry, err);
    if (status == FG_OK) {
        memcpy(keys->secret_key, entry.key, sizeof keys->secret_key);
        memcpy(keys->name, entry.name, sizeof keys->name);
        if (fg_fault_hit() || zmq_curve_public(keys->public_key, keys->secret_key) != 0) {
            status = fg_fail(err, FG_BROKEN, "this build of ZeroMQ has no CURVE");
        }
    }
    fg_keys_wipe(&entry, sizeof entry);
    if (status != FG_OK || keys->server) {
        return status != FG_OK ? status : fg_keys_reload(keys, err);
    }
    status = read_one(keys, "router", FG_KEY_PUBLIC, &entry, err);
    memcpy(keys->router_key, entry.key, sizeof keys->router_key);
    return status;
}

fg_status fg_keys_open(const fg_keys_options *options, fg_keys **keys_out, fg_error *err)
{
    fg_keys *keys = fg_mem_alloc(sizeof *keys);
    if (keys == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the keys");
    }
    keys->server = options->server;
    fg_status status = find_directory(keys, options, err);
    if (status == FG_OK) {
        status = read_all(keys, err);
    }
    if (status != FG_OK) {
        fg_keys_close(keys);
        return status;
    }
    *keys_out = keys;
    return FG_OK;
}

void fg_keys_close(fg_keys *keys)
{
    if (keys != NULL) {
        fg_mem_free(keys->allowed);
        fg_keys_wipe(keys, sizeof *keys);
        fg_mem_free(keys);
    }
}

const char *fg_keys_name(const fg_keys *keys)
{
    return keys->name;
}

const char *fg_keys_secret(const fg_keys *keys)
{
    return keys->secret_key;
}

const char *fg_keys_public(const fg_keys *keys)
{
    return keys->public_key;
}

const char *fg_keys_router(const fg_keys *keys)
{
    return keys->router_key;
}

uint32_t fg_keys_allowed_count(const fg_keys *keys)
{
    return keys->allowed_count;
}
