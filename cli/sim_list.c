#include "cli/sim_list.h"

#include <stdbool.h>
#include <string.h>

#include "tests/sim/world.h"

static bool read_number(const char **at, uint32_t *number_out)
{
    uint32_t number = 0, digits = 0;
    while (**at >= '0' && **at <= '9' && digits < 4) {
        number = number * 10 + (uint32_t)(**at - '0');
        digits++;
        (*at)++;
    }
    *number_out = number;
    return digits > 0;
}

fg_status fg_sim_list_requests(const char *text, uint64_t *bits_out, fg_error *err)
{
    uint64_t bits = 0;
    const char *at = text;
    for (;;) {
        uint32_t first, last;
        bool fine = read_number(&at, &first);
        last = first;
        if (fine && *at == '-') {
            at++;
            fine = read_number(&at, &last);
        }
        if (!fine || last < first || last >= FG_SIM_REQUESTS_MAX || (*at != ',' && *at != '\0')) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--requests \"%.60s\": write numbers from 0 to %d as in 0,3,7-9", text,
                           FG_SIM_REQUESTS_MAX - 1);
        }
        for (uint32_t i = first; i <= last; i++) {
            bits |= 1ull << i;
        }
        if (*at == '\0') {
            *bits_out = bits;
            return FG_OK;
        }
        at++;
    }
}

static uint32_t fault_bits(const char *word, size_t length)
{
    if (length == 3 && strncmp(word, "all", 3) == 0) {
        return FG_SIM_FAULTS_ALL;
    }
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        const char *name = fg_sim_fault_name((fg_sim_fault)kind);
        if (strlen(name) == length && strncmp(name, word, length) == 0) {
            return 1u << kind;
        }
    }
    return 0;
}

fg_status fg_sim_list_faults(const char *flag, const char *text, uint32_t *bits_out, fg_error *err)
{
    uint32_t bits = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        uint32_t found = fault_bits(at, length);
        if (found == 0) {
            return fg_fail(
                err, FG_BAD_INPUT,
                "%s: no kind of fault is called \"%.*s\"; `forge sim --help=fault` lists "
                "them",
                flag, (int)(length < 40 ? length : 40), at);
        }
        bits |= found;
        at += length;
        if (*at == '\0') {
            *bits_out = bits;
            return FG_OK;
        }
    }
}
