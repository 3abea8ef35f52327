/*
 * What the waiting line promises, whatever happens: shares, bounds on waiting, order, caps, memory.
 *
 * Bugs planted one at a time and seen red by these two files: rank ignored within a tenant; a tag not brought
 * up to now when a tenant comes from idleness; a virtual time that stands still; no lane for late ones; a lane
 * that does not count from anew; no refund, or one to an idle tenant that begins where it once stopped; a
 * running cap off by one, or one under which credit grows; passes not counted; weight ignored; no promotion;
 * a tenant's tokens not bounded; no settlement; a charge without its bound; who is aside not found on cancel; a
 * heap that melds in any order; an idle record reused and left in its list; give-up times in reverse.
 */
#include <string.h>

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/seed.h"
#include "tests/support/test.h"
#include "tests/unit/router/queue_line.h"

enum { TENANTS_MAX = 16 };

/* ---- fairness ---- */

static uint32_t weight_by_id(void *ctx, uint64_t tenant)
{
    const uint32_t *weights = ctx;
    return tenant < TENANTS_MAX ? weights[tenant] : 1;
}

typedef struct fair {
    line line;
    fg_rng rng;
    uint32_t weights[TENANTS_MAX];
    uint32_t backlogged; /* tenants 1 to this always wait; the others come and go */
    uint32_t cost_max;
    double served[TENANTS_MAX]; /* cost / weight */
} fair;

static void arrive(fair *f, uint64_t tenant)
{
    fg_queue_item *item = line_free_item(&f->line);
    cr_assert_not_null(item);
    uint32_t cost = 1 + (uint32_t)fg_rng_below(&f->rng, f->cost_max);
    *item = (fg_queue_item){ .id = ++f->line.count,
                             .tenant = tenant,
                             .queued_ns = f->line.now_ns,
                             .tokens = cost,
                             .cost = cost };
    cr_assert_eq(fg_queue_push(f->line.queue, item), FG_OK);
}

static void serve_one(fair *f)
{
    fg_queue_item *item = fg_queue_peek(f->line.queue, f->line.now_ns);
    fg_queue_take(f->line.queue, item);
    if (item->tenant <= f->backlogged) {
        f->served[item->tenant] += (double)item->cost / f->weights[item->tenant];
        arrive(f, item->tenant); /* before it ends, so that its tenant has always waited */
    }
    if (fg_rng_below(&f->rng, 10) == 0) { /* it comes back, and goes again at once or later */
        if (item->tenant <= f->backlogged) {
            f->served[item->tenant] -= (double)item->cost / f->weights[item->tenant];
        }
        fg_queue_put_back(f->line.queue, item);
    } else {
        fg_queue_remove(f->line.queue, item, item->cost);
    }
}

static void run_fair(uint64_t seed)
{
    static fair f;
    memset(&f, 0, sizeof f);
    f.rng.state = seed;
    f.backlogged = 2 + (uint32_t)fg_rng_below(&f.rng, 6);
    f.cost_max = 1u << fg_rng_below(&f.rng, 12);
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        f.weights[i] = seed % 2 == 0 ? 1 : 1 + (uint32_t)fg_rng_below(&f.rng, 9);
    }
    fg_queue_options options = line_options();
    options.weight_of = weight_by_id;
    options.ctx = f.weights;
    line_open(&f.line, &options);
    for (uint32_t tenant = 1; tenant <= f.backlogged; tenant++) {
        arrive(&f, tenant);
    }
    double low[TENANTS_MAX][TENANTS_MAX] = { { 0 } }, high[TENANTS_MAX][TENANTS_MAX] = { { 0 } };
    for (uint32_t step = 0; step < 2000; step++) {
        if (fg_rng_below(&f.rng, 3) == 0 && step % 500 < 300) {
            arrive(&f, f.backlogged + 1 + fg_rng_below(&f.rng, 5));
        }
        serve_one(&f);
        /* Over any interval: the difference's highest less its lowest so far. */
        for (uint32_t a = 1; a <= f.backlogged; a++) {
            for (uint32_t b = 1; b < a; b++) {
                double d = f.served[a] - f.served[b];
                low[a][b] = d < low[a][b] ? d : low[a][b];
                high[a][b] = d > high[a][b] ? d : high[a][b];
                double bound =
                    (double)f.cost_max / f.weights[a] + (double)f.cost_max / f.weights[b];
                cr_assert(high[a][b] - low[a][b] <= bound + 0.01 * step,
                          "seed %llu, step %u: %f > %f", (unsigned long long)seed, step,
                          high[a][b] - low[a][b], bound);
            }
        }
    }
    line_close(&f.line);
}

