#include "router/dispatch_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

fg_status fg_dispatch_send(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    fg_buf_clear(&dispatch->out);
    fg_status status = FG_AGAIN;
    if (fg_wire_encode(msg, &dispatch->out)) {
        status = dispatch->options.send(dispatch->options.ctx, worker->peer, dispatch->out.data,
                                        dispatch->out.size);
        fg_dispatch_note_sent(dispatch, worker->peer, msg, status);
    }
    /* RESERVE and PREFILL are tried elsewhere; a worker that misses any other frame holds on to what it
     * should have let go, so it has to leave. */
    if (status != FG_OK && msg->kind != FG_MSG_RESERVE && msg->kind != FG_MSG_PREFILL) {
        worker->deaf = true;
    }
    return status;
}

static void refuse(fg_dispatch *dispatch, uint32_t peer, const char *reason)
{
    fg_msg msg = { .kind = FG_MSG_REFUSE };
    msg.refuse.reason = reason;
    fg_buf_clear(&dispatch->out);
    if (fg_wire_encode(&msg, &dispatch->out)) {
        fg_status status = dispatch->options.send(dispatch->options.ctx, peer, dispatch->out.data,
                                                  dispatch->out.size);
        fg_dispatch_note_sent(dispatch, peer, &msg, status);
    }
    fg_dispatch_drop(dispatch, peer);
}

/* ---- joining and leaving ---- */

static void introduce(fg_dispatch *dispatch, fg_reg_worker *to, const fg_reg_worker *about)
{
    if (about->link_record_bytes == 0 || to->link_record_bytes == 0) {
        return;
    }
    fg_msg msg = { .kind = FG_MSG_PEER };
    msg.peer.peer = (fg_wire_peer){ .name = about->name, .epoch = about->epoch };
    msg.peer.pid = about->pid;
    msg.peer.link_record = about->link_record;
    msg.peer.link_record_bytes = about->link_record_bytes;
    fg_dispatch_send(dispatch, to, &msg);
}

/* Nobody joins under another name than the one that its connection was opened with. */
static fg_status check_identity(const fg_dispatch *dispatch, uint32_t peer,
                                const fg_wire_hello *hello, fg_error *err)
{
    char expected[FG_IDENTITY_BYTES];
    snprintf(expected, sizeof expected, "%s#%llu", hello->self.name,
             (unsigned long long)hello->self.epoch);
    if (peer >= FG_LIMIT_WORKERS || strcmp(dispatch->identities[peer], expected) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "it calls itself %s on a connection of another name",
                       expected);
    }
    return FG_OK;
}

static void note_refusal(fg_dispatch *dispatch, const char *name, const char *why)
{
    fg_refusal *refusal = &dispatch->refusals[dispatch->stats.refused_joins++ % FG_REFUSALS_MAX];
    snprintf(refusal->name, sizeof refusal->name, "%s", name);
    snprintf(refusal->why, sizeof refusal->why, "%s", why);
    refusal->at_ns = fg_dispatch_now(dispatch);
}

static bool are_joined(const fg_dispatch *dispatch, const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (fg_registry_by_name(dispatch->registry, names[i]) == NULL) {
            return false;
        }
    }
    return true;
}

bool fg_dispatch_all_joined(const fg_dispatch *dispatch)
{
    const fg_dispatch_options *options = &dispatch->options;
    return are_joined(dispatch, options->wait_for_prefill, options->wait_for_prefill_count) &&
           are_joined(dispatch, options->wait_for_decode, options->wait_for_decode_count);
}

