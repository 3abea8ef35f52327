#include <stdio.h>

#include "cli/sim.h"

int fg_cli_sim_trace(int argc, const char *const *argv, const char *const *environment)
{
    fprintf(stderr, "forge sim: --trace is not in this build\n");
    return 2;
}
