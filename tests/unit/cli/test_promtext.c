#include "cli/promtext.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

static const struct {
    const char *name, *line;
    bool fine;
    double value;
} cases[] = {
    { "plain", "forge:x_total 12", true, 12 },
    { "labels", "x{a=\"b\",c=\"d\"} 1.5", true, 1.5 },
    { "a comma at the end", "x{a=\"b\",} 1", true, 1 },
    { "no labels in the braces", "x{} 1", true, 1 },
    { "blanks everywhere", "  x { a = \"b\" , c=\"d\" }  -1e-3  1700000000 ", true, -1e-3 },
    { "a time", "x 1 1700000000000", true, 1 },
    { "NaN", "x NaN", true, NAN },
    { "infinity", "x +Inf", true, INFINITY },
    { "less than everything", "x -Inf", true, -INFINITY },
    { "a carriage return", "x 1\r", true, 1 },
    { "escapes", "x{a=\"}\\\"\\\\\\n,\"} 1", true, 1 },
    { "no value", "x", false, 0 },
    { "no value behind a blank", "x ", false, 0 },
    { "no value behind braces", "x{a=\"b\"}", false, 0 },
    { "no name", "{a=\"b\"} 1", false, 0 },
    { "a digit first", "1x 1", false, 0 },
    { "open braces", "x{a=\"b\" 1", false, 0 },
    { "open quotes", "x{a=\"b} 1", false, 0 },
    { "a backslash at the end", "x{a=\"\\", false, 0 },
    { "no quotes", "x{a=b} 1", false, 0 },
    { "no equals sign", "x{a} 1", false, 0 },
    { "two commas", "x{a=\"b\",,c=\"d\"} 1", false, 0 },
    { "a colon in a label", "x{a:b=\"c\"} 1", false, 0 },
    { "hexadecimal", "x 0x10", false, 0 },
    { "a word", "x infinity", false, 0 },
    { "two dots", "x 1.2.3", false, 0 },
    { "only a sign", "x -", false, 0 },
    { "something behind the time", "x 1 2 3", false, 0 },
    { "a number without an end",
      "x 1111111111111111111111111111111111111111111111111111111111111111111111111111", false, 0 },
    { "markup", "<html>", false, 0 },
};

Test(promtext, takes_samples_and_steps_over_the_rest)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        /* Of exactly this size, so that a sanitizer sees a read behind it. */
        size_t length = strlen(cases[i].line);
        char *text = malloc(length);
        memcpy(text, cases[i].line, length);
        fg_prom_reader reader = fg_prom_open(text, length);
        fg_prom_sample sample;
        bool fine = fg_prom_next(&reader, &sample);
        cr_assert_eq(fine, cases[i].fine, "%s", cases[i].name);
        cr_assert_eq(reader.refused, cases[i].fine ? 0u : 1u, "%s", cases[i].name);
        cr_assert(!fine || sample.value == cases[i].value ||
                      (isnan(sample.value) && isnan(cases[i].value)),
                  "%s: %g", cases[i].name, fine ? sample.value : 0);
        cr_assert(!fg_prom_next(&reader, &sample), "%s", cases[i].name);
        free(text);
    }
}

Test(promtext, a_page_is_read_past_its_bad_lines)
{
    static const char page[] =
        "# HELP a An a.\n# TYPE a counter\na 1\n\nbad line here\nb{x=\"1\"} 2\n"
        "\x01\x02\xFF\nc 3";
    static const char *const names[] = { "a", "b", "c" };
    fg_prom_reader reader = fg_prom_open(page, sizeof page - 1);
    fg_prom_sample sample;
    for (int i = 0; i < 3; i++) {
        cr_assert(fg_prom_next(&reader, &sample));
        cr_assert(fg_prom_is(&sample, names[i]) && sample.value == i + 1);
    }
    cr_assert(!fg_prom_next(&reader, &sample));
    cr_assert_eq(reader.refused, 2u);
}

Test(promtext, labels_are_found_and_unescaped)
{
    static const char line[] = "x{le=\"+Inf\",route=\"/v1\\\\\\\"a\\n\",empty=\"\"} 1";
    fg_prom_reader reader = fg_prom_open(line, sizeof line - 1);
    fg_prom_sample sample;
    char value[16], little[3];
    cr_assert(fg_prom_next(&reader, &sample));
    cr_assert(fg_prom_label(&sample, "le", value, sizeof value));
    cr_assert_str_eq(value, "+Inf");
    cr_assert(fg_prom_label(&sample, "route", value, sizeof value));
    cr_assert_str_eq(value, "/v1\\\"a\n");
    cr_assert(fg_prom_label(&sample, "empty", value, sizeof value));
    cr_assert_str_eq(value, "");
    cr_assert(fg_prom_label(&sample, "route", little, sizeof little));
    cr_assert_str_eq(little, "/v", "cut to fit");
    cr_assert(!fg_prom_label(&sample, "l", value, sizeof value));
    cr_assert(!fg_prom_label(&sample, "code", value, sizeof value));
    cr_assert(!fg_prom_is(&sample, "xx") && !fg_prom_is(&sample, ""));
}
