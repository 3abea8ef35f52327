#include "common/model/stop.h"

#include <stdint.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"

enum { STRINGS_MAX = 4 };

static fg_stop *make(const char *const *strings, size_t count)
{
    size_t lengths[STRINGS_MAX];
    for (size_t i = 0; i < count; i++) {
        lengths[i] = strlen(strings[i]);
    }
    fg_stop *stop = NULL;
    fg_error err;
    cr_assert_eq(fg_stop_create(strings, lengths, count, &stop, &err), FG_OK);
    return stop;
}

/* What the whole text shows, by plain search: the match with the earliest end, longest among equals. */
static size_t shown_of(const char *text, size_t length, const char *const *strings, size_t count,
                       int *index_out)
{
    *index_out = -1;
    for (size_t end = 1; end <= length; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < count; i++) {
            size_t size = strlen(strings[i]);
            if (size <= end && size > longest && memcmp(text + end - size, strings[i], size) == 0) {
                longest = size;
                *index_out = (int)i;
            }
        }
        if (longest > 0) {
            return end - longest;
        }
    }
    return length;
}

static const struct {
    const char *name;
    const char *strings[STRINGS_MAX];
    size_t count;
    const char *text;
    const char *shown;
    int index;
} cases[] = {
    { "no strings", { NULL }, 0, "all of it", "all of it", -1 },
    { "absent", { "zzz" }, 1, "all of it", "all of it", -1 },
    { "in the middle", { "STOP" }, 1, "go STOP on", "go ", 0 },
    { "at the start", { "go" }, 1, "go on", "", 0 },
    { "at the end", { "on" }, 1, "go on", "go ", 0 },
    { "beginning only, at the end", { "STOP" }, 1, "go STO", "go STO", -1 },
    { "false start", { "aab" }, 1, "aaab", "a", 0 },
    { "repeated false start", { "ababac" }, 1, "abababac!", "ab", 0 },
    { "earliest end wins", { "bcde", "cd" }, 2, "abcdef", "ab", 1 },
    { "same end, longest wins", { "cd", "bcd" }, 2, "abcdef", "a", 1 },
    { "the shorter ends first", { "abc", "ab" }, 2, "xabc", "x", 1 },
    { "two the same", { "ab", "ab" }, 2, "xab", "x", 0 },
    { "many bytes of one character", { "\xF0\x9F\xA6\x99" }, 1, "a\xF0\x9F\xA6\x99z", "a", 0 },
};

Test(stop, shows_text_up_to_the_first_stop_string_at_every_split)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t length = strlen(cases[i].text);
        for (size_t cut = 0; cut <= length; cut++) {
            fg_stop *stop = make(cases[i].strings, cases[i].count);
            fg_buf out;
            fg_buf_init(&out, 0);
            fg_buf_puts(&out, "");
            bool first = fg_stop_push(stop, cases[i].text, cut, &out);
            bool second = fg_stop_push(stop, cases[i].text + cut, length - cut, &out);
            cr_assert(!first || second, "%s: a stop was forgotten", cases[i].name);
            cr_assert_eq(second, cases[i].index >= 0, "%s", cases[i].name);
            fg_stop_finish(stop, &out);
            cr_assert_str_eq(out.data, cases[i].shown, "%s, cut at %zu", cases[i].name, cut);
            cr_assert_eq(fg_stop_matched(stop), cases[i].index, "%s", cases[i].name);
            fg_buf_deinit(&out);
            fg_stop_destroy(stop);
        }
    }
}

Test(stop, holds_back_no_more_than_a_possible_beginning)
{
    const char *strings[] = { "abcd", "xy" };
    fg_stop *stop = make(strings, 2);
    fg_buf out;
    fg_buf_init(&out, 0);
    static const struct {
        const char *push, *shown;
    } steps[] = {
        { "12a", "12" },         { "b", "12" },
        { "c", "12" },           { "x", "12abc" },
        { "z", "12abcxz" },      { "ab", "12abcxz" },
        { "a", "12abcxzab" },    { "bcx", "12abcxzababc" },
        { "y", "12abcxzababc" },
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        fg_stop_push(stop, steps[i].push, strlen(steps[i].push), &out);
        cr_assert_str_eq(out.data, steps[i].shown, "step %zu", i);
    }
    cr_assert_eq(fg_stop_matched(stop), 1);
    cr_assert(fg_stop_push(stop, "more", 4, &out));
    fg_stop_finish(stop, &out);
    cr_assert_str_eq(out.data, "12abcxzababc");
    fg_buf_deinit(&out);
    fg_stop_destroy(stop);
}

