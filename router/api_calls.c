/* Calls of tools in answers. */
#include <inttypes.h>
#include <string.h>

#include "common/base/hash.h"
#include "router/api_internal.h"

/* An id that no other call of a conversation has: it follows from the request's, which is drawn. */
static void put_id(fg_buf *out, const fg_request *request, uint32_t choice, uint32_t call)
{
    uint64_t place = (uint64_t)choice << 32 | call;
    fg_digest128 digest = fg_hash128(request->id, strlen(request->id), place);
    fg_buf_printf(out, "\"id\":\"call_%016" PRIx64 "%08" PRIx32 "\"", digest.low,
                  (uint32_t)digest.high);
}

static void put_string(fg_buf *out, const char *text, size_t length)
{
    fg_buf_putc(out, '"');
    fg_buf_json_escape(out, text, length);
    fg_buf_putc(out, '"');
}

void fg_api_put_calls(fg_buf *out, const fg_request *request, uint32_t index,
                      const fg_api_calls *calls)
{
    const char *text = calls->text;
    fg_buf_puts(out, "\"tool_calls\":[");
    for (size_t i = 0; i < calls->count; i++) {
        const fg_api_call_part *part = &calls->parts[i];
        fg_buf_puts(out, i == 0 ? "{" : ",{");
        put_id(out, request, index, part->index);
        fg_buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        put_string(out, text, part->name_length);
        fg_buf_puts(out, ",\"arguments\":");
        put_string(out, text + part->name_length, part->arguments_length);
        fg_buf_puts(out, "}}");
        text += part->name_length + part->arguments_length;
    }
    fg_buf_putc(out, ']');
}

void fg_api_put_call_name(fg_buf *out, const fg_request *request, uint32_t index,
                          const fg_api_call_part *part, const char *name)
{
    fg_buf_printf(out, "\"tool_calls\":[{\"index\":%" PRIu32 ",", part->index);
    put_id(out, request, index, part->index);
    fg_buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    put_string(out, name, part->name_length);
    fg_buf_puts(out, ",\"arguments\":\"\"}}]");
}

void fg_api_put_call_arguments(fg_buf *out, const fg_api_call_part *part, const char *arguments)
{
    fg_buf_printf(
        out, "\"tool_calls\":[{\"index\":%" PRIu32 ",\"function\":{\"arguments\":", part->index);
    put_string(out, arguments, part->arguments_length);
    fg_buf_puts(out, "}}]");
}
