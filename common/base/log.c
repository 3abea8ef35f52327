#include "common/base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_level = FG_LOG_INFO;
static char log_process[64] = "forge";

void fg_log_set_level(fg_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void fg_log_set_process(const char *name)
{
    snprintf(log_process, sizeof log_process, "%s", name);
}

void fg_log(fg_log_level level, const char *module, const char *format, ...)
{
    static const char *const names[] = { "debug", "info", "warn", "error" };
    if ((int)level < atomic_load_explicit(&log_level, memory_order_relaxed)) {
        return;
    }
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    char line[1024];
    size_t used = strftime(line, sizeof line, "ts=%Y-%m-%dT%H:%M:%S", &utc);
    used += (size_t)snprintf(line + used, sizeof line - used, ".%03ldZ level=%s proc=%s module=%s ",
                             now.tv_nsec / 1000000, names[level], log_process, module);
    va_list args;
    va_start(args, format);
    int wrote = vsnprintf(line + used, sizeof line - used - 1, format, args);
    va_end(args);
    used += wrote < 0 ? 0 : (size_t)wrote;
    if (used > sizeof line - 2) {
        used = sizeof line - 2;
    }
    line[used++] = '\n';
    /* One write per line, so that lines of several processes on one terminal stay whole. */
    ssize_t ignored = write(STDERR_FILENO, line, used);
    (void)ignored;
}
