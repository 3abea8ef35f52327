/* What the flight recorder keeps of a worker (worker_records.h): frames without what is private, what engine and link
 * answer, what is sent and asked. Where the flight compares, there is no link: the record answers for it. */
#include <string.h>

#include "common/base/hash.h"
#include "common/worker/worker_internal.h"
#include "common/worker/worker_records.h"

static const uint32_t nothing[1] = { 0 };

fg_flight_call fg_worker_call(const fg_worker *worker, uint32_t router)
{
    return (fg_flight_call){ .now_ns = worker->entered_ns,
                             .depth = worker->depth - 1,
                             .sunken = router };
}

/* Quick, for it is done for each item of each step: what differs by accident differs here. */
static void fold(uint64_t *hash, uint64_t value)
{
    uint64_t mixed = (*hash ^ value) * 0x9E3779B97F4A7C15u;
    *hash = mixed ^ mixed >> 29;
}

static void fold_ids(uint64_t *hash, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fold(hash, ids[i]);
    }
}

/* ---- other numbers ---- */

static bool disguises(const fg_worker *worker)
{
    return worker->options.flight != NULL && !fg_flight_checks(worker->options.flight);
}

uint64_t fg_worker_own_ticket(const fg_worker *worker, uint64_t ticket)
{
    return disguises(worker) && ticket != 0 ? ticket - worker->first_ticket : ticket;
}

uint64_t fg_worker_peer_ticket(const fg_worker *worker, uint64_t ticket)
{
    return disguises(worker) && ticket != 0 ? fg_hash_mix(ticket ^ worker->ticket_disguise)
                                            : ticket;
}

static fg_digest128 disguised_secret(const fg_worker *worker, fg_digest128 secret)
{
    if (disguises(worker) && (secret.low | secret.high) != 0) {
        secret.low = fg_hash64(&secret, sizeof secret, worker->disguise);
        secret.high = 0;
    }
    return secret;
}

void fg_worker_note_secret(fg_worker *worker, fg_digest128 secret)
{
    worker->secret_name = disguised_secret(worker, secret);
}

/* ---- frames that come ---- */

static bool has_bad_token(const fg_worker *worker, const uint32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (tokens[i] >= worker->options.vocab_size) {
            return true;
        }
    }
    return false;
}

static void without_prompt(const fg_worker *worker, fg_work_frame *head, const uint32_t **tokens,
                           uint32_t *count, fg_wire_params *params)
{
    head->token_count = *count;
    head->bad_token = has_bad_token(worker, *tokens, *count);
    for (uint32_t i = 0; i < params->bias_count; i++) {
        head->bad_token = head->bad_token || params->biases[i].id >= worker->options.vocab_size;
    }
    params->biases = NULL;
    params->bias_count = 0;
    params->grammar = NULL;
    params->grammar_bytes = params->grammar_kind = 0;
    *tokens = nothing;
    *count = *count > 0;
    params->salt_low = params->salt_high = 0;
}

void fg_worker_note_frame(fg_worker *worker, const fg_msg *msg)
{
    fg_flight *flight = worker->options.flight;
    if (flight == NULL) {
        return;
    }
    fg_work_frame head = { .call = fg_worker_call(worker, worker->hearing) };
    if (msg == NULL) {
        fg_flight_note(flight, FG_WORK_BAD_FRAME, &head.call, sizeof head.call);
        return;
    }
    fg_msg plain = *msg;
    fg_digest128 secret;
    switch (msg->kind) {
    case FG_MSG_WELCOME:
        secret = (fg_digest128){ plain.welcome.cache_key_low, plain.welcome.cache_key_high };
        secret = disguised_secret(worker, secret);
        plain.welcome.cache_key_low = secret.low;
        plain.welcome.cache_key_high = secret.high;
        break;
    case FG_MSG_PEER:
        plain.peer.link_record = nothing;
        plain.peer.link_record_bytes = sizeof nothing;
        break;
    case FG_MSG_RESERVE:
        plain.reserve.said_count = 0;
        without_prompt(worker, &head, &plain.reserve.tokens, &plain.reserve.token_count,
                       &plain.reserve.sampling);
        break;
    case FG_MSG_PREFILL:
        plain.prefill.said_count = 0;
        without_prompt(worker, &head, &plain.prefill.tokens, &plain.prefill.token_count,
                       &plain.prefill.sampling);
        plain.prefill.ticket = fg_worker_peer_ticket(worker, plain.prefill.ticket);
        break;
    case FG_MSG_REFUSE:
    case FG_MSG_PEER_LOST:
    case FG_MSG_CANCEL:
    case FG_MSG_CLEAR:
    case FG_MSG_RESYNC:
    case FG_MSG_ROLE:
        break;
    default: /* none that a router sends: which one does not matter */
        plain = (fg_msg){ .kind = FG_MSG_DRAIN };
        break;
    }
    fg_buf_clear(&worker->plain);
    if (!fg_wire_encode(&plain, &worker->plain)) {
        return;
    }
    fg_flight_note_with(flight, FG_WORK_FRAME, &head, sizeof head, worker->plain.data,
                        worker->plain.size);
}

