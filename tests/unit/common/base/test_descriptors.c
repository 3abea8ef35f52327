/* The limit of open files: raised as far as it goes, and what is left of it. */
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/descriptors.h"

static void set_limit(rlim_t soft, rlim_t hard)
{
    struct rlimit limit = { soft, hard };
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

Test(descriptors, the_limit_is_raised_as_far_as_the_system_lets_it)
{
    static const struct {
        const char *name;
        uint32_t soft, wanted, want;
    } rows[] = { { "less than allowed", 64, 100, 100 },
                 { "all that is allowed", 64, 128, 128 },
                 { "more than allowed", 64, 1000, 128 },
                 { "less than there is", 100, 50, 100 } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint32_t limit;
        set_limit(rows[i].soft, 128);
        fg_descriptors_raise(rows[i].wanted);
        (void)fg_descriptors_free(&limit);
        cr_assert_eq(limit, rows[i].want, "%s: %u", rows[i].name, limit);
    }
}

Test(descriptors, what_is_left_goes_down_with_each_that_is_opened)
{
    uint32_t limit;
    int fds[3];
    set_limit(64, 128);
    uint32_t before = fg_descriptors_free(&limit);
    cr_assert(before > 3 && before < 64, "%u", before);
    for (int i = 0; i < 3; i++) {
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        cr_assert_geq(fds[i], 0);
    }
    cr_assert_eq(fg_descriptors_free(&limit), before - 3);
    for (int i = 0; i < 3; i++) {
        close(fds[i]);
    }
    cr_assert_eq(fg_descriptors_free(&limit), before);
}
