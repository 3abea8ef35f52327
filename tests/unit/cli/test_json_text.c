#include "cli/json_text.h"

#include <string.h>

#include "tests/support/test.h"

Test(json_text, comes_out_as_it_went_in)
{
    static const struct {
        const char *in, *out; /* NULL: the same */
    } rows[] = {
        { "{}", NULL },
        { "[]", NULL },
        { "null", NULL },
        { "[true,false,null]", NULL },
        { "{\"b\":1,\"a\":{\"z\":[1,[2,{}]]}}", NULL },
        { "\"a \\\"b\\\" \\\\ \\n\"", NULL },
        { "\"gr\xC3\xBC\xC3\x9F\"", NULL },
        { "9223372036854775807", NULL },
        { "-9223372036854775808", NULL },
        { "0.1", NULL },
        { "1e300", "1e+300" },
        { "0.30000000000000004", NULL },
        { "2.0", NULL },
        { "-0.0", NULL },
        { "1000250.002", NULL },
        { "123456789012.345", NULL },
        { " { \"a\" : [ 1 ,\n 2 ] } ", "{\"a\":[1,2]}" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_json *json = NULL;
        fg_buf out;
        fg_buf_init(&out, 0);
        cr_assert_eq(fg_json_parse(rows[i].in, strlen(rows[i].in), &json, NULL), FG_OK, "%s",
                     rows[i].in);
        cr_assert(fg_json_text_write(fg_json_root(json), &out));
        cr_assert_str_eq(out.data, rows[i].out == NULL ? rows[i].in : rows[i].out);
        fg_json_destroy(json);
        fg_buf_deinit(&out);
    }
}

Test(json_text, a_full_buffer_is_false)
{
    fg_json *json = NULL;
    fg_buf out;
    fg_buf_init(&out, 5);
    cr_assert_eq(fg_json_parse("[1,2,3,4]", 9, &json, NULL), FG_OK);
    cr_assert(!fg_json_text_write(fg_json_root(json), &out));
    fg_json_destroy(json);
    fg_buf_deinit(&out);
}
