/*
 * ticket - the book of open tickets of one link, whatever carries the bytes. Owned by the loop
 * thread, by way of link.c.
 *
 * A ticket of side IN names blocks of this arena that a peer may write; one of side OUT names blocks
 * that this link writes into a peer. The receiver chooses ticket ids, unique over its life, so IN
 * tickets are found by id alone and OUT tickets by (receiver's link id, id).
 *
 *   IN:  OPEN -> CHECKING (commit) -> gone (ACK) | OPEN (NACK); any -> FENCING -> CLOSED (fenced)
 *   OUT: PUSHING -> COMMITTING -> AWAITING -> CLOSED (ACK) | PUSHING (NACK); any -> STOPPING -> CLOSED
 *
 * CLOSED means that the last event waits to be delivered. An OUT ticket that ended is remembered for
 * the next FG_TICKET_MEMORY endings: a late PREFILL must not write into blocks that were fenced.
 * After fg_book_create nothing here allocates, except the arrays that link.c hangs on a ticket.
 */
#ifndef FORGE_COMMON_LINK_TICKET_H
#define FORGE_COMMON_LINK_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/status.h"

#define FG_TICKET_SIDE_MAX FG_LIMIT_LIVE_REQUESTS /* open tickets of one side */
#define FG_TICKET_MEMORY   16384u                 /* ended OUT tickets that are remembered */
/* Blocks of one ticket: each has one token of the prompt at least. */
#define FG_TICKET_BLOCKS_MAX FG_LIMIT_CONTEXT_TOKENS

struct fg_link_peer;
struct fg_link_message;

typedef enum fg_ticket_side { FG_TICKET_IN, FG_TICKET_OUT } fg_ticket_side;

typedef enum fg_ticket_state {
    FG_TICKET_OPEN,
    FG_TICKET_CHECKING,
    FG_TICKET_FENCING,
    FG_TICKET_PUSHING,
    FG_TICKET_COMMITTING,
    FG_TICKET_AWAITING,
    FG_TICKET_STOPPING,
    FG_TICKET_CLOSED,
} fg_ticket_state;

typedef enum fg_ticket_event {
    FG_TICKET_EVENT_NONE,
    FG_TICKET_EVENT_COMMIT,
    FG_TICKET_EVENT_FENCED,
    FG_TICKET_EVENT_ANSWER,
    FG_TICKET_EVENT_DRAINED,
} fg_ticket_event;

typedef struct fg_ticket {
    uint64_t id;
    uint64_t link_id; /* OUT: the receiver's; IN: 0 */
    struct fg_link_peer *peer;
    fg_ticket_side side;
    fg_ticket_state state;
    fg_ticket_event event; /* waiting to be delivered */
    fg_status why;         /* OUT, STOPPING: what on_drained will say */
    uint32_t block_count;  /* OUT: 0 until its commit */
    uint32_t *blocks;      /* IN: what the peer may write */
    /* Operations of the transport that still read or write this ticket's blocks (a flush counts). */
    uint32_t in_flight;
    uint32_t held;       /* OUT: those of them that are holds of the caller */
    bool dirty;          /* OUT: something was put since the last flush */
    bool fence_asked;    /* OUT: the receiver waits for FENCED */
    bool fence_answered; /* IN: no writer is left, by its own word or because it had committed */
    /* OUT, COMMITTING: the commit; IN and OUT with an event: the commit or answer to deliver. */
    struct fg_link_message *message;

    struct fg_ticket *hash_next;
    struct fg_ticket *peer_next, *peer_prev;
    struct fg_ticket *event_next;
} fg_ticket;

typedef struct fg_book fg_book;

fg_book *fg_book_create(void);
void fg_book_destroy(fg_book *book);

/* NULL when FG_TICKET_SIDE_MAX tickets of that side are open. The caller has checked that none with
 * this key is. */
fg_ticket *fg_book_open(fg_book *book, fg_ticket_side side, uint64_t link_id, uint64_t id,
                        struct fg_link_peer *peer);
fg_ticket *fg_book_find(const fg_book *book, fg_ticket_side side, uint64_t link_id, uint64_t id);
/* Forgets the ticket and frees its arrays; an OUT ticket goes to the memory of ended ones. */
void fg_book_close(fg_book *book, fg_ticket *ticket);
uint32_t fg_book_open_count(const fg_book *book);

/* The ended OUT tickets. */
void fg_book_remember(fg_book *book, uint64_t link_id, uint64_t id);
bool fg_book_remembers(const fg_book *book, uint64_t link_id, uint64_t id);

/* Queues an event of the ticket, in place of one that was still waiting. */
void fg_book_post(fg_book *book, fg_ticket *ticket, fg_ticket_event event);
/* Takes back an event that was not delivered yet. */
void fg_book_unpost(fg_book *book, fg_ticket *ticket);
/* Next ticket with an event, oldest first, or NULL. Its `event` field stays set for the caller. */
fg_ticket *fg_book_next_event(fg_book *book);
bool fg_book_has_event(const fg_book *book);

#endif
