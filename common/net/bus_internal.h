/*
 * bus_internal - what a back end of the bus provides. For the bus_*.c files only.
 */
#ifndef FORGE_COMMON_NET_BUS_INTERNAL_H
#define FORGE_COMMON_NET_BUS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/net/bus.h"

enum { FG_BUS_IDENTITY_MAX = 96 };

typedef struct fg_bus_ops {
    fg_status (*send)(fg_bus *bus, uint32_t peer, const void *bytes, size_t size_bytes);
    void (*drop)(fg_bus *bus, uint32_t peer);
    void (*close)(fg_bus *bus);
    const char *(*endpoint)(const fg_bus *bus);
} fg_bus_ops;

/* The first member of each back end's object. */
struct fg_bus {
    const fg_bus_ops *ops;
    fg_bus_events events;
    uint64_t dropped;
};

/* Printable ASCII without spaces, 1 to FG_BUS_IDENTITY_MAX bytes: it goes into logs and JSON. */
bool fg_bus_identity_valid(const void *bytes, size_t size_bytes);
/* Counts a refused frame; the log hears of the 1st, 2nd, 4th, ... so that a flood stays quiet. */
void fg_bus_count_dropped(fg_bus *bus, const char *why);

#endif
