#include "common/link/ticket.h"

#include <stddef.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/link/link_core.h"

enum {
    BUCKETS = 4096,
    CAPACITY = 2 * FG_TICKET_SIDE_MAX,
    MEMORY_BUCKETS = 2 * FG_TICKET_MEMORY,
};

/* One ended ticket; `next` chains those of one bucket, as index + 1. */
typedef struct ended {
    uint64_t link_id;
    uint64_t id;
    uint32_t next;
} ended;

struct fg_book {
    fg_ticket *tickets; /* CAPACITY of them; those below `used` were handed out at least once */
    uint32_t used;
    fg_ticket *free_list; /* linked by hash_next */
    uint32_t side_count[2];
    fg_ticket *buckets[BUCKETS];
    fg_ticket *event_first, *event_last;

    ended *ring; /* FG_TICKET_MEMORY of them, overwritten in order */
    uint32_t ring_next;
    uint32_t ring_count;
    uint32_t *ring_buckets; /* index + 1 into ring */
};

fg_book *fg_book_create(void)
{
    fg_book *book = fg_mem_alloc(sizeof *book);
    if (book == NULL) {
        return NULL;
    }
    book->tickets = fg_mem_array(CAPACITY, sizeof *book->tickets);
    book->ring = fg_mem_array(FG_TICKET_MEMORY, sizeof *book->ring);
    book->ring_buckets = fg_mem_array(MEMORY_BUCKETS, sizeof *book->ring_buckets);
    if (book->tickets == NULL || book->ring == NULL || book->ring_buckets == NULL) {
        fg_book_destroy(book);
        return NULL;
    }
    return book;
}

static void free_arrays(fg_ticket *ticket)
{
    fg_mem_free(ticket->blocks);
    fg_link_message_free(ticket->message);
    ticket->blocks = NULL;
    ticket->message = NULL;
}

void fg_book_destroy(fg_book *book)
{
    if (book == NULL) {
        return;
    }
    for (uint32_t i = 0; i < book->used; i++) {
        free_arrays(&book->tickets[i]);
    }
    fg_mem_free(book->tickets);
    fg_mem_free(book->ring);
    fg_mem_free(book->ring_buckets);
    fg_mem_free(book);
}

static uint64_t key_of(uint64_t link_id, uint64_t id)
{
    return fg_hash_mix(fg_hash_mix(link_id) ^ id);
}

static fg_ticket **bucket_of(const fg_book *book, uint64_t link_id, uint64_t id)
{
    return (fg_ticket **)&book->buckets[key_of(link_id, id) % BUCKETS];
}

fg_ticket *fg_book_open(fg_book *book, fg_ticket_side side, uint64_t link_id, uint64_t id,
                        struct fg_link_peer *peer)
{
    if (book->side_count[side] >= FG_TICKET_SIDE_MAX) {
        return NULL;
    }
    fg_ticket *ticket = book->free_list;
    if (ticket != NULL) {
        book->free_list = ticket->hash_next;
    } else {
        FG_ASSERT(book->used < CAPACITY);
        ticket = &book->tickets[book->used++];
    }
    *ticket = (fg_ticket){
        .id = id,
        .link_id = link_id,
        .peer = peer,
        .side = side,
        .state = side == FG_TICKET_IN ? FG_TICKET_OPEN : FG_TICKET_PUSHING,
    };
    fg_ticket **bucket = bucket_of(book, link_id, id);
    ticket->hash_next = *bucket;
    *bucket = ticket;
    ticket->peer_next = peer->tickets;
    if (peer->tickets != NULL) {
        peer->tickets->peer_prev = ticket;
    }
    peer->tickets = ticket;
    book->side_count[side]++;
    return ticket;
}

fg_ticket *fg_book_find(const fg_book *book, fg_ticket_side side, uint64_t link_id, uint64_t id)
{
    fg_ticket *ticket = *bucket_of(book, link_id, id);
    while (ticket != NULL &&
           (ticket->id != id || ticket->link_id != link_id || ticket->side != side)) {
        ticket = ticket->hash_next;
    }
    return ticket;
}

