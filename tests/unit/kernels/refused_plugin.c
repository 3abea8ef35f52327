/* A plugin that a program must refuse; CMakeLists.txt says why. */
#include "kernels/backend.h"

#include <stdio.h>

static uint32_t no_devices(fg_error *err)
{
    if (err != NULL) {
        err->status = FG_BAD_INPUT;
        snprintf(err->text, sizeof err->text, "the driver sees nothing");
    }
    return 0;
}

static const fg_backend table = {
#ifdef PLUGIN_WRONG_ABI
    .abi = FG_BACKEND_ABI + 1,
#else
    .abi = FG_BACKEND_ABI,
#endif
    .table_bytes = sizeof(fg_backend),
    .kind = "cuda",
    .device_count = no_devices,
};

#ifdef PLUGIN_NO_ENTRY
#define forge_backend some_other_name
#endif
const fg_backend *forge_backend(void);
const fg_backend *forge_backend(void)
{
    return &table;
}
