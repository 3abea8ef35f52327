#include "common/sched/sched.h"

uint32_t fg_sched_admit(const fg_sched_limits *limits, uint32_t running_count, uint32_t free_blocks,
                        const uint32_t *needs, uint32_t waiting_count)
{
    uint32_t admitted = 0;
    while (admitted < waiting_count && running_count + admitted < limits->seqs_max &&
           needs[admitted] <= free_blocks) {
        free_blocks -= needs[admitted];
        admitted++;
    }
    return admitted;
}

uint32_t fg_sched_plan(const fg_sched_limits *limits, const fg_sched_seq *seqs, uint32_t seq_count,
                       fg_plan_item *items_out)
{
    uint32_t budget = limits->step_tokens_max;
    uint32_t count = 0;
    for (uint32_t i = 0; i < seq_count && budget > 0; i++) {
        if (seqs[i].prompt_left == 0) {
            items_out[count++] = (fg_plan_item){ .seq = i, .token_count = 1, .sample = true };
            budget--;
        }
    }
    for (uint32_t i = 0; i < seq_count && budget > 0; i++) {
        uint32_t left = seqs[i].prompt_left;
        if (left == 0) {
            continue;
        }
        uint32_t take = left < limits->chunk_tokens_max ? left : limits->chunk_tokens_max;
        take = take < budget ? take : budget;
        items_out[count++] =
            (fg_plan_item){ .seq = i, .token_count = take, .sample = take == left };
        budget -= take;
    }
    return count;
}
