#include "common/link/link.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/link/link_core.h"
#include "common/net/loop.h"

enum {
    DELIVER_MAX = 1024, /* callbacks in one turn; the loop has other work as well */
    CLOSE_WAIT_MS = 1000,
};

/* --- messages --- */

fg_link_message *fg_link_message_create(const fg_link_wire *wire)
{
    size_t size_bytes = FG_LINK_HEADER_BYTES + fg_link_wire_payload_bytes(wire->kind, wire->count);
    fg_link_message *message = fg_mem_alloc(sizeof *message + size_bytes);
    if (message != NULL) {
        message->size_bytes = size_bytes;
        fg_link_wire_header(wire, message->bytes);
    }
    return message;
}

void fg_link_message_free(fg_link_message *message)
{
    fg_mem_free(message);
}

static bool can_send(const fg_link_peer *peer)
{
    return !peer->mute && !peer->close_started;
}

static void send_short(fg_link *link, fg_link_peer *peer, fg_link_kind kind, uint64_t ticket)
{
    if (!can_send(peer)) {
        return;
    }
    fg_link_wire wire = { .kind = kind, .from = link->id, .to = peer->link_id, .ticket = ticket };
    fg_link_message *message = fg_link_message_create(&wire);
    if (message == NULL) {
        fg_link_peer_broken(link, peer, "out of memory for a message");
        return;
    }
    link->port->send(link, peer, message);
}

/* --- the moves of tickets --- */

/* A receiver's ticket is fenced when no receive is in flight and no writer is left. */
static void settle_in(fg_link *link, fg_ticket *ticket)
{
    if (ticket->in_flight > 0) {
        return;
    }
    if (ticket->state == FG_TICKET_CHECKING && ticket->message != NULL) {
        fg_book_post(link->book, ticket, FG_TICKET_EVENT_COMMIT);
        return;
    }
    bool may_write = ticket->peer->writes_here && !ticket->peer->exited;
    if (ticket->state == FG_TICKET_FENCING && (ticket->fence_answered || !may_write)) {
        ticket->state = FG_TICKET_CLOSED;
        fg_book_post(link->book, ticket, FG_TICKET_EVENT_FENCED);
    }
}

/* A sender's ticket moves on when nothing of it is in flight and what was put has been flushed. */
static void settle_out(fg_link *link, fg_ticket *ticket)
{
    if (ticket->in_flight > 0 ||
        (ticket->state != FG_TICKET_COMMITTING && ticket->state != FG_TICKET_STOPPING)) {
        return;
    }
    if (ticket->dirty && can_send(ticket->peer)) {
        ticket->dirty = false;
        link->port->flush(link, ticket);
        return;
    }
    if (ticket->state == FG_TICKET_COMMITTING) {
        fg_link_message *message = ticket->message;
        ticket->message = NULL;
        ticket->state = FG_TICKET_AWAITING;
        if (can_send(ticket->peer)) {
            link->port->send(link, ticket->peer, message);
        } else {
            fg_link_message_free(message);
        }
        return;
    }
    ticket->state = FG_TICKET_CLOSED;
    fg_book_post(link->book, ticket, FG_TICKET_EVENT_DRAINED);
    if (ticket->fence_asked) {
        send_short(link, ticket->peer, FG_LINK_FENCED, ticket->id);
    }
}

static void settle(fg_link *link, fg_ticket *ticket)
{
    if (ticket->side == FG_TICKET_IN) {
        settle_in(link, ticket);
    } else {
        settle_out(link, ticket);
    }
}

static void drop_message(fg_link *link, fg_ticket *ticket)
{
    fg_book_unpost(link->book, ticket);
    fg_link_message_free(ticket->message);
    ticket->message = NULL;
}

static void stop_out(fg_link *link, fg_ticket *ticket, fg_status why)
{
    if (ticket->state == FG_TICKET_CLOSED || ticket->state == FG_TICKET_STOPPING) {
        return;
    }
    drop_message(link, ticket);
    ticket->why = why;
    ticket->state = FG_TICKET_STOPPING;
    settle_out(link, ticket);
}