static void on_hello(fg_dispatch *dispatch, uint32_t peer, const fg_wire_hello *hello)
{
    fg_error err;
    fg_reg_worker *worker;
    fg_status status = check_identity(dispatch, peer, hello, &err);
    if (status == FG_OK) {
        status = fg_registry_join(dispatch->registry, hello, peer, fg_dispatch_now(dispatch),
                                  &worker, &err);
    }
    if (status != FG_OK) {
        note_refusal(dispatch, hello->self.name, err.text);
        fg_warn("registry", "event=refused worker=%s why=\"%s\"", hello->self.name, err.text);
        refuse(dispatch, peer, err.text);
        return;
    }
    fg_info("registry", "event=joined worker=%s role=%s pid=%llu blocks=%u class=%s", worker->name,
            fg_dispatch_role_name(worker->roles), (unsigned long long)worker->pid,
            worker->block_count, hello->numerics_class);
    dispatch->was_complete = dispatch->was_complete || fg_dispatch_all_joined(dispatch);
    fg_dispatch_know_worker(dispatch, worker);
    fg_msg msg = { .kind = FG_MSG_WELCOME };
    msg.welcome.router_epoch = dispatch->options.router_epoch;
    msg.welcome.lease_ms = dispatch->options.lease_ms;
    msg.welcome.cache_key_low = dispatch->options.cache_key.low;
    msg.welcome.cache_key_high = dispatch->options.cache_key.high;
    fg_dispatch_send(dispatch, worker, &msg);
    if (dispatch->was_cleared) {
        /* It may be a process that was away at that moment, with its cache as it was. */
        fg_dispatch_send(dispatch, worker, &(fg_msg){ .kind = FG_MSG_CLEAR });
    }
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        fg_reg_worker *other = fg_registry_at(dispatch->registry, i);
        if (other != worker) {
            introduce(dispatch, worker, other);
            introduce(dispatch, other, worker);
        }
    }
}

fg_status fg_dispatch_do_set_role(fg_dispatch *dispatch, const char *name, uint32_t roles,
                                  uint32_t *was_out, fg_error *err)
{
    fg_reg_worker *worker = fg_registry_by_name(dispatch->registry, name);
    if (worker == NULL) {
        return fg_fail(err, FG_PEER_LOST, "no worker named %.64s is here", name);
    }
    if (roles == 0 || (roles & ~worker->able) != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "worker %s cannot take this role: it has no link to others", worker->name);
    }
    if (was_out != NULL) {
        *was_out = worker->roles;
    }
    fg_info("registry", "event=role worker=%s role=%s was=%s", worker->name,
            fg_dispatch_role_name(roles), fg_dispatch_role_name(worker->roles));
    worker->roles = roles;
    fg_msg msg = { .kind = FG_MSG_ROLE, .role = { .roles = roles } };
    fg_dispatch_send(dispatch, worker, &msg);
    fg_dispatch_pump(dispatch);
    return FG_OK;
}

uint32_t fg_dispatch_do_clear(fg_dispatch *dispatch)
{
    uint32_t told = 0;
    fg_msg msg = { .kind = FG_MSG_CLEAR };
    dispatch->was_cleared = true;
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        fg_reg_worker *worker = fg_registry_at(dispatch->registry, i);
        told += fg_dispatch_send(dispatch, worker, &msg) == FG_OK;
    }
    fg_info("dispatch", "event=cache_cleared workers=%u", told);
    return told;
}

/* The first job that a lost worker still has, or NULL. */
static fg_job *job_of(const fg_dispatch *dispatch, const fg_reg_worker *worker)
{
    for (fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
        if (job->prefill == worker || job->decode == worker) {
            return job;
        }
    }
    return NULL;
}

/* Its decode worker has all that it needs, and another one was its prefill worker: what becomes of that one
 * does not matter to this request any more. */
static bool is_handed_over(const fg_job *job)
{
    return job->life.state == FG_LIFE_DECODING && job->prefill == NULL && job->decode != NULL;
}

