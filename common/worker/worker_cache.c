/* A worker's prefix cache and tier: what a waiting sequence finds there, and what the running ones leave
 * there. */
#include "common/worker/worker_internal.h"

#include <string.h>

#include "common/base/hash.h"
#include "common/kv/block_key.h"

/* A sequence waits at most so long for a prefix that another one computes. */
#define DEFER_LIMIT_NS (30ull * 1000 * 1000 * 1000)

/* For so long arrivals from prefill workers may go before a request that waits here. */
#define OVERTAKEN_NS (500ull * 1000 * 1000)

/* What a waiting sequence's lookups may cost a plan, on average. */
enum { MATCH_BLOCKS_PER_PLAN = 64 };

static bool uses_cache(const fg_worker *worker, const fg_seq *seq)
{
    return worker->options.prefix_cache && seq->params.cache_mode != FG_CACHE_DISABLE;
}

/* An evicted block's bytes are saved, where there is a tier and a step being built to copy them. */
static void on_evict(void *ctx, const fg_prefix_entry *entry)
{
    fg_worker *worker = ctx;
    fg_tier *tier = worker->options.tier;
    if (tier == NULL || worker->building == NULL ||
        !fg_worker_copy_room(worker, worker->copies_reserved + 1)) {
        return;
    }
    uint32_t slot = fg_tier_store(tier, entry->parent, entry->key, entry->tokens);
    if (slot != FG_TIER_NONE) {
        fg_step_copy copy = { .kind = FG_COPY_OUT, .from = entry->block_id, .to = slot };
        fg_worker_add_copy(worker, &copy, &(fg_worker_copy){ .why = FG_COPY_STORE });
    }
}

fg_status fg_worker_cache_create(fg_worker *worker, fg_error *err)
{
    const fg_worker_options *options = &worker->options;
    fg_digest128 identity = fg_block_identity(
        options->fingerprint, fg_engine_numerics_class(options->engine), options->layout.dtype);
    fg_prefix_options prefix = { .pool = worker->pool,
                                 .block_count = options->block_count,
                                 .block_size = options->layout.block_size,
                                 .identity = identity,
                                 .on_evict = on_evict,
                                 .on_change = fg_worker_news_on_pool,
                                 .ctx = worker };
    if (options->tier != NULL) {
        fg_tier_watch(options->tier, fg_worker_news_on_tier, worker);
    }
    return fg_prefix_create(&prefix, &worker->prefix, err);
}

static const uint32_t *block_tokens(const fg_seq *seq, uint32_t index)
{
    return seq->tokens + (size_t)index * seq->table.block_size;
}

static fg_digest128 parent_key(const fg_seq *seq, uint32_t index)
{
    return index == 0 ? seq->root : seq->keys[index - 1];
}

/* Keys of all blocks that the known tokens fill. */
static void make_keys(fg_worker *worker, fg_seq *seq, uint32_t block_count)
{
    while (seq->key_count < block_count) {
        uint32_t i = seq->key_count++;
        seq->keys[i] = fg_prefix_key(worker->prefix, parent_key(seq, i), i, block_tokens(seq, i));
    }
}

static void extend_keys(fg_worker *worker, fg_seq *seq, uint32_t block_count)
{
    uint32_t known = seq->key_count;
    if (known >= block_count) {
        return;
    }
    if (fg_worker_told_keys(worker, seq->keys + known, block_count - known)) {
        seq->key_count = block_count;
    }
    make_keys(worker, seq, block_count);
    fg_worker_note_keys(worker, seq->keys + known, block_count - known);
}

void fg_worker_first_keys(fg_worker *worker, fg_seq *seq)
{
    uint32_t block_count = seq->prompt_count / seq->table.block_size;
    if (!uses_cache(worker, seq)) {
        return;
    }
    if (fg_worker_told_prompt(worker, seq, block_count)) {
        seq->key_count = block_count;
    } else {
        seq->root = fg_prefix_root(worker->prefix, seq->params.salt_low, seq->params.salt_high);
        make_keys(worker, seq, block_count);
    }
    fg_worker_note_prompt(worker, seq);
}

