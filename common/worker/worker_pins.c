/* Prefixes that stay in the pool for a while after their request, because it asked for that. A pin is a
 * reference to each of its blocks. Pins take at most a quarter of the pool, and yield to anybody who is
 * short of blocks: they protect from being forgotten, not from need. */
#include "common/worker/worker_internal.h"

#include <string.h>

#include "common/base/mem.h"

enum { POOL_SHARE = 4 };

static void drop(fg_worker *worker, uint32_t index)
{
    fg_worker_pin_record *pin = &worker->pins[index];
    for (uint32_t i = 0; i < pin->count; i++) {
        fg_pool_unref(worker->pool, pin->blocks[i]);
    }
    worker->pinned_blocks -= pin->count;
    fg_mem_free(pin->blocks);
    *pin = worker->pins[--worker->pin_count];
    worker->load_dirty = true;
}

void fg_worker_drop_pins(fg_worker *worker)
{
    while (worker->pin_count > 0) {
        drop(worker, worker->pin_count - 1);
    }
}

bool fg_worker_yield_pin(fg_worker *worker)
{
    uint32_t first = 0;
    for (uint32_t i = 1; i < worker->pin_count; i++) {
        first = worker->pins[i].until_ns < worker->pins[first].until_ns ? i : first;
    }
    if (worker->pin_count > 0) {
        drop(worker, first);
        worker->stats.pins_yielded++;
        return true;
    }
    return false;
}

void fg_worker_expire_pins(fg_worker *worker, uint64_t now_ns)
{
    for (uint32_t i = worker->pin_count; i-- > 0;) {
        if (worker->pins[i].until_ns <= now_ns) {
            drop(worker, i);
        }
    }
}

/* The same prefix once more: a block stands for all before it. */
static fg_worker_pin_record *find(fg_worker *worker, uint32_t last_block, uint32_t count)
{
    for (uint32_t i = 0; i < worker->pin_count; i++) {
        fg_worker_pin_record *pin = &worker->pins[i];
        if (pin->count == count && pin->blocks[count - 1] == last_block) {
            return pin;
        }
    }
    return NULL;
}

void fg_worker_pin_prefix(fg_worker *worker, const fg_seq *seq)
{
    uint32_t count = seq->prompt_count / seq->table.block_size;
    if (seq->params.pin_ms == 0 || count == 0 || seq->published < count ||
        seq->table.count < count) {
        return;
    }
    uint64_t until = fg_worker_now_ns(worker) + (uint64_t)seq->params.pin_ms * 1000000u;
    const uint32_t *blocks = seq->table.blocks;
    fg_worker_pin_record *known = find(worker, blocks[count - 1], count);
    if (known != NULL) {
        known->until_ns = until > known->until_ns ? until : known->until_ns;
        return;
    }
    if (worker->pin_count == FG_WORKER_PINS_MAX ||
        worker->pinned_blocks + count > worker->options.block_count / POOL_SHARE) {
        worker->stats.pins_refused++;
        return;
    }
    uint32_t *copy = fg_mem_dup(blocks, count * sizeof *blocks);
    if (copy == NULL) {
        worker->stats.pins_refused++;
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        fg_pool_ref(worker->pool, copy[i]);
    }
    worker->pins[worker->pin_count++] =
        (fg_worker_pin_record){ .blocks = copy, .count = count, .until_ns = until };
    worker->pinned_blocks += count;
}

void fg_worker_recount_pins(const fg_worker *worker, uint32_t *recount)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < worker->pin_count; i++) {
        total += worker->pins[i].count;
        for (uint32_t j = 0; j < worker->pins[i].count; j++) {
            recount[worker->pins[i].blocks[j]]++;
        }
    }
    FG_ASSERT(total == worker->pinned_blocks);
}
