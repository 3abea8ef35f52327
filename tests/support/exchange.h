/*
 * exchange - processes of a test hand each other bytes: what a communicator does, without a device.
 */
#ifndef FORGE_TESTS_SUPPORT_EXCHANGE_H
#define FORGE_TESTS_SUPPORT_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct exchange exchange;

enum { EXCHANGE_NAME_BYTES = 128, EXCHANGE_RANKS_MAX = 16 };

/* Nobody has had it before. */
void exchange_make_name(char name[EXCHANGE_NAME_BYTES]);
/* Does not wait for the others. */
exchange *exchange_join(const char name[EXCHANGE_NAME_BYTES], uint32_t rank, uint32_t ranks);
/* Whether all have joined. */
bool exchange_is_met(exchange *e);
/* `bytes` of each rank, one behind the other; `own` may be in its place in `all`. All ranks say the same number. False:
 * it was stopped. */
bool exchange_all(exchange *e, const void *own, void *all, size_t bytes);
/* Whoever waits in exchange_all returns; any thread. */
void exchange_stop(exchange *e);
/* NULL is fine. */
void exchange_leave(exchange *e);

#endif