/* A text over a tiny alphabet, so that beginnings and overlaps are common. */
static void random_text(fg_rng *rng, char *out, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        out[i] = (char)('a' + fg_rng_below(rng, 3) * fg_rng_below(rng, 2));
    }
    out[length] = '\0';
}

/* Beginnings of the strings, one after the other, and a few letters between. */
static void near_misses(fg_rng *rng, const char *const *strings, size_t count, char *out,
                        size_t length)
{
    random_text(rng, out, length);
    for (size_t at = 0; count > 0 && at < length;) {
        const char *string = strings[fg_rng_below(rng, count)];
        size_t size = fg_rng_below(rng, strlen(string) + 1);
        size = size < length - at ? size : length - at;
        memcpy(out + at, string, size);
        at += size + fg_rng_below(rng, 2);
    }
}

Test(stop, equals_a_search_of_the_whole_text)
{
    uint64_t seed = test_seed(__func__);
    fg_rng rng = { seed };
    for (int round = 0; round < 20000; round++) {
        char strings[STRINGS_MAX][16];
        const char *pointers[STRINGS_MAX];
        size_t count = fg_rng_below(&rng, STRINGS_MAX + 1);
        for (size_t i = 0; i < count; i++) {
            random_text(&rng, strings[i], 1 + fg_rng_below(&rng, 14));
            pointers[i] = strings[i];
        }
        char text[64];
        near_misses(&rng, pointers, count, text, fg_rng_below(&rng, sizeof(text)));
        size_t length = strlen(text);
        int want_index;
        size_t want = shown_of(text, length, pointers, count, &want_index);
        fg_stop *stop = make(pointers, count);
        fg_buf out;
        fg_buf_init(&out, 0);
        bool stopped = false;
        for (size_t at = 0; at < length && !stopped;) {
            size_t size = fg_rng_below(&rng, 5);
            size = size < length - at ? size : length - at;
            stopped = fg_stop_push(stop, text + at, size, &out);
            at += size;
            cr_assert(out.size <= want, "seed %llu: leaked", (unsigned long long)seed);
        }
        fg_stop_finish(stop, &out);
        cr_assert_eq(out.size, want, "seed %llu: %zu of %zu shown", (unsigned long long)seed,
                     out.size, want);
        cr_assert(out.size == 0 || memcmp(out.data, text, want) == 0);
        cr_assert_eq(stopped, want_index >= 0);
        cr_assert(want_index < 0 ||
                  strcmp(pointers[fg_stop_matched(stop)], pointers[want_index]) == 0);
        fg_buf_deinit(&out);
        fg_stop_destroy(stop);
    }
}

Test(stop, refuses_empty_long_and_too_many_strings)
{
    static char long_text[FG_LIMIT_STOP_BYTES + 1];
    memset(long_text, 'x', sizeof(long_text));
    const char *strings[FG_LIMIT_STOP_STRINGS + 1];
    size_t lengths[FG_LIMIT_STOP_STRINGS + 1];
    for (size_t i = 0; i <= FG_LIMIT_STOP_STRINGS; i++) {
        strings[i] = long_text;
        lengths[i] = FG_LIMIT_STOP_BYTES;
    }
    fg_stop *stop = NULL;
    fg_error err;
    cr_assert_eq(fg_stop_create(strings, lengths, FG_LIMIT_STOP_STRINGS + 1, &stop, &err),
                 FG_BAD_INPUT);
    cr_assert_eq(fg_stop_create(strings, lengths, FG_LIMIT_STOP_STRINGS, &stop, &err), FG_OK);
    fg_stop_destroy(stop);
    stop = NULL;
    lengths[3] = 0;
    cr_assert_eq(fg_stop_create(strings, lengths, 4, &stop, &err), FG_BAD_INPUT);
    lengths[3] = FG_LIMIT_STOP_BYTES + 1;
    cr_assert_eq(fg_stop_create(strings, lengths, 4, &stop, &err), FG_BAD_INPUT);
    cr_assert_null(stop);
    fg_stop_destroy(NULL);
}

static bool try_create(void *ctx)
{
    const char *strings[] = { "one", "two" };
    const size_t lengths[] = { 3, 3 };
    fg_stop *stop = NULL;
    fg_error err;
    if (fg_stop_create(strings, lengths, 2, &stop, &err) != FG_OK) {
        return false;
    }
    fg_stop_destroy(stop);
    return true;
}

Test(stop, create_survives_every_failed_allocation)
{
    cr_assert(fg_fault_each(try_create, NULL) >= 6);
}
