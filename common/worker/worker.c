#include "common/worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"

enum {
    LOAD_COALESCE_NS = 20 * 1000 * 1000,
    LOAD_PERIOD_NS = 250 * 1000 * 1000, /* until WELCOME names the lease */
    RECONNECT_NS = 500 * 1000 * 1000,
    FENCE_AGAIN_NS = 500 * 1000 * 1000,
    JOIN_LIMIT_NS = 2000 * 1000 * 1000, /* from HELLO to WELCOME or REFUSE */
};
#define CUT_OFF_NS   (5ull * 1000 * 1000 * 1000)
#define FORGOTTEN_NS (1500ull * 1000 * 1000 * 1000)

/* ---- creation ---- */

static fg_status check_options(const fg_worker_options *options, fg_error *err)
{
    const fg_sched_limits *limits = &options->limits;
    if (limits->seqs_max == 0 || limits->chunk_tokens_max == 0 ||
        limits->step_tokens_max < limits->seqs_max) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--max-batch-tokens (%u) must be at least --max-seqs (%u), both above 0",
                       limits->step_tokens_max, limits->seqs_max);
    }
    if (strlen(options->name) == 0 || strlen(options->name) > FG_LIMIT_NAME_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "worker name must have 1 to %u bytes",
                       FG_LIMIT_NAME_BYTES);
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
    worker->epoch = options->epoch;
    worker->load_period_ns = LOAD_PERIOD_NS;
    worker->next_ticket = fg_hash64(worker->name, strlen(worker->name), options->epoch);
    fg_buf_init(&worker->out, FG_LIMIT_FRAME_BYTES);
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
    if (status == FG_OK) {
        status = fg_worker_step_create(worker, err);
    }
    if (status != FG_OK) {
        fg_worker_destroy(worker);
        return status;
    }
    *worker_out = worker;
    return FG_OK;
}

static void destroy_list(fg_seq_list *list)
{
    while (list->first != NULL) {
        fg_seq *seq = list->first;
        fg_seq_unlink(seq);
        fg_seq_destroy(seq);
    }
}

void fg_worker_destroy(fg_worker *worker)
{
    if (worker == NULL) {
        return;
    }
    destroy_list(&worker->waiting);
    destroy_list(&worker->running);
    destroy_list(&worker->others);
    destroy_list(&worker->closing);
    fg_worker_step_destroy(worker);
    fg_map_destroy(worker->by_request);
    fg_map_destroy(worker->by_ticket);
    fg_arena_destroy(worker->inbox);
    fg_mem_free(worker->peers);
    fg_buf_deinit(&worker->out);
    fg_pool_destroy(worker->pool, true);
    fg_mem_free(worker);
}

/* ---- small answers ---- */

fg_pool *fg_worker_pool(fg_worker *worker)
{
    return worker->pool;
}

fg_link *fg_worker_link(fg_worker *worker)
{
    return worker->options.link;
}

const fg_worker_options *fg_worker_config(const fg_worker *worker)
{
    return &worker->options;
}

uint64_t fg_worker_now_ns(const fg_worker *worker)
{
    return fg_clock_now_ns(&worker->options.clock);
}

bool fg_worker_joined(const fg_worker *worker)
{
    return worker->joined;
}

bool fg_worker_idle(const fg_worker *worker)
{
    return worker->waiting.count + worker->running.count + worker->others.count == 0 &&
           !worker->stepping;
}

