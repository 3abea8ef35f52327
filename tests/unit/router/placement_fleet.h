/*
 * placement_fleet - fleets for the tests of placement, written in the few things that matter to a case.
 * A value the test owns.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_PLACEMENT_FLEET_H
#define FORGE_TESTS_UNIT_ROUTER_PLACEMENT_FLEET_H

#include "proto/wire.h"
#include "router/placement.h"

enum { P = FG_ROLE_PREFILL, D = FG_ROLE_DECODE, B = FG_ROLE_PREFILL | FG_ROLE_DECODE };
enum { NO_LINK = 1, NO_WHOLE = 2 };
enum { WORKERS_MAX = 256, CASE_WORKERS = 5 };

/* One worker of a case, in the few things that matter to it; what is left out is idle, able to do
 * everything, and has 1000 blocks of 16 and a batch of 8. */
typedef struct spec {
    uint32_t roles, lacks;
    uint32_t decodes, prefills, ahead; /* ahead: prompt tokens */
    uint32_t used, hit, tier;          /* blocks; tier: beyond the device's */
    uint32_t placed, blocks, context;
    double slower; /* than a token in 0.1 ms, a row in 0.5 ms, a block in 0.2 ms; 0: as fast */
    bool full, unproven;
    uint32_t no_room; /* 1: a batch of 0 */
} spec;

/* A spec of `role`; whatever else matters follows, as in W(P, .ahead = 50). */
#define W(role, ...)                                                                               \
    {                                                                                              \
        .roles = (role), ##__VA_ARGS__                                                             \
    }

typedef struct fleet {
    fg_place_worker workers[WORKERS_MAX];
    fg_speed speeds[WORKERS_MAX];
    fg_place_hit hits[WORKERS_MAX];
    uint32_t count;
} fleet;

enum { POLICIES = 5 };
extern const fg_place_policy policies[POLICIES];

void add(fleet *f, const spec *s);
/* Up to the first spec with neither roles nor `placed`. */
void set_up(fleet *f, const spec *specs, uint32_t count);
fg_place_request ask(const fleet *f, uint32_t prompt, uint32_t answer);

#endif
