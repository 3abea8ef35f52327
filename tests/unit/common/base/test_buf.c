#include "common/base/buf.h"

#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

Test(buf, grows_and_stays_terminated)
{
    fg_buf buf;
    fg_buf_init(&buf, 0);
    for (int i = 0; i < 1000; i++) {
        cr_assert(fg_buf_printf(&buf, "%d,", i));
        cr_assert_eq(buf.data[buf.size], '\0');
    }
    cr_assert_eq(strncmp(buf.data, "0,1,2,3,", 8), 0);
    cr_assert_eq(strlen(buf.data), buf.size);
    fg_buf_clear(&buf);
    cr_assert(fg_buf_puts(&buf, "a") && fg_buf_putc(&buf, 'b') && fg_buf_append(&buf, "", 0));
    cr_assert_str_eq(buf.data, "ab");
    fg_buf_deinit(&buf);
}

Test(buf, failure_is_sticky_until_cleared)
{
    fg_buf buf;
    fg_buf_init(&buf, 8);
    cr_assert(fg_buf_puts(&buf, "12345678"));
    cr_assert(!fg_buf_putc(&buf, '9'));
    cr_assert(buf.failed);
    cr_assert(!fg_buf_append(&buf, "", 0));
    cr_assert_str_eq(buf.data, "12345678");
    fg_buf_clear(&buf);
    cr_assert(fg_buf_puts(&buf, "again"));
    fg_buf_deinit(&buf);
}

Test(buf, refuses_sizes_that_overflow)
{
    fg_buf buf;
    fg_buf_init(&buf, 0);
    fg_buf_puts(&buf, "x");
    cr_assert_null(fg_buf_reserve(&buf, SIZE_MAX));
    fg_buf_clear(&buf);
    fg_buf_puts(&buf, "x");
    cr_assert_null(fg_buf_reserve(&buf, SIZE_MAX - 1));
    fg_buf_clear(&buf);
    cr_assert_null(fg_buf_reserve(&buf, SIZE_MAX));
    fg_buf_deinit(&buf);
}

Test(buf, consumes_from_the_front)
{
    fg_buf buf;
    fg_buf_init(&buf, 0);
    fg_buf_puts(&buf, "hello world");
    fg_buf_consume(&buf, 6);
    cr_assert_str_eq(buf.data, "world");
    fg_buf_consume(&buf, 0);
    cr_assert_str_eq(buf.data, "world");
    fg_buf_consume(&buf, 99);
    cr_assert_eq(buf.size, 0);
    cr_assert_str_eq(buf.data, "");
    fg_buf_deinit(&buf);
    fg_buf_init(&buf, 0);
    fg_buf_consume(&buf, 1);
    fg_buf_deinit(&buf);
}

#define BAD "\xEF\xBF\xBD"

static const struct {
    const char *name, *text, *want;
    size_t length;
} escapes[] = {
    { "plain", "abc", "abc", 3 },
    { "quotes and slashes", "\"\\/", "\\\"\\\\/", 3 },
    { "named controls", "\n\r\t", "\\n\\r\\t", 3 },
    { "other controls", "\x01\x1F\x7F", "\\u0001\\u001f\x7F", 3 },
    { "NUL", "a\0b", "a\\u0000b", 3 },
    { "two, three and four bytes", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80",
      "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 9 },
    { "lone continuation", "a\x80z", "a" BAD "z", 3 },
    { "cut off at the end", "a\xE2\x82", "a" BAD BAD, 3 },
    { "cut off before ascii", "\xE2\x82x", BAD BAD "x", 3 },
    { "overlong", "\xC0\xAF", BAD BAD, 2 },
    { "surrogate", "\xED\xA0\x80", BAD BAD BAD, 3 },
    { "beyond unicode", "\xF4\x90\x80\x80", BAD BAD BAD BAD, 4 },
    { "never a byte of utf-8", "\xFF\xFE", BAD BAD, 2 },
    { "nothing", "", "", 0 },
};

Test(buf, escapes_json)
{
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        fg_buf buf;
        fg_buf_init(&buf, 0);
        fg_buf_puts(&buf, "");
        cr_assert(fg_buf_json_escape(&buf, escapes[i].text, escapes[i].length));
        cr_assert_str_eq(buf.data, escapes[i].want, "%s", escapes[i].name);
        fg_buf_deinit(&buf);
    }
}

static bool build(void *ctx)
{
    fg_buf buf;
    fg_buf_init(&buf, 0);
    for (int i = 0; i < 100; i++) {
        fg_buf_printf(&buf, "line %d\n", i);
        fg_buf_json_escape(&buf, "\"x\"", 3);
    }
    bool fine = !buf.failed;
    fg_buf_deinit(&buf);
    return fine;
}

Test(buf, survives_every_failed_allocation)
{
    cr_assert(fg_fault_each(build, NULL) > 2);
}
