/* Mixtures of experts against one row and one expert at a time, done with the operations for one matrix. */
#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fmath.h"
#include "common/base/mem.h"
#include "kernels/cpu/math.h"
#include "kernels/ops.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/kernel_data.h"

/* ---- choosing ---- */

typedef struct choice {
    fg_choose_experts args;
    float *logits;
    uint32_t rows;
} choice;

static choice make_choice(uint32_t rows, uint32_t experts, uint32_t used)
{
    choice c = { .rows = rows, .logits = fg_mem_array((size_t)rows * experts, sizeof(float)) };
    size_t slots = (size_t)rows * used;
    c.args = (fg_choose_experts){
        .logits = c.logits,
        .weighing = FG_EXPERTS_BY_CHOSEN,
        .scale = 1.0f,
        .slots = { .expert_count = experts,
                   .used_count = used,
                   .experts = fg_mem_array(slots, sizeof(uint32_t)),
                   .weights = fg_mem_array(slots, sizeof(float)),
                   .firsts = fg_mem_array(experts + 1, sizeof(uint32_t)),
                   .slot_rows = fg_mem_array(slots, sizeof(uint32_t)),
                   .slot_weights = fg_mem_array(slots, sizeof(float)) },
    };
    return c;
}

static void free_choice(choice *c)
{
    fg_mem_free(c->logits);
    fg_mem_free(c->args.slots.experts);
    fg_mem_free(c->args.slots.weights);
    fg_mem_free(c->args.slots.firsts);
    fg_mem_free(c->args.slots.slot_rows);
    fg_mem_free(c->args.slots.slot_weights);
}

