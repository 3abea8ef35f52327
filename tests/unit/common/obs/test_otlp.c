#include "common/obs/otlp.h"

#include <string.h>

#include "common/base/json.h"
#include "tests/support/test.h"

static const fg_otlp_process process = { .instance = "d\"0", .role = "decode", .pid = 42 };

static fg_otlp_span any_span(void)
{
    return (fg_otlp_span){ .trace_high = 0x0af7651916cd43dd,
                           .trace_low = 0x8448eb211c80319c,
                           .id = 0x1,
                           .name = "decode",
                           .kind = FG_OTLP_INTERNAL,
                           .began_ns = 5,
                           .ended_ns = 7 };
}

static void put_line(fg_buf *out, const fg_otlp_span *span, uint32_t count)
{
    fg_buf_init(out, 0);
    fg_otlp_begin_line(&process, out);
    for (uint32_t i = 0; i < count; i++) {
        fg_otlp_put_span(&span[i], 1700000000000000000, i == 0, out);
    }
    fg_otlp_end_line(out);
    cr_assert(!out->failed);
}

/* Written by hand from the protocol's description. */
Test(otlp, a_line_is_one_request_object)
{
    fg_buf out;
    fg_otlp_span spans[2] = { any_span(), any_span() };
    spans[0].kind = FG_OTLP_SERVER;
    spans[0].name = "POST /v1/completions";
    spans[0].trace_state = "a=b";
    fg_otlp_add_text(&spans[0], "gen_ai.request.model", "m");
    fg_otlp_add_number(&spans[0], "tokens", 12);
    spans[1].id = 0xb7ad6b7169203331;
    spans[1].parent = 1;
    spans[1].problem = "worker \"p0\" was lost";
    put_line(&out, spans, 2);
    cr_assert_str_eq(
        out.data,
        "{\"resourceSpans\":[{\"resource\":{\"attributes\":["
        "{\"key\":\"service.name\",\"value\":{\"stringValue\":\"forge\"}},"
        "{\"key\":\"service.instance.id\",\"value\":{\"stringValue\":\"d\\\"0\"}},"
        "{\"key\":\"forge.role\",\"value\":{\"stringValue\":\"decode\"}},"
        "{\"key\":\"process.pid\",\"value\":{\"intValue\":\"42\"}}]},"
        "\"scopeSpans\":[{\"scope\":{\"name\":\"forge\"},\"spans\":["
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"0000000000000001\","
        "\"traceState\":\"a=b\",\"name\":\"POST /v1/completions\",\"kind\":2,"
        "\"startTimeUnixNano\":\"1700000000000000005\",\"endTimeUnixNano\":\"1700000000000000007\","
        "\"attributes\":[{\"key\":\"gen_ai.request.model\",\"value\":{\"stringValue\":\"m\"}},"
        "{\"key\":\"tokens\",\"value\":{\"intValue\":\"12\"}}]},"
        "{\"traceId\":\"0af7651916cd43dd8448eb211c80319c\",\"spanId\":\"b7ad6b7169203331\","
        "\"parentSpanId\":\"0000000000000001\",\"name\":\"decode\",\"kind\":1,"
        "\"startTimeUnixNano\":\"1700000000000000005\",\"endTimeUnixNano\":\"1700000000000000007\","
        "\"attributes\":[],\"status\":{\"code\":2,\"message\":\"worker \\\"p0\\\" was lost\"}}"
        "]}]}]}\n");
    fg_buf_deinit(&out);
}

/* The value of the first span's first attribute, after a strict reader has read the line. */
static const fg_json_node *first_value(fg_json **json_out, const fg_buf *out)
{
    fg_error err = { 0 };
    cr_assert_eq(fg_json_parse(out->data, out->size, json_out, &err), FG_OK, "%s in %s", err.text,
                 out->data);
    const fg_json_node *at = fg_json_root(*json_out);
    static const char *const path[] = { "resourceSpans", "scopeSpans", "spans", "attributes" };
    for (size_t i = 0; i < sizeof path / sizeof path[0]; i++) {
        at = fg_json_at(fg_json_get(at, path[i]), 0);
    }
    return fg_json_get(fg_json_get(at, "value"), "stringValue");
}

Test(otlp, hostile_texts_stay_texts)
{
    static const struct {
        const char *name, *text, *want;
    } cases[] = {
        { "quotes and backslashes", "a\"},{\\", "a\"},{\\" },
        { "controls", "a\n\r\t\x01z", "a\n\r\t\x01z" },
        { "a lone byte", "a\xFFz", "a\xEF\xBF\xBDz" },
        { "a cut character", "a\xE2\x82", "a\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "a surrogate", "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" },
        { "beyond ASCII", "gr\xC3\xBC\xC3\x9F", "gr\xC3\xBC\xC3\x9F" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_buf out;
        fg_json *json;
        fg_otlp_span span = any_span();
        fg_otlp_add_text(&span, "k", cases[i].text);
        span.name = cases[i].text;
        span.problem = cases[i].text;
        span.trace_state = cases[i].text;
        put_line(&out, &span, 1);
        cr_assert_str_eq(fg_json_string(first_value(&json, &out), NULL), cases[i].want, "%s",
                         cases[i].name);
        cr_assert_eq(strchr(out.data, '\n'), out.data + out.size - 1, "%s: one line",
                     cases[i].name);
        fg_json_destroy(json);
        fg_buf_deinit(&out);
    }
}

Test(otlp, a_long_text_is_cut_between_characters)
{
    char text[FG_OTLP_TEXT_MAX + 10];
    for (size_t shift = 0; shift < 3; shift++) {
        fg_buf out;
        fg_json *json;
        size_t length;
        memset(text, 'a', shift);
        for (size_t at = shift; at + 3 < sizeof text; at += 3) {
            memcpy(text + at, "\xE2\x82\xAC\0", 4);
        }
        fg_otlp_span span = any_span();
        fg_otlp_add_text(&span, "k", text);
        put_line(&out, &span, 1);
        const char *have = fg_json_string(first_value(&json, &out), &length);
        cr_assert_null(strstr(have, "\xEF\xBF\xBD"), "half a character");
        cr_assert(length <= FG_OTLP_TEXT_MAX && length + 3 > FG_OTLP_TEXT_MAX, "%zu", length);
        fg_json_destroy(json);
        fg_buf_deinit(&out);
    }
}

Test(otlp, more_attributes_than_there_is_room_for_are_left_out)
{
    fg_otlp_span span = any_span();
    for (uint32_t i = 0; i < 2 * FG_OTLP_ATTRS_MAX; i++) {
        fg_otlp_add_number(&span, "n", UINT64_MAX);
        fg_otlp_add_text(&span, "t", "x");
    }
    cr_assert_eq(span.attr_count, (uint32_t)FG_OTLP_ATTRS_MAX);
    cr_assert_eq(span.attrs[0].number, INT64_MAX, "too large a number is the largest");
}