uint32_t fg_worker_slots_used(const fg_worker *worker)
{
    /* A sequence that is being handed over has computed all it will: it holds no slot. */
    uint32_t used = worker->running.count;
    for (const fg_seq *seq = worker->others.first; seq != NULL; seq = seq->next) {
        used += seq->state != FG_SEQ_HANDING;
    }
    return used;
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

void fg_worker_stats_get(const fg_worker *worker, fg_worker_stats *stats_out)
{
    *stats_out = worker->stats;
    fg_pool_stats_get(worker->pool, &stats_out->pool);
    stats_out->running = worker->running.count;
    stats_out->waiting = worker->waiting.count + worker->others.count;
    stats_out->closing = worker->closing.count;
}

void fg_worker_check(const fg_worker *worker)
{
    fg_pool_check(worker->pool);
    fg_pool_stats pool;
    fg_pool_stats_get(worker->pool, &pool);
    const fg_seq_list *lists[] = { &worker->waiting, &worker->running, &worker->others,
                                   &worker->closing };
    uint32_t promised = 0, referenced = 0, quarantined = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        uint32_t count = 0;
        for (const fg_seq *seq = lists[i]->first; seq != NULL; seq = seq->next) {
            promised += seq->promised;
            referenced += seq->given ? 0 : seq->block_count;
            quarantined += seq->given && seq->ticket_open ? seq->block_count : 0;
            FG_ASSERT((lists[i] == &worker->closing) == (seq->state == FG_SEQ_CLOSING));
            count++;
        }
        FG_ASSERT(count == lists[i]->count);
    }
    FG_ASSERT(promised == pool.promised, "promised %u, sequences hold %u", pool.promised, promised);
    FG_ASSERT(referenced == pool.held + pool.pinned, "held %u + pinned %u, sequences hold %u",
              pool.held, pool.pinned, referenced);
    FG_ASSERT(quarantined >= pool.quarantined, "quarantined %u, sequences explain %u",
              pool.quarantined, quarantined);
}

/* ---- towards the router ---- */

void fg_worker_send(fg_worker *worker, const fg_msg *msg)
{
    if (!worker->up) {
        return;
    }
    fg_buf_clear(&worker->out);
    bool encoded = fg_wire_encode(msg, &worker->out);
    FG_ASSERT(encoded, "a %s message does not fit a frame", fg_msg_name(msg->kind));
    fg_status status =
        worker->options.send(worker->options.ctx, worker->out.data, worker->out.size);
    if (status == FG_AGAIN && !worker->stalled) {
        /* Thousands of frames unread: as good as dead. The next tick breaks the connection. */
        worker->stalled = true;
        fg_warn("worker", "event=router_stalled");
    }
}

void fg_worker_send_busy(fg_worker *worker, uint64_t request, uint32_t attempt)
{
    fg_msg msg = { .kind = FG_MSG_TICKET, .request = request, .attempt = attempt };
    fg_worker_send(worker, &msg);
}

static void send_done(fg_worker *worker, uint64_t request, uint32_t attempt, fg_finish finish,
                      const char *text, uint32_t generated)
{
    fg_msg msg = { .kind = FG_MSG_DONE, .request = request, .attempt = attempt };
    msg.done.finish = finish;
    msg.done.text = text;
    msg.done.generated = generated;
    fg_worker_send(worker, &msg);
}

static void send_hello(fg_worker *worker)
{
    const fg_worker_options *options = &worker->options;
    fg_buf record;
    fg_buf_init(&record, 64 * 1024);
    if (options->link != NULL && !fg_link_describe(options->link, &record)) {
        fg_err("worker", "event=no_link_record");
    }
    fg_msg msg = { .kind = FG_MSG_HELLO };
    msg.hello = (fg_wire_hello){
        .protocol = FG_PROTOCOL_VERSION,
        .self = { .name = worker->name, .epoch = worker->epoch },
        .roles = options->roles,
        .pid = options->pid,
        .fingerprint_low = options->fingerprint.low,
        .fingerprint_high = options->fingerprint.high,
        .numerics_class = fg_engine_numerics_class(options->engine),
        .layer_count = options->layout.layer_count,
        .kv_head_count = options->layout.kv_head_count,
        .head_dim = options->layout.head_dim,
        .block_size = options->layout.block_size,
        .kv_dtype = options->layout.dtype,
        .block_count = options->block_count,
        .max_seqs = options->limits.seqs_max,
        .context_max = options->context_max,
        .link_record = record.data,
        .link_record_bytes = record.size,
    };
    fg_worker_send(worker, &msg);
    fg_buf_deinit(&record);
}

static void send_load(fg_worker *worker)
{
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
        .sequence = ++worker->load_sequence,
    };
    worker->load_dirty = false;
    worker->load_sent_ns = fg_worker_now_ns(worker);
    fg_worker_send(worker, &msg);
}

/* ---- the life of a sequence ---- */

static uint64_t request_key(uint64_t request, uint32_t attempt)
{
    return fg_hash_mix(fg_hash_mix(request) ^ attempt);
}

