#include "common/kv/tier.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

enum { SLOTS = 4, BLOCK = 4, BYTES = 4096 };

static const fg_digest128 root = { 11, 12 };

static fg_digest128 key_of(uint32_t n)
{
    return (fg_digest128){ .low = n * 4u, .high = n }; /* all in one bucket */
}

static const uint32_t *tokens_of(uint32_t n)
{
    static uint32_t tokens[BLOCK];
    for (uint32_t i = 0; i < BLOCK; i++) {
        tokens[i] = n + i;
    }
    return tokens;
}

static fg_tier *make_tier(uint32_t slots)
{
    fg_tier_options options = { .block_bytes = BYTES, .block_count = slots, .block_size = BLOCK };
    fg_tier *tier = NULL;
    cr_assert_eq(fg_tier_open(&options, &tier, NULL), FG_OK);
    return tier;
}

static fg_tier_stats stats_of(const fg_tier *tier)
{
    fg_tier_stats stats;
    fg_tier_check(tier);
    fg_tier_stats_get(tier, &stats);
    return stats;
}

static uint32_t store(fg_tier *tier, uint32_t n)
{
    return fg_tier_store(tier, root, key_of(n), tokens_of(n));
}

static uint32_t find(fg_tier *tier, uint32_t n)
{
    return fg_tier_find(tier, root, key_of(n), tokens_of(n));
}

/* Stored and filled at once. */
static uint32_t keep(fg_tier *tier, uint32_t n)
{
    uint32_t slot = store(tier, n);
    cr_assert_neq(slot, FG_TIER_NONE, "%u", n);
    fg_tier_filled(tier, slot, 1000 + n);
    return slot;
}

Test(kv_tier, a_swapped_block_comes_back_and_frees_its_slot)
{
    fg_tier *tier = make_tier(SLOTS);
    uint32_t slots[SLOTS + 1];
    cr_assert_eq(fg_tier_take(tier, SLOTS + 1, slots), FG_AGAIN);
    cr_assert_eq(fg_tier_take(tier, UINT32_MAX, slots), FG_AGAIN);
    cr_assert_eq(stats_of(tier).free, (uint32_t)SLOTS, "all or none");
    cr_assert_eq(fg_tier_take(tier, SLOTS, slots), FG_OK);
    cr_assert_eq(fg_tier_take(tier, 0, slots + SLOTS), FG_OK);
    unsigned char *arena = fg_tier_arena(tier);
    for (uint32_t i = 0; i < SLOTS; i++) {
        memset(arena + (size_t)slots[i] * BYTES, (int)i + 1, BYTES);
        fg_tier_filled(tier, slots[i], i);
    }
    cr_assert(stats_of(tier).swapped == SLOTS && fg_tier_available(tier) == 0);
    for (uint32_t i = 0; i < SLOTS; i++) {
        cr_assert_eq(arena[(size_t)slots[i] * BYTES + BYTES - 1], i + 1);
        cr_assert(fg_tier_verify(tier, slots[i], i));
        cr_assert(!fg_tier_verify(tier, slots[i], i + 1));
        fg_tier_give(tier, slots[i]);
    }
    fg_tier_stats stats = stats_of(tier);
    cr_assert(stats.free == SLOTS && stats.swapped == 0 && stats.damaged == SLOTS);
    fg_tier_close(tier);
}

Test(kv_tier, a_stored_block_is_found_by_key_parent_and_tokens)
{
    fg_tier *tier = make_tier(SLOTS);
    uint32_t slot = keep(tier, 1);
    cr_assert_eq(find(tier, 1), slot);
    cr_assert_eq(find(tier, 2), FG_TIER_NONE);
    cr_assert_eq(fg_tier_find(tier, root, key_of(1), tokens_of(2)), FG_TIER_NONE, "other tokens");
    cr_assert_eq(fg_tier_find(tier, key_of(1), key_of(1), tokens_of(1)), FG_TIER_NONE,
                 "other parent");
    cr_assert_eq(store(tier, 1), FG_TIER_NONE, "is here already");
    cr_assert_eq(fg_tier_store(tier, root, key_of(1), tokens_of(7)), FG_TIER_NONE, "collision");
    fg_tier_stats stats = stats_of(tier);
    cr_assert(stats.stored == 1 && stats.stores == 1 && stats.hits == 1);
    fg_tier_close(tier);
}

