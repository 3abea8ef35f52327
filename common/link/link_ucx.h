/*
 * link_ucx - the UCX back end's own types, shared by its four files: link_ucx.c (context, arena,
 * progress), link_ucx_peer.c (handshake record, endpoints, exit of a peer), link_ucx_move.c (puts,
 * active messages) and link_ucx_warm.c (what is done ahead of a first push). Included by nothing else.
 *
 * Towards a peer on this host, blocks are put into its shared-memory arena (a true remote write: the
 * peer need not do anything, and closing the endpoint stops nothing). Towards any other, they are
 * sent as active messages with rendezvous, which the peer's link_ucx receives straight into the
 * ticket's blocks; UCX is held to the scheme in which the receiver's side writes (RNDV_SCHEME=am), so
 * a receive that has ended writes no more.
 *
 * The same with arenas in a device's memory: between two of them on this host a put is a copy that the sender's
 * device makes (cuda_ipc). It has ended when UCX says so. Where one arena is a device's and the other the host's,
 * blocks go as messages, which UCX stages.
 */
#ifndef FORGE_COMMON_LINK_LINK_UCX_H
#define FORGE_COMMON_LINK_LINK_UCX_H

#include <ucp/api/ucp.h>

#include "common/base/shared.h"
#include "common/link/link_core.h"
#include "common/net/loop.h"

typedef struct ucx_link ucx_link;

typedef struct ucx_peer {
    fg_link_peer base;
    ucx_link *link;
    ucp_ep_h ep;
    ucp_rkey_h key;      /* NULL: blocks go as active messages */
    uint64_t arena_base; /* of the peer */
    uint8_t *mapped;     /* where that arena lies in this process; NULL with the key */
    uint64_t *warm_map;  /* a bit for each of its blocks whose pages have been touched; NULL */
    bool greeted;        /* the connection was asked for */
    bool lent;           /* blocks are put by the key, into an arena that is not mapped */
    bool rehearsed;      /* and one was, beforehand */
    fg_link_medium medium;
    bool failed; /* the endpoint's error callback has run */
    int pid_fd;  /* readable once the peer's process has ended; -1: none */
    fg_watch *pid_watch;
    char transport[64];
} ucx_peer;

/* One operation given to UCX: a put or data message (put_blocks > 0), a flush, a receive (ticket set)
 * or a message. Pooled; at most what the flight limits allow. */
typedef struct ucx_op {
    struct ucx_op *next;
    ucx_link *link;
    ucx_peer *peer;
    fg_ticket *ticket;
    uint32_t put_blocks;
    bool on_device; /* a device makes the copy: the loop stays awake until it has ended */
    bool rehearses; /* nobody waits for it */
    fg_link_message *message;
    uint8_t header[FG_LINK_HEADER_BYTES]; /* UCX reads it until the operation ends */
} ucx_op;

/* Blocks whose pages wait to be touched: of a peer's arena, or (FG_LINK_PEER_NONE) of our own. */
typedef struct ucx_warm {
    uint32_t peer;
    uint32_t first, count;
} ucx_warm;

enum { UCX_WARM_MAX = 1024 }; /* runs; what comes beyond is not warmed */

struct ucx_link {
    fg_link base;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_mem_h memory; /* registration of the arena */
    size_t arena_bytes;
    bool shm; /* the arena can be written by processes of this host */
    fg_link_medium medium;
    bool tcp;
    bool lent;        /* the arena is the caller's, */
    bool is_device;   /* and in a device's memory */
    bool mapped;      /* the arena is our own mapping, not UCX's */
    fg_shared shared; /* that mapping, where it is shared; else none */
    uint64_t host_id;
    int event_fd;
    fg_watch *watch;
    ucx_op *free_ops;
    uint32_t ops_open;           /* given to UCX and not ended */
    uint32_t device_copies;      /* of them, copies that a device makes */
    uint32_t closing;            /* endpoints whose close has not ended */
    ucx_warm warm[UCX_WARM_MAX]; /* from warm_first up to warm_end, both modulo its size */
    uint32_t warm_first, warm_end;
    uint64_t *warm_map; /* of our own arena; NULL: it is not in shared memory */
};

enum { UCX_AM_DATA = 1, UCX_AM_MESSAGE = 2, UCX_AM_GREETING = 3 };

fg_status ucx_status(ucs_status_t status, const char *what, fg_error *err);

/* link_ucx.c: moves UCX until nothing moves (bounded); true: bound reached. */
bool ucx_pump(ucx_link *link);

/* link_ucx_peer.c */
uint64_t ucx_host_id(void);
bool ucx_describe(const fg_link *base, fg_buf *out);
fg_status ucx_open_peer(fg_link *base, const fg_link_record *record, const char *name,
                        uint64_t epoch, fg_link_peer **peer_out, fg_error *err);
void ucx_close_peer(fg_link *base, fg_link_peer *peer);
void ucx_free_peer(fg_link *base, fg_link_peer *peer);
const char *ucx_transport(const fg_link *base, const fg_link_peer *peer);
/* Says so where blocks will go from device to device, but not straight. */
void ucx_look_at_way(ucx_peer *peer);
/* Without a loop: looks whether a peer's process has ended. */
void ucx_poll_exits(ucx_link *link);
/* link_ucx_move.c */
fg_status ucx_listen(ucx_link *link, fg_error *err);
void ucx_put(fg_link *base, fg_ticket *ticket, uint32_t first_index, const uint32_t *source_blocks,
             const uint32_t *target_blocks, uint32_t count);
void *ucx_arena(const fg_link *base, const fg_link_peer *base_peer);
void ucx_flush(fg_link *base, fg_ticket *ticket);
void ucx_send(fg_link *base, fg_link_peer *peer, fg_link_message *message);
void ucx_free_ops(ucx_link *link);
/* An empty message, which UCX cannot send without connecting; whoever gets it does nothing. */
void ucx_greet(ucx_link *link, ucx_peer *peer);
/* Puts a block where it is nobody's: UCX chooses its way then, and opens the peer's memory. */
void ucx_rehearse(ucx_link *link, ucx_peer *peer);
/* link_ucx_warm.c */
uint64_t *ucx_warm_map(uint32_t block_count); /* NULL: out of memory */
void ucx_prepare(fg_link *base, fg_link_peer *base_peer, const uint32_t *blocks, uint32_t count,
                 bool own);
/* Touches a turn's share; true: more is left. */
bool ucx_warm_turn(ucx_link *link);

#endif
