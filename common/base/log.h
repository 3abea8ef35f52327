/*
 * log - one `key=value` line per event on standard error. Quiet per token. Any thread. Never blocks: where
 * standard error is a pipe that nobody reads, lines are dropped and counted.
 */
#ifndef FORGE_COMMON_BASE_LOG_H
#define FORGE_COMMON_BASE_LOG_H

#include "common/base/status.h"

typedef enum fg_log_level {
    FG_LOG_DEBUG,
    FG_LOG_INFO,
    FG_LOG_WARN,
    FG_LOG_ERROR,
    FG_LOG_OFF
} fg_log_level;

void fg_log_set_level(fg_log_level level);
fg_log_level fg_log_get_level(void);
/* Who speaks: the worker's name, put in front of each line as `proc=`. Copied. */
void fg_log_set_process(const char *name);
const char *fg_log_process(void);

/* fg_log(FG_LOG_INFO, "dispatch", "req=%s placed prefill=%s", ...): text is `key=value` pairs. */
void fg_log(fg_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define fg_debug(module, ...) fg_log(FG_LOG_DEBUG, module, __VA_ARGS__)
#define fg_info(module, ...)  fg_log(FG_LOG_INFO, module, __VA_ARGS__)
#define fg_warn(module, ...)  fg_log(FG_LOG_WARN, module, __VA_ARGS__)
#define fg_err(module, ...)   fg_log(FG_LOG_ERROR, module, __VA_ARGS__)

#endif