Test(kv_tier, a_filling_slot_is_neither_found_nor_reused)
{
    fg_tier *tier = make_tier(1);
    uint32_t other;
    uint32_t slot = store(tier, 1);
    cr_assert_eq(find(tier, 1), FG_TIER_NONE);
    cr_assert_eq(store(tier, 1), FG_TIER_NONE);
    cr_assert_eq(store(tier, 2), FG_TIER_NONE);
    cr_assert_eq(fg_tier_available(tier), 0u);
    cr_assert_eq(fg_tier_take(tier, 1, &other), FG_AGAIN);
    cr_assert_eq(stats_of(tier).stored, 1u);
    fg_tier_filled(tier, slot, 5);
    cr_assert_eq(find(tier, 1), slot);
    cr_assert_eq(fg_tier_available(tier), 1u);
    fg_tier_check(tier);
    fg_tier_close(tier);
}

Test(kv_tier, least_recently_used_goes_first_to_new_ones_and_to_swaps)
{
    fg_tier *tier = make_tier(SLOTS);
    uint32_t slots[SLOTS], taken[2];
    for (uint32_t n = 0; n < SLOTS; n++) {
        slots[n] = keep(tier, n);
    }
    cr_assert_eq(find(tier, 0), slots[0]); /* now 1 2 3 0 */
    cr_assert_eq(keep(tier, 9), slots[1]);
    cr_assert_eq(fg_tier_take(tier, 2, taken), FG_OK);
    cr_assert(taken[0] == slots[2] && taken[1] == slots[3]);
    cr_assert(find(tier, 1) == FG_TIER_NONE && find(tier, 2) == FG_TIER_NONE);
    cr_assert(find(tier, 0) == slots[0] && find(tier, 9) == slots[1]);
    fg_tier_stats stats = stats_of(tier);
    cr_assert(stats.evictions == 3 && stats.swapped == 2 && stats.stored == 2);
    cr_assert_eq(fg_tier_take(tier, 3, slots), FG_AGAIN, "swapped ones are their sequence's");
    fg_tier_close(tier);
}

Test(kv_tier, a_locked_slot_is_neither_found_nor_reused_until_the_last_unlock)
{
    fg_tier *tier = make_tier(2);
    uint32_t slot = keep(tier, 1), other;
    fg_tier_lock(tier, slot);
    fg_tier_lock(tier, slot);
    cr_assert_eq(fg_tier_available(tier), 1u);
    cr_assert_eq(fg_tier_take(tier, 2, (uint32_t[2]){ 0 }), FG_AGAIN);
    cr_assert_eq(keep(tier, 2), 1 - slot);
    cr_assert_eq(keep(tier, 3), 1 - slot, "the other one, though it was used later");
    cr_assert_eq(find(tier, 1), FG_TIER_NONE);
    cr_assert_eq(store(tier, 1), FG_TIER_NONE, "its key is here still");
    fg_tier_unlock(tier, slot);
    cr_assert_eq(find(tier, 1), FG_TIER_NONE);
    fg_tier_check(tier);
    fg_tier_unlock(tier, slot);
    cr_assert_eq(find(tier, 1), slot);
    cr_assert_eq(fg_tier_take(tier, 1, &other), FG_OK);
    cr_assert_eq(other, 1 - slot, "a copy is a use");
    fg_tier_check(tier);
    fg_tier_close(tier);
}

Test(kv_tier, a_damaged_stored_slot_is_not_found_any_more)
{
    fg_tier *tier = make_tier(2);
    uint32_t slot = keep(tier, 1);
    cr_assert(fg_tier_verify(tier, slot, 1001));
    fg_tier_lock(tier, slot);
    cr_assert(!fg_tier_verify(tier, slot, 1002));
    fg_tier_stats stats = stats_of(tier);
    cr_assert(stats.damaged == 1 && stats.stored == 1 && stats.free == 1, "locked still");
    uint32_t again = keep(tier, 1);
    cr_assert_eq(again, 1 - slot, "the key can be stored anew");
    fg_tier_unlock(tier, slot);
    cr_assert_eq(stats_of(tier).free, 1u);
    cr_assert_eq(find(tier, 1), again);
    cr_assert(!fg_tier_verify(tier, again, 0), "damaged while nobody locks it");
    cr_assert_eq(find(tier, 1), FG_TIER_NONE);
    cr_assert_eq(stats_of(tier).free, 2u);
    fg_tier_close(tier);
}

