#include "common/base/log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_level = FG_LOG_INFO;
static char log_process[64] = "forge";
static _Atomic unsigned long log_dropped;

void fg_log_set_level(fg_log_level level)
{
    atomic_store(&log_level, (int)level);
}

fg_log_level fg_log_get_level(void)
{
    return (fg_log_level)atomic_load(&log_level);
}

void fg_log_set_process(const char *name)
{
    snprintf(log_process, sizeof log_process, "%s", name);
}

const char *fg_log_process(void)
{
    return log_process;
}

/* Writes a whole line, or drops and counts it: a pipe that nobody reads must not stop a loop. A pipe that
 * is writable takes PIPE_BUF bytes, so a line never blocks half-way; one write per line also keeps lines
 * of several processes on one terminal whole. */
static void emit(const char *line, size_t size_bytes)
{
    struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };
    if (poll(&out, 1, 0) != 1 || (out.revents & POLLOUT) == 0) {
        atomic_fetch_add(&log_dropped, 1);
        return;
    }
    unsigned long dropped = atomic_exchange(&log_dropped, 0);
    if (dropped > 0) {
        char notice[96];
        int length =
            snprintf(notice, sizeof notice, "level=warn proc=%s module=log dropped_lines=%lu\n",
                     log_process, dropped);
        ssize_t ignored_notice = write(STDERR_FILENO, notice, (size_t)length);
        (void)ignored_notice;
    }
    ssize_t ignored = write(STDERR_FILENO, line, size_bytes);
    (void)ignored;
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
    emit(line, used);
}