/* ---- frames that go ---- */

/* The same frame without what is private; NULL: there is nothing private in it. */
static const fg_buf *without_secrets(fg_worker *worker, const fg_msg *msg)
{
    fg_msg plain = *msg;
    switch (msg->kind) {
    case FG_MSG_HELLO:
        plain.hello.link_record = nothing;
        plain.hello.link_record_bytes = sizeof nothing;
        break;
    case FG_MSG_FIRST:
        plain.first.id = 0;
        plain.first.digest = 0;
        plain.first.logprobs = NULL;
        plain.first.embedding = NULL;
        plain.first.embedding_count = 0;
        break;
    case FG_MSG_TICKET:
        plain.ticket.ticket = fg_worker_own_ticket(worker, plain.ticket.ticket);
        break;
    default:
        return NULL;
    }
    fg_buf_clear(&worker->plain);
    return fg_wire_encode(&plain, &worker->plain) ? &worker->plain : NULL;
}

void fg_worker_note_sent(fg_worker *worker, const fg_msg *msg, fg_status status)
{
    if (worker->options.flight == NULL) {
        return;
    }
    fg_work_sent sent = { .kind = (uint32_t)msg->kind, .status = (uint32_t)status };
    if (msg->kind == FG_MSG_TOKENS) {
        for (uint32_t i = 0; i < msg->tokens.count; i++) {
            const fg_wire_token *token = &msg->tokens.tokens[i];
            fold(&sent.hash, token->request);
            fold(&sent.hash, (uint64_t)token->attempt << 32 | token->index);
        }
    } else if (msg->kind == FG_MSG_SCORES) {
        fold(&sent.hash, msg->request);
        fold(&sent.hash, (uint64_t)msg->attempt << 32 | msg->scores.first);
        fold(&sent.hash, msg->scores.scores.count);
    } else {
        const fg_buf *plain = without_secrets(worker, msg);
        plain = plain != NULL ? plain : &worker->out;
        sent.hash = fg_hash64(plain->data, plain->size, 0);
    }
    fg_flight_note(worker->options.flight, FG_WORK_SENT, &sent, sizeof sent);
}

void fg_worker_reconnect(fg_worker *worker, uint32_t router)
{
    uint64_t epoch = worker->routers[router].epoch;
    fg_flight_note(worker->options.flight, FG_WORK_RECONNECT, &epoch, sizeof epoch);
    worker->options.reconnect(worker->options.ctx, router, epoch);
}

/* ---- keys ---- */

bool fg_worker_told_prompt(fg_worker *worker, fg_seq *seq, uint32_t block_count)
{
    size_t bytes;
    const fg_work_prompt *told = fg_flight_told(worker->options.flight, FG_WORK_PROMPT, &bytes);
    if (told == NULL || bytes != sizeof *told + block_count * sizeof *seq->keys) {
        return false;
    }
    seq->root = told->root;
    seq->prompt_name = told->name;
    memcpy(seq->keys, told + 1, block_count * sizeof *seq->keys);
    return true;
}

