/*
 * How a run works, and why a late member can do no harm:
 *
 * Pieces lie in lanes, one for each member (or, of many, for some on one memory node), who goes through its
 * own and then helps with the others': what follows a piece is mostly done by who did that piece, as kernels
 * assume when they ask memory for what comes next. A lane's `unclaimed` counts its pieces that nobody has
 * claimed yet; a claim is one compare-and-swap from n to
 * n - 1. Its acquire reads what the run's release store (or a claim after it) wrote, so that the fields
 * beside it are the run's. They are read only after a claim has succeeded: the run cannot end before the
 * claimed piece is reported in `left`, so the fields, and the caller's ctx behind them, stay as they are
 * until then. A member that stood still since an earlier run and then succeeds has claimed a piece of
 * the run of now, and reads the fields of now; no number of the run is needed to tell the two apart. One
 * that fails has touched nothing but the counter.
 *
 * `left` falls by what each member has done (release); the caller that sees 0 (acquire) sees all their
 * results, and its next release store hands them to the next claims.
 *
 * Sleep: a member says that it sleeps and then looks for work; the caller publishes work and then looks
 * for sleepers. Both are sequentially consistent, so one of them sees the other. Whoever turns a
 * member's ASLEEP into AWAKE takes it out of `sleepers`.
 *
 * Width: members from `width` on have no work to look for. It is the caller's, who changes it between two
 * claims of its own; a member reads it before each claim. A greater width is published as work is. A
 * member that has missed that the width fell does one piece more, which harms nobody.
 */
#include "common/base/team.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/team_rescue.h"
#include "common/base/thread.h"

/* Longer than the gaps between the operations of a step, much shorter than a time slice: a waiting
 * thread that gives its core back lets the system run one that lost its own core there. */
enum { SPIN_NS = 20000, SPIN_SAMPLE = 64, SPIN_SAMPLES = 4 };

/* How often a thread that sleeps during a run looks whether another lost its core. */
enum { LOOK_NS = 250000 };

enum { AWAKE, ASLEEP };

/* Each costs a store when a run begins, to a cache line that all look at. */
enum { LANES_MAX = 16 };

typedef struct lane {
    _Alignas(64) _Atomic uint32_t unclaimed;
    uint32_t end; /* one behind its last piece; written before `unclaimed`, read after a claim */
    uint32_t node;
    uint32_t member_count;
} lane;

typedef struct member_slot {
    _Alignas(64) _Atomic uint32_t state;
    uint32_t member;
    uint32_t lane;
    int pin; /* a processor, or -1 */
    fg_team *team;
    pthread_t thread;
    fg_team_seat seat;
} member_slot;

struct fg_team {
    uint32_t thread_count;
    uint32_t started; /* threads running, without the caller */
    pthread_t caller; /* of the newest run */
    uint32_t spins;   /* looks before a sleep */
    uint32_t lane_count;
    fg_team_width_fn ask_width; /* NULL: all take part */
    void *width_ctx;
    /* Written before any `unclaimed`, read after a claim. */
    fg_team_piece_fn fn;
    void *ctx;
    lane lanes[LANES_MAX];
    _Alignas(64) _Atomic uint32_t left; /* pieces whose end has not been reported */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic uint32_t width; /* changes about as often as `sleepers` */
    _Atomic bool stop;
    member_slot slots[];
};

/* How many looks fit into SPIN_NS: a pause is 10 cycles on one processor and 140 on the next. The
 * quickest of a few samples, since one may be interrupted. */
