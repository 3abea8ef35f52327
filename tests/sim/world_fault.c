/*
 * Faults: each kind comes at times of its own, from a stream of its own, so that one kind that is left
 * out changes none of the others.
 */
#include <stdio.h>

#include "tests/sim/world_internal.h"

/* `breaks`: a request may fail of it. The others must not cost anybody an answer. */
static const struct {
    const char *name;
    bool breaks, timed;
    uint32_t gap_ms; /* on average, at the most often */
} kinds[FG_SIM_FAULT_COUNT] = {
    [FG_SIM_CRASH] = { "crash", true, true, 300 },
    [FG_SIM_RESTART] = { "restart", true, true, 400 },
    [FG_SIM_FREEZE] = { "freeze", true, true, 300 },
    [FG_SIM_CUT] = { "cut", true, true, 300 },
    [FG_SIM_FLIP] = { "flip", true, true, 30 },
    [FG_SIM_DOUBLE] = { "double", false, false, 0 },
    [FG_SIM_SPIKE] = { "spike", true, false, 0 },
    [FG_SIM_FULL] = { "full", true, true, 300 },
    [FG_SIM_SLOW] = { "slow", true, true, 400 },
    [FG_SIM_TIGHT] = { "tight", false, false, 0 },
    [FG_SIM_ROUTER] = { "router", true, true, 700 },
    [FG_SIM_JUMP] = { "jump", true, true, 300 },
    [FG_SIM_ALLOC] = { "alloc", true, true, 100 },
    [FG_SIM_DRAIN] = { "drain", true, true, 500 },
};

const char *fg_sim_fault_name(fg_sim_fault fault)
{
    return (unsigned)fault < FG_SIM_FAULT_COUNT ? kinds[fault].name : "?";
}

void sim_count_fault(sim_world *w, fg_sim_fault fault, const char *who, const char *detail)
{
    w->report->faults[fault]++;
    w->may_fail = w->may_fail || kinds[fault].breaks;
    sim_note(w, who, "fault", "kind=%s %s", kinds[fault].name, detail);
}

/* ---- what happens to whom ---- */

static void fire_restart(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    if (!w->workers[e->index].alive) {
        sim_start_worker(w, &w->workers[e->index]);
    }
}

static void stop_for(sim_world *w, sim_worker *s, uint64_t gap_ns)
{
    sim_stop_worker(w, s);
    sim_push(w,
             &(sim_event){ .at_ns = sim_now(w) + gap_ns, .fire = fire_restart, .index = s->index });
}

static void fire_router_restart(void *ctx, const sim_event *e)
{
    sim_start_router(&((sim_world *)ctx)->routers[e->index - SIM_ROUTER]);
}

static void stop_router(sim_world *w, sim_router *router, uint64_t gap_ns)
{
    if (router->dispatch == NULL) {
        return;
    }
    sim_count_fault(w, FG_SIM_ROUTER, router->process.name, "");
    sim_stop_router(router);
    sim_push(w, &(sim_event){ .at_ns = sim_now(w) + gap_ns,
                              .fire = fire_router_restart,
                              .index = SIM_ROUTER + router->index });
}

/* Asked to go: stops when it has nothing left to do, or its time is up. */
static void fire_drained(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    sim_worker *s = &w->workers[e->index];
    if (!s->alive || !s->draining || s->life != (uintptr_t)e->arg) {
        return;
    }
    if (fg_worker_idle(s->worker) || sim_now(w) >= s->drain_until_ns) {
        stop_for(w, s, 50 * SIM_MS);
        return;
    }
    sim_event again = *e;
    again.at_ns = sim_now(w) + 20 * SIM_MS;
    sim_push(w, &again);
}

static void drain(sim_world *w, sim_worker *s)
{
    if (s->draining) {
        return;
    }
    sim_count_fault(w, FG_SIM_DRAIN, s->process.name, "");
    s->draining = true;
    s->drain_until_ns = sim_now(w) + 1000 * SIM_MS;
    sim_enter(w, &s->process);
    fg_worker_drain(s->worker);
    sim_leave(w, &s->process);
    sim_push(w, &(sim_event){ .at_ns = sim_now(w) + 20 * SIM_MS,
                              .fire = fire_drained,
                              .arg = (void *)(uintptr_t)s->life,
                              .index = s->index });
}

/* To one of the routers. */
static void cut(sim_world *w, sim_worker *s, uint64_t draw)
{
    const sim_door *door = &s->doors[draw % w->router_count];
    char identity[40];
    sim_count_fault(w, FG_SIM_CUT, s->process.name, "");
    w->cuts++;
    snprintf(identity, sizeof identity, "%s#%llu", s->process.name,
             (unsigned long long)door->epoch);
    fg_bus_hub_cut(w->routers[door->router].hub, identity);
}

/* In a block that somebody writes, or has written and that was not checked yet, damage must be found. Others are nobody's to
 * check. */
static void flip_a_bit(sim_world *w, sim_worker *s, fg_rng rng)
{
    for (int tries = 0; tries < 16; tries++) {
        uint32_t block = (uint32_t)sim_below(&rng, s->block_count);
        if (fg_worker_is_arriving(s->worker, block)) {
            unsigned char *bytes = (unsigned char *)s->arena + block * w->layout.block_bytes;
            bytes[sim_below(&rng, w->layout.block_bytes)] ^=
                (unsigned char)(1u << sim_below(&rng, 8));
            char detail[32];
            snprintf(detail, sizeof detail, "block=%u", block);
            sim_count_fault(w, FG_SIM_FLIP, s->process.name, detail);
            return;
        }
    }
}

