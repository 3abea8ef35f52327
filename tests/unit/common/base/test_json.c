#include "common/base/json.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "tests/support/test.h"

static const struct {
    const char *name, *text;
    size_t length; /* 0: strlen */
} refused[] = {
    { "empty", "", 0 },
    { "only space", " \n", 0 },
    { "duplicate key", "{\"a\":1,\"a\":2}", 0 },
    { "duplicate key, escaped", "{\"a\":1,\"\\u0061\":2}", 0 },
    { "NaN", "[NaN]", 0 },
    { "Infinity", "[Infinity]", 0 },
    { "number beyond double", "[1e999]", 0 },
    { "integer beyond 2^63", "[9223372036854775808]", 0 },
    { "integer below -2^63", "[-9223372036854775809]", 0 },
    { "leading zero", "[01]", 0 },
    { "plus sign", "[+1]", 0 },
    { "bare point", "[1.]", 0 },
    { "hex", "[0x10]", 0 },
    { "invalid utf-8", "[\"\xFF\"]", 0 },
    { "overlong utf-8", "[\"\xC0\xAF\"]", 0 },
    { "surrogate in utf-8", "[\"\xED\xA0\x80\"]", 0 },
    { "cut off utf-8", "[\"\xE2\x82\"]", 0 },
    { "lone high surrogate", "[\"\\uD800\"]", 0 },
    { "lone low surrogate", "[\"\\uDC00\"]", 0 },
    { "swapped surrogates", "[\"\\uDC00\\uD800\"]", 0 },
    { "escaped NUL", "[\"a\\u0000b\"]", 0 },
    { "raw NUL in a string", "[\"a\0b\"]", 7 },
    { "raw newline in a string", "[\"a\nb\"]", 0 },
    { "raw control in a string", "[\"a\x01\"]", 0 },
    { "text after the value", "{} x", 0 },
    { "second value", "{}{}", 0 },
    { "NUL after the value", "{}\0", 3 },
    { "trailing comma", "[1,]", 0 },
    { "trailing comma in object", "{\"a\":1,}", 0 },
    { "missing colon", "{\"a\" 1}", 0 },
    { "single quotes", "{'a':1}", 0 },
    { "comment", "[1/*x*/]", 0 },
    { "unknown escape", "[\"\\x\"]", 0 },
    { "open string", "[\"abc", 0 },
    { "escaped line end", "[\"abc\\\n\"]", 0 },
    { "open escape", "[\"abc\\", 0 },
    { "open object", "{\"a\":", 0 },
    { "closed twice", "[]]", 0 },
    { "wrong bracket", "[1}", 0 },
    { "python's True", "[True]", 0 },
    { "byte order mark", "\xEF\xBB\xBF{}", 0 },
    { "key is no string", "{1:2}", 0 },
};

Test(json, refuses_with_one_line_that_says_where)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        fg_json *json = NULL;
        fg_error err = { 0 };
        size_t length = refused[i].length != 0 ? refused[i].length : strlen(refused[i].text);
        cr_assert_eq(fg_json_parse(refused[i].text, length, &json, &err), FG_BAD_INPUT, "%s",
                     refused[i].name);
        cr_assert_null(json, "%s", refused[i].name);
        cr_assert_not_null(strstr(err.text, "position"), "%s: %s", refused[i].name, err.text);
        cr_assert_null(strchr(err.text, '\n'), "%s: %s", refused[i].name, err.text);
    }
}

Test(json, says_line_and_column)
{
    fg_json *json;
    fg_error err;
    const char *text = "{\n  \"a\": 1,\n  \"b\": x\n}";
    cr_assert_eq(fg_json_parse(text, strlen(text), &json, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "line 3"), "%s", err.text);
}

static void nest(fg_buf *text, size_t depth, char open, char close)
{
    for (size_t i = 0; i < depth; i++) {
        fg_buf_puts(text, open == '{' ? "{\"k\":" : "[");
    }
    fg_buf_puts(text, "\"[[[{{{\"");
    for (size_t i = 0; i < depth; i++) {
        fg_buf_putc(text, close);
    }
}

