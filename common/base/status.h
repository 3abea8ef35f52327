/*
 * status - the one result type of Forge. A value names the caller's next move, not the cause; the
 * cause is the text that fg_fail() leaves in fg_error. Bugs are not statuses: FG_ASSERT aborts, in
 * release builds too.
 */
#ifndef FORGE_COMMON_BASE_STATUS_H
#define FORGE_COMMON_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fg_status {
    FG_OK = 0,
    FG_AGAIN,     /* full or not ready: wait or shed; also "out of memory" */
    FG_BAD_INPUT, /* tell whoever sent it */
    FG_PEER_LOST, /* choose another worker */
    FG_TIMEOUT,
    FG_CANCELLED,
    FG_BROKEN, /* stop this process */
} fg_status;

enum { FG_ERROR_TEXT_MAX = 320 };

typedef struct fg_error {
    fg_status status;
    char text[FG_ERROR_TEXT_MAX];
} fg_error;

/* Fills `err` (may be NULL) and returns `status`, so that the failing line reads `return fg_fail(...)`. */
fg_status fg_fail(fg_error *err, fg_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A short constant name: "ok", "again", ... */
const char *fg_status_name(fg_status status);

__attribute__((noreturn, format(printf, 4, 5))) void fg_assert_failed(const char *file, int line,
                                                                      const char *condition,
                                                                      const char *format, ...);

/* FG_ASSERT(condition) or FG_ASSERT(condition, "format", ...): a bug in Forge, never bad input. */
#define FG_ASSERT(condition, ...)                                                                  \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) {                                                   \
            fg_assert_failed(__FILE__, __LINE__, #condition, " " __VA_ARGS__);                     \
        }                                                                                          \
    } while (0)

#ifdef FORGE_SANITIZED
#define FG_ASSERT_SLOW(...) FG_ASSERT(__VA_ARGS__)
#else
#define FG_ASSERT_SLOW(...)                                                                        \
    do {                                                                                           \
    } while (0)
#endif

#ifdef __cplusplus
}
#endif
#endif
