#include "common/link/ticket.h"

#include "common/base/fault.h"
#include "common/link/link_core.h"
#include "tests/support/test.h"

Test(ticket, sides_and_receivers_do_not_mix)
{
    fg_book *book = fg_book_create();
    fg_link_peer peer = { 0 };
    fg_ticket *in = fg_book_open(book, FG_TICKET_IN, 0, 5, &peer);
    fg_ticket *out = fg_book_open(book, FG_TICKET_OUT, 9, 5, &peer);
    fg_ticket *other = fg_book_open(book, FG_TICKET_OUT, 10, 5, &peer);
    cr_assert(in != out && out != other);
    cr_assert(fg_book_find(book, FG_TICKET_IN, 0, 5) == in);
    cr_assert(fg_book_find(book, FG_TICKET_OUT, 9, 5) == out);
    cr_assert(fg_book_find(book, FG_TICKET_OUT, 10, 5) == other);
    cr_assert_null(fg_book_find(book, FG_TICKET_OUT, 0, 5));
    cr_assert_null(fg_book_find(book, FG_TICKET_IN, 0, 6));
    cr_assert_eq(fg_book_open_count(book), 3);
    fg_book_close(book, out);
    cr_assert_null(fg_book_find(book, FG_TICKET_OUT, 9, 5));
    cr_assert(fg_book_remembers(book, 9, 5));
    cr_assert(!fg_book_remembers(book, 10, 5));
    fg_book_close(book, in);
    cr_assert(!fg_book_remembers(book, 0, 5), "a receiver's ticket is not remembered");
    cr_assert(peer.tickets == other && other->peer_next == NULL);
    fg_book_destroy(book);
}

Test(ticket, each_side_is_bounded_and_places_come_back)
{
    fg_book *book = fg_book_create();
    fg_link_peer peer = { 0 };
    for (uint64_t round = 0; round < 2; round++) {
        for (uint64_t id = 0; id < FG_TICKET_SIDE_MAX; id++) {
            cr_assert_not_null(fg_book_open(book, FG_TICKET_IN, 0, id, &peer));
            cr_assert_not_null(fg_book_open(book, FG_TICKET_OUT, 7, id, &peer));
        }
        cr_assert_null(fg_book_open(book, FG_TICKET_IN, 0, FG_TICKET_SIDE_MAX, &peer));
        cr_assert_null(fg_book_open(book, FG_TICKET_OUT, 7, FG_TICKET_SIDE_MAX, &peer));
        while (peer.tickets != NULL) {
            fg_book_close(book, peer.tickets);
        }
        cr_assert_eq(fg_book_open_count(book), 0);
    }
    fg_book_destroy(book);
}

Test(ticket, memory_forgets_the_oldest_first)
{
    fg_book *book = fg_book_create();
    for (uint64_t id = 0; id < FG_TICKET_MEMORY + 100; id++) {
        fg_book_remember(book, 3, id);
        fg_book_remember(book, 3, id); /* once is enough */
    }
    for (uint64_t id = 0; id < FG_TICKET_MEMORY + 100; id++) {
        cr_assert_eq(fg_book_remembers(book, 3, id), id >= 100, "id %llu", (unsigned long long)id);
        cr_assert(!fg_book_remembers(book, 4, id));
    }
    fg_book_destroy(book);
}

Test(ticket, events_keep_their_order)
{
    fg_book *book = fg_book_create();
    fg_link_peer peer = { 0 };
    fg_ticket *t[4];
    for (uint64_t i = 0; i < 4; i++) {
        t[i] = fg_book_open(book, FG_TICKET_OUT, 1, i, &peer);
        fg_book_post(book, t[i], FG_TICKET_EVENT_ANSWER);
    }
    fg_book_post(book, t[0], FG_TICKET_EVENT_DRAINED); /* replaced where it stands */
    fg_book_unpost(book, t[1]);
    fg_book_unpost(book, t[1]);
    fg_book_close(book, t[3]);
    cr_assert(fg_book_next_event(book) == t[0]);
    cr_assert_eq(t[0]->event, FG_TICKET_EVENT_DRAINED);
    fg_book_unpost(book, t[0]);
    cr_assert(fg_book_next_event(book) == t[2]);
    fg_book_unpost(book, t[2]);
    cr_assert(!fg_book_has_event(book));
    fg_book_post(book, t[1], FG_TICKET_EVENT_ANSWER);
    cr_assert(fg_book_next_event(book) == t[1]);
    fg_book_destroy(book);
}

static bool try_book(void *ctx)
{
    fg_book *book = fg_book_create();
    fg_book_destroy(book);
    return book != NULL;
}

Test(ticket, creation_survives_failed_allocations)
{
    cr_assert_eq(fg_fault_each(try_book, NULL), 4);
}
