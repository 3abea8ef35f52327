#include "common/worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    LOAD_COALESCE_NS = 20 * 1000 * 1000,
    LOAD_PERIOD_NS = 250 * 1000 * 1000, /* until WELCOME names the lease */
    RECONNECT_NS = 500 * 1000 * 1000,
    FENCE_AGAIN_NS = 500 * 1000 * 1000,
    JOIN_LIMIT_NS = 2000 * 1000 * 1000, /* from HELLO to WELCOME or REFUSE */
};
#define CUT_OFF_NS   (5ull * 1000 * 1000 * 1000)
#define FORGOTTEN_NS (1500ull * 1000 * 1000 * 1000)
#define STANDING_NS  (2ull * 1000 * 1000 * 1000)

/* ---- creation ---- */

static fg_status check_options(const fg_worker_options *options, fg_error *err)
{
    fg_status status = fg_sched_check(&options->limits, err);
    if (status != FG_OK) {
        return status;
    }
    if (options->limits.block_size != options->layout.block_size) {
        return fg_fail(err, FG_BAD_INPUT, "the scheduler's block size is not the KV layout's");
    }
    if (strlen(options->name) == 0 || strlen(options->name) > FG_LIMIT_NAME_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "worker name must have 1 to %u bytes",
                       FG_LIMIT_NAME_BYTES);
    }
    if (options->router_count > FG_WORKER_ROUTERS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "a worker joins at most %d routers",
                       FG_WORKER_ROUTERS_MAX);
    }
    return FG_OK;
}

fg_status fg_worker_create(const fg_worker_options *options, fg_worker **worker_out, fg_error *err)
{
    fg_status status = check_options(options, err);
    if (status != FG_OK) {
        return status;
    }
    fg_worker *worker = fg_mem_alloc(sizeof *worker);
    if (worker == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the worker");
    }
    worker->options = *options;
    snprintf(worker->name, sizeof worker->name, "%s", options->name);
    worker->options.name = worker->name;
    worker->router_count = options->router_count > 0 ? options->router_count : 1;
    for (uint32_t i = 0; i < worker->router_count; i++) {
        worker->routers[i].epoch = options->epoch + i;
        worker->routers[i].roles = options->roles;
        worker->routers[i].load_period_ns = LOAD_PERIOD_NS;
    }
    if (!fg_flight_checks(
            options->flight)) { /* there tickets are counted from 1, as they are kept */
        worker->first_ticket = fg_hash64(worker->name, strlen(worker->name), options->epoch);
    }
    worker->next_ticket = worker->first_ticket;
    if (options->flight != NULL) {
        worker->disguise = fg_rng_entropy();
        worker->ticket_disguise = fg_rng_entropy();
    }
    fg_buf_init(&worker->out, FG_LIMIT_FRAME_BYTES);
    fg_buf_init(&worker->plain, FG_LIMIT_FRAME_BYTES);
    status = fg_pool_create(options->block_count, &worker->pool, err);
    if (status == FG_OK) {
        worker->by_request = fg_map_create(FG_LIMIT_LIVE_REQUESTS);
        worker->by_ticket = fg_map_create(FG_LIMIT_LIVE_REQUESTS);
        worker->inbox = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
        worker->peers = fg_mem_array(FG_LIMIT_WORKERS, sizeof *worker->peers);
        if (worker->by_request == NULL || worker->by_ticket == NULL || worker->inbox == NULL ||
            worker->peers == NULL) {
            status = fg_fail(err, FG_AGAIN, "out of memory for the worker's tables");
        }
    }
    status = status != FG_OK ? status : fg_worker_news_create(worker, err);
    status = status != FG_OK ? status : fg_worker_cache_create(worker, err);
    status = status != FG_OK ? status : fg_worker_plan_create(worker, err);
    if (status != FG_OK) {
        fg_worker_destroy(worker);
        return status;
    }
    *worker_out = worker;
    return FG_OK;
}