static fg_seq *find_request(fg_worker *worker, uint64_t request, uint32_t attempt)
{
    return fg_map_get(worker->by_request, request_key(request, attempt));
}

static bool has_ended(const fg_worker *worker, uint64_t key)
{
    for (uint32_t i = 0; i < FG_WORKER_ENDED_MAX; i++) {
        if (worker->ended[i] == key) {
            return true;
        }
    }
    return false;
}

uint32_t fg_worker_need(const fg_worker *worker, const fg_seq *seq)
{
    /* A sender computes the prompt only; whoever decodes here may reach the last token. */
    uint32_t tokens = seq->side == FG_SIDE_SENDER ? seq->prompt_count : seq->token_max;
    return fg_kv_blocks_for(tokens, worker->options.layout.block_size) - seq->block_count;
}

/* Why a sequence can never run here; NULL when it can. */
static const char *misfit(const fg_worker *worker, const uint32_t *tokens, uint32_t token_count,
                          const fg_wire_sampling *params)
{
    const fg_worker_options *options = &worker->options;
    uint64_t total = (uint64_t)token_count + params->max_tokens;
    if (token_count == 0 || params->max_tokens == 0) {
        return "empty prompt or max_tokens 0";
    }
    if (total > options->context_max) {
        return "prompt and max_tokens exceed this worker's context";
    }
    if (fg_kv_blocks_for((uint32_t)total, options->layout.block_size) > options->block_count) {
        return "prompt and max_tokens exceed this worker's KV blocks";
    }
    for (uint32_t i = 0; i < token_count; i++) {
        if (tokens[i] >= options->vocab_size) {
            return "token id outside of the vocabulary";
        }
    }
    return NULL;
}

fg_seq *fg_worker_add_seq(fg_worker *worker, const fg_msg *msg, const uint32_t *tokens,
                          uint32_t token_count, const fg_wire_sampling *params)
{
    const char *why = misfit(worker, tokens, token_count, params);
    fg_seq *seq = NULL;
    if (why == NULL && (find_request(worker, msg->request, msg->attempt) != NULL ||
                        has_ended(worker, request_key(msg->request, msg->attempt)))) {
        worker->stats.stale_dropped++; /* a doubled message: the first one stands */
        return NULL;
    }
    if (why == NULL) {
        seq = fg_seq_create(msg->request, msg->attempt, tokens, token_count, params,
                            worker->options.layout.block_size);
        if (seq == NULL ||
            fg_map_put(worker->by_request, request_key(msg->request, msg->attempt), seq) != FG_OK) {
            fg_seq_destroy(seq);
            seq = NULL;
            why = "worker is out of memory";
        }
    }
    if (why != NULL) {
        send_done(worker, msg->request, msg->attempt, FG_FINISH_ERROR, why, 0);
        return NULL;
    }
    seq->queued_ns = fg_worker_now_ns(worker);
    seq->started_ns = seq->queued_ns;
    worker->load_dirty = true;
    return seq;
}

void fg_worker_set_state(fg_worker *worker, fg_seq *seq, fg_seq_state state)
{
    fg_seq_list *list = state == FG_SEQ_WAITING   ? &worker->waiting
                        : state == FG_SEQ_RUNNING ? &worker->running
                        : state == FG_SEQ_CLOSING ? &worker->closing
                                                  : &worker->others;
    seq->state = state;
    fg_seq_unlink(seq);
    fg_seq_append(list, seq);
}

bool fg_worker_bind_ticket(fg_worker *worker, fg_seq *seq)
{
    if (fg_map_get(worker->by_ticket, seq->ticket) != NULL ||
        fg_map_put(worker->by_ticket, seq->ticket, seq) != FG_OK) {
        return false;
    }
    seq->ticket_open = true;
    for (uint32_t i = 0; i < seq->block_count; i++) {
        fg_pool_pin(worker->pool, seq->blocks[i]);
    }
    return true;
}

void fg_worker_release_ticket(fg_worker *worker, fg_seq *seq)
{
    FG_ASSERT(seq->ticket_open);
    fg_map_remove(worker->by_ticket, seq->ticket);
    seq->ticket_open = false;
    for (uint32_t i = 0; i < seq->block_count; i++) {
        fg_pool_unpin(worker->pool, seq->blocks[i]);
    }
    worker->load_dirty = true;
}

