#include "common/kv/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/kv/index_internal.h"
#include "common/kv/layout.h"
#include "common/kv/list_internal.h"
#include "common/kv/state_internal.h"

typedef enum slot_state { FREE, SWAPPED, FILLING, STORED } slot_state;

typedef struct slot {
    fg_digest128 parent; /* of stored slots; the key is in the index */
    uint64_t digest;
    uint32_t locks;
    slot_state state;
    bool has_digest;
    bool is_dropped; /* given up while locked: free at the last unlock */
} slot;

struct fg_tier {
    fg_tier_options options;
    size_t arena_bytes;
    void *arena;
    slot *slots;
    uint32_t *tokens; /* block_size per slot */
    fg_index index;   /* filling and stored slots by key, dropped ones not */
    fg_list_link *links;
    fg_list free;
    fg_list idle; /* stored and not locked, least recently used at the head */
    fg_tier_stats stats;
    fg_block_watch watch;
    void *watch_ctx;
};

/* ---- the arena ---- */

static int open_unnamed(const char *directory)
{
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
        return fd;
    }
    /* Not every file system has files without a name. */
    static const char pattern[] = "/forge-kv-XXXXXX";
    char path[4096];
    if (strlen(directory) + sizeof pattern > sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    snprintf(path, sizeof path, "%s%s", directory, pattern);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) {
        unlink(path);
    }
    return fd;
}

/* A full disk must be an error here: later it would be a signal in the middle of a copy. */
static int reserve(int fd, size_t size_bytes)
{
    int code;
    if (fg_fault_hit()) {
        return ENOSPC;
    }
    do {
        code = posix_fallocate(fd, 0, (off_t)size_bytes);
    } while (code == EINTR);
    return code;
}

static fg_status map_file(const char *directory, size_t size_bytes, void **arena_out, fg_error *err)
{
    int fd = open_unnamed(directory);
    if (fd < 0) {
        fg_status status = errno == ENOSPC || errno == EMFILE || errno == ENFILE || errno == ENOMEM
                               ? FG_AGAIN
                               : FG_BAD_INPUT;
        return fg_fail(err, status, "KV tier: no file can be made in %s: %s", directory,
                       strerror(errno));
    }
    int code = reserve(fd, size_bytes);
    if (code != 0) {
        close(fd);
        return fg_fail(err, FG_AGAIN, "KV tier: no room for %zu bytes in %s: %s", size_bytes,
                       directory, strerror(code));
    }
    void *arena = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    code = errno;
    close(fd); /* the mapping keeps the file */
    if (arena == MAP_FAILED) {
        return fg_fail(err, FG_AGAIN, "KV tier: cannot map %zu bytes of %s: %s", size_bytes,
                       directory, strerror(code));
    }
    *arena_out = arena;
    return FG_OK;
}

static fg_status map_arena(fg_tier *tier, fg_error *err)
{
    if (tier->options.directory != NULL) {
        return map_file(tier->options.directory, tier->arena_bytes, &tier->arena, err);
    }
    tier->arena = fg_mem_map(tier->arena_bytes);
    return tier->arena != NULL
               ? FG_OK
               : fg_fail(err, FG_AGAIN, "KV tier: out of memory for %zu bytes", tier->arena_bytes);
}

/* ---- its life ---- */

static fg_status check_options(const fg_tier_options *options, size_t *arena_bytes_out,
                               fg_error *err)
{
    if (options->block_count == 0 || options->block_count > FG_LIMIT_BLOCKS) {
        return fg_fail(err, FG_BAD_INPUT, "KV tier: block count %u is not in 1..%u",
                       options->block_count, FG_LIMIT_BLOCKS);
    }
    if (options->block_size == 0 || options->block_size > FG_KV_BLOCK_SIZE_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "KV tier: block size is %u (1 to %u)",
                       options->block_size, FG_KV_BLOCK_SIZE_MAX);
    }
    if (options->block_bytes == 0 ||
        __builtin_mul_overflow(options->block_bytes, (size_t)options->block_count,
                               arena_bytes_out) ||
        *arena_bytes_out > PTRDIFF_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "KV tier: %u blocks of %zu bytes", options->block_count,
                       options->block_bytes);
    }
    return FG_OK;
}