/* As the contract has it, in the plainest way: an expert is chosen when fewer than `used` are before it. */
static void want_row(const fg_choose_experts *args, uint32_t row, uint32_t *experts, float *weights)
{
    const fg_expert_slots *s = &args->slots;
    const float *logits = args->logits + (size_t)row * s->expert_count;
    float top = -INFINITY, lanes[8] = { 0 }, sum = 0.0f;
    uint32_t have = 0;
    for (uint32_t e = 0; e < s->expert_count; e++) {
        float value = isnan(logits[e]) ? -INFINITY : logits[e];
        uint32_t before = 0;
        for (uint32_t other = 0; other < s->expert_count; other++) {
            float its = isnan(logits[other]) ? -INFINITY : logits[other];
            before += its > value || (its == value && other < e);
        }
        top = before == 0 ? value : top;
        if (before < s->used_count) {
            experts[have++] = e;
        }
    }
    cr_assert_eq(have, s->used_count);
    for (uint32_t e = 0; e < s->expert_count; e++) {
        lanes[e % 8] += fg_expf((isnan(logits[e]) ? -INFINITY : logits[e]) - top);
    }
    for (uint32_t i = 0; i < have; i++) {
        float logit = logits[experts[i]];
        weights[i] = fg_expf((isnan(logit) ? -INFINITY : logit) - top);
        sum += weights[i];
    }
    for (uint32_t i = 0; i < have; i++) {
        bool by_chosen = args->weighing == FG_EXPERTS_BY_CHOSEN;
        weights[i] = weights[i] / (by_chosen ? sum : fg_cpu_fold(lanes)) * args->scale;
        if (args->weighing == FG_EXPERTS_ALONE) {
            weights[i] = 1.0f / (1.0f + fg_expf(-logits[experts[i]])) * args->scale;
        }
    }
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* Every slot is where it belongs. */
static void check_slots(const choice *c, const char *what)
{
    const fg_expert_slots *s = &c->args.slots;
    uint32_t slot = 0;
    cr_assert_eq(s->firsts[0], 0, "%s", what);
    for (uint32_t e = 0; e < s->expert_count; e++) {
        for (uint32_t i = 0; i < c->rows * s->used_count; i++) {
            if (s->experts[i] != e) {
                continue;
            }
            cr_assert_eq(s->slot_rows[slot], i / s->used_count, "%s: slot %u", what, slot);
            cr_assert(same_float(s->slot_weights[slot], s->weights[i]), "%s: slot %u", what, slot);
            slot++;
        }
        cr_assert_eq(s->firsts[e + 1], slot, "%s: expert %u", what, e);
    }
    cr_assert_eq(slot, c->rows * s->used_count, "%s", what);
}

static void check_choice(const test_device *device, choice *c, const char *what)
{
    fg_op_choose_experts(device->stream, &c->args, c->rows);
    const fg_expert_slots *s = &c->args.slots;
    for (uint32_t row = 0; row < c->rows; row++) {
        uint32_t experts[FG_EXPERTS_USED_MAX];
        float weights[FG_EXPERTS_USED_MAX];
        want_row(&c->args, row, experts, weights);
        for (uint32_t i = 0; i < s->used_count; i++) {
            size_t at = (size_t)row * s->used_count + i;
            cr_assert_eq(s->experts[at], experts[i], "%s: row %u has expert %u, not %u", what, row,
                         s->experts[at], experts[i]);
            cr_assert(same_float(s->weights[at], weights[i]), "%s: row %u, %a for %a", what, row,
                      (double)s->weights[at], (double)weights[i]);
        }
    }
    check_slots(c, what);
}

static float random_logit(fg_rng *rng)
{
    return random_float(rng, 6.0f);
}

/* Many equal ones. */
static float tied_logit(fg_rng *rng)
{
    return (float)fg_rng_below(rng, 3);
}

static float odd_logit(fg_rng *rng)
{
    static const float odd[] = { NAN, -NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, 1e30f };
    return odd[fg_rng_below(rng, sizeof odd / sizeof odd[0])];
}

static float no_logit(fg_rng *rng)
{
    return fg_rng_below(rng, 2) == 0 ? NAN : -INFINITY;
}

Test(experts, the_highest_are_chosen_and_the_first_of_equal_ones)
{
    static const struct {
        const char *what;
        uint32_t rows, experts, used;
        float (*logit)(fg_rng *rng);
    } cases[] = {
        { "one row", 1, 8, 2, random_logit },
        { "many rows", 77, 64, 8, random_logit },
        { "equal ones", 50, 20, 5, tied_logit },
        { "equal ones, many experts", 9, FG_EXPERTS_MAX, FG_EXPERTS_USED_MAX, tied_logit },
        { "all experts", 13, 6, 6, random_logit },
        { "one expert", 5, 1, 1, random_logit },
        { "one of many", 21, 100, 1, random_logit },
        { "no numbers", 200, 9, 3, odd_logit },
        { "nothing to choose by", 10, 9, 3, no_logit },
    };
    for (uint32_t threads = 1; threads <= 3; threads++) {
        test_device device;
        cr_assert(open_test_device("auto", threads, &device));
        fg_rng rng = { .state = 77 };
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            choice c = make_choice(cases[i].rows, cases[i].experts, cases[i].used);
            for (size_t at = 0; at < (size_t)cases[i].rows * cases[i].experts; at++) {
                c.logits[at] = cases[i].logit(&rng);
            }
            check_choice(&device, &c, cases[i].what);
            c.args.scale = 2.5f;
            c.args.weighing = FG_EXPERTS_BY_ALL;
            check_choice(&device, &c, cases[i].what);
            c.args.weighing = FG_EXPERTS_ALONE;
            check_choice(&device, &c, cases[i].what);
            free_choice(&c);
        }
        close_test_device(&device);
    }
}

Test(experts, weights_that_are_no_numbers_are_seen)
{
    test_device device;
    cr_assert(open_test_device("auto", 1, &device));
    choice c = make_choice(1, 8, 2);
    for (uint32_t e = 0; e < 8; e++) {
        c.logits[e] = NAN;
    }
    fg_op_choose_experts(device.stream, &c.args, 1);
    cr_assert(isnan(c.args.slots.weights[0]) && isnan(c.args.slots.weights[1]));
    c.logits[5] = INFINITY;
    fg_op_choose_experts(device.stream, &c.args, 1);
    cr_assert(isnan(c.args.slots.weights[0]) && isnan(c.args.slots.weights[1]));
    /* One among others is chosen last and weighs nothing. */
    c.logits[5] = -1000.0f;
    fg_op_choose_experts(device.stream, &c.args, 1);
    cr_assert_eq(c.args.slots.experts[1], 5);
    cr_assert(c.args.slots.weights[0] == 0.0f && c.args.slots.weights[1] == 1.0f);
    c.args.weighing = FG_EXPERTS_ALONE;
    fg_op_choose_experts(device.stream, &c.args, 1);
    cr_assert(isnan(c.args.slots.weights[0]) && c.args.slots.weights[1] == 0.0f);
    free_choice(&c);
    close_test_device(&device);
}

/* ---- products ---- */

enum { ROWS_MAX = 70 };

/* One matrix of each expert. */
typedef struct expert_matrices {
    fg_matrix rows;
    void *data;
    fg_panels panels;
    fg_expert_panels experts;
} expert_matrices;

