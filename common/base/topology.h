/*
 * topology - which processors this process may use and how they lie: which share a core (SMT), a last
 * level cache, a memory node, and how much of them the container's quota leaves. Read once at start from
 * /sys and /proc; values only, nothing is kept open.
 *
 * Nothing here fails: what cannot be read or makes no sense counts as the simple case (each processor a
 * core of its own, all on one node, no quota).
 */
#ifndef FORGE_COMMON_BASE_TOPOLOGY_H
#define FORGE_COMMON_BASE_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"

enum { FG_TOPOLOGY_CPUS_MAX = CPU_SETSIZE };

/* Numbers as the system gives them; a core and a cache are named by their lowest processor. */
typedef struct fg_topology_cpu {
    uint16_t cpu;
    uint16_t core;
    uint16_t cache;
    uint16_t node;
    uint16_t sibling; /* 0: the first processor of its core that may be used, 1: the second, ... */
} fg_topology_cpu;

typedef struct fg_topology {
    uint32_t cpu_count;  /* that this process may use */
    uint32_t core_count; /* that these lie on */
    uint32_t node_count;
    uint32_t
        quota_millicpus; /* of processor time that the container grants; 0: as much as there is */
    /* In the order in which threads should take them: one of each core first, node by node and cache by
     * cache. */
    fg_topology_cpu cpus[FG_TOPOLOGY_CPUS_MAX];
} fg_topology;

/* `root` is put before /sys and /proc: "" but in tests. `allowed` are the processors that may be used;
 * NULL asks the system for those of the calling thread. */
void fg_topology_read(const char *root, const cpu_set_t *allowed, fg_topology *out);

/* A core each, and no more than the quota pays for: threads beyond it are all stopped at once for the
 * rest of each period. At least 1. */
uint32_t fg_topology_thread_count(const fg_topology *topology);
/* "2 cores of 1 node, 4 processors, quota 1.5" */
bool fg_topology_describe(const fg_topology *topology, fg_buf *out);

/* A list as the kernel writes it ("0-3,8", with or without a line end); false, and nothing written, for
 * anything else. The empty list is one too: a node without processors. Numbers beyond CPU_SETSIZE are
 * left out. */
bool fg_topology_parse_list(const char *text, cpu_set_t *out);

#endif
