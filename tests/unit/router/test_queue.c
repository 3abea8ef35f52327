/* The waiting line, by tables: order, bounds, coming back, passing. */
#include <stdio.h>

#include "common/base/fault.h"
#include "tests/support/test.h"
#include "tests/unit/router/queue_line.h"

/* Serves everybody and compares with "3 1 2". */
static void expect_order(line *l, const char *want, const char *name)
{
    char got[256] = "";
    size_t used = 0;
    for (uint64_t id; (id = line_serve(l)) != 0;) {
        used +=
            (size_t)snprintf(got + used, sizeof got - used, used > 0 ? " %u" : "%u", (uint32_t)id);
    }
    cr_assert_str_eq(got, want, "%s: got %s", name, got);
}

/* ---- order, by table ---- */

typedef struct arrival {
    uint32_t at_s;
    uint64_t tenant;
    int32_t priority;
    uint32_t cost;
} arrival;

static const struct {
    const char *name;
    arrival arrivals[8];
    uint32_t count, serve_at_s;
    const char *want;
} orders[] = {
    { "one tenant: first come, first served",
      { { 0, 7, 0, 9 }, { 0, 7, 0, 1 }, { 1, 7, 0, 5 } },
      3,
      1,
      "1 2 3" },
    { "one tenant: better classes first",
      { { 0, 7, 1, 1 }, { 1, 7, 0, 1 }, { 2, 7, -1, 1 } },
      3,
      2,
      "3 2 1" },
    { "one tenant: 11 s make up for a class", { { 0, 7, 1, 1 }, { 11, 7, 0, 1 } }, 2, 11, "1 2" },
    { "two tenants take turns",
      { { 0, 1, 0, 5 }, { 0, 1, 0, 5 }, { 0, 1, 0, 5 }, { 1, 2, 0, 5 }, { 1, 2, 0, 5 } },
      5,
      1,
      "1 4 2 5 3" },
    { "turns by cost, not by requests",
      { { 0, 1, 0, 20 }, { 0, 1, 0, 20 }, { 0, 2, 0, 10 }, { 0, 2, 0, 10 }, { 0, 2, 0, 10 } },
      5,
      0,
      "1 3 4 2 5" },
    { "a high one of anybody before normal ones of others",
      { { 0, 1, 0, 5 }, { 0, 2, 0, 5 }, { 1, 2, -1, 900 }, { 1, 2, -1, 5 } },
      4,
      1,
      "3 4 1 2" },
    { "a normal one that has waited 10 s shares with fresh high ones",
      { { 0, 1, 0, 5 }, { 0, 1, 0, 5 }, { 10, 2, -1, 5 }, { 10, 2, -1, 5 } },
      4,
      10,
      "1 3 2 4" },
    { "and not before that",
      { { 0, 1, 0, 5 }, { 0, 1, 0, 5 }, { 9, 2, -1, 5 }, { 9, 2, -1, 5 } },
      4,
      9,
      "3 4 1 2" },
    { "a low one is a normal one after 10 s", { { 0, 1, 1, 5 }, { 10, 2, 0, 5 } }, 2, 10, "1 2" },
    { "a low one waits until then", { { 0, 1, 1, 5 }, { 9, 2, 0, 5 } }, 2, 9, "2 1" },
    { "nobody in particular is a tenant too",
      { { 0, 0, 0, 5 }, { 0, 0, 0, 5 }, { 0, 2, 0, 5 } },
      3,
      0,
      "1 3 2" },
};

Test(queue, order_is_as_written)
{
    static line l;
    for (size_t row = 0; row < sizeof orders / sizeof *orders; row++) {
        fg_queue_options options = line_options();
        line_open(&l, &options);
        for (uint32_t i = 0; i < orders[row].count; i++) {
            const arrival *a = &orders[row].arrivals[i];
            l.now_ns = (100 + a->at_s) * S;
            line_add(&l, a->tenant, a->priority, a->cost);
        }
        l.now_ns = (100 + orders[row].serve_at_s) * S;
        fg_queue_check(l.queue);
        expect_order(&l, orders[row].want, orders[row].name);
        line_close(&l);
    }
}

