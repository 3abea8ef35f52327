/*
 * decode - the receiver's hand-over policy: holds blocks for prompt and answer before any compute is
 * spent, pins the ones that will be written, and lets a sequence decode only after every arrived
 * block's digest was found right.
 */
#ifndef FORGE_DECODE_WORKER_DECODE_H
#define FORGE_DECODE_WORKER_DECODE_H

#include "common/worker/worker.h"

const fg_handover *fg_decode_policy(void);

#endif
