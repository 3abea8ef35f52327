#include "cli/sim_list.h"

#include "tests/sim/world.h"
#include "tests/support/test.h"

static const struct {
    const char *text;
    fg_status want;
    uint64_t bits;
} requests[] = {
    { "0", FG_OK, 1 },          { "0,3,7-9", FG_OK, 0x389 }, { "0-47", FG_OK, 0xFFFFFFFFFFFF },
    { "5,5,5", FG_OK, 32 },     { "", FG_BAD_INPUT, 0 },     { ",", FG_BAD_INPUT, 0 },
    { "1,", FG_BAD_INPUT, 0 },  { "1-", FG_BAD_INPUT, 0 },   { "-1", FG_BAD_INPUT, 0 },
    { "9-7", FG_BAD_INPUT, 0 }, { "48", FG_BAD_INPUT, 0 },   { "0-4294967296", FG_BAD_INPUT, 0 },
    { "1 2", FG_BAD_INPUT, 0 }, { "all", FG_BAD_INPUT, 0 },
};

Test(sim_list, requests_are_numbers_and_ranges)
{
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        uint64_t bits = 77;
        fg_error err = { 0 };
        fg_status status = fg_sim_list_requests(requests[i].text, &bits, &err);
        cr_assert(status == requests[i].want, "\"%s\"", requests[i].text);
        cr_assert(bits == (status == FG_OK ? requests[i].bits : 77), "\"%s\"", requests[i].text);
        cr_assert((status == FG_OK) == (err.text[0] == '\0'));
    }
}

static const struct {
    const char *text;
    fg_status want;
    uint32_t bits;
} faults[] = {
    { "crash", FG_OK, 1u << FG_SIM_CRASH },
    { "cut,alloc", FG_OK, 1u << FG_SIM_CUT | 1u << FG_SIM_ALLOC },
    { "all", FG_OK, FG_SIM_FAULTS_ALL },
    { "", FG_BAD_INPUT, 0 },
    { "cras", FG_BAD_INPUT, 0 },
    { "crashh", FG_BAD_INPUT, 0 },
    { "cut,", FG_BAD_INPUT, 0 },
    { "cut alloc", FG_BAD_INPUT, 0 },
};

Test(sim_list, faults_are_known_words)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        uint32_t bits = 77;
        fg_error err = { 0 };
        fg_status status = fg_sim_list_faults("--fault", faults[i].text, &bits, &err);
        cr_assert(status == faults[i].want, "\"%s\"", faults[i].text);
        cr_assert(bits == (status == FG_OK ? faults[i].bits : 77), "\"%s\"", faults[i].text);
    }
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        uint32_t bits = 0;
        fg_error err;
        cr_assert(fg_sim_list_faults("--fault", fg_sim_fault_name((fg_sim_fault)kind), &bits,
                                     &err) == FG_OK);
        cr_assert(bits == 1u << kind);
    }
}
