/*
 * bus_end - one end of a bus and what it has heard, for the tests of the bus. Each test program includes it once.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_NET_BUS_END_H
#define FORGE_TESTS_UNIT_COMMON_NET_BUS_END_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/net/bus.h"

enum { PEERS = 8 };

/* One end of a bus and what it has heard. */
typedef struct end {
    fg_bus *bus;
    int up, down;
    size_t frames;
    uint32_t last_peer;
    char identity[128];
    char text[64];
    size_t last_size;
    size_t per_peer[FG_LIMIT_WORKERS];
    bool in_order; /* frames are counting uint32 */
    bool echo;
    bool close_on_frame;
} end;

__attribute__((unused)) static void on_up(void *ctx, uint32_t peer, const char *identity)
{
    end *e = ctx;
    e->up++;
    e->last_peer = peer;
    snprintf(e->identity, sizeof e->identity, "%s", identity);
}

__attribute__((unused)) static void on_frame(void *ctx, uint32_t peer, const void *bytes,
                                             size_t size_bytes)
{
    end *e = ctx;
    if (size_bytes == sizeof(uint32_t)) {
        uint32_t number;
        memcpy(&number, bytes, sizeof number);
        e->in_order = e->in_order && number == e->frames;
    }
    e->frames++;
    e->per_peer[peer]++;
    e->last_peer = peer;
    e->last_size = size_bytes;
    snprintf(e->text, sizeof e->text, "%.*s", (int)(size_bytes < 60 ? size_bytes : 60),
             (const char *)bytes);
    if (e->echo) {
        fg_bus_send(e->bus, peer, bytes, size_bytes);
    }
    if (e->close_on_frame) {
        fg_bus_close(e->bus);
        e->bus = NULL;
    }
}

__attribute__((unused)) static void on_down(void *ctx, uint32_t peer)
{
    end *e = ctx;
    e->down++;
    e->last_peer = peer;
}

__attribute__((unused)) static fg_bus_events events_of(end *e)
{
    e->in_order = true;
    return (fg_bus_events){ on_up, on_frame, on_down, e };
}

#endif