static void make_fresh(fg_tier *tier)
{
    uint32_t count = tier->options.block_count;
    fg_list_init(&tier->free);
    fg_list_init(&tier->idle);
    for (uint32_t i = 0; i < count; i++) {
        if (tier->index.nodes[i].is_linked) {
            fg_index_unlink(&tier->index, i);
        }
        tier->slots[i] = (slot){ .state = FREE };
        fg_list_push_tail(&tier->free, tier->links, i);
    }
    tier->stats = (fg_tier_stats){ .total = count, .free = count };
}

fg_status fg_tier_open(const fg_tier_options *options, fg_tier **tier_out, fg_error *err)
{
    size_t arena_bytes = 0;
    fg_status status = check_options(options, &arena_bytes, err);
    if (status != FG_OK) {
        return status;
    }
    uint32_t count = options->block_count;
    fg_tier *tier = fg_mem_alloc(sizeof *tier);
    if (tier == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the KV tier");
    }
    tier->options = *options;
    tier->arena_bytes = arena_bytes;
    tier->slots = fg_mem_array(count, sizeof *tier->slots);
    tier->tokens = fg_mem_array(count, options->block_size * sizeof *tier->tokens);
    tier->links = fg_mem_array(count, sizeof *tier->links);
    if (tier->slots == NULL || tier->tokens == NULL || tier->links == NULL ||
        !fg_index_init(&tier->index, count)) {
        status = fg_fail(err, FG_AGAIN, "out of memory for %u KV tier records", count);
    } else {
        status = map_arena(tier, err);
    }
    tier->options.directory = NULL; /* borrowed for this call only */
    if (status != FG_OK) {
        fg_tier_close(tier);
        return status;
    }
    make_fresh(tier);
    *tier_out = tier;
    return FG_OK;
}

void fg_tier_close(fg_tier *tier)
{
    if (tier == NULL) {
        return;
    }
    fg_mem_unmap(tier->arena, tier->arena_bytes);
    fg_index_deinit(&tier->index);
    fg_mem_free(tier->slots);
    fg_mem_free(tier->tokens);
    fg_mem_free(tier->links);
    fg_mem_free(tier);
}

void *fg_tier_arena(const fg_tier *tier)
{
    return tier->arena;
}

/* ---- slots ---- */

static slot *slot_at(const fg_tier *tier, uint32_t id)
{
    FG_ASSERT(id < tier->stats.total, "slot %u of %u", id, tier->stats.total);
    FG_ASSERT(tier->slots[id].state != FREE, "slot %u is free", id);
    return &tier->slots[id];
}

static bool is_cache(const slot *s)
{
    return s->state == FILLING || s->state == STORED;
}

static void make_free(fg_tier *tier, uint32_t id)
{
    slot *s = &tier->slots[id];
    (*(is_cache(s) ? &tier->stats.stored : &tier->stats.swapped))--;
    tier->stats.free++;
    *s = (slot){ .state = FREE };
    fg_list_push_head(&tier->free, tier->links, id);
}

static void tell(const fg_tier *tier, bool here, uint32_t id)
{
    if (tier->watch != NULL) {
        tier->watch(tier->watch_ctx, here, tier->slots[id].parent, tier->index.nodes[id].key);
    }
}

void fg_tier_watch(fg_tier *tier, fg_block_watch watch, void *ctx)
{
    tier->watch = watch;
    tier->watch_ctx = ctx;
}

bool fg_tier_at(const fg_tier *tier, uint32_t id, fg_digest128 *parent_out, fg_digest128 *key_out)
{
    if (id >= tier->stats.total || tier->slots[id].state != STORED || tier->slots[id].is_dropped) {
        return false;
    }
    *parent_out = tier->slots[id].parent;
    *key_out = tier->index.nodes[id].key;
    return true;
}

/* Gives a slot up: now, or when the copies that lock it have ended. Its key is free for another slot at
 * once. */