static uint32_t count_spins(void)
{
    fg_clock clock = fg_clock_real();
    uint64_t best_ns = UINT64_MAX;
    for (int sample = 0; sample < SPIN_SAMPLES; sample++) {
        uint64_t start_ns = fg_clock_now_ns(&clock);
        for (int spin = 0; spin < SPIN_SAMPLE; spin++) {
            fg_thread_relax();
        }
        uint64_t took_ns = fg_clock_now_ns(&clock) - start_ns;
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    return (uint32_t)(SPIN_NS * (uint64_t)SPIN_SAMPLE / (best_ns == 0 ? 1 : best_ns)) + 1;
}

static bool wake(fg_team *team, member_slot *slot)
{
    if (atomic_load(&slot->state) == AWAKE || atomic_exchange(&slot->state, AWAKE) == AWAKE) {
        return false;
    }
    atomic_fetch_sub(&team->sleepers, 1);
    return true;
}

/* Makes sure that members 1 to count - 1 are awake. */
static void wake_members(fg_team *team, uint32_t count)
{
    if (atomic_load(&team->sleepers) == 0) {
        return;
    }
    for (uint32_t i = 1; i < count; i++) {
        if (wake(team, &team->slots[i])) {
            fg_thread_wake_one(&team->slots[i].state);
        }
    }
}

/* By the caller of runs. */
static void refresh_width(fg_team *team)
{
    if (team->ask_width == NULL) {
        return;
    }
    uint32_t width = team->ask_width(team->width_ctx);
    width = width == 0 ? 1 : width < team->thread_count ? width : team->thread_count;
    uint32_t before = atomic_load_explicit(&team->width, memory_order_relaxed);
    if (width == before) {
        return;
    }
    fg_team_unhold(&team->slots[0].seat);
    atomic_store(&team->width, width);
    if (width > before) {
        wake_members(team, width);
    }
}

static bool takes_part(const member_slot *slot)
{
    return slot->member < atomic_load(&slot->team->width);
}

/* Claims a lane's pieces until none is left, or the member is left out, and does them; adds how many to
 * *done. */
static void do_lane(fg_team *team, lane *from, uint32_t member, uint32_t *done)
{
    uint32_t unclaimed = atomic_load_explicit(&from->unclaimed, memory_order_relaxed);
    while (unclaimed != 0 && takes_part(&team->slots[member])) {
        if (!atomic_compare_exchange_weak_explicit(&from->unclaimed, &unclaimed, unclaimed - 1,
                                                   memory_order_acquire, memory_order_relaxed)) {
            continue;
        }
        if ((*done)++ == 0) {
            fg_team_begin(&team->slots[member].seat);
        }
        team->fn(team->ctx, from->end - unclaimed, member);
        if (member == 0) {
            refresh_width(team);
        }
        unclaimed = atomic_load_explicit(&from->unclaimed, memory_order_relaxed);
    }
}

static lane *own_lane(fg_team *team, uint32_t member)
{
    return &team->lanes[team->slots[member].lane];
}

/* The lanes behind the member's own, of its node or (near = false) of the others. Who finds its own lane empty
 * and another one full may only have been too early for its own: a run fills the caller's lane last. */
static void help_lanes(fg_team *team, uint32_t member, bool near, uint32_t *done)
{
    lane *own = own_lane(team, member);
    uint32_t first = team->slots[member].lane + 1;
    for (uint32_t i = first; i < first + team->lane_count - 1; i++) {
        lane *other = &team->lanes[i % team->lane_count];
        if ((other->node == own->node) != near ||
            atomic_load_explicit(&other->unclaimed, memory_order_acquire) == 0) {
            continue;
        }
        do_lane(team, own, member, done);
        do_lane(team, other, member, done);
    }
}

/* Does pieces, those of the member's own lane first, until none is left; returns how many. All are of
 * one run, since it cannot end before they are reported. */
static uint32_t do_pieces(fg_team *team, uint32_t member)
{
    uint32_t done = 0;
    do_lane(team, own_lane(team, member), member, &done);
    help_lanes(team, member, true, &done);
    help_lanes(team, member, false, &done);
    return done;
}

static void report(fg_team *team, uint32_t done)
{
    if (atomic_fetch_sub(&team->left, done) == done && atomic_load(&team->caller_sleeps) != 0) {
        fg_thread_wake_all(&team->left);
    }
}

/* Sequentially consistent, because the last look before a sleep has to be; on x86 that is free. */
static bool has_news(member_slot *slot)
{
    fg_team *team = slot->team;
    for (uint32_t i = 0; i < team->lane_count; i++) {
        if (atomic_load(&team->lanes[i].unclaimed) != 0) {
            return takes_part(slot) || atomic_load(&team->stop);
        }
    }
    return atomic_load(&team->stop);
}

/* Called by a thread that would sleep otherwise. Who is left out has no core to give. */
static void look_for_stuck(member_slot *slot)
{
    fg_team *team = slot->team;
    if (!takes_part(slot)) {
        return;
    }
    for (uint32_t i = 0; i < team->thread_count && atomic_load(&team->left) != 0; i++) {
        if (i != slot->member && fg_team_rescue(&slot->seat, &team->slots[i].seat, i == 0)) {
            return;
        }
    }
}

static void wait_for_news(member_slot *slot)
{
    fg_team *team = slot->team;
    for (uint32_t spin = 0; spin < team->spins; spin++) {
        if (has_news(slot)) {
            return;
        }
        if (!takes_part(slot)) {
            break;
        }
        fg_thread_relax();
    }
    look_for_stuck(slot);
    atomic_fetch_add(&team->sleepers, 1);
    atomic_store(&slot->state, ASLEEP);
    if (has_news(slot)) {
        wake(team, slot);
        return;
    }
    while (atomic_load(&slot->state) == ASLEEP) {
        if (atomic_load(&team->left) == 0 || !takes_part(slot)) {
            fg_thread_sleep_while(&slot->state, ASLEEP);
        } else {
            fg_thread_sleep_while_for(&slot->state, ASLEEP, LOOK_NS);
            look_for_stuck(slot);
        }
    }
}

static void *member_main(void *ctx)
{
    member_slot *slot = ctx;
    fg_team *team = slot->team;
    fg_team_sit(&slot->seat, slot->pin);
    while (!atomic_load(&team->stop)) {
        uint32_t done = do_pieces(team, slot->member);
        if (done != 0) {
            report(team, done);
            fg_team_end(&slot->seat);
        }
        wait_for_news(slot);
    }
    return NULL;
}

static void wait_for_members(fg_team *team)
{
    for (uint32_t spin = 0; spin < team->spins; spin++) {
        if (atomic_load_explicit(&team->left, memory_order_acquire) == 0) {
            return;
        }
        fg_thread_relax();
    }
    atomic_store(&team->caller_sleeps, 1);
    uint32_t left;
    while ((left = atomic_load(&team->left)) != 0) {
        look_for_stuck(&team->slots[0]);
        fg_thread_sleep_while_for(&team->left, left, LOOK_NS);
    }
    atomic_store(&team->caller_sleeps, 0);
}

uint64_t *fg_team_wait_ns;

static void wait_counted(fg_team *team)
{
    fg_clock clock = fg_clock_real();
    uint64_t began_ns = fg_clock_now_ns(&clock);
    wait_for_members(team);
    *fg_team_wait_ns += fg_clock_now_ns(&clock) - began_ns;
}

static size_t size_of(uint32_t thread_count)
{
    return sizeof(fg_team) + thread_count * sizeof(member_slot);
}

static uint32_t node_of(const fg_team_place *places, uint32_t member)
{
    return places != NULL ? places[member].node : 0;
}

/* Whether an earlier member is on this one's node. */
static bool has_earlier(const fg_team_place *places, uint32_t member)
{
    for (uint32_t i = 0; i < member; i++) {
        if (node_of(places, i) == node_of(places, member)) {
            return true;
        }
    }
    return false;
}

/* Gives the members of a node their lanes, `most` at most, behind those of other nodes. Behind the last lane
 * there is, they share it. */
static void assign_lanes_of(fg_team *team, const fg_team_place *places, uint32_t node,
                            uint32_t most)
{
    uint32_t first = team->lane_count < LANES_MAX ? team->lane_count : LANES_MAX - 1;
    uint32_t count = 0;
    for (uint32_t i = 0; i < team->thread_count; i++) {
        if (node_of(places, i) != node) {
            continue;
        }
        lane *l = &team->lanes[first + count++ % most];
        team->slots[i].lane = (uint32_t)(l - team->lanes);
        l->node = l->member_count == 0 ? node : l->node;
        l->member_count++;
    }
    team->lane_count = first + (count < most ? count : most);
}

static void assign_lanes(fg_team *team, const fg_team_place *places)
{
    uint32_t nodes = 0;
    for (uint32_t i = 0; i < team->thread_count; i++) {
        member_slot *slot = &team->slots[i];
        slot->team = team;
        slot->member = i;
        slot->pin = places != NULL && places[i].pinned ? places[i].cpu : -1;
        nodes += !has_earlier(places, i);
    }
    uint32_t most = team->thread_count <= LANES_MAX ? LANES_MAX : LANES_MAX / nodes;
    for (uint32_t i = 0; i < team->thread_count; i++) {
        if (!has_earlier(places, i)) {
            assign_lanes_of(team, places, node_of(places, i), most == 0 ? 1 : most);
        }
    }
}

fg_status fg_team_create(uint32_t thread_count, const fg_team_place *places, fg_team **team_out,
                         fg_error *err)
{
    if (thread_count == 0 || thread_count > FG_TEAM_THREADS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "threads must be 1 to %d, not %u", FG_TEAM_THREADS_MAX,
                       thread_count);
    }
    /* The struct holds cache-line aligned members, which the heap does not promise. */
    fg_team *team = fg_mem_map(size_of(thread_count));
    if (team == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u compute threads", thread_count);
    }
    team->thread_count = thread_count;
    team->width = thread_count;
    assign_lanes(team, places);
    team->spins = thread_count == 1 ? 0 : count_spins();
    for (uint32_t i = 1; i < thread_count; i++) {
        member_slot *slot = &team->slots[i];
        if (!fg_thread_start(&slot->thread, member_main, slot)) {
            fg_team_destroy(team);
            return fg_fail(err, FG_AGAIN, "the system gave only %u of %u compute threads", i,
                           thread_count);
        }
        team->started++;
    }
    *team_out = team;
    return FG_OK;
}

