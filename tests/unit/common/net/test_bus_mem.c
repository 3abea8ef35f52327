/* The bus in memory. */
#include "tests/support/test.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/net/bus.h"
#include "common/net/loop.h"
#include "tests/unit/common/net/bus_end.h"

/* --- in memory --- */

typedef struct mem_world {
    fg_bus_hub *hub;
    end server;
    end clients[PEERS];
} mem_world;

static void open_mem(mem_world *w, const fg_bus_hub_options *options)
{
    fg_error err;
    memset(w, 0, sizeof *w);
    cr_assert_eq(fg_bus_hub_create(options, &w->hub, &err), FG_OK);
    fg_bus_events events = events_of(&w->server);
    cr_assert_eq(fg_bus_listen_mem(w->hub, &events, &w->server.bus, &err), FG_OK);
}

static void join_mem(mem_world *w, int index, const char *identity)
{
    fg_error err;
    fg_bus_events events = events_of(&w->clients[index]);
    cr_assert_eq(fg_bus_connect_mem(w->hub, identity, &events, &w->clients[index].bus, &err), FG_OK,
                 "%s", err.text);
}

static void close_mem(mem_world *w)
{
    for (int i = 0; i < PEERS; i++) {
        fg_bus_close(w->clients[i].bus);
    }
    fg_bus_close(w->server.bus);
    fg_bus_hub_destroy(w->hub);
}

static void settle(mem_world *w)
{
    for (int i = 0; i < 8; i++) {
        fg_bus_hub_deliver(w->hub);
    }
}

Test(bus_mem, frames_wait_for_deliver)
{
    mem_world w;
    open_mem(&w, NULL);
    w.server.echo = true;
    join_mem(&w, 0, "a#1");
    cr_assert_eq(w.clients[0].up, 0);
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "x", 1), FG_OK);
    cr_assert_eq(w.server.frames, 0);
    cr_assert_eq(fg_bus_hub_deliver(w.hub), 1);
    cr_assert_eq(w.clients[0].up, 1);
    cr_assert_eq(w.server.up, 1);
    cr_assert_str_eq(w.server.identity, "a#1");
    cr_assert_eq(w.clients[0].frames, 0, "the echo waits for the next call");
    cr_assert_eq(fg_bus_hub_deliver(w.hub), 1);
    cr_assert_eq(w.clients[0].frames, 1);
    cr_assert_eq(fg_bus_hub_deliver(w.hub), 0);
    close_mem(&w);
}

Test(bus_mem, cut_is_seen_by_both_and_loses_what_was_under_way)
{
    mem_world w;
    open_mem(&w, NULL);
    join_mem(&w, 0, "a#1");
    join_mem(&w, 1, "b#1");
    fg_bus_send(w.clients[0].bus, 0, "1", 1);
    fg_bus_send(w.clients[1].bus, 0, "1", 1);
    settle(&w);
    cr_assert_eq(w.server.up, 2);
    fg_bus_send(w.clients[0].bus, 0, "lost", 4);
    fg_bus_send(w.server.bus, 0, "lost", 4);
    fg_bus_hub_cut(w.hub, "a#1");
    cr_assert_eq(w.server.down, 0, "deferred like frames");
    settle(&w);
    cr_assert_eq(w.server.down, 1);
    cr_assert_eq(w.clients[0].down, 1);
    cr_assert_eq(w.clients[0].frames, 0);
    cr_assert_eq(w.server.frames, 2);
    cr_assert_eq(w.clients[1].down, 0);
    cr_assert_eq(fg_bus_send(w.server.bus, 0, "x", 1), FG_PEER_LOST);
    /* It comes back by itself, as a new peer. */
    cr_assert_eq(w.clients[0].up, 2);
    fg_bus_send(w.clients[0].bus, 0, "again", 5);
    settle(&w);
    cr_assert_eq(w.server.up, 3);
    cr_assert_str_eq(w.server.text, "again");
    close_mem(&w);
}

Test(bus_mem, closed_client_is_down_after_its_last_frames)
{
    mem_world w;
    open_mem(&w, NULL);
    join_mem(&w, 0, "a#1");
    fg_bus_send(w.clients[0].bus, 0, "last", 4);
    fg_bus_close(w.clients[0].bus);
    w.clients[0].bus = NULL;
    settle(&w);
    cr_assert_eq(w.server.frames, 1);
    cr_assert_eq(w.server.down, 1);
    /* The name is free for a new life. */
    join_mem(&w, 1, "a#1");
    fg_bus_send(w.clients[1].bus, 0, "x", 1);
    settle(&w);
    cr_assert_eq(w.server.up, 2);
    close_mem(&w);
}

Test(bus_mem, server_may_come_later_and_come_back)
{
    mem_world w = { 0 };
    fg_error err;
    cr_assert_eq(fg_bus_hub_create(NULL, &w.hub, &err), FG_OK);
    join_mem(&w, 0, "a#1");
    settle(&w);
    cr_assert_eq(w.clients[0].up, 0);
    fg_bus_events events = events_of(&w.server);
    for (int round = 1; round <= 3; round++) {
        cr_assert_eq(fg_bus_listen_mem(w.hub, &events, &w.server.bus, &err), FG_OK);
        settle(&w);
        cr_assert_eq(w.clients[0].up, round);
        fg_bus_send(w.clients[0].bus, 0, "x", 1);
        settle(&w);
        cr_assert_eq(w.server.up, round);
        fg_bus_close(w.server.bus);
        w.server.bus = NULL;
        settle(&w);
        cr_assert_eq(w.clients[0].down, round);
    }
    close_mem(&w);
}