static void drop(fg_tier *tier, uint32_t id)
{
    slot *s = &tier->slots[id];
    if (s->state == STORED) {
        tell(tier, false, id);
    }
    if (is_cache(s)) {
        fg_index_unlink(&tier->index, id);
    }
    if (s->locks > 0) {
        s->is_dropped = true;
        return;
    }
    if (s->state == STORED) {
        fg_list_remove(&tier->idle, tier->links, id);
    }
    make_free(tier, id);
}

uint32_t fg_tier_available(const fg_tier *tier)
{
    return tier->free.count + tier->idle.count;
}

/* A free slot, made free by evicting the least recently used one if need be. */
static uint32_t take_slot(fg_tier *tier, slot_state state)
{
    if (tier->free.count == 0) {
        drop(tier, tier->idle.head);
        tier->stats.evictions++;
    }
    uint32_t id = tier->free.head;
    fg_list_remove(&tier->free, tier->links, id);
    tier->slots[id] = (slot){ .state = state };
    tier->stats.free--;
    (*(state == SWAPPED ? &tier->stats.swapped : &tier->stats.stored))++;
    return id;
}

fg_status fg_tier_take(fg_tier *tier, uint32_t count, uint32_t *slots_out)
{
    if (fg_tier_available(tier) < count) {
        return FG_AGAIN;
    }
    for (uint32_t i = 0; i < count; i++) {
        slots_out[i] = take_slot(tier, SWAPPED);
    }
    return FG_OK;
}

void fg_tier_give(fg_tier *tier, uint32_t id)
{
    const slot *s = slot_at(tier, id);
    FG_ASSERT(s->state == SWAPPED && !s->is_dropped, "slot %u is not a sequence's", id);
    drop(tier, id);
}

static uint32_t *tokens_of(const fg_tier *tier, uint32_t id)
{
    return tier->tokens + (size_t)id * tier->options.block_size;
}

uint32_t fg_tier_store(fg_tier *tier, fg_digest128 parent, fg_digest128 key, const uint32_t *tokens)
{
    if (fg_index_find(&tier->index, key) != FG_INDEX_NONE || fg_tier_available(tier) == 0) {
        return FG_TIER_NONE;
    }
    uint32_t id = take_slot(tier, FILLING);
    tier->slots[id].parent = parent;
    tier->slots[id].locks = 1;
    memcpy(tokens_of(tier, id), tokens, tier->options.block_size * sizeof *tokens);
    fg_index_link(&tier->index, id, key);
    tier->stats.stores++;
    return id;
}

void fg_tier_filled(fg_tier *tier, uint32_t id, uint64_t digest)
{
    slot *s = slot_at(tier, id);
    FG_ASSERT(s->state == SWAPPED || s->state == FILLING, "slot %u is filled already", id);
    s->digest = digest;
    s->has_digest = true;
    if (s->state == FILLING) {
        s->state = STORED;
        if (!s->is_dropped) {
            tell(tier, true, id);
        }
        fg_tier_unlock(tier, id);
    }
}

uint32_t fg_tier_find(fg_tier *tier, fg_digest128 parent, fg_digest128 key, const uint32_t *tokens)
{
    uint32_t id = fg_index_find(&tier->index, key);
    if (id == FG_INDEX_NONE || tier->slots[id].locks > 0 ||
        !fg_digest_same(tier->slots[id].parent, parent) ||
        memcmp(tokens_of(tier, id), tokens, tier->options.block_size * sizeof *tokens) != 0) {
        return FG_TIER_NONE;
    }
    fg_list_remove(&tier->idle, tier->links, id);
    fg_list_push_tail(&tier->idle, tier->links, id);
    tier->stats.hits++;
    return id;
}

void fg_tier_lock(fg_tier *tier, uint32_t id)
{
    slot *s = slot_at(tier, id);
    FG_ASSERT(s->state != FILLING, "slot %u is still being filled", id);
    if (s->state == STORED && s->locks == 0) {
        fg_list_remove(&tier->idle, tier->links, id);
    }
    s->locks++;
}

