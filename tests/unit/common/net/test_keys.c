/* Key files: what is accepted, what is refused and with which words. */
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "tests/unit/common/net/key_rig.h"

/* A pair that is written nowhere else; the first of CurveZMQ's examples of Z85. */
#define GOOD "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define HIGH "%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0"

typedef struct parse_case {
    const char *name, *text;
    fg_key_kind kind;
    uint32_t max;
    int count;       /* -1: refused */
    const char *why; /* part of the message */
} parse_case;

static const parse_case parse_cases[] = {
    { "one key", "public " GOOD "\n", FG_KEY_PUBLIC, 1, 1, NULL },
    { "with a name", "public " GOOD " decode-0\n", FG_KEY_PUBLIC, 1, 1, NULL },
    { "secret", "secret " GOOD " router\n", FG_KEY_SECRET, 1, 1, NULL },
    { "comments, blanks and tabs", "# public\n\n  \t\n\tpublic \t " GOOD "  a.b_C-9 \n#",
      FG_KEY_PUBLIC, 1, -1, ":5: the last line has no newline" },
    { "comments and blanks", "# public\n\n  \t\n\tpublic \t " GOOD "  a.b_C-9 \n#\n", FG_KEY_PUBLIC,
      1, 1, NULL },
    { "no keys", "# none yet\n", FG_KEY_PUBLIC, 4, 0, NULL },
    { "empty", "", FG_KEY_PUBLIC, 4, 0, NULL },
    { "highest value", "public %nSc0%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0\n", FG_KEY_PUBLIC, 1, 1,
      NULL },
    { "beyond 32 bits", "public %nSc1%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0\n", FG_KEY_PUBLIC, 1, -1,
      ":1: the key is not Z85" },
    { "beyond 32 bits in the first digit",
      "public #####"
      "%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0%nSc0\n",
      FG_KEY_PUBLIC, 1, -1, ":1: the key is not Z85" },
    { "no newline at the end", "public " GOOD, FG_KEY_PUBLIC, 1, -1, ":1: the last line" },
    { "cut in the name", "public " GOOD " decode-1", FG_KEY_PUBLIC, 1, -1, ":1: the last line" },
    { "one character short", "\npublic Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI\n", FG_KEY_PUBLIC, 1,
      -1, ":2: a key has 40" },
    { "one too long", "public " GOOD "0\n", FG_KEY_PUBLIC, 1, -1, ":1: a key has 40" },
    { "no key", "public\n", FG_KEY_PUBLIC, 1, -1, ":1: a key has 40" },
    { "bad character", "public Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{h~D\n", FG_KEY_PUBLIC, 1, -1,
      ":1: the key is not Z85" },
    { "high byte",
      "public Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{h\xFF"
      "D\n",
      FG_KEY_PUBLIC, 1, -1, ":1: the key is not Z85" },
    { "CRLF", "# a\r\npublic " GOOD "\r\n", FG_KEY_PUBLIC, 1, -1, ":1: a carriage return" },
    { "secret among public", "public " GOOD "\nsecret " GOOD "\n", FG_KEY_PUBLIC, 4, -1,
      ":2: this is a secret key" },
    { "public for secret", "public " GOOD "\n", FG_KEY_SECRET, 1, -1, ":1: this is a public key" },
    { "no label", GOOD "\n", FG_KEY_PUBLIC, 1, -1, ":1: a line is `public KEY`" },
    { "no label, secret", GOOD "\n", FG_KEY_SECRET, 1, -1, ":1: a line is `secret KEY`" },
    { "two where one may be", "public " GOOD "\npublic " HIGH "\n", FG_KEY_PUBLIC, 1, -1,
      ":2: one key" },
    { "too many", "public " GOOD "\npublic " HIGH "\npublic " GOOD "\n", FG_KEY_PUBLIC, 2, -1,
      ":3: too many" },
    { "too many words", "public " GOOD " a b\n", FG_KEY_PUBLIC, 1, -1, ":1: more than" },
    { "name with a slash", "public " GOOD " a/b\n", FG_KEY_PUBLIC, 1, -1, ":1: a name is" },
    { "name with a hash", "public " GOOD " a#1\n", FG_KEY_PUBLIC, 1, -1, ":1: a name is" },
    { "name ..", "public " GOOD " ..\n", FG_KEY_PUBLIC, 1, -1, ":1: a name is" },
    { "name too long",
      "public " GOOD " 01234567890123456789012345678901234567890123456789012345678901234\n",
      FG_KEY_PUBLIC, 1, -1, ":1: a name is" },
};