static fg_link_peer *peer_to_answer(const fg_link *link, uint64_t link_id);

static void fence_in(fg_link *link, fg_ticket *ticket)
{
    if (ticket->state == FG_TICKET_FENCING && !ticket->fence_answered) {
        /* Asked again: the writer may not have known this link when the first question came. */
        fg_link_peer *peer = peer_to_answer(link, ticket->peer->link_id);
        if (peer != NULL) {
            send_short(link, peer, FG_LINK_FENCE, ticket->id);
        }
    }
    if (ticket->state == FG_TICKET_CLOSED || ticket->state == FG_TICKET_FENCING) {
        return;
    }
    /* A sender that has committed is silent until it is answered. */
    ticket->fence_answered = ticket->state == FG_TICKET_CHECKING;
    drop_message(link, ticket);
    ticket->state = FG_TICKET_FENCING;
    send_short(link, ticket->peer, FG_LINK_FENCE, ticket->id);
    settle_in(link, ticket);
}

/* The peer is gone or given up. A ticket whose commit has arrived waits for its answer all the same:
 * its data is complete. */
static void end_tickets(fg_link *link, fg_link_peer *peer, fg_status why)
{
    for (fg_ticket *ticket = peer->tickets; ticket != NULL; ticket = ticket->peer_next) {
        if (ticket->side == FG_TICKET_OUT) {
            stop_out(link, ticket, why);
        } else if (ticket->state != FG_TICKET_CHECKING) {
            fence_in(link, ticket);
        }
        settle(link, ticket);
    }
    link->reap = true;
}

/* --- peers --- */

/* A slot to answer through: the one that is up, else any that can still send. */
static fg_link_peer *peer_to_answer(const fg_link *link, uint64_t link_id)
{
    fg_link_peer *found = NULL;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = link->peers[i];
        if (peer != NULL && peer->link_id == link_id && can_send(peer) &&
            (found == NULL || peer->state == FG_LINK_PEER_UP)) {
            found = peer;
        }
    }
    return found;
}

static fg_link_peer *peer_up(const fg_link *link, uint32_t index)
{
    fg_link_peer *peer = index < FG_LIMIT_WORKERS ? link->peers[index] : NULL;
    return peer != NULL && peer->state == FG_LINK_PEER_UP && !link->dead ? peer : NULL;
}

static void lose(fg_link *link, fg_link_peer *peer)
{
    peer->mute = true;
    if (peer->state == FG_LINK_PEER_UP) {
        peer->state = FG_LINK_PEER_BROKEN;
    }
    end_tickets(link, peer, FG_PEER_LOST);
}

void fg_link_peer_broken(fg_link *link, fg_link_peer *peer, const char *why)
{
    if (!peer->mute) {
        fg_warn("link", "peer=%s epoch=%llu lost cause=\"%s\"", peer->name,
                (unsigned long long)peer->epoch, why);
    }
    lose(link, peer);
}

void fg_link_peer_exited(fg_link *link, fg_link_peer *peer)
{
    if (!peer->exited) {
        fg_info("link", "peer=%s epoch=%llu writes no more", peer->name,
                (unsigned long long)peer->epoch);
    }
    peer->exited = true;
    lose(link, peer);
}

void fg_link_peer_closed(fg_link *link, fg_link_peer *peer)
{
    peer->closed = true;
    peer->mute = true;
    link->reap = true;
}

/* True when another slot still speaks for the same link: then GONE would be a lie. */
static bool has_twin(const fg_link *link, const fg_link_peer *peer)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        const fg_link_peer *other = link->peers[i];
        if (other != NULL && other != peer && other->link_id == peer->link_id &&
            !other->close_started) {
            return true;
        }
    }
    return false;
}

/* Closes and frees the peers that are over. Where closing fences (TCP) it comes first; where it does
 * not, the endpoint stays until the peer has answered for every ticket or has exited. */