void fg_tier_unlock(fg_tier *tier, uint32_t id)
{
    slot *s = slot_at(tier, id);
    FG_ASSERT(s->locks > 0 && s->state != FILLING, "slot %u: %u locks", id, s->locks);
    s->locks--;
    if (s->locks > 0) {
        return;
    }
    if (s->is_dropped) {
        make_free(tier, id);
    } else if (s->state == STORED) {
        fg_list_push_tail(&tier->idle, tier->links, id);
    }
}

bool fg_tier_matches(const fg_tier *tier, uint32_t id, uint64_t digest)
{
    const slot *s = slot_at(tier, id);
    FG_ASSERT(s->has_digest, "slot %u was never filled", id);
    return s->digest == digest;
}

bool fg_tier_verify(fg_tier *tier, uint32_t id, uint64_t digest)
{
    const slot *s = slot_at(tier, id);
    if (fg_tier_matches(tier, id, digest)) {
        return true;
    }
    tier->stats.damaged++;
    if (s->state == STORED && !s->is_dropped) {
        drop(tier, id);
    }
    return false;
}

void fg_tier_clear(fg_tier *tier)
{
    fg_block_watch watch = tier->watch;
    tier->watch = NULL;
    for (uint32_t id = 0; id < tier->stats.total && tier->index.linked > 0; id++) {
        if (is_cache(&tier->slots[id]) && !tier->slots[id].is_dropped) {
            drop(tier, id);
        }
    }
    tier->watch = watch;
}

/* ---- looking at it ---- */

void fg_tier_stats_get(const fg_tier *tier, fg_tier_stats *stats_out)
{
    *stats_out = tier->stats;
}

static bool is_free(const void *ctx, uint32_t id)
{
    return ((const fg_tier *)ctx)->slots[id].state == FREE;
}

static bool is_idle(const void *ctx, uint32_t id)
{
    const slot *s = &((const fg_tier *)ctx)->slots[id];
    return s->state == STORED && s->locks == 0;
}

void fg_tier_check(const fg_tier *tier)
{
    uint32_t free = 0, swapped = 0, stored = 0, idle = 0;
    for (uint32_t id = 0; id < tier->stats.total; id++) {
        const slot *s = &tier->slots[id];
        free += s->state == FREE;
        swapped += s->state == SWAPPED;
        stored += is_cache(s);
        idle += is_idle(tier, id);
        FG_ASSERT(s->state != FILLING || s->locks == 1, "slot %u fills with %u locks", id,
                  s->locks);
        FG_ASSERT(!s->is_dropped || s->locks > 0, "slot %u is dropped and not locked", id);
        FG_ASSERT(tier->index.nodes[id].is_linked == (is_cache(s) && !s->is_dropped),
                  "slot %u: wrongly in the index", id);
    }
    FG_ASSERT(free == tier->stats.free && swapped == tier->stats.swapped &&
                  stored == tier->stats.stored && free + swapped + stored == tier->stats.total,
              "tier counters are wrong");
    FG_ASSERT(tier->free.count == free && tier->idle.count == idle);
    fg_list_check(&tier->free, tier->links, tier->stats.total, is_free, tier);
    fg_list_check(&tier->idle, tier->links, tier->stats.total, is_idle, tier);
    fg_index_check(&tier->index);
}

/* ---- the state ----
 *
 * The head; the free list and the list of idle slots, each from its head, padded to a multiple of 8; key and
 * parent of each idle slot, in the order of that list. At rest all stored slots are idle. */

typedef struct state_head {
    uint32_t total, stored;
    uint64_t stores, hits, evictions, damaged;
} state_head;

typedef struct state_row {
    fg_digest128 key, parent;
} state_row;

_Static_assert(sizeof(state_head) == 40 && sizeof(state_row) == 32, "no padding");

static size_t lists_bytes(const fg_tier *tier)
{
    return fg_state_round((size_t)tier->stats.total * sizeof(uint32_t));
}

static size_t state_bytes(const fg_tier *tier, uint32_t stored)
{
    return sizeof(state_head) + lists_bytes(tier) + stored * sizeof(state_row);
}

size_t fg_tier_state_bytes(const fg_tier *tier)
{
    return state_bytes(tier, tier->stats.stored);
}