static void hit_worker(sim_world *w, fg_sim_fault kind, sim_worker *s, uint64_t draw)
{
    fg_rng rng = { draw }; /* the kind's own stream moves by the same steps whatever is hit */
    uint64_t now = sim_now(w);
    if (!s->alive || s->process.frozen_until_ns > now) {
        return;
    }
    switch (kind) {
    case FG_SIM_CRASH:
        sim_count_fault(w, kind, s->process.name, "");
        stop_for(w, s, sim_below(&rng, 400 * SIM_MS));
        break;
    case FG_SIM_RESTART:
        sim_count_fault(w, kind, s->process.name, "");
        sim_stop_worker(w, s);
        sim_start_worker(w, s);
        break;
    case FG_SIM_CUT:
        cut(w, s, draw);
        break;
    case FG_SIM_FLIP:
        flip_a_bit(w, s, rng);
        break;
    case FG_SIM_FULL: {
        sim_way way = (sim_way)sim_below(&rng, SIM_WAYS);
        sim_count_fault(w, kind, s->process.name, way == SIM_TO_CLIENT ? "in" : "out");
        s->full_until_ns[way] = now + sim_below(&rng, 60 * SIM_MS);
        break;
    }
    case FG_SIM_SLOW:
        sim_count_fault(w, kind, s->process.name, "");
        s->slow_until_ns = now + 100 * SIM_MS + sim_below(&rng, 900 * SIM_MS);
        break;
    case FG_SIM_DRAIN:
        drain(w, s);
        break;
    default:
        FG_ASSERT(false, "fault %d is not a worker's", (int)kind);
    }
}

static void hit_process(sim_world *w, fg_sim_fault kind, sim_process *p, uint64_t draw)
{
    fg_rng rng = { draw };
    uint64_t now = sim_now(w);
    if (p->frozen_until_ns > now) {
        return;
    }
    if (kind == FG_SIM_FREEZE) {
        sim_count_fault(w, kind, p->name, "");
        p->frozen_until_ns = now + sim_below(&rng, 900 * SIM_MS);
    } else if (kind == FG_SIM_JUMP) {
        sim_count_fault(w, kind, p->name, "");
        p->halted_until_ns = now + sim_below(&rng, 1200 * SIM_MS);
    } else {
        /* Counted when it has failed; until then the next turns are tried. */
        p->fail_nth = 1 + (uint32_t)sim_below(&rng, 6);
    }
}

static void fire_fault(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    fg_sim_fault kind = (fg_sim_fault)e->index;
    fg_rng *rng = &w->fault_rngs[kind];
    if (w->quiet) {
        return;
    }
    uint64_t target = fg_rng_next(rng), draw = fg_rng_next(rng);
    uint64_t gap = sim_below(rng, 2 * w->fault_gaps_ns[kind]);
    sim_router *router = &w->routers[(target >> 8) % w->router_count];
    if (kind == FG_SIM_ROUTER) {
        stop_router(w, router, draw % (400 * SIM_MS));
    } else if (kind == FG_SIM_FREEZE || kind == FG_SIM_JUMP || kind == FG_SIM_ALLOC) {
        /* A router in one of four. */
        hit_process(w, kind,
                    target >> 60 < 4 ? &router->process
                                     : &w->workers[target % w->worker_count].process,
                    draw);
    } else {
        hit_worker(w, kind, &w->workers[target % w->worker_count], draw);
    }
    sim_event next = *e;
    next.at_ns = sim_now(w) + 5 * SIM_MS + gap;
    sim_push(w, &next);
}

/* ---- what a seed draws ---- */

void sim_plan_faults(sim_world *w)
{
    bool none = w->options.seed % 2 == 1 && !w->options.forced;
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        fg_rng *rng = &w->fault_rngs[kind];
        *rng = sim_rng(w, SIM_STREAM_FAULT, kind, 0);
        bool drawn = sim_chance(rng, 500);
        /* From as often as the table says to a quarter of that. */
        uint64_t slower = 1 + sim_below(rng, 4);
        w->fault_gaps_ns[kind] = kinds[kind].gap_ms * slower * SIM_MS;
        if (none || (!drawn && !w->options.forced) || (w->options.faults >> kind & 1) == 0) {
            continue;
        }
        w->enabled |= 1u << kind;
        uint64_t at = 50 * SIM_MS + sim_below(rng, 2 * w->fault_gaps_ns[kind]);
        w->double_rate = kind == FG_SIM_DOUBLE ? 800 / (uint32_t)slower : w->double_rate;
        w->spike_rate = kind == FG_SIM_SPIKE ? 400 / (uint32_t)slower : w->spike_rate;
        if (kinds[kind].timed) {
            sim_push(w, &(sim_event){ .at_ns = at, .fire = fire_fault, .index = kind });
        } else if (kind == FG_SIM_TIGHT) {
            for (uint32_t i = 0; i < w->worker_count; i++) {
                w->workers[i].block_count = 12 + w->workers[i].block_count / 8;
                sim_count_fault(w, FG_SIM_TIGHT, w->workers[i].process.name, "");
            }
        }
    }
}
