/*
 * link_mem - links of one process, for tests and the simulator. Owned by one thread.
 *
 * Copies, messages and notices of death from one link to another form a channel: a queue that keeps
 * its order whatever order `defer` runs its items in (an item that is run early waits for those ahead
 * of it). So a copy that the simulator delays also delays the FENCED behind it, as a slow writer does
 * over shared memory. A copy reads its source when it happens, and is in flight until then.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/link/link_core.h"

typedef struct mem_link mem_link;
typedef struct channel channel;

typedef enum item_kind { ITEM_COPY, ITEM_MESSAGE, ITEM_DEATH } item_kind;

typedef struct item {
    channel *channel; /* NULL: taken out; whoever holds it for `defer` only has to free it */
    struct item *next;
    item_kind kind;
    bool due;
    fg_link_message *message;
    fg_ticket *ticket; /* ITEM_COPY */
    uint32_t source_block, target_block;
} item;

/* Exists while it has items. */
struct channel {
    fg_link_hub *hub;
    channel *next, *previous; /* in hub->channels */
    channel *bucket_next;
    uint64_t from, to; /* link ids */
    item *first, *last;
};

/* Memory of a link that is closed, which somebody holds: as of a dead process whose segment is still mapped. */
typedef struct grave {
    struct grave *next;
    void *arena;
    size_t arena_bytes;
} grave;

/* Hundreds of links make thousands of channels, looked up for each block that is copied. */
enum { BUCKETS = 1024 };

struct fg_link_hub {
    fg_link_hub_options options;
    mem_link *links;
    grave *graves;
    channel *channels;
    mem_link *link_buckets[BUCKETS]; /* by id */
    channel *channel_buckets[BUCKETS];
};

struct mem_link {
    fg_link base;
    fg_link_hub *hub;
    mem_link *next, *bucket_next;
    char *name;
    uint64_t epoch;
    size_t arena_bytes;
    grave *grave; /* where its arena goes if it is held; taken at open, for closing cannot fail */
};

static size_t link_bucket(uint64_t id)
{
    return fg_hash_mix(id) % BUCKETS;
}

static size_t channel_bucket(uint64_t from, uint64_t to)
{
    return fg_hash_mix(fg_hash_mix(from) + to) % BUCKETS;
}

static mem_link *find_link(const fg_link_hub *hub, uint64_t id)
{
    mem_link *link = hub->link_buckets[link_bucket(id)];
    while (link != NULL && link->base.id != id) {
        link = link->bucket_next;
    }
    return link;
}

static mem_link *find_live(const fg_link_hub *hub, uint64_t id)
{
    mem_link *link = find_link(hub, id);
    return link != NULL && !link->base.dead ? link : NULL;
}

/* --- channels --- */

static fg_link_peer *peer_of(mem_link *link, uint64_t id)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        if (link->base.peers[i] != NULL && link->base.peers[i]->link_id == id &&
            link->base.peers[i]->state == FG_LINK_PEER_UP) {
            return link->base.peers[i];
        }
    }
    return NULL;
}

static void free_item(item *it)
{
    fg_link_message_free(it->message);
    fg_mem_free(it);
}

static void execute(fg_link_hub *hub, uint64_t from_id, uint64_t to_id, item *it)
{
    mem_link *from = find_live(hub, from_id);
    mem_link *to = find_live(hub, to_id);
    switch (it->kind) {
    case ITEM_COPY:
        if (to != NULL) {
            size_t size = to->base.block_bytes;
            memcpy(to->base.arena + it->target_block * size,
                   from->base.arena + it->source_block * size, size);
        }
        fg_link_op_done(&from->base, it->ticket, 1);
        break;
    case ITEM_MESSAGE:
        if (to != NULL) {
            fg_link_got_message(&to->base, it->message->bytes, it->message->size_bytes);
        }
        break;
    case ITEM_DEATH:
        for (uint32_t i = 0; to != NULL && i < FG_LIMIT_WORKERS; i++) {
            fg_link_peer *peer = to->base.peers[i];
            if (peer != NULL && peer->link_id == from_id && !peer->exited) {
                fg_link_peer_exited(&to->base, peer);
            }
        }
        break;
    }
}

static void take_out(channel *ch, item *it)
{
    item **place = &ch->first;
    item *before = NULL;
    while (*place != it) {
        before = *place;
        place = &before->next;
    }
    *place = it->next;
    if (ch->last == it) {
        ch->last = before;
    }
    it->channel = NULL;
    it->next = NULL;
}