/* ---- bounds ---- */

static const struct {
    const char *name;
    fg_queue_options options;
    uint64_t tenant;
    uint32_t tokens;
    fg_status want;
} bounds[] = {
    /* In line: 2 of tenant 1 with 10 tokens each; running: 1 of tenant 2. */
    { "room", { .requests_max = 3, .tokens_max = 30, .live_max = 4 }, 1, 10, FG_OK },
    { "requests", { .requests_max = 2, .tokens_max = 99, .live_max = 9 }, 3, 1, FG_AGAIN },
    { "tokens", { .requests_max = 9, .tokens_max = 30, .live_max = 9 }, 3, 11, FG_AGAIN },
    { "more tokens than may ever be",
      { .requests_max = 9, .tokens_max = 30, .live_max = 9 },
      3,
      UINT32_MAX,
      FG_AGAIN },
    { "live", { .requests_max = 9, .tokens_max = 99, .live_max = 3 }, 3, 1, FG_AGAIN },
    { "its own requests",
      { .requests_max = 9, .tokens_max = 99, .live_max = 9, .tenant_requests_max = 2 },
      1,
      1,
      FG_AGAIN },
    { "running ones are not in line",
      { .requests_max = 9, .tokens_max = 99, .live_max = 9, .tenant_requests_max = 2 },
      2,
      1,
      FG_OK },
    { "its own tokens",
      { .requests_max = 9, .tokens_max = 99, .live_max = 9, .tenant_tokens_max = 25 },
      1,
      6,
      FG_AGAIN },
    { "its own tokens exactly",
      { .requests_max = 9, .tokens_max = 99, .live_max = 9, .tenant_tokens_max = 25 },
      1,
      5,
      FG_OK },
    { "more than a tenant may ever have",
      { .requests_max = 9, .tokens_max = 99, .live_max = 9, .tenant_tokens_max = 25 },
      3,
      26,
      FG_AGAIN },
};

Test(queue, newcomers_beyond_a_bound_are_refused)
{
    static line l;
    for (size_t row = 0; row < sizeof bounds / sizeof *bounds; row++) {
        line_open(&l, &bounds[row].options);
        line_add(&l, 2, 0, 10);
        cr_assert_eq(line_serve(&l), 1u);
        line_add(&l, 1, 0, 10);
        line_add(&l, 1, 0, 10);
        fg_queue_item *last = line_make(&l, bounds[row].tenant, 0, bounds[row].tokens);
        cr_assert_eq(fg_queue_push(l.queue, last), bounds[row].want, "%s", bounds[row].name);
        cr_assert_eq(last->place, bounds[row].want == FG_OK ? FG_QUEUE_LINE : FG_QUEUE_OUT);
        fg_queue_load load;
        fg_queue_load_get(l.queue, &load);
        cr_assert_eq(load.requests, bounds[row].want == FG_OK ? 3u : 2u, "%s", bounds[row].name);
        fg_queue_remove(l.queue, last, 0);
        fg_queue_remove(l.queue, last, 0); /* again: nothing happens */
        line_close(&l);
    }
}

Test(queue, a_running_cap_holds_its_tenant_and_nobody_else)
{
    static line l;
    fg_queue_options options = line_options();
    options.tenant_running_max = 2;
    line_open(&l, &options);
    for (int i = 0; i < 4; i++) {
        line_add(&l, 1, -1, 1); /* 1 to 4 */
    }
    line_add(&l, 2, 1, 1);
    cr_assert(line_serve(&l) == 1 && line_serve(&l) == 2);
    cr_assert_eq(line_serve(&l), 5u, "a low one of another tenant goes meanwhile");
    cr_assert_null(fg_queue_peek(l.queue, l.now_ns));
    fg_queue_check(l.queue);
    fg_queue_remove(l.queue, &l.items[0], 1);
    cr_assert_eq(line_serve(&l), 3u);
    cr_assert_null(fg_queue_peek(l.queue, l.now_ns));
    fg_queue_put_back(l.queue, &l.items[1]);
    cr_assert_eq(line_serve(&l), 2u, "who came back is before the fourth");
    line_close(&l);
}

