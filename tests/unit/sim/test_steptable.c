#include "tests/sim/steptable.h"

#include <string.h>

#include "tests/support/test.h"

static const char whole[] = "# a machine\nname mine\nnote by hand # aside\nprefill-base-ns = 1000\n"
                            "prefill-token-ns 10\nprefill-pair-ns 0.5\r\ndecode-base-ns 2000\n"
                            "decode-row-ns 100\ndecode-kv-ns 2\ncopy-block-ns 7\n"
                            "push-block-ns 3\npush-token-ns 4\nmessage-ns 5\nkv-token-bytes 6\n";

Test(steptable, reads_every_field)
{
    fg_steptable t;
    fg_error err = { 0 };
    cr_assert_eq(fg_steptable_parse(whole, strlen(whole), &t, &err), FG_OK, "%s", err.text);
    cr_assert_str_eq(t.name, "mine");
    cr_assert_str_eq(t.note, "by hand");
    cr_assert(t.prefill_pair == 0.5 && t.message == 5 && t.kv_token_bytes == 6);
    cr_assert_eq(fg_steptable_push_ns(&t, 16), 3 + 4 * 16);
}

Test(steptable, adds_up_a_step)
{
    fg_steptable t;
    fg_error err;
    cr_assert_eq(fg_steptable_parse(whole, strlen(whole), &t, &err), FG_OK);
    fg_step_seq seqs[] = { { .token_count = 4, .first_position = 2 },
                           { .token_count = 1, .first_position = 9 } };
    /* 4 tokens behind 2: 3 + 4 + 5 + 6 pairs. */
    static const struct {
        const char *name;
        uint32_t from, count, copies;
        uint64_t want;
    } cases[] = {
        { "nothing", 0, 0, 0, 0 },
        { "prefill", 0, 1, 0, 1000 + 40 + 9 },
        { "decode", 1, 1, 0, 2000 + 100 + 20 },
        { "both share the larger base", 0, 2, 0, 2000 + 40 + 9 + 100 + 20 },
        { "copies alone", 0, 0, 3, 21 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_step step = { .seqs = seqs + cases[i].from,
                         .seq_count = cases[i].count,
                         .copy_count = cases[i].copies };
        cr_assert_eq(fg_steptable_step_ns(&t, &step), cases[i].want, "%s", cases[i].name);
    }
}

Test(steptable, refuses_and_names_the_line)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "", "needs a base" },
        { "decode-base-ns 5\nprefill-token-ns 5\n", "decode-row-ns above 0" },
        { "a 1\n", "line 1: \"a\" is none of" },
        { "\nprefill-base-ns fast\n", "line 2: prefill-base-ns must be a number" },
        { "prefill-base-ns\n", "must be a number" },
        { "prefill-base-ns -1\n", "must be a number" },
        { "prefill-base-ns nan\n", "must be a number" },
        { "prefill-base-ns 1e300\n", "must be a number" },
        { "prefill-base-ns 1 2\n", "must be a number" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_steptable t;
        fg_error err = { 0 };
        cr_assert_eq(fg_steptable_parse(cases[i].text, strlen(cases[i].text), &t, &err),
                     FG_BAD_INPUT, "%s", cases[i].text);
        cr_assert(strstr(err.text, cases[i].want) != NULL, "%s", err.text);
    }
    fg_steptable t;
    fg_error err = { 0 };
    cr_assert_eq(fg_steptable_open("no-such-table", &t, &err), FG_BAD_INPUT);
    cr_assert(strstr(err.text, "gpu-8b-assumed") != NULL, "%s", err.text);
}

Test(steptable, built_in_tables_are_found_and_say_where_they_come_from)
{
    for (size_t i = 0; fg_steptable_built_in(i) != NULL; i++) {
        const fg_steptable *built_in = fg_steptable_built_in(i);
        fg_steptable t;
        fg_error err;
        cr_assert_eq(fg_steptable_open(built_in->name, &t, &err), FG_OK);
        cr_assert(strstr(t.note, "ASSUMED") != NULL || strstr(t.note, "measured") != NULL);
        cr_assert((strstr(t.name, "assumed") != NULL) == (strstr(t.note, "ASSUMED") != NULL));
    }
}
