/*
 * key_rig - a folder of keys for tests: a router and as many workers as are asked for.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_NET_KEY_RIG_H
#define FORGE_TESTS_UNIT_COMMON_NET_KEY_RIG_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/net/keys.h"
#include "tests/support/test.h"

enum { RIG_WORKERS = 4 };

typedef struct key_rig {
    char folder[64];
    fg_key_pair router, stranger, workers[RIG_WORKERS];
    fg_keys *server;
} key_rig;

static inline void rig_write(const key_rig *rig, const char *file, const char *text, mode_t mode)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", rig->folder, file);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    cr_assert(fd >= 0, "%s", path);
    size_t size = strlen(text);
    cr_assert_eq(write(fd, text, size), (ssize_t)size);
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

static inline void rig_make(key_rig *rig)
{
    fg_error err;
    memset(rig, 0, sizeof *rig);
    strcpy(rig->folder, "/tmp/forge-keys-XXXXXX");
    cr_assert_not_null(mkdtemp(rig->folder));
    cr_assert_eq(fg_keys_make_pair(&rig->router, &err), FG_OK);
    cr_assert_eq(fg_keys_make_pair(&rig->stranger, &err), FG_OK);
    for (int i = 0; i < RIG_WORKERS; i++) {
        cr_assert_eq(fg_keys_make_pair(&rig->workers[i], &err), FG_OK);
    }
}

static inline void rig_remove(key_rig *rig)
{
    char command[80];
    fg_keys_close(rig->server);
    snprintf(command, sizeof command, "rm -rf %s", rig->folder);
    cr_assert_eq(system(command), 0);
}

/* The keys of one process, from files that are written for it. */
static inline fg_keys *rig_open(const key_rig *rig, const char *secret, const char *file,
                                const char *text)
{
    char line[160];
    fg_keys *keys = NULL;
    fg_error err;
    snprintf(line, sizeof line, "secret %s\n", secret);
    rig_write(rig, "secret", line, 0600);
    rig_write(rig, file, text, 0644);
    fg_keys_options options = { .directory = rig->folder, .server = strcmp(file, "allowed") == 0 };
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    return keys;
}

/* A client that trusts the key `trusted`. */
static inline fg_keys *rig_client(const key_rig *rig, const fg_key_pair *own,
                                  const fg_key_pair *trusted)
{
    char line[160];
    snprintf(line, sizeof line, "public %s\n", trusted->public_key);
    return rig_open(rig, own->secret_key, "router", line);
}

#endif