Test(keys, text_is_read_strictly)
{
    for (size_t i = 0; i < sizeof parse_cases / sizeof parse_cases[0]; i++) {
        const parse_case *c = &parse_cases[i];
        fg_key_entry entries[4] = { 0 };
        fg_key_text text = { "file", c->text, strlen(c->text), c->kind };
        fg_error err = { 0 };
        uint32_t count = 77;
        fg_status status = fg_keys_parse(&text, entries, c->max, &count, &err);
        cr_assert_eq(status, c->count < 0 ? FG_BAD_INPUT : FG_OK, "%s: %s", c->name, err.text);
        cr_assert_eq((int)count, c->count < 0 ? 77 : c->count, "%s", c->name);
        if (c->count < 0) {
            cr_assert_not_null(strstr(err.text, c->why), "%s: %s", c->name, err.text);
            cr_assert_null(strstr(err.text, "Yne@"), "%s shows a key", c->name);
        }
    }
    fg_key_entry entry;
    uint32_t count;
    fg_key_text nul = { "file", "public\0 x\n", 10, FG_KEY_PUBLIC };
    cr_assert_eq(fg_keys_parse(&nul, &entry, 1, &count, NULL), FG_BAD_INPUT);
    fg_key_text named = { "file", "\nsecret " GOOD " decode-0\n", 58, FG_KEY_SECRET };
    cr_assert_eq(fg_keys_parse(&named, &entry, 1, &count, NULL), FG_OK);
    cr_assert_str_eq(entry.key, GOOD);
    cr_assert_str_eq(entry.name, "decode-0");
    cr_assert_eq(entry.line, 2);
}

Test(keys, pairs_differ_and_belong_together)
{
    key_rig rig;
    rig_make(&rig);
    cr_assert_eq(strlen(rig.router.secret_key), FG_KEY_TEXT_BYTES);
    cr_assert(strcmp(rig.router.public_key, rig.stranger.public_key) != 0);
    fg_keys *keys = rig_client(&rig, &rig.workers[0], &rig.router);
    cr_assert_str_eq(fg_keys_public(keys), rig.workers[0].public_key);
    cr_assert_str_eq(fg_keys_secret(keys), rig.workers[0].secret_key);
    cr_assert_str_eq(fg_keys_router(keys), rig.router.public_key);
    cr_assert_str_eq(fg_keys_name(keys), "");
    fg_keys_close(keys);
    rig_remove(&rig);
}

Test(keys, list_says_who_may_use_which_name)
{
    key_rig rig;
    char list[400];
    rig_make(&rig);
    snprintf(list, sizeof list, "public %s b\npublic %s a\npublic %s\npublic %s b\n",
             rig.workers[0].public_key, rig.workers[1].public_key, rig.workers[2].public_key,
             rig.workers[3].public_key);
    rig.server = rig_open(&rig, rig.router.secret_key, "allowed", list);
    cr_assert_eq(fg_keys_allowed_count(rig.server), 4);
    const struct {
        const char *key, *name;
        fg_key_verdict want;
    } cases[] = {
        { rig.workers[0].public_key, "b", FG_KEY_FINE },
        { rig.workers[3].public_key, "b",
          FG_KEY_FINE }, /* two keys of one name: a change of keys */
        { rig.workers[1].public_key, "a", FG_KEY_FINE },
        { rig.workers[1].public_key, "b", FG_KEY_OTHER_NAME },
        { rig.workers[2].public_key, "c", FG_KEY_FINE },
        { rig.workers[2].public_key, "", FG_KEY_OTHER_NAME },
        { rig.workers[2].public_key, "a", FG_KEY_OTHER_NAME },
        { rig.workers[2].public_key, NULL, FG_KEY_FINE },
        { rig.workers[0].public_key, NULL, FG_KEY_FINE },
        { rig.stranger.public_key, "c", FG_KEY_UNKNOWN },
        { rig.router.public_key, "c", FG_KEY_UNKNOWN },
        { "", "c", FG_KEY_UNKNOWN },
        { NULL, "c", FG_KEY_UNKNOWN },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_assert_eq(fg_keys_check(rig.server, cases[i].key, cases[i].name), cases[i].want,
                     "case %zu", i);
    }
    rig_remove(&rig);
}