/* Blocks that may come from the cache: one token at least is left to compute, for its logits; so are those whose rows have
 * to say something first. */
static uint32_t match_limit(const fg_seq *seq)
{
    uint32_t tokens = fg_seq_unscored(seq) > 0 ? seq->scored : seq->token_count - 1;
    uint32_t full = tokens / seq->table.block_size;
    return full < seq->key_count ? full : seq->key_count;
}

uint32_t fg_worker_cached_blocks(fg_worker *worker, fg_seq *seq)
{
    return fg_prefix_match(worker->prefix, seq->root, seq->keys, seq->tokens, match_limit(seq),
                           worker->scratch);
}

static uint32_t count_tier(fg_worker *worker, const fg_seq *seq, uint32_t from)
{
    uint32_t count = 0;
    uint32_t limit = match_limit(seq);
    while (worker->options.tier != NULL && from + count < limit) {
        uint32_t i = from + count;
        if (fg_tier_find(worker->options.tier, parent_key(seq, i), seq->keys[i],
                         block_tokens(seq, i)) == FG_TIER_NONE) {
            break;
        }
        count++;
    }
    return count;
}

/* Equal salts: a family is made by a router and unguessable, but blocks cross no salt whoever made it. */
static bool same_world(const fg_seq *a, const fg_seq *b)
{
    return a->root.low == b->root.low && a->root.high == b->root.high;
}

/* Another choice of the same request that runs here, best one whose prompt is computed. */
static fg_seq *find_sibling(const fg_worker *worker, const fg_seq *seq)
{
    fg_seq *found = NULL;
    if (seq->params.family == 0) {
        return NULL;
    }
    for (fg_seq *other = worker->running.first; other != NULL; other = other->next) {
        if (other != seq && other->params.family == seq->params.family &&
            other->prompt_count == seq->prompt_count && same_world(other, seq) &&
            other->prompt_name == seq->prompt_name &&
            memcmp(other->tokens, seq->tokens, seq->prompt_count * sizeof *seq->tokens) == 0) {
            found = other;
            if (other->computed + 1 >= other->prompt_count) {
                break;
            }
        }
    }
    return found;
}

void fg_worker_match(fg_worker *worker, fg_seq *seq, fg_worker_hit *hit_out)
{
    *hit_out = (fg_worker_hit){ 0 };
    if (!uses_cache(worker, seq)) {
        return;
    }
    /* A long prompt at the head of the line is not looked up anew in every plan. An old answer makes a
     * plan hopeful or timid, no more: admission looks again, and is put off when it does not fit. */
    if (worker->plans < seq->match_again) {
        *hit_out = (fg_worker_hit){ .blocks = seq->matched_blocks,
                                    .idle_blocks = seq->matched_idle,
                                    .tier_blocks = seq->matched_tier };
    } else {
        hit_out->blocks = fg_worker_cached_blocks(worker, seq);
        for (uint32_t i = 0; i < hit_out->blocks; i++) {
            hit_out->idle_blocks += fg_pool_refs(worker->pool, worker->scratch[i]) == 0;
        }
        hit_out->tier_blocks = count_tier(worker, seq, hit_out->blocks);
        seq->matched_blocks = hit_out->blocks;
        seq->matched_idle = hit_out->idle_blocks;
        seq->matched_tier = hit_out->tier_blocks;
        seq->match_again = worker->plans + match_limit(seq) / MATCH_BLOCKS_PER_PLAN;
    }
    uint32_t whole = (seq->prompt_count - 1) / seq->table.block_size;
    if (seq->token_count == seq->prompt_count && hit_out->blocks == whole &&
        fg_seq_unscored(seq) == 0 && whole * seq->table.block_size < seq->prompt_count - 1) {
        fg_seq *sibling = find_sibling(worker, seq);
        if (sibling != NULL && sibling->computed + 1 >= seq->prompt_count &&
            sibling->table.count > whole) {
            hit_out->fork_of = sibling;
        }
    }
}

