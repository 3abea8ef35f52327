#include "common/conf/conf.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/support/test.h"

typedef struct config {
    bool flag;
    uint32_t small;
    uint32_t plain;
    uint64_t big;
    uint64_t size;
    double ratio;
    const char *text;
    int word;
    fg_conf_names names;
    fg_conf_address address;
    int32_t port, status_port;
} config;

#define AT(member) .offset = offsetof(config, member), .group = "Group", .help = "Helps."

static const fg_conf_choice words[] = { { "red", 3 }, { "green", 4 }, { "rouge", 3 }, { NULL, 0 } };

static const fg_option options[] = {
    { .name = "flag", .brief = 'f', .type = FG_OPTION_BOOL, .default_text = "false", AT(flag) },
    { .name = "small-number",
      .brief = 's',
      .type = FG_OPTION_U32,
      .default_text = "5",
      .min = 2,
      .max = 10,
      AT(small) },
    { .name = "plain", .type = FG_OPTION_U32, .default_text = "0", AT(plain) },
    { .name = "big", .type = FG_OPTION_U64, .default_text = "0", AT(big) },
    { .name = "size", .type = FG_OPTION_SIZE, .default_text = "1M", AT(size) },
    { .name = "ratio",
      .type = FG_OPTION_FLOAT,
      .default_text = "0.5",
      .min = 0,
      .max = 1,
      AT(ratio) },
    { .name = "text", .type = FG_OPTION_STRING, AT(text) },
    { .name = "word",
      .alias = "colour",
      .type = FG_OPTION_CHOICE,
      .default_text = "green",
      .choices = words,
      AT(word) },
    { .name = "names", .type = FG_OPTION_NAMES, AT(names) },
    { .name = "address",
      .alias = "addr",
      .type = FG_OPTION_ADDRESS,
      .default_text = "127.0.0.1:80",
      AT(address) },
    { .name = "port", .type = FG_OPTION_PORT, .default_text = "8080", AT(port) },
    { .name = "status-port",
      .type = FG_OPTION_PORT,
      .default_text = "none",
      .min = -1,
      .max = 65535,
      AT(status_port) },
};
static const char *const known[] = { "FORGE_CORPUS", NULL };
static const fg_conf_spec spec = { .command = "forge test",
                                   .intro = "Tests.",
                                   .options = options,
                                   .option_count = sizeof options / sizeof options[0],
                                   .known_environment = known };

enum { WORDS_MAX = 8 };

static fg_status parse(const char *const *arguments, const char *const *environment, config *out,
                       fg_conf_asked *asked, fg_error *err)
{
    fg_conf_input input = { .argv = arguments, .environment = environment };
    while (input.argc < WORDS_MAX && arguments[input.argc] != NULL) {
        input.argc++;
    }
    return fg_conf_parse(&spec, &input, out, asked, err);
}

static config *parsed(const char *const *arguments, const char *const *environment)
{
    static config conf;
    fg_conf_asked asked;
    fg_error err = { 0 };
    memset(&conf, 0xEE, sizeof conf);
    cr_assert_eq(parse(arguments, environment, &conf, &asked, &err), FG_OK, "%s", err.text);
    cr_assert(!asked.help);
    return &conf;
}

#define ARGS(...) ((const char *const[WORDS_MAX]){ __VA_ARGS__ })

Test(conf, defaults_fill_everything)
{
    const config *conf = parsed(ARGS(NULL), NULL);
    cr_assert(!conf->flag);
    cr_assert_eq(conf->small, 5);
    cr_assert_eq(conf->big, 0);
    cr_assert_eq(conf->size, 1u << 20);
    cr_assert_eq(conf->ratio, 0.5);
    cr_assert_null(conf->text);
    cr_assert_eq(conf->word, 4);
    cr_assert_eq(conf->names.count, 0);
    cr_assert_str_eq(conf->address.host, "127.0.0.1");
    cr_assert_eq(conf->address.port, 80);
    cr_assert_eq(conf->port, 8080);
    cr_assert_eq(conf->status_port, -1);
}

Test(conf, both_ways_of_giving_a_value)
{
    const config *conf =
        parsed(ARGS("--small-number", "7", "--text=a=b", "--flag", "--word=red"), NULL);
    cr_assert_eq(conf->small, 7);
    cr_assert_str_eq(conf->text, "a=b");
    cr_assert(conf->flag);
    cr_assert_eq(conf->word, 3);
}

Test(conf, a_letter_is_a_flag_too)
{
    const config *conf = parsed(ARGS("-s", "7", "-f", "--text", "-s"), NULL);
    cr_assert_eq(conf->small, 7);
    cr_assert(conf->flag);
    cr_assert_str_eq(conf->text, "-s");
}