Test(kv_tier, clear_forgets_stored_slots_and_locked_ones_when_unlocked)
{
    fg_tier *tier = make_tier(4);
    uint32_t swapped, idle = keep(tier, 1), read = keep(tier, 2), filling = store(tier, 3);
    (void)idle;
    cr_assert_eq(fg_tier_take(tier, 1, &swapped), FG_OK);
    fg_tier_lock(tier, read);
    fg_tier_clear(tier);
    fg_tier_clear(tier);
    fg_tier_stats stats = stats_of(tier);
    cr_assert(stats.free == 1 && stats.stored == 2 && stats.swapped == 1);
    cr_assert(fg_tier_verify(tier, read, 1002), "what is read is still there");
    fg_tier_unlock(tier, read);
    fg_tier_filled(tier, filling, 1);
    for (uint32_t n = 1; n <= 3; n++) {
        cr_assert_eq(find(tier, n), FG_TIER_NONE, "%u", n);
    }
    stats = stats_of(tier);
    cr_assert(stats.free == 3 && stats.stored == 0 && stats.swapped == 1);
    fg_tier_give(tier, swapped);
    fg_tier_close(tier);
}

Test(kv_tier, a_slot_given_while_a_copy_runs_is_free_at_the_unlock)
{
    fg_tier *tier = make_tier(1);
    uint32_t slot;
    cr_assert_eq(fg_tier_take(tier, 1, &slot), FG_OK);
    fg_tier_lock(tier, slot);
    fg_tier_give(tier, slot); /* the sequence was cancelled */
    cr_assert(stats_of(tier).swapped == 1 && fg_tier_available(tier) == 0);
    fg_tier_filled(tier, slot, 3);
    fg_tier_unlock(tier, slot);
    cr_assert(stats_of(tier).free == 1 && fg_tier_available(tier) == 1);
    fg_tier_close(tier);
}

/* ---- opening ---- */

static const struct {
    const char *name;
    fg_tier_options options;
} refused_cases[] = {
    { "no slot", { BYTES, 0, BLOCK, NULL } },
    { "too many slots", { BYTES, UINT32_MAX, BLOCK, NULL } },
    { "no bytes", { 0, SLOTS, BLOCK, NULL } },
    { "a size that overflows", { SIZE_MAX / 2, SLOTS, BLOCK, NULL } },
    { "a size beyond addresses", { SIZE_MAX / 8 * 3, 2, BLOCK, NULL } },
    { "no token", { BYTES, SLOTS, 0, NULL } },
    { "too many tokens", { BYTES, SLOTS, 1025, NULL } },
    { "a directory that is not there", { BYTES, SLOTS, BLOCK, "/nonexistent/kv" } },
    { "a file for a directory", { BYTES, SLOTS, BLOCK, "/dev/null" } },
    { "a directory where no file can be made", { BYTES, SLOTS, BLOCK, "/proc" } },
    { "no name", { BYTES, SLOTS, BLOCK, "" } },
};

Test(kv_tier, refuses_bad_options_with_a_text)
{
    for (size_t i = 0; i < sizeof refused_cases / sizeof *refused_cases; i++) {
        fg_tier *tier = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_tier_open(&refused_cases[i].options, &tier, &err), FG_BAD_INPUT, "%s: %s",
                     refused_cases[i].name, err.text);
        cr_assert(tier == NULL && err.text[0] != 0, "%s", refused_cases[i].name);
    }
}

Test(kv_tier, memory_that_cannot_be_had_is_an_error_at_open)
{
    fg_tier_options options = { .block_bytes = (size_t)1 << 60, .block_count = 1, .block_size = 1 };
    fg_tier *tier = NULL;
    fg_error err = { 0 };
    cr_assert_eq(fg_tier_open(&options, &tier, &err), FG_AGAIN, "%s", err.text);
    cr_assert_null(tier);
}

static void make_directory(char path[64])
{
    snprintf(path, 64, "/tmp/fg-tier-XXXXXX");
    cr_assert_not_null(mkdtemp(path));
}

