/*
 * prefill - the sender's hand-over policy: full blocks leave while later chunks compute; after the last
 * one a commit with their digests and the first token; the kept copy is pushed again when the receiver
 * found damage, and given up only when it has accepted.
 */
#ifndef FORGE_PREFILL_WORKER_PREFILL_H
#define FORGE_PREFILL_WORKER_PREFILL_H

#include "common/worker/worker.h"

const fg_handover *fg_prefill_policy(void);

#endif