Test(queue, who_waits_all_the_time_gets_its_share_over_any_interval)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        run_fair(seed);
    }
    uint64_t drawn = test_seed(__func__);
    run_fair(drawn);
}

Test(queue, idleness_earns_no_credit)
{
    static line l;
    fg_queue_options options = line_options();
    line_open(&l, &options);
    line_add(&l, 2, 0, 10); /* was here before, and then not for long */
    cr_assert_eq(line_serve(&l), 1u);
    fg_queue_remove(l.queue, &l.items[0], 10);
    for (int i = 0; i < 200; i++) {
        line_add(&l, 1, 0, 10);
    }
    for (int i = 0; i < 100; i++) {
        line_serve(&l);
    }
    for (int i = 0; i < 50; i++) {
        line_add(&l, 2, 0, 10);
    }
    uint32_t own = 0;
    for (int i = 0; i < 20; i++) {
        own += fg_queue_peek(l.queue, l.now_ns)->tenant == 2;
        line_serve(&l);
    }
    cr_assert(own == 10 || own == 11, "half, from the moment it came: %u", own);
    line_close(&l);
}

/* ---- nobody starves ---- */

typedef struct watched {
    uint64_t takes_when_late;
    uint32_t before; /* items of smaller rank in line when it became late */
    bool late;
} watched;

static uint32_t count_before(const line *l, const fg_queue_item *item)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        const fg_queue_item *other = &l->items[i];
        bool waits = other->place == FG_QUEUE_LINE || other->place == FG_QUEUE_ASIDE;
        count += waits &&
                 (other->rank < item->rank || (other->rank == item->rank && other->id < item->id));
    }
    return count;
}

static void watch(const line *l, watched *w, uint64_t takes)
{
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        const fg_queue_item *item = &l->items[i];
        if (item->place == FG_QUEUE_LINE && !w[i].late &&
            item->rank + FG_QUEUE_LATE_NS <= l->now_ns) {
            w[i] = (watched){ .late = true,
                              .takes_when_late = takes,
                              .before = count_before(l, item) };
        }
    }
}

/* Twice as much comes as is served, most of it high and of tenants never seen before, some cancelled when
 * it is served by nobody; the queue is as full as it may be all the time. */
static void run_starving(uint64_t seed)
{
    static line l;
    static watched w[ITEMS_MAX];
    fg_rng rng = { seed };
    fg_queue_options options = line_options();
    options.requests_max = 300 + (uint32_t)fg_rng_below(&rng, 150);
    line_open(&l, &options);
    memset(w, 0, sizeof w);
    uint64_t takes = 0, served_late = 0;
    for (uint32_t step = 0; step < 6000; step++) {
        l.now_ns += fg_rng_below(&rng, S / 5);
        for (int i = 0; i < 2; i++) {
            fg_queue_item *item = line_free_item(&l);
            uint64_t tenant = fg_rng_below(&rng, 4) == 0 ? 1 : 100 + step;
            *item = (fg_queue_item){ .id = ++l.count,
                                     .tenant = tenant,
                                     .queued_ns = l.now_ns,
                                     .priority = (int32_t)fg_rng_below(&rng, 6) - 4,
                                     .tokens = 1,
                                     .cost = 1 + (uint32_t)fg_rng_below(&rng, 5000) };
            item->priority = item->priority < -1 ? -1 : item->priority;
            if (fg_queue_push(l.queue, item) == FG_OK) {
                w[item - l.items].late = false;
            }
        }
        fg_queue_item *next = fg_queue_peek(l.queue, l.now_ns);
        watch(&l, w, takes);
        fg_queue_take(l.queue, next);
        takes++;
        const watched *mine = &w[next - l.items];
        if (mine->late) {
            served_late++;
            cr_assert(takes - mine->takes_when_late <=
                          (uint64_t)FG_QUEUE_LATE_EVERY * (mine->before + 1),
                      "seed %llu: %u takes for %u before it", (unsigned long long)seed,
                      (uint32_t)(takes - mine->takes_when_late), mine->before);
        }
        fg_queue_remove(l.queue, next, next->cost);
        if (step % 100 == 0) {
            fg_queue_check(l.queue);
        }
    }
    for (uint32_t i = 0; i < ITEMS_MAX; i++) { /* nobody was left behind */
        cr_assert(l.items[i].place == FG_QUEUE_OUT || !w[i].late ||
                  takes - w[i].takes_when_late <=
                      (uint64_t)FG_QUEUE_LATE_EVERY * (w[i].before + 1));
    }
    cr_assert(served_late > 10, "seed %llu makes nobody wait", (unsigned long long)seed);
    line_close(&l);
}