static void destroy_list(fg_worker *worker, fg_seq_list *list)
{
    while (list->first != NULL) {
        fg_seq *seq = list->first;
        fg_seq_unlink(seq);
        fg_worker_give_grammar(worker, seq);
        fg_seq_destroy(seq);
    }
}

void fg_worker_destroy(fg_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    destroy_list(worker, &worker->preempted);
    destroy_list(worker, &worker->waiting);
    destroy_list(worker, &worker->running);
    destroy_list(worker, &worker->others);
    destroy_list(worker, &worker->closing);
    fg_worker_grammars_destroy(worker);
    fg_worker_plan_destroy(worker);
    fg_worker_drop_pins(worker);
    fg_map_destroy(worker->by_request);
    fg_map_destroy(worker->by_ticket);
    fg_arena_destroy(worker->inbox);
    fg_mem_free(worker->peers);
    fg_mem_free(worker->ends);
    fg_buf_deinit(&worker->out);
    fg_buf_deinit(&worker->plain);
    if (worker->options.tier != NULL) {
        fg_tier_watch(worker->options.tier, NULL, NULL);
    }
    fg_prefix_destroy(worker->prefix);
    fg_pool_destroy(worker->pool, true);
    fg_worker_news_destroy(worker);
    fg_mem_free(worker);
}

/* ---- small answers ---- */

fg_pool *fg_worker_pool(fg_worker *worker)
{
    return worker->pool;
}

const fg_worker_options *fg_worker_config(const fg_worker *worker)
{
    return &worker->options;
}

bool fg_worker_joined(const fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        if (worker->routers[i].joined) {
            return true;
        }
    }
    return false;
}

bool fg_worker_joined_at(const fg_worker *worker, uint32_t router)
{
    return router < worker->router_count && worker->routers[router].joined;
}

bool fg_worker_idle(const fg_worker *worker)
{
    return worker->preempted.count + worker->waiting.count + worker->running.count +
                   worker->others.count ==
               0 &&
           worker->in_flight == 0;
}

uint64_t fg_worker_next_ticket(fg_worker *worker)
{
    worker->next_ticket++;
    return worker->next_ticket == 0 ? ++worker->next_ticket : worker->next_ticket;
}

uint32_t fg_worker_find_peer(const fg_worker *worker, const char *name, uint64_t epoch)
{
    for (uint32_t i = 0; i < worker->peer_count; i++) {
        if (worker->peers[i].epoch == epoch && strcmp(worker->peers[i].name, name) == 0) {
            return worker->peers[i].index;
        }
    }
    return FG_LINK_PEER_NONE;
}

void fg_worker_count_direct(fg_worker *worker, uint32_t blocks)
{
    worker->stats.direct_blocks += blocks;
}

void fg_worker_learn_push(fg_worker *worker, uint32_t blocks, uint64_t exposed_ns)
{
    fg_cost_learn_push(&worker->cost, blocks, exposed_ns);
}

void fg_worker_stats_get(const fg_worker *worker, fg_worker_stats *stats_out)
{
    *stats_out = worker->stats;
    fg_pool_stats_get(worker->pool, &stats_out->pool);
    fg_prefix_stats_get(worker->prefix, &stats_out->prefix);
    if (worker->options.tier != NULL) {
        fg_tier_stats_get(worker->options.tier, &stats_out->tier);
    }
    stats_out->running = worker->running.count;
    stats_out->preempted = worker->preempted.count;
    stats_out->waiting = worker->preempted.count + worker->waiting.count + worker->others.count;
    stats_out->closing = worker->closing.count;
    stats_out->pinned_prefixes = worker->pin_count;
    stats_out->pinned_blocks = worker->pinned_blocks;
    if (worker->options.link != NULL) {
        fg_link_stats link;
        fg_link_stats_get(worker->options.link, &link);
        stats_out->link_pushed_blocks = link.pushed_blocks;
        stats_out->link_pushed_bytes = link.pushed_bytes;
        stats_out->link_descriptors = link.pushed_runs;
        stats_out->link_received_blocks = link.received_blocks;
        stats_out->link_received_bytes = link.received_bytes;
        stats_out->link_stale = link.stale_dropped;
    }
    const fg_pool_stats *pool = &stats_out->pool;
    bool at_rest =
        stats_out->running + stats_out->waiting + stats_out->closing == 0 && worker->in_flight == 0;
    stats_out->leaked_blocks =
        at_rest && worker->pin_count == 0 ? pool->held + pool->pinned + pool->quarantined : 0;
}

