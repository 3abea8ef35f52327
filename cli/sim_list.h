/*
 * sim_list - the lists in the flags of `forge sim`. Pure.
 */
#ifndef FORGE_CLI_SIM_LIST_H
#define FORGE_CLI_SIM_LIST_H

#include <stdint.h>

#include "common/base/status.h"

/* "0,3,7-9" -> bits. FG_BAD_INPUT: empty, no numbers, out of range or order. */
fg_status fg_sim_list_requests(const char *text, uint64_t *bits_out, fg_error *err);

/* "crash,cut" or "all" -> bits (1 << fg_sim_fault). `flag` is named in the error. FG_BAD_INPUT: empty, or a
 * kind that does not exist. */
fg_status fg_sim_list_faults(const char *flag, const char *text, uint32_t *bits_out, fg_error *err);

#endif
