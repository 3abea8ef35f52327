#include "common/obs/traceparent.h"

#include <inttypes.h>
#include <stdio.h>

/* `count` lower-case hex digits. A terminator inside is no digit, so nothing behind it is read. */
static bool read_hex(const char *text, unsigned count, uint64_t *value_out)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < count; i++) {
        char c = text[i];
        if (c >= '0' && c <= '9') {
            value = value << 4 | (uint64_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            value = value << 4 | (uint64_t)(c - 'a' + 10);
        } else {
            return false;
        }
    }
    *value_out = value;
    return true;
}

bool fg_traceparent_parse(const char *text, fg_traceparent *out)
{
    uint64_t version, high, low, span, flags;
    /* 00-<32 digits>-<16 digits>-<2 digits> */
    if (text == NULL || !read_hex(text, 2, &version) || version != 0 || text[2] != '-' ||
        !read_hex(text + 3, 16, &high) || !read_hex(text + 19, 16, &low) || text[35] != '-' ||
        !read_hex(text + 36, 16, &span) || text[52] != '-' || !read_hex(text + 53, 2, &flags) ||
        text[FG_TRACEPARENT_LENGTH] != '\0' || (high | low) == 0 || span == 0) {
        return false;
    }
    *out = (fg_traceparent){
        .trace_high = high, .trace_low = low, .span = span, .flags = (uint8_t)flags
    };
    return true;
}

void fg_traceparent_format(const fg_traceparent *trace, char out[FG_TRACEPARENT_LENGTH + 1])
{
    snprintf(out, FG_TRACEPARENT_LENGTH + 1, "00-%016" PRIx64 "%016" PRIx64 "-%016" PRIx64 "-%02x",
             trace->trace_high, trace->trace_low, trace->span, trace->flags);
}

bool fg_tracestate_is_fine(const char *text)
{
    size_t length = 0;
    while (text != NULL && length <= FG_TRACESTATE_MAX && text[length] >= 0x20 &&
           text[length] < 0x7F) {
        length++;
    }
    return length > 0 && length <= FG_TRACESTATE_MAX && text[length] == '\0';
}
