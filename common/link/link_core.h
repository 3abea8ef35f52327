/*
 * link_core - what link.c (the protocol of tickets) and its back ends (the transports) expect of each
 * other. For the files of common/link only. Loop thread.
 *
 * A back end moves bytes and says when they have moved; it decides nothing about tickets. It embeds
 * fg_link and fg_link_peer as the first members of its own structs. Order is its one promise: a
 * message sent after a flush ended arrives after what was put before the flush, and messages to one
 * peer arrive in the order of sending.
 */
#ifndef FORGE_COMMON_LINK_LINK_CORE_H
#define FORGE_COMMON_LINK_LINK_CORE_H

#include "common/base/limits.h"
#include "common/link/link.h"
#include "common/link/link_wire.h"
#include "common/link/ticket.h"

/* Blocks on their way to one peer beyond which a push waits, unless nothing is on its way at all. */
#define FG_LINK_FLIGHT_BLOCKS 256u
#define FG_LINK_FLIGHT_BYTES  (64u * 1024u * 1024u)

/* A message on its way out, or one taken in for a ticket. Aligned so that digests can be read in
 * place: they start 56 bytes into `bytes`. */
typedef struct fg_link_message {
    struct fg_link_message *next;
    size_t size_bytes;
    _Alignas(16) uint8_t bytes[];
} fg_link_message;

fg_link_message *fg_link_message_create(const fg_link_wire *wire);
void fg_link_message_free(fg_link_message *message);

/* UP -> BROKEN (the transport failed, or the peer's process ended) -> LOST (fg_link_lose_peer) ->
 * freed once no ticket is left and the transport has closed; UP -> LOST as well. */
typedef enum fg_link_peer_state {
    FG_LINK_PEER_UP,
    FG_LINK_PEER_BROKEN,
    FG_LINK_PEER_LOST,
} fg_link_peer_state;

typedef struct fg_link_peer {
    uint32_t index;
    fg_link_peer_state state;
    char name[FG_LIMIT_NAME_BYTES + 1];
    uint64_t epoch, own_epoch;
    uint64_t link_id;
    uint32_t block_count;
    bool
        writes_here; /* it can write our arena without our doing anything: closing fences nothing */
    bool
        exited; /* its process has ended, or it said GONE: no ticket of this introduction is written any more */
    bool mute; /* nothing can be sent to it any more */
    bool close_started;
    bool closed;
    uint32_t flight_blocks; /* on their way to it */
    uint32_t holds;         /* of its tickets: its memory stays in reach */
    fg_ticket *tickets;     /* linked by peer_next */
} fg_link_peer;

/* The transport's side. `peer` and `link` are the embedded first members. */
typedef struct fg_link_port {
    bool (*describe)(const fg_link *link, fg_buf *out);
    /* Allocates the back end's peer, fills block-independent fields, `writes_here` and `exited`. */
    fg_status (*open_peer)(fg_link *link, const fg_link_record *record, const char *name,
                           uint64_t epoch, fg_link_peer **peer_out, fg_error *err);
    /* Stops all traffic and ends in fg_link_peer_closed, which may come at once. */
    void (*close_peer)(fg_link *link, fg_link_peer *peer);
    void (*free_peer)(fg_link *link, fg_link_peer *peer);
    /* Begins to move the blocks (bounds checked). Adds one to ticket->in_flight per operation that
     * fg_link_op_done will end; on failure of one it calls fg_link_peer_broken. */
    void (*put)(fg_link *link, fg_ticket *ticket, uint32_t first_index,
                const uint32_t *source_blocks, const uint32_t *target_blocks, uint32_t count);
    /* Hints that these blocks of the peer's arena (`own`: of ours, by the peer) are about to be written:
     * connects, and does beforehand what a first write would have to wait for. NULL: nothing to do. */
    void (*prepare)(fg_link *link, fg_link_peer *peer, const uint32_t *blocks, uint32_t count,
                    bool own);
    /* Where the peer's arena lies in this process; NULL: nowhere. */
    void *(*arena)(const fg_link *link, const fg_link_peer *peer);
    /* As put, one operation: over when all that was put before lies in the peer's memory. */
    void (*flush)(fg_link *link, fg_ticket *ticket);
    /* Takes ownership of the message; a failure is told by fg_link_peer_broken. */
    void (*send)(fg_link *link, fg_link_peer *peer, fg_link_message *message);
    /* Moves what can be moved, and makes sure that an event of the loop announces what comes; true
     * when more work waits that no event would announce. */
    bool (*progress)(fg_link *link);
    const char *(*transport)(const fg_link *link, const fg_link_peer *peer);
    /* True once everything sent has left; fg_link_close waits for it. NULL: it never waits. */
    bool (*idle)(const fg_link *link);
    void (*close)(fg_link *link); /* frees the back end's part and the link itself */
} fg_link_port;