void fg_worker_note_prompt(fg_worker *worker, fg_seq *seq)
{
    if (seq->params.family != 0 && disguises(worker)) {
        seq->prompt_name =
            fg_hash64(seq->tokens, seq->prompt_count * sizeof *seq->tokens, worker->disguise);
    }
    fg_work_prompt head = { .root = seq->root, .name = seq->prompt_name };
    fg_flight_note_with(worker->options.flight, FG_WORK_PROMPT, &head, sizeof head, seq->keys,
                        seq->key_count * sizeof *seq->keys);
}

bool fg_worker_told_keys(fg_worker *worker, fg_digest128 *keys, uint32_t count)
{
    size_t bytes;
    const void *told = fg_flight_told(worker->options.flight, FG_WORK_KEYS, &bytes);
    if (told == NULL || bytes != count * sizeof *keys) {
        return false;
    }
    memcpy(keys, told, bytes);
    return true;
}

void fg_worker_note_keys(fg_worker *worker, const fg_digest128 *keys, uint32_t count)
{
    fg_flight_note(worker->options.flight, FG_WORK_KEYS, keys, count * sizeof *keys);
}

/* ---- guesses ---- */

const fg_work_guess *fg_worker_told_guesses(fg_worker *worker, uint32_t count)
{
    if (!fg_flight_checks(worker->options.flight)) {
        return NULL;
    }
    size_t bytes;
    const void *told = fg_flight_told(worker->options.flight, FG_WORK_GUESS, &bytes);
    if (told == NULL || bytes != count * sizeof *worker->guesses) {
        memset(worker->guesses, 0, count * sizeof *worker->guesses);
        return worker->guesses;
    }
    return told;
}

/* ---- the engine ---- */

/* Of the blocks those that it writes to: the others were in an earlier step, or came from the cache. */
static void fold_item(uint64_t *hash, const fg_seq *seq, const fg_step_seq *item)
{
    uint32_t first = item->first_position / seq->table.block_size;
    uint32_t bits[3];
    memcpy(&bits[0], &item->sampling.temperature, sizeof bits[0]);
    memcpy(&bits[1], &item->sampling.top_p, sizeof bits[1]);
    memcpy(&bits[2], &item->sampling.min_p, sizeof bits[2]);
    fold(hash, seq->request);
    fold(hash, (uint64_t)seq->attempt << 32 | item->token_count);
    fold(hash, (uint64_t)item->first_position << 32 | item->block_count);
    fold(hash, (uint64_t)item->sample | (uint64_t)item->want_digest << 1 |
                   (uint64_t)(item->follows != NULL) << 2 |
                   (uint64_t)(item->twin_arena != NULL) << 3 | (uint64_t)item->sample_rows << 4 |
                   (uint64_t)item->scores_out.count << 32);
    fold(hash, (uint64_t)bits[0] << 32 | bits[1]);
    fold(hash, (uint64_t)bits[2] << 32 | item->sampling.top_k);
    fold(hash, item->sampling.seed);
    fold_ids(hash, item->block_ids + first, item->block_count - first);
}

void fg_worker_note_began(fg_worker *worker, const fg_worker_frame *frame)
{
    if (worker->options.flight == NULL) {
        return;
    }
    const fg_step *step = &frame->step;
    fg_work_began began = { .items = step->seq_count,
                            .digests = step->digest_count,
                            .copies = step->copy_count };
    for (uint32_t i = 0; i < step->seq_count; i++) {
        fold_item(&began.hash, frame->item_seqs[i], &step->seqs[i]);
        began.tokens += step->seqs[i].token_count;
    }
    for (uint32_t i = 0; i < step->digest_count; i++) {
        fold(&began.hash, step->digests[i].block_id);
    }
    for (uint32_t i = 0; i < step->copy_count; i++) {
        fold(&began.hash, (uint64_t)step->copies[i].from << 32 | step->copies[i].to);
        fold(&began.hash, (uint64_t)step->copies[i].kind);
    }
    for (uint32_t i = 0; i < step->ask_count; i++) {
        fold(&began.hash, (uint64_t)step->asks[i].item << 32 | step->asks[i].place);
        fold(&began.hash, (uint64_t)step->catch_up_max << 32 | step->asks[i].wanted);
    }
    fg_flight_note(worker->options.flight, FG_WORK_BEGAN, &began, sizeof began);
}