/* Whether an earlier one of this plan's waiting ones is about to compute the same. */
static bool planned_earlier(const fg_worker *worker, const fg_seq *seq, uint32_t next, bool alone)
{
    for (uint32_t i = 0; i < worker->wait_count; i++) {
        const fg_seq *other = worker->wait_seqs[i];
        bool related =
            alone && seq->params.family != 0 && other->params.family == seq->params.family;
        bool same_block = next < match_limit(seq) && next < other->key_count &&
                          memcmp(&other->keys[next], &seq->keys[next], sizeof *seq->keys) == 0;
        if (related || same_block) {
            return true;
        }
    }
    return false;
}

bool fg_worker_should_defer(fg_worker *worker, fg_seq *seq, const fg_worker_hit *hit)
{
    if (!uses_cache(worker, seq) || seq->slot_count > 0 || fg_seq_unscored(seq) > 0) {
        return false;
    }
    uint32_t next = hit->blocks + hit->tier_blocks;
    const fg_seq *sibling = find_sibling(worker, seq);
    bool for_now = planned_earlier(worker, seq, next, sibling == NULL);
    bool wait =
        for_now ||
        (next < match_limit(seq) && fg_prefix_is_expected(worker->prefix, seq->keys[next])) ||
        (sibling != NULL && sibling->computed + 1 < seq->prompt_count);
    if (!wait) {
        return false;
    }
    worker->stats.deferrals += !seq->deferred;
    seq->deferred = true;
    if (for_now) {
        return true; /* in this plan; nobody computes it yet, so no time is lost */
    }
    uint64_t now = fg_worker_now_ns(worker);
    if (seq->deferred_ns == 0 || seq->deferred_next != next) {
        seq->deferred_ns = now; /* whoever computes it makes progress: the wait begins anew */
        seq->deferred_next = next;
    }
    return now - seq->deferred_ns < DEFER_LIMIT_NS;
}

static uint32_t borrow(fg_worker *worker, fg_seq *seq, uint32_t count)
{
    uint32_t taken = 0;
    while (taken < count && fg_pool_borrow(worker->pool, worker->scratch[taken]) == FG_OK) {
        taken++;
    }
    fg_table_adopt(&seq->table, worker->scratch, taken);
    return taken;
}

bool fg_worker_borrow_prompt(fg_worker *worker, fg_seq *seq)
{
    uint32_t count = seq->prompt_count / seq->table.block_size;
    bool whole = seq->prompt_count % seq->table.block_size == 0 && seq->key_count == count;
    uint32_t found = whole ? fg_prefix_match(worker->prefix, seq->root, seq->keys, seq->tokens,
                                             count, worker->scratch)
                           : 0;
    if (!whole || found < count || borrow(worker, seq, count) < count) {
        fg_table_truncate(&seq->table, worker->pool, 0, NULL);
        return false;
    }
    seq->published = count;
    seq->computed = seq->planned = seq->prompt_count;
    seq->started_ns = seq->computed_ns = fg_worker_now_ns(worker);
    return true;
}

/* A private copy of the sibling's last prompt block: only the last prompt token is left to compute. */
static bool fork_tail(fg_worker *worker, fg_seq *seq, fg_seq *sibling)
{
    uint32_t index = seq->table.count;
    uint32_t shared = sibling->table.blocks[index];
    fg_table_ops ops = fg_worker_table_ops(worker);
    if (!fg_worker_copy_room(worker, 1)) {
        return false;
    }
    fg_pool_ref(worker->pool, shared);
    fg_table_adopt(&seq->table, &shared, 1);
    worker->copies_reserved = 1;
    fg_status status = fg_table_writable(&seq->table, worker->pool, index, &ops, NULL);
    worker->copies_reserved = 0;
    if (status != FG_OK) {
        fg_table_truncate(&seq->table, worker->pool, index * seq->table.block_size, NULL);
        return false;
    }
    worker->stats.forks++;
    return true;
}