void fg_team_destroy(fg_team *team)
{
    if (team == NULL) {
        return;
    }
    atomic_store(&team->stop, true);
    wake_members(team, team->started + 1);
    for (uint32_t i = 1; i <= team->started; i++) {
        fg_thread_join(team->slots[i].thread);
    }
    fg_team_leave(&team->slots[0].seat);
    fg_mem_unmap(team, size_of(team->thread_count));
}

uint32_t fg_team_size(const fg_team *team)
{
    return team->thread_count;
}

void fg_team_follow(fg_team *team, fg_team_width_fn width, void *ctx)
{
    team->ask_width = width;
    team->width_ctx = ctx;
    atomic_store(&team->width, team->thread_count);
}

/* Each lane gets a range as long as its part of the members; those of a node follow each other. */
static void publish(fg_team *team, uint32_t piece_count)
{
    uint32_t counts[LANES_MAX];
    uint32_t members = 0, first = 0;
    for (uint32_t i = 0; i < team->lane_count; i++) {
        members += team->lanes[i].member_count;
        uint32_t end = (uint32_t)((uint64_t)piece_count * members / team->thread_count);
        team->lanes[i].end = end;
        counts[i] = end - first;
        first = end;
    }
    for (uint32_t i = team->lane_count; i-- > 0;) {
        atomic_store(&team->lanes[i].unclaimed, counts[i]);
    }
}

void fg_team_for(fg_team *team, uint32_t piece_count, fg_team_piece_fn fn, void *ctx)
{
    member_slot *self = &team->slots[0];
    if (team->caller != pthread_self()) {
        team->caller = pthread_self();
        fg_team_sit(&self->seat, self->pin);
    }
    refresh_width(team);
    if (team->started == 0 || piece_count < 2) {
        for (uint32_t piece = 0; piece < piece_count; piece++) {
            fn(ctx, piece, 0);
            refresh_width(team);
        }
        return;
    }
    team->fn = fn;
    team->ctx = ctx;
    atomic_store_explicit(&team->left, piece_count, memory_order_relaxed);
    publish(team, piece_count);
    uint32_t width = atomic_load_explicit(&team->width, memory_order_relaxed);
    wake_members(team, piece_count < width ? piece_count : width);
    uint32_t done = do_pieces(team, 0);
    /* The caller's own report needs no wake-up, and is the last one more often than not. */
    if (atomic_fetch_sub(&team->left, done) != done) {
        if (fg_team_wait_ns == NULL) {
            wait_for_members(team);
        } else {
            wait_counted(team);
        }
    }
    fg_team_end(&self->seat);
}