/* ---- towards the routers ---- */

void fg_worker_send(fg_worker *worker, uint32_t index, const fg_msg *msg)
{
    fg_worker_router *router = &worker->routers[index];
    /* A frame was lost already: what comes after it would be taken for the whole story (DONE, of which
     * tokens are missing). The next tick breaks the connection. */
    if (!router->up || router->stalled) {
        return;
    }
    fg_buf_clear(&worker->out);
    fg_status status = FG_AGAIN; /* no memory to encode it in, or thousands of frames unread */
    if (fg_wire_encode(msg, &worker->out)) {
        status =
            worker->options.send(worker->options.ctx, index, worker->out.data, worker->out.size);
        fg_worker_note_sent(worker, msg, status);
    }
    if (status == FG_AGAIN) {
        router->stalled = true;
        fg_warn("worker", "event=router_stalled router=%u lost=%s", index, fg_msg_name(msg->kind));
    }
}

void fg_worker_send_busy(fg_worker *worker, uint64_t request, uint32_t attempt)
{
    fg_msg msg = { .kind = FG_MSG_TICKET, .request = request, .attempt = attempt };
    fg_worker_send(worker, worker->hearing, &msg);
}

static void send_hello(fg_worker *worker, uint32_t index)
{
    fg_worker_router *router = &worker->routers[index];
    const fg_worker_options *options = &worker->options;
    fg_buf record;
    fg_buf_init(&record, 64 * 1024);
    if (fg_worker_has_link(worker) && !fg_worker_link_describe(worker, &record)) {
        /* Out of memory. A member that nobody can push to would wait for introductions for ever. */
        fg_err("worker", "event=no_link_record");
        router->stalled = true;
        fg_buf_deinit(&record);
        return;
    }
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = (fg_wire_hello){
        .protocol = FG_PROTOCOL_VERSION,
        .self = { .name = worker->name, .epoch = router->epoch },
        .roles = router->roles,
        .able = fg_worker_has_link(worker) ? FG_ROLE_PREFILL | FG_ROLE_DECODE : options->roles,
        .speed = options->speed,
        .pid = options->pid,
        .fingerprint_low = options->fingerprint.low,
        .fingerprint_high = options->fingerprint.high,
        .numerics_class = fg_engine_numerics_class(options->engine),
        .layer_count = options->layout.layer_count,
        .kv_head_count = options->layout.kv_head_count,
        .head_dim = options->layout.head_dim,
        .block_size = options->layout.block_size,
        .kv_dtype = options->layout.dtype,
        .kv_layout =
            FG_KV_LAYOUT_VERSION | (options->blocks_in_device ? FG_KV_LAYOUT_IN_DEVICE : 0),
        .block_count = options->block_count,
        .max_seqs = options->limits.seqs_max,
        .context_max = options->context_max,
        .link_record = record.data,
        .link_record_bytes = record.size,
    };
    fg_worker_send(worker, index, &msg);
    fg_buf_deinit(&record);
}

