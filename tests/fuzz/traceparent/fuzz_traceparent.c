/*
 * Any text as the two trace headers: no crash, nothing read behind its end, and what is accepted is what
 * the writer would write.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/obs/traceparent.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    char *text = malloc(size_bytes + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, bytes, size_bytes);
    text[size_bytes] = '\0';
    char *exact = strdup(text); /* without what follows a NUL inside */
    fg_traceparent trace;
    if (exact != NULL && fg_traceparent_parse(exact, &trace)) {
        char again[FG_TRACEPARENT_LENGTH + 1];
        fg_traceparent_format(&trace, again);
        FG_ASSERT(strcmp(again, exact) == 0);
        FG_ASSERT((trace.trace_high | trace.trace_low) != 0 && trace.span != 0);
    }
    FG_ASSERT(exact == NULL || !fg_tracestate_is_fine(exact) || strlen(exact) <= FG_TRACESTATE_MAX);
    free(exact);
    free(text);
    return 0;
}