void fg_worker_grow_for_copies(fg_worker *worker, fg_seq *seq, uint32_t block_count)
{
    worker->copies_reserved = block_count;
    uint32_t tokens = (seq->table.count + block_count) * seq->table.block_size;
    fg_status status = fg_table_grow(&seq->table, worker->pool, tokens, NULL);
    FG_ASSERT(status == FG_OK, "promised blocks are there");
    worker->copies_reserved = 0;
}

/* Orders copies of the tier's blocks into fresh ones of the pool, out of the table's promise. */
static void fetch(fg_worker *worker, fg_seq *seq, uint32_t count)
{
    uint32_t from = seq->table.count;
    uint32_t found = count_tier(worker, seq, from);
    count = count < found ? count : found;
    if (count == 0 || !fg_worker_copy_room(worker, count)) {
        return;
    }
    fg_worker_grow_for_copies(worker, seq, count);
    uint32_t done = 0;
    for (; done < count; done++) { /* growing may have pushed some of them out of the tier */
        uint32_t i = from + done;
        uint32_t slot = fg_tier_find(worker->options.tier, parent_key(seq, i), seq->keys[i],
                                     block_tokens(seq, i));
        if (slot == FG_TIER_NONE) {
            break;
        }
        fg_tier_lock(worker->options.tier, slot);
        fg_step_copy copy = { .kind = FG_COPY_IN, .from = slot, .to = seq->table.blocks[i] };
        fg_worker_add_copy(worker, &copy,
                           &(fg_worker_copy){ .why = FG_COPY_FETCH, .seq = seq, .index = i });
    }
    seq->restored = done > 0 ? (from + done) * seq->table.block_size : 0;
}

uint32_t fg_worker_blocks_aside(const fg_worker *worker, const fg_seq *seq)
{
    uint32_t tokens = seq->token_count;
    if (worker->options.limits.admission == FG_ADMIT_NO_EVICT) {
        tokens = seq->side == FG_SIDE_SENDER ? seq->prompt_count : seq->token_max;
    }
    uint32_t blocks = fg_kv_blocks_for(tokens, seq->table.block_size);
    /* One that may outgrow the pool gets all of it, and ends when that is full. */
    return blocks < worker->options.block_count ? blocks : worker->options.block_count;
}

bool fg_worker_take_hit(fg_worker *worker, fg_seq *seq, const fg_worker_hit *hit)
{
    FG_ASSERT(seq->table.count == 0 && seq->computed == 0);
    uint32_t matched = hit->blocks > 0 ? fg_worker_cached_blocks(worker, seq) : 0;
    uint32_t taken = borrow(worker, seq, matched);
    uint32_t aside = fg_worker_blocks_aside(worker, seq);
    seq->match_again = 0;
    if (fg_pool_promise(worker->pool, aside - taken) != FG_OK) {
        fg_table_truncate(&seq->table, worker->pool, 0, NULL);
        return false;
    }
    seq->table.promised = aside - taken;
    seq->restored = 0;
    seq->published = taken;
    seq->computed = taken * seq->table.block_size;
    fg_seq *sibling = hit->fork_of;
    if (sibling != NULL && sibling->state == FG_SEQ_RUNNING && taken == hit->blocks &&
        sibling->table.count > taken && fork_tail(worker, seq, sibling)) {
        seq->computed = seq->prompt_count - 1;
    } else if (taken == matched && hit->tier_blocks > 0) {
        fetch(worker, seq, hit->tier_blocks);
    }
    seq->planned = seq->restored > 0 ? seq->restored : seq->computed;
    fg_worker_pin(worker, seq, 0);
    return true;
}

