#include "common/engine/calibrate.h"

#include "common/base/dtype.h"
#include "common/engine/engine_sim.h"
#include "tests/support/test.h"

enum { BLOCKS = 200, BLOCK_SIZE = 4 };

/* What the simulated engine takes is what is measured. */
static fg_calibration measure_slow(uint32_t block_count, uint32_t context_max, uint64_t budget_ns,
                                   uint64_t slower, bool is_alone)
{
    fg_engine_limits limits = { .step_tokens_max = 64,
                                .step_seqs_max = 8,
                                .context_max = context_max };
    fg_kv_layout layout;
    cr_assert_eq(fg_kv_layout_init(&layout, 1, 1, 8, BLOCK_SIZE, FG_F16, NULL), FG_OK);
    void *arena = calloc(block_count, layout.block_bytes);
    fg_engine_sim_options options = {
        .layout = layout,
        .arena = arena,
        .block_count = block_count,
        .limits = limits,
        .vocab_size = 100,
        .eos_token = UINT32_MAX,
        .quick = true,
        .step_ns = { .base = 1000000 * slower, .prefill_token = 500000, .decode_row = 20000 },
    };
    fg_engine *engine;
    fg_calibration c;
    cr_assert_eq(fg_engine_open_sim(&options, &engine, NULL), FG_OK);
    fg_calibrate_options calibrate = { .engine = engine,
                                       .layout = layout,
                                       .arena = arena,
                                       .block_count = block_count,
                                       .limits = limits,
                                       .vocab_size = 100,
                                       .budget_ns = budget_ns,
                                       .is_alone = is_alone };
    cr_assert_eq(fg_engine_calibrate(&calibrate, &c, NULL), FG_OK);
    fg_engine_close(engine);
    free(arena);
    return c;
}

static fg_calibration measure(uint32_t block_count, uint32_t context_max, uint64_t budget_ns)
{
    return measure_slow(block_count, context_max, budget_ns, 1, false);
}

Test(calibrate, measures_what_steps_take)
{
    fg_calibration c = measure(BLOCKS, 1024, 1000000000);
    cr_assert_eq(c.step_ns_base, 1000000u);
    cr_assert_eq(c.step_ns_per_row, 20000u);
    cr_assert_eq(c.prefill_ns_base, 1000000u);
    cr_assert_eq(c.prefill_ns_per_token, 500000u);
    cr_assert_gt(c.copy_ns_per_block, 0u);
}

Test(calibrate, leaves_out_what_does_not_fit)
{
    fg_calibration c = measure(2, 1024, 1000000000);
    cr_assert_eq(c.step_ns_per_row, 0u, "four sequences need four blocks");
    cr_assert_eq(c.prefill_ns_per_token, 0u);
    cr_assert_eq(c.step_ns_base, 1020000u);
    c = measure(1, 1, 1000000000);
    cr_assert_eq(c.copy_ns_per_block, 0u);
    cr_assert_eq(c.step_ns_base, 1020000u);
}

Test(calibrate, stops_when_its_time_is_spent)
{
    fg_calibration c = measure(BLOCKS, 1024, 1); /* a warm-up, which is free, and one step */
    cr_assert_eq(c.step_ns_base, 1020000u);
    cr_assert_eq(c.step_ns_per_row, 0u);
    cr_assert(c.prefill_ns_per_token > 490000u && c.prefill_ns_per_token < 510000u,
              "a prompt's speed is known before anything else: %llu",
              (unsigned long long)c.prefill_ns_per_token);
}

/* Two steps, however much time there is: one token, and a short prompt. */
Test(calibrate, a_large_model_is_not_kept_waiting)
{
    fg_calibration c = measure_slow(BLOCKS, 1024, 1000000000, 20, false);
    cr_assert_eq(c.step_ns_base, 20020000u);
    cr_assert_eq(c.step_ns_per_row, 0u);
    cr_assert_eq(c.prefill_ps_per_kv, 0u);
    /* Half of a short prompt's step is taken for its tokens at least. */
    cr_assert(c.prefill_ns_per_token > 490000u && c.prefill_ns_per_token < 3000000u, "%llu",
              (unsigned long long)c.prefill_ns_per_token);
}

/* Where there is one worker, one step: its first request has to wait for no other. */
Test(calibrate, a_large_model_alone_runs_one_step_and_guesses)
{
    fg_calibration c = measure_slow(BLOCKS, 1024, 1000000000, 20, true);
    cr_assert_eq(c.step_ns_base, 20020000u);
    cr_assert_eq(c.prefill_ns_per_token, 5005000u);
    cr_assert_eq(c.prefill_ns_base + c.prefill_ns_per_token, c.step_ns_base);
    c = measure_slow(BLOCKS, 1024, 1000000000, 1, true);
    cr_assert_eq(c.prefill_ns_per_token, 500000u, "a small one is measured");
}
