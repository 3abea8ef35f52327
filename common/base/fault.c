#include "common/base/fault.h"

static _Thread_local uint64_t fault_left;
static _Thread_local bool fault_fired;

void fg_fault_arm(uint64_t nth)
{
    fault_left = nth;
    fault_fired = false;
}

bool fg_fault_hit(void)
{
    if (__builtin_expect(fault_left == 0, 1)) {
        return false;
    }
    fault_left--;
    if (fault_left == 0) {
        fault_fired = true;
        return true;
    }
    return false;
}

bool fg_fault_fired(void)
{
    return fault_fired;
}

uint64_t fg_fault_hold(void)
{
    uint64_t left = fault_left;
    fault_left = 0;
    return left;
}

void fg_fault_resume(uint64_t left)
{
    fault_left = left;
}

int fg_fault_each(bool (*attempt)(void *ctx), void *ctx)
{
    for (int nth = 1;; nth++) {
        fg_fault_arm((uint64_t)nth);
        bool succeeded = attempt(ctx);
        bool fired = fg_fault_fired();
        fg_fault_arm(0);
        if (!fired) {
            return succeeded ? nth - 1 : -1;
        }
        if (succeeded) {
            return -1;
        }
    }
}