static void reap_peers(fg_link *link)
{
    if (!link->reap) {
        return;
    }
    link->reap = false;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = link->peers[i];
        if (peer == NULL || peer->state == FG_LINK_PEER_UP) {
            continue;
        }
        if (!peer->close_started && (peer->mute || !peer->writes_here || peer->tickets == NULL)) {
            if (peer->tickets == NULL && !has_twin(link, peer)) {
                send_short(link, peer, FG_LINK_GONE, 0);
            }
            peer->close_started = true;
            link->port->close_peer(link, peer);
        }
        if (peer->state == FG_LINK_PEER_LOST && peer->closed && peer->tickets == NULL) {
            link->peers[i] = NULL;
            link->port->free_peer(link, peer);
        }
    }
}

fg_status fg_link_add_peer(fg_link *link, const char *name, uint64_t epoch, const void *record,
                           size_t record_bytes, uint32_t *peer_out, fg_error *err)
{
    fg_link_record parsed;
    fg_status status = fg_link_record_parse(record, record_bytes, &parsed, err);
    if (status != FG_OK) {
        return status;
    }
    if (parsed.block_bytes != link->block_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "link peer %s: its blocks have %llu bytes, ours %zu",
                       name, (unsigned long long)parsed.block_bytes, link->block_bytes);
    }
    if (strlen(name) > FG_LIMIT_NAME_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "link peer: name longer than %u bytes",
                       FG_LIMIT_NAME_BYTES);
    }
    uint32_t slot = FG_LINK_PEER_NONE;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        const fg_link_peer *old = link->peers[i];
        if (old == NULL) {
            slot = slot == FG_LINK_PEER_NONE ? i : slot;
        } else if (old->state == FG_LINK_PEER_UP && old->link_id == parsed.link_id &&
                   old->epoch == epoch && strcmp(old->name, name) == 0) {
            *peer_out = i;
            return FG_OK;
        }
    }
    if (slot == FG_LINK_PEER_NONE) {
        return fg_fail(err, FG_AGAIN, "link peer %s: %u peers are known already", name,
                       FG_LIMIT_WORKERS);
    }
    fg_link_peer *peer;
    status = link->port->open_peer(link, &parsed, name, epoch, &peer, err);
    if (status != FG_OK) {
        return status;
    }
    peer->index = slot;
    peer->epoch = epoch;
    peer->link_id = parsed.link_id;
    peer->block_count = parsed.block_count;
    snprintf(peer->name, sizeof peer->name, "%s", name);
    link->peers[slot] = peer;
    *peer_out = slot;
    if (peer->exited) {
        fg_link_peer_exited(link, peer);
    }
    fg_link_stir(link);
    return FG_OK;
}

void fg_link_lose_peer(fg_link *link, uint32_t peer_index)
{
    fg_link_peer *peer = peer_index < FG_LIMIT_WORKERS ? link->peers[peer_index] : NULL;
    if (peer == NULL || peer->state == FG_LINK_PEER_LOST || link->dead) {
        return;
    }
    peer->state = FG_LINK_PEER_LOST;
    end_tickets(link, peer, FG_PEER_LOST);
    fg_link_stir(link);
}

/* --- news from the transport --- */

void fg_link_op_done(fg_link *link, fg_ticket *ticket, uint32_t put_blocks)
{
    FG_ASSERT(ticket->in_flight > 0);
    ticket->in_flight--;
    ticket->peer->flight_blocks -= put_blocks;
    settle(link, ticket);
}

/* The receiver's ticket that this message speaks of, when its sender may speak of it. */
static fg_ticket *in_ticket(fg_link *link, const fg_link_wire *wire)
{
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_IN, 0, wire->ticket);
    return ticket != NULL && ticket->peer->link_id == wire->from ? ticket : NULL;
}

