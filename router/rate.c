#include "router/rate.h"

#define NEWEST 0.2 /* the weight of the last measurement */

void fg_rate_look(fg_rate *rate, uint64_t total, uint64_t at_ns)
{
    uint64_t passed = at_ns - rate->at_ns;
    if (passed < (total > rate->total ? FG_RATE_LEAST_NS : FG_RATE_MOST_NS)) {
        return;
    }
    double now = (double)(total - rate->total) * 1e9 / (double)passed;
    rate->per_second =
        rate->per_second > 0.0 ? rate->per_second * (1.0 - NEWEST) + now * NEWEST : now;
    rate->total = total;
    rate->at_ns = at_ns;
}
