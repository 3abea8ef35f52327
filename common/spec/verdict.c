#include "common/spec/verdict.h"

fg_verdict fg_verdict_exact(const uint32_t *draft, uint32_t draft_count, const uint32_t *choices,
                            const fg_ends *ends)
{
    fg_verdict verdict = { .accepted = 0 };
    while (verdict.emitted <= draft_count && !verdict.rejected && !verdict.ended) {
        uint32_t token = choices[verdict.emitted];
        if (verdict.emitted < draft_count) {
            verdict.rejected = draft[verdict.emitted] != token;
            verdict.accepted += !verdict.rejected;
        }
        verdict.emitted++;
        verdict.ended = fg_ends_has(ends, token);
    }
    return verdict;
}
