/* A model whose output is NaN or infinite at some of the requests: these end, and nobody else hears of it. */
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

static const struct {
    const char *name;
    uint32_t prompt, chunk, answer; /* of the one that meets it; it breaks after 20 tokens */
    uint32_t tokens;                /* that come before */
} breaks[] = {
    { "the first token", 20, 64, 8, 0 },      { "in the answer", 17, 64, 8, 3 },
    { "the last token", 17, 64, 4, 3 },       { "a prompt in chunks", 30, 8, 8, 0 },
    { "right before the end", 16, 64, 4, 4 },
};

Test(worker_broken, a_request_that_the_model_breaks_at_ends_and_the_others_go_on)
{
    for (size_t i = 0; i < 2 * sizeof breaks / sizeof breaks[0]; i++) {
        static rig r;
        size_t c = i / 2;
        rig_open(&r, &(rig_options){ .blocks = 40,
                                     .block_size = 4,
                                     .chunk = breaks[c].chunk,
                                     .breaks_at = 20,
                                     .overlap = i % 2 == 1 });
        rig_request *other = rig_ask(&r, 1, 30, 5, 12);
        rig_request *it = rig_ask(&r, 2, 3, breaks[c].prompt, breaks[c].answer);
        rig_request *later = rig_ask(&r, 3, 3, 9, 8); /* shares the beginning of its prompt */
        rig_run(&r);
        bool breaks_down = breaks[c].tokens < breaks[c].answer;
        cr_assert(it->done && it->broken == breaks_down, "%s", breaks[c].name);
        cr_assert_eq(it->finish, breaks_down ? FG_FINISH_ERROR : FG_FINISH_LENGTH, "%s",
                     breaks[c].name);
        cr_assert_eq(it->count - it->prompt_count, breaks[c].tokens, "%s", breaks[c].name);
        cr_assert(other->finish == FG_FINISH_LENGTH && other->count == 17, "%s", breaks[c].name);
        cr_assert(later->finish == FG_FINISH_LENGTH && later->count == 17, "%s", breaks[c].name);
        cr_assert_eq(rig_stats(&r).broken, breaks_down ? 1u : 0u, "%s", breaks[c].name);
        rig_close(&r);
    }
}