static void free_if_empty(channel *ch)
{
    if (ch->first != NULL) {
        return;
    }
    *(ch->previous != NULL ? &ch->previous->next : &ch->hub->channels) = ch->next;
    if (ch->next != NULL) {
        ch->next->previous = ch->previous;
    }
    channel **place = &ch->hub->channel_buckets[channel_bucket(ch->from, ch->to)];
    while (*place != ch) {
        place = &(*place)->bucket_next;
    }
    *place = ch->bucket_next;
    fg_mem_free(ch);
}

static channel *open_channel(fg_link_hub *hub, uint64_t from, uint64_t to)
{
    channel **bucket = &hub->channel_buckets[channel_bucket(from, to)];
    channel *ch = *bucket;
    while (ch != NULL && (ch->from != from || ch->to != to)) {
        ch = ch->bucket_next;
    }
    if (ch != NULL || (ch = fg_mem_alloc(sizeof *ch)) == NULL) {
        return ch;
    }
    *ch = (channel){
        .hub = hub, .from = from, .to = to, .next = hub->channels, .bucket_next = *bucket
    };
    if (ch->next != NULL) {
        ch->next->previous = ch;
    }
    hub->channels = ch;
    *bucket = ch;
    return ch;
}

/* Both ends may have events now; without `defer`, either of them moves the channel in its turn. */
static void stir_ends(const channel *ch)
{
    mem_link *from = find_live(ch->hub, ch->from);
    mem_link *to = find_live(ch->hub, ch->to);
    if (from != NULL) {
        fg_link_stir(&from->base);
    }
    if (to != NULL) {
        fg_link_stir(&to->base);
    }
}

/* Lets everything happen that is due and has nothing ahead of it. */
static void pump(channel *ch)
{
    while (ch->first != NULL && ch->first->due) {
        item *it = ch->first;
        take_out(ch, it);
        execute(ch->hub, ch->from, ch->to, it);
        free_item(it);
        stir_ends(ch);
    }
    free_if_empty(ch);
}

static void run_item(void *arg)
{
    item *it = arg;
    if (it->channel == NULL) {
        free_item(it);
        return;
    }
    it->due = true;
    pump(it->channel);
}

/* A copy or message that never arrives has broken the connection; a death cannot be lost. */
static void drop_item(void *arg)
{
    item *it = arg;
    channel *ch = it->channel;
    if (ch == NULL || it->kind == ITEM_DEATH) {
        run_item(it);
        return;
    }
    mem_link *from = find_live(ch->hub, ch->from);
    take_out(ch, it);
    if (from != NULL) {
        fg_link_peer *peer = peer_of(from, ch->to);
        if (peer != NULL) {
            fg_link_peer_broken(&from->base, peer, "the hub dropped what was sent");
        }
        if (it->kind == ITEM_COPY) {
            fg_link_op_done(&from->base, it->ticket, 1);
        }
    }
    free_item(it);
    pump(ch);
}

/* Takes ownership of the item. False: out of memory, the item is freed. */
static bool enqueue(fg_link_hub *hub, uint64_t from_id, uint64_t to_id, item *it)
{
    channel *ch = open_channel(hub, from_id, to_id);
    if (ch == NULL) {
        free_item(it);
        return false;
    }
    it->channel = ch;
    if (ch->last != NULL) {
        ch->last->next = it;
    } else {
        ch->first = it;
    }
    ch->last = it;
    if (hub->options.defer == NULL) {
        it->due = true;
        stir_ends(ch);
        return true;
    }
    const mem_link *from = find_link(hub, from_id);
    const mem_link *to = find_link(hub, to_id);
    hub->options.defer(hub->options.ctx, from != NULL ? from->name : "", to != NULL ? to->name : "",
                       run_item, drop_item, it);
    return true;
}

/* --- the port --- */

static bool mem_describe(const fg_link *base, fg_buf *out)
{
    fg_link_record record = {
        .link_id = base->id,
        .block_bytes = base->block_bytes,
        .block_count = base->block_count,
    };
    return fg_link_record_encode(&record, out);
}

static fg_status mem_open_peer(fg_link *base, const fg_link_record *record, const char *name,
                               uint64_t epoch, fg_link_peer **peer_out, fg_error *err)
{
    mem_link *link = (mem_link *)base;
    fg_link_peer *peer = fg_mem_alloc(sizeof *peer);
    if (peer == NULL) {
        return fg_fail(err, FG_AGAIN, "link peer %s: out of memory", name);
    }
    peer->writes_here = true;
    peer->exited = find_live(link->hub, record->link_id) == NULL;
    *peer_out = peer;
    return FG_OK;
}

static void mem_close_peer(fg_link *base, fg_link_peer *peer)
{
    fg_link_peer_closed(base, peer);
}