static void send_load(fg_worker *worker, uint32_t index)
{
    fg_worker_router *router = &worker->routers[index];
    fg_worker_stats stats;
    fg_worker_stats_get(worker, &stats);
    fg_msg msg = { .kind = FG_MSG_LOAD };
    msg.load = (fg_wire_load){
        .total = stats.pool.total,
        .free = stats.pool.free,
        .cached = stats.pool.cached,
        .held = stats.pool.held,
        .pinned = stats.pool.pinned,
        .quarantined = stats.pool.quarantined,
        .running = stats.running,
        .waiting = stats.waiting,
        .steps = stats.steps,
        .busy_ns = stats.busy_ns,
        .sequence = ++router->load_sequence,
        .cache_query_tokens = stats.cache_query_tokens,
        .cache_hit_tokens = stats.cache_hit_tokens,
        .evicted_blocks = stats.pool.evictions,
        .preemptions = stats.preemptions,
        .swapped_blocks = stats.swapped_blocks,
        .restored_blocks = stats.restored_blocks,
        .tier_blocks = stats.tier.swapped + stats.tier.stored,
        .news_sequence = fg_worker_news_sequence(worker, index),
    };
    router->load_dirty = false;
    /* Where there are several each of them is told at the next tick. */
    worker->load_dirty = worker->load_dirty && worker->router_count > 1;
    router->load_sent_ns = fg_worker_now_ns(worker);
    fg_worker_send(worker, index, &msg);
}

/* ---- messages ---- */

static void on_prefill(fg_worker *worker, const fg_msg *msg)
{
    uint32_t peer = FG_LINK_PEER_NONE;
    if (msg->prefill.has_ticket) {
        peer = fg_worker_find_peer(worker, msg->prefill.target.name, msg->prefill.target.epoch);
        uint64_t blocks = (uint64_t)msg->prefill.first_block + msg->prefill.block_count;
        if (worker->options.prefill == NULL || !fg_worker_has_link(worker) ||
            peer == FG_LINK_PEER_NONE || msg->prefill.block_count == 0 ||
            blocks !=
                fg_kv_blocks_for(msg->prefill.token_count, worker->options.layout.block_size)) {
            fg_worker_send_done(worker, msg, FG_FINISH_ERROR,
                                peer == FG_LINK_PEER_NONE ? "the decode worker is unknown here"
                                                          : "the ticket does not fit the prompt");
            return;
        }
    }
    fg_seq *seq = fg_worker_add_seq(worker, msg, msg->prefill.tokens, msg->prefill.token_count,
                                    &msg->prefill.sampling);
    if (seq == NULL) {
        return;
    }
    fg_seq_foretell(seq, msg->prefill.said, msg->prefill.said_count);
    bool pull = seq->params.pull;
    if (pull && (!msg->prefill.has_ticket || !fg_worker_borrow_prompt(worker, seq))) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "these blocks are not cached here");
        return;
    }
    fg_worker_set_state(worker, seq, pull ? FG_SEQ_HANDING : FG_SEQ_WAITING);
    if (!msg->prefill.has_ticket) {
        return;
    }
    fg_seq_ticket ticket = { .side = FG_SIDE_SENDER,
                             .peer = peer,
                             .ticket = msg->prefill.ticket,
                             .first_block = msg->prefill.first_block,
                             .block_count = msg->prefill.block_count };
    if (!fg_seq_open_ticket(seq, &ticket)) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "worker is out of memory");
        return;
    }
    memcpy(seq->target_blocks, msg->prefill.blocks,
           msg->prefill.block_count * sizeof *seq->target_blocks);
    if (!fg_worker_bind_ticket(worker, seq)) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "worker has no room for another ticket");
        return;
    }
    /* While the prompt is computed, so that its first push does not wait for a connection. */
    fg_worker_link_prepare(worker, seq);
}