static bool got_commit(fg_link *link, const fg_link_wire *wire, const void *bytes,
                       size_t size_bytes)
{
    fg_ticket *ticket = in_ticket(link, wire);
    if (ticket == NULL || ticket->state != FG_TICKET_OPEN || ticket->block_count != wire->count) {
        return false;
    }
    ticket->message = fg_link_message_create(wire);
    if (ticket->message == NULL) {
        fg_link_peer_broken(link, ticket->peer, "out of memory for its commit");
        return true;
    }
    memcpy(ticket->message->bytes, bytes, size_bytes);
    ticket->state = FG_TICKET_CHECKING;
    settle_in(link, ticket);
    return true;
}

static bool got_answer(fg_link *link, const fg_link_wire *wire, const void *bytes,
                       size_t size_bytes)
{
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_OUT, wire->from, wire->ticket);
    if (ticket == NULL || ticket->state != FG_TICKET_AWAITING) {
        return false;
    }
    for (uint32_t i = 0; i < wire->count; i++) {
        if (fg_link_get32(wire->payload + 4 * (size_t)i) >= ticket->block_count) {
            return false;
        }
    }
    ticket->message = fg_link_message_create(wire);
    if (ticket->message == NULL) {
        fg_link_peer_broken(link, ticket->peer, "out of memory for its answer");
        return true;
    }
    memcpy(ticket->message->bytes, bytes, size_bytes);
    ticket->state = wire->count == 0 ? FG_TICKET_CLOSED : FG_TICKET_PUSHING;
    fg_book_post(link->book, ticket, FG_TICKET_EVENT_ANSWER);
    return true;
}

static void got_fence(fg_link *link, const fg_link_wire *wire)
{
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_OUT, wire->from, wire->ticket);
    if (ticket != NULL && ticket->state != FG_TICKET_CLOSED) {
        ticket->fence_asked = true;
        stop_out(link, ticket, FG_CANCELLED);
        return;
    }
    /* Perhaps never pushed yet: whoever comes with it later is refused. */
    fg_book_remember(link->book, wire->from, wire->ticket);
    fg_link_peer *peer = peer_to_answer(link, wire->from);
    if (peer != NULL) {
        send_short(link, peer, FG_LINK_FENCED, wire->ticket);
    }
}

static void got_gone(fg_link *link, uint64_t link_id)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = link->peers[i];
        if (peer != NULL && peer->link_id == link_id) {
            fg_link_peer_exited(link, peer);
        }
    }
}

void fg_link_got_message(fg_link *link, const void *bytes, size_t size_bytes)
{
    fg_link_wire wire;
    bool wanted = false;
    if (!link->dead && fg_link_wire_parse(bytes, size_bytes, &wire) && wire.to == link->id &&
        peer_to_answer(link, wire.from) != NULL) {
        fg_ticket *ticket = NULL;
        wanted = true;
        switch (wire.kind) {
        case FG_LINK_COMMIT:
            wanted = got_commit(link, &wire, bytes, size_bytes);
            break;
        case FG_LINK_ANSWER:
            wanted = got_answer(link, &wire, bytes, size_bytes);
            break;
        case FG_LINK_FENCE:
            got_fence(link, &wire);
            break;
        case FG_LINK_FENCED:
            /* One that transport or exit confirmed earlier is closed already: nothing is stale. */
            ticket = in_ticket(link, &wire);
            if (ticket != NULL && ticket->state == FG_TICKET_FENCING) {
                ticket->fence_answered = true;
                settle_in(link, ticket);
            }
            break;
        case FG_LINK_GONE:
            got_gone(link, wire.from);
            break;
        default:
            wanted = false;
            break;
        }
    }
    link->stats.stale_dropped += wanted ? 0 : 1;
}

fg_ticket *fg_link_got_data(fg_link *link, const void *header, size_t header_bytes, size_t length,
                            uint8_t **target_out)
{
    fg_link_wire wire;
    fg_ticket *ticket = NULL;
    if (fg_link_wire_parse(header, header_bytes, &wire) && wire.kind == FG_LINK_DATA &&
        wire.to == link->id) {
        ticket = in_ticket(link, &wire);
    }
    if (ticket == NULL || ticket->state != FG_TICKET_OPEN ||
        ticket->peer->state != FG_LINK_PEER_UP || wire.first >= ticket->block_count ||
        wire.count > ticket->block_count - wire.first ||
        wire.first_block != ticket->blocks[wire.first] ||
        length / link->block_bytes != wire.count || length % link->block_bytes != 0) {
        link->stats.stale_dropped++;
        return NULL;
    }
    for (uint32_t i = 1; i < wire.count; i++) {
        if (ticket->blocks[wire.first + i] != wire.first_block + i) {
            link->stats.stale_dropped++;
            return NULL;
        }
    }
    ticket->in_flight++;
    *target_out = link->arena + (size_t)wire.first_block * link->block_bytes;
    return ticket;
}