static int count_files(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    cr_assert_not_null(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(directory);
    return count;
}

Test(kv_tier, a_file_without_a_name_holds_the_slots)
{
    char path[64];
    fg_tier *tier = NULL;
    fg_error err = { 0 };
    make_directory(path);
    fg_tier_options options = { BYTES, 64, BLOCK, path };
    cr_assert_eq(fg_tier_open(&options, &tier, &err), FG_OK, "%s", err.text);
    cr_assert_eq(count_files(path), 0);
    unsigned char *arena = fg_tier_arena(tier);
    uint32_t slots[64];
    cr_assert_eq(fg_tier_take(tier, 64, slots), FG_OK);
    for (uint32_t i = 0; i < 64; i++) {
        memset(arena + (size_t)slots[i] * BYTES, (int)i, BYTES);
    }
    for (uint32_t i = 0; i < 64; i++) {
        cr_assert_eq(arena[(size_t)slots[i] * BYTES], i);
        cr_assert_eq(arena[(size_t)slots[i] * BYTES + BYTES - 1], i);
    }
    fg_tier_close(tier);
    cr_assert_eq(rmdir(path), 0, "nothing is left behind");
}

Test(kv_tier, a_directory_without_the_right_to_write_is_refused)
{
    if (geteuid() == 0) {
        cr_skip("root may write everywhere");
    }
    char path[64];
    fg_tier *tier = NULL;
    make_directory(path);
    cr_assert_eq(chmod(path, 0500), 0);
    fg_tier_options options = { BYTES, SLOTS, BLOCK, path };
    cr_assert_eq(fg_tier_open(&options, &tier, NULL), FG_BAD_INPUT);
    cr_assert_null(tier);
    rmdir(path);
}

/* A limit on the size of files stands for a full disk. */
Test(kv_tier, a_full_disk_is_an_error_at_open)
{
    char path[64];
    fg_tier *tier = NULL;
    fg_error err = { 0 };
    struct rlimit old, small;
    make_directory(path);
    fg_tier_options options = { BYTES, 64, BLOCK, path };
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){ .rlim_cur = 16 * BYTES, .rlim_max = old.rlim_max };
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    fg_status status = fg_tier_open(&options, &tier, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, handler);
    cr_assert_eq(status, FG_AGAIN, "%s", err.text);
    cr_assert_null(tier);
    cr_assert_eq(rmdir(path), 0, "nothing is left behind");
}

static bool open_and_close(void *ctx)
{
    fg_tier_options options = { BYTES, SLOTS, BLOCK, ctx };
    fg_tier *tier = NULL;
    fg_status status = fg_tier_open(&options, &tier, NULL);
    cr_assert(status == FG_OK || status == FG_AGAIN);
    fg_tier_close(tier);
    return status == FG_OK;
}

Test(kv_tier, survives_each_failed_allocation)
{
    char path[64];
    make_directory(path);
    /* The tier, slots, tokens, links, the index's two, and the arena. */
    cr_assert_eq(fg_fault_each(open_and_close, NULL), 7);
    cr_assert_eq(fg_fault_each(open_and_close, path), 7);
    rmdir(path);
}

/* ---- random operations ---- */

enum { KEYS = 12, RANDOM_SLOTS = 6 };

typedef struct random_slot {
    enum { GONE, TAKEN, FILLS, STAYS } state;
    uint32_t locks, key;
    bool dropped;
} random_slot;

typedef struct world {
    fg_tier *tier;
    random_slot slots[RANDOM_SLOTS];
} world;

static void forget(world *w, uint32_t slot)
{
    w->slots[slot].dropped = true;
    if (w->slots[slot].locks == 0) {
        w->slots[slot] = (random_slot){ .state = GONE };
    }
}

/* A slot that the tier handed out: it was free or an idle stored one. */
static void claim(world *w, uint32_t slot, random_slot now)
{
    const random_slot *was = &w->slots[slot];
    cr_assert(was->state == GONE || (was->state == STAYS && was->locks == 0), "slot %u", slot);
    w->slots[slot] = now;
}