Test(queue, a_late_one_leaves_within_its_bound)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        run_starving(seed);
    }
    uint64_t drawn = test_seed(__func__);
    run_starving(drawn);
}

Test(queue, late_ones_get_every_eighth_take_and_no_more)
{
    static line l;
    fg_queue_options options = line_options();
    line_open(&l, &options);
    for (int i = 0; i < 100; i++) {
        line_add(&l, 1, 0, 10);
    }
    l.now_ns += 60 * S; /* they are late, and take part in the sharing too */
    for (uint64_t tenant = 2; tenant < 42; tenant++) {
        line_add(&l, tenant, -1, 10);
    }
    uint32_t own = 0;
    for (int i = 0; i < 40; i++) {
        own += fg_queue_peek(l.queue, l.now_ns)->tenant == 1;
        line_serve(&l);
    }
    cr_assert(own >= 5 && own <= 6, "%u of 40", own);
    line_close(&l);
}

Test(queue, who_is_held_by_its_own_cap_earns_no_credit)
{
    static line l;
    fg_queue_options options = line_options();
    options.tenant_running_max = 40;
    line_open(&l, &options);
    for (int i = 0; i < 80; i++) {
        line_add(&l, 1, 0, 10);
    }
    for (int i = 0; i < 40; i++) {
        line_serve(&l); /* 1 to 40; now it is held */
    }
    for (int i = 0; i < 100; i++) {
        line_add(&l, 2, 0, 10);
        line_serve(&l);
        fg_queue_remove(l.queue, &l.items[80 + i], 10);
    }
    for (int i = 0; i < 20; i++) {
        line_add(&l, 2, 0, 10);
        fg_queue_remove(l.queue, &l.items[i], 10);
    }
    uint32_t own = 0;
    for (int i = 0; i < 20; i++) {
        own += fg_queue_peek(l.queue, l.now_ns)->tenant == 1;
        line_serve(&l);
    }
    cr_assert(own == 10 || own == 11, "%u of 20", own);
    line_close(&l);
}

/* Its cap is reached and left again during one walk, while all else that it has is aside. */
Test(queue, who_leaves_its_cap_with_all_aside_waits_as_before)
{
    static line l;
    fg_queue_options options = line_options();
    options.tenant_running_max = 1;
    line_open(&l, &options);
    line_add(&l, 1, 0, 10);
    line_add(&l, 1, 0, 10);
    line_add(&l, 2, 1, 10);
    cr_assert(fg_queue_skip(l.queue, fg_queue_peek(l.queue, l.now_ns)));
    cr_assert_eq(line_serve(&l), 2u);
    cr_assert_eq(line_serve(&l), 3u);
    fg_queue_remove(l.queue, &l.items[1], 10);
    fg_queue_check(l.queue);
    cr_assert_null(fg_queue_peek(l.queue, l.now_ns));
    fg_queue_rewind(l.queue);
    cr_assert_eq(line_serve(&l), 1u);
    line_close(&l);
}

/* ---- anything, anywhere ---- */

static bool waits(const fg_queue_item *item)
{
    return item->place == FG_QUEUE_LINE || item->place == FG_QUEUE_ASIDE;
}

static uint32_t level_at(const fg_queue_item *item, uint64_t now_ns)
{
    return item->rank <= now_ns ? 0 : item->rank <= now_ns + 10 * S ? 1 : 2;
}

