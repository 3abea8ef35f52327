/* API keys: what a file of them may say, which keys are let in for what, and what a reload changes. */
#include "common/net/api_keys.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

/* BLAKE2b-256 of "infer" and "admin", as `b2sum -l 256` has them. */
#define INFER     "b323a37bda8027ee6676833ae807a31bd5c17781693b307906ad667a99131e48"
#define ADMIN     "1aa66b393b8ab47d2489de43016f5f39ca8c2412737c6cdc5f7bc33de2f6dbed"
#define YEAR_2030 1893456000

static const struct {
    const char *name, *text;
    int count;       /* -1: refused */
    uint32_t scopes; /* the first one's */
    int64_t until_s;
    const char *why;
} parse_cases[] = {
    { "bare", "key " INFER " a\n", 1, FG_API_INFER, INT64_MAX, NULL },
    { "scopes", "key " INFER " a.b_C-9 metrics,infer\n", 1, FG_API_INFER | FG_API_METRICS,
      INT64_MAX, NULL },
    { "all", "key " INFER " a all\n", 1, FG_API_ALL, INT64_MAX, NULL },
    { "until", "key " INFER " a until 2029-12-31\n", 1, FG_API_INFER, YEAR_2030, NULL },
    { "scope until", "\t key  " INFER "\ta admin  until 2029-12-31 \n", 1, FG_API_ADMIN, YEAR_2030,
      NULL },
    { "leap day", "key " INFER " a until 2028-02-29\n", 1, FG_API_INFER, 1835481600, NULL },
    { "two, one name", "# old\nkey " INFER " a\n\nkey " ADMIN " a\n", 2, FG_API_INFER, INT64_MAX,
      NULL },
    { "none", "# none yet\n", 0, 0, 0, NULL },
    { "empty", "", 0, 0, 0, NULL },
    { "no newline", "key " INFER " a", -1, 0, 0, ":1: the last line" },
    { "CRLF", "key " INFER " a\r\n", -1, 0, 0, ":1: a carriage return" },
    { "no name", "key " INFER "\n", -1, 0, 0, ":1: a line is" },
    { "a key in plain text", "forge-abc\n", -1, 0, 0, ":1: a line is" },
    { "another word", "public " INFER " a\n", -1, 0, 0, ":1: a line is" },
    { "short digest", "\nkey 12 a\n", -1, 0, 0, ":2: a digest is 64" },
    { "capitals", "key A" INFER " a\n", -1, 0, 0, ":1: a digest is 64" },
    { "no hex", "key g123456789012345678901234567890123456789012345678901234567890123 a\n", -1, 0,
      0, ":1: a digest" },
    { "capital hex", "key A123456789012345678901234567890123456789012345678901234567890123 a\n", -1,
      0, 0, ":1: a digest" },
    { "bad name", "key " INFER " a/b\n", -1, 0, 0, ":1: a name is" },
    { "name ..", "key " INFER " ..\n", -1, 0, 0, ":1: a name is" },
    { "unknown scope", "key " INFER " a infer,king\n", -1, 0, 0, ":1: scopes are" },
    { "empty scope", "key " INFER " a infer,\n", -1, 0, 0, ":1: scopes are" },
    { "no such day", "key " INFER " a until 2029-02-29\n", -1, 0, 0, ":1: the line ends" },
    { "month 13", "key " INFER " a until 2029-13-01\n", -1, 0, 0, ":1: the line ends" },
    { "day 0", "key " INFER " a until 2029-12-00\n", -1, 0, 0, ":1: the line ends" },
    { "a time too", "key " INFER " a until 2029-12-01T00:00\n", -1, 0, 0, ":1: the line ends" },
    { "until nothing", "key " INFER " a until\n", -1, 0, 0, ":1: the line ends" },
    { "more behind", "key " INFER " a infer until 2029-12-01 b\n", -1, 0, 0, ":1: the line ends" },
    { "two scopes", "key " INFER " a infer admin\n", -1, 0, 0, ":1: the line ends" },
    { "twice", "key " INFER " a\nkey " INFER " b\n", -1, 0, 0, ":2: the same key" },
    { "many",
      "key " INFER " a\nkey " ADMIN " b\n"
      "key " INFER " c\n",
      -1, 0, 0, ":3: too many" },
};