static expert_matrices make_matrices(fg_rng *rng, uint32_t type, uint32_t experts, uint32_t outputs,
                                     uint32_t columns)
{
    expert_matrices m;
    m.data = random_matrix(rng, type, experts * outputs, columns, &m.rows);
    m.panels = pack_panels(&m.rows);
    m.experts.first = m.panels;
    m.experts.first.outputs = outputs;
    m.experts.stride_bytes = outputs / FG_PANEL_OUTPUTS * fg_panel_bytes(type, columns);
    return m;
}

static void free_matrices(expert_matrices *m)
{
    fg_mem_free(m->data);
    free_panels(&m->panels);
}

static fg_panels of_expert(const expert_matrices *m, uint32_t expert)
{
    fg_panels panels = m->experts.first;
    panels.data = (const uint8_t *)panels.data + expert * m->experts.stride_bytes;
    return panels;
}

typedef struct mixture {
    expert_matrices gate, up, down;
    fg_activations in, room, hidden;
    choice choice; /* of ROWS_MAX rows */
    float *start;  /* what is added to */
    float *out;
    uint32_t width;
} mixture;

static mixture make_mixture(fg_rng *rng, const uint32_t types[3], uint32_t experts, uint32_t used,
                            uint32_t width, uint32_t ffn)
{
    mixture m = { .gate = make_matrices(rng, types[0], experts, ffn, width),
                  .up = make_matrices(rng, types[1], experts, ffn, width),
                  .down = make_matrices(rng, types[2], experts, width, ffn),
                  .in = make_activations(ROWS_MAX, width),
                  .room = make_activations(ROWS_MAX * used, width),
                  .hidden = make_activations(ROWS_MAX * used, ffn),
                  .choice = make_choice(ROWS_MAX, experts, used),
                  .start = random_floats(rng, (size_t)ROWS_MAX * width, 2.0f),
                  .out = fg_mem_array((size_t)ROWS_MAX * width, sizeof(float)),
                  .width = width };
    for (size_t i = 0; i < (size_t)ROWS_MAX * width; i++) {
        m.in.values[i] = random_float(rng, 3.0f);
    }
    for (size_t i = 0; i < (size_t)ROWS_MAX * experts; i++) {
        m.choice.logits[i] = random_float(rng, 3.0f) - (float)(i % experts) * 0.25f;
    }
    return m;
}

static void free_mixture(mixture *m)
{
    free_matrices(&m->gate);
    free_matrices(&m->up);
    free_matrices(&m->down);
    free_activations(&m->in);
    free_activations(&m->room);
    free_activations(&m->hidden);
    free_choice(&m->choice);
    fg_mem_free(m->start);
    fg_mem_free(m->out);
}

static uint32_t form_of(const test_device *device, const expert_matrices *m)
{
    return fg_op_linear_form(device->stream, m->panels.type);
}

/* Rows `first` and on, all at once; what was anywhere before is gone. */
static void run(const test_device *device, mixture *m, uint32_t first, uint32_t rows)
{
    fg_activations in = m->in, room = m->room, hidden = m->hidden;
    size_t slots = (size_t)rows * m->choice.args.slots.used_count;
    in.values += (size_t)first * m->width;
    in.quant_tiles = room.quant_tiles = hidden.quant_tiles = NULL;
    memset(hidden.values, 0xFF, slots * hidden.columns * sizeof(float));
    memset(hidden.quants, 0x55, slots * hidden.columns);
    memset(room.quants, 0x55, slots * room.columns);
    memset(room.values, 0xFF, slots * room.columns * sizeof(float));
    memcpy(m->out, m->start + (size_t)first * m->width, (size_t)rows * m->width * sizeof(float));
    fg_choose_experts choose = m->choice.args;
    choose.logits += (size_t)first * choose.slots.expert_count;
    fg_op_choose_experts(device->stream, &choose, rows);
    fg_op_prepare(device->stream, &in, form_of(device, &m->gate) | form_of(device, &m->up), rows);
    const fg_gated_experts gated = { .slots = &choose.slots,
                                     .gate = m->gate.experts,
                                     .up = m->up.experts,
                                     .forms = form_of(device, &m->down),
                                     .room = room,
                                     .out = hidden };
    fg_op_gated_experts(device->stream, &gated, &in, rows);
    const fg_add_experts add = {
        .slots = &choose.slots, .down = m->down.experts, .out = m->out, .out_stride = m->width
    };
    fg_op_add_experts(device->stream, &add, &hidden, rows);
}

