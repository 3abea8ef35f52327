#include "cli/args.h"

#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

typedef struct values {
    bool on;
    uint32_t count;
    const char *file;
} values;

static const fg_option options[] = {
    { .name = "on", .brief = 'o', .type = FG_OPTION_BOOL, .default_text = "false", .group = "g" },
    { .name = "big-count", .alias = "n", .type = FG_OPTION_U32, .default_text = "1", .group = "g" },
    { .name = "file", .brief = 'f', .type = FG_OPTION_STRING, .group = "g" },
};
static const fg_option other_options[] = {
    { .name = "big-count", .type = FG_OPTION_U32, .default_text = "1", .group = "g" },
    { .name = "kv-blocks", .type = FG_OPTION_U32, .default_text = "1", .group = "g" },
};
static const char *const known[] = { "FORGE_CORPUS", NULL };
static const fg_conf_spec spec = { .command = "forge x", .options = options, .option_count = 3 };
static const fg_conf_spec other = {
    .command = "forge y", .options = other_options, .option_count = 2, .known_environment = known
};

static void join(const char *const *words, int count, char *out)
{
    out[0] = '\0';
    for (int i = 0; i < count; i++) {
        strcat(out, i == 0 ? "" : " ");
        strcat(out, words[i]);
    }
}

Test(args, words_flags_and_what_is_passed_on)
{
    static const struct {
        const char *argv[8];
        const char *flags, *words, *passed;
    } rows[] = {
        { { NULL }, "", "", "" },
        { { "a", "b" }, "", "a b", "" },
        { { "--file", "f", "a" }, "--file f", "a", "" },
        { { "--file=f", "a" }, "--file=f", "a", "" },
        { { "--on", "a" }, "--on", "a", "" },
        { { "--n", "3", "a" }, "--n 3", "a", "" },
        { { "a", "--big-count", "3", "-" }, "--big-count 3", "a -", "" },
        { { "a", "--", "--file", "f", "--", "z" }, "", "a", "--file f -- z" },
        { { "--" }, "", "", "" },
        { { "a", "--file" }, "--file", "a", "" },
        { { "--file", "--on", "a" }, "--file --on", "a", "" },
        { { "-h", "a" }, "-h", "a", "" },
        { { "-f", "f", "a" }, "-f f", "a", "" },
        { { "-o", "a" }, "-o", "a", "" },
        { { "a", "-f" }, "-f", "a", "" },
        { { "-fx", "a" }, "-fx", "a", "" },
        { { "--unknown", "a" }, "--unknown", "a", "" },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int argc = 0;
        char text[200];
        while (argc < 8 && rows[r].argv[argc] != NULL) {
            argc++;
        }
        fg_args args;
        cr_assert_eq(fg_args_split(&spec, NULL, argc, rows[r].argv, NULL, &args, NULL), FG_OK);
        join(args.flags, args.flag_count, text);
        cr_assert_str_eq(text, rows[r].flags, "row %zu", r);
        join(args.words, args.word_count, text);
        cr_assert_str_eq(text, rows[r].words, "row %zu", r);
        join(args.passed, args.passed_count, text);
        cr_assert_str_eq(text, rows[r].passed, "row %zu", r);
        cr_assert_null(args.environment[0]);
        fg_args_free(&args);
    }
}

Test(args, the_environment_of_another_command_is_left_out)
{
    static const char *const environment[] = {
        "PATH=/bin",          "FORGE_FILE=f",    "FORGE_BIG_COUNT=3", "FORGE_KV_BLOCKS=9",
        "FORGE_KV_BLOCKSX=9", "FORGE_CORPUS=/c", "FORGE_TYPO=1",      NULL,
    };
    fg_args args;
    char text[200];
    cr_assert_eq(fg_args_split(&spec, &other, 0, NULL, environment, &args, NULL), FG_OK);
    join(args.environment, 5, text);
    cr_assert_str_eq(text, "PATH=/bin FORGE_FILE=f FORGE_BIG_COUNT=3 FORGE_KV_BLOCKSX=9 "
                           "FORGE_TYPO=1");
    cr_assert_null(args.environment[5]);
    fg_args_free(&args);
}

Test(args, twins)
{
    static const struct {
        const char *entry;
        bool twin;
    } rows[] = {
        { "FORGE_BIG_COUNT=1", true },
        { "FORGE_BIG_COUNT", true },
        { "FORGE_N=1", true },
        { "FORGE_BIG_COUNT_=1", false },
        { "FORGE_BIG=1", false },
        { "FORGE_big_count=1", false },
        { "BIG_COUNT=1", false },
        { "FORGE_", false },
        { "", false },
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        cr_assert_eq(fg_args_is_twin(&spec, rows[r].entry), rows[r].twin, "%s", rows[r].entry);
    }
}

static bool split(void *ctx)
{
    static const char *const argv[] = { "a", "--on" };
    fg_args args;
    if (fg_args_split(&spec, &other, 2, argv, NULL, &args, NULL) != FG_OK) {
        return false;
    }
    fg_args_free(&args);
    return true;
}

Test(args, survives_every_failed_allocation)
{
    cr_assert_eq(fg_fault_each(split, NULL), 3);
}