void fg_dispatch_lose(fg_dispatch *dispatch, fg_reg_worker *worker, const char *why)
{
    if (worker->draining && job_of(dispatch, worker) == NULL) {
        /* It said that it would go and has nothing left to do: no supervisor need end it. */
        fg_info("registry", "event=left worker=%s pid=%llu", worker->name,
                (unsigned long long)worker->pid);
    } else {
        fg_warn("registry", "event=lost worker=%s pid=%llu why=\"%s\"", worker->name,
                (unsigned long long)worker->pid, why);
        dispatch->stats.workers_lost++;
    }
    fg_msg msg = { .kind = FG_MSG_PEER_LOST };
    msg.peer_lost.peer = (fg_wire_peer){ .name = worker->name, .epoch = worker->epoch };
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        fg_reg_worker *other = fg_registry_at(dispatch->registry, i);
        if (other != worker) {
            fg_dispatch_send(dispatch, other, &msg);
        }
    }
    char text[160];
    snprintf(text, sizeof text, "worker %s was lost while it worked on this request", worker->name);
    fg_job *job;
    fg_dispatch_lose_pulls(dispatch, worker);
    while ((job = job_of(dispatch, worker)) != NULL) {
        if (job->prefill == worker) {
            fg_dispatch_release_prefill(dispatch, job);
        }
        if (job->decode == worker) {
            fg_dispatch_release_decode(dispatch, job);
        }
        if (is_handed_over(job)) {
            continue;
        }
        job->losses++;
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST, text);
    }
    uint32_t peer = worker->peer;
    fg_dispatch_forget_worker(dispatch, worker);
    fg_registry_remove(dispatch->registry, worker);
    fg_dispatch_drop(dispatch, peer);
    fg_dispatch_pump(dispatch);
}

void fg_dispatch_do_up(fg_dispatch *dispatch, uint32_t peer, const char *identity)
{
    /* A bus handle may have been given away again: nobody joined is behind a fresh one. */
    fg_reg_worker *worker = fg_registry_by_peer(dispatch->registry, peer);
    if (worker != NULL) {
        fg_dispatch_lose(dispatch, worker, "its connection was replaced");
    }
    if (peer < FG_LIMIT_WORKERS) {
        snprintf(dispatch->identities[peer], sizeof dispatch->identities[peer], "%s", identity);
    }
}

void fg_dispatch_do_down(fg_dispatch *dispatch, uint32_t peer)
{
    if (peer < FG_LIMIT_WORKERS) {
        dispatch->identities[peer][0] = '\0';
    }
    fg_reg_worker *worker = fg_registry_by_peer(dispatch->registry, peer);
    if (worker != NULL) {
        fg_dispatch_lose(dispatch, worker, "its connection ended");
    }
}

/* ---- messages about requests ---- */

/* The job that a worker's message is about; NULL (and counted) when it is stale or not its business. */
static fg_job *find_job(fg_dispatch *dispatch, const fg_reg_worker *worker, uint64_t request,
                        uint32_t attempt)
{
    fg_job *job = fg_map_get(dispatch->by_id, request);
    if (job == NULL || job->attempt != attempt ||
        (job->prefill != worker && job->decode != worker)) {
        dispatch->stats.stale_dropped++;
        return NULL;
    }
    return job;
}

static void on_ticket(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    fg_job *job = find_job(dispatch, worker, msg->request, msg->attempt);
    if (job == NULL && msg->ticket.granted) {
        /* Nobody will use these blocks: a RESERVE that came twice, or after its CANCEL. */
        fg_dispatch_send(
            dispatch, worker,
            &(fg_msg){ .kind = FG_MSG_CANCEL, .request = msg->request, .attempt = msg->attempt });
    }
    if (job == NULL || job->decode != worker || job->life.state != FG_LIFE_RESERVED) {
        return;
    }
    if (!msg->ticket.granted) {
        worker->full = true;
        fg_dispatch_requeue(dispatch, job);
        return;
    }
    if (msg->ticket.local) {
        fg_dispatch_make_local(dispatch, job);
        fg_dispatch_set_state(dispatch, job, FG_LIFE_PREFILLING);
        return;
    }
    fg_msg out = { .kind = FG_MSG_PREFILL, .request = job->id, .attempt = job->attempt };
    out.prefill.tokens = job->input.tokens;
    out.prefill.token_count = job->input.token_count;
    out.prefill.sampling = fg_dispatch_params(job);
    out.prefill.has_ticket = true;
    out.prefill.target = (fg_wire_peer){ .name = worker->name, .epoch = worker->epoch };
    out.prefill.ticket = msg->ticket.ticket;
    out.prefill.first_block = msg->ticket.first_block;
    out.prefill.blocks = msg->ticket.blocks;
    out.prefill.block_count = msg->ticket.block_count;
    fg_dispatch_set_state(dispatch, job, FG_LIFE_PREFILLING);
    fg_dispatch_begin_pull(dispatch, job);
    if (fg_dispatch_send(dispatch, job->prefill, &out) != FG_OK) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST, "the prefill worker does not answer");
    }
}