static void give_blocks(fg_worker *worker, fg_seq *seq)
{
    if (seq->given) {
        return;
    }
    seq->given = true;
    for (uint32_t i = 0; i < seq->block_count; i++) {
        fg_pool_unref(worker->pool, seq->blocks[i]);
    }
    fg_pool_unpromise(worker->pool, seq->promised);
    seq->promised = 0;
    worker->load_dirty = true;
}

void fg_worker_settle(fg_worker *worker, fg_seq *seq)
{
    FG_ASSERT(seq->state == FG_SEQ_CLOSING);
    if (seq->in_step) {
        return;
    }
    give_blocks(worker, seq);
    if (!seq->ticket_open) {
        fg_seq_unlink(seq);
        fg_seq_destroy(seq);
    }
}

void fg_worker_end(fg_worker *worker, fg_seq *seq, fg_finish finish, const char *text)
{
    FG_ASSERT(seq->state != FG_SEQ_CLOSING);
    if (finish != FG_FINISH_CANCELLED) {
        send_done(worker, seq->request, seq->attempt, finish, text, fg_seq_generated(seq));
    }
    uint64_t key = request_key(seq->request, seq->attempt);
    fg_map_remove(worker->by_request, key);
    worker->ended[worker->ended_next++ % FG_WORKER_ENDED_MAX] = key;
    fg_worker_set_state(worker, seq, FG_SEQ_CLOSING);
    if (seq->ticket_open && !seq->aborting) {
        seq->aborting = true;
        if (seq->side == FG_SIDE_SENDER) {
            fg_link_abort(worker->options.link, seq->peer, seq->ticket);
            if (seq->pushed == 0) {
                /* The link never saw this ticket, reads nothing, and (where the receiver has fenced
                 * it already) may have no more to say about it. */
                fg_worker_release_ticket(worker, seq);
            }
        } else {
            seq->fence_asked_ns = fg_worker_now_ns(worker);
            fg_link_fence(worker->options.link, seq->ticket);
        }
    }
    fg_worker_settle(worker, seq);
}

static void end_all(fg_worker *worker, fg_finish finish, const char *why)
{
    fg_seq_list *lists[] = { &worker->waiting, &worker->running, &worker->others };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        while (lists[i]->first != NULL) {
            fg_worker_end(worker, lists[i]->first, finish, why);
        }
    }
}

void fg_worker_abort_all(fg_worker *worker, const char *why)
{
    end_all(worker, FG_FINISH_ERROR, why);
}

/* ---- messages ---- */

static void on_prefill(fg_worker *worker, const fg_msg *msg)
{
    uint32_t peer = FG_LINK_PEER_NONE;
    if (msg->prefill.has_ticket) {
        peer = fg_worker_find_peer(worker, msg->prefill.target.name, msg->prefill.target.epoch);
        uint32_t blocks =
            fg_kv_blocks_for(msg->prefill.token_count, worker->options.layout.block_size);
        if (worker->options.prefill == NULL || worker->options.link == NULL ||
            peer == FG_LINK_PEER_NONE || msg->prefill.block_count != blocks ||
            msg->prefill.first_block != 0) {
            send_done(worker, msg->request, msg->attempt, FG_FINISH_ERROR,
                      peer == FG_LINK_PEER_NONE ? "the decode worker is unknown here"
                                                : "the ticket does not fit the prompt",
                      0);
            return;
        }
    }
    fg_seq *seq = fg_worker_add_seq(worker, msg, msg->prefill.tokens, msg->prefill.token_count,
                                    &msg->prefill.sampling);
    if (seq == NULL) {
        return;
    }
    fg_worker_set_state(worker, seq, FG_SEQ_WAITING);
    if (!msg->prefill.has_ticket) {
        return;
    }
    if (!fg_seq_open_ticket(seq, FG_SIDE_SENDER, peer, msg->prefill.ticket,
                            msg->prefill.block_count)) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "worker is out of memory");
        return;
    }
    memcpy(seq->target_blocks, msg->prefill.blocks,
           msg->prefill.block_count * sizeof *seq->target_blocks);
    if (!fg_worker_bind_ticket(worker, seq)) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "worker has no room for another ticket");
    }
}