Test(keys, bad_list_leaves_the_old_one_in_force)
{
    key_rig rig;
    char list[400];
    fg_error err;
    rig_make(&rig);
    snprintf(list, sizeof list, "public %s\n", rig.workers[0].public_key);
    rig.server = rig_open(&rig, rig.router.secret_key, "allowed", list);
    rig_write(&rig, "allowed", "nonsense\n", 0644);
    cr_assert_eq(fg_keys_reload(rig.server, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_keys_check(rig.server, rig.workers[0].public_key, "x"), FG_KEY_FINE);
    snprintf(list, sizeof list, "public %s\n\npublic %s a\n", rig.workers[1].public_key,
             rig.workers[1].public_key);
    rig_write(&rig, "allowed", list, 0644);
    cr_assert_eq(fg_keys_reload(rig.server, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, ":3: the key of line 1 again"), "%s", err.text);
    rig_write(&rig, "allowed", list, 0666);
    cr_assert_eq(fg_keys_reload(rig.server, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "chmod go-w"), "%s", err.text);
    /* Nobody is a list too. */
    rig_write(&rig, "allowed", "# nobody\n", 0644);
    cr_assert_eq(fg_keys_reload(rig.server, &err), FG_OK);
    cr_assert_eq(fg_keys_check(rig.server, rig.workers[0].public_key, "x"), FG_KEY_UNKNOWN);
    rig_remove(&rig);
}

/* --- files and directories --- */

static void refused(const key_rig *rig, const char *directory, bool server, const char *why)
{
    fg_keys *keys = NULL;
    fg_error err = { 0 };
    fg_keys_options options = { .directory = directory != NULL ? directory : rig->folder,
                                .name = "w",
                                .server = server };
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_BAD_INPUT, "%s", why);
    cr_assert_not_null(strstr(err.text, why), "%s: %s", why, err.text);
}

static const char *path_of(const key_rig *rig, const char *file)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", rig->folder, file);
    return path;
}

Test(keys, unsafe_files_are_refused)
{
    key_rig rig;
    char secret[100], public[100];
    rig_make(&rig);
    snprintf(secret, sizeof secret, "secret %s w\n", rig.workers[0].secret_key);
    snprintf(public, sizeof public, "public %s\n", rig.router.public_key);
    rig_write(&rig, "router", public, 0644);
    static const mode_t modes[] = { 0640, 0604, 0620, 0602, 0610, 0601, 0644, 0666 };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        rig_write(&rig, "secret", secret, modes[i]);
        refused(&rig, NULL, false, "chmod 600");
    }
    rig_write(&rig, "secret", secret, 0400);
    fg_keys_close(rig_client(&rig, &rig.workers[0], &rig.router));
    rig_write(&rig, "router", public, 0664);
    refused(&rig, NULL, false, "chmod go-w");
    rig_write(&rig, "router", "", 0644);
    refused(&rig, NULL, false, "router holds no key");
    unlink(path_of(&rig, "router"));
    refused(&rig, NULL, false, "router: No such file");
    refused(&rig, NULL, true, "allowed: No such file");
    cr_assert_eq(chmod(rig.folder, 0777), 0);
    refused(&rig, NULL, false, "can replace files");
    cr_assert_eq(chmod(rig.folder, 01777), 0); /* as a mounted volume may be */
    rig_write(&rig, "router", public, 0644);
    fg_keys_close(rig_client(&rig, &rig.workers[0], &rig.router));
    rig_remove(&rig);
}

/* As a Secret of Kubernetes is mounted for a process that is not root. */
Test(keys, a_secret_that_root_lends_to_a_group_is_read_by_it_alone)
{
    key_rig rig;
    char secret[100], public[100];
    if (geteuid() != 0) {
        cr_skip("only root can give a file to another group");
    }
    rig_make(&rig);
    snprintf(secret, sizeof secret, "secret %s w\n", rig.workers[0].secret_key);
    snprintf(public, sizeof public, "public %s\n", rig.router.public_key);
    rig_write(&rig, "router", public, 0644);
    rig_write(&rig, "secret", secret, 0440);
    refused(&rig, NULL, false, "chmod 600"); /* root needs no group */
    cr_assert_eq(chown(path_of(&rig, "secret"), 0, 64000), 0);
    cr_assert_eq(chmod(rig.folder, 0755), 0);
    static const struct {
        mode_t mode;
        bool good;
    } cases[] = {
        { 0440, true }, { 0640, true }, { 0460, false }, { 0444, false }, { 0441, false }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(chmod(path_of(&rig, "secret"), cases[i].mode), 0);
        cr_assert(setegid(64000) == 0 && seteuid(64001) == 0);
        fg_keys *keys = NULL;
        fg_error err = { 0 };
        fg_keys_options options = { .directory = rig.folder, .name = "w" };
        fg_status status = fg_keys_open(&options, &keys, &err);
        fg_keys_close(keys);
        cr_assert(seteuid(0) == 0 && setegid(0) == 0);
        cr_assert_eq(status == FG_OK, cases[i].good, "%o: %s", cases[i].mode, err.text);
    }
    rig_remove(&rig);
}