/* --- callbacks --- */

/* Turns the digests (64-bit) or indices (32-bit) of a message into numbers of this machine, in their
 * place. */
static void deliver_commit(fg_link *link, fg_link_message *message)
{
    uint8_t *payload = message->bytes + FG_LINK_HEADER_BYTES;
    uint64_t *digests = (uint64_t *)(void *)(payload + 8);
    fg_link_commit commit = {
        .ticket = fg_link_get64(message->bytes + 24),
        .block_count = fg_link_get32(message->bytes + 32),
        .digests = digests,
        .first_token = fg_link_get32(message->bytes + 36),
        .first_digest = fg_link_get64(payload),
    };
    for (uint32_t i = 0; i < commit.block_count; i++) {
        digests[i] = fg_link_get64(payload + 8 + 8 * (size_t)i);
    }
    link->events.on_commit(link->events.ctx, &commit);
}

static void deliver_answer(fg_link *link, fg_link_message *message)
{
    uint8_t *payload = message->bytes + FG_LINK_HEADER_BYTES;
    uint32_t count = fg_link_get32(message->bytes + 32);
    uint32_t *bad = (uint32_t *)(void *)payload;
    for (uint32_t i = 0; i < count; i++) {
        bad[i] = fg_link_get32(payload + 4 * (size_t)i);
    }
    link->events.on_answer(link->events.ctx, fg_link_get64(message->bytes + 24), bad, count);
}

static void deliver_one(fg_link *link, fg_ticket *ticket)
{
    fg_ticket_event event = ticket->event;
    fg_link_message *message = ticket->message;
    uint64_t id = ticket->id;
    fg_status why = ticket->why;
    fg_book_unpost(link->book, ticket);
    ticket->message = NULL;
    if (ticket->state == FG_TICKET_CLOSED) {
        link->reap |= ticket->peer->state != FG_LINK_PEER_UP;
        fg_book_close(link->book, ticket);
    }
    switch (event) {
    case FG_TICKET_EVENT_COMMIT:
        deliver_commit(link, message);
        break;
    case FG_TICKET_EVENT_FENCED:
        link->events.on_fenced(link->events.ctx, id);
        break;
    case FG_TICKET_EVENT_ANSWER:
        deliver_answer(link, message);
        break;
    case FG_TICKET_EVENT_DRAINED:
        link->events.on_drained(link->events.ctx, id, why);
        break;
    case FG_TICKET_EVENT_NONE:
        break;
    }
    fg_link_message_free(message);
}

/* Progress, then callbacks. True: call again before sleeping. The link may be gone afterwards. */
static bool turn(fg_link *link)
{
    if (link->turning) {
        return false;
    }
    link->turning = true;
    link->resting = false;
    link->again = false;
    if (!link->dead && link->port->progress(link)) {
        link->again = true;
    }
    for (int i = 0; i < DELIVER_MAX && !link->dead && !link->close_asked; i++) {
        fg_ticket *ticket = fg_book_next_event(link->book);
        if (ticket == NULL) {
            break;
        }
        deliver_one(link, ticket);
        link->again = true; /* whoever was called may have asked for more */
    }
    if (!link->dead && !link->close_asked) {
        reap_peers(link);
    }
    link->turning = false;
    if (link->close_asked) {
        fg_link_close(link);
        return false;
    }
    link->resting = link->dead || !(link->again || link->reap || fg_book_has_event(link->book));
    return !link->resting;
}