Test(conf, the_last_of_repeated_flags_wins)
{
    const config *conf = parsed(ARGS("--names=a,b", "--names", "c", "--flag", "--flag=off"), NULL);
    cr_assert_eq(conf->names.count, 1);
    cr_assert_str_eq(conf->names.items[0], "c");
    cr_assert(!conf->flag);
}

Test(conf, flags_beat_environment_beats_default)
{
    const char *const environment[] = { "FORGE_SMALL_NUMBER=9",
                                        "FORGE_BIG=18446744073709551615",
                                        "FORGE_FLAG=yes",
                                        "FORGE_TEXT=",
                                        "PATH=/bin",
                                        NULL };
    const config *conf = parsed(ARGS("--small-number=3"), environment);
    cr_assert_eq(conf->small, 3);
    cr_assert_eq(conf->big, UINT64_MAX);
    cr_assert(conf->flag);
    cr_assert_null(conf->text, "an empty variable counts as not set");
}

Test(conf, aliases_work_as_flag_and_variable)
{
    cr_assert_eq(parsed(ARGS("--colour", "rouge"), NULL)->word, 3);
    const char *const environment[] = { "FORGE_COLOUR=red", NULL };
    cr_assert_eq(parsed(ARGS(NULL), environment)->word, 3);
    const char *const both[] = { "FORGE_WORD=green", "FORGE_COLOUR=red", NULL };
    cr_assert_eq(parsed(ARGS(NULL), both)->word, 4, "the proper name wins");
}

Test(conf, reads_sizes_addresses_ports_and_names)
{
    static const struct {
        const char *text;
        uint64_t want;
    } sizes[] = { { "0", 0 },           { "17", 17 },         { "2K", 2048 },
                  { "3m", 3u << 20 },   { "4G", 4ull << 30 }, { "1T", 1ull << 40 },
                  { "5MiB", 5u << 20 }, { "6KB", 6u << 10 } };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        cr_assert_eq(parsed(ARGS("--size", sizes[i].text), NULL)->size, sizes[i].want, "%s",
                     sizes[i].text);
    }
    static const struct {
        const char *text, *host;
        int port;
    } addresses[] = { { "tcp://10.0.0.1:0", "10.0.0.1", 0 },
                      { "router:65535", "router", 65535 },
                      { "[::1]:9", "::1", 9 },
                      { "", "", 0 } };
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        const config *conf = parsed(ARGS("--address", addresses[i].text), NULL);
        cr_assert_str_eq(conf->address.host, addresses[i].host);
        cr_assert_eq(conf->address.port, addresses[i].port);
    }
    cr_assert_eq(parsed(ARGS("--status-port", "0"), NULL)->status_port, 0);
    cr_assert_eq(parsed(ARGS("--status-port", "none"), NULL)->status_port, -1);
    const config *conf = parsed(ARGS("--names", "p0,p1,d-2"), NULL);
    cr_assert_eq(conf->names.count, 3);
    cr_assert_str_eq(conf->names.items[2], "d-2");
}

static const struct {
    const char *name, *first, *second, *says;
} refused[] = {
    { "no number", "--small-number", "x", "--small-number: 'x'" },
    { "negative", "--small-number", "-3", "whole number" },
    { "space", "--small-number", " 3", "whole number" },
    { "rest", "--small-number", "3x", "whole number" },
    { "below", "--small-number=1", NULL, "2 to 10" },
    { "above", "--small-number=11", NULL, "2 to 10" },
    { "beyond 2^64", "--big=18446744073709551616", NULL, "whole number" },
    { "far beyond 2^64", "--big=99999999999999999999999", NULL, "whole number" },
    { "u32 beyond 2^32", "--plain=4294967296", NULL, "2^32" },
    { "empty number", "--big=", NULL, "whole number" },
    { "size overflow", "--size=99999999999999G", NULL, "size" },
    { "size suffix", "--size=5X", NULL, "size" },
    { "size rest", "--size=5MX", NULL, "size" },
    { "float", "--ratio=x", NULL, "a number" },
    { "float out of range", "--ratio=1.5", NULL, "out of range" },
    { "float infinite", "--ratio=inf", NULL, "a number" },
    { "float NaN", "--ratio=nan", NULL, "a number" },
    { "bool", "--flag=maybe", NULL, "true or false" },
    { "word", "--word=blue", NULL, "red|green" },
    { "address without port", "--address=host", NULL, "127.0.0.1:8090" },
    { "address without host", "--address=:80", NULL, "127.0.0.1:8090" },
    { "address with big port", "--address=h:65536", NULL, "127.0.0.1:8090" },
    { "address with two colons", "--address=::1:80", NULL, "127.0.0.1:8090" },
    { "address with path", "--address=h/x:80", NULL, "127.0.0.1:8090" },
    { "port", "--port=65536", NULL, "a port" },
    { "port none", "--port=none", NULL, "a port" },
    { "names with an empty one", "--names=a,,b", NULL, "names" },
    { "names ending in a comma", "--names=a,", NULL, "last comma" },
    { "names with a hash", "--names=a#b", NULL, "names" },
    { "names with a space", "--names=a b", NULL, "names" },
    { "a name twice", "--names=a,b,a", NULL, "twice" },
    { "misspelt", "--smal-number=3", NULL, "did you mean --small-number" },
    { "misspelt alias", "--color=red", NULL, "did you mean --colour" },
    { "unknown", "--entirely-different", NULL, "--help" },
    { "no flag", "value", NULL, "--help" },
    { "one dash", "-port", "3", "--help" },
    { "unknown letter", "-x", "3", "--help" },
    { "one dash alone", "-", NULL, "--help" },
    { "a letter's value missing", "-s", NULL, "--small-number N" },
    { "a letter's value", "-s", "11", "2 to 10" },
    { "only dashes", "--", NULL, "--help" },
    { "only dashes and a value", "--=3", NULL, "unknown flag" },
    { "value missing", "--port", NULL, "--port PORT" },
};

