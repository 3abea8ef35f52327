/*
 * fleet_setup - set-ups of a fleet as words: "prefill=8,decode=8;both=16". Pure.
 */
#ifndef FORGE_TESTS_SIM_FLEET_SETUP_H
#define FORGE_TESTS_SIM_FLEET_SETUP_H

#include "common/conf/conf.h"
#include "tests/sim/fleet.h"

enum { FG_FLEET_SETUPS_MAX = 8, FG_FLEET_LABEL_BYTES = 96 };

extern const fg_conf_choice fg_fleet_routings[], fg_fleet_splits[]; /* as in forge serve */

typedef struct fg_fleet_variant {
    char label[FG_FLEET_LABEL_BYTES]; /* as it was written, a space for each comma */
    fg_fleet_setup setup;
} fg_fleet_variant;

/* Set-ups parted by ";", each key=value parted by ",". What is not named is as in `base`, but for the
 * numbers of workers, which are 0 then. FG_BAD_INPUT says what is known. */
fg_status fg_fleet_setup_parse(const char *text, const fg_fleet_setup *base,
                               fg_fleet_variant variants_out[FG_FLEET_SETUPS_MAX],
                               size_t *count_out, fg_error *err);
/* "prefill=8 decode=8": the workers alone. */
void fg_fleet_setup_label(const fg_fleet_setup *setup, char label_out[FG_FLEET_LABEL_BYTES]);

#endif
