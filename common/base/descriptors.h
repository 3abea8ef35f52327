/*
 * descriptors - how many files and sockets this process may have open. Any thread.
 */
#ifndef FORGE_COMMON_BASE_DESCRIPTORS_H
#define FORGE_COMMON_BASE_DESCRIPTORS_H

#include <stdint.h>

/* Raises the process's own limit to `wanted`, or as near to it as the system lets it; never lowers it. */
void fg_descriptors_raise(uint32_t wanted);
/* How many more can be opened, and the limit that this follows from. Without a limit, or where the open
 * ones cannot be counted, UINT32_MAX. */
uint32_t fg_descriptors_free(uint32_t *limit_out);

#endif
