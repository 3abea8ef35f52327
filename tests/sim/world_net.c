/*
 * Bus and link: how long things take, in which order they come, and what comes twice.
 *
 * The bus is TCP: frames of one connection are not lost and not reordered unless the connection breaks.
 * Those of different connections overtake each other at random. Loss is a full queue, or a cut.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world_internal.h"

enum { SLOWER = 100 };

/* A frame of the bus or an operation of the link under way. */
typedef struct cargo {
    void (*run)(void *arg);
    void (*end)(void *arg); /* bus: frees; link: loses */
    void *arg;
    uint32_t copies; /* deliveries that are still to come */
    bool link;
} cargo;

sim_worker *sim_worker_named(sim_world *w, const char *identity)
{
    for (uint32_t i = 0; i < w->worker_count; i++) {
        const char *name = w->workers[i].process.name;
        size_t length = strlen(name);
        if (strncmp(identity, name, length) == 0 &&
            (identity[length] == '#' || identity[length] == '\0')) {
            return &w->workers[i];
        }
    }
    return NULL;
}

bool sim_queue_full(sim_world *w, sim_worker *s, sim_way way)
{
    if (s->full_until_ns[way] <= sim_now(w)) {
        return false;
    }
    sim_note(w, s->process.name, "queue-full", "way=%s",
             way == SIM_TO_SERVER ? "to-router" : "from-router");
    return true;
}

/* When something sent now arrives at the other end: random, but never before what was sent earlier on
 * the same connection. */
static uint64_t arrival(sim_world *w, sim_worker *s, sim_way way, const char *identity,
                        uint64_t delay_ns)
{
    const char *hash = strchr(identity, '#');
    uint64_t epoch = hash != NULL ? strtoull(hash + 1, NULL, 10) : 0;
    sim_line *line = &s->lines[way][epoch % SIM_LINES];
    if (line->epoch != epoch) {
        *line = (sim_line){ .epoch = epoch };
    }
    uint64_t at = sim_now(w) + delay_ns;
    at = at > line->last_ns ? at : line->last_ns + 1;
    line->last_ns = at;
    return at;
}

static void end_cargo(cargo *c)
{
    if (--c->copies == 0) {
        free(c);
    }
}

/* The event never happens: the world ends. */
static void drop_cargo(void *arg)
{
    cargo *c = arg;
    if (c->copies == 1) {
        c->end(c->arg);
    }
    end_cargo(c);
}

static void fire_cargo(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    if (sim_postponed(w, e)) {
        return;
    }
    cargo *c = e->arg;
    c->run(c->arg);
    if (c->copies == 1 && !c->link) {
        c->end(c->arg);
    }
    end_cargo(c);
}

static cargo *make_cargo(void (*run)(void *arg), void (*end)(void *arg), void *arg, bool link)
{
    cargo *c = malloc(sizeof *c);
    FG_ASSERT(c != NULL);
    *c = (cargo){ .run = run, .end = end, .arg = arg, .copies = 1, .link = link };
    return c;
}

void sim_defer_frame(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                     void (*free_arg)(void *arg), void *arg)
{
    const sim_router *router = ctx;
    sim_world *w = router->world;
    sim_worker *target = sim_worker_named(w, to);
    sim_worker *s = target != NULL ? target : sim_worker_named(w, from);
    sim_way way = target != NULL ? SIM_TO_CLIENT : SIM_TO_SERVER;
    fg_rng *rng = &s->frames[way];
    /* Always the same number of draws: a kind of fault that is off changes no other frame. */
    uint64_t delay = 50000 + sim_below(rng, 2 * SIM_MS);
    uint64_t doubled = sim_below(rng, 10000), late = sim_below(rng, 400 * SIM_MS);
    uint64_t spiked = sim_below(rng, 10000), longer = sim_below(rng, 250 * SIM_MS);
    delay *= s->slow_until_ns > sim_now(w) ? SLOWER : 1;
    if (!w->quiet && spiked < w->spike_rate) {
        sim_count_fault(w, FG_SIM_SPIKE, s->process.name, way == SIM_TO_CLIENT ? "in" : "out");
        delay += longer;
    }
    cargo *c = make_cargo(run, free_arg, arg, false);
    sim_event e = { .at_ns = arrival(w, s, way, target != NULL ? to : from, delay),
                    .fire = fire_cargo,
                    .drop = drop_cargo,
                    .index = target != NULL ? target->index : SIM_ROUTER + router->index,
                    .arg = c };
    if (!w->quiet && doubled < w->double_rate) {
        /* Once in its place, and once more late and out of order. */
        sim_count_fault(w, FG_SIM_DOUBLE, s->process.name, way == SIM_TO_CLIENT ? "in" : "out");
        c->copies++;
        sim_push(w, &e);
        e.at_ns += late;
    }
    sim_push(w, &e);
}

void sim_defer_link(void *ctx, const char *from, const char *to, void (*run)(void *arg),
                    void (*drop)(void *arg), void *arg)
{
    sim_world *w = ctx;
    sim_worker *source = sim_worker_named(w, from);
    FG_ASSERT(source != NULL);
    fg_rng *rng = &source->copies;
    /* Mostly fast; now and then a writer that takes its time. */
    bool long_one = sim_chance(rng, 30);
    uint64_t delay = long_one ? sim_below(rng, 200 * SIM_MS) : 20000 + sim_below(rng, 3 * SIM_MS);
    delay *= source->slow_until_ns > sim_now(w) && !long_one ? SLOWER : 1;
    sim_push(w, &(sim_event){ .at_ns = sim_now(w) + delay,
                              .fire = fire_cargo,
                              .drop = drop_cargo,
                              .index = source->index,
                              .arg = make_cargo(run, drop, arg, true) });
}
