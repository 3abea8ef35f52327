#include "common/obs/traceparent.h"

#include <string.h>

#include "tests/support/test.h"

#define ID   "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"

static const struct {
    const char *name, *text;
    bool fine;
} cases[] = {
    { "the standard's own", "00-" ID "-" SPAN "-01", true },
    { "not sampled", "00-" ID "-" SPAN "-00", true },
    { "flags that are not known", "00-" ID "-" SPAN "-ff", true },
    { "half an id of zeros", "00-0000000000000000000000000000000a-" SPAN "-01", true },
    { "absent", NULL, false },
    { "empty", "", false },
    { "a trace id of zeros", "00-00000000000000000000000000000000-" SPAN "-01", false },
    { "a span of zeros", "00-" ID "-0000000000000000-01", false },
    { "capitals", "00-0AF7651916cd43dd8448eb211c80319c-" SPAN "-01", false },
    { "capital flags", "00-" ID "-" SPAN "-0A", false },
    { "the version that is forbidden", "ff-" ID "-" SPAN "-01", false },
    { "a later version", "01-" ID "-" SPAN "-01", false },
    { "no version", ID "-" SPAN "-01", false },
    { "no flags", "00-" ID "-" SPAN, false },
    { "half of the flags", "00-" ID "-" SPAN "-0", false },
    { "something behind it", "00-" ID "-" SPAN "-01-x", false },
    { "a blank behind it", "00-" ID "-" SPAN "-01 ", false },
    { "a blank before it", " 00-" ID "-" SPAN "-01", false },
    { "other separators", "00_" ID "_" SPAN "_01", false },
    { "a long id", "00-" ID "0-" SPAN "-01", false },
    { "a short id", "00-0af7651916cd43dd8448eb211c80319-" SPAN "-01", false },
    { "no hex digit", "00-" ID "-b7ad6b716920333g-01", false },
    { "not ASCII", "00-" ID "-" SPAN "-\xC3\xA9", false },
    { "two of them", "00-" ID "-" SPAN "-01,00-" ID "-" SPAN "-01", false },
};

Test(traceparent, takes_exactly_what_the_standard_allows)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_traceparent trace = { .trace_high = 7, .trace_low = 8, .span = 9, .flags = 10 };
        bool fine = fg_traceparent_parse(cases[i].text, &trace);
        cr_assert_eq(fine, cases[i].fine, "%s", cases[i].name);
        if (fine) {
            char text[FG_TRACEPARENT_LENGTH + 1];
            fg_traceparent_format(&trace, text);
            cr_assert_str_eq(text, cases[i].text, "%s", cases[i].name);
        } else {
            cr_assert(trace.trace_high == 7 && trace.trace_low == 8 && trace.span == 9 &&
                          trace.flags == 10,
                      "%s: something was written", cases[i].name);
        }
    }
}

Test(traceparent, every_cut_and_every_changed_byte_is_refused_or_a_digit)
{
    static const char good[] = "00-" ID "-" SPAN "-01";
    char text[sizeof good];
    fg_traceparent trace;
    for (size_t length = 0; length + 1 < sizeof good; length++) {
        memcpy(text, good, sizeof good);
        text[length] = '\0';
        cr_assert(!fg_traceparent_parse(text, &trace), "cut at %zu", length);
    }
    for (size_t at = 0; at + 1 < sizeof good; at++) {
        for (int c = 1; c < 256; c++) {
            memcpy(text, good, sizeof good);
            text[at] = (char)c;
            bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
            bool dash = at == 2 || at == 35 || at == 52;
            bool want = (char)c == good[at] || (at >= 3 && !dash && digit);
            cr_assert_eq(fg_traceparent_parse(text, &trace), want, "byte %zu is %d", at, c);
        }
    }
}

Test(traceparent, a_tracestate_is_passed_on_whole_or_not_at_all)
{
    char text[FG_TRACESTATE_MAX + 2];
    memset(text, 'a', sizeof text);
    text[FG_TRACESTATE_MAX + 1] = '\0';
    cr_assert(!fg_tracestate_is_fine(text), "one byte too long");
    text[FG_TRACESTATE_MAX] = '\0';
    cr_assert(fg_tracestate_is_fine(text));
    cr_assert(fg_tracestate_is_fine("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"));
    cr_assert(!fg_tracestate_is_fine(""));
    cr_assert(!fg_tracestate_is_fine(NULL));
    cr_assert(!fg_tracestate_is_fine("a=\x01"));
    cr_assert(!fg_tracestate_is_fine("a=\xC3\xA9"));
}
