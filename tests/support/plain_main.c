/*
 * Runs every registered test in this process, one after the other; exits 1 at the first failure.
 *
 *   test_NAME [SUITE/TEST...]    all but these
 */
#include "tests/support/test.h"

#ifdef FG_TEST_PLAIN

#include <stdbool.h>

static fg_plain_test *tests;

void fg_plain_register(fg_plain_test *test)
{
    test->next = tests;
    tests = test;
}

static bool is_left_out(const fg_plain_test *test, int argc, char **argv)
{
    char name[200];
    snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (fg_plain_test *test = tests; test != NULL; test = test->next) {
        if (is_left_out(test, argc, argv)) {
            continue;
        }
        fprintf(stderr, "run %s/%s\n", test->suite, test->name);
        test->run();
        count++;
    }
    fprintf(stderr, "%d tests passed\n", count);
    return 0;
}

#endif