static void on_peer(fg_worker *worker, const fg_msg *msg)
{
    if (!fg_worker_has_link(worker) ||
        fg_worker_find_peer(worker, msg->peer.peer.name, msg->peer.peer.epoch) !=
            FG_LINK_PEER_NONE) {
        return;
    }
    fg_error err;
    uint32_t index;
    if (worker->peer_count == FG_LIMIT_WORKERS) {
        fg_warn("worker", "event=too_many_peers peer=%s", msg->peer.peer.name);
        return;
    }
    fg_status status = fg_worker_link_add_peer(worker, msg, &index, &err);
    if (status != FG_OK) {
        fg_warn("worker", "event=peer_refused peer=%s why=\"%s\"", msg->peer.peer.name, err.text);
        return;
    }
    fg_worker_peer *peer = &worker->peers[worker->peer_count++];
    snprintf(peer->name, sizeof peer->name, "%s", msg->peer.peer.name);
    peer->epoch = msg->peer.peer.epoch;
    peer->index = index;
    peer->router = worker->hearing;
    peer->broken_ns = 0;
}

static void end_tickets_of(fg_worker *worker, fg_seq_list *list, uint32_t peer)
{
    fg_seq *next;
    for (fg_seq *seq = list->first; seq != NULL; seq = next) {
        next = seq->next;
        if (seq->ticket_open && seq->peer == peer) {
            fg_worker_end(worker, seq, FG_FINISH_ERROR,
                          seq->side == FG_SIDE_SENDER ? "the decode worker was lost"
                                                      : "the prefill worker was lost");
        }
    }
}

void fg_worker_note_broken(fg_worker *worker, uint32_t index)
{
    for (uint32_t i = 0; i < worker->peer_count; i++) {
        fg_worker_peer *peer = &worker->peers[i];
        if (peer->index == index && peer->broken_ns == 0) {
            fg_warn("worker", "event=link_broken peer=%s", peer->name);
            peer->broken_ns = fg_worker_now_ns(worker);
        }
    }
}

/* A dead peer is called lost by the router within its lease. One that is still listed long after lives,
 * and only its link is broken: joining again makes all links anew. */
static void leave_if_cut_off(fg_worker *worker, uint64_t now)
{
    for (uint32_t i = 0; i < worker->peer_count; i++) {
        const fg_worker_peer *peer = &worker->peers[i];
        if (peer->broken_ns == 0 && !fg_worker_link_usable(worker, peer->index)) {
            fg_worker_note_broken(worker, peer->index); /* a verdict may be what was lost */
        }
        /* Noted just now, it broke after `now`, which is the tick's beginning. */
        if (peer->broken_ns != 0 && now > peer->broken_ns && now - peer->broken_ns >= CUT_OFF_NS) {
            fg_warn("worker", "event=joining_again why=\"the link to %s stays broken\"",
                    peer->name);
            worker->routers[peer->router].stalled = true;
        }
    }
}

static void on_peer_lost(fg_worker *worker, const fg_msg *msg)
{
    for (uint32_t i = 0; i < worker->peer_count; i++) {
        fg_worker_peer *peer = &worker->peers[i];
        if (peer->epoch != msg->peer_lost.peer.epoch ||
            strcmp(peer->name, msg->peer_lost.peer.name) != 0) {
            continue;
        }
        uint32_t index = peer->index;
        end_tickets_of(worker, &worker->preempted, index);
        end_tickets_of(worker, &worker->waiting, index);
        end_tickets_of(worker, &worker->running, index);
        end_tickets_of(worker, &worker->others, index);
        fg_worker_link_lose_peer(worker, index);
        *peer = worker->peers[--worker->peer_count];
        return;
    }
}

static void on_refuse(fg_worker *worker, const fg_msg *msg)
{
    fg_warn("worker", "event=refused reason=\"%s\"", msg->refuse.reason);
    fg_worker_router *router = &worker->routers[worker->hearing];
    /* Every frame of a connection that the router has given up is answered so; it is one refusal. */
    if (router->up && !router->stalled) {
        router->refusals++;
        router->stalled = true; /* leave, and try again as a stranger */
    }
}

/* Blocks have one name at all routers. Whose names are others would find nothing, and take from the others what they
 * find: that router is left alone until it has the cluster's key. */