/* Whether a block that was copied back is not what went out. */
static bool came_back_changed(const fg_worker *worker, const fg_worker_frame *frame, uint32_t index)
{
    fg_worker_copy_why why = frame->copy_owners[index].why;
    const fg_step_copy *copy = &frame->copies[index];
    return (why == FG_COPY_RESTORE || why == FG_COPY_FETCH) &&
           !fg_tier_matches(worker->options.tier, copy->from, copy->digest_out);
}

static unsigned char item_byte(const fg_worker *worker, const fg_seq *seq, const fg_step_seq *item)
{
    if (item->broken_out) {
        return FG_WORK_BROKE;
    }
    if (!item->sample) {
        return 0;
    }
    uint32_t accepted = item->sample_rows > 0 ? fg_worker_accepted(seq) : 0;
    uint32_t last = item->sample_rows > 0 ? item->tokens_out[accepted] : item->token_out;
    /* Of one that has ended while its steps were under way nothing is booked. */
    bool right = item->sample_rows == 0 && seq->guess_count > 0 && seq->state != FG_SEQ_CLOSING &&
                 last == seq->tokens[seq->token_count];
    /* Who ignores end tokens may have one in the middle: a token like others. */
    bool end = !seq->params.ignore_eos && worker->options.is_end(worker->options.ctx, last);
    return (unsigned char)((end ? FG_WORK_ENDED : 0) | (right ? FG_WORK_RIGHT : 0) |
                           accepted << FG_WORK_ACCEPTED_SHIFT);
}

void fg_worker_note_step(fg_worker *worker, const fg_worker_frame *frame)
{
    const fg_step *step = &frame->step;
    fg_work_step head = { .compute_ns = step->compute_ns_out,
                          .copy_ns = step->copy_ns_out,
                          .drafted = step->drafted_out,
                          .ask_count = step->ask_count,
                          .item_count = step->seq_count,
                          .digest_count = step->digest_count,
                          .copy_count = step->copy_count };
    size_t count = (size_t)head.item_count + head.digest_count + head.copy_count +
                   head.ask_count * sizeof(fg_work_ask);
    unsigned char *data = fg_flight_open(worker->options.flight, FG_WORK_STEP, sizeof head + count);
    if (data == NULL) {
        return;
    }
    memcpy(data, &head, sizeof head);
    data += sizeof head;
    for (uint32_t i = 0; i < head.ask_count; i++) {
        fg_work_ask ask = { .known = step->asks[i].known_out };
        memcpy(data, &ask, sizeof ask);
        data += sizeof ask;
    }
    for (uint32_t i = 0; i < head.item_count; i++) {
        *data++ = item_byte(worker, frame->item_seqs[i], &frame->items[i]);
    }
    for (uint32_t i = 0; i < head.digest_count; i++) {
        const fg_worker_digest *owner = &frame->digest_owners[i];
        *data++ = owner->seq->side == FG_SIDE_RECEIVER &&
                  owner->seq->digests[owner->index] != frame->digests[i].digest_out;
    }
    for (uint32_t i = 0; i < head.copy_count; i++) {
        *data++ = came_back_changed(worker, frame, i);
    }
    fg_flight_commit(worker->options.flight);
}

/* ---- the link ---- */

bool fg_worker_has_link(const fg_worker *worker)
{
    return worker->options.link != NULL || worker->options.link_recorded;
}

/* What the record says was answered to what is asked now; NULL: nobody compares, or something else was asked. */
static const fg_work_linked *told_answer(const fg_worker *worker, fg_work_asked asked)
{
    size_t bytes;
    const fg_work_linked *told = fg_flight_told(worker->options.flight, FG_WORK_LINKED, &bytes);
    return told != NULL && bytes == sizeof *told && told->asked == (uint32_t)asked ? told : NULL;
}