Test(queue, bad_options_are_refused)
{
    static const fg_queue_options bad[] = { { .live_max = 0 },
                                            { .live_max = UINT32_MAX },
                                            { .live_max = 1,
                                              .ahead_max = FG_QUEUE_AHEAD_MAX + 1 } };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fg_queue *queue = NULL;
        fg_error err;
        cr_assert(fg_queue_create(&bad[i], &queue, &err) == FG_BAD_INPUT && queue == NULL);
    }
    fg_queue_destroy(NULL);
}

static bool create_once(void *ctx)
{
    fg_queue *queue = NULL;
    fg_queue_options options = line_options();
    fg_error err;
    bool good = fg_queue_create(&options, &queue, &err) == FG_OK;
    fg_queue_destroy(queue);
    return good;
}

Test(queue, creation_survives_every_failure)
{
    cr_assert_eq(fg_fault_each(create_once, NULL), 3);
}

/* ---- coming back ---- */

Test(queue, who_comes_back_has_its_old_place_and_is_charged_once)
{
    /* Two lines with the same arrivals; in one of them, the first of each round comes back at once, or after
     * another was served. From then on they serve alike. */
    static line plain, with;
    for (uint32_t others = 0; others < 3; others++) {
        fg_queue_options options = line_options();
        line_open(&plain, &options);
        line_open(&with, &options);
        line *const lines[] = { &plain, &with };
        for (uint32_t k = 0; k < 2; k++) {
            for (uint32_t i = 0; i < 24; i++) {
                line_add(lines[k], 1 + i % 3, 0, 5 + i % 7);
            }
        }
        fg_queue_item *first = fg_queue_peek(with.queue, with.now_ns);
        fg_queue_take(with.queue, first);
        uint64_t between[2] = { 0, 0 };
        for (uint32_t i = 0; i < others; i++) {
            between[i] = line_serve(&with);
        }
        fg_queue_put_back(with.queue, first);
        fg_queue_check(with.queue);
        cr_assert_eq(fg_queue_peek(with.queue, with.now_ns), first, "%u others", others);
        cr_assert_eq(line_serve(&plain), line_serve(&with));
        for (uint32_t i = 0; i < others; i++) {
            cr_assert_eq(line_serve(&plain), between[i]);
        }
        for (uint64_t id; (id = line_serve(&plain)) != 0;) {
            cr_assert_eq(line_serve(&with), id, "%u others", others);
        }
        line_close(&plain);
        line_close(&with);
    }
}

Test(queue, who_comes_back_to_an_idle_tenant_brings_no_credit)
{
    static line l;
    fg_queue_options options = line_options();
    line_open(&l, &options);
    fg_queue_item *lost = line_add(&l, 1, 0, 100);
    cr_assert_eq(line_serve(&l), 1u);
    for (int i = 0; i < 200; i++) { /* long work of others; tenant 1 has nothing in line */
        line_add(&l, 2, 0, 10);
    }
    for (int i = 0; i < 100; i++) {
        line_serve(&l);
    }
    fg_queue_put_back(l.queue, lost);
    line_add(&l, 1, 0, 10);
    line_add(&l, 1, 0, 10);
    cr_assert_eq(line_serve(&l), lost->id, "its old place was before all of these");
    uint32_t own = 0;
    for (int i = 0; i < 4; i++) {
        own += fg_queue_peek(l.queue, l.now_ns)->tenant == 1;
        line_serve(&l);
    }
    cr_assert_eq(own, 2u, "and then they take turns");
    line_close(&l);
}