struct fg_link {
    const fg_link_port *port;
    fg_link_events events;
    uint64_t id; /* random, never 0 */
    size_t block_bytes;
    uint32_t block_count;
    uint8_t *arena;
    fg_book *book;
    fg_link_peer *peers[FG_LIMIT_WORKERS];
    fg_link_stats stats;
    struct fg_loop *loop; /* NULL: turned by fg_link_progress */
    struct fg_hook *hook;
    struct fg_wake *wake;
    bool turning;     /* callbacks may be running */
    bool resting;     /* the last turn saw nothing more to do, and the loop may sleep */
    bool again;       /* something was asked for during this turn */
    bool close_asked; /* fg_link_close was called by one of them */
    bool dead;        /* the process it stands for was killed (link_mem) */
    bool reap;        /* a peer may be ready to be closed or freed */
};

/* Fills the common part and joins the loop; the back end has set `id` and `arena`. */
fg_status fg_link_core_init(fg_link *link, const fg_link_port *port, const fg_link_options *options,
                            fg_error *err);
void fg_link_core_deinit(fg_link *link);
/* Something was begun that the next turn must carry on; the loop shall not sleep before it. */
void fg_link_stir(fg_link *link);

/* --- moves that both link.c and link_core.c make --- */

bool fg_link_can_send(const fg_link_peer *peer);
void fg_link_send_short(fg_link *link, fg_link_peer *peer, fg_link_kind kind, uint64_t ticket);
void fg_link_send_gone(fg_link *link, fg_link_peer *peer);
/* Progress, callbacks, peers that are over. True: call again before sleeping. The link may be gone
 * afterwards. */
bool fg_link_turn(fg_link *link);
void fg_link_settle_out(fg_link *link, fg_ticket *ticket);
void fg_link_stop_out(fg_link *link, fg_ticket *ticket, fg_status why);
void fg_link_fence_in(fg_link *link, fg_ticket *ticket);
void fg_link_end_tickets(fg_link *link, fg_link_peer *peer, fg_status why);

/* --- news from the transport; queues events, calls back nobody --- */

/* A whole message arrived (not DATA). */
void fg_link_got_message(fg_link *link, const void *bytes, size_t size_bytes);
/* A DATA header arrived with `length` bytes to come. Returns the ticket and where the bytes go, with
 * one operation more in flight, or NULL: drop them (counted). */
fg_ticket *fg_link_got_data(fg_link *link, const void *header, size_t header_bytes, size_t length,
                            uint8_t **target_out);
/* One operation ended, well or badly; `put_blocks` were on their way with it (0: flush, receive). */
void fg_link_op_done(fg_link *link, fg_ticket *ticket, uint32_t put_blocks);
void fg_link_peer_broken(fg_link *link, fg_link_peer *peer, const char *why);
void fg_link_peer_exited(fg_link *link, fg_link_peer *peer);
void fg_link_peer_closed(fg_link *link, fg_link_peer *peer);

#endif
