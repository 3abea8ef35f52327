#include "cli/keygen.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/net/keys.h"
#include "tests/support/test.h"

static char folder[] = "/tmp/forge-keygen-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void begin(void)
{
    strcpy(folder, "/tmp/forge-keygen-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void finish(void)
{
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
}

static fg_conf_names names;

static fg_keygen_options options_for(const char *directory, const char *one, const char *two,
                                     uint32_t unbound_count)
{
    memset(&names, 0, sizeof names);
    if (one != NULL) {
        strcpy(names.items[names.count++], one);
    }
    if (two != NULL) {
        strcpy(names.items[names.count++], two);
    }
    return (fg_keygen_options){ .directory = directory,
                                .names = &names,
                                .unbound_count = unbound_count };
}

/* How many entries a directory has. */
static int count_in(const char *path)
{
    DIR *directory = opendir(path);
    cr_assert_not_null(directory);
    int count = -2; /* . and .. */
    while (readdir(directory) != NULL) {
        count++;
    }
    closedir(directory);
    return count;
}

static void expect_mode(const char *name, mode_t want)
{
    struct stat info;
    cr_assert_eq(stat(path_of(name), &info), 0, "%s", name);
    cr_assert_eq(info.st_mode & 07777, want, "%s has %o", name, (unsigned)info.st_mode & 07777);
}

static fg_keys *open_keys(const char *directory, const char *name, bool server)
{
    fg_keys *keys = NULL;
    fg_error err;
    fg_keys_options options = { .directory = path_of(directory), .name = name, .server = server };
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    return keys;
}

Test(keygen, makes_keys_that_fit_together)
{
    fg_error err;
    begin();
    umask(0); /* the modes do not depend on it */
    fg_keygen_options o = options_for(path_of("keys///"), "p0", "d0", 2);
    cr_assert_eq(fg_keygen_make(&o, &err), FG_OK, "%s", err.text);
    umask(022);
    static const char *const directories[] = { "keys",    "keys/router",   "keys/p0",
                                               "keys/d0", "keys/worker-0", "keys/worker-1" };
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        char secret[60];
        expect_mode(directories[i], 0700);
        snprintf(secret, sizeof secret, "%s/secret", directories[i]);
        if (i > 0) {
            expect_mode(secret, 0600);
            cr_assert_eq(count_in(path_of(directories[i])), 2);
        }
    }
    cr_assert_eq(count_in(path_of("keys")), 5);
    cr_assert_eq(count_in(folder), 1, "nothing stays beside it");

    fg_keys *router = open_keys("keys", "router", true);
    fg_keys *p0 = open_keys("keys", "p0", false);
    fg_keys *any = open_keys("keys/worker-1", NULL, false);
    cr_assert_eq(fg_keys_allowed_count(router), 4);
    cr_assert_str_eq(fg_keys_name(router), "router");
    cr_assert_str_eq(fg_keys_name(p0), "p0");
    cr_assert_str_eq(fg_keys_name(any), "");
    cr_assert_str_eq(fg_keys_router(p0), fg_keys_public(router));
    cr_assert_str_eq(fg_keys_router(any), fg_keys_public(router));
    cr_assert_eq(fg_keys_check(router, fg_keys_public(p0), "p0"), FG_KEY_FINE);
    cr_assert_eq(fg_keys_check(router, fg_keys_public(p0), "d0"), FG_KEY_OTHER_NAME);
    cr_assert_eq(fg_keys_check(router, fg_keys_public(any), "x"), FG_KEY_FINE);
    cr_assert_eq(fg_keys_check(router, fg_keys_public(any), "p0"), FG_KEY_OTHER_NAME);
    fg_keys_close(router);
    fg_keys_close(p0);
    fg_keys_close(any);
    finish();
}

static void expect_refused(const fg_keygen_options *o, const char *why)
{
    fg_error err = { 0 };
    cr_assert_neq(fg_keygen_make(o, &err), FG_OK, "%s", why);
    cr_assert_not_null(strstr(err.text, why), "%s: %s", why, err.text);
}

Test(keygen, what_is_there_is_kept)
{
    fg_error err;
    char target[200], old[FG_KEY_TEXT_BYTES + 1];
    begin();
    snprintf(target, sizeof target, "%s", path_of("keys"));
    cr_assert_eq(mkdir(target, 0755), 0); /* an empty one is as good as none */
    fg_keygen_options o = options_for(target, "a", NULL, 0);
    cr_assert_eq(fg_keygen_make(&o, &err), FG_OK, "%s", err.text);
    expect_mode("keys", 0700);
    fg_keys *keys = open_keys("keys", "a", false);
    snprintf(old, sizeof old, "%s", fg_keys_public(keys));
    fg_keys_close(keys);
    expect_refused(&o, "--force");
    keys = open_keys("keys", "a", false);
    cr_assert_str_eq(fg_keys_public(keys), old);
    fg_keys_close(keys);

    o = options_for(target, "b", NULL, 0);
    o.force = true;
    cr_assert_eq(fg_keygen_make(&o, &err), FG_OK, "%s", err.text);
    cr_assert_eq(count_in(target), 2);
    cr_assert_neq(access(path_of("keys/a"), F_OK), 0);
    fg_keys_close(open_keys("keys", "b", false));

    /* Nothing of somebody else's is removed. */
    static const char *const foreign[] = { "keys/note", "keys/b/note", "keys/router/old" };
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        FILE *file = fopen(path_of(foreign[i]), "w");
        cr_assert_not_null(file);
        fclose(file);
        expect_refused(&o, "nothing that keygen made");
        cr_assert_eq(access(path_of("keys/b/secret"), F_OK), 0);
        cr_assert_eq(unlink(path_of(foreign[i])), 0);
    }
    cr_assert_eq(symlink("/tmp", path_of("keys/b/secret2")), 0);
    expect_refused(&o, "nothing that keygen made");
    cr_assert_eq(unlink(path_of("keys/b/secret2")), 0);
    cr_assert_eq(count_in(folder), 1, "no attempt leaves anything behind");
    finish();
}