static void on_peer(fg_worker *worker, const fg_msg *msg)
{
    if (worker->options.link == NULL ||
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
    fg_status status =
        fg_link_add_peer(worker->options.link, msg->peer.peer.name, msg->peer.peer.epoch,
                         msg->peer.link_record, msg->peer.link_record_bytes, &index, &err);
    if (status != FG_OK) {
        fg_warn("worker", "event=peer_refused peer=%s why=\"%s\"", msg->peer.peer.name, err.text);
        return;
    }
    fg_worker_peer *peer = &worker->peers[worker->peer_count++];
    snprintf(peer->name, sizeof peer->name, "%s", msg->peer.peer.name);
    peer->epoch = msg->peer.peer.epoch;
    peer->index = index;
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
        if (peer->broken_ns != 0 && now - peer->broken_ns >= CUT_OFF_NS) {
            fg_warn("worker", "event=joining_again why=\"the link to %s stays broken\"",
                    peer->name);
            worker->stalled = true;
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
        end_tickets_of(worker, &worker->waiting, index);
        end_tickets_of(worker, &worker->running, index);
        end_tickets_of(worker, &worker->others, index);
        fg_link_lose_peer(worker->options.link, index);
        *peer = worker->peers[--worker->peer_count];
        return;
    }
}

static void on_refuse(fg_worker *worker, const fg_msg *msg)
{
    fg_warn("worker", "event=refused reason=\"%s\"", msg->refuse.reason);
    worker->refusals++;
    worker->stalled = true; /* leave, and try again as a stranger */
}

static void on_welcome(fg_worker *worker, const fg_msg *msg)
{
    worker->joined = true;
    worker->refusals = 0;
    if (msg->welcome.lease_ms > 0) {
        worker->load_period_ns = (uint64_t)msg->welcome.lease_ms * 1000000 / 8;
    }
    fg_info("worker", "event=joined epoch=%llu", (unsigned long long)worker->epoch);
    send_load(worker);
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
        if (worker->options.decode != NULL && worker->options.link != NULL) {
            worker->options.decode->on_reserve(worker, msg);
        } else {
            send_done(worker, msg->request, msg->attempt, FG_FINISH_ERROR,
                      "this worker does not decode for others", 0);
        }
        break;
    case FG_MSG_CANCEL:
        seq = find_request(worker, msg->request, msg->attempt);
        if (seq != NULL) {
            fg_worker_end(worker, seq, FG_FINISH_CANCELLED, "");
        } else {
            worker->stats.stale_dropped++;
        }
        break;
    default:
        worker->stats.frames_refused++;
        break;
    }
}

void fg_worker_on_frame(fg_worker *worker, const void *bytes, size_t size_bytes)
{
    fg_error err;
    fg_msg msg;
    fg_arena_reset(worker->inbox);
    fg_status status = fg_wire_decode(bytes, size_bytes, worker->inbox, &msg, &err);
    if (status != FG_OK) {
        worker->stats.frames_refused++;
        fg_warn("worker", "event=frame_refused why=\"%s\"", err.text);
        return;
    }
    if (!worker->joined && msg.kind != FG_MSG_WELCOME && msg.kind != FG_MSG_REFUSE) {
        worker->stats.stale_dropped++;
        return;
    }
    on_message(worker, &msg);
    fg_worker_run(worker);
}

/* ---- connection and time ---- */

void fg_worker_on_up(fg_worker *worker)
{
    if (worker->reconnect_at_ns != 0) {
        return; /* the old connection came back, but this worker joins again under a new name */
    }
    worker->up = true;
    worker->up_ns = fg_worker_now_ns(worker);
    worker->stalled = false;
    send_hello(worker);
}