void fg_tier_state_get(const fg_tier *tier, void *state_out)
{
    const fg_tier_stats *stats = &tier->stats;
    FG_ASSERT(tier->free.count + tier->idle.count == stats->total,
              "the tier is not at rest: %u free and %u idle of %u", tier->free.count,
              tier->idle.count, stats->total);
    state_head head = {
        .total = stats->total,
        .stored = stats->stored,
        .stores = stats->stores,
        .hits = stats->hits,
        .evictions = stats->evictions,
        .damaged = stats->damaged,
    };
    uint8_t *lists = fg_state_put(state_out, &head, sizeof head);
    uint8_t *rows = lists + lists_bytes(tier);
    uint8_t *at = fg_state_put_list(lists, &tier->free, tier->links);
    at = fg_state_put_list(at, &tier->idle, tier->links);
    memset(at, 0, (size_t)(rows - at));
    for (uint32_t id = tier->idle.head; id != FG_LIST_END; id = tier->links[id].next) {
        state_row row = { tier->index.nodes[id].key, tier->slots[id].parent };
        rows = fg_state_put(rows, &row, sizeof row);
    }
}

/* Every store made a slot that is stored still or was given up, maybe by an eviction. */
static bool head_makes_sense(const state_head *head, uint32_t total)
{
    return head->total == total && head->stored <= total && head->stored <= head->stores &&
           head->evictions <= head->stores - head->stored;
}

/* While a state is read, SWAPPED stands for "not named yet". */
static bool read_slot(fg_tier *tier, uint32_t id, slot_state state)
{
    if (id >= tier->stats.total || tier->slots[id].state != SWAPPED) {
        return false;
    }
    tier->slots[id] = (slot){ .state = state, .has_digest = state == STORED };
    fg_list_push_tail(state == STORED ? &tier->idle : &tier->free, tier->links, id);
    return true;
}

static bool read_lists(fg_tier *tier, const uint8_t *at, uint32_t stored)
{
    const uint8_t *end = at + lists_bytes(tier);
    for (uint32_t i = 0; i < tier->stats.total; i++) {
        uint32_t id;
        at = fg_state_get_u32(at, &id);
        if (!read_slot(tier, id, i < tier->stats.total - stored ? FREE : STORED)) {
            return false;
        }
    }
    return fg_state_is_zero(at, end);
}

/* False: a key comes twice. */
static bool read_rows(fg_tier *tier, const uint8_t *at)
{
    for (uint32_t id = tier->idle.head; id != FG_LIST_END; id = tier->links[id].next) {
        state_row row;
        at = fg_state_get(at, &row, sizeof row);
        if (fg_index_find(&tier->index, row.key) != FG_INDEX_NONE) {
            return false;
        }
        fg_index_link(&tier->index, id, row.key);
        tier->slots[id].parent = row.parent;
        memset(tokens_of(tier, id), 0, tier->options.block_size * sizeof *tier->tokens);
    }
    return true;
}

bool fg_tier_state_set(fg_tier *tier, const void *state, size_t size_bytes)
{
    uint32_t total = tier->stats.total;
    FG_ASSERT(tier->stats.free == total, "the tier is not fresh");
    state_head head;
    if (size_bytes < sizeof head) {
        return false;
    }
    const uint8_t *lists = fg_state_get(state, &head, sizeof head);
    if (!head_makes_sense(&head, total) || size_bytes != state_bytes(tier, head.stored)) {
        return false;
    }
    fg_list_init(&tier->free);
    fg_list_init(&tier->idle);
    for (uint32_t id = 0; id < total; id++) {
        tier->slots[id].state = SWAPPED;
    }
    if (!read_lists(tier, lists, head.stored) || !read_rows(tier, lists + lists_bytes(tier))) {
        make_fresh(tier);
        return false;
    }
    tier->stats = (fg_tier_stats){
        .total = total,
        .free = total - head.stored,
        .stored = head.stored,
        .stores = head.stores,
        .hits = head.hits,
        .evictions = head.evictions,
        .damaged = head.damaged,
    };
    return true;
}
