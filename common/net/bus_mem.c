/*
 * The bus inside one process, for the simulator and for standalone mode.
 *
 * A `line` joins one client to the server. Whatever travels on it, frames and news of the line itself,
 * is a packet that goes through `defer`; packets hold a reference to their line, so that a simulator may
 * keep them longer than either end lives. A line has a life number: cutting it begins another life, and
 * frames of an earlier one are lost.
 */
#include "common/net/bus.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/net/bus_internal.h"
#include "common/net/loop.h"

#define NO_PEER UINT32_MAX

static const char server_name[] = "server";

typedef enum packet_kind { TO_SERVER, TO_CLIENT, SERVER_DOWN, CLIENT_DOWN, CLIENT_UP } packet_kind;

typedef struct mem_bus mem_bus;

typedef struct mem_line {
    char identity[FG_BUS_IDENTITY_MAX + 1];
    fg_bus_hub *hub;
    mem_bus *client; /* NULL: closed */
    uint32_t refs;   /* the hub's list and each packet */
    uint64_t life;
    uint64_t cut_life;    /* frames of this and earlier lives are lost */
    uint64_t client_life; /* the life that the client knows of; 0: it is down */
    uint32_t peer;        /* the server's handle, NO_PEER when it knows none */
    uint64_t peer_life;   /* the life that the server knows of */
    bool ended;           /* the client is closed and the server has heard so */
    uint32_t queued[2];   /* frames under way: TO_SERVER, TO_CLIENT */
    struct mem_line *next;
} mem_line;

typedef struct mem_packet {
    mem_line *line;
    packet_kind kind;
    uint64_t life;
    struct mem_packet *next; /* in the hub's own queue */
    size_t size_bytes;
    unsigned char bytes[];
} mem_packet;

struct mem_bus {
    fg_bus base;
    fg_bus_hub *hub;
    mem_line *line; /* client; NULL: this is the server */
};

struct fg_bus_hub {
    fg_bus_hub_options options;
    fg_hook *hook;
    mem_bus *server;
    mem_line *lines;
    mem_line *peers[FG_LIMIT_WORKERS];
    mem_packet *head, *tail; /* the queue used without `defer` */
};

static void unref_line(mem_line *line)
{
    if (--line->refs == 0) {
        fg_mem_free(line);
    }
}

static void free_packet(void *arg)
{
    mem_packet *packet = arg;
    if (packet->kind <= TO_CLIENT) {
        packet->line->queued[packet->kind]--;
    }
    unref_line(packet->line);
    fg_mem_free(packet);
}

static void run_packet(void *arg);

static fg_status post(mem_line *line, packet_kind kind, uint64_t life, const void *bytes,
                      size_t size_bytes)
{
    fg_bus_hub *hub = line->hub;
    mem_packet *packet = fg_mem_alloc(sizeof *packet + size_bytes);
    if (packet == NULL) {
        return FG_AGAIN;
    }
    packet->line = line;
    packet->kind = kind;
    packet->life = life;
    packet->size_bytes = size_bytes;
    if (size_bytes > 0) {
        memcpy(packet->bytes, bytes, size_bytes);
    }
    line->refs++;
    if (kind <= TO_CLIENT) {
        line->queued[kind]++;
    }
    bool to_server = kind == TO_SERVER || kind == SERVER_DOWN;
    if (hub->options.defer != NULL) {
        hub->options.defer(hub->options.ctx, to_server ? line->identity : server_name,
                           to_server ? server_name : line->identity, run_packet, free_packet,
                           packet);
        return FG_OK;
    }
    if (hub->tail != NULL) {
        hub->tail->next = packet;
    } else {
        hub->head = packet;
    }
    hub->tail = packet;
    return FG_OK;
}

/* News of a line must not be lost for lack of memory: the other end would wait for ever. */
static void post_news(mem_line *line, packet_kind kind, uint64_t life)
{
    fg_status status = post(line, kind, life, NULL, 0);
    FG_ASSERT(status == FG_OK, "out of memory");
}

static void forget_peer(mem_line *line)
{
    if (line->peer != NO_PEER) {
        line->hub->peers[line->peer] = NULL;
        line->peer = NO_PEER;
    }
}

static bool give_peer(mem_line *line)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        if (line->hub->peers[i] == NULL) {
            line->hub->peers[i] = line;
            line->peer = i;
            return true;
        }
    }
    return false;
}

