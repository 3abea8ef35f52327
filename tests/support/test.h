/*
 * test.h - what every unit test includes. Criterion normally; a plain in-process runner where
 * Criterion cannot start (TSan). Tests use only Test(suite, name) and the macros defined below;
 * tests/tidy checks that.
 */
#ifndef FORGE_TESTS_SUPPORT_TEST_H
#define FORGE_TESTS_SUPPORT_TEST_H

#ifndef FG_TEST_PLAIN

#include <criterion/criterion.h>
#include <criterion/logging.h>

#else

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fg_plain_test {
    const char *suite;
    const char *name;
    void (*run)(void);
    struct fg_plain_test *next;
} fg_plain_test;

void fg_plain_register(fg_plain_test *test);

#define Test(suite_, name_, ...)                                                                   \
    static void suite_##_##name_##_run(void);                                                      \
    static fg_plain_test suite_##_##name_##_test = { #suite_, #name_, suite_##_##name_##_run,      \
                                                     NULL };                                       \
    __attribute__((constructor)) static void suite_##_##name_##_register(void)                     \
    {                                                                                              \
        fg_plain_register(&suite_##_##name_##_test);                                               \
    }                                                                                              \
    static void suite_##_##name_##_run(void)

#define cr_assert(cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: failed: %s ", __FILE__, __LINE__, #cond);                      \
            fprintf(stderr, " " __VA_ARGS__);                                                      \
            fputc('\n', stderr);                                                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define cr_assert_eq(a, b, ...)     cr_assert((a) == (b), ##__VA_ARGS__)
#define cr_assert_neq(a, b, ...)    cr_assert((a) != (b), ##__VA_ARGS__)
#define cr_assert_gt(a, b, ...)     cr_assert((a) > (b), ##__VA_ARGS__)
#define cr_assert_geq(a, b, ...)    cr_assert((a) >= (b), ##__VA_ARGS__)
#define cr_assert_leq(a, b, ...)    cr_assert((a) <= (b), ##__VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp((a), (b)) == 0, ##__VA_ARGS__)
#define cr_assert_not_null(a, ...)  cr_assert((a) != NULL, ##__VA_ARGS__)
#define cr_assert_null(a, ...)      cr_assert((a) == NULL, ##__VA_ARGS__)
#define cr_log_info(...)            (fprintf(stderr, __VA_ARGS__), (void)fputc('\n', stderr))
#define cr_skip(...)                return

#endif
#endif
