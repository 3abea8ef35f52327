/* Runs every registered test in this process, one after the other; exits 1 at the first failure. */
#include "tests/support/test.h"

#ifdef FG_TEST_PLAIN

static fg_plain_test *tests;

void fg_plain_register(fg_plain_test *test)
{
    test->next = tests;
    tests = test;
}

int main(void)
{
    int count = 0;
    for (fg_plain_test *test = tests; test != NULL; test = test->next) {
        fprintf(stderr, "run %s/%s\n", test->suite, test->name);
        test->run();
        count++;
    }
    fprintf(stderr, "%d tests passed\n", count);
    return 0;
}

#endif