Test(keygen, bad_requests_are_explained_and_leave_nothing)
{
    begin();
    char target[200];
    snprintf(target, sizeof target, "%s", path_of("keys"));
    const struct {
        const char *directory, *one, *two;
        uint32_t unbound_count;
        const char *why;
    } cases[] = {
        { target, "router", NULL, 0, "the router gets its own" },
        { target, "secret", NULL, 0, "the name of a file" },
        { target, "allowed", NULL, 0, "the name of a file" },
        { target, "a/b", NULL, 0, "a name is" },
        { target, "..", NULL, 0, "a name is" },
        { target, "worker-1", NULL, 2, "also one of --workers" },
        { target, "a", "b", FG_LIMIT_WORKERS, "more than" },
        { "", "a", NULL, 0, "name a directory" },
        { "/nowhere/at/all", "a", NULL, 0, "/nowhere/at/all: No such file" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_keygen_options o =
            options_for(cases[i].directory, cases[i].one, cases[i].two, cases[i].unbound_count);
        expect_refused(&o, cases[i].why);
    }
    FILE *file = fopen(target, "w");
    cr_assert_not_null(file);
    fclose(file);
    fg_keygen_options o = options_for(target, "a", NULL, 0);
    o.force = true;
    expect_refused(&o, "is no directory");
    cr_assert_eq(count_in(folder), 1);
    finish();
}

static bool try_make(void *ctx)
{
    fg_keygen_options o = options_for(ctx, "a", NULL, 1);
    fg_error err;
    o.force = true;
    return fg_keygen_make(&o, &err) == FG_OK;
}

Test(keygen, every_failure_leaves_the_old_keys)
{
    begin();
    char target[200];
    snprintf(target, sizeof target, "%s", path_of("keys"));
    int faults = fg_fault_each(try_make, target);
    cr_assert(faults >= 6, "%d", faults);
    cr_assert_eq(count_in(folder), 1);
    fg_keys_close(open_keys("keys", "a", false));
    finish();
}