Test(keys, what_is_no_plain_small_file_is_refused)
{
    key_rig rig;
    char public[100];
    rig_make(&rig);
    snprintf(public, sizeof public, "public %s\n", rig.router.public_key);
    rig_write(&rig, "router", public, 0644);
    cr_assert_eq(mkdir(path_of(&rig, "secret"), 0700), 0);
    refused(&rig, NULL, false, "is not a file");
    cr_assert_eq(rmdir(path_of(&rig, "secret")), 0);
    cr_assert_eq(mkfifo(path_of(&rig, "secret"), 0600), 0);
    refused(&rig, NULL, false, "is not a file"); /* and nothing waits for a writer */
    cr_assert_eq(unlink(path_of(&rig, "secret")), 0);
    cr_assert_eq(symlink("/dev/zero", path_of(&rig, "secret")), 0);
    refused(&rig, NULL, false, "is not a file");
    cr_assert_eq(unlink(path_of(&rig, "secret")), 0);
    /* A link counts as what it leads to. */
    char line[100];
    snprintf(line, sizeof line, "secret %s\n", rig.workers[0].secret_key);
    rig_write(&rig, "elsewhere", line, 0644);
    cr_assert_eq(symlink("elsewhere", path_of(&rig, "secret")), 0);
    refused(&rig, NULL, false, "chmod 600");
    cr_assert_eq(chmod(path_of(&rig, "elsewhere"), 0600), 0);
    fg_keys *keys;
    fg_error err;
    fg_keys_options options = { .directory = rig.folder };
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    fg_keys_close(keys);
    cr_assert_eq(unlink(path_of(&rig, "elsewhere")), 0);
    refused(&rig, NULL, false, "there is neither");
    cr_assert_eq(unlink(path_of(&rig, "secret")), 0);
    rig_write(&rig, "secret", "", 0600);
    cr_assert_eq(truncate(path_of(&rig, "secret"), FG_LIMIT_KEY_FILE_BYTES + 1), 0);
    refused(&rig, NULL, false, "is larger than");
    cr_assert_eq(truncate(path_of(&rig, "secret"), FG_LIMIT_KEY_FILE_BYTES), 0);
    refused(&rig, NULL, false, "no newline");
    rig_remove(&rig);
}

Test(keys, directory_is_that_of_a_process_or_holds_it)
{
    key_rig rig;
    fg_keys *keys;
    fg_error err;
    char text[100];
    rig_make(&rig);
    refused(&rig, "/nowhere/at/all", false, "forge keygen");
    refused(&rig, "/dev/null", false, "is not a directory");
    refused(&rig, NULL, false, "there is neither");
    fg_keys_options options = { .directory = rig.folder };
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "--name"), "%s", err.text);
    cr_assert_eq(mkdir(path_of(&rig, "w"), 0700), 0);
    snprintf(text, sizeof text, "secret %s w\n", rig.workers[0].secret_key);
    rig_write(&rig, "w/secret", text, 0600);
    snprintf(text, sizeof text, "public %s\n", rig.router.public_key);
    rig_write(&rig, "w/router", text, 0644);
    options.name = "w";
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    cr_assert_str_eq(fg_keys_name(keys), "w");
    fg_keys_close(keys);
    options.name = "v";
    cr_assert_eq(fg_keys_open(&options, &keys, &err), FG_BAD_INPUT);
    char huge[2 * PATH_MAX];
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    refused(&rig, huge, false, "--keys");
    rig_remove(&rig);
}

static bool try_open(void *ctx)
{
    fg_keys *keys = NULL;
    fg_error err;
    fg_keys_options options = { .directory = ctx, .server = true };
    if (fg_keys_open(&options, &keys, &err) != FG_OK) {
        return false;
    }
    bool good = fg_keys_reload(keys, &err) == FG_OK;
    fg_keys_close(keys);
    return good;
}

Test(keys, opening_survives_every_failure)
{
    key_rig rig;
    rig_make(&rig);
    rig.server = rig_open(&rig, rig.router.secret_key, "allowed", "public " GOOD " a\n");
    int faults = fg_fault_each(try_open, rig.folder);
    cr_assert(faults >= 6, "%d", faults);
    rig_remove(&rig);
}