/* What holds for the item that peek returns, whatever came before. */
static void judge_peek(const line *l, const fg_queue_options *options, const fg_queue_item *next)
{
    bool late = next != NULL && next->rank + FG_QUEUE_LATE_NS <= l->now_ns;
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        const fg_queue_item *item = &l->items[i];
        fg_queue_load own;
        fg_queue_tenant_get(l->queue, item->tenant, &own);
        bool may_go = item->place == FG_QUEUE_LINE && own.running < options->tenant_running_max;
        cr_assert(!may_go || next != NULL, "seed %llu", (unsigned long long)l->seed);
        if (!may_go) {
            cr_assert(item != next);
            continue;
        }
        cr_assert(late || level_at(next, l->now_ns) <= level_at(item, l->now_ns), "seed %llu",
                  (unsigned long long)l->seed);
        cr_assert(item->tenant != next->tenant || item == next || next->rank < item->rank ||
                      (next->rank == item->rank && next->id < item->id),
                  "seed %llu: out of order within a tenant", (unsigned long long)l->seed);
    }
}

static void judge_caps(const line *l, const fg_queue_options *options, uint32_t tenants)
{
    for (uint64_t tenant = 0; tenant < tenants; tenant++) {
        fg_queue_load own, want = { 0 };
        fg_queue_tenant_get(l->queue, tenant, &own);
        for (uint32_t i = 0; i < ITEMS_MAX; i++) {
            bool mine = l->items[i].tenant == tenant;
            want.requests += mine && waits(&l->items[i]);
            want.tokens += mine && waits(&l->items[i]) ? l->items[i].tokens : 0;
            want.running += mine && l->items[i].place == FG_QUEUE_RUNNING;
        }
        cr_assert(own.requests == want.requests && own.tokens == want.tokens);
        cr_assert(own.running == want.running && own.running <= options->tenant_running_max);
        /* Those that came back were here before. */
        cr_assert(own.requests + own.running <=
                  options->tenant_requests_max + options->tenant_running_max);
    }
}

static void random_move(line *l, const fg_queue_options *options, fg_rng *rng, uint32_t tenants)
{
    fg_queue_item *item = &l->items[fg_rng_below(rng, ITEMS_MAX)];
    switch (fg_rng_below(rng, 8)) {
    case 0:
    case 1:
    case 2:
        if (item->place == FG_QUEUE_OUT) {
            *item = (fg_queue_item){ .id = ++l->count,
                                     .tenant = fg_rng_below(rng, tenants),
                                     .queued_ns = l->now_ns,
                                     .give_up_ns = fg_rng_below(rng, 2) * (l->now_ns + 7 * S),
                                     .priority = (int32_t)fg_rng_below(rng, 3) - 1,
                                     .tokens = (uint32_t)fg_rng_below(rng, 50),
                                     .cost = (uint32_t)fg_rng_below(rng, 2000000) };
            fg_queue_load before;
            fg_queue_tenant_get(l->queue, item->tenant, &before);
            bool full = before.requests >= options->tenant_requests_max;
            cr_assert(fg_queue_push(l->queue, item) == FG_AGAIN || !full);
        }
        break;
    case 3:
        fg_queue_remove(l->queue, item, fg_rng_below(rng, 3000000));
        break;
    case 4:
        if (item->place == FG_QUEUE_RUNNING) {
            fg_queue_put_back(l->queue, item);
        }
        break;
    case 5:
        l->now_ns += fg_rng_below(rng, 4 * S);
        fg_queue_rewind(l->queue);
        break;
    default:
        item = fg_queue_peek(l->queue, l->now_ns);
        judge_peek(l, options, item);
        if (item != NULL && (fg_rng_below(rng, 3) > 0 || !fg_queue_skip(l->queue, item))) {
            fg_queue_take(l->queue, item);
        }
        break;
    }
}

