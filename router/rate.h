/*
 * rate - how many of something come for each second of a clock that its owner lets run: recent ones weigh most.
 * Pure: totals and times go in.
 *
 * A clock that stands while nobody is served gives the rate at which a line gets shorter, however long the hours were
 * in which nobody asked. What comes seldom is seen too: a look without news changes nothing until a minute has passed.
 */
#ifndef FORGE_ROUTER_RATE_H
#define FORGE_ROUTER_RATE_H

#include <stdint.h>

#define FG_RATE_LEAST_NS 1000000000ull  /* between two measurements */
#define FG_RATE_MOST_NS  60000000000ull /* in which nothing came: that is one as well */

typedef struct fg_rate {
    double per_second;     /* 0: not known */
    uint64_t total, at_ns; /* at the last measurement */
} fg_rate;

/* So many have come in all, up to at_ns. */
void fg_rate_look(fg_rate *rate, uint64_t total, uint64_t at_ns);

#endif