Test(api_keys, a_file_says_what_it_says_or_why_not)
{
    for (size_t i = 0; i < sizeof parse_cases / sizeof parse_cases[0]; i++) {
        fg_api_entry entries[2];
        uint32_t count = UINT32_MAX;
        fg_error err = { 0 };
        fg_status status = fg_api_keys_parse("file", parse_cases[i].text,
                                             strlen(parse_cases[i].text), entries, 2, &count, &err);
        if (parse_cases[i].count < 0) {
            cr_assert_eq(status, FG_BAD_INPUT, "%s", parse_cases[i].name);
            cr_assert(strncmp(err.text, "file:", 5) == 0 &&
                          strncmp(err.text + 4, parse_cases[i].why, strlen(parse_cases[i].why)) ==
                              0,
                      "%s: %s", parse_cases[i].name, err.text);
            cr_assert(strstr(err.text, INFER) == NULL);
            continue;
        }
        cr_assert_eq(status, FG_OK, "%s: %s", parse_cases[i].name, err.text);
        cr_assert_eq((int)count, parse_cases[i].count, "%s", parse_cases[i].name);
        if (count > 0) {
            cr_assert_eq(entries[0].scopes, parse_cases[i].scopes, "%s", parse_cases[i].name);
            cr_assert_eq(entries[0].until_s, parse_cases[i].until_s, "%s: %lld",
                         parse_cases[i].name, (long long)entries[0].until_s);
        }
    }
}

static void write_file(const char *path, const char *text, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    cr_assert_eq(fchmod(fd, mode), 0);
    close(fd);
}

static fg_api_verdict ask(const fg_api_keys *keys, const char *authorization, uint32_t scope,
                          int64_t now_s, const char *name)
{
    const char *found = NULL;
    fg_api_verdict verdict = fg_api_keys_check(keys, authorization, scope, now_s, &found);
    cr_assert_str_eq(found, name, "%s", authorization == NULL ? "none" : authorization);
    return verdict;
}

Test(api_keys, a_key_opens_what_it_is_for_until_its_last_day_has_passed)
{
    char path[] = "/tmp/forge-api-keys-XXXXXX";
    fg_error err = { 0 };
    fg_api_keys *keys = NULL;
    close(mkstemp(path));
    write_file(path, "key " INFER " a until 2029-12-31\nkey " ADMIN " b admin,metrics\n", 0644);
    fg_api_keys_options options = { .file = path };
    cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    cr_assert(fg_api_keys_have_file(keys) && fg_api_keys_count(keys) == 2);
    cr_assert_eq(ask(keys, "Bearer infer", FG_API_INFER, YEAR_2030 - 1, "a"), FG_API_FINE);
    cr_assert_eq(ask(keys, "Bearer infer", FG_API_INFER, YEAR_2030, ""), FG_API_UNKNOWN);
    cr_assert_eq(ask(keys, "Bearer infer", FG_API_METRICS, 0, "a"), FG_API_NOT_FOR);
    cr_assert_eq(ask(keys, "Bearer admin", FG_API_METRICS, YEAR_2030, "b"), FG_API_FINE);
    cr_assert_eq(ask(keys, "Bearer admin", FG_API_ALL, YEAR_2030, "b"), FG_API_NOT_FOR);
    cr_assert_eq(ask(keys, NULL, FG_API_ANYONE, 0, ""), FG_API_FINE);
    cr_assert_eq(ask(keys, "Bearer x", FG_API_ANYONE, 0, ""), FG_API_FINE);
    cr_assert_eq(ask(keys, NULL, FG_API_INFER, 0, ""), FG_API_UNKNOWN);
    cr_assert_eq(ask(NULL, NULL, FG_API_ALL, 0, ""), FG_API_FINE);
    char longer[FG_API_KEY_BYTES_MAX + 32] = "Bearer ";
    memset(longer + 7, 'x', sizeof longer - 8);
    cr_assert_eq(ask(keys, longer, FG_API_INFER, 0, ""), FG_API_UNKNOWN);

    /* A reload that fails changes nothing. */
    write_file(path, "key " ADMIN " b king\n", 0644);
    cr_assert_eq(fg_api_keys_reload(keys, &err), FG_BAD_INPUT);
    cr_assert_eq(ask(keys, "Bearer infer", FG_API_INFER, 0, "a"), FG_API_FINE);
    write_file(path, "key " ADMIN " c\n", 0666);
    cr_assert_eq(fg_api_keys_reload(keys, &err), FG_BAD_INPUT);
    cr_assert(strstr(err.text, "chmod go-w") != NULL, "%s", err.text);
    unlink(path);
    cr_assert_eq(fg_api_keys_reload(keys, &err), FG_BAD_INPUT);
    cr_assert(strstr(err.text, "forge keygen --api") != NULL, "%s", err.text);
    cr_assert_eq(ask(keys, "Bearer infer", FG_API_INFER, 0, "a"), FG_API_FINE);
    write_file(path, "key " ADMIN " c\n", 0600);
    cr_assert_eq(fg_api_keys_reload(keys, &err), FG_OK, "%s", err.text);
    cr_assert_eq(ask(keys, "Bearer infer", FG_API_INFER, 0, ""), FG_API_UNKNOWN);
    cr_assert_eq(ask(keys, "Bearer admin", FG_API_INFER, 0, "c"), FG_API_FINE);
    unlink(path);
    fg_api_keys_close(keys);
}

