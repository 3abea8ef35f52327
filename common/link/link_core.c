/*
 * link_core - the protocol of tickets: how each moves on, what messages and transport news do to it,
 * and the callbacks. The calls of link.h are in link.c.
 */
#include "common/link/link_core.h"

#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/loop.h"

enum { DELIVER_MAX = 1024 }; /* callbacks in one turn; the loop has other work as well */

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

bool fg_link_can_send(const fg_link_peer *peer)
{
    return !peer->mute && !peer->close_started;
}

void fg_link_send_short(fg_link *link, fg_link_peer *peer, fg_link_kind kind, uint64_t ticket)
{
    if (!fg_link_can_send(peer)) {
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

/* A slot to answer through: the one that is up, else any that can still send. */
static fg_link_peer *peer_to_answer(const fg_link *link, uint64_t link_id)
{
    fg_link_peer *found = NULL;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = link->peers[i];
        if (peer != NULL && peer->link_id == link_id && fg_link_can_send(peer) &&
            (found == NULL || peer->state == FG_LINK_PEER_UP)) {
            found = peer;
        }
    }
    return found;
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
void fg_link_settle_out(fg_link *link, fg_ticket *ticket)
{
    if (ticket->in_flight > 0 ||
        (ticket->state != FG_TICKET_COMMITTING && ticket->state != FG_TICKET_STOPPING)) {
        return;
    }
    if (ticket->dirty && fg_link_can_send(ticket->peer)) {
        ticket->dirty = false;
        link->port->flush(link, ticket);
        return;
    }
    if (ticket->state == FG_TICKET_COMMITTING) {
        fg_link_message *message = ticket->message;
        ticket->message = NULL;
        ticket->state = FG_TICKET_AWAITING;
        if (fg_link_can_send(ticket->peer)) {
            link->port->send(link, ticket->peer, message);
        } else {
            fg_link_message_free(message);
        }
        return;
    }
    ticket->state = FG_TICKET_CLOSED;
    fg_book_post(link->book, ticket, FG_TICKET_EVENT_DRAINED);
    if (ticket->fence_asked) {
        fg_link_send_short(link, ticket->peer, FG_LINK_FENCED, ticket->id);
    }
}

static void settle(fg_link *link, fg_ticket *ticket)
{
    if (ticket->side == FG_TICKET_IN) {
        settle_in(link, ticket);
    } else {
        fg_link_settle_out(link, ticket);
    }
}

static void drop_message(fg_link *link, fg_ticket *ticket)
{
    fg_book_unpost(link->book, ticket);
    fg_link_message_free(ticket->message);
    ticket->message = NULL;
}

void fg_link_stop_out(fg_link *link, fg_ticket *ticket, fg_status why)
{
    if (ticket->state == FG_TICKET_CLOSED || ticket->state == FG_TICKET_STOPPING) {
        return;
    }
    drop_message(link, ticket);
    ticket->why = why;
    ticket->state = FG_TICKET_STOPPING;
    fg_link_settle_out(link, ticket);
}

void fg_link_fence_in(fg_link *link, fg_ticket *ticket)
{
    if (ticket->state == FG_TICKET_FENCING && !ticket->fence_answered) {
        /* Asked again: the writer may not have known this link when the first question came. */
        fg_link_peer *peer = peer_to_answer(link, ticket->peer->link_id);
        if (peer != NULL) {
            fg_link_send_short(link, peer, FG_LINK_FENCE, ticket->id);
        }
    }
    if (ticket->state == FG_TICKET_CLOSED || ticket->state == FG_TICKET_FENCING) {
        return;
    }
    /* A sender that has committed is silent until it is answered. */
    ticket->fence_answered = ticket->state == FG_TICKET_CHECKING;
    drop_message(link, ticket);
    ticket->state = FG_TICKET_FENCING;
    fg_link_send_short(link, ticket->peer, FG_LINK_FENCE, ticket->id);
    settle_in(link, ticket);
}

/* The peer is gone or given up. A ticket whose commit has arrived waits for its answer all the same:
 * its data is complete. */
void fg_link_end_tickets(fg_link *link, fg_link_peer *peer, fg_status why)
{
    for (fg_ticket *ticket = peer->tickets; ticket != NULL; ticket = ticket->peer_next) {
        if (ticket->side == FG_TICKET_OUT) {
            fg_link_stop_out(link, ticket, why);
        } else if (ticket->state != FG_TICKET_CHECKING) {
            fg_link_fence_in(link, ticket);
        }
        settle(link, ticket);
    }
    link->reap = true;
}

/* --- peers --- */

static void lose(fg_link *link, fg_link_peer *peer)
{
    peer->mute = true;
    if (peer->state == FG_LINK_PEER_UP) {
        peer->state = FG_LINK_PEER_BROKEN;
    }
    fg_link_end_tickets(link, peer, FG_PEER_LOST);
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

/* What both sides call an introduction, by the epochs that its writer and its receiver had. */
static uint64_t introduction(uint64_t writer, uint64_t receiver)
{
    return fg_hash_mix(fg_hash_mix(writer) + receiver);
}

void fg_link_send_gone(fg_link *link, fg_link_peer *peer)
{
    fg_link_send_short(link, peer, FG_LINK_GONE, introduction(peer->own_epoch, peer->epoch));
}

/* True when another slot stands for the same introduction, made twice: then GONE would be a lie. */
static bool has_twin(const fg_link *link, const fg_link_peer *peer)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        const fg_link_peer *other = link->peers[i];
        if (other != NULL && other != peer && other->link_id == peer->link_id &&
            other->epoch == peer->epoch && other->own_epoch == peer->own_epoch &&
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
        /* Memory that is written to by a hold stays where it is. */
        if (!peer->close_started && peer->holds == 0 &&
            (peer->mute || !peer->writes_here || peer->tickets == NULL)) {
            if (peer->tickets == NULL && !has_twin(link, peer)) {
                fg_link_send_gone(link, peer);
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
        fg_link_stop_out(link, ticket, FG_CANCELLED);
        return;
    }
    /* Perhaps never pushed yet: whoever comes with it later is refused. */
    fg_book_remember(link->book, wire->from, wire->ticket);
    fg_link_peer *peer = peer_to_answer(link, wire->from);
    if (peer != NULL) {
        fg_link_send_short(link, peer, FG_LINK_FENCED, wire->ticket);
    }
}

/* It may have been on its way for long, and speaks of one introduction: the same two links may have been introduced again
 * since, or by another router, and write. */
static void got_gone(fg_link *link, const fg_link_wire *wire)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = link->peers[i];
        if (peer != NULL && peer->link_id == wire->from &&
            introduction(peer->epoch, peer->own_epoch) == wire->ticket) {
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
            got_gone(link, &wire);
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

bool fg_link_turn(fg_link *link)
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
    return fg_link_turn(ctx);
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