static void run_to_server(mem_line *line, mem_packet *packet)
{
    mem_bus *server = line->hub->server;
    if (server == NULL || line->ended || packet->life != line->life) {
        return;
    }
    const fg_bus_events *events = &server->base.events;
    if (line->peer == NO_PEER) {
        if (!give_peer(line)) {
            fg_bus_count_dropped(&server->base, "too many peers");
            return;
        }
        line->peer_life = packet->life;
        events->on_up(events->ctx, line->peer, line->identity);
    }
    /* on_up may have dropped the peer or closed the server. */
    if (line->hub->server == server && line->peer != NO_PEER) {
        events->on_frame(events->ctx, line->peer, packet->bytes, packet->size_bytes);
    }
}

static void run_server_down(mem_line *line, uint64_t life)
{
    mem_bus *server = line->hub->server;
    line->ended = line->client == NULL && life == line->life;
    if (server != NULL && line->peer != NO_PEER && line->peer_life <= life) {
        uint32_t peer = line->peer;
        forget_peer(line);
        server->base.events.on_down(server->base.events.ctx, peer);
    }
}

static void run_client_down(mem_line *line, uint64_t life)
{
    mem_bus *client = line->client;
    if (client == NULL || line->client_life != life) {
        return;
    }
    line->client_life = 0;
    if (line->hub->server != NULL) {
        post_news(line, CLIENT_UP, line->life);
    }
    client->base.events.on_down(client->base.events.ctx, 0);
}

static void run_client_up(mem_line *line, uint64_t life)
{
    mem_bus *client = line->client;
    if (client == NULL || line->hub->server == NULL || line->client_life != 0 ||
        life != line->life) {
        return;
    }
    line->client_life = life;
    client->base.events.on_up(client->base.events.ctx, 0, server_name);
}

static void run_packet(void *arg)
{
    mem_packet *packet = arg;
    mem_line *line = packet->line;
    switch (packet->kind) {
    case TO_SERVER:
        run_to_server(line, packet);
        break;
    case TO_CLIENT:
        if (line->client != NULL && line->client_life == packet->life &&
            packet->life > line->cut_life) {
            const fg_bus_events *events = &line->client->base.events;
            events->on_frame(events->ctx, 0, packet->bytes, packet->size_bytes);
        }
        break;
    case SERVER_DOWN:
        run_server_down(line, packet->life);
        break;
    case CLIENT_DOWN:
        run_client_down(line, packet->life);
        break;
    case CLIENT_UP:
        run_client_up(line, packet->life);
        break;
    }
}

static fg_status mem_send(fg_bus *base, uint32_t peer, const void *bytes, size_t size_bytes)
{
    mem_bus *bus = (mem_bus *)base;
    mem_line *line = bus->line;
    packet_kind kind = TO_SERVER;
    if (line == NULL) {
        line = peer < FG_LIMIT_WORKERS ? bus->hub->peers[peer] : NULL;
        kind = TO_CLIENT;
    }
    if (line == NULL || (bus->line != NULL && peer != 0)) {
        return FG_PEER_LOST;
    }
    if (line->queued[kind] >= FG_LIMIT_BUS_QUEUE) {
        return FG_AGAIN;
    }
    /* What a client sends before it is connected waits for the connection that is being made. */
    uint64_t life = kind == TO_SERVER && line->client_life != 0 ? line->client_life : line->life;
    return post(line, kind, life, bytes, size_bytes);
}

static void mem_drop(fg_bus *base, uint32_t peer)
{
    mem_bus *bus = (mem_bus *)base;
    if (bus->line == NULL && peer < FG_LIMIT_WORKERS && bus->hub->peers[peer] != NULL) {
        forget_peer(bus->hub->peers[peer]);
    }
}

static void begin_life(mem_line *line)
{
    line->life++;
    if (line->client_life != 0) {
        post_news(line, CLIENT_DOWN, line->client_life);
    } else if (line->hub->server != NULL) {
        post_news(line, CLIENT_UP, line->life); /* the one under way names the old life */
    }
}

static void unlink_line(mem_line *gone)
{
    for (mem_line **at = &gone->hub->lines; *at != NULL; at = &(*at)->next) {
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    }
    unref_line(gone);
}

static void mem_close(fg_bus *base)
{
    mem_bus *bus = (mem_bus *)base;
    if (bus->line != NULL) {
        bus->line->client = NULL;
        post_news(bus->line, SERVER_DOWN, bus->line->life);
        unlink_line(bus->line);
    } else {
        bus->hub->server = NULL;
        for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
            if (bus->hub->peers[i] != NULL) {
                forget_peer(bus->hub->peers[i]);
            }
        }
        for (mem_line *line = bus->hub->lines; line != NULL; line = line->next) {
            begin_life(line);
        }
    }
    fg_mem_free(bus);
}

static const char *mem_endpoint(const fg_bus *base)
{
    return "mem";
}

static const fg_bus_ops mem_ops = { mem_send, mem_drop, mem_close, mem_endpoint };

