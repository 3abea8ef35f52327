/*
 * link - KV transfer: puts blocks of this worker's arena into blocks of a peer's arena that a ticket
 * names, announces arrival, and fences a writer. Owned by the loop thread; callbacks run on it, never
 * from inside a call of this header.
 *
 * Receiver's side of a ticket:   expect -> (data) -> on_commit -> answer(ACK) -> closed
 *                                                 \-> answer(NACK) -> the sender pushes again
 *                                expect -> fence -> on_fenced -> closed
 * Sender's side:                 push* -> commit -> on_answer(ACK) -> closed
 *                                                -> on_answer(NACK, bad) -> push* -> commit
 *                                push* -> abort -> on_drained -> closed
 * Blocks named in an open ticket are pinned by the worker on both sides: the receiver's until ACK or
 * on_fenced (no writer can still write), the sender's until on_answer(ACK) or on_drained (the link
 * does not read them any more).
 */
#ifndef FORGE_COMMON_LINK_LINK_H
#define FORGE_COMMON_LINK_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/status.h"

typedef struct fg_link fg_link;

#define FG_LINK_PEER_NONE UINT32_MAX

/* A sender's announcement that all pushes of a ticket are complete. */
typedef struct fg_link_commit {
    uint64_t ticket;
    uint32_t block_count;    /* must equal the ticket's */
    const uint64_t *digests; /* one per block of the ticket, in its order */
    uint32_t first_token;
    uint64_t first_digest; /* digest of the first token's logits row */
} fg_link_commit;

typedef struct fg_link_events {
    /* Receiver: every block has arrived (flushed). `commit` is valid during the call. */
    void (*on_commit)(void *ctx, const fg_link_commit *commit);
    /* Receiver: no writer can still write this ticket's blocks; asked for by fg_link_fence, or after
     * the peer was lost. The ticket is closed. */
    void (*on_fenced)(void *ctx, uint64_t ticket);
    /* Sender: the receiver's verdict. bad_count == 0: accepted, the ticket is closed. Otherwise `bad`
     * holds indices into the ticket's blocks to push again before the next commit. */
    void (*on_answer)(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count);
    /* Sender: after fg_link_abort, a fence from the receiver, or the loss of the peer: the link reads
     * none of this ticket's source blocks any more. The ticket is closed. */
    void (*on_drained)(void *ctx, uint64_t ticket, fg_status why);
    void *ctx;
} fg_link_events;

/* --- both sides --- */

/* The KV arena: zeroed memory that the transport can reach, owned by the link; or what was lent to it. */
void *fg_link_arena(const fg_link *link);
/* Appends this link's handshake record (address, memory key, host and process identity). */
bool fg_link_describe(const fg_link *link, fg_buf *out);
/* Learns a peer from its record; the index stays valid until fg_link_forget. The same name with
 * another epoch is another peer. `own_epoch`: that the peer learns with this link's record. So an introduction is known on
 * both sides by two epochs, each of which is that of one connection and never another's.
 * FG_BAD_INPUT: record malformed or of another layout version. */
fg_status fg_link_add_peer(fg_link *link, const char *name, uint64_t epoch, uint64_t own_epoch,
                           const void *record, size_t record_bytes, uint32_t *peer_out,
                           fg_error *err);
/* The router declared this peer dead. Its tickets end: on_drained for those sent to it; on_fenced for
 * those expected from it, at once where the transport itself fences (TCP: endpoint closed and
 * drained), else when it has answered or its process is seen to have exited. Then the index is free
 * again. A ticket whose commit has arrived is complete: it waits for fg_link_answer as usual, and a
 * NACK ends it in on_fenced. The link itself notices the end of a process or connection: tickets end
 * likewise, and the index stays taken, answering FG_PEER_LOST, until this call. */
void fg_link_lose_peer(fg_link *link, uint32_t peer);
/* False: unknown, lost, or the link to it is broken; nothing that was under way to it is answered any more. */
bool fg_link_usable(const fg_link *link, uint32_t peer);
/* "posix/memory", "tcp/lo", ...: what the transport chose towards this peer, "" before contact. */
const char *fg_link_transport(const fg_link *link, uint32_t peer);
/* Makes progress; call from timers in set-ups without a loop (tests, simulator). */
void fg_link_progress(fg_link *link);
/* Blocking, bounded by 1 s; no callbacks. Nobody writes by a hold any more. */
void fg_link_close(fg_link *link);

/* --- receiver --- */

/* Opens a ticket: `peer` may write these blocks. FG_AGAIN: too many tickets open. */
fg_status fg_link_expect(fg_link *link, uint32_t peer, uint64_t ticket, const uint32_t *blocks,
                         uint32_t block_count, fg_error *err);
/* Answers a commit. bad_count 0 is ACK and closes the ticket; else NACK with block indices. */
fg_status fg_link_answer(fg_link *link, uint64_t ticket, const uint32_t *bad, uint32_t bad_count);
/* Asks for certainty that the ticket's blocks are written no more; on_fenced follows. May be called
 * again: a writer that did not know this link when it was first asked is asked once more. */
void fg_link_fence(fg_link *link, uint64_t ticket);

/* --- sender --- */

