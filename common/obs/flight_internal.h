/*
 * flight_internal - what flight.c (keeping) and flight_check.c (reading and comparing) share. Private to obs.
 */
#ifndef FORGE_COMMON_OBS_FLIGHT_INTERNAL_H
#define FORGE_COMMON_OBS_FLIGHT_INTERNAL_H

#include "common/obs/flight.h"

enum { FG_FLIGHT_PATH_BYTES = 1024 };

typedef struct chunk {
    unsigned char *memory;
    size_t used;
    fg_flight_chunk_kind kind;
} chunk;

struct fg_flight {
    chunk chunks[2];
    uint32_t now; /* the newer of the two */
    size_t chunk_bytes, opened;
    uint64_t shape, pid, dropped;
    bool inside;
    void *preface;
    uint32_t preface_bytes;
    char process[FG_FLIGHT_PROCESS_BYTES];
    char path[FG_FLIGHT_PATH_BYTES];
    /* Comparing. */
    bool checks, partial;
    fg_flight_file file;
    uint32_t at_chunk;
    size_t at; /* of the next record in that chunk */
    uint64_t index;
    fg_buf scratch; /* what is being noted */
    fg_flight_difference difference;
};

void *fg_flight_check_open(fg_flight *flight, uint32_t kind, size_t bytes);
void fg_flight_check_commit(fg_flight *flight);

#endif
