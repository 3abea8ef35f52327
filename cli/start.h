/*
 * start - what a process spends its start on. Owned by the thread that starts; each lap books the time
 * since the one before to a phase.
 */
#ifndef FORGE_CLI_START_H
#define FORGE_CLI_START_H

#include "common/base/clock.h"
#include "common/base/dtype.h"
#include "common/engine/engine.h"
#include "common/obs/metrics.h"

typedef enum fg_start_phase {
    FG_START_MODEL,     /* the file mapped, its tables read */
    FG_START_TOKENIZER, /* and the chat template */
    FG_START_FINGERPRINT,
    FG_START_ROUTER, /* its objects, the HTTP door */
    FG_START_KV,     /* arenas, and the link that they belong to */
    FG_START_WEIGHTS,
    FG_START_CALIBRATE,
    FG_START_OTHER,
    FG_START_PHASES,
} fg_start_phase;

typedef struct fg_start {
    fg_clock clock;
    uint64_t began_ns, lap_ns;
    uint64_t spent_ns[FG_START_PHASES];
} fg_start;

fg_start fg_start_now(void);
/* Books the time since the last lap. `start` may be NULL. */
void fg_start_lap(fg_start *start, fg_start_phase phase);

/* Two lines in the log: what took how long; and, with an engine (else NULL), what it chose. The same as
 * metrics. */
void fg_start_tell(fg_start *start, const fg_engine *engine, uint32_t kv_dtype,
                   fg_metrics *metrics);

#endif
