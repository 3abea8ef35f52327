/*
 * An entry has one writer, its owner. `life` says when it last spoke and whether it computes, in one word,
 * so that no reader sees half of a change; the rest is written while `life` says that it does not.
 * Readers take nothing on trust: what they read is clipped to what can be.
 *
 * The file is never made smaller, and has all its pages from the start: memory behind it cannot vanish.
 */
#include "common/base/core_share.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/base/team.h"

/* Another layout of the file is another name. */
enum { LAYOUT = 1 };

enum { CPU_WORDS = CPU_SETSIZE / 64, COMPUTES = 1 };

/* From one look for entries of the dead to the next. */
#define DEAD_LOOK_NS (100ull * 1000 * 1000)

/* While nobody else computes, a sign of life in so many pieces is enough for who begins. */
enum { QUIET_CALLS = 8 };

typedef struct entry {
    _Alignas(64) _Atomic uint64_t life; /* ns, the lowest bit replaced by COMPUTES */
    _Atomic uint32_t threads;
    _Atomic uint32_t rank;
    _Alignas(64) _Atomic uint64_t cpus[CPU_WORDS];
} entry;

typedef struct table {
    _Alignas(64) _Atomic uint32_t used; /* entries from here on never had an owner */
    entry entries[FG_CORE_SHARE_ENTRIES];
} table;

struct fg_core_share {
    int file;
    table *table;
    uint32_t self; /* index of the own entry */
    uint32_t cores;
    uint32_t threads;
    uint32_t rank;
    uint64_t cpus[CPU_WORDS];
    fg_clock clock;
    uint64_t look_ns; /* when to look for entries of the dead again */
    uint32_t quiet;   /* calls that may still be answered without a look at the clock */
    bool step_shared; /* the step of now has been counted */
    _Atomic uint32_t last_width;
    _Atomic uint64_t shared_steps;
};

/* ---- the rule ---- */

static bool goes_before(const fg_core_claim *claims, uint32_t a, uint32_t b)
{
    return claims[a].rank < claims[b].rank || (claims[a].rank == claims[b].rank && a < b);
}

uint32_t fg_core_share_fair(const fg_core_claim *claims, uint32_t count, uint32_t self,
                            uint32_t cores)
{
    /* `level` is what each gets that wants so much; who wants less leaves more to the others. */
    uint32_t level = 0, left = cores, hungry = count;
    while (hungry != 0 && left / hungry > level) {
        level = left / hungry;
        left = cores;
        hungry = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (claims[i].threads > level) {
                hungry++;
            } else {
                left -= claims[i].threads;
            }
        }
    }
    uint32_t wants = claims[self].threads;
    if (wants <= level) {
        return wants == 0 ? 1 : wants;
    }
    uint32_t rest = left - level * hungry, before = 0;
    for (uint32_t i = 0; i < count; i++) {
        before += claims[i].threads > level && goes_before(claims, i, self);
    }
    uint32_t width = level + (before < rest);
    return width == 0 ? 1 : width;
}

/* ---- the file ---- */

/* FG_OK when it is ours alone to write; it may have been there before. */
static fg_status check_file(int file, const char *path, fg_error *err)
{
    struct stat facts;
    if (fstat(file, &facts) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", path, strerror(errno));
    }
    if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & 077) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s is not a file of this user alone", path);
    }
    if (facts.st_size != 0 && facts.st_size != (off_t)sizeof(table)) {
        return fg_fail(err, FG_BAD_INPUT, "%s has %lld bytes, not %zu", path,
                       (long long)facts.st_size, sizeof(table));
    }
    int error = posix_fallocate(file, 0, sizeof(table));
    return error == 0 ? FG_OK : fg_fail(err, FG_BAD_INPUT, "%s: %s", path, strerror(error));
}

static fg_status map_file(fg_core_share *share, const char *directory, fg_error *err)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/forge-cores-%u-v%d", directory,
                          (unsigned)geteuid(), LAYOUT);
    if (length < 0 || (size_t)length >= sizeof path) {
        return fg_fail(err, FG_BAD_INPUT, "the directory's name is too long");
    }
    share->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (share->file < 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", path, strerror(errno));
    }
    fg_status status = check_file(share->file, path, err);
    if (status != FG_OK) {
        return status;
    }
    void *memory = fg_fault_hit() ? MAP_FAILED
                                  : mmap(NULL, sizeof(table), PROT_READ | PROT_WRITE, MAP_SHARED,
                                         share->file, 0);
    if (memory == MAP_FAILED) {
        return fg_fail(err, FG_AGAIN, "%s: no memory to map it", path);
    }
    share->table = memory;
    return FG_OK;
}

