#include "common/base/team.h"

#include "common/base/mem.h"
#include "common/base/thread.h"

/* About 20 us: longer than the gaps between the operations of a step, shorter than any step. */
enum { SPIN_MAX = 1000 };

typedef struct member_slot {
    fg_team *team;
    uint32_t member;
    pthread_t thread;
} member_slot;

struct fg_team {
    uint32_t thread_count;
    uint32_t started; /* threads running, without the caller */
    fg_team_fn fn;
    void *ctx;
    bool stop;
    _Alignas(64) _Atomic uint32_t epoch; /* grows by one per run; the members' starting gun */
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t left; /* members that have not finished this run */
    _Atomic uint32_t caller_sleeps;
    _Alignas(64) member_slot slots[];
};

static uint32_t wait_for_epoch(fg_team *team, uint32_t seen)
{
    for (int spin = 0; spin < SPIN_MAX; spin++) {
        uint32_t epoch = atomic_load_explicit(&team->epoch, memory_order_acquire);
        if (epoch != seen) {
            return epoch;
        }
        fg_thread_relax();
    }
    /* Announce the sleep before the last look; fg_team_run raises the epoch before it counts the
     * sleepers, so one of the two sees the other. */
    atomic_fetch_add(&team->sleepers, 1);
    uint32_t epoch = atomic_load(&team->epoch);
    while (epoch == seen) {
        fg_thread_sleep_while(&team->epoch, seen);
        epoch = atomic_load(&team->epoch);
    }
    atomic_fetch_sub(&team->sleepers, 1);
    return epoch;
}

static void *member_main(void *ctx)
{
    member_slot *slot = ctx;
    fg_team *team = slot->team;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_for_epoch(team, seen);
        if (team->stop) {
            return NULL;
        }
        team->fn(team->ctx, slot->member, team->thread_count);
        if (atomic_fetch_sub(&team->left, 1) == 1 && atomic_load(&team->caller_sleeps) != 0) {
            fg_thread_wake_all(&team->left);
        }
    }
}

static void start_members(fg_team *team)
{
    atomic_fetch_add(&team->epoch, 1);
    if (atomic_load(&team->sleepers) != 0) {
        fg_thread_wake_all(&team->epoch);
    }
}

static void wait_for_members(fg_team *team)
{
    for (int spin = 0; spin < SPIN_MAX; spin++) {
        if (atomic_load_explicit(&team->left, memory_order_acquire) == 0) {
            return;
        }
        fg_thread_relax();
    }
    atomic_store(&team->caller_sleeps, 1);
    uint32_t left;
    while ((left = atomic_load(&team->left)) != 0) {
        fg_thread_sleep_while(&team->left, left);
    }
    atomic_store(&team->caller_sleeps, 0);
}

fg_status fg_team_create(uint32_t thread_count, fg_team **team_out, fg_error *err)
{
    if (thread_count == 0 || thread_count > FG_TEAM_THREADS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "threads must be 1 to %d, not %u", FG_TEAM_THREADS_MAX,
                       thread_count);
    }
    /* The struct holds cache-line aligned members, which the heap does not promise. */
    size_t size_bytes = sizeof(fg_team) + thread_count * sizeof(member_slot);
    fg_team *team = fg_mem_map(size_bytes);
    if (team == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %u compute threads", thread_count);
    }
    team->thread_count = thread_count;
    for (uint32_t i = 1; i < thread_count; i++) {
        member_slot *slot = &team->slots[i];
        slot->team = team;
        slot->member = i;
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
    team->stop = true;
    start_members(team);
    for (uint32_t i = 1; i <= team->started; i++) {
        fg_thread_join(team->slots[i].thread);
    }
    fg_mem_unmap(team, sizeof(fg_team) + team->thread_count * sizeof(member_slot));
}

uint32_t fg_team_size(const fg_team *team)
{
    return team->thread_count;
}

void fg_team_run(fg_team *team, fg_team_fn fn, void *ctx)
{
    if (team->started == 0) {
        fn(ctx, 0, 1);
        return;
    }
    team->fn = fn;
    team->ctx = ctx;
    atomic_store_explicit(&team->left, team->started, memory_order_relaxed);
    start_members(team);
    fn(ctx, 0, team->thread_count);
    wait_for_members(team);
}