static void run_anything(uint64_t seed)
{
    static line l;
    fg_rng rng = { seed };
    uint32_t tenants = 1 + (uint32_t)fg_rng_below(&rng, 40);
    fg_queue_options options = line_options();
    options.requests_max = 100;
    options.live_max = 150;
    options.tokens_max = 2000;
    options.tenant_requests_max = 1 + (uint32_t)fg_rng_below(&rng, 30);
    options.tenant_running_max = 1 + (uint32_t)fg_rng_below(&rng, 30);
    line_open(&l, &options);
    l.seed = seed;
    uint64_t taken = fg_mem_count();
    for (uint32_t step = 0; step < 3000; step++) {
        random_move(&l, &options, &rng, tenants);
        if (step % 16 == 0) {
            fg_queue_check(l.queue);
            judge_caps(&l, &options, tenants);
        }
    }
    cr_assert_eq(fg_mem_count(), taken, "seed %llu: memory was taken", (unsigned long long)seed);
    for (uint32_t i = 0; i < ITEMS_MAX; i++) {
        fg_queue_remove(l.queue, &l.items[i], 1);
    }
    fg_queue_load load;
    fg_queue_load_get(l.queue, &load);
    cr_assert(load.requests + load.running == 0 && load.tokens + load.cost == 0);
    line_close(&l);
}

Test(queue, anything_may_happen_to_anybody)
{
    static const uint64_t found[] = { 271 }; /* a cap reached and left while all was aside */
    for (uint32_t i = 0; i < sizeof found / sizeof *found; i++) {
        run_anything(found[i]);
    }
    for (uint64_t seed = 1; seed <= 60; seed++) {
        run_anything(seed);
    }
    uint64_t drawn = test_seed(__func__);
    run_anything(drawn);
}

Test(queue, one_tenant_is_served_in_the_order_of_rank)
{
    static line l;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fg_rng rng = { seed };
        fg_queue_options options = line_options();
        line_open(&l, &options);
        for (uint32_t step = 0; step < 1500; step++) {
            fg_queue_item *item = &l.items[fg_rng_below(&rng, ITEMS_MAX)];
            l.now_ns += fg_rng_below(&rng, S);
            if (item->place == FG_QUEUE_OUT) {
                *item = (fg_queue_item){ .id = ++l.count,
                                         .tenant = 5,
                                         .queued_ns = l.now_ns,
                                         .priority = (int32_t)fg_rng_below(&rng, 3) - 1,
                                         .cost = (uint32_t)fg_rng_below(&rng, 100) };
                cr_assert_eq(fg_queue_push(l.queue, item), FG_OK);
            } else if (item->place == FG_QUEUE_RUNNING && step % 2 == 0) {
                fg_queue_put_back(l.queue, item);
            } else if (step % 7 == 0) {
                fg_queue_remove(l.queue, item, 1);
            }
            fg_queue_item *next = fg_queue_peek(l.queue, l.now_ns);
            cr_assert(next == NULL || count_before(&l, next) == 0, "seed %llu",
                      (unsigned long long)seed);
            if (next != NULL && step % 3 == 0) {
                fg_queue_take(l.queue, next);
            }
        }
        line_close(&l);
    }
}

Test(queue, ten_thousand_tenants_take_no_more_memory_than_one)
{
    enum { LIVE = FG_LIMIT_LIVE_REQUESTS, TENANTS = 10000 };
    fg_queue *queue = NULL;
    fg_queue_options options = line_options();
    options.requests_max = LIVE;
    options.live_max = LIVE;
    cr_assert_eq(fg_queue_create(&options, &queue, NULL), FG_OK);
    fg_queue_item *items = fg_mem_array(TENANTS, sizeof *items);
    cr_assert_not_null(items);
    uint64_t taken = fg_mem_count(), refused = 0, served = 0;
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < TENANTS; i++) {
            items[i] = (fg_queue_item){ .id = (uint64_t)round * TENANTS + i + 1,
                                        .tenant = fg_hash_mix(i + 1),
                                        .queued_ns = S + i,
                                        .tokens = 1,
                                        .cost = 1 + i % 100 };
            refused += fg_queue_push(queue, &items[i]) != FG_OK;
        }
        fg_queue_check(queue);
        fg_queue_item *next;
        while ((next = fg_queue_peek(queue, 2 * S)) != NULL) {
            fg_queue_take(queue, next);
            fg_queue_remove(queue, next, next->cost);
            served++;
        }
        fg_queue_check(queue);
    }
    cr_assert(served == 3 * LIVE && refused == 3 * (TENANTS - LIVE));
    cr_assert_eq(fg_mem_count(), taken);
    fg_mem_free(items);
    fg_queue_destroy(queue);
}
