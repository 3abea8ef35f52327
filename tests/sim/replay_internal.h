/*
 * replay_internal - what replay.c (the way through a record) and the two kinds of processes share. replay_router*.c
 * and replay_worker*.c make the calls and tell of them.
 */
#ifndef FORGE_TESTS_SIM_REPLAY_INTERNAL_H
#define FORGE_TESTS_SIM_REPLAY_INTERNAL_H

#include "tests/sim/replay.h"

typedef struct fg_replay fg_replay;

typedef struct fg_replay_ops {
    uint64_t (*shape)(void);
    const char *(*name)(uint32_t kind);
    /* Whether a record has the size that its kind asks for, and texts that end. */
    bool (*is_sound)(const fg_flight_record *record);
    /* In a few words. */
    void (*describe)(uint32_t kind, const void *bytes, uint32_t size, char *text, size_t capacity);
    /* A call that the history shows only where something came of it. */
    bool (*is_quiet)(uint32_t kind);
    /* Makes what the calls are made on, into r->subject. */
    fg_status (*open)(fg_replay *r, const fg_flight_file *file, fg_error *err);
    /* It takes over what a record says that was known. FG_BAD_INPUT: nonsense. */
    fg_status (*restore)(fg_replay *r, const fg_flight_record *record, fg_error *err);
    /* All that was known has been told. */
    fg_status (*ready)(fg_replay *r, fg_error *err);
    void (*call)(fg_replay *r, const fg_flight_record *record);
    void (*close)(fg_replay *r);
} fg_replay_ops;

struct fg_replay {
    const fg_replay_options *options;
    const fg_replay_ops *ops;
    void *subject;
    fg_flight *flight; /* compares */
    fg_flight *shown;  /* the same file, as far as the history shows it */
    uint64_t now_ns;
    uint64_t last;    /* index of the last call from outside */
    fg_status status; /* of the first record that is nonsense */
    fg_error err;
};

extern const fg_replay_ops fg_replay_router, fg_replay_worker;

/* The next record, if it is sound; else NULL, and r->status says why. */
const fg_flight_record *fg_replay_next(fg_replay *r);
/* A line for it; `began_ns` is the time that counts as 0. */
void fg_replay_show(const fg_replay_ops *ops, FILE *out, const fg_flight_record *record,
                    uint64_t began_ns);
/* Whether these bytes are a text with its NUL, and nothing else. */
bool fg_replay_ends(const void *text, size_t size_bytes);

#endif