static uint32_t note_asked(fg_worker *worker, fg_work_asked asked, uint32_t peer, uint64_t hash,
                           uint32_t answer)
{
    const fg_work_linked *told = told_answer(worker, asked);
    fg_work_linked record = { .hash = hash,
                              .asked = (uint32_t)asked,
                              .answer = told != NULL ? told->answer : answer,
                              .peer = peer };
    fg_flight_note(worker->options.flight, FG_WORK_LINKED, &record, sizeof record);
    return record.answer;
}

bool fg_worker_link_describe(fg_worker *worker, fg_buf *out)
{
    fg_link *link = worker->options.link;
    bool ok =
        link != NULL ? fg_link_describe(link, out) : fg_buf_append(out, nothing, sizeof nothing);
    return note_asked(worker, FG_ASKED_RECORD, 0, 0, ok) != 0;
}

fg_status fg_worker_link_add_peer(fg_worker *worker, const fg_msg *msg, uint32_t *index_out,
                                  fg_error *err)
{
    fg_link *link = worker->options.link;
    const fg_work_linked *told = told_answer(worker, FG_ASKED_ADD_PEER);
    fg_work_linked record = { .hash = fg_hash64(msg->peer.peer.name, strlen(msg->peer.peer.name),
                                                msg->peer.peer.epoch),
                              .asked = FG_ASKED_ADD_PEER,
                              .answer = FG_AGAIN };
    if (link != NULL) {
        uint32_t index = FG_LINK_PEER_NONE;
        record.answer = (uint32_t)fg_link_add_peer(
            link, msg->peer.peer.name, msg->peer.peer.epoch, worker->routers[worker->hearing].epoch,
            msg->peer.link_record, msg->peer.link_record_bytes, &index, err);
        record.value = index;
    } else {
        fg_fail(err, FG_AGAIN, "as it was then");
        record.answer = told != NULL ? told->answer : record.answer;
        record.value = told != NULL ? told->value : 0;
    }
    fg_flight_note(worker->options.flight, FG_WORK_LINKED, &record, sizeof record);
    *index_out = record.value;
    return (fg_status)record.answer;
}

void fg_worker_link_lose_peer(fg_worker *worker, uint32_t peer)
{
    if (worker->options.link != NULL) {
        fg_link_lose_peer(worker->options.link, peer);
    }
    note_asked(worker, FG_ASKED_LOSE_PEER, peer, 0, 0);
}

/* Asked of every peer in every tick: only a no is kept. */
bool fg_worker_link_usable(fg_worker *worker, uint32_t peer)
{
    const fg_work_linked *told = told_answer(worker, FG_ASKED_USABLE);
    bool usable = worker->options.link != NULL ? fg_link_usable(worker->options.link, peer)
                                               : told == NULL || told->peer != peer;
    if (!usable) {
        note_asked(worker, FG_ASKED_USABLE, peer, 0, 0);
    }
    return usable;
}

const char *fg_worker_link_transport(fg_worker *worker, uint32_t peer)
{
    size_t bytes;
    const char *name = "";
    if (worker->options.link != NULL) {
        name = fg_link_transport(worker->options.link, peer);
    } else {
        const char *told = fg_flight_told(worker->options.flight, FG_WORK_TRANSPORT, &bytes);
        name = told != NULL && bytes > 0 && told[bytes - 1] == '\0' ? told : name;
    }
    fg_flight_note(worker->options.flight, FG_WORK_TRANSPORT, name, strlen(name) + 1);
    return name;
}

fg_status fg_worker_link_expect(fg_worker *worker, const fg_seq *seq, fg_error *err)
{
    const uint32_t *blocks = seq->table.blocks + seq->ticket_first;
    fg_status status = FG_AGAIN;
    if (worker->options.link != NULL) {
        status = fg_link_expect(worker->options.link, seq->peer, seq->ticket, blocks,
                                seq->ticket_blocks, err);
    }
    uint64_t hash = fg_worker_own_ticket(worker, seq->ticket);
    fold_ids(&hash, blocks, seq->ticket_blocks);
    return (fg_status)note_asked(worker, FG_ASKED_EXPECT, seq->peer, hash, (uint32_t)status);
}

