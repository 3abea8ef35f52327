#include "common/base/status.h"

#include <string.h>

#include "tests/support/test.h"

Test(status, fail_keeps_the_text_and_returns_the_status)
{
    fg_error err = { 0 };
    cr_assert_eq(fg_fail(&err, FG_TIMEOUT, "worker %s is silent", "p0"), FG_TIMEOUT);
    cr_assert_eq(err.status, FG_TIMEOUT);
    cr_assert_str_eq(err.text, "worker p0 is silent");
    cr_assert_eq(fg_fail(NULL, FG_BROKEN, "nobody listens"), FG_BROKEN);
}

Test(status, fail_cuts_a_text_that_is_too_long)
{
    char long_text[2 * FG_ERROR_TEXT_MAX];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    fg_error err;
    fg_fail(&err, FG_BAD_INPUT, "%s", long_text);
    cr_assert_eq(strlen(err.text), FG_ERROR_TEXT_MAX - 1);
}

Test(status, names_are_all_different)
{
    for (int a = FG_OK; a <= FG_BROKEN; a++) {
        cr_assert(strcmp(fg_status_name((fg_status)a), "unknown") != 0, "status %d", a);
        for (int b = FG_OK; b < a; b++) {
            cr_assert(strcmp(fg_status_name((fg_status)a), fg_status_name((fg_status)b)) != 0);
        }
    }
    cr_assert_str_eq(fg_status_name((fg_status)99), "unknown");
}