/* One row and one expert at a time. */
static void want_rows(const test_device *device, mixture *m, float *want)
{
    const fg_expert_slots *s = &m->choice.args.slots;
    fg_activations one = make_activations(1, m->width),
                   hidden = make_activations(1, m->hidden.columns);
    float *product = fg_mem_array(m->width, sizeof(float));
    uint32_t forms = form_of(device, &m->gate) | form_of(device, &m->up);
    for (uint32_t row = 0; row < ROWS_MAX; row++) {
        uint32_t experts[FG_EXPERTS_USED_MAX];
        float weights[FG_EXPERTS_USED_MAX], *out = want + (size_t)row * m->width;
        want_row(&m->choice.args, row, experts, weights);
        memcpy(one.values, m->in.values + (size_t)row * m->width, m->width * sizeof(float));
        memcpy(out, m->start + (size_t)row * m->width, m->width * sizeof(float));
        fg_op_prepare(device->stream, &one, forms, 1);
        for (uint32_t i = 0; i < s->used_count; i++) {
            fg_gated gated = { .gate = of_expert(&m->gate, experts[i]),
                               .up = of_expert(&m->up, experts[i]),
                               .out = hidden };
            fg_op_gated(device->stream, &gated, &one, 1);
            for (uint32_t c = 0; c < hidden.columns; c++) {
                hidden.values[c] *= weights[i];
            }
            fg_op_prepare(device->stream, &hidden, form_of(device, &m->down), 1);
            fg_linear down = { .weight = of_expert(&m->down, experts[i]),
                               .out = product,
                               .out_stride = m->width };
            fg_op_linear(device->stream, &down, 1, &hidden, 1);
            for (uint32_t o = 0; o < m->width; o++) {
                out[o] += product[o];
            }
        }
    }
    free_activations(&one);
    free_activations(&hidden);
    fg_mem_free(product);
}

static const struct {
    const char *what;
    uint32_t types[3], experts, used, width, ffn;
} mixtures[] = {
    { "f32", { FG_F32, FG_F32, FG_F32 }, 5, 2, 48, 80 },
    { "f16", { FG_F16, FG_F16, FG_F16 }, 7, 3, 80, 48 },
    { "bf16", { FG_BF16, FG_BF16, FG_BF16 }, 8, 2, 96, 64 },
    { "q4_0", { FG_Q4_0, FG_Q4_0, FG_Q4_0 }, 12, 4, 96, 160 },
    { "q4_1", { FG_Q4_1, FG_Q4_1, FG_Q4_1 }, 4, 4, 64, 32 },
    { "q5_0", { FG_Q5_0, FG_Q5_0, FG_Q5_0 }, 6, 2, 128, 96 },
    { "q5_1", { FG_Q5_1, FG_Q5_1, FG_Q5_1 }, 6, 1, 128, 96 },
    { "q8_0", { FG_Q8_0, FG_Q8_0, FG_Q8_0 }, 40, 8, 64, 96 },
    { "q4_k, q6_k", { FG_Q4_K, FG_Q4_K, FG_Q6_K }, 10, 3, 256, 256 },
    { "q5_k, q8_0", { FG_Q5_K, FG_Q5_K, FG_Q8_0 }, 6, 2, 256, 96 },
    { "all forms", { FG_Q4_0, FG_F16, FG_BF16 }, 6, 2, 96, 64 },
    { "floats after bytes", { FG_BF16, FG_Q8_0, FG_F32 }, 6, 2, 96, 64 },
};

static void check_rows(const test_device *device, mixture *m, const float *want, const char *what)
{
    static const struct {
        uint32_t first, rows;
    } parts[] = { { 0, ROWS_MAX }, { 0, 1 }, { ROWS_MAX - 1, 1 }, { 3, 2 }, { 10, 9 }, { 30, 33 } };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        run(device, m, parts[i].first, parts[i].rows);
        size_t bytes = (size_t)parts[i].rows * m->width * sizeof(float);
        cr_assert(memcmp(m->out, want + (size_t)parts[i].first * m->width, bytes) == 0,
                  "%s: %u rows from %u, isa %s, %u threads, blocks of %zu bytes", what,
                  parts[i].rows, parts[i].first, fg_device_isa(device->device),
                  fg_device_thread_count(device->device), device->device->block_bytes);
    }
}