Test(queue, what_was_served_is_settled)
{
    static const struct {
        const char *name;
        uint32_t expected, served, turns; /* of tenant 2 before tenant 1 is next again */
    } rows[] = {
        { "as expected", 40, 40, 4 },
        { "less: given back", 40, 10, 1 },
        { "more: charged too", 10, 40, 4 },
        { "nothing", 40, 0, 0 },
    };
    static line l;
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        fg_queue_options options = line_options();
        line_open(&l, &options);
        line_add(&l, 1, 0, rows[row].expected);
        line_add(&l, 1, 0, 10);
        for (int i = 0; i < 8; i++) {
            line_add(&l, 2, 0, 10);
        }
        cr_assert_eq(line_serve(&l), 1u);
        fg_queue_remove(l.queue, &l.items[0], rows[row].served);
        fg_queue_check(l.queue);
        uint32_t turns = 0;
        while (fg_queue_peek(l.queue, l.now_ns)->tenant == 2) {
            line_serve(&l);
            turns++;
        }
        cr_assert_eq(turns, rows[row].turns, "%s: %u", rows[row].name, turns);
        line_close(&l);
    }
}

/* ---- those that do not fit ---- */

Test(queue, small_ones_pass_a_huge_one_a_few_times_only)
{
    static line l;
    fg_queue_options options = line_options(); /* passed 3 times at most */
    line_open(&l, &options);
    fg_queue_item *huge = line_add(&l, 1, 0, 1000);
    for (int i = 0; i < 6; i++) {
        line_add(&l, 1, 0, 1);
    }
    for (uint64_t id = 2; id <= 4; id++) {
        cr_assert_eq(fg_queue_peek(l.queue, l.now_ns), huge, "it stays the first");
        cr_assert(fg_queue_skip(l.queue, huge));
        cr_assert(huge->place == FG_QUEUE_ASIDE && line_serve(&l) == id);
        fg_queue_check(l.queue);
        fg_queue_rewind(l.queue);
    }
    cr_assert_eq(fg_queue_peek(l.queue, l.now_ns), huge);
    cr_assert(!fg_queue_skip(l.queue, huge), "now the others wait for it");
    cr_assert_eq(fg_queue_peek(l.queue, l.now_ns), huge);
    expect_order(&l, "1 5 6 7", "after the passes");
    line_close(&l);
}

Test(queue, who_waits_by_choice_is_passed_without_a_bound)
{
    static line l;
    fg_queue_options options = line_options();
    options.ahead_max = 0; /* strict for those that do not fit */
    line_open(&l, &options);
    fg_queue_item *early = line_add(&l, 1, 0, 5);
    for (int i = 0; i < 7; i++) {
        line_add(&l, 1, 0, 1);
    }
    for (uint64_t id = 2; id <= 7; id++) { /* more than pass_max */
        cr_assert_eq(fg_queue_peek(l.queue, l.now_ns), early, "it stays the first");
        cr_assert(!fg_queue_skip(l.queue, early));
        cr_assert(fg_queue_hold(l.queue, early, 1));
        cr_assert(!fg_queue_hold(l.queue, fg_queue_peek(l.queue, l.now_ns), 1), "one at a time");
        cr_assert_eq(line_serve(&l), id);
        fg_queue_check(l.queue);
        fg_queue_rewind(l.queue);
    }
    expect_order(&l, "1 8", "after the walks");
    line_close(&l);
}

Test(queue, a_walk_goes_ahead_in_order_and_back)
{
    static line l;
    fg_queue_options options = line_options(); /* 4 aside at most */
    line_open(&l, &options);
    for (int i = 0; i < 3; i++) {
        line_add(&l, 1, 0, 5);
        line_add(&l, 2, 0, 5);
    }
    for (uint64_t id = 1; id <= 4; id++) {
        fg_queue_item *item = fg_queue_peek(l.queue, l.now_ns);
        /* Who is aside is not charged, so its tenant stays the next. */
        static const uint64_t want[] = { 1, 2, 3, 4 };
        cr_assert_eq(item->id, want[id - 1]);
        cr_assert(fg_queue_skip(l.queue, item));
    }
    cr_assert(!fg_queue_skip(l.queue, fg_queue_peek(l.queue, l.now_ns)));
    fg_queue_check(l.queue);
    fg_queue_remove(l.queue, &l.items[1], 0); /* cancelled while aside */
    fg_queue_load load;
    fg_queue_load_get(l.queue, &load);
    cr_assert(load.requests == 5 && l.items[1].place == FG_QUEUE_OUT);
    fg_queue_rewind(l.queue);
    expect_order(&l, "1 4 3 6 5", "as if nobody had looked");
    line_close(&l);
}

