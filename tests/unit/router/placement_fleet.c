#include "tests/unit/router/placement_fleet.h"

#include <string.h>

const fg_place_policy policies[POLICIES] = { FG_PLACE_COST, FG_PLACE_CACHE_ONLY,
                                             FG_PLACE_LEAST_LOADED, FG_PLACE_ROUND_ROBIN,
                                             FG_PLACE_TWO_CHOICES };

void add(fleet *f, const spec *s)
{
    uint32_t i = f->count++;
    double slower = s->slower > 0 ? s->slower : 1;
    fg_speed_claim claim = { 5e6 * slower,  1e5 * slower, 5 * slower,
                             10e6 * slower, 5e5 * slower, 2e5 };
    fg_speed_init(&f->speeds[i], &claim);
    f->speeds[i].prefills = s->unproven ? 0 : 100;
    f->workers[i] = (fg_place_worker){
        .roles = s->roles,
        .can = (s->lacks & NO_LINK ? 0 : FG_PLACE_CAN_LINK) |
               (s->lacks & NO_WHOLE ? 0 : FG_PLACE_CAN_WHOLE),
        .block_count = s->blocks > 0 ? s->blocks : 1000,
        .block_size = 16,
        .context_max = s->context > 0 ? s->context : 16000,
        .max_seqs = s->no_room ? 0 : 8,
        .prefills = s->prefills > 0 ? s->prefills : s->ahead > 0,
        .decodes = s->decodes,
        .prefill_tokens = s->ahead,
        .placed = s->placed,
        .blocks_used = s->used,
        .full = s->full,
        .speed = &f->speeds[i],
    };
    f->hits[i] = (fg_place_hit){ s->hit, s->hit + s->tier };
}

void set_up(fleet *f, const spec *specs, uint32_t count)
{
    memset(f, 0, sizeof *f);
    for (uint32_t i = 0; i < count && specs[i].roles + specs[i].placed > 0; i++) {
        add(f, &specs[i]);
    }
}

fg_place_request ask(const fleet *f, uint32_t prompt, uint32_t answer)
{
    return (fg_place_request){ .prompt_tokens = prompt,
                               .total_tokens = prompt + answer,
                               .answer_tokens = answer,
                               .hits = f->hits };
}
