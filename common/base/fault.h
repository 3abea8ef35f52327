/*
 * fault - makes the n-th fallible step of this thread fail, so that a test can walk through every
 * failure of a constructor. Off (one predictable branch) unless a test arms it.
 */
#ifndef FORGE_COMMON_BASE_FAULT_H
#define FORGE_COMMON_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th (from 1) call of fg_fault_hit() on this thread from now on returns true; 0 disarms. */
void fg_fault_arm(uint64_t nth);
/* True when this step must fail. Called by mem and other fallible primitives. */
bool fg_fault_hit(void);
/* True when an armed fault has fired since the last fg_fault_arm(). */
bool fg_fault_fired(void);
/* What is left of the countdown; nothing fails until it is resumed. For a test's own code that runs inside
 * the code under test. */
uint64_t fg_fault_hold(void);
void fg_fault_resume(uint64_t left);

/* Calls `attempt` with the first, second, ... allocation failing until one call runs with no fault
 * fired; that call must return true (success), every earlier one false. Returns the number of faults
 * survived, or -1 when a call answered wrongly. Leaks are ASan's to find. */
int fg_fault_each(bool (*attempt)(void *ctx), void *ctx);

#ifdef __cplusplus
}
#endif
#endif