/* Whether it counts; if another attempt has shown something else in its place, the request has ended. */
static bool take_token(fg_dispatch *dispatch, fg_job *job, uint32_t index,
                       const fg_journal_token *token)
{
    switch (fg_journal_append(job->journal, index, token)) {
    case FG_JOURNAL_NEW:
        return true;
    case FG_JOURNAL_KNOWN:
        dispatch->stats.said_again++;
        fg_dispatch_say_again(dispatch, job, index);
        return true;
    case FG_JOURNAL_OTHER:
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_BROKEN,
                        "another worker's answer is not the one that was lost");
        return false;
    case FG_JOURNAL_DROPPED:
        break;
    }
    dispatch->stats.stale_dropped++;
    return false;
}

/* Another attempt begins with those that are known; what it says of them is the same, as models are exact. */
static void on_scores(fg_dispatch *dispatch, const fg_reg_worker *worker, const fg_msg *msg)
{
    const fg_scores *said = &msg->scores.scores;
    fg_job *job = find_job(dispatch, worker, msg->request, msg->attempt);
    if (job == NULL) {
        return;
    }
    uint32_t next = job->scored > 0 ? job->scored : 1;
    uint32_t first = msg->scores.first, end = first + said->count;
    if (job->prefill != worker || job->life.state != FG_LIFE_PREFILLING || first > next ||
        end > job->input.token_count || said->likely_count + 1 != job->input.params.want_scores) {
        dispatch->stats.stale_dropped++;
        return;
    }
    fg_dispatch_said_more(dispatch, job);
    if (end <= next) {
        return;
    }
    uint32_t known = next - first;
    job->scored = end;
    fg_scores fresh = { .chosen = said->chosen + known,
                        .ranks = said->ranks + known,
                        .likely = said->likely + (size_t)known * said->likely_count,
                        .count = said->count - known,
                        .likely_count = said->likely_count };
    if (job->input.sink.on_scores != NULL) {
        job->input.sink.on_scores(job->input.sink.ctx, next, &fresh);
    }
}

/* Another attempt brings it again, and it is the same. */
static void take_embedding(fg_job *job, const fg_msg *msg)
{
    if (job->input.params.want_embedding && !job->embedded &&
        job->input.sink.on_embedding != NULL) {
        job->input.sink.on_embedding(job->input.sink.ctx, msg->first.embedding,
                                     msg->first.embedding_count);
    }
    job->embedded = true;
}

static void on_first(fg_dispatch *dispatch, const fg_reg_worker *worker, const fg_msg *msg)
{
    fg_job *job = find_job(dispatch, worker, msg->request, msg->attempt);
    fg_journal_token first = { .id = msg->first.id,
                               .digest = msg->first.digest,
                               .logprobs = msg->first.logprobs };
    if (job == NULL || job->prefill != worker || job->life.state != FG_LIFE_PREFILLING) {
        return;
    }
    if (fg_job_unscored(job) > 0) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST,
                          "a worker left out what its prompt's rows say");
        return;
    }
    if (job->input.params.want_embedding && msg->first.embedding_count == 0) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST, "a worker left out its prompt's embedding");
        return;
    }
    if (!take_token(dispatch, job, 0, &first)) {
        return;
    }
    take_embedding(job, msg);
    job->record.prefill_queue_ns = msg->first.queue_ns;
    job->record.prefill_compute_ns = msg->first.compute_ns;
    uint32_t prompt = job->input.token_count;
    uint32_t cached = msg->first.cached_tokens < prompt ? msg->first.cached_tokens : prompt;
    job->record.cached_tokens = cached;
    job->record.chunks = msg->first.chunks;
    job->computed_tokens = prompt - cached;
    dispatch->stats.hit_blocks_expected += job->record.predicted_hit_blocks;
    dispatch->stats.hit_blocks_found += cached / job->prefill->block_size;
    fg_dispatch_release_ahead(dispatch, job);
    fg_dispatch_end_pull(dispatch, job);
    fg_dispatch_learn_first(dispatch, job, msg);
    bool split = job->prefill != job->decode;
    bool overtaken = job->context_tokens > prompt; /* by tokens of decode */
    if (split) {
        fg_dispatch_set_state(dispatch, job, FG_LIFE_TRANSFERRING);
    }
    if (!split || overtaken) {
        fg_dispatch_set_state(dispatch, job, FG_LIFE_DECODING);
    }
    fg_dispatch_deliver(dispatch, job);
}