Test(queue, nobody_passes_where_the_line_is_strict)
{
    static line l;
    fg_queue_options options = line_options();
    options.ahead_max = 0;
    line_open(&l, &options);
    line_add(&l, 1, 0, 5);
    line_add(&l, 2, 0, 5);
    cr_assert(!fg_queue_skip(l.queue, fg_queue_peek(l.queue, l.now_ns)));
    expect_order(&l, "1 2", "strict");
    line_close(&l);
}

Test(queue, hopeless_ones_are_named_in_order)
{
    static line l;
    fg_queue_options options = line_options();
    line_open(&l, &options);
    static const uint64_t give_up_s[] = { 0, 130, 110, 120, 105 };
    for (int i = 0; i < 5; i++) {
        fg_queue_item *item = line_make(&l, 1, 0, 1);
        item->give_up_ns = give_up_s[i] * S;
        cr_assert_eq(fg_queue_push(l.queue, item), FG_OK);
    }
    cr_assert_null(fg_queue_hopeless(l.queue, 105 * S - 1));
    cr_assert_eq(fg_queue_hopeless(l.queue, 120 * S)->id, 5u);
    fg_queue_take(l.queue, fg_queue_peek(l.queue, l.now_ns)); /* 1 runs */
    fg_queue_take(l.queue,
                  fg_queue_peek(l.queue, l.now_ns)); /* 2 runs: not waiting, not hopeless */
    cr_assert(fg_queue_skip(l.queue, fg_queue_peek(l.queue, l.now_ns)));
    static const uint64_t want[] = { 5, 3, 4 };
    for (int i = 0; i < 3; i++) {
        fg_queue_item *item = fg_queue_hopeless(l.queue, 1000 * S);
        cr_assert_eq(item->id, want[i]);
        fg_queue_remove(l.queue, item, 0);
        fg_queue_check(l.queue);
    }
    cr_assert_null(fg_queue_hopeless(l.queue, 1000 * S));
    fg_queue_put_back(l.queue, &l.items[1]);
    cr_assert_eq(fg_queue_hopeless(l.queue, 130 * S)->id, 2u);
    line_close(&l);
}

/* ---- what a newcomer would meet ---- */

static const struct {
    const char *name;
    uint64_t tenant;
    int32_t priority;
    uint32_t cost;
    double share;
    uint64_t ahead;
} meets[] = {
    /* In line: tenant 1 has 10 normal ones, tenant 2 one high and one low, of 10 tokens each. */
    { "a third tenant goes after a part of each", 3, 0, 10, 1.0 / 3, 18 },
    { "it counts high ones alone when it is high", 3, -1, 10, 1.0 / 3, 1 },
    { "a long line of its own", 1, 1, 10, 0.5, 120 },
    { "its turn comes after what it has", 2, 1, 10, 0.5, 50 },
};

Test(queue, what_is_ahead_is_told)
{
    static line l;
    fg_queue_options options = line_options();
    line_open(&l, &options);
    cr_assert(fg_queue_share(l.queue, 9) == 1.0 && fg_queue_tokens_ahead(l.queue, 9, 1, 5) == 0);
    for (int i = 0; i < 10; i++) {
        line_add(&l, 1, 0, 10);
    }
    line_add(&l, 2, -1, 10);
    line_add(&l, 2, 1, 10);
    for (size_t row = 0; row < sizeof meets / sizeof *meets; row++) {
        cr_assert_eq(fg_queue_share(l.queue, meets[row].tenant), meets[row].share);
        uint64_t ahead =
            fg_queue_tokens_ahead(l.queue, meets[row].tenant, meets[row].priority, meets[row].cost);
        cr_assert_eq(ahead, meets[row].ahead, "%s: %u", meets[row].name, (uint32_t)ahead);
    }
    line_close(&l);
}
