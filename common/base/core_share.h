/*
 * core_share - how compute teams of several processes share the cores of a machine: each says in a small
 * file of shared memory whether it computes, and takes its fair part of the cores while others do, all
 * that it wants while they do not. Nobody waits for anybody: an entry is believed for as long as its owner
 * gives signs of life, so one that died, was stopped or hangs costs the others 30 ms of less than all cores.
 *
 * It is advice about speed. Whatever stands in the file, a width is from 1 to the threads that this process
 * has, and no result depends on it.
 *
 * An entry belongs to whoever holds the lock on its byte of the file (an open file description lock): the
 * kernel takes it back when the process ends, however it ends. What it left there is then cleared by one of the others.
 *
 * Only processes of one user, one /dev/shm and one clock see each other. Masks that overlap in part are
 * counted with care, not exactly: too few cores may be used then, never too many.
 */
#ifndef FORGE_COMMON_BASE_CORE_SHARE_H
#define FORGE_COMMON_BASE_CORE_SHARE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

typedef struct fg_core_share fg_core_share;

enum {
    FG_CORE_SHARE_ENTRIES = 64,
    /* Who computes and has said nothing for so long has stopped, as far as the others care. */
    FG_CORE_SHARE_SILENT_US = 30000,
    /* Who ended a step so short a time ago is about to begin the next one. */
    FG_CORE_SHARE_PAUSE_US = 300,
};

typedef struct fg_core_share_options {
    const char *directory; /* NULL: /dev/shm */
    const cpu_set_t *cpus; /* that this process may use */
    uint32_t cores;        /* to be had on them; 0 counts as 1 */
    uint32_t threads;      /* that this process has */
    uint32_t rank;         /* who gets the cores that do not divide: the lowest first */
    const fg_clock *clock; /* NULL: the machine's. The same one for all who share */
} fg_core_share_options;

/* What one process that computes wants. */
typedef struct fg_core_claim {
    uint32_t threads;
    uint32_t rank;
} fg_core_claim;

/* FG_AGAIN when there is no memory or all entries are taken, FG_BAD_INPUT when the file cannot be used:
 * the cause is a clause, and the caller goes on without. */
fg_status fg_core_share_open(const fg_core_share_options *options, fg_core_share **share_out,
                             fg_error *err);
void fg_core_share_close(fg_core_share *share);

/* A step begins; the steps of a row have no end between them. Called, as the next two, by one thread. */
void fg_core_share_begin(fg_core_share *share);
/* The last step of a row has ended. */
void fg_core_share_end(fg_core_share *share);
/* How many threads should compute now; also a sign of life. Cheap: for every piece of work. `share` is an
 * fg_core_share (see fg_team_follow). */
uint32_t fg_core_share_width(void *share);

/* What the last call of fg_core_share_width answered (all threads before the first), and the steps that
 * ran, at least in part, on fewer threads than there are. Any thread. */
uint32_t fg_core_share_last_width(const fg_core_share *share);
uint64_t fg_core_share_shared_steps(const fg_core_share *share);

/* The rule: cores for claims[self] when `count` processes want them. Nobody gets more than it wants while
 * another has less than it, and nobody less than 1; what does not divide goes by rank, then by place. */
uint32_t fg_core_share_fair(const fg_core_claim *claims, uint32_t count, uint32_t self,
                            uint32_t cores);

#endif