static void on_pushed(fg_dispatch *dispatch, const fg_reg_worker *worker, const fg_msg *msg)
{
    fg_job *job = find_job(dispatch, worker, msg->request, msg->attempt);
    dispatch->stats.pushed_blocks += msg->pushed.blocks;
    dispatch->stats.pushed_bytes += msg->pushed.bytes;
    dispatch->stats.push_retries += msg->pushed.retries;
    if (job == NULL || job->prefill != worker) {
        return;
    }
    job->record.kv_blocks = msg->pushed.blocks;
    job->record.kv_bytes = msg->pushed.bytes;
    job->record.push_exposed_ns = msg->pushed.exposed_ns;
    job->record.push_retries = msg->pushed.retries;
    fg_dispatch_learn_push(job, msg);
    snprintf(job->record.transport, sizeof job->record.transport, "%s", msg->pushed.transport);
    if (job->life.state == FG_LIFE_TRANSFERRING) {
        fg_dispatch_set_state(dispatch, job, FG_LIFE_DECODING);
    }
}

/* Whether something is not told yet that comes before the first token: then FIRST alone may bring that one. */
static bool waits_for_first(const fg_job *job)
{
    return fg_job_unscored(job) > 0 || (job->input.params.want_embedding && !job->embedded);
}

static void on_tokens(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    fg_dispatch_learn_step(dispatch, worker, msg);
    for (uint32_t i = 0; i < msg->tokens.count; i++) {
        const fg_wire_token *token = &msg->tokens.tokens[i];
        fg_job *job = find_job(dispatch, worker, token->request, token->attempt);
        if (job == NULL || job->decode != worker) {
            continue;
        }
        if (job->life.state == FG_LIFE_RESERVED || (token->index == 0 && waits_for_first(job))) {
            dispatch->stats.stale_dropped++;
            continue;
        }
        fg_journal_token next = { .id = token->id,
                                  .digest = token->digest,
                                  .logprobs = token->logprobs };
        if (!take_token(dispatch, job, token->index, &next)) {
            continue;
        }
        job->context_tokens++;
        job->decode->context_tokens++;
        /* Prefill's news of it is still on its way, or lost. */
        if (job->life.state == FG_LIFE_TRANSFERRING) {
            fg_dispatch_set_state(dispatch, job, FG_LIFE_DECODING);
        }
        fg_dispatch_deliver(dispatch, job);
    }
}

/* Frames of one worker come in order. So when all its workers have ended a request of which tokens are
 * missing, they will not come. */
static void end_if_left(fg_dispatch *dispatch, uint64_t id)
{
    fg_job *job = fg_map_get(dispatch->by_id, id);
    if (job != NULL && !fg_dispatch_waits(job) && job->prefill == NULL && job->decode == NULL) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST, "its workers ended it too early");
    }
}

static void on_done(fg_dispatch *dispatch, const fg_reg_worker *worker, const fg_msg *msg)
{
    fg_job *job = find_job(dispatch, worker, msg->request, msg->attempt);
    if (job == NULL) {
        return;
    }
    if (job->life.state == FG_LIFE_RESERVED && msg->done.finish != FG_FINISH_ERROR) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST, "a worker ended it before it had begun");
        return;
    }
    bool was_decode = job->decode == worker;
    if (job->prefill == worker) {
        fg_dispatch_release_prefill(dispatch, job);
    }
    if (was_decode) {
        fg_dispatch_release_decode(dispatch, job);
    }
    job->record.preemptions += msg->done.preemptions;
    if (msg->done.finish == FG_FINISH_ERROR && !was_decode && is_handed_over(job)) {
        return;
    }
    if (msg->done.finish == FG_FINISH_ERROR && (msg->done.refused || msg->done.broken)) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, msg->done.broken ? FG_BROKEN : FG_BAD_INPUT,
                        msg->done.text[0] != '\0' ? msg->done.text
                                                  : "a worker refused the request");
        return;
    }
    if (msg->done.finish == FG_FINISH_ERROR) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST,
                          msg->done.text[0] != '\0' ? msg->done.text : "a worker failed");
        return;
    }
    if (msg->done.finish == FG_FINISH_STOP || msg->done.finish == FG_FINISH_LENGTH) {
        job->done_known = true;
        job->done_finish = msg->done.finish;
        job->done_generated = msg->done.generated;
        fg_dispatch_deliver(dispatch, job);
    } else if (was_decode || job->life.state == FG_LIFE_PREFILLING) {
        fg_dispatch_retry(dispatch, job, FG_PEER_LOST, "a worker gave it up");
    }
    end_if_left(dispatch, msg->request);
}