/* A push into these blocks of the peer is coming, when something has been computed: connects, and does
 * in the turns until then what the first push would have to wait for. A hint; costs nothing twice. */
void fg_link_prepare(fg_link *link, uint32_t peer, const uint32_t *target_blocks, uint32_t count);
/* Puts `count` blocks: source_blocks[i] of this arena into target_blocks[i] of the peer's. The first
 * push of a ticket opens it here; `first_index` is the position in the ticket of the first one.
 * FG_AGAIN: too much in flight, try again after progress. FG_PEER_LOST: unknown or lost peer. */
fg_status fg_link_push(fg_link *link, uint32_t peer, uint64_t ticket, uint32_t first_index,
                       const uint32_t *source_blocks, const uint32_t *target_blocks,
                       uint32_t count);
/* Another way than pushing: the caller writes into these blocks of the peer itself, from its own threads, at
 * *arena_out + block * block_bytes, until fg_link_release. Opens the ticket as a push does, and keeps it, and the memory,
 * whatever ends meanwhile. FG_BAD_INPUT: the peer's memory is not to be had here; FG_CANCELLED: the receiver has fenced the
 * ticket; FG_PEER_LOST, FG_AGAIN: as of a push. */
fg_status fg_link_hold(fg_link *link, uint32_t peer, uint64_t ticket, const uint32_t *target_blocks,
                       uint32_t count, void **arena_out);
void fg_link_release(fg_link *link, uint32_t peer, uint64_t ticket);
/* After the last push: flush, then announce. Copies the digests. */
fg_status fg_link_commit_ticket(fg_link *link, uint32_t peer, const fg_link_commit *commit);
/* Stops pushing; on_drained follows. A ticket never pushed is remembered as fenced all the same. */
void fg_link_abort(fg_link *link, uint32_t peer, uint64_t ticket);

typedef struct fg_link_stats {
    uint64_t pushed_blocks, pushed_bytes;
    uint64_t pushed_runs; /* puts or messages that they went in: neighbours travel together */
    uint64_t received_blocks, received_bytes;
    uint64_t stale_dropped; /* messages for closed or foreign tickets */
    uint32_t tickets_open;
} fg_link_stats;
void fg_link_stats_get(const fg_link *link, fg_link_stats *stats_out);

/* --- back ends --- */

/* Whose memory the arena is. */
typedef enum fg_link_memory {
    FG_LINK_OWN,    /* the link takes it from the host, so that peers may map it */
    FG_LINK_LENT,   /* the host's, as it is */
    FG_LINK_DEVICE, /* a CUDA device's */
} fg_link_memory;

/* Memory that is lent has so many blocks more at its end, which belong to nobody: what is put there beforehand makes the
 * first push as quick as the others. */
enum { FG_LINK_SPARE_BLOCKS = 1 };

typedef struct fg_link_options {
    size_t block_bytes;
    uint32_t block_count;
    fg_link_memory memory_kind;
    void *
        memory; /* NULL for FG_LINK_OWN; else block_count + FG_LINK_SPARE_BLOCKS, until close. UCX only */
    const char *transport; /* "auto", "shm" or "tcp" */
    const char *host;      /* address for TCP, e.g. "127.0.0.1" */
    bool shared;           /* fg_shared_find knows the arena, over any transport */
    struct fg_loop *loop;  /* NULL: the caller calls fg_link_progress */
    fg_link_events events;
} fg_link_options;

/* Merely loaded, UCX takes signals: those of crashes for its own report, and SIGHUP, which then no longer
 * ends anything. This gives them back as the process was started with them; the program calls it first. */
void fg_link_give_back_signals(void);

/* Whether UCX reaches memory of CUDA devices on this machine; FG_BAD_INPUT: it doesn't. The calling thread has a device's
 * context. */
fg_status fg_link_reaches_devices(fg_error *err);

/* UCX: link_ucx.c. With FG_LINK_DEVICE the calling thread, and any that calls the link, has the device's context, and
 * FG_BAD_INPUT says that this UCX, or this machine, does not reach such memory. */
fg_status fg_link_open_ucx(const fg_link_options *options, fg_link **link_out, fg_error *err);

/* One process, for tests and the simulator: link_mem.c. Every link of a hub can reach the others;
 * `defer` (may be NULL: immediate, at the next progress) lets a simulator decide when each copy, message
 * and death notice happens: it must call run(arg) once, later, or drop(arg) to lose it with its peer. */
typedef struct fg_link_hub fg_link_hub;
typedef struct fg_link_hub_options {
    void (*defer)(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                  void (*drop)(void *arg), void *arg);
    void *ctx;
} fg_link_hub_options;
fg_link_hub *fg_link_hub_create(const fg_link_hub_options *options);
void fg_link_hub_destroy(fg_link_hub *hub);
/* `name` and `epoch` identify this end inside the hub. */
fg_status fg_link_open_mem(fg_link_hub *hub, const char *name, uint64_t epoch,
                           const fg_link_options *options, fg_link **link_out, fg_error *err);
/* The process behind a link of this hub died: its copies stop, peers that lost it see its exit. */
void fg_link_hub_kill(fg_link_hub *hub, const char *name, uint64_t epoch);

#endif