static bool shares_secret(fg_worker *worker, fg_digest128 secret)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        if (i != worker->hearing && worker->routers[i].joined &&
            (secret.low != worker->secret.low || secret.high != worker->secret.high)) {
            return false;
        }
    }
    return true;
}

static void on_welcome(fg_worker *worker, const fg_msg *msg)
{
    uint32_t index = worker->hearing;
    fg_worker_router *router = &worker->routers[index];
    bool doubled = router->joined;
    fg_digest128 secret = { .low = msg->welcome.cache_key_low,
                            .high = msg->welcome.cache_key_high };
    if (!shares_secret(worker, secret)) {
        fg_warn("worker",
                "event=other_cache_key router=%u do=\"give all routers the same "
                "--cache-key-file\"",
                index);
        router->refusals++;
        router->stalled = true;
        return;
    }
    router->joined = true;
    router->refusals = 0;
    worker->secret = secret;
    fg_prefix_set_secret(worker->prefix, secret);
    fg_worker_note_secret(worker, secret);
    if (msg->welcome.lease_ms > 0) {
        router->load_period_ns = (uint64_t)msg->welcome.lease_ms * 1000000 / 8;
    }
    fg_info("worker", "event=joined router=%u epoch=%llu", index,
            (unsigned long long)router->epoch);
    if (!doubled) {
        fg_worker_news_begin(worker, index);
    }
    if (worker->draining) {
        fg_worker_send(worker, index,
                       &(fg_msg){ .kind = FG_MSG_DRAIN }); /* a stranger is asked anew */
    }
    send_load(worker, index);
}

static void on_message(fg_worker *worker, const fg_msg *msg)
{
    fg_seq *seq;
    switch (msg->kind) {
    case FG_MSG_WELCOME:
        on_welcome(worker, msg);
        break;
    case FG_MSG_REFUSE:
        on_refuse(worker, msg);
        break;
    case FG_MSG_PEER:
        on_peer(worker, msg);
        break;
    case FG_MSG_PEER_LOST:
        on_peer_lost(worker, msg);
        break;
    case FG_MSG_PREFILL:
        on_prefill(worker, msg);
        break;
    case FG_MSG_RESERVE:
        if (worker->options.decode != NULL && fg_worker_has_link(worker)) {
            worker->options.decode->on_reserve(worker, msg);
        } else {
            fg_worker_send_done(worker, msg, FG_FINISH_ERROR,
                                "this worker does not decode for others");
        }
        break;
    case FG_MSG_CANCEL:
        seq = fg_worker_find_request(worker, msg->request, msg->attempt);
        if (seq != NULL) {
            fg_worker_end(worker, seq, FG_FINISH_CANCELLED, "");
        } else {
            worker->stats.stale_dropped++;
        }
        break;
    case FG_MSG_CLEAR:
        fg_worker_do_clear(worker);
        break;
    case FG_MSG_RESYNC:
        fg_worker_news_again(worker, worker->hearing);
        break;
    case FG_MSG_ROLE:
        /* What it is used for is each router's own matter: none undoes what another decided. */
        worker->routers[worker->hearing].roles = msg->role.roles;
        fg_info("worker", "event=role router=%u roles=%u", worker->hearing, msg->role.roles);
        break;
    default:
        worker->stats.frames_refused++;
        break;
    }
}

void fg_worker_do_frame(fg_worker *worker, uint32_t index, const void *bytes, size_t size_bytes)
{
    const fg_worker_router *router = &worker->routers[index];
    worker->hearing = index;
    fg_error err;
    fg_msg msg;
    fg_arena_reset(worker->inbox);
    fg_status status = fg_wire_decode(bytes, size_bytes, worker->inbox, &msg, &err);
    fg_worker_note_frame(worker, status == FG_OK ? &msg : NULL);
    if (status != FG_OK) {
        worker->stats.frames_refused++;
        fg_warn("worker", "event=frame_refused why=\"%s\"", err.text);
        return;
    }
    /* Not up: this side has left, and what still comes over the old connection is for somebody who is gone;
     * a late WELCOME would make a member of the next connection out of it. */
    if (!router->up ||
        (!router->joined && msg.kind != FG_MSG_WELCOME && msg.kind != FG_MSG_REFUSE)) {
        worker->stats.stale_dropped++;
        return;
    }
    on_message(worker, &msg);
    fg_worker_run(worker);
}