static bool on_hook(void *ctx)
{
    return turn(ctx);
}

/* The loop turns once more, and with it the hook. */
static void on_wake(void *ctx)
{
}

void fg_link_stir(fg_link *link)
{
    link->again = true;
    if (link->resting && link->wake != NULL) {
        link->resting = false;
        fg_wake_send(link->wake);
    }
}

void fg_link_progress(fg_link *link)
{
    turn(link);
}

/* --- life --- */

fg_status fg_link_core_init(fg_link *link, const fg_link_port *port, const fg_link_options *options,
                            fg_error *err)
{
    link->port = port;
    link->events = options->events;
    link->block_bytes = options->block_bytes;
    link->block_count = options->block_count;
    link->loop = options->loop;
    link->book = fg_book_create();
    if (link->book == NULL) {
        return fg_fail(err, FG_AGAIN, "link: out of memory");
    }
    if (link->loop != NULL && (fg_hook_start(link->loop, on_hook, link, &link->hook) != FG_OK ||
                               fg_wake_create(link->loop, on_wake, link, &link->wake) != FG_OK)) {
        fg_link_core_deinit(link);
        return fg_fail(err, FG_AGAIN, "link: the loop takes no more");
    }
    return FG_OK;
}

void fg_link_core_deinit(fg_link *link)
{
    if (link->wake != NULL) {
        fg_wake_close(link->wake);
    }
    if (link->hook != NULL) {
        fg_hook_close(link->hook);
    }
    fg_book_destroy(link->book);
    link->book = NULL;
    link->wake = NULL;
    link->hook = NULL;
}

/* Stops all writing and tells the peers, within CLOSE_WAIT_MS. */
static void take_leave(fg_link *link)
{
    fg_clock clock = fg_clock_real();
    uint64_t end_ms = fg_clock_now_ms(&clock) + CLOSE_WAIT_MS;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_ticket *first = link->peers[i] != NULL ? link->peers[i]->tickets : NULL;
        for (fg_ticket *ticket = first; ticket != NULL; ticket = ticket->peer_next) {
            if (ticket->side == FG_TICKET_OUT) {
                stop_out(link, ticket, FG_CANCELLED);
            }
        }
    }
    bool waiting = true;
    while (waiting && fg_clock_now_ms(&clock) < end_ms) {
        bool more = link->port->progress(link);
        waiting = !link->port->idle(link);
        for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
            fg_link_peer *peer = link->peers[i];
            if (peer == NULL || !can_send(peer)) {
                continue;
            }
            waiting = true;
            bool writing = false;
            for (fg_ticket *t = peer->tickets; t != NULL && !writing; t = t->peer_next) {
                writing = t->side == FG_TICKET_OUT && t->state != FG_TICKET_CLOSED;
            }
            if (!writing) {
                send_short(link, peer, FG_LINK_GONE, 0);
                peer->mute = true;
            }
        }
        if (waiting && !more) {
            poll(NULL, 0, 1);
        }
    }
}

void fg_link_close(fg_link *link)
{
    if (link == NULL) {
        return;
    }
    if (link->turning) {
        link->close_asked = true;
        return;
    }
    link->turning = true;
    if (!link->dead && link->port->idle != NULL) {
        take_leave(link);
    }
    link->port->close(link);
}

void *fg_link_arena(const fg_link *link)
{
    return link->arena;
}

bool fg_link_describe(const fg_link *link, fg_buf *out)
{
    return link->port->describe(link, out);
}

const char *fg_link_transport(const fg_link *link, uint32_t peer)
{
    return peer < FG_LIMIT_WORKERS && link->peers[peer] != NULL
               ? link->port->transport(link, link->peers[peer])
               : "";
}

void fg_link_stats_get(const fg_link *link, fg_link_stats *stats_out)
{
    *stats_out = link->stats;
    stats_out->tickets_open = fg_book_open_count(link->book);
}

/* --- receiver --- */

