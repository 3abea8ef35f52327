#include "common/base/log.h"

#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

/* Runs `speak` with standard error going into a pipe and returns what was written. */
static size_t captured(void (*speak)(void), char *out, size_t room)
{
    int ends[2];
    int saved = dup(STDERR_FILENO);
    cr_assert(saved >= 0 && pipe(ends) == 0);
    dup2(ends[1], STDERR_FILENO);
    speak();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[1]);
    ssize_t got = read(ends[0], out, room - 1);
    close(ends[0]);
    out[got < 0 ? 0 : got] = '\0';
    return strlen(out);
}

static void speak_at_all_levels(void)
{
    fg_log_set_process("p0");
    fg_log_set_level(FG_LOG_WARN);
    fg_info("test", "text=hidden");
    fg_warn("test", "text=shown n=%d", 7);
    fg_log_set_level(FG_LOG_OFF);
    fg_err("test", "text=off");
    fg_log_set_level(FG_LOG_INFO);
}

Test(log, writes_one_line_of_pairs_from_the_level_on)
{
    char text[4096];
    captured(speak_at_all_levels, text, sizeof text);
    const char *end = " level=warn proc=p0 module=test text=shown n=7\n";
    cr_assert_eq(strncmp(text, "ts=20", 5), 0, "%s", text);
    cr_assert(strlen(text) > strlen(end), "%s", text);
    cr_assert_str_eq(text + strlen(text) - strlen(end), end);
    cr_assert_eq(strchr(text, '\n'), text + strlen(text) - 1, "more than one line: %s", text);
}

static void speak_at_length(void)
{
    char value[5000];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    fg_warn("test", "long=%s", value);
}

Test(log, cuts_a_line_that_is_too_long)
{
    char text[8192];
    size_t length = captured(speak_at_length, text, sizeof text);
    cr_assert(length > 500 && length <= 1024, "%zu", length);
    cr_assert_eq(text[length - 1], '\n');
}

Test(log, a_pipe_that_nobody_reads_loses_lines_and_stops_nobody)
{
    enum { LINES = 3000 }; /* more than a pipe holds */
    int ends[2];
    int saved = dup(STDERR_FILENO);
    cr_assert(saved >= 0 && pipe(ends) == 0);
    dup2(ends[1], STDERR_FILENO);
    for (int i = 0; i < LINES; i++) {
        fg_warn("test", "line=%d text=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                i);
    }
    static char text[1 << 20];
    ssize_t first = read(ends[0], text, sizeof text - 1);
    fg_warn("test", "line=last");
    ssize_t second = read(ends[0], text, sizeof text - 1);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(ends[0]);
    close(ends[1]);
    cr_assert(first > 0 && second > 0);
    text[second] = '\0';
    cr_assert(strstr(text, "dropped_lines=") != NULL, "%s", text);
    cr_assert(strstr(text, "line=last") != NULL, "%s", text);
}
