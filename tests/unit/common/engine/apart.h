/*
 * apart - what tests see of the device that apart_plugin.c plays.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_ENGINE_APART_H
#define FORGE_TESTS_UNIT_COMMON_ENGINE_APART_H

#include <dlfcn.h>

#include "tests/support/test.h"

/* A variable or function of the plugin at `path`. */
static inline void *fg_in_apart(const char *path, const char *name)
{
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(plugin);
    void *symbol = dlsym(plugin, name);
    cr_assert_not_null(symbol, "%s", name);
    return symbol;
}

#endif
