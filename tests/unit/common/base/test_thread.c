#include "common/base/thread.h"

#include "tests/support/test.h"

typedef struct pair {
    fg_signal ping;
    fg_signal pong;
    int value; /* handed over by the signals */
} pair;

enum { ROUNDS = 1000 };

static void *answer(void *ctx)
{
    pair *p = ctx;
    uint32_t seen = 0;
    for (int round = 0; round < ROUNDS; round++) {
        seen = fg_signal_wait(&p->ping, seen);
        p->value++;
        fg_signal_raise(&p->pong);
    }
    return NULL;
}

Test(thread, no_raise_is_lost_between_two_threads)
{
    pair p = { .value = 0 };
    pthread_t thread;
    cr_assert(fg_thread_start(&thread, answer, &p));
    uint32_t seen = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int before = p.value;
        fg_signal_raise(&p.ping);
        seen = fg_signal_wait(&p.pong, seen);
        cr_assert_eq(p.value, before + 1);
    }
    fg_thread_join(thread);
}

Test(thread, a_raise_before_the_wait_counts)
{
    fg_signal signal = { 0 };
    fg_signal_raise(&signal);
    cr_assert_eq(fg_signal_wait(&signal, 0), 1);
}