size_t fg_bus_hub_deliver(fg_bus_hub *hub)
{
    /* What these packets cause waits for the next call. */
    mem_packet *packet = hub->head;
    hub->head = NULL;
    hub->tail = NULL;
    size_t count = 0;
    while (packet != NULL) {
        mem_packet *next = packet->next;
        count += packet->kind <= TO_CLIENT;
        run_packet(packet);
        free_packet(packet);
        packet = next;
    }
    return count;
}

static bool deliver_on_loop(void *ctx)
{
    fg_bus_hub *hub = ctx;
    fg_bus_hub_deliver(hub);
    return hub->head != NULL;
}

fg_status fg_bus_hub_create(const fg_bus_hub_options *options, fg_bus_hub **hub_out, fg_error *err)
{
    fg_bus_hub *hub = fg_mem_alloc(sizeof *hub);
    if (hub == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    hub->options = options != NULL ? *options : (fg_bus_hub_options){ 0 };
    if (hub->options.loop != NULL && hub->options.defer == NULL) {
        fg_status status = fg_hook_start(hub->options.loop, deliver_on_loop, hub, &hub->hook);
        if (status != FG_OK) {
            fg_mem_free(hub);
            return fg_fail(err, status, "bus: out of memory");
        }
    }
    *hub_out = hub;
    return FG_OK;
}

void fg_bus_hub_destroy(fg_bus_hub *hub)
{
    if (hub == NULL) {
        return;
    }
    FG_ASSERT(hub->server == NULL && hub->lines == NULL, "a bus of this hub is still open");
    while (hub->head != NULL) {
        mem_packet *next = hub->head->next;
        free_packet(hub->head);
        hub->head = next;
    }
    fg_hook_close(hub->hook);
    fg_mem_free(hub);
}

static mem_bus *make_bus(fg_bus_hub *hub, const fg_bus_events *events)
{
    mem_bus *bus = fg_mem_alloc(sizeof *bus);
    if (bus != NULL) {
        bus->base.ops = &mem_ops;
        bus->base.events = *events;
        bus->hub = hub;
    }
    return bus;
}

fg_status fg_bus_listen_mem(fg_bus_hub *hub, const fg_bus_events *events, fg_bus **bus_out,
                            fg_error *err)
{
    if (hub->server != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "bus: this hub has a server already");
    }
    mem_bus *bus = make_bus(hub, events);
    if (bus == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    hub->server = bus;
    for (mem_line *line = hub->lines; line != NULL; line = line->next) {
        post_news(line, CLIENT_UP, line->life);
    }
    *bus_out = &bus->base;
    return FG_OK;
}

static fg_status make_line(fg_bus_hub *hub, const char *identity, mem_line **line_out,
                           fg_error *err)
{
    if (!fg_bus_identity_valid(identity, strlen(identity))) {
        return fg_fail(err, FG_BAD_INPUT, "bus: identity must be 1 to %d printable characters",
                       FG_BUS_IDENTITY_MAX);
    }
    for (mem_line *line = hub->lines; line != NULL; line = line->next) {
        if (strcmp(line->identity, identity) == 0) {
            return fg_fail(err, FG_BAD_INPUT, "bus: identity %s is in use", identity);
        }
    }
    mem_line *line = fg_mem_alloc(sizeof *line);
    if (line == NULL) {
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    snprintf(line->identity, sizeof line->identity, "%s", identity);
    line->hub = hub;
    line->refs = 1;
    line->life = 1;
    line->peer = NO_PEER;
    *line_out = line;
    return FG_OK;
}

fg_status fg_bus_connect_mem(fg_bus_hub *hub, const char *identity, const fg_bus_events *events,
                             fg_bus **bus_out, fg_error *err)
{
    mem_line *line = NULL;
    fg_status status = make_line(hub, identity, &line, err);
    if (status != FG_OK) {
        return status;
    }
    mem_bus *bus = make_bus(hub, events);
    if (bus == NULL) {
        unref_line(line);
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    bus->line = line;
    line->client = bus;
    if (hub->server != NULL && post(line, CLIENT_UP, line->life, NULL, 0) != FG_OK) {
        unref_line(line);
        fg_mem_free(bus);
        return fg_fail(err, FG_AGAIN, "bus: out of memory");
    }
    line->next = hub->lines;
    hub->lines = line;
    *bus_out = &bus->base;
    return FG_OK;
}

void fg_bus_hub_cut(fg_bus_hub *hub, const char *identity)
{
    for (mem_line *line = hub->lines; line != NULL; line = line->next) {
        if (strcmp(line->identity, identity) == 0) {
            line->cut_life = line->life;
            begin_life(line);
            post_news(line, SERVER_DOWN, line->cut_life);
        }
    }
}