/* `type`: F_WRLCK or F_UNLCK. */
static bool lock_entry(int file, uint32_t index, short type)
{
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)index, .l_len = 1
    };
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

static fg_status take_entry(fg_core_share *share, fg_error *err)
{
    while (share->self < FG_CORE_SHARE_ENTRIES && !lock_entry(share->file, share->self, F_WRLCK)) {
        if (errno != EAGAIN && errno != EACCES) {
            share->self = FG_CORE_SHARE_ENTRIES;
            return fg_fail(err, FG_BAD_INPUT, "its entries cannot be locked: %s", strerror(errno));
        }
        share->self++;
    }
    if (share->self == FG_CORE_SHARE_ENTRIES) {
        return fg_fail(err, FG_AGAIN, "%d processes share cores already", FG_CORE_SHARE_ENTRIES);
    }
    table *shared = share->table;
    entry *own = &shared->entries[share->self];
    atomic_store(&own->life, 0);
    for (int i = 0; i < CPU_WORDS; i++) {
        atomic_store(&own->cpus[i], share->cpus[i]);
    }
    atomic_store(&own->threads, share->threads);
    atomic_store(&own->rank, share->rank);
    uint32_t used = atomic_load(&shared->used);
    while (used <= share->self &&
           !atomic_compare_exchange_weak(&shared->used, &used, share->self + 1)) {
    }
    return FG_OK;
}

static void copy_cpus(const cpu_set_t *cpus, uint64_t words_out[CPU_WORDS])
{
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        words_out[cpu / 64] |= (uint64_t)(CPU_ISSET(cpu, cpus) != 0) << cpu % 64;
    }
}

