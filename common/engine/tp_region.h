/*
 * tp_region - the memory that ranks share, and how one waits for the others in it. Part of tp.
 *
 * Words that others wait for only grow. Who waits for a word looks at it for a while, then says so in its own `sleeps`,
 * looks again and sleeps on the word; who writes a word looks at the others' `sleeps` afterwards, and wakes them. Both
 * sides' steps are in one order (seq_cst), so one of them sees the other.
 */
#ifndef FORGE_COMMON_ENGINE_TP_REGION_H
#define FORGE_COMMON_ENGINE_TP_REGION_H

#include <stdatomic.h>

#include "common/base/hash.h"
#include "common/base/team.h"
#include "common/engine/tp.h"
#include "kernels/comm.h"

#define FG_TP_MAGIC 0x7073746b6e617202ull /* the last byte is the version of all this */

enum { FG_TP_PATH_MAX = 4096, FG_TP_WORD_MAX = 512 };

/* What rank 0 was asked for, as plain values. */
typedef struct fg_tp_orders {
    uint64_t magic;
    uint32_t size;
    int32_t leader; /* process id */
    char model[FG_TP_PATH_MAX];
    uint64_t model_bytes;
    int64_t model_modified_ns;
    char process[FG_TP_WORD_MAX]; /* who speaks in the log, and how much */
    int32_t log_level;
    fg_digest128 fingerprint;
    bool has_fingerprint, has_cache, has_places, has_share, arena_is_shared;
    char devices[FG_TP_WORD_MAX];
    char weights_cache[FG_TP_PATH_MAX];
    char cpu_isa[FG_TP_WORD_MAX];
    uint32_t thread_count;
    fg_team_place places[FG_TEAM_THREADS_MAX];
    char share_directory[FG_TP_PATH_MAX]; /* "": the usual one */
    cpu_set_t share_cpus;
    uint32_t share_cores, share_rank;
    fg_kv_layout layout;
    uint32_t block_count;
    fg_shared_name arena;
    fg_engine_limits limits;
    /* Of the model, for the sizes of what follows. */
    uint32_t embedding_length, q_columns, hidden_columns, vocab_size;
    uint32_t tile_rows;
    bool is_host; /* operations use the host's memory, in all ranks */
} fg_tp_orders;

typedef enum fg_tp_state { FG_TP_LOADS, FG_TP_READY, FG_TP_FAILED } fg_tp_state;

/* How a rank's communicator opened. */
typedef enum fg_tp_opened { FG_TP_OPENS, FG_TP_OPENED, FG_TP_NOT_OPENED } fg_tp_opened;

typedef struct fg_tp_slot {
    _Alignas(64) _Atomic uint32_t met; /* how often it has met the others */
    _Atomic uint32_t sleeps;
    _Atomic uint32_t state;  /* fg_tp_state */
    _Atomic uint32_t opened; /* fg_tp_opened */
    uint32_t status;         /* fg_status, of one that failed */
    char numerics[64];       /* fg_device_numerics, of one that is ready */
    char why[FG_ERROR_TEXT_MAX];
} fg_tp_slot;

typedef struct fg_tp_region {
    fg_tp_orders orders;
    _Alignas(64) _Atomic uint32_t begun; /* steps, and the end */
    _Atomic uint32_t stop;
    fg_tp_step step;
    fg_comm_name comm_name;
    uint32_t comm_seconds; /* to open in */
    fg_tp_slot slots[FG_TP_RANKS_MAX];
} fg_tp_region;

struct fg_tp {
    fg_shared shared;
    fg_tp_region *region; /* at its beginning */
    fg_tp_memory memory;
    fg_comm *comm; /* NULL: rows go through `memory` */
    uint32_t size, rank;
    uint32_t met;   /* this rank's slot */
    uint32_t begun; /* steps that this rank knows of */
    uint32_t started;
    pid_t pids[FG_TP_RANKS_MAX]; /* rank 0's: of the others */
};

/* Bytes of the region, and where its parts are; `region` NULL: only the bytes. 0: it would not fit into memory at all. */
size_t fg_tp_lay_out(const fg_tp_orders *orders, void *region, fg_tp_memory *memory_out);

/* As long as rank 0 lets pass between two looks at those it waits for, and how many without any news are too many: a minute
 * of its own time, in which it was not stopped itself. */
enum { FG_TP_LOOK_NS = 50000000, FG_TP_LOOKS_MAX = 1200 };

/* Of `count` things, the first one of a rank's; of the rank behind the last one, `count`. */
uint32_t fg_tp_first_of(const fg_tp *tp, uint32_t rank, uint32_t count, uint32_t unit);

/* Writes a word of this rank's and wakes who waits for it. */
void fg_tp_tell(fg_tp *tp, _Atomic uint32_t *word, uint32_t value);
/* Waits until the word, which `rank` writes, is `least` or later. */
void fg_tp_wait(fg_tp *tp, _Atomic uint32_t *word, uint32_t least, uint32_t rank);

#endif