void fg_book_close(fg_book *book, fg_ticket *ticket)
{
    FG_ASSERT(ticket->in_flight == 0, "ticket %llu closed under a transfer",
              (unsigned long long)ticket->id);
    fg_book_unpost(book, ticket);
    fg_ticket **place = bucket_of(book, ticket->link_id, ticket->id);
    while (*place != ticket) {
        place = &(*place)->hash_next;
    }
    *place = ticket->hash_next;
    if (ticket->peer_prev != NULL) {
        ticket->peer_prev->peer_next = ticket->peer_next;
    } else {
        ticket->peer->tickets = ticket->peer_next;
    }
    if (ticket->peer_next != NULL) {
        ticket->peer_next->peer_prev = ticket->peer_prev;
    }
    if (ticket->side == FG_TICKET_OUT) {
        fg_book_remember(book, ticket->link_id, ticket->id);
    }
    book->side_count[ticket->side]--;
    free_arrays(ticket);
    ticket->hash_next = book->free_list;
    book->free_list = ticket;
}

uint32_t fg_book_open_count(const fg_book *book)
{
    return book->side_count[FG_TICKET_IN] + book->side_count[FG_TICKET_OUT];
}

static uint32_t *memory_bucket(const fg_book *book, uint64_t link_id, uint64_t id)
{
    return &book->ring_buckets[key_of(link_id, id) % MEMORY_BUCKETS];
}

bool fg_book_remembers(const fg_book *book, uint64_t link_id, uint64_t id)
{
    for (uint32_t at = *memory_bucket(book, link_id, id); at != 0; at = book->ring[at - 1].next) {
        if (book->ring[at - 1].link_id == link_id && book->ring[at - 1].id == id) {
            return true;
        }
    }
    return false;
}

void fg_book_remember(fg_book *book, uint64_t link_id, uint64_t id)
{
    if (fg_book_remembers(book, link_id, id)) {
        return;
    }
    uint32_t at = book->ring_next;
    ended *entry = &book->ring[at];
    if (book->ring_count == FG_TICKET_MEMORY) {
        uint32_t *place = memory_bucket(book, entry->link_id, entry->id);
        while (*place != at + 1) {
            place = &book->ring[*place - 1].next;
        }
        *place = entry->next;
    } else {
        book->ring_count++;
    }
    uint32_t *bucket = memory_bucket(book, link_id, id);
    *entry = (ended){ .link_id = link_id, .id = id, .next = *bucket };
    *bucket = at + 1;
    book->ring_next = (at + 1) % FG_TICKET_MEMORY;
}

void fg_book_post(fg_book *book, fg_ticket *ticket, fg_ticket_event event)
{
    if (ticket->event == FG_TICKET_EVENT_NONE) {
        ticket->event_next = NULL;
        if (book->event_last != NULL) {
            book->event_last->event_next = ticket;
        } else {
            book->event_first = ticket;
        }
        book->event_last = ticket;
    }
    ticket->event = event;
}

void fg_book_unpost(fg_book *book, fg_ticket *ticket)
{
    if (ticket->event == FG_TICKET_EVENT_NONE) {
        return;
    }
    fg_ticket *before = NULL;
    for (fg_ticket *at = book->event_first; at != ticket; at = at->event_next) {
        before = at;
    }
    if (before != NULL) {
        before->event_next = ticket->event_next;
    } else {
        book->event_first = ticket->event_next;
    }
    if (book->event_last == ticket) {
        book->event_last = before;
    }
    ticket->event = FG_TICKET_EVENT_NONE;
}

fg_ticket *fg_book_next_event(fg_book *book)
{
    return book->event_first;
}

bool fg_book_has_event(const fg_book *book)
{
    return book->event_first != NULL;
}
