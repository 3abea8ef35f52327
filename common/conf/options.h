/*
 * options - the flags of `forge serve`, in every mode. docs/CONFIG.md is made from this table.
 */
#ifndef FORGE_COMMON_CONF_OPTIONS_H
#define FORGE_COMMON_CONF_OPTIONS_H

#include "common/conf/conf.h"

typedef enum fg_mode {
    FG_MODE_STANDALONE,
    FG_MODE_ROUTER,
    FG_MODE_PREFILL,
    FG_MODE_DECODE
} fg_mode;
typedef enum fg_kv_transport { FG_KV_AUTO, FG_KV_SHM, FG_KV_TCP } fg_kv_transport;
typedef enum fg_gathering { FG_GATHER_AUTO, FG_GATHER_NCCL, FG_GATHER_HOST } fg_gathering;
typedef enum fg_kv_device_memory {
    FG_KV_DEVICE_AUTO,
    FG_KV_DEVICE_ON,
    FG_KV_DEVICE_OFF
} fg_kv_device_memory;
typedef enum fg_cpu_pin { FG_PIN_AUTO, FG_PIN_ON, FG_PIN_OFF } fg_cpu_pin;
typedef enum fg_cpu_isa {
    FG_ISA_AUTO,
    FG_ISA_PLAIN,
    FG_ISA_AVX2,
    FG_ISA_AVX_VNNI,
    FG_ISA_AVX512,
    FG_ISA_AVX512_BF16,
    FG_ISA_AMX,
    FG_ISA_NEON
} fg_cpu_isa;

/* Both in the order of router/placement.h. */
typedef enum fg_routing {
    FG_ROUTE_COST,
    FG_ROUTE_CACHE,
    FG_ROUTE_LEAST_LOADED,
    FG_ROUTE_ROUND_ROBIN,
    FG_ROUTE_TWO_CHOICES
} fg_routing;
typedef enum fg_split { FG_SPLIT_AUTO, FG_SPLIT_ALWAYS, FG_SPLIT_NEVER } fg_split;

/* Bits as on the wire. */
typedef enum fg_use { FG_USE_PREFILL = 1, FG_USE_DECODE = 2 } fg_use;

typedef enum fg_switch { FG_OFF = 0, FG_ON = 1 } fg_switch;

/* In the order of router/api.h. */
typedef enum fg_conf_reasoning {
    FG_CONF_REASONING_AUTO = 0,
    FG_CONF_REASONING_NONE
} fg_conf_reasoning;

/* Where guesses at the next tokens come from. */
typedef enum fg_speculation {
    FG_SPECULATE_OFF = 0,
    FG_SPECULATE_NGRAM, /* the text itself */
    FG_SPECULATE_MODEL, /* a draft model */
    FG_SPECULATE_AUTO,  /* both, as far as they are there */
} fg_speculation;

typedef struct fg_serve_config {
    const char *model;             /* NULL: not given */
    int mode;                      /* fg_mode */
    const char *served_model_name; /* NULL: from the model file */
    const char *name;              /* NULL: made from mode and pid */

    const char *host;
    int32_t port;
    int32_t status_port; /* -1: none */
    uint32_t queue_limit;
    uint32_t queue_ahead;
    uint32_t tenant_queue_limit, tenant_running_limit; /* 0: none of its own */
    const char *tenant_weights;                        /* NULL: all alike */
    const char *slo;                                   /* NULL: no classes */
    uint32_t max_tokens_default;
    int reasoning_format; /* fg_conf_reasoning */
    uint32_t drain_seconds;

    fg_conf_address control;
    fg_conf_addresses router;
    const char *cache_key_file; /* NULL: a key of its own, drawn at start */
    fg_conf_names prefill;
    fg_conf_names decode;
    uint32_t lease_ms, stuck_ms;
    int routing; /* fg_routing */
    int split;   /* fg_split */
    uint32_t residency_mb;
    int roles;            /* fg_use; 0: by mode */
    const char *keys;     /* NULL: none */
    int kv_transport;     /* fg_kv_transport */
    int kv_device_memory; /* fg_kv_device_memory */
    const char *link_host;

    const char *
        device; /* fg_device_options.kind; with several processes the first one's, once serve has looked */
    const char *devices; /* of all of them, as it was given; not an option of its own */
    bool list_devices;
    uint32_t threads; /* 0: all cores */
    uint32_t tensor_parallel_size;
    int tp_gather; /* fg_gathering, in the order of engine/tp.h */
    uint32_t max_seqs;
    uint32_t kv_blocks;   /* 0: from free memory */
    uint32_t context_max; /* 0: the model's */
    uint32_t block_size;
    int prefix_cache; /* fg_switch */
    uint32_t kv_host_blocks;
    const char *kv_disk; /* NULL: host blocks are in memory */

    uint32_t prefill_chunk_size;
    uint32_t max_batch_tokens;
    uint32_t step_ms;    /* 0: no target */
    int schedule;        /* fg_sched_order */
    int admission;       /* fg_sched_admission */
    int preemption;      /* fg_sched_preemption */
    int victim;          /* fg_sched_victim */
    int last_chunk;      /* fg_sched_last_chunk */
    uint32_t queue_skip; /* 0: strictly first come, first served */
    int kv_zero_copy;    /* fg_switch */
    int kv_pull;         /* fg_switch */
    int overlap;         /* fg_switch */
    int speculate;       /* fg_speculation */
    uint32_t draft_max;
    int draft_length;               /* fg_sched_draft */
    const char *speculative_model;  /* NULL: none */
    uint32_t speculative_kv_blocks; /* 0: as many as the model's */
    uint32_t local_prefill_tokens;

    const char *weights_cache; /* "auto", "off" or a directory */
    int kv_dtype;              /* FG_DTYPE_AUTO; or FG_F16, FG_BF16, FG_I8 or FG_F32 */
    int cpu_isa;               /* fg_cpu_isa */
    int cpu_pin;               /* fg_cpu_pin */
    const char *share_cores;   /* "auto", "off" or a directory */

    const char *otlp_file; /* NULL: no spans */
    double otlp_sample;
    uint32_t otlp_file_mb;
    uint32_t flight_recorder_mb; /* 0: none */
    const char *flight_dir;

    int log_level; /* fg_log_level */
    bool insecure_network;
    const char *api_key_file, *api_key;
} fg_serve_config;

extern const fg_conf_spec fg_serve_spec;

#endif