/* ---- connection and time ---- */

void fg_worker_do_up(fg_worker *worker, uint32_t index)
{
    fg_worker_router *router = &worker->routers[index];
    if (router->reconnect_at_ns != 0) {
        return; /* the old connection came back, but this worker joins again under a new name */
    }
    router->up = true;
    router->up_ns = fg_worker_now_ns(worker);
    router->stalled = false;
    send_hello(worker, index);
}

static bool is_connected(const fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        if (worker->routers[i].up) {
            return true;
        }
    }
    return false;
}

void fg_worker_do_down(fg_worker *worker, uint32_t index)
{
    fg_worker_router *router = &worker->routers[index];
    if (!router->up) {
        return;
    }
    if (router->joined) {
        fg_warn("worker", "event=router_lost router=%u live=%u", index,
                worker->preempted.count + worker->waiting.count + worker->running.count +
                    worker->others.count);
    }
    router->up = false;
    router->joined = false;
    if (!is_connected(worker)) {
        fg_worker_drop_pins(worker);
    }
    fg_worker_cancel_of(worker, index);
    /* The others are told that this epoch is lost and turn away from it; so does this side. The
     * router introduces everybody anew after the next WELCOME. */
    for (uint32_t i = worker->peer_count; i-- > 0;) {
        uint32_t link = worker->peers[i].index;
        if (worker->peers[i].router == index) {
            worker->peers[i] = worker->peers[--worker->peer_count];
            fg_worker_link_lose_peer(worker, link);
        }
    }
    /* Refused again and again: half a second, a second, ... sixteen. */
    uint32_t doublings = router->refusals > 1 ? router->refusals - 1 : 0;
    router->reconnect_at_ns =
        fg_worker_now_ns(worker) + ((uint64_t)RECONNECT_NS << (doublings < 5 ? doublings : 5));
}

static void pump_list(fg_worker *worker, fg_seq_list *list)
{
    fg_seq *next;
    for (fg_seq *seq = list->first; seq != NULL; seq = next) {
        next = seq->next;
        if (seq->side == FG_SIDE_SENDER && seq->ticket_open) {
            worker->options.prefill->on_pump(worker, seq);
        }
    }
}

/* A writer that never comes, a verdict that never comes: long after the router gave the request up. */
static void end_forgotten(fg_worker *worker, uint64_t now)
{
    fg_seq *next;
    for (fg_seq *seq = worker->others.first; seq != NULL; seq = next) {
        next = seq->next;
        if (seq->ticket_open && now - seq->queued_ns >= FORGOTTEN_NS) {
            fg_worker_end(worker, seq, FG_FINISH_ERROR, "the hand-over never ended");
        }
    }
}

/* A writer that is still a member and answers no fence: this side's link to it is broken, or the question
 * was lost. Joining again makes another one, over which it can answer. A peer that was introduced since
 * has another index, so this happens once. */
static void note_silent(fg_worker *worker, const fg_seq *seq, uint64_t now)
{
    for (uint32_t i = 0; i < worker->peer_count; i++) {
        if (worker->peers[i].index == seq->peer && now - seq->fence_begun_ns >= CUT_OFF_NS) {
            fg_warn("worker", "event=joining_again why=\"%s answers no fence\"",
                    worker->peers[i].name);
            worker->routers[worker->peers[i].router].stalled = true;
        }
    }
}