fg_status fg_core_share_open(const fg_core_share_options *options, fg_core_share **share_out,
                             fg_error *err)
{
    fg_core_share *share = fg_mem_alloc(sizeof *share);
    if (share == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    share->file = -1;
    share->cores = options->cores == 0 ? 1 : options->cores;
    share->threads = options->threads == 0 ? 1 : options->threads;
    share->rank = options->rank;
    share->clock = options->clock != NULL ? *options->clock : fg_clock_real();
    share->last_width = share->threads;
    copy_cpus(options->cpus, share->cpus);
    fg_status status =
        map_file(share, options->directory != NULL ? options->directory : "/dev/shm", err);
    status = status != FG_OK ? status : take_entry(share, err);
    if (status != FG_OK) {
        fg_core_share_close(share);
        return status;
    }
    *share_out = share;
    return FG_OK;
}

void fg_core_share_close(fg_core_share *share)
{
    if (share == NULL) {
        return;
    }
    if (share->table != NULL) {
        if (share->self < FG_CORE_SHARE_ENTRIES) {
            atomic_store(&share->table->entries[share->self].life, 0);
        }
        munmap(share->table, sizeof(table));
    }
    if (share->file >= 0) {
        close(share->file);
    }
    fg_mem_free(share);
}

/* ---- signs of life, and who else gives some ---- */

static uint64_t stamp(fg_core_share *share, uint64_t computes)
{
    uint64_t now_ns = fg_clock_now_ns(&share->clock);
    atomic_store_explicit(&share->table->entries[share->self].life,
                          (now_ns & ~(uint64_t)COMPUTES) | computes, memory_order_release);
    return now_ns;
}

/* Two processors may disagree a little about the time, so one that speaks from the future is late by
 * the same distance. */
static bool counts(uint64_t life, uint64_t now_ns)
{
    uint64_t said_ns = life & ~(uint64_t)COMPUTES;
    uint64_t ago_ns = said_ns < now_ns ? now_ns - said_ns : said_ns - now_ns;
    uint64_t limit_us = life & COMPUTES ? FG_CORE_SHARE_SILENT_US : FG_CORE_SHARE_PAUSE_US;
    return ago_ns < limit_us * 1000;
}

/* Threads of theirs that may run on cores of ours. */
static uint32_t threads_here(const fg_core_share *share, const entry *other)
{
    uint32_t overlap = 0;
    for (int i = 0; i < CPU_WORDS; i++) {
        uint64_t theirs = atomic_load_explicit(&other->cpus[i], memory_order_relaxed);
        overlap += (uint32_t)__builtin_popcountll(theirs & share->cpus[i]);
    }
    uint32_t threads = atomic_load_explicit(&other->threads, memory_order_relaxed);
    return threads < overlap ? threads : overlap;
}

static uint32_t find_width(const fg_core_share *share, uint32_t used, uint64_t now_ns)
{
    fg_core_claim claims[FG_CORE_SHARE_ENTRIES];
    uint32_t count = 0, self = 0;
    for (uint32_t i = 0; i < used; i++) {
        const entry *other = &share->table->entries[i];
        if (i == share->self) {
            self = count;
            claims[count++] = (fg_core_claim){ .threads = share->threads, .rank = share->rank };
        } else if (counts(atomic_load_explicit(&other->life, memory_order_acquire), now_ns)) {
            uint32_t rank = atomic_load_explicit(&other->rank, memory_order_relaxed);
            claims[count] = (fg_core_claim){ .threads = threads_here(share, other), .rank = rank };
            count += claims[count].threads != 0;
        }
    }
    return count < 2 ? share->threads : fg_core_share_fair(claims, count, self, share->cores);
}

static uint32_t used_entries(const fg_core_share *share)
{
    uint32_t used = atomic_load_explicit(&share->table->used, memory_order_relaxed);
    used = used > FG_CORE_SHARE_ENTRIES ? FG_CORE_SHARE_ENTRIES : used;
    return used > share->self ? used : share->self + 1;
}

static bool others_compute(const fg_core_share *share, uint32_t used)
{
    for (uint32_t i = 0; i < used; i++) {
        uint64_t life = atomic_load_explicit(&share->table->entries[i].life, memory_order_relaxed);
        if ((life & COMPUTES) != 0 && i != share->self) {
            return true;
        }
    }
    return false;
}

/* An entry whose owner died while it computed says so for ever, and everybody would look at the clock and at all entries
 * for each piece of work. Its lock is free then; while it is taken here, nobody else can become its owner. */
static void clear_dead(fg_core_share *share, uint64_t now_ns)
{
    if (now_ns < share->look_ns) {
        return;
    }
    share->look_ns = now_ns + DEAD_LOOK_NS;
    uint32_t used = used_entries(share);
    for (uint32_t i = 0; i < used; i++) {
        _Atomic uint64_t *other = &share->table->entries[i].life;
        uint64_t life = atomic_load_explicit(other, memory_order_relaxed);
        if (i == share->self || (life & COMPUTES) == 0 || counts(life, now_ns) ||
            !lock_entry(share->file, i, F_WRLCK)) {
            continue;
        }
        atomic_compare_exchange_strong(other, &life, 0);
        lock_entry(share->file, i, F_UNLCK);
    }
}

uint32_t fg_core_share_width(void *ctx)
{
    fg_core_share *share = ctx;
    uint32_t used = used_entries(share);
    if (share->quiet != 0 && !others_compute(share, used)) {
        /* Alone, nobody would read it. */
        share->quiet -= used != 1;
        return share->threads;
    }
    uint32_t width = find_width(share, used, stamp(share, COMPUTES));
    /* Not while somebody is between two steps: the end of that is a matter of time. */
    share->quiet = width == share->threads ? QUIET_CALLS : 0;
    if (width != share->threads && !share->step_shared) {
        share->step_shared = true;
        atomic_fetch_add_explicit(&share->shared_steps, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&share->last_width, width, memory_order_relaxed);
    return width;
}

void fg_core_share_begin(fg_core_share *share)
{
    share->step_shared = false;
    share->quiet = 0;
    clear_dead(share, stamp(share, COMPUTES));
}

void fg_core_share_end(fg_core_share *share)
{
    stamp(share, 0);
}

uint32_t fg_core_share_last_width(const fg_core_share *share)
{
    return atomic_load_explicit(&share->last_width, memory_order_relaxed);
}

uint64_t fg_core_share_shared_steps(const fg_core_share *share)
{
    return atomic_load_explicit(&share->shared_steps, memory_order_relaxed);
}