fg_status fg_worker_link_answer(fg_worker *worker, const fg_seq *seq)
{
    fg_status status = FG_AGAIN;
    if (worker->options.link != NULL) {
        status = fg_link_answer(worker->options.link, seq->ticket, seq->bad, seq->bad_count);
    }
    uint64_t hash = fg_worker_own_ticket(worker, seq->ticket);
    fold_ids(&hash, seq->bad, seq->bad_count);
    return (fg_status)note_asked(worker, FG_ASKED_ANSWER, 0, hash, (uint32_t)status);
}

void fg_worker_link_fence(fg_worker *worker, const fg_seq *seq)
{
    if (worker->options.link != NULL) {
        fg_link_fence(worker->options.link, seq->ticket);
    }
    note_asked(worker, FG_ASKED_FENCE, 0, fg_worker_own_ticket(worker, seq->ticket), 0);
}

void fg_worker_link_prepare(fg_worker *worker, const fg_seq *seq)
{
    if (worker->options.link != NULL) {
        fg_link_prepare(worker->options.link, seq->peer, seq->target_blocks, seq->ticket_blocks);
    }
    uint64_t hash = 0;
    fold_ids(&hash, seq->target_blocks, seq->ticket_blocks);
    note_asked(worker, FG_ASKED_PREPARE, seq->peer, hash, 0);
}

fg_status fg_worker_link_push(fg_worker *worker, const fg_seq *seq, uint32_t index, uint32_t count)
{
    const uint32_t *from = seq->table.blocks + seq->ticket_first + index;
    const uint32_t *to = seq->target_blocks + index;
    fg_status status = FG_AGAIN;
    if (worker->options.link != NULL) {
        status = fg_link_push(worker->options.link, seq->peer, seq->ticket, index, from, to, count);
    }
    uint64_t hash = fg_worker_peer_ticket(worker, seq->ticket) ^ index;
    fold_ids(&hash, from, count);
    fold_ids(&hash, to, count);
    return (fg_status)note_asked(worker, FG_ASKED_PUSH, seq->peer, hash, (uint32_t)status);
}

fg_status fg_worker_link_commit(fg_worker *worker, const fg_seq *seq)
{
    fg_link_commit commit = { .ticket = seq->ticket,
                              .block_count = seq->ticket_blocks,
                              .digests = seq->digests,
                              .first_token = seq->first_token,
                              .first_digest = seq->first_digest };
    fg_status status = FG_AGAIN;
    if (worker->options.link != NULL) {
        status = fg_link_commit_ticket(worker->options.link, seq->peer, &commit);
    }
    uint64_t hash = fg_worker_peer_ticket(worker, seq->ticket) ^ seq->ticket_blocks;
    return (fg_status)note_asked(worker, FG_ASKED_COMMIT, seq->peer, hash, (uint32_t)status);
}

void fg_worker_link_abort(fg_worker *worker, const fg_seq *seq)
{
    if (worker->options.link != NULL) {
        fg_link_abort(worker->options.link, seq->peer, seq->ticket);
    }
    note_asked(worker, FG_ASKED_ABORT, seq->peer, fg_worker_peer_ticket(worker, seq->ticket), 0);
}

void *fg_worker_link_hold(fg_worker *worker, const fg_seq *seq)
{
    static uint8_t somewhere; /* where the record answers, nobody writes */
    void *arena = &somewhere;
    fg_status status = FG_AGAIN;
    if (worker->options.link != NULL) {
        status = fg_link_hold(worker->options.link, seq->peer, seq->ticket, seq->target_blocks,
                              seq->ticket_blocks, &arena);
    }
    uint64_t ticket = fg_worker_peer_ticket(worker, seq->ticket);
    status = (fg_status)note_asked(worker, FG_ASKED_HOLD, seq->peer, ticket, (uint32_t)status);
    return status == FG_OK ? arena : NULL;
}

void fg_worker_link_release(fg_worker *worker, const fg_seq *seq)
{
    if (worker->options.link != NULL) {
        fg_link_release(worker->options.link, seq->peer, seq->ticket);
    }
    note_asked(worker, FG_ASKED_RELEASE, seq->peer, fg_worker_peer_ticket(worker, seq->ticket), 0);
}
