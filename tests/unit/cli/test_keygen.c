#include "cli/keygen.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/net/api_keys.h"
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

/* --- API keys --- */

static fg_keygen_api_options api_options(const char *file, const char *one, const char *two,
                                         FILE *out)
{
    (void)options_for(file, one, two, 0);
    return (fg_keygen_api_options){ .file = file, .names = &names, .scopes = "infer", .out = out };
}

static fg_api_verdict ask(const fg_api_keys *keys, const char *key, uint32_t scope,
                          const char *name)
{
    char header[200];
    const char *found = NULL;
    snprintf(header, sizeof header, "Bearer %.49s", key);
    fg_api_verdict verdict = fg_api_keys_check(keys, header, scope, 1700000000, &found);
    cr_assert_str_eq(found, name);
    return verdict;
}

Test(keygen, api_keys_are_printed_once_and_told_by_the_file)
{
    begin();
    char file[200], *text = NULL;
    size_t size = 0;
    snprintf(file, sizeof file, "%s", path_of("api"));
    FILE *out = open_memstream(&text, &size);
    fg_error err = { 0 };
    fg_keygen_api_options o = api_options(file, "team-a", "team-b", out);
    cr_assert_eq(fg_keygen_api(&o, &err), FG_OK, "%s", err.text);
    o = api_options(file, "boss", NULL, out);
    o.scopes = "all";
    o.until = "2030-12-31";
    cr_assert_eq(fg_keygen_api(&o, &err), FG_OK, "%s", err.text);
    fclose(out);
    cr_assert_eq(size, 3 * (FG_API_KEY_TEXT_BYTES + 1));
    struct stat info;
    cr_assert(stat(file, &info) == 0 && (info.st_mode & 07777) == 0600);
    fg_api_keys *keys = NULL;
    fg_api_keys_options options = { .file = file };
    cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    const char *second = text + FG_API_KEY_TEXT_BYTES + 1,
               *third = second + FG_API_KEY_TEXT_BYTES + 1;
    cr_assert_eq(ask(keys, text, FG_API_INFER, "team-a"), FG_API_FINE);
    cr_assert_eq(ask(keys, second, FG_API_INFER, "team-b"), FG_API_FINE);
    cr_assert_eq(ask(keys, second, FG_API_ADMIN, "team-b"), FG_API_NOT_FOR);
    cr_assert_eq(ask(keys, third, FG_API_ALL, "boss"), FG_API_FINE);
    fg_api_keys_close(keys);
    free(text);
    finish();
}

Test(keygen, api_keys_that_nobody_could_use_are_not_made)
{
    begin();
    char file[200], broken[200];
    snprintf(file, sizeof file, "%s", path_of("api"));
    snprintf(broken, sizeof broken, "%s", path_of("broken"));
    FILE *old = fopen(broken, "w");
    cr_assert(old != NULL && fputs("forge-key\n", old) >= 0 && fclose(old) == 0);
    const struct {
        const char *file, *name, *scopes, *until, *why;
    } cases[] = {
        { file, NULL, "infer", NULL, "--name" },
        { file, "a/b", "infer", NULL, "--name a/b: a name is" },
        { file, "a", "king", NULL, "--scopes king" },
        { file, "a", "", NULL, "--scopes" },
        { file, "a", "infer", "2030-02-30", "--until 2030-02-30" },
        { file, "a", "infer", "", "--until" },
        { broken, "a", "infer", NULL, ":1: a line is" },
        { "/nowhere/at/all", "a", "infer", NULL, "/nowhere/at/all: No such file" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_error err = { 0 };
        FILE *out = tmpfile();
        fg_keygen_api_options o = api_options(cases[i].file, cases[i].name, NULL, out);
        o.scopes = cases[i].scopes;
        o.until = cases[i].until;
        cr_assert_neq(fg_keygen_api(&o, &err), FG_OK, "%s", cases[i].why);
        cr_assert(strstr(err.text, cases[i].why) != NULL, "%s: %s", cases[i].why, err.text);
        cr_assert_eq(ftell(out), 0, "%s", cases[i].why);
        fclose(out);
    }
    cr_assert_eq(count_in(folder), 1);
    finish();
}

static bool try_api(void *ctx)
{
    FILE *out = tmpfile();
    fg_keygen_api_options o = api_options(ctx, "a", NULL, out);
    fg_error err;
    bool made = fg_keygen_api(&o, &err) == FG_OK;
    cr_assert_eq(made, ftell(out) > 0);
    fclose(out);
    return made;
}

Test(keygen, every_failure_leaves_the_api_keys)
{
    begin();
    char file[200];
    snprintf(file, sizeof file, "%s", path_of("api"));
    cr_assert(try_api(file));
    int faults = fg_fault_each(try_api, file);
    cr_assert(faults >= 4, "%d", faults);
    fg_api_keys *keys = NULL;
    fg_error err;
    fg_api_keys_options options = { .file = file };
    cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_api_keys_count(keys), 2);
    fg_api_keys_close(keys);
    finish();
}

Test(keygen, a_disk_that_is_full_and_a_list_that_is_full_change_nothing)
{
    begin();
    char file[200];
    fg_error err = { 0 };
    struct stat before, after;
    struct rlimit was;
    snprintf(file, sizeof file, "%s", path_of("api"));
    cr_assert(try_api(file) && stat(file, &before) == 0);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
    struct rlimit little = { .rlim_cur = (rlim_t)before.st_size + 50, .rlim_max = was.rlim_max };
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &little), 0);
    char text[256] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    fg_keygen_api_options o = api_options(file, "a", NULL, out);
    cr_assert_neq(fg_keygen_api(&o, &err), FG_OK);
    cr_assert(strstr(err.text, "No space left") != NULL, "%s", err.text);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
    cr_assert(stat(file, &after) == 0 && after.st_size == before.st_size);
    FILE *full = fopen(file, "w");
    for (uint32_t i = 0; i < FG_LIMIT_KEYS; i++) {
        fprintf(full, "key %064x a\n", i);
    }
    fclose(full);
    cr_assert_eq(fg_keygen_api(&o, &err), FG_BAD_INPUT);
    cr_assert(strstr(err.text, "has 1024 keys") != NULL, "%s", err.text);
    fclose(out);
    cr_assert_eq(text[0], '\0');
    finish();
}