/* A fence that stays unanswered is asked for again: blocks stay quarantined until then. */
static void ask_fences_again(fg_worker *worker, uint64_t now)
{
    for (fg_seq *seq = worker->closing.first; seq != NULL; seq = seq->next) {
        if (seq->ticket_open && seq->side == FG_SIDE_RECEIVER &&
            now - seq->fence_asked_ns >= FENCE_AGAIN_NS) {
            seq->fence_asked_ns = now;
            fg_worker_link_fence(worker, seq);
            note_silent(worker, seq, now);
        }
    }
}

static bool has_reservation(const fg_worker *worker)
{
    const fg_seq *seq = worker->others.first;
    while (seq != NULL && seq->state != FG_SEQ_EXPECTING) {
        seq = seq->next;
    }
    return seq != NULL;
}

/* Routers make no circle of waits, but they do not know of each other's pairs: prompts may stand here for room that
 * reservations hold, whose prompts stand elsewhere in the same way. The one that came last goes back to its router, which
 * lets go of its reservation and places it anew. */
static void give_way(fg_worker *worker, uint64_t now)
{
    if (worker->router_count == 1) {
        return;
    }
    fg_seq *last = worker->waiting.last;
    while (last != NULL && !(last->side == FG_SIDE_SENDER && last->ticket_open)) {
        last = last->previous;
    }
    if (last == NULL || worker->in_flight > 0 || worker->running.count > 0 ||
        !has_reservation(worker) || worker->moved_ns == 0) {
        worker->moved_ns = now;
    } else if (now > worker->moved_ns && now - worker->moved_ns >= STANDING_NS) {
        worker->moved_ns = now;
        fg_warn("worker", "event=gave_way req=%016llx why=\"nothing moves, and prompts wait\"",
                (unsigned long long)last->request);
        fg_worker_end(worker, last, FG_FINISH_ERROR, "prompts waited for each other");
    }
}

/* Joins, leaves and joins again, as it is time. */
static void attend(fg_worker *worker, uint32_t index, uint64_t now)
{
    fg_worker_router *router = &worker->routers[index];
    if (router->up && !router->joined && now - router->up_ns > JOIN_LIMIT_NS) {
        fg_warn("worker", "event=no_answer_to_hello router=%u", index);
        router->stalled = true;
    }
    if (router->stalled) {
        router->stalled = false;
        fg_worker_do_down(worker, index);
    }
    if (router->reconnect_at_ns != 0 && now >= router->reconnect_at_ns) {
        router->reconnect_at_ns = 0;
        router->epoch += worker->router_count;
        fg_worker_reconnect(worker, index);
    }
}

static void report(fg_worker *worker, uint64_t now)
{
    for (uint32_t i = 0; i < worker->router_count; i++) {
        fg_worker_router *router = &worker->routers[i];
        router->load_dirty = router->load_dirty || worker->load_dirty;
        uint64_t since = now - router->load_sent_ns;
        if (router->joined && (since >= router->load_period_ns ||
                               (router->load_dirty && since >= LOAD_COALESCE_NS))) {
            send_load(worker, i);
        }
    }
    worker->load_dirty = false;
}

void fg_worker_do_tick(fg_worker *worker)
{
    uint64_t now = fg_worker_now_ns(worker);
    for (uint32_t i = 0; i < worker->router_count; i++) {
        attend(worker, i, now);
    }
    pump_list(worker, &worker->running);
    pump_list(worker, &worker->others);
    fg_worker_expire_pins(worker, now);
    ask_fences_again(worker, now);
    end_forgotten(worker, now);
    leave_if_cut_off(worker, now);
    give_way(worker, now);
    fg_worker_run(worker);
    fg_worker_news_flush(worker);
    report(worker, now);
}

void fg_worker_do_drain(fg_worker *worker)
{
    fg_msg msg = { .kind = FG_MSG_DRAIN };
    for (uint32_t i = 0; !worker->draining && i < worker->router_count; i++) {
        fg_worker_send(worker, i, &msg);
    }
    worker->draining = true;
}
