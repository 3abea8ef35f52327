/*
 * registry - who is alive: role, epoch, fingerprint, load. Owned by the loop thread. No I/O, no clock:
 * time is an argument.
 *
 * A worker is known from join (its HELLO was accepted) to remove. Its lease is renewed by every frame;
 * fg_registry_expired finds one whose lease has run out. One that reports, and has work, but ends no step,
 * is alive and stuck: it is stalled first, which keeps new work away, then fg_registry_stuck finds it.
 */
#ifndef FORGE_ROUTER_REGISTRY_H
#define FORGE_ROUTER_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/kv/block_key.h"
#include "proto/wire.h"
#include "router/places.h"
#include "router/speed.h"

typedef struct fg_registry fg_registry;

typedef struct fg_reg_worker {
    char name[FG_LIMIT_NAME_BYTES + 1];
    uint64_t epoch;
    uint32_t peer;  /* the bus's handle */
    uint32_t roles; /* a policy: what it is used for */
    uint32_t able;  /* what it could be used for */
    fg_wire_speed speed;
    uint64_t pid;
    uint32_t block_size, block_count, max_seqs, context_max;
    void *link_record;
    size_t link_record_bytes;
    fg_wire_load load; /* as last reported */
    uint64_t joined_ns, seen_ns;
    uint64_t moved_ns; /* its last step ended, or it had nothing to do */
    bool stalled;      /* moved long ago */
    bool draining;
    /* What this router has placed there and not yet seen the end of: ahead of the reports. */
    uint32_t prefills, decodes;
    uint64_t placed;         /* requests ever placed there */
    uint64_t prefill_tokens; /* that are still to be computed there, as far as is known */
    uint32_t reservations;   /* of its blocks that wait for the prefill of another worker */
    uint32_t ahead;          /* prompts that these belong to */
    double ahead_ns;         /* predicted for them */
    uint64_t ahead_since_ns; /* the first of them is under way */
    uint64_t context_tokens; /* of placed sequences that decode there */
    double prompt_ns;        /* that it spent on prompts lately, older ones counting less ... */
    uint64_t prompt_at_ns;   /* ... as of then */
    uint64_t decode_blocks;  /* of their prompts */
    fg_places places;        /* who has them, by the tokens that are expected of each */
    fg_speed pace;           /* how fast it is, as far as is known */
    uint64_t tokens_ns; /* its last TOKENS, 0: nothing is to be learned from the next; of so many */
    uint32_t tokens_rows, tokens_decodes;
    uint64_t news_sequence; /* of its last NEWS */
    uint64_t resync_ns;     /* when it was last asked to tell everything again; 0: never */
    bool deaf;              /* a frame that it had to get could not be sent */
    bool full;              /* answered a RESERVE with "busy"; cleared by its next report */
} fg_reg_worker;

typedef struct fg_registry_options {
    fg_digest128 fingerprint; /* of the model that this router serves */
    uint64_t lease_ns;
    uint64_t
        stuck_ns; /* without a step, with work: as good as dead; a quarter of it: stalled; 0: never */
} fg_registry_options;

fg_status fg_registry_create(const fg_registry_options *options, fg_registry **registry_out,
                             fg_error *err);
void fg_registry_destroy(fg_registry *registry);

/* FG_BAD_INPUT: refused, `err` says why in words for the operator. */
fg_status fg_registry_join(fg_registry *registry, const fg_wire_hello *hello, uint32_t peer,
                           uint64_t now_ns, fg_reg_worker **worker_out, fg_error *err);
void fg_registry_remove(fg_registry *registry, fg_reg_worker *worker);
/* Any frame renews; a LOAD report replaces the numbers unless it is older than the known one. */
void fg_registry_seen(fg_reg_worker *worker, uint64_t now_ns);
void fg_registry_update(fg_reg_worker *worker, const fg_wire_load *load, uint64_t now_ns);
/* A worker whose lease has run out, or NULL. */
fg_reg_worker *fg_registry_expired(const fg_registry *registry, uint64_t now_ns);

/* Looks who is stalled; returns one that is stuck, or NULL. */
fg_reg_worker *fg_registry_stuck(const fg_registry *registry, uint64_t now_ns);
/* This process stood still for so long: nobody's silence counts for that time. */
void fg_registry_forgive(fg_registry *registry, uint64_t gap_ns, uint64_t now_ns);
/* What names the blocks of these workers, but for the secret. False: none has joined yet. */
bool fg_registry_namer(const fg_registry *registry, fg_block_namer *namer_out);

/* What the members agree on, or did last; *class_out is their numerics class. */
const fg_wire_hello *fg_registry_shape(const fg_registry *registry, const char **class_out);

/* A worker that a frame could not be delivered to, or NULL. */
fg_reg_worker *fg_registry_deaf(const fg_registry *registry);

fg_reg_worker *fg_registry_by_peer(const fg_registry *registry, uint32_t peer);
fg_reg_worker *fg_registry_by_name(const fg_registry *registry, const char *name);
/* Workers 0 .. count-1, in order of joining; the order changes with remove. */
uint32_t fg_registry_count(const fg_registry *registry);
fg_reg_worker *fg_registry_at(const fg_registry *registry, uint32_t index);

#endif