void fg_worker_on_down(fg_worker *worker)
{
    if (!worker->up) {
        return;
    }
    if (worker->joined) {
        fg_warn("worker", "event=router_lost live=%u",
                worker->waiting.count + worker->running.count + worker->others.count);
    }
    worker->up = false;
    worker->joined = false;
    end_all(worker, FG_FINISH_CANCELLED, "");
    /* The others are told that this epoch is lost and turn away from it; so does this side. The
     * router introduces everybody anew after the next WELCOME. */
    while (worker->peer_count > 0) {
        fg_worker_peer *peer = &worker->peers[--worker->peer_count];
        fg_link_lose_peer(worker->options.link, peer->index);
    }
    /* Refused again and again: half a second, a second, ... sixteen. */
    uint32_t doublings = worker->refusals > 1 ? worker->refusals - 1 : 0;
    worker->reconnect_at_ns =
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
        if (now - seq->queued_ns >= FORGOTTEN_NS) {
            fg_worker_end(worker, seq, FG_FINISH_ERROR, "the hand-over never ended");
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
            fg_link_fence(worker->options.link, seq->ticket);
        }
    }
}

void fg_worker_tick(fg_worker *worker)
{
    uint64_t now = fg_worker_now_ns(worker);
    if (worker->up && !worker->joined && now - worker->up_ns > JOIN_LIMIT_NS) {
        fg_warn("worker", "event=no_answer_to_hello");
        worker->stalled = true;
    }
    if (worker->stalled) {
        worker->stalled = false;
        fg_worker_on_down(worker);
    }
    if (worker->reconnect_at_ns != 0 && now >= worker->reconnect_at_ns) {
        worker->reconnect_at_ns = 0;
        worker->epoch++;
        worker->options.reconnect(worker->options.ctx, worker->epoch);
    }
    pump_list(worker, &worker->running);
    pump_list(worker, &worker->others);
    ask_fences_again(worker, now);
    end_forgotten(worker, now);
    leave_if_cut_off(worker, now);
    fg_worker_run(worker);
    uint64_t since = now - worker->load_sent_ns;
    if (worker->joined &&
        (since >= worker->load_period_ns || (worker->load_dirty && since >= LOAD_COALESCE_NS))) {
        send_load(worker);
    }
}

void fg_worker_drain(fg_worker *worker)
{
    if (!worker->draining) {
        worker->draining = true;
        fg_msg msg = { .kind = FG_MSG_DRAIN };
        fg_worker_send(worker, &msg);
    }
}

/* ---- the link's news ---- */

static void link_commit(void *ctx, const fg_link_commit *commit)
{
    fg_worker *worker = ctx;
    fg_seq *seq = fg_map_get(worker->by_ticket, commit->ticket);
    if (seq == NULL || seq->state != FG_SEQ_EXPECTING) {
        worker->stats.stale_dropped++;
        return;
    }
    worker->options.decode->on_commit(worker, seq, commit);
    fg_worker_run(worker);
}

/* The link is done with a ticket that this side (or a loss) has ended. */
static void link_closed(fg_worker *worker, uint64_t ticket, fg_seq_side side, const char *why)
{
    fg_seq *seq = fg_map_get(worker->by_ticket, ticket);
    if (seq == NULL || seq->side != side) {
        worker->stats.stale_dropped++;
        return;
    }
    fg_worker_release_ticket(worker, seq);
    if (seq->state != FG_SEQ_CLOSING) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, why);
    } else {
        fg_worker_settle(worker, seq);
    }
    fg_worker_run(worker);
}

static void link_fenced(void *ctx, uint64_t ticket)
{
    link_closed(ctx, ticket, FG_SIDE_RECEIVER, "the prefill worker stopped sending");
}

static void link_drained(void *ctx, uint64_t ticket, fg_status why)
{
    link_closed(ctx, ticket, FG_SIDE_SENDER, "the decode worker stopped receiving");
}

static void link_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    fg_worker *worker = ctx;
    fg_seq *seq = fg_map_get(worker->by_ticket, ticket);
    if (seq == NULL || seq->side != FG_SIDE_SENDER) {
        worker->stats.stale_dropped++;
        return;
    }
    if (seq->state == FG_SEQ_CLOSING) {
        if (bad_count == 0) { /* accepted while this side was ending: the ticket is closed */
            fg_worker_release_ticket(worker, seq);
            fg_worker_settle(worker, seq);
        }
        return;
    }
    worker->options.prefill->on_answer(worker, seq, bad, bad_count);
    fg_worker_run(worker);
}

fg_link_events fg_worker_link_events(fg_worker *worker)
{
    return (fg_link_events){ .on_commit = link_commit,
                             .on_fenced = link_fenced,
                             .on_answer = link_answer,
                             .on_drained = link_drained,
                             .ctx = worker };
}