static bool is_about_pull(const fg_msg *msg)
{
    return (msg->attempt & FG_PULL_ATTEMPT) != 0 &&
           (msg->kind == FG_MSG_TICKET || msg->kind == FG_MSG_DONE || msg->kind == FG_MSG_PUSHED);
}

static void on_joined_message(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    uint32_t live = dispatch->stats.live;
    if (is_about_pull(msg)) {
        fg_dispatch_on_pull(dispatch, worker, msg);
        return;
    }
    switch (msg->kind) {
    case FG_MSG_HELLO:
        break; /* a doubled one */
    case FG_MSG_LOAD:
        fg_registry_update(worker, &msg->load, fg_dispatch_now(dispatch));
        fg_dispatch_check_news(dispatch, worker);
        break;
    case FG_MSG_DRAIN:
        fg_info("registry", "event=draining worker=%s", worker->name);
        worker->draining = true;
        break;
    case FG_MSG_NEWS:
        fg_dispatch_on_news(dispatch, worker, msg);
        break;
    case FG_MSG_TICKET:
        on_ticket(dispatch, worker, msg);
        break;
    case FG_MSG_SCORES:
        on_scores(dispatch, worker, msg);
        break;
    case FG_MSG_FIRST:
        on_first(dispatch, worker, msg);
        break;
    case FG_MSG_PUSHED:
        on_pushed(dispatch, worker, msg);
        break;
    case FG_MSG_TOKENS:
        on_tokens(dispatch, worker, msg);
        break;
    case FG_MSG_DONE:
        on_done(dispatch, worker, msg);
        break;
    default:
        dispatch->stats.frames_refused++;
        break;
    }
    /* A LOAD may have made room, a DONE did. What comes most often makes none, but where a token ends something. */
    bool frequent =
        msg->kind == FG_MSG_TOKENS || msg->kind == FG_MSG_NEWS || msg->kind == FG_MSG_SCORES;
    if (!frequent || dispatch->stats.live != live) {
        fg_dispatch_pump(dispatch);
    }
}

void fg_dispatch_do_frame(fg_dispatch *dispatch, uint32_t peer, const void *bytes,
                          size_t size_bytes)
{
    fg_error err;
    fg_msg msg;
    fg_arena_reset(dispatch->inbox);
    fg_status status = fg_wire_decode(bytes, size_bytes, dispatch->inbox, &msg, &err);
    fg_dispatch_frame frame = { peer, bytes, size_bytes, status == FG_OK ? &msg : NULL };
    fg_dispatch_note_frame(dispatch, &frame);
    fg_reg_worker *worker = fg_registry_by_peer(dispatch->registry, peer);
    if (status != FG_OK) {
        dispatch->stats.frames_refused++;
        fg_warn("dispatch", "event=frame_refused worker=%s why=\"%s\"",
                worker != NULL ? worker->name : "unknown", err.text);
        if (worker == NULL) {
            fg_dispatch_drop(dispatch, peer);
        }
        return;
    }
    if (worker != NULL) {
        fg_registry_seen(worker, fg_dispatch_now(dispatch));
        on_joined_message(dispatch, worker, &msg);
    } else if (msg.kind == FG_MSG_HELLO) {
        on_hello(dispatch, peer, &msg.hello);
        fg_dispatch_pump(dispatch);
    } else {
        dispatch->stats.stale_dropped++;
        refuse(dispatch, peer, "not a member any more: its lease ran out; join again");
    }
}
