#include "common/obs/otlp.h"

#include <inttypes.h>
#include <string.h>

void fg_otlp_add_text(fg_otlp_span *span, const char *key, const char *text)
{
    if (span->attr_count < FG_OTLP_ATTRS_MAX) {
        span->attrs[span->attr_count++] = (fg_otlp_attr){ .key = key, .text = text };
    }
}

void fg_otlp_add_number(fg_otlp_span *span, const char *key, uint64_t number)
{
    if (span->attr_count < FG_OTLP_ATTRS_MAX) {
        int64_t value = number > INT64_MAX ? INT64_MAX : (int64_t)number;
        span->attrs[span->attr_count++] = (fg_otlp_attr){ .key = key, .number = value };
    }
}

/* The inside of a string; a long one ends before the character that it would cut. */
static void put_text(fg_buf *out, const char *text)
{
    size_t length = strnlen(text, FG_OTLP_TEXT_MAX + 1);
    if (length > FG_OTLP_TEXT_MAX) {
        length = FG_OTLP_TEXT_MAX;
        while (length > FG_OTLP_TEXT_MAX - 4 && ((unsigned char)text[length] & 0xC0) == 0x80) {
            length--;
        }
    }
    fg_buf_json_escape(out, text, length);
}

/* 64-bit numbers are texts in the JSON form of protobuf. */
static void put_attr(fg_buf *out, const fg_otlp_attr *attr, bool first)
{
    fg_buf_puts(out, first ? "{\"key\":\"" : ",{\"key\":\"");
    put_text(out, attr->key);
    if (attr->text != NULL) {
        fg_buf_puts(out, "\",\"value\":{\"stringValue\":\"");
        put_text(out, attr->text);
        fg_buf_puts(out, "\"}}");
    } else {
        fg_buf_printf(out, "\",\"value\":{\"intValue\":\"%" PRId64 "\"}}", attr->number);
    }
}

void fg_otlp_begin_line(const fg_otlp_process *process, fg_buf *out)
{
    const fg_otlp_attr attrs[] = {
        { .key = "service.name", .text = "forge" },
        { .key = "service.instance.id", .text = process->instance },
        { .key = "forge.role", .text = process->role },
        { .key = "process.pid", .number = (int64_t)process->pid },
    };
    fg_buf_puts(out, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    for (size_t i = 0; i < sizeof attrs / sizeof attrs[0]; i++) {
        put_attr(out, &attrs[i], i == 0);
    }
    fg_buf_puts(out, "]},\"scopeSpans\":[{\"scope\":{\"name\":\"forge\"},\"spans\":[");
}

void fg_otlp_put_span(const fg_otlp_span *span, int64_t offset_ns, bool first, fg_buf *out)
{
    fg_buf_printf(out,
                  "%s{\"traceId\":\"%016" PRIx64 "%016" PRIx64 "\",\"spanId\":\"%016" PRIx64 "\"",
                  first ? "" : ",", span->trace_high, span->trace_low, span->id);
    if (span->parent != 0) {
        fg_buf_printf(out, ",\"parentSpanId\":\"%016" PRIx64 "\"", span->parent);
    }
    if (span->trace_state != NULL && span->trace_state[0] != '\0') {
        fg_buf_puts(out, ",\"traceState\":\"");
        put_text(out, span->trace_state);
        fg_buf_putc(out, '"');
    }
    fg_buf_puts(out, ",\"name\":\"");
    put_text(out, span->name);
    fg_buf_printf(out,
                  "\",\"kind\":%d,\"startTimeUnixNano\":\"%" PRIu64
                  "\",\"endTimeUnixNano\":\"%" PRIu64 "\",\"attributes\":[",
                  (int)span->kind, span->began_ns + (uint64_t)offset_ns,
                  span->ended_ns + (uint64_t)offset_ns);
    for (uint32_t i = 0; i < span->attr_count; i++) {
        put_attr(out, &span->attrs[i], i == 0);
    }
    fg_buf_putc(out, ']');
    if (span->problem != NULL) {
        fg_buf_puts(out, ",\"status\":{\"code\":2,\"message\":\"");
        put_text(out, span->problem);
        fg_buf_puts(out, "\"}");
    }
    fg_buf_putc(out, '}');
}

void fg_otlp_end_line(fg_buf *out)
{
    fg_buf_puts(out, "]}]}]}\n");
}