static void mem_free_peer(fg_link *base, fg_link_peer *peer)
{
    fg_mem_free(peer);
}

static void mem_put(fg_link *base, fg_ticket *ticket, uint32_t first_index,
                    const uint32_t *source_blocks, const uint32_t *target_blocks, uint32_t count)
{
    mem_link *link = (mem_link *)base;
    fg_link_peer *peer = ticket->peer;
    for (uint32_t i = 0; i < count; i++) {
        item *it = fg_mem_alloc(sizeof *it);
        if (it != NULL) {
            *it = (item){
                .kind = ITEM_COPY,
                .ticket = ticket,
                .source_block = source_blocks[i],
                .target_block = target_blocks[i],
            };
        }
        ticket->in_flight++;
        peer->flight_blocks++;
        base->stats.pushed_runs++;
        if (it == NULL || !enqueue(link->hub, base->id, peer->link_id, it)) {
            fg_link_peer_broken(base, peer, "out of memory for a copy");
            fg_link_op_done(base, ticket, 1);
            return;
        }
    }
}

static void *mem_arena(const fg_link *base, const fg_link_peer *peer)
{
    mem_link *to = find_live(((const mem_link *)base)->hub, peer->link_id);
    return to != NULL ? to->base.arena : NULL;
}

/* The channel keeps order, and a copy is in flight until it has happened: nothing is left to do. */
static void mem_flush(fg_link *base, fg_ticket *ticket)
{
    ticket->in_flight++;
    fg_link_op_done(base, ticket, 0);
}

static void mem_send(fg_link *base, fg_link_peer *peer, fg_link_message *message)
{
    mem_link *link = (mem_link *)base;
    item *it = fg_mem_alloc(sizeof *it);
    if (it == NULL) {
        fg_link_message_free(message);
        fg_link_peer_broken(base, peer, "out of memory for a message");
        return;
    }
    *it = (item){ .kind = ITEM_MESSAGE, .message = message };
    if (!enqueue(link->hub, base->id, peer->link_id, it)) {
        fg_link_peer_broken(base, peer, "out of memory for a message");
    }
}

static bool mem_progress(fg_link *base)
{
    fg_link_hub *hub = ((mem_link *)base)->hub;
    if (hub->options.defer != NULL) {
        return false;
    }
    /* A pump may free its channel and open others: begin again after each. */
    channel *ch = hub->channels;
    while (ch != NULL) {
        if (ch->from == base->id || ch->to == base->id) {
            pump(ch);
            ch = hub->channels;
        } else {
            ch = ch->next;
        }
    }
    return false;
}

static const char *mem_transport(const fg_link *base, const fg_link_peer *peer)
{
    return "mem";
}

/* Its copies never happen; messages it had sent may still arrive, then the notice of its death. */
static void kill_link(mem_link *link)
{
    fg_link_hub *hub = link->hub;
    link->base.dead = true;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        if (link->base.peers[i] != NULL) {
            link->base.peers[i]->state = FG_LINK_PEER_BROKEN; /* calls to it change nothing more */
            link->base.peers[i]->mute = true;
        }
    }
    channel *next;
    for (channel *ch = hub->channels; ch != NULL; ch = next) {
        next = ch->next;
        item *after;
        for (item *it = ch->first; it != NULL && ch->from == link->base.id; it = after) {
            after = it->next;
            if (it->kind == ITEM_COPY) {
                take_out(ch, it);
                if (hub->options.defer == NULL || it->due) {
                    free_item(it); /* nobody else holds it: its time had come already */
                }
            }
        }
        if (ch->from == link->base.id) {
            pump(ch);
        }
    }
    for (mem_link *other = hub->links; other != NULL; other = other->next) {
        item *it = other->base.dead ? NULL : fg_mem_alloc(sizeof *it);
        if (it != NULL) {
            it->kind = ITEM_DEATH;
            enqueue(hub, link->base.id, other->base.id, it);
        }
    }
}

static bool is_held(const fg_link_hub *hub, uint64_t id)
{
    bool held = false;
    for (const mem_link *link = hub->links; link != NULL; link = link->next) {
        for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
            const fg_link_peer *peer = link->base.peers[i];
            held = held || (peer != NULL && peer->link_id == id && peer->holds > 0);
        }
    }
    return held;
}

static void give_arena(mem_link *link)
{
    grave *kept = link->grave;
    if (!is_held(link->hub, link->base.id)) {
        fg_mem_unmap(link->base.arena, link->arena_bytes);
        fg_mem_free(kept);
        return;
    }
    *kept = (grave){ .next = link->hub->graves,
                     .arena = link->base.arena,
                     .arena_bytes = link->arena_bytes };
    link->hub->graves = kept;
}