Test(bus_mem, queue_is_bounded_and_doubles_are_refused)
{
    mem_world w;
    fg_error err;
    fg_bus *bus;
    open_mem(&w, NULL);
    join_mem(&w, 0, "a#1");
    fg_bus_events events = events_of(&w.server);
    cr_assert_eq(fg_bus_listen_mem(w.hub, &events, &bus, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_bus_connect_mem(w.hub, "a#1", &events, &bus, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_bus_connect_mem(w.hub, "a 1", &events, &bus, &err), FG_BAD_INPUT);
    for (uint32_t i = 0; i < FG_LIMIT_BUS_QUEUE; i++) {
        cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, &i, sizeof i), FG_OK);
    }
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "x", 1), FG_AGAIN);
    cr_assert_eq(fg_bus_hub_deliver(w.hub), FG_LIMIT_BUS_QUEUE);
    cr_assert(w.server.in_order);
    cr_assert_eq(fg_bus_send(w.clients[0].bus, 0, "x", 1), FG_OK);
    fg_bus_drop(w.server.bus, 0);
    settle(&w);
    cr_assert_eq(w.server.up, 2);
    cr_assert_eq(w.server.down, 0);
    close_mem(&w);
}

/* A simulator that keeps everything, runs it in any order, twice, or never. */
typedef struct kept {
    void (*run)(void *arg);
    void (*free_arg)(void *arg);
    void *arg;
    char from[32], to[32];
} kept;

typedef struct keeper {
    kept items[64];
    int count;
} keeper;

static void keep(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                 void (*free_arg)(void *arg), void *arg)
{
    keeper *k = ctx;
    cr_assert(k->count < 64);
    kept *item = &k->items[k->count++];
    *item = (kept){ run, free_arg, arg, "", "" };
    snprintf(item->from, sizeof item->from, "%s", from);
    snprintf(item->to, sizeof item->to, "%s", to);
}

Test(bus_mem, simulator_may_double_and_keep_frames_past_their_ends)
{
    mem_world w;
    keeper k = { .count = 0 };
    fg_bus_hub_options options = { .defer = keep, .ctx = &k };
    open_mem(&w, &options);
    join_mem(&w, 0, "a#1");
    fg_bus_send(w.clients[0].bus, 0, "x", 1);
    cr_assert_eq(k.count, 2);
    cr_assert_str_eq(k.items[1].from, "a#1");
    cr_assert_str_eq(k.items[1].to, "server");
    k.items[1].run(k.items[1].arg);
    k.items[1].run(k.items[1].arg);
    cr_assert_eq(w.server.frames, 2);
    cr_assert_eq(w.server.up, 1);
    k.items[0].run(k.items[0].arg);
    k.items[0].run(k.items[0].arg);
    cr_assert_eq(w.clients[0].up, 1);
    fg_bus_send(w.server.bus, 0, "y", 1);
    fg_bus_close(w.clients[0].bus);
    w.clients[0].bus = NULL;
    /* The client is gone, the frame for it is not. */
    for (int i = 0; i < k.count; i++) {
        k.items[i].run(k.items[i].arg);
    }
    cr_assert_eq(w.server.down, 1);
    /* After the end is known, late doubles of its frames raise nobody. */
    k.items[1].run(k.items[1].arg);
    cr_assert_eq(w.server.up, 1);
    close_mem(&w);
    for (int i = 0; i < k.count; i++) {
        k.items[i].free_arg(k.items[i].arg);
    }
}

Test(bus_mem, loop_delivers_on_its_next_turn)
{
    mem_world w;
    fg_loop *loop;
    fg_error err;
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    fg_bus_hub_options options = { .loop = loop };
    open_mem(&w, &options);
    w.server.echo = true;
    join_mem(&w, 0, "a#1");
    fg_bus_send(w.clients[0].bus, 0, "x", 1);
    for (int i = 0; i < 4 && w.clients[0].frames == 0; i++) {
        fg_loop_run_once(loop, false);
    }
    cr_assert_eq(w.clients[0].frames, 1);
    close_mem(&w);
    fg_loop_destroy(loop);
}

static bool try_open_mem(void *ctx)
{
    fg_error err;
    fg_bus_hub *hub;
    fg_bus *server = NULL, *client = NULL;
    end e = { 0 };
    fg_bus_events events = events_of(&e);
    fg_bus_hub_options options = { .loop = ctx };
    if (fg_bus_hub_create(&options, &hub, &err) != FG_OK) {
        return false;
    }
    bool good = fg_bus_listen_mem(hub, &events, &server, &err) == FG_OK &&
                fg_bus_connect_mem(hub, "a#1", &events, &client, &err) == FG_OK;
    if (good) {
        fg_fault_arm(0); /* closing has news that must not be lost */
    }
    fg_bus_close(client);
    fg_bus_close(server);
    fg_bus_hub_destroy(hub);
    return good;
}

Test(bus_mem, constructors_survive_every_failure)
{
    fg_loop *loop;
    fg_error err;
    cr_assert_eq(fg_loop_create(&loop, &err), FG_OK);
    int faults = fg_fault_each(try_open_mem, loop);
    cr_assert(faults >= 5, "%d", faults);
    fg_loop_destroy(loop);
}