static void world_new_slots(world *w, fg_rng *rng, uint32_t key)
{
    uint32_t ids[3], count = (uint32_t)fg_rng_below(rng, 12), can = fg_tier_available(w->tier);
    if (count >= 3) {
        uint32_t slot = store(w->tier, key);
        bool known = false;
        for (uint32_t i = 0; i < RANDOM_SLOTS; i++) {
            const random_slot *s = &w->slots[i];
            known |= s->state >= FILLS && !s->dropped && s->key == key;
        }
        cr_assert_eq(slot != FG_TIER_NONE, !known && can > 0);
        if (slot != FG_TIER_NONE) {
            claim(w, slot, (random_slot){ .state = FILLS, .locks = 1, .key = key });
        }
    } else {
        cr_assert_eq(fg_tier_take(w->tier, count, ids), count <= can ? FG_OK : FG_AGAIN);
        for (uint32_t i = 0; i < count && count <= can; i++) {
            claim(w, ids[i], (random_slot){ .state = TAKEN });
        }
    }
}

static void world_step(world *w, fg_rng *rng)
{
    uint32_t at = (uint32_t)fg_rng_below(rng, RANDOM_SLOTS);
    uint32_t key = (uint32_t)fg_rng_below(rng, KEYS), found;
    random_slot *s = &w->slots[at];
    switch (fg_rng_below(rng, 8)) {
    case 0:
    case 1:
        world_new_slots(w, rng, key);
        break;
    case 2:
        if (s->state == TAKEN && !s->dropped) {
            fg_tier_give(w->tier, at);
            forget(w, at);
        }
        break;
    case 3:
        if (s->state == FILLS) {
            fg_tier_filled(w->tier, at, 1000 + s->key);
            s->state = STAYS;
            s->locks = 0;
            if (s->dropped) {
                forget(w, at);
            }
        }
        break;
    case 4:
        found = find(w->tier, key);
        for (uint32_t i = 0; i < RANDOM_SLOTS; i++) {
            bool is_it =
                w->slots[i].state == STAYS && w->slots[i].locks == 0 && w->slots[i].key == key;
            cr_assert_eq(found == i, is_it, "key %u, slot %u", key, i);
        }
        break;
    case 5:
        if ((s->state == TAKEN || s->state == STAYS) && s->locks < 2 && !s->dropped) {
            fg_tier_lock(w->tier, at);
            s->locks++;
        }
        break;
    case 6:
        if (s->locks > 0 && s->state != FILLS) {
            fg_tier_unlock(w->tier, at);
            s->locks--;
            if (s->dropped) {
                forget(w, at);
            }
        }
        break;
    default:
        if (s->state == STAYS) {
            bool good = fg_rng_below(rng, 16) > 0;
            cr_assert_eq(fg_tier_verify(w->tier, at, good ? 1000 + s->key : 0), good);
            if (!good) {
                forget(w, at);
            }
        } else if (fg_rng_below(rng, 8) == 0) {
            fg_tier_clear(w->tier);
            for (uint32_t i = 0; i < RANDOM_SLOTS; i++) {
                if (w->slots[i].state >= FILLS) {
                    forget(w, i);
                }
            }
        }
        break;
    }
}

Test(kv_tier, agrees_with_a_model_after_any_sequence_of_operations)
{
    fg_rng rng = { .state = 20270203 };
    cr_log_info("seed %llu", (unsigned long long)rng.state);
    world w = { .tier = make_tier(RANDOM_SLOTS) };
    for (int step = 0; step < 50000; step++) {
        world_step(&w, &rng);
        uint32_t free = 0, swapped = 0, stored = 0, idle = 0;
        for (uint32_t i = 0; i < RANDOM_SLOTS; i++) {
            free += w.slots[i].state == GONE;
            swapped += w.slots[i].state == TAKEN;
            stored += w.slots[i].state >= FILLS;
            idle += w.slots[i].state == STAYS && w.slots[i].locks == 0;
        }
        fg_tier_stats stats = stats_of(w.tier);
        cr_assert(stats.free == free && stats.swapped == swapped && stats.stored == stored,
                  "step %d", step);
        cr_assert_eq(fg_tier_available(w.tier), free + idle, "step %d", step);
    }
    fg_tier_stats stats = stats_of(w.tier);
    cr_assert(stats.evictions > 100 && stats.hits > 100, "too little happened: %llu and %llu",
              (unsigned long long)stats.evictions, (unsigned long long)stats.hits);
    fg_tier_close(w.tier);
}