fg_status fg_worker_hold_blocks(fg_worker *worker, fg_seq *seq)
{
    uint32_t prompt_blocks = fg_kv_blocks_for(seq->prompt_count, seq->table.block_size);
    uint32_t watermark = worker->options.limits.watermark_blocks;
    uint32_t matched = uses_cache(worker, seq) ? fg_worker_cached_blocks(worker, seq) : 0;
    uint32_t taken = borrow(worker, seq, matched);
    bool all = worker->options.limits.admission == FG_ADMIT_NO_EVICT;
    uint32_t need = (all ? fg_worker_blocks_aside(worker, seq) : prompt_blocks) - taken;
    /* Who is preempted here, or has waited long, has come first and must not starve behind arrivals. */
    bool alone = worker->running.count + worker->others.count == 0;
    const fg_seq *first = worker->waiting.first;
    uint32_t others_need = 0;
    if (first != NULL && seq->queued_ns - first->queued_ns > OVERTAKEN_NS) {
        others_need = fg_kv_blocks_for(first->token_count, first->table.block_size);
    }
    uint64_t wanted = (uint64_t)need + others_need + (alone ? 0 : watermark);
    while (fg_pool_available(worker->pool) < wanted && fg_worker_yield_pin(worker)) {
    }
    if (worker->preempted.count > 0 || fg_pool_available(worker->pool) < wanted ||
        fg_pool_promise(worker->pool, need) != FG_OK) {
        fg_table_truncate(&seq->table, worker->pool, 0, NULL);
        return FG_AGAIN;
    }
    seq->table.promised = need;
    seq->published = taken;
    fg_status status = fg_table_grow(&seq->table, worker->pool, seq->prompt_count, NULL);
    FG_ASSERT(status == FG_OK, "promised blocks are there");
    if (!seq->params.pull) { /* else whoever needs the blocks is counted when it comes */
        worker->stats.cache_query_tokens += seq->prompt_count;
        worker->stats.cache_hit_tokens += (uint64_t)taken * seq->table.block_size;
    }
    return FG_OK;
}

void fg_worker_expect(fg_worker *worker, fg_seq *seq)
{
    uint32_t from = fg_kv_blocks_for(seq->planned, seq->table.block_size);
    seq->expected_from = seq->expected_until = from < seq->key_count ? from : seq->key_count;
    while (seq->expected_until < seq->key_count &&
           fg_prefix_expect(worker->prefix, seq->keys[seq->expected_until]) == FG_OK) {
        seq->expected_until++;
    }
}

static void unexpect_below(fg_worker *worker, fg_seq *seq, uint32_t until)
{
    while (seq->expected_from < seq->expected_until && seq->expected_from < until) {
        fg_prefix_unexpect(worker->prefix, seq->keys[seq->expected_from++]);
    }
}

void fg_worker_unexpect(fg_worker *worker, fg_seq *seq)
{
    unexpect_below(worker, seq, UINT32_MAX);
}

/* Two sequences computed the same tokens: this one goes on with the published block. */
static void remap(fg_worker *worker, fg_seq *seq, uint32_t index, uint32_t block_id)
{
    if (seq->ticket_open || fg_pool_borrow(worker->pool, block_id) != FG_OK) {
        return;
    }
    fg_table_ops ops = fg_worker_table_ops(worker);
    fg_table_replace(&seq->table, worker->pool, index, block_id, &ops);
    worker->stats.remapped_blocks++;
}

void fg_worker_publish(fg_worker *worker, fg_seq *seq)
{
    if (!uses_cache(worker, seq)) {
        return;
    }
    uint32_t full = seq->computed / seq->table.block_size;
    extend_keys(worker, seq, full);
    while (seq->published < full) {
        uint32_t i = seq->published++;
        uint32_t block_id = fg_prefix_publish(worker->prefix, parent_key(seq, i), seq->keys[i],
                                              block_tokens(seq, i), seq->table.blocks[i]);
        if (block_id != seq->table.blocks[i]) {
            remap(worker, seq, i, block_id);
        }
    }
    unexpect_below(worker, seq, full);
    if (seq->params.pin_ms > 0 && !seq->prefix_pinned &&
        full >= seq->prompt_count / seq->table.block_size) {
        seq->prefix_pinned = true;
        fg_worker_pin_prefix(worker, seq);
    }
}

void fg_worker_do_clear(fg_worker *worker)
{
    fg_worker_drop_pins(worker);
    fg_prefix_clear(worker->prefix);
    if (worker->options.tier != NULL) {
        fg_tier_clear(worker->options.tier);
    }
    fg_worker_news_cleared(worker);
    worker->load_dirty = true;
}