Test(api_keys, one_in_plain_text_opens_everything)
{
    static const char *const bad[] = { "", "a b", "a\tb", "a\n", "\xC3\xA4" };
    fg_error err = { 0 };
    fg_api_keys *keys = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fg_api_keys_options options = { .key = bad[i] };
        cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_BAD_INPUT, "%zu", i);
        cr_assert(strstr(err.text, "--api-key") != NULL);
    }
    fg_api_keys_options options = { .key = "a-good-and-long-enough-key" };
    cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    cr_assert(!fg_api_keys_have_file(keys) && fg_api_keys_count(keys) == 1);
    cr_assert_eq(ask(keys, "Bearer a-good-and-long-enough-key", FG_API_ALL, 0, ""), FG_API_FINE);
    cr_assert_eq(ask(keys, "Bearer a-good-and-long-enough-kez", FG_API_INFER, 0, ""),
                 FG_API_UNKNOWN);
    fg_api_keys_close(keys);
}

Test(api_keys, a_made_key_is_told_by_its_digest)
{
    char key[FG_API_KEY_TEXT_BYTES + 1], digest[FG_API_DIGEST_TEXT_BYTES + 1];
    char other[FG_API_KEY_TEXT_BYTES + 1], line[256], header[128];
    char path[] = "/tmp/forge-api-keys-XXXXXX";
    fg_error err = { 0 };
    fg_api_keys *keys = NULL;
    cr_assert_eq(fg_api_key_make(other, digest, &err), FG_OK);
    cr_assert_eq(fg_api_key_make(key, digest, &err), FG_OK);
    cr_assert(strlen(key) == FG_API_KEY_TEXT_BYTES && strncmp(key, "forge-", 6) == 0, "%s", key);
    cr_assert(strcmp(key, other) != 0);
    snprintf(line, sizeof line, "key %s made\n", digest);
    snprintf(header, sizeof header, "Bearer %s", key);
    close(mkstemp(path));
    write_file(path, line, 0600);
    fg_api_keys_options options = { .file = path };
    cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    cr_assert_eq(ask(keys, header, FG_API_INFER, 0, "made"), FG_API_FINE);
    unlink(path);
    fg_api_keys_close(keys);
}

static bool try_open(void *ctx)
{
    fg_error err;
    fg_api_keys *keys = NULL;
    fg_api_keys_options options = { .file = ctx, .key = "a-good-and-long-enough-key" };
    bool opened = fg_api_keys_open(&options, &keys, &err) == FG_OK;
    cr_assert_eq(opened, keys != NULL);
    fg_api_keys_close(keys);
    return opened;
}

Test(api_keys, any_failed_allocation_is_survived)
{
    char path[] = "/tmp/forge-api-keys-XXXXXX";
    close(mkstemp(path));
    write_file(path, "key " INFER " a\n", 0600);
    cr_assert(fg_fault_each(try_open, path) >= 5);
    unlink(path);
}