Test(experts, bits_are_those_of_one_row_and_one_expert_at_a_time)
{
    test_device plain;
    cr_assert(open_test_device("plain", 1, &plain));
    fg_rng rng = { .state = 5 };
    for (size_t i = 0; i < sizeof mixtures / sizeof mixtures[0]; i++) {
        mixture m = make_mixture(&rng, mixtures[i].types, mixtures[i].experts, mixtures[i].used,
                                 mixtures[i].width, mixtures[i].ffn);
        float *want = fg_mem_array((size_t)ROWS_MAX * m.width, sizeof(float));
        want_rows(&plain, &m, want);
        for (size_t d = 0; d < TEST_ISAS * 3; d++) {
            test_device device;
            if (open_test_device(test_isas[d / 3], 1 + d % 3, &device)) {
                check_rows(&device, &m, want, mixtures[i].what);
                device.device->block_bytes = 1; /* as few rows as a block may have */
                check_rows(&device, &m, want, mixtures[i].what);
                close_test_device(&device);
            }
        }
        fg_mem_free(want);
        free_mixture(&m);
    }
    close_test_device(&plain);
}

/* A rank's columns of gate and up, and its outputs of down, begin and end within experts. */
Test(experts, a_part_of_each_matrix_gives_that_part_of_the_result)
{
    enum { WIDTH = 96, FFN = 64, FIRST = 32, WIDTH_PART = 48, FFN_PART = 32 };
    test_device device;
    cr_assert(open_test_device("auto", 2, &device));
    fg_rng rng = { .state = 8 };
    mixture m =
        make_mixture(&rng, (const uint32_t[]){ FG_Q4_0, FG_Q4_0, FG_Q4_0 }, 6, 2, WIDTH, FFN);
    run(&device, &m, 0, ROWS_MAX);
    float *whole = fg_mem_dup(m.out, (size_t)ROWS_MAX * WIDTH * sizeof(float));
    const fg_expert_slots *slots = &m.choice.args.slots;
    fg_activations hidden = m.hidden, in = m.in, room = m.room;
    fg_activations part = make_activations(ROWS_MAX * 2, FFN_PART), own = part;
    in.quant_tiles = room.quant_tiles = hidden.quant_tiles = own.quant_tiles = NULL;
    fg_gated_experts gated = {
        .slots = slots, .gate = m.gate.experts, .up = m.up.experts, .room = room, .out = hidden
    };
    fg_op_gated_experts(device.stream, &gated, &in, ROWS_MAX);
    size_t skipped = FIRST / FG_PANEL_OUTPUTS;
    gated.gate.first.data =
        (const uint8_t *)gated.gate.first.data + skipped * fg_panel_bytes(FG_Q4_0, WIDTH);
    gated.up.first.data =
        (const uint8_t *)gated.up.first.data + skipped * fg_panel_bytes(FG_Q4_0, WIDTH);
    gated.gate.first.outputs = gated.up.first.outputs = FFN_PART;
    gated.out = own;
    fg_op_gated_experts(device.stream, &gated, &in, ROWS_MAX);
    for (uint32_t slot = 0; slot < ROWS_MAX * 2; slot++) {
        cr_assert(memcmp(own.values + (size_t)slot * FFN_PART,
                         hidden.values + (size_t)slot * FFN + FIRST, FFN_PART * sizeof(float)) == 0,
                  "slot %u", slot);
    }
    fg_op_prepare(device.stream, &hidden, FG_FORM_QUANTS, ROWS_MAX * 2);
    memcpy(m.out, m.start, (size_t)ROWS_MAX * WIDTH * sizeof(float));
    fg_add_experts add = {
        .slots = slots, .down = m.down.experts, .out = m.out + FIRST, .out_stride = WIDTH
    };
    add.down.first.data =
        (const uint8_t *)add.down.first.data + skipped * fg_panel_bytes(FG_Q4_0, FFN);
    add.down.first.outputs = WIDTH_PART;
    fg_op_add_experts(device.stream, &add, &hidden, ROWS_MAX);
    for (size_t i = 0; i < (size_t)ROWS_MAX * WIDTH; i++) {
        bool mine = i % WIDTH >= FIRST && i % WIDTH < FIRST + WIDTH_PART;
        cr_assert(m.out[i] == (mine ? whole[i] : m.start[i]), "row %zu, output %zu", i / WIDTH,
                  i % WIDTH);
    }
    free_activations(&part);
    fg_mem_free(whole);
    free_mixture(&m);
    close_test_device(&device);
}