Test(conf, refuses_with_one_line_that_helps)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        config conf;
        fg_conf_asked asked;
        fg_error err = { 0 };
        cr_assert_eq(parse(ARGS(refused[i].first, refused[i].second), NULL, &conf, &asked, &err),
                     FG_BAD_INPUT, "%s", refused[i].name);
        cr_assert_not_null(strstr(err.text, refused[i].says), "%s: %s", refused[i].name, err.text);
        cr_assert_null(strchr(err.text, '\n'), "%s", refused[i].name);
    }
}

Test(conf, refuses_a_bad_variable_by_its_name)
{
    config conf;
    fg_conf_asked asked;
    fg_error err = { 0 };
    const char *const environment[] = { "FORGE_SMALL_NUMBER=many", NULL };
    cr_assert_eq(parse(ARGS(NULL), environment, &conf, &asked, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "FORGE_SMALL_NUMBER"), "%s", err.text);
}

Test(conf, an_unknown_variable_is_no_failure)
{
    const char *const environment[] = { "FORGE_SMALL_NUMBRE=1", "FORGE_CORPUS=/x", "FORGE=1",
                                        NULL };
    fg_log_set_level(FG_LOG_OFF);
    cr_assert_eq(parsed(ARGS(NULL), environment)->small, 5);
    fg_log_set_level(FG_LOG_INFO);
}

Test(conf, too_many_names_are_refused)
{
    fg_buf text;
    fg_buf_init(&text, 0);
    for (unsigned i = 0; i <= FG_LIMIT_WORKERS; i++) {
        fg_buf_printf(&text, "%sn%u", i == 0 ? "" : ",", i);
    }
    config conf;
    fg_conf_asked asked;
    fg_error err;
    cr_assert_eq(parse(ARGS("--names", text.data), NULL, &conf, &asked, &err), FG_BAD_INPUT);
    fg_buf_deinit(&text);
}

Test(conf, help_is_heard_before_mistakes)
{
    static const struct {
        const char *first, *second, *word;
    } cases[] = { { "--help", NULL, NULL },
                  { "-h", NULL, NULL },
                  { "--wrong", "--help", NULL },
                  { "--help=port", NULL, "port" } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config conf;
        fg_conf_asked asked;
        cr_assert_eq(parse(ARGS(cases[i].first, cases[i].second), NULL, &conf, &asked, NULL),
                     FG_OK);
        cr_assert(asked.help);
        cr_assert_eq(asked.help_word == NULL, cases[i].word == NULL, "case %zu", i);
    }
}

Test(conf, help_shows_the_flags_that_mention_a_word)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert_eq(fg_conf_render_help(&spec, NULL, &out), spec.option_count);
    cr_assert_not_null(strstr(out.data, "usage: forge test"));
    cr_assert_not_null(strstr(out.data, "--word red|green, --colour"));
    cr_assert_not_null(strstr(out.data, "-s, --small-number N"));
    cr_assert_not_null(strstr(out.data, "rouge means red"));
    cr_assert_not_null(strstr(out.data, "2 to 10"));
    fg_buf_clear(&out);
    cr_assert_eq(fg_conf_render_help(&spec, "PORT", &out), 2);
    cr_assert_not_null(strstr(out.data, "--status-port"));
    cr_assert_null(strstr(out.data, "--names"));
    fg_buf_clear(&out);
    cr_assert_eq(fg_conf_render_help(&spec, "zzz", &out), 0);
    cr_assert_not_null(strstr(out.data, "zzz"));
    fg_buf_deinit(&out);
}