fg_status fg_link_expect(fg_link *link, uint32_t peer_index, uint64_t id, const uint32_t *blocks,
                         uint32_t block_count, fg_error *err)
{
    fg_link_peer *peer = peer_up(link, peer_index);
    if (peer == NULL) {
        return fg_fail(err, FG_PEER_LOST, "link ticket: peer %u is not connected", peer_index);
    }
    if (block_count == 0 || block_count > FG_TICKET_BLOCKS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "link ticket: %u blocks, allowed are 1 to %u",
                       block_count, FG_TICKET_BLOCKS_MAX);
    }
    for (uint32_t i = 0; i < block_count; i++) {
        if (blocks[i] >= link->block_count) {
            return fg_fail(err, FG_BAD_INPUT, "link ticket: block %u of %u", blocks[i],
                           link->block_count);
        }
    }
    if (fg_book_find(link->book, FG_TICKET_IN, 0, id) != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "link ticket %llu is open already",
                       (unsigned long long)id);
    }
    uint32_t *copy = fg_mem_array(block_count, sizeof *copy);
    if (copy == NULL) {
        return fg_fail(err, FG_AGAIN, "link ticket: out of memory");
    }
    memcpy(copy, blocks, block_count * sizeof *copy);
    fg_ticket *ticket = fg_book_open(link->book, FG_TICKET_IN, 0, id, peer);
    if (ticket == NULL) {
        fg_mem_free(copy);
        return fg_fail(err, FG_AGAIN, "link ticket: %u are open", FG_TICKET_SIDE_MAX);
    }
    ticket->blocks = copy;
    ticket->block_count = block_count;
    return FG_OK;
}

fg_status fg_link_answer(fg_link *link, uint64_t id, const uint32_t *bad, uint32_t bad_count)
{
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_IN, 0, id);
    if (ticket == NULL || ticket->state != FG_TICKET_CHECKING || ticket->message != NULL) {
        return FG_CANCELLED;
    }
    if (bad_count > ticket->block_count) {
        return FG_BAD_INPUT;
    }
    fg_link_wire wire = {
        .kind = FG_LINK_ANSWER,
        .from = link->id,
        .to = ticket->peer->link_id,
        .ticket = id,
        .count = bad_count,
    };
    bool up = ticket->peer->state == FG_LINK_PEER_UP;
    fg_link_message *message = up ? fg_link_message_create(&wire) : NULL;
    if (up && message == NULL) {
        return FG_AGAIN;
    }
    for (uint32_t i = 0; up && i < bad_count; i++) {
        fg_link_put32(message->bytes + FG_LINK_HEADER_BYTES + 4 * (size_t)i, bad[i]);
    }
    fg_link_peer *peer = ticket->peer;
    if (bad_count == 0) {
        link->stats.received_blocks += ticket->block_count;
        link->stats.received_bytes += (uint64_t)ticket->block_count * link->block_bytes;
        link->reap |= !up;
        fg_book_close(link->book, ticket);
    } else if (up) {
        ticket->state = FG_TICKET_OPEN;
    } else {
        fence_in(link, ticket); /* nobody is left to push again */
    }
    if (up) {
        link->port->send(link, peer, message);
    }
    fg_link_stir(link);
    return FG_OK;
}

void fg_link_fence(fg_link *link, uint64_t id)
{
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_IN, 0, id);
    if (ticket != NULL) {
        fence_in(link, ticket);
        fg_link_stir(link);
    }
}

/* --- sender --- */

/* Finds or opens the sender's ticket in its PUSHING state. */
static fg_status pushing_ticket(fg_link *link, fg_link_peer *peer, uint64_t id,
                                fg_ticket **ticket_out)
{
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_OUT, peer->link_id, id);
    if (ticket == NULL) {
        if (fg_book_remembers(link->book, peer->link_id, id)) {
            return FG_CANCELLED;
        }
        ticket = fg_book_open(link->book, FG_TICKET_OUT, peer->link_id, id, peer);
        if (ticket == NULL) {
            return FG_AGAIN;
        }
    }
    if (ticket->state != FG_TICKET_PUSHING) {
        bool over = ticket->state == FG_TICKET_STOPPING || ticket->state == FG_TICKET_CLOSED;
        return over ? FG_CANCELLED : FG_BAD_INPUT;
    }
    *ticket_out = ticket;
    return FG_OK;
}