static void mem_close(fg_link *base)
{
    mem_link *link = (mem_link *)base;
    if (!base->dead) {
        kill_link(link);
    }
    mem_link **place = &link->hub->links;
    while (*place != link) {
        place = &(*place)->next;
    }
    *place = link->next;
    place = &link->hub->link_buckets[link_bucket(base->id)];
    while (*place != link) {
        place = &(*place)->bucket_next;
    }
    *place = link->bucket_next;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_mem_free(base->peers[i]);
    }
    fg_link_core_deinit(base);
    give_arena(link);
    fg_mem_free(link->name);
    fg_mem_free(link);
}

static const fg_link_port mem_port = {
    .describe = mem_describe,
    .open_peer = mem_open_peer,
    .close_peer = mem_close_peer,
    .free_peer = mem_free_peer,
    .put = mem_put,
    .arena = mem_arena,
    .flush = mem_flush,
    .send = mem_send,
    .progress = mem_progress,
    .transport = mem_transport,
    .idle = NULL,
    .close = mem_close,
};

/* --- public --- */

fg_link_hub *fg_link_hub_create(const fg_link_hub_options *options)
{
    fg_link_hub *hub = fg_mem_alloc(sizeof *hub);
    if (hub != NULL && options != NULL) {
        hub->options = *options;
    }
    return hub;
}

void fg_link_hub_destroy(fg_link_hub *hub)
{
    if (hub == NULL) {
        return;
    }
    FG_ASSERT(hub->links == NULL, "links of the hub are open");
    while (hub->graves != NULL) {
        grave *kept = hub->graves;
        hub->graves = kept->next;
        fg_mem_unmap(kept->arena, kept->arena_bytes);
        fg_mem_free(kept);
    }
    while (hub->channels != NULL) {
        channel *ch = hub->channels;
        while (ch->first != NULL) {
            item *it = ch->first;
            take_out(ch, it);
            if (hub->options.defer == NULL || it->due) {
                free_item(it);
            }
        }
        free_if_empty(ch);
    }
    fg_mem_free(hub);
}

fg_status fg_link_open_mem(fg_link_hub *hub, const char *name, uint64_t epoch,
                           const fg_link_options *options, fg_link **link_out, fg_error *err)
{
    size_t arena_bytes;
    if (options->block_count == 0 || options->block_count > FG_LIMIT_BLOCKS ||
        options->block_bytes == 0 ||
        __builtin_mul_overflow(options->block_bytes, (size_t)options->block_count, &arena_bytes)) {
        return fg_fail(err, FG_BAD_INPUT, "link: %u blocks of %zu bytes", options->block_count,
                       options->block_bytes);
    }
    uint64_t id = fg_hash64(name, strlen(name), epoch);
    id = id != 0 ? id : 1;
    if (find_link(hub, id) != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "link: %s is open in this hub already", name);
    }
    mem_link *link = fg_mem_alloc(sizeof *link);
    if (link == NULL) {
        return fg_fail(err, FG_AGAIN, "link: out of memory");
    }
    link->hub = hub;
    link->epoch = epoch;
    link->arena_bytes = arena_bytes;
    link->base.id = id;
    fg_status status = FG_AGAIN;
    link->name = fg_mem_strdup(name);
    link->base.arena = fg_mem_map(arena_bytes);
    link->grave = fg_mem_alloc(sizeof *link->grave);
    if (link->name == NULL || link->base.arena == NULL || link->grave == NULL) {
        fg_fail(err, FG_AGAIN, "link: no memory for an arena of %zu bytes", arena_bytes);
        goto free_link;
    }
    status = fg_link_core_init(&link->base, &mem_port, options, err);
    if (status != FG_OK) {
        goto free_link;
    }
    link->next = hub->links;
    hub->links = link;
    link->bucket_next = hub->link_buckets[link_bucket(id)];
    hub->link_buckets[link_bucket(id)] = link;
    *link_out = &link->base;
    return FG_OK;

free_link:
    fg_mem_unmap(link->base.arena, arena_bytes);
    fg_mem_free(link->grave);
    fg_mem_free(link->name);
    fg_mem_free(link);
    return status;
}

void fg_link_hub_kill(fg_link_hub *hub, const char *name, uint64_t epoch)
{
    for (mem_link *link = hub->links; link != NULL; link = link->next) {
        if (!link->base.dead && link->epoch == epoch && strcmp(link->name, name) == 0) {
            kill_link(link);
            return;
        }
    }
}
