#include "common/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

fg_status fg_fail(fg_error *err, fg_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        err->status = status;
    }
    return status;
}

const char *fg_status_name(fg_status status)
{
    switch (status) {
    case FG_OK:
        return "ok";
    case FG_AGAIN:
        return "again";
    case FG_BAD_INPUT:
        return "bad_input";
    case FG_PEER_LOST:
        return "peer_lost";
    case FG_TIMEOUT:
        return "timeout";
    case FG_CANCELLED:
        return "cancelled";
    case FG_BROKEN:
        return "broken";
    }
    return "unknown";
}

void fg_assert_failed(const char *file, int line, const char *condition, const char *format, ...)
{
    char text[256] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "forge: bug at %s:%d: %s%s\n", file, line, condition, text);
    fflush(stderr);
    abort();
}