fg_status fg_link_push(fg_link *link, uint32_t peer_index, uint64_t id, uint32_t first_index,
                       const uint32_t *source_blocks, const uint32_t *target_blocks, uint32_t count)
{
    fg_link_peer *peer = peer_up(link, peer_index);
    if (peer == NULL) {
        return FG_PEER_LOST;
    }
    if (count == 0 || count > FG_TICKET_BLOCKS_MAX || first_index > FG_TICKET_BLOCKS_MAX - count) {
        return FG_BAD_INPUT;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (source_blocks[i] >= link->block_count || target_blocks[i] >= peer->block_count) {
            return FG_BAD_INPUT;
        }
    }
    uint64_t flight_max = FG_LINK_FLIGHT_BYTES / link->block_bytes;
    flight_max = flight_max < FG_LINK_FLIGHT_BLOCKS ? flight_max : FG_LINK_FLIGHT_BLOCKS;
    if (peer->flight_blocks > 0 && (uint64_t)peer->flight_blocks + count > flight_max) {
        return FG_AGAIN;
    }
    fg_ticket *ticket;
    fg_status status = pushing_ticket(link, peer, id, &ticket);
    if (status != FG_OK) {
        return status;
    }
    ticket->dirty = true;
    link->stats.pushed_blocks += count;
    link->stats.pushed_bytes += (uint64_t)count * link->block_bytes;
    link->port->put(link, ticket, first_index, source_blocks, target_blocks, count);
    fg_link_stir(link);
    return FG_OK;
}

fg_status fg_link_commit_ticket(fg_link *link, uint32_t peer_index, const fg_link_commit *commit)
{
    fg_link_peer *peer = peer_up(link, peer_index);
    if (peer == NULL) {
        return FG_PEER_LOST;
    }
    if (commit->block_count == 0 || commit->block_count > FG_TICKET_BLOCKS_MAX) {
        return FG_BAD_INPUT;
    }
    fg_link_wire wire = {
        .kind = FG_LINK_COMMIT,
        .from = link->id,
        .to = peer->link_id,
        .ticket = commit->ticket,
        .count = commit->block_count,
        .first = commit->first_token,
    };
    fg_link_message *message = fg_link_message_create(&wire);
    if (message == NULL) {
        return FG_AGAIN;
    }
    uint8_t *payload = message->bytes + FG_LINK_HEADER_BYTES;
    fg_link_put64(payload, commit->first_digest);
    for (uint32_t i = 0; i < commit->block_count; i++) {
        fg_link_put64(payload + 8 + 8 * (size_t)i, commit->digests[i]);
    }
    fg_ticket *ticket;
    fg_status status = pushing_ticket(link, peer, commit->ticket, &ticket);
    if (status == FG_OK && ticket->event != FG_TICKET_EVENT_NONE) {
        status = FG_BAD_INPUT; /* the verdict on the last commit was not even heard */
    }
    if (status != FG_OK) {
        fg_link_message_free(message);
        return status;
    }
    ticket->block_count = commit->block_count;
    ticket->message = message;
    ticket->state = FG_TICKET_COMMITTING;
    settle_out(link, ticket);
    fg_link_stir(link);
    return FG_OK;
}

void fg_link_abort(fg_link *link, uint32_t peer_index, uint64_t id)
{
    fg_link_peer *peer = peer_index < FG_LIMIT_WORKERS ? link->peers[peer_index] : NULL;
    if (peer == NULL) {
        return;
    }
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_OUT, peer->link_id, id);
    if (ticket == NULL && !fg_book_remembers(link->book, peer->link_id, id)) {
        ticket = fg_book_open(link->book, FG_TICKET_OUT, peer->link_id, id, peer);
    }
    if (ticket != NULL) {
        stop_out(link, ticket, FG_CANCELLED);
        fg_link_stir(link);
    }
}
