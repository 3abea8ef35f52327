#include "tests/sim/timeline.h"

#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

typedef struct seen {
    char text[64];
    uint64_t times[64];
    size_t count;
    fg_timeline *timeline;
} seen;

static void note(void *ctx, const fg_timeline_event *event)
{
    seen *s = ctx;
    s->times[s->count] = event->at_ns;
    s->text[s->count++] = (char)event->index;
}

static void push(fg_timeline *timeline, uint64_t at_ns, char name)
{
    fg_timeline_event event = { .at_ns = at_ns, .fire = note, .index = (uint64_t)name };
    cr_assert(fg_timeline_push(timeline, &event) == FG_OK);
}

Test(timeline, events_happen_in_order_of_time_and_equals_in_order_of_push)
{
    seen s = { .count = 0 };
    fg_timeline timeline;
    fg_timeline_init(&timeline, 100, &s);
    push(&timeline, 30, 'e');
    push(&timeline, 10, 'a');
    push(&timeline, 20, 'b');
    push(&timeline, 20, 'c');
    push(&timeline, 20, 'd');
    cr_assert(fg_timeline_next_ns(&timeline) == 10);
    while (fg_timeline_step(&timeline)) {
        cr_assert(timeline.now_ns == s.times[s.count - 1]);
    }
    cr_assert(strcmp(s.text, "abcde") == 0, "%s", s.text);
    cr_assert(timeline.now_ns == 30 && timeline.fired == 5);
    cr_assert(fg_timeline_next_ns(&timeline) == UINT64_MAX);
    fg_timeline_deinit(&timeline);
}

Test(timeline, the_past_happens_now)
{
    seen s = { .count = 0 };
    fg_timeline timeline;
    fg_timeline_init(&timeline, 100, &s);
    push(&timeline, 50, 'a');
    cr_assert(fg_timeline_step(&timeline));
    push(&timeline, 20, 'b');
    cr_assert(fg_timeline_step(&timeline));
    cr_assert(timeline.now_ns == 50 && s.times[1] == 50);
    fg_timeline_deinit(&timeline);
}

Test(timeline, many_events_come_out_sorted)
{
    seen s = { .count = 0 };
    fg_timeline timeline;
    fg_timeline_init(&timeline, 5000, &s);
    uint64_t last = 0, random = 7;
    for (int i = 0; i < 5000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        push(&timeline, random >> 40, 'x');
    }
    for (int i = 0; i < 5000; i++) {
        s.count = 0;
        cr_assert(fg_timeline_step(&timeline));
        cr_assert(timeline.now_ns >= last);
        last = timeline.now_ns;
    }
    cr_assert(!fg_timeline_step(&timeline));
    fg_timeline_deinit(&timeline);
}

static void count_drop(void *arg)
{
    ++*(int *)arg;
}

Test(timeline, a_full_one_refuses_and_what_never_happens_is_dropped)
{
    int dropped = 0;
    fg_timeline timeline;
    fg_timeline_init(&timeline, 2, NULL);
    fg_timeline_event event = { .fire = note, .drop = count_drop, .arg = &dropped };
    cr_assert(fg_timeline_push(&timeline, &event) == FG_OK);
    cr_assert(fg_timeline_push(&timeline, &event) == FG_OK);
    cr_assert(fg_timeline_push(&timeline, &event) == FG_AGAIN);
    fg_timeline_deinit(&timeline);
    cr_assert(dropped == 2);
}

static bool fill(void *ctx)
{
    fg_timeline timeline;
    fg_timeline_init(&timeline, 1000, ctx);
    fg_timeline_event event = { .fire = note };
    bool fine = true;
    for (int i = 0; i < 600 && fine; i++) {
        fine = fg_timeline_push(&timeline, &event) == FG_OK;
        cr_assert(fine || timeline.count == (size_t)i);
    }
    fg_timeline_deinit(&timeline);
    return fine;
}

Test(timeline, survives_every_failed_allocation)
{
    cr_assert(fg_fault_each(fill, NULL) >= 2);
}
