#include "common/link/link.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/link/link_core.h"

enum { CLOSE_WAIT_MS = 1000 };

/* --- life --- */

/* What their callers wrote by holds has ended with them. */
static void drop_holds(fg_link *link)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = link->peers[i];
        fg_ticket *next = NULL;
        for (fg_ticket *ticket = peer != NULL ? peer->tickets : NULL; ticket != NULL;
             ticket = next) {
            next = ticket->peer_next;
            while (ticket->held > 0) {
                ticket->held--;
                peer->holds--;
                fg_link_op_done(link, ticket, 0);
            }
        }
    }
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
                fg_link_stop_out(link, ticket, FG_CANCELLED);
            }
        }
    }
    bool waiting = true;
    while (waiting && fg_clock_now_ms(&clock) < end_ms) {
        bool more = link->port->progress(link);
        waiting = !link->port->idle(link);
        for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
            fg_link_peer *peer = link->peers[i];
            if (peer == NULL || !fg_link_can_send(peer)) {
                continue;
            }
            waiting = true;
            bool writing = false;
            for (fg_ticket *t = peer->tickets; t != NULL && !writing; t = t->peer_next) {
                writing = t->side == FG_TICKET_OUT && t->state != FG_TICKET_CLOSED;
            }
            if (!writing) {
                fg_link_send_gone(link, peer);
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
    drop_holds(link);
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

void fg_link_progress(fg_link *link)
{
    fg_link_turn(link);
}

/* --- peers --- */

static fg_link_peer *peer_up(const fg_link *link, uint32_t index)
{
    fg_link_peer *peer = index < FG_LIMIT_WORKERS ? link->peers[index] : NULL;
    return peer != NULL && peer->state == FG_LINK_PEER_UP && !link->dead ? peer : NULL;
}

bool fg_link_usable(const fg_link *link, uint32_t peer)
{
    return peer_up(link, peer) != NULL;
}

fg_status fg_link_add_peer(fg_link *link, const char *name, uint64_t epoch, uint64_t own_epoch,
                           const void *record, size_t record_bytes, uint32_t *peer_out,
                           fg_error *err)
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
                   old->epoch == epoch && old->own_epoch == own_epoch &&
                   strcmp(old->name, name) == 0) {
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
    peer->own_epoch = own_epoch;
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
    fg_link_end_tickets(link, peer, FG_PEER_LOST);
    fg_link_stir(link);
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
    if (link->port->prepare != NULL) { /* its answer needs the connection, its reader the pages */
        link->port->prepare(link, peer, blocks, block_count, true);
        fg_link_stir(link);
    }
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
        fg_link_fence_in(link, ticket); /* nobody is left to push again */
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
        fg_link_fence_in(link, ticket);
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

void fg_link_prepare(fg_link *link, uint32_t peer_index, const uint32_t *target_blocks,
                     uint32_t count)
{
    fg_link_peer *peer = peer_up(link, peer_index);
    if (peer != NULL && link->port->prepare != NULL) {
        link->port->prepare(link, peer, target_blocks, count, false);
        fg_link_stir(link);
    }
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

fg_status fg_link_hold(fg_link *link, uint32_t peer_index, uint64_t id,
                       const uint32_t *target_blocks, uint32_t count, void **arena_out)
{
    fg_link_peer *peer = peer_up(link, peer_index);
    if (peer == NULL) {
        return FG_PEER_LOST;
    }
    void *arena = link->port->arena(link, peer);
    if (arena == NULL || count == 0 || count > FG_TICKET_BLOCKS_MAX) {
        return FG_BAD_INPUT;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (target_blocks[i] >= peer->block_count) {
            return FG_BAD_INPUT;
        }
    }
    fg_ticket *ticket;
    fg_status status = pushing_ticket(link, peer, id, &ticket);
    if (status != FG_OK) {
        return status;
    }
    ticket->in_flight++;
    ticket->held++;
    peer->holds++;
    *arena_out = arena;
    return FG_OK;
}

void fg_link_release(fg_link *link, uint32_t peer_index, uint64_t id)
{
    fg_link_peer *peer = link->peers[peer_index];
    fg_ticket *ticket = fg_book_find(link->book, FG_TICKET_OUT, peer->link_id, id);
    FG_ASSERT(ticket != NULL && ticket->held > 0, "a release without a hold");
    ticket->held--;
    peer->holds--;
    link->reap = true; /* it may have waited for this */
    fg_link_op_done(link, ticket, 0);
    fg_link_stir(link);
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
    fg_link_settle_out(link, ticket);
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
        fg_link_stop_out(link, ticket, FG_CANCELLED);
        fg_link_stir(link);
    }
}