Test(json, nests_up_to_the_limit)
{
    static const struct {
        size_t depth;
        char open, close;
        fg_status want;
    } cases[] = {
        { FG_LIMIT_JSON_DEPTH, '[', ']', FG_OK },
        { FG_LIMIT_JSON_DEPTH + 1, '[', ']', FG_BAD_INPUT },
        { FG_LIMIT_JSON_DEPTH, '{', '}', FG_OK },
        { FG_LIMIT_JSON_DEPTH + 1, '{', '}', FG_BAD_INPUT },
        { 1000000, '[', ']', FG_BAD_INPUT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_buf text;
        fg_json *json = NULL;
        fg_buf_init(&text, 0);
        nest(&text, cases[i].depth, cases[i].open, cases[i].close);
        cr_assert_eq(fg_json_parse(text.data, text.size, &json, NULL), cases[i].want, "case %zu",
                     i);
        fg_json_destroy(json);
        fg_buf_deinit(&text);
    }
}

Test(json, reads_every_type)
{
    const char *text = "{\"s\":\"h\\u00e9\\ud83d\\ude00\",\"i\":-9223372036854775808,\"r\":2.5e3,"
                       "\"t\":true,\"f\":false,\"n\":null,\"a\":[1,2,3],\"o\":{\"x\":{}}}";
    fg_json *json = NULL;
    fg_error err = { 0 };
    cr_assert_eq(fg_json_parse(text, strlen(text), &json, &err), FG_OK, "%s", err.text);
    const fg_json_node *root = fg_json_root(json);
    size_t length = 0;
    int64_t integer = 0;
    double number = 0;
    bool truth = false;
    cr_assert_eq(fg_json_size(root), 8);
    cr_assert_str_eq(fg_json_string(fg_json_get(root, "s"), &length), "h\xC3\xA9\xF0\x9F\x98\x80");
    cr_assert_eq(length, 7);
    cr_assert(fg_json_integer(fg_json_get(root, "i"), &integer) && integer == INT64_MIN);
    cr_assert(fg_json_number(fg_json_get(root, "r"), &number) && number == 2500.0);
    cr_assert(!fg_json_integer(fg_json_get(root, "r"), &integer));
    cr_assert(fg_json_bool(fg_json_get(root, "t"), &truth) && truth);
    cr_assert(fg_json_bool(fg_json_get(root, "f"), &truth) && !truth);
    cr_assert(fg_json_is(fg_json_get(root, "n"), FG_JSON_NULL));
    const fg_json_node *array = fg_json_get(root, "a");
    cr_assert_eq(fg_json_size(array), 3);
    cr_assert(fg_json_number(fg_json_at(array, 2), &number) && number == 3.0);
    cr_assert_null(fg_json_at(array, 3));
    cr_assert_eq(fg_json_size(fg_json_get(fg_json_get(root, "o"), "x")), 0);
    fg_json_destroy(json);
    fg_json_destroy(NULL);
}

Test(json, absent_and_wrong_types_have_no_value)
{
    const char *text = "{\"s\":\"x\",\"a\":[0]}";
    fg_json *json = NULL;
    cr_assert_eq(fg_json_parse(text, strlen(text), &json, NULL), FG_OK);
    const fg_json_node *root = fg_json_root(json);
    const fg_json_node *string = fg_json_get(root, "s");
    int64_t integer;
    double number;
    bool truth;
    void *cursor = NULL;
    const char *key;
    cr_assert_null(fg_json_get(root, "absent"));
    cr_assert_null(fg_json_get(string, "s"));
    cr_assert_null(fg_json_get(NULL, "s"));
    cr_assert_null(fg_json_at(root, 0));
    cr_assert_null(fg_json_at(NULL, 0));
    cr_assert_null(fg_json_string(root, NULL));
    cr_assert_null(fg_json_string(NULL, NULL));
    cr_assert_null(fg_json_next(string, &cursor, &key));
    cr_assert_null(fg_json_next(NULL, &cursor, &key));
    cr_assert_eq(fg_json_size(string), 0);
    cr_assert_eq(fg_json_size(NULL), 0);
    cr_assert(!fg_json_integer(string, &integer) && !fg_json_integer(NULL, &integer));
    cr_assert(!fg_json_number(string, &number) && !fg_json_number(NULL, &number));
    cr_assert(!fg_json_bool(string, &truth) && !fg_json_bool(NULL, &truth));
    cr_assert_eq(fg_json_type_of(NULL), FG_JSON_ABSENT);
    cr_assert_str_eq(fg_json_type_name(fg_json_type_of(string)), "string");
    fg_json_destroy(json);
}

Test(json, walks_members_in_the_order_of_the_text)
{
    const char *text = "{\"z\":0,\"a\":1,\"m\":2,\"b\":3}";
    static const char *const want[] = { "z", "a", "m", "b" };
    fg_json *json = NULL;
    cr_assert_eq(fg_json_parse(text, strlen(text), &json, NULL), FG_OK);
    void *cursor = NULL;
    const char *key;
    int64_t count = 0;
    for (const fg_json_node *value;
         (value = fg_json_next(fg_json_root(json), &cursor, &key)) != NULL; count++) {
        int64_t integer = -1;
        cr_assert_str_eq(key, want[count]);
        cr_assert(fg_json_integer(value, &integer) && integer == count);
    }
    cr_assert_eq(count, 4);
    fg_json_destroy(json);
}

Test(json, takes_any_value_at_the_top)
{
    static const char *const texts[] = { "1", "\"x\"", "null", " [ ] ", "true" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fg_json *json = NULL;
        cr_assert_eq(fg_json_parse(texts[i], strlen(texts[i]), &json, NULL), FG_OK, "%s", texts[i]);
        fg_json_destroy(json);
    }
}

static bool parse(void *ctx)
{
    const char *text = ctx;
    fg_json *json = NULL;
    fg_status status = fg_json_parse(text, strlen(text), &json, NULL);
    cr_assert(status == FG_OK || status == FG_AGAIN, "status %s", fg_status_name(status));
    fg_json_destroy(json);
    return status == FG_OK;
}

Test(json, survives_every_failed_allocation)
{
    char text[] =
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a long text that "
        "does not fit into a small buffer\"}],\"n\":[1,2.5,true,null,[1,2,3,4,5,6,7,8,9]]}";
    cr_assert(fg_fault_each(parse, text) > 10);
}

static fg_status parse_many(const char *item, size_t count)
{
    fg_buf text;
    fg_json *json;
    fg_error err;
    fg_buf_init(&text, 0);
    fg_buf_puts(&text, "[");
    for (size_t i = 0; i < count; i++) {
        fg_buf_puts(&text, item);
    }
    fg_buf_puts(&text, "0]");
    fg_status status = fg_json_parse(text.data, text.size, &json, &err);
    if (status == FG_OK) {
        fg_json_destroy(json);
    }
    fg_buf_deinit(&text);
    return status;
}

static const struct {
    const char *text;
    size_t count;
} lists[] = {
    { "{\"p\":[1,2,3]}", 3 },
    { " { \"a\" : 1, \"p\" :\n[ 1 , 2 ] , \"b\":[1,2,3,4]}", 2 },
    { "{\"p\":[[1,2,3]]}", 3 },
    { "{\"a\":{\"p\":[1,2,3]}}", 0 },
    { "{\"a\":\"p\",\"b\":[1,2]}", 0 },
    { "{\"a\":\"\\\"p\\\":[1,2\"}", 0 },
    { "{\"pp\":[1,2]}", 0 },
    { "{\"p\":\"[1,2]\"}", 0 },
    { "{\"p\":[\"a,b\",\"c\"]}", 2 },
    { "{\"p\":[1],\"p\":[1,2]}", 1 },
    { "{\"p\":\"\",\"p\":[1,2]}", 2 },
    { "{\"p\":\"\\\"\",\"a\":\"[\",\"p\":[1,2]}", 2 },
    { "{\"p\":5,\"p\":[1,2]}", 2 },
    { "{\"p\":[1,2", 2 },
    { "{\"p\":", 0 },
    { "{\"p\"", 0 },
    { "{\"p", 0 },
    { "{\"p\\", 0 },
    { "]]}{\"p\":[1,2]", 2 },
    { "[\"p\",[1,2]]", 0 },
    { "", 0 },
};

/* Each at the end of its memory, so that whoever reads beyond it is seen by a sanitizer. */
Test(json, counts_a_list_that_is_too_long_to_parse)
{
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        size_t length = strlen(lists[i].text);
        char *text = fg_mem_alloc(length + 1);
        memcpy(text, lists[i].text, length);
        size_t count = fg_json_count_list(text, length, "p");
        cr_assert_eq(count, lists[i].count, "%s: %zu", lists[i].text, count);
        fg_mem_free(text);
    }
}

Test(json, more_values_than_any_request_needs_are_refused)
{
    cr_assert_eq(parse_many("{},", FG_LIMIT_JSON_GROUPS - 1), FG_OK);
    cr_assert_eq(parse_many("{},", FG_LIMIT_JSON_GROUPS), FG_BAD_INPUT);
    cr_assert_eq(parse_many("1,", 100000), FG_OK);
    cr_assert_eq(parse_many("1,", FG_LIMIT_JSON_VALUES + 1), FG_BAD_INPUT);
    cr_assert_eq(parse_many("\"{,{,{,\",", 100000), FG_OK, "text is no structure");
}
