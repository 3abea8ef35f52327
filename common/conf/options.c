#include "common/conf/options.h"

#include "common/base/dtype.h"
#include "common/base/log.h"
#include "common/sched/sched.h"

#define AT(member) .offset = offsetof(fg_serve_config, member)

static const fg_conf_choice modes[] = {
    { "standalone", FG_MODE_STANDALONE }, { "router", FG_MODE_ROUTER },
    { "prefill", FG_MODE_PREFILL },       { "decode", FG_MODE_DECODE },
    { "scheduler", FG_MODE_ROUTER },      { NULL, 0 },
};
static const fg_conf_choice transports[] = {
    { "auto", FG_KV_AUTO }, { "shm", FG_KV_SHM }, { "tcp", FG_KV_TCP }, { NULL, 0 }
};
static const fg_conf_choice instruction_sets[] = {
    { "auto", FG_ISA_AUTO },
    { "plain", FG_ISA_PLAIN },
    { "avx2", FG_ISA_AVX2 },
    { "avx_vnni", FG_ISA_AVX_VNNI },
    { "avx512", FG_ISA_AVX512 },
    { "avx512_bf16", FG_ISA_AVX512_BF16 },
    { "amx", FG_ISA_AMX },
    { "neon", FG_ISA_NEON },
    { NULL, 0 },
};
static const fg_conf_choice cpu_pins[] = {
    { "auto", FG_PIN_AUTO }, { "on", FG_PIN_ON }, { "off", FG_PIN_OFF }, { NULL, 0 }
};
static const fg_conf_choice gatherings[] = {
    { "auto", FG_GATHER_AUTO }, { "nccl", FG_GATHER_NCCL }, { "host", FG_GATHER_HOST }, { NULL, 0 }
};
static const fg_conf_choice kv_device_memories[] = { { "auto", FG_KV_DEVICE_AUTO },
                                                     { "on", FG_KV_DEVICE_ON },
                                                     { "off", FG_KV_DEVICE_OFF },
                                                     { NULL, 0 } };
static const fg_conf_choice kv_types[] = { { "auto", (int)FG_DTYPE_AUTO },
                                           { "f16", FG_F16 },
                                           { "bf16", FG_BF16 },
                                           { "int8", FG_I8 },
                                           { "f32", FG_F32 },
                                           { NULL, 0 } };
static const fg_conf_choice switches[] = { { "on", FG_ON }, { "off", FG_OFF }, { NULL, 0 } };
static const fg_conf_choice schedules[] = { { "decode-first", FG_DECODE_FIRST },
                                            { "prefill-first", FG_PREFILL_FIRST },
                                            { NULL, 0 } };
static const fg_conf_choice admissions[] = { { "watermark", FG_ADMIT_WATERMARK },
                                             { "no-evict", FG_ADMIT_NO_EVICT },
                                             { NULL, 0 } };
static const fg_conf_choice preemptions[] = { { "recompute", FG_PREEMPT_RECOMPUTE },
                                              { "swap", FG_PREEMPT_SWAP },
                                              { "auto", FG_PREEMPT_AUTO },
                                              { NULL, 0 } };
static const fg_conf_choice victims[] = { { "fewest-output", FG_VICTIM_FEWEST_OUTPUT },
                                          { "last-admitted", FG_VICTIM_LAST_ADMITTED },
                                          { "cheapest", FG_VICTIM_CHEAPEST },
                                          { NULL, 0 } };
static const fg_conf_choice last_chunks[] = { { "auto", FG_LAST_CHUNK_AUTO },
                                              { "short", FG_LAST_CHUNK_SHORT },
                                              { "whole", FG_LAST_CHUNK_WHOLE },
                                              { NULL, 0 } };
static const fg_conf_choice speculations[] = { { "off", FG_SPECULATE_OFF },
                                               { "ngram", FG_SPECULATE_NGRAM },
                                               { "model", FG_SPECULATE_MODEL },
                                               { "auto", FG_SPECULATE_AUTO },
                                               { NULL, 0 } };
static const fg_conf_choice draft_lengths[] = { { "pays", FG_DRAFT_PAYS },
                                                { "adaptive", FG_DRAFT_ADAPTIVE },
                                                { "fixed", FG_DRAFT_FIXED },
                                                { NULL, 0 } };
static const fg_conf_choice levels[] = {
    { "debug", FG_LOG_DEBUG },
    { "info", FG_LOG_INFO },
    { "warn", FG_LOG_WARN },
    { "error", FG_LOG_ERROR },
    { NULL, 0 },
};

static const fg_conf_choice routings[] = { { "cost", FG_ROUTE_COST },
                                           { "cache", FG_ROUTE_CACHE },
                                           { "least-loaded", FG_ROUTE_LEAST_LOADED },
                                           { "round-robin", FG_ROUTE_ROUND_ROBIN },
                                           { "two-choices", FG_ROUTE_TWO_CHOICES },
                                           { NULL, 0 } };
static const fg_conf_choice reasonings[] = { { "auto", FG_CONF_REASONING_AUTO },
                                             { "none", FG_CONF_REASONING_NONE },
                                             { NULL, 0 } };
static const fg_conf_choice splits[] = { { "auto", FG_SPLIT_AUTO },
                                         { "always", FG_SPLIT_ALWAYS },
                                         { "never", FG_SPLIT_NEVER },
                                         { NULL, 0 } };
static const fg_conf_choice role_names[] = {
    { "mode", 0 },
    { "prefill", FG_USE_PREFILL },
    { "decode", FG_USE_DECODE },
    { "both", FG_USE_PREFILL | FG_USE_DECODE },
    { NULL, 0 },
};

static const char basics[] = "What runs";
static const char door[] = "The HTTP door";
static const char cluster[] = "The cluster";
static const char memory[] = "Memory and speed";
static const char scheduling[] = "Scheduling";
static const char other[] = "Logs and safety";
static const char door_roles[] = "standalone and router";
static const char worker_roles[] = "prefill and decode";
static const char engine_roles[] = "standalone, prefill and decode";

static const fg_option options[] = {
    { .name = "model",
      .brief = 'm',
      .type = FG_OPTION_STRING,
      .group = basics,
      .value_name = "PATH",
      AT(model),
      .help = "The model: a GGUF file, or a folder as Hugging Face keeps it (config.json, "
              "*.safetensors, tokenizer.json). Every process of a cluster is given the same one: "
              "the router reads its tokenizer, the workers its weights." },
    { .name = "mode",
      .type = FG_OPTION_CHOICE,
      .default_text = "standalone",
      .choices = modes,
      .group = basics,
      AT(mode),
      .help =
          "What this process is: everything in one (standalone), the front door that places "
          "requests (router), or a worker that computes prompts (prefill) or answers (decode)." },
    { .name = "served-model-name",
      .type = FG_OPTION_STRING,
      .group = basics,
      .roles = door_roles,
      .value_name = "NAME",
      AT(served_model_name),
      .help = "The model's name in the API. Without it, the file's name without \".gguf\", or the "
              "folder's." },
    { .name = "name",
      .type = FG_OPTION_STRING,
      .group = basics,
      .value_name = "NAME",
      AT(name),
      .help = "This process's name in logs, metrics and on the bus; unique in the cluster. Without "
              "it, made from mode and process id." },

    { .name = "host",
      .type = FG_OPTION_STRING,
      .default_text = "127.0.0.1",
      .group = door,
      AT(host),
      .value_name = "HOST",
      .help = "Where to listen for HTTP. An address beyond loopback needs --api-key-file or "
              "--api-key, or --insecure-network." },
    { .name = "port",
      .type = FG_OPTION_PORT,
      .default_text = "8080",
      .group = door,
      .roles = door_roles,
      AT(port),
      .help = "The HTTP port; 0 picks a free one and says which." },
    { .name = "api-key-file",
      .type = FG_OPTION_STRING,
      .group = door,
      .value_name = "FILE",
      AT(api_key_file),
      .help = "Clients must show a key of this file, as \"Authorization: Bearer KEY\", for all but "
              "/health and /live. `forge keygen --api FILE` makes keys with names, scopes and last "
              "days; the file itself holds none. SIGHUP: it is read again." },
    { .name = "api-key",
      .type = FG_OPTION_STRING,
      .group = door,
      .value_name = "KEY",
      AT(api_key),
      .help = "One more such key, in plain text, that opens everything. FORGE_API_KEY in the "
              "environment keeps it out of the list of processes." },
    { .name = "status-port",
      .type = FG_OPTION_PORT,
      .default_text = "none",
      .min = -1,
      .max = 65535,
      .group = door,
      .roles = worker_roles,
      AT(status_port),
      .help = "Gives a worker /live, /health and /metrics on this port; 0 picks a free one." },
    { .name = "queue-limit",
      .type = FG_OPTION_U32,
      .default_text = "256",
      .min = 1,
      .max = FG_LIMIT_QUEUED_REQUESTS,
      .group = door,
      .roles = door_roles,
      AT(queue_limit),
      .help =
          "Requests that may wait for a place; the next one is answered 429 with Retry-After." },
    { .name = "queue-ahead",
      .type = FG_OPTION_U32,
      .default_text = "4",
      .min = 0,
      .max = 16,
      .group = door,
      .roles = door_roles,
      AT(queue_ahead),
      .help =
          "How many waiting requests, for which no worker has room now, others may pass at a time; "
          "each is passed 16 times at most. 0: strictly in order." },
    { .name = "slo",
      .type = FG_OPTION_STRING,
      .group = door,
      .roles = door_roles,
      .value_name = "LIST",
      AT(slo),
      .help =
          "Classes of service, NAME=TTFT_MS/ITL_MS separated by commas, 0 for no promise. A "
          "request "
          "with \"slo\": NAME that is predicted to miss its class's time to first token or between "
          "tokens is answered 429 at once, with the time after which it would not." },
    { .name = "tenant-queue-limit",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_QUEUED_REQUESTS,
      .group = door,
      .roles = door_roles,
      AT(tenant_queue_limit),
      .help = "Requests of one \"user\" that may wait for a place; 0: no limit of its own. Users "
              "share the "
              "workers fairly in any case." },
    { .name = "tenant-running-limit",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_LIVE_REQUESTS,
      .group = door,
      .roles = door_roles,
      AT(tenant_running_limit),
      .help = "Requests of one \"user\" that workers may have at a time; the others wait. 0: no "
              "limit." },
    { .name = "tenant-weights",
      .type = FG_OPTION_STRING,
      .group = door,
      .roles = door_roles,
      .value_name = "LIST",
      AT(tenant_weights),
      .help =
          "USER=WEIGHT separated by commas: a user of weight 3 gets three times the share of one "
          "that is not named, while both wait." },
    { .name = "max-tokens-default",
      .type = FG_OPTION_U32,
      .default_text = "512",
      .min = 1,
      .max = FG_LIMIT_CONTEXT_TOKENS,
      .group = door,
      .roles = door_roles,
      AT(max_tokens_default),
      .help = "The longest answer, in tokens, of a request that names no limit of its own." },
    { .name = "reasoning-format",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = reasonings,
      .group = door,
      .roles = door_roles,
      AT(reasoning_format),
      .help =
          "Where a chat's answer has what the model thinks, for requests that do not say: apart, "
          "in reasoning_content, where the chat template knows <think> (auto), or in content "
          "with its marks (none)." },
    { .name = "drain-seconds",
      .type = FG_OPTION_U32,
      .default_text = "10",
      .min = 0,
      .max = 3600,
      .group = door,
      AT(drain_seconds),
      .help =
          "After SIGTERM, Ctrl-C or, without --keys and --api-key-file, the end of its terminal "
          "(SIGHUP; not under nohup), how long running requests may take to finish." },

    { .name = "control",
      .type = FG_OPTION_ADDRESS,
      .default_text = "tcp://127.0.0.1:8090",
      .group = cluster,
      .roles = "router",
      AT(control),
      .help = "Where the router listens for its workers (ZeroMQ); port 0 picks a free one. Beyond "
              "loopback it needs --keys." },
    { .name = "router",
      .alias = "scheduler",
      .type = FG_OPTION_ADDRESSES,
      .default_text = "tcp://127.0.0.1:8090",
      .group = cluster,
      .roles = worker_roles,
      AT(router),
      .help = "The router's --control address; of several routers, which serve the same workers "
              "side by side, up to 8, separated by commas. Beyond loopback they need --keys." },
    { .name = "cache-key-file",
      .type = FG_OPTION_STRING,
      .group = cluster,
      .roles = "router",
      .value_name = "FILE",
      AT(cache_key_file),
      .help = "A file of at least 16 random bytes that the names of cached blocks are made with; "
              "the same for all routers of a cluster, which need it where there are several. One "
              "that starts again then finds what its workers have cached. Without it the key is "
              "drawn at start." },
    { .name = "prefill",
      .type = FG_OPTION_NAMES,
      .group = cluster,
      .roles = "router",
      AT(prefill),
      .help =
          "Prefill workers that the router waits for before it is ready, by --name, separated by "
          "commas. Without it, any one will do." },
    { .name = "decode",
      .type = FG_OPTION_NAMES,
      .group = cluster,
      .roles = "router",
      AT(decode),
      .help = "Decode workers that the router waits for, likewise." },
    { .name = "lease-ms",
      .type = FG_OPTION_U32,
      .default_text = "2000",
      .min = 100,
      .max = 600000,
      .group = cluster,
      .roles = "router",
      AT(lease_ms),
      .help = "A worker that is silent for so long, in milliseconds, counts as dead. Its requests "
              "are placed again." },
    { .name = "routing",
      .type = FG_OPTION_CHOICE,
      .default_text = "cost",
      .choices = routings,
      .group = cluster,
      .roles = "router",
      AT(routing),
      .help =
          "How a worker is chosen: by predicted time, which counts cached prefixes, queues, "
          "hand-over "
          "and what others would suffer (cost), or, to compare, by the longest cached prefix alone "
          "(cache), by load alone (least-loaded), in turns (round-robin), or the less loaded of "
          "two "
          "that are drawn (two-choices)." },
    { .name = "split",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = splits,
      .group = cluster,
      .roles = "router",
      AT(split),
      .help =
          "Whether prompt and answer of a request are computed by two workers: whatever is "
          "predicted "
          "to be better for it (auto), always where there are workers for both roles (always), or "
          "never." },
    { .name = "kv-pull",
      .type = FG_OPTION_CHOICE,
      .default_text = "on",
      .choices = switches,
      .group = cluster,
      .roles = "router",
      AT(kv_pull),
      .help = "Cached blocks that a prompt's prefill worker lacks are sent there by a worker that "
              "has them, a chat's "
              "decode worker for one, where that is predicted to be quicker than computing them." },
    { .name = "residency-mb",
      .type = FG_OPTION_U32,
      .default_text = "64",
      .min = 1,
      .max = 65536,
      .group = cluster,
      .roles = "router",
      AT(residency_mb),
      .help = "Memory, in MiB, for knowing which worker has which blocks cached; the least used is "
              "forgotten first." },
    { .name = "stuck-ms",
      .type = FG_OPTION_U32,
      .default_text = "120000",
      .min = 0,
      .max = 3600000,
      .group = cluster,
      .roles = "router",
      AT(stuck_ms),
      .help =
          "A worker that reports, has work, and ends no step for so long counts as dead too; after "
          "a quarter of it nothing new is placed there. 0: never." },
    { .name = "roles",
      .type = FG_OPTION_CHOICE,
      .default_text = "mode",
      .choices = role_names,
      .group = cluster,
      .roles = worker_roles,
      AT(roles),
      .help =
          "What the router uses this worker for: what its mode says, or prefill, decode or both. "
          "Every worker can do both; POST /forge/v1/admin/role changes it while it runs." },
    { .name = "keys",
      .type = FG_OPTION_STRING,
      .group = cluster,
      .roles = "router, prefill and decode",
      .value_name = "DIR",
      AT(keys),
      .help =
          "This process's directory of the keys that `forge keygen` made, or the one that holds "
          "the "
          "directories of all. The bus is then encrypted, and only workers of the router's list "
          "are heard. All processes of a cluster have keys, or none. SIGHUP makes the router read "
          "its list again." },
    { .name = "kv-transport",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = transports,
      .group = cluster,
      .roles = worker_roles,
      AT(kv_transport),
      .help =
          "How KV blocks travel from prefill to decode: shared memory on one host (shm), TCP, or "
          "the better of those that both sides have (auto)." },
    { .name = "kv-device-memory",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = kv_device_memories,
      .group = cluster,
      .roles = worker_roles,
      AT(kv_device_memory),
      .help =
          "On a GPU: KV blocks travel straight from its memory into that of another worker's GPU "
          "on "
          "this host, and the host has no copy of them. That takes a UCX that reaches GPU memory. "
          "auto: where it does, and --kv-transport is not tcp; on: or the worker does not start; "
          "off: by way of a mirror in host memory." },
    { .name = "kv-zero-copy",
      .type = FG_OPTION_CHOICE,
      .default_text = "off",
      .choices = switches,
      .group = cluster,
      .roles = worker_roles,
      AT(kv_zero_copy),
      .help = "A prompt's KV is computed straight into the decode worker's blocks as well, where "
              "these are in shared "
              "memory of this host: nothing of it has to be pushed. The answers are the same." },
    { .name = "link-host",
      .type = FG_OPTION_STRING,
      .default_text = "127.0.0.1",
      .group = cluster,
      .roles = worker_roles,
      .value_name = "HOST",
      AT(link_host),
      .help =
          "The interface address that KV transfers over TCP use. Beyond loopback it needs --keys, "
          "and a private network: see docs/SECURITY.md." },

    { .name = "device",
      .type = FG_OPTION_STRING,
      .default_text = "cpu",
      .group = memory,
      .roles = engine_roles,
      .value_name = "NAME",
      AT(device),
      .help =
          "What computes: cpu, cuda (the first GPU) or cuda:N. CUDA comes from forge_cuda.so, "
          "which lies beside this program or in ../lib/forge, or where the environment's "
          "FORGE_CUDA_PLUGIN says. With --tensor-parallel-size N cuda:N and those after it, or as "
          "many as cuda:2,cuda:0. Its answers are the same from run to run, but not the "
          "CPU's bits: both sides of a hand-over need the same kind of device." },
    { .name = "list-devices",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = memory,
      AT(list_devices),
      .help = "Prints what --device can be on this machine, or why there is no GPU, and ends." },
    { .name = "threads",
      .brief = 't',
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 1024,
      .group = memory,
      .roles = engine_roles,
      AT(threads),
      .help = "Compute threads; 0 takes one for each core that this process may use, within the "
              "container's processor quota. Processes of one machine may each have all of its "
              "cores: see --share-cores." },
    { .name = "tensor-parallel-size",
      .alias = "tp",
      .type = FG_OPTION_U32,
      .default_text = "1",
      .min = 1,
      .max = 16,
      .group = memory,
      .roles = engine_roles,
      AT(tensor_parallel_size),
      .help = "Processes that compute the model together, each with a part of every matrix and of "
              "the KV heads; --threads is shared among them, and with --cpu-pin on each has "
              "neighbouring cores. Answers are the same bits for any number, so workers of one "
              "cluster may differ in it. On GPUs each has its own: see --tp-gather. At most the "
              "model's KV heads." },
    { .name = "tp-gather",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = gatherings,
      .group = memory,
      .roles = engine_roles,
      AT(tp_gather),
      .help = "How GPUs of several processes get each other's rows: nccl, from GPU to GPU, host, "
              "through host memory, which costs time, or auto, by NCCL where it is there and works "
              "for all of them. nccl refuses to start without. The library is libnccl.so.2, or "
              "what the environment's FORGE_NCCL names. Never changes an answer." },
    { .name = "max-seqs",
      .type = FG_OPTION_U32,
      .default_text = "64",
      .min = 1,
      .max = FG_LIMIT_LIVE_REQUESTS,
      .group = memory,
      .roles = engine_roles,
      AT(max_seqs),
      .help = "Requests that may run at once." },
    { .name = "kv-blocks",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_BLOCKS,
      .group = memory,
      .roles = engine_roles,
      AT(kv_blocks),
      .help = "KV cache size in blocks of 16 tokens. 0 takes a sixteenth of the free memory (the "
              "container's limit respected), at most 512 MiB and at least 512 blocks; on a GPU a "
              "quarter of its free memory, and of the host's, which has a mirror of the blocks; at "
              "most 4 GiB where blocks come to the mirror (in a cluster, or with "
              "--kv-host-blocks), since the host takes all of it at start." },
    { .name = "context-max",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_CONTEXT_TOKENS,
      .group = memory,
      .roles = engine_roles,
      AT(context_max),
      .help = "Longest prompt and answer together, in tokens; 0 means the model's own limit." },
    { .name = "block-size",
      .type = FG_OPTION_U32,
      .default_text = "16",
      .min = 1,
      .max = 256,
      .group = memory,
      .roles = engine_roles,
      AT(block_size),
      .help =
          "Tokens per KV block, a power of two; the same in all workers of a cluster. Only whole "
          "blocks are shared between requests, so smaller ones find more and cost more." },
    { .name = "prefix-cache",
      .type = FG_OPTION_CHOICE,
      .default_text = "on",
      .choices = switches,
      .group = memory,
      .roles = engine_roles,
      AT(prefix_cache),
      .help =
          "Keeps the KV blocks of finished requests and shares equal prefixes between requests. "
          "Never changes an answer. A request can say more: prefix_cache, cache_salt." },
    { .name = "kv-host-blocks",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_BLOCKS,
      .group = memory,
      .roles = engine_roles,
      AT(kv_host_blocks),
      .help =
          "A second, slower pool of so many blocks in host memory, for requests that are swapped "
          "out and for cached blocks that are evicted; 0: none." },
    { .name = "kv-disk",
      .type = FG_OPTION_STRING,
      .group = memory,
      .roles = engine_roles,
      .value_name = "DIR",
      AT(kv_disk),
      .help =
          "Puts the blocks of --kv-host-blocks into a file in this directory, which takes their "
          "room at start and vanishes with the process." },
    { .name = "weights-cache",
      .type = FG_OPTION_STRING,
      .default_text = "auto",
      .group = memory,
      .roles = engine_roles,
      .value_name = "DIR",
      AT(weights_cache),
      .help =
          "Where packed weights are kept, in a file that the processes of a host share: beside the "
          "model, else in the user's cache directory (auto, for models above 32 MiB), in this "
          "directory, which may be in memory (/dev/shm), or nowhere (off), which makes every "
          "process "
          "pack them into memory of its own." },
    { .name = "kv-dtype",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = kv_types,
      .group = memory,
      .roles = engine_roles,
      AT(kv_dtype),
      .help =
          "Number type of the KV cache: as precise as the weights, which is bf16 for quantised and "
          "bf16 models and f16 for others (auto), or one of these. int8 has a scale per token and "
          "KV head, takes about half the memory and is the quickest to decode with behind long "
          "prompts, and with AVX-512 to compute them (with AMX bf16 is as quick). A GPU has bf16 "
          "alone. Both sides of a hand-over need the same." },
    { .name = "cpu-isa",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = instruction_sets,
      .group = memory,
      .roles = engine_roles,
      AT(cpu_isa),
      .help =
          "Instruction set of the kernels: the best this processor has (auto), plain C, AVX2, "
          "the same with AVX-VNNI, AVX-512 with VNNI, the same with BF16, that and AMX, or NEON "
          "with dot products. All give the same bits." },
    { .name = "cpu-pin",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = cpu_pins,
      .group = memory,
      .roles = engine_roles,
      AT(cpu_pin),
      .help = "Hold each compute thread on a processor of its own. auto: on machines with several "
              "memory nodes." },
    { .name = "share-cores",
      .type = FG_OPTION_STRING,
      .default_text = "auto",
      .group = memory,
      .roles = engine_roles,
      .value_name = "DIR",
      AT(share_cores),
      .help =
          "Agree with the other Forge processes of this user on this machine who computes on "
          "how many threads: each has its fair part of the cores while others compute, and all "
          "of its --threads while they do not. They meet in a small file in /dev/shm (auto), or "
          "in this directory, which keeps them apart from those that meet elsewhere. off: all "
          "threads, always. Threads that --cpu-pin holds in place are not shared." },

    { .name = "prefill-chunk-size",
      .type = FG_OPTION_U32,
      .default_text = "512",
      .min = 1,
      .max = 65536,
      .group = scheduling,
      .roles = engine_roles,
      AT(prefill_chunk_size),
      .help = "Longest piece of a prompt that one step computes. Smaller pieces disturb running "
              "answers less; the answer does not depend on it." },
    { .name = "max-batch-tokens",
      .type = FG_OPTION_U32,
      .default_text = "4096",
      .min = 1,
      .max = 65536,
      .group = scheduling,
      .roles = engine_roles,
      AT(max_batch_tokens),
      .help = "Most tokens, prompt pieces and answers together, in one step." },
    { .name = "step-ms",
      .type = FG_OPTION_U32,
      .default_text = "100",
      .min = 0,
      .max = 60000,
      .group = scheduling,
      .roles = engine_roles,
      AT(step_ms),
      .help =
          "While answers are being generated, prompt pieces are cut so that a step takes about so "
          "many milliseconds, by what steps took so far; 0: only --prefill-chunk-size counts." },
    { .name = "schedule",
      .type = FG_OPTION_CHOICE,
      .default_text = "decode-first",
      .choices = schedules,
      .group = scheduling,
      .roles = engine_roles,
      AT(schedule),
      .help =
          "Who gets a step's tokens first: running answers (even pace) or prompts (throughput)." },
    { .name = "admission",
      .type = FG_OPTION_CHOICE,
      .default_text = "watermark",
      .choices = admissions,
      .group = scheduling,
      .roles = engine_roles,
      AT(admission),
      .help =
          "What must be free for a request to start: its prompt and a small reserve, at the risk "
          "of being preempted (watermark), or all it may ever need (no-evict)." },
    { .name = "preemption",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = preemptions,
      .group = scheduling,
      .roles = engine_roles,
      AT(preemption),
      .help =
          "What happens to the KV blocks of a preempted request: computed again later, or moved "
          "to the blocks of --kv-host-blocks and back; auto takes what costs less." },
    { .name = "victim",
      .type = FG_OPTION_CHOICE,
      .default_text = "fewest-output",
      .choices = victims,
      .group = scheduling,
      .roles = engine_roles,
      AT(victim),
      .help =
          "Who is preempted when blocks run out: the request with the shortest answer so far, the "
          "one admitted last, or the one that costs least to compute again." },
    { .name = "last-chunk",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = last_chunks,
      .group = scheduling,
      .roles = engine_roles,
      AT(last_chunk),
      .help =
          "How a prompt ends that is handed over: with a short chunk, because what the last one "
          "computes travels after it, or not; auto where that is worth another step." },
    { .name = "queue-skip",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = 64,
      .group = scheduling,
      .roles = engine_roles,
      AT(queue_skip),
      .help = "How many later requests may start in one step past one that does not fit; 0 is "
              "strictly first come, first served." },
    { .name = "overlap",
      .type = FG_OPTION_CHOICE,
      .default_text = "on",
      .choices = switches,
      .group = scheduling,
      .roles = engine_roles,
      AT(overlap),
      .help = "Plans the next step while one computes. The answers are the same." },
    { .name = "speculate",
      .type = FG_OPTION_CHOICE,
      .default_text = "auto",
      .choices = speculations,
      .group = scheduling,
      .roles = engine_roles,
      AT(speculate),
      .help = "Tokens that may come next are computed along with the next one, and those that were "
              "right "
              "come at once. The answers are the same. ngram: where an answer repeats what stands "
              "in its "
              "prompt or in itself, the tokens that followed there; model: what "
              "--speculative-model says; "
              "auto: what the text says, or that model where there is one and it is likelier to be "
              "right." },
    { .name = "speculative-model",
      .type = FG_OPTION_STRING,
      .group = scheduling,
      .roles = "standalone and decode",
      .value_name = "PATH",
      AT(speculative_model),
      .help =
          "A smaller model with the same vocabulary, a GGUF file or a folder, that guesses what "
          "comes next, as long as that makes answers faster. They are the same, bit for bit, "
          "whatever it says." },
    { .name = "speculative-kv-blocks",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_BLOCKS,
      .group = scheduling,
      .roles = "standalone and decode",
      AT(speculative_kv_blocks),
      .help =
          "KV blocks of that model, of its own size; 0: as many as the model has. Sequences that "
          "find no room there are not guessed for." },
    { .name = "draft-max",
      .type = FG_OPTION_U32,
      .default_text = "8",
      .min = 1,
      .max = FG_LOOKAHEAD_MAX,
      .group = scheduling,
      .roles = engine_roles,
      AT(draft_max),
      .help = "Most guessed tokens of one request in a step." },
    { .name = "draft-length",
      .type = FG_OPTION_CHOICE,
      .default_text = "pays",
      .choices = draft_lengths,
      .group = scheduling,
      .roles = engine_roles,
      AT(draft_length),
      .help =
          "pays: as many guesses as make a token cheaper, by how often such were right and by what "
          "a row of a step was seen to take. adaptive: 1 / (1 - a), a being the share of a "
          "request's last 64 "
          "guesses that were right. fixed: --draft-max." },
    { .name = "local-prefill-tokens",
      .type = FG_OPTION_U32,
      .default_text = "128",
      .min = 0,
      .max = 65536,
      .group = scheduling,
      .roles = "decode",
      AT(local_prefill_tokens),
      .help = "A decode worker that has the beginning of a prompt in its cache computes the rest "
              "itself when it is no longer than this; 0: never." },

    { .name = "otlp-file",
      .type = FG_OPTION_STRING,
      .group = other,
      .value_name = "FILE",
      AT(otlp_file),
      .help =
          "Writes spans of traced requests there, as OTLP JSON, a line at a time; a folder gets "
          "a file per process, NAME.jsonl. Each process of a cluster writes its own part." },
    { .name = "otlp-sample",
      .type = FG_OPTION_FLOAT,
      .default_text = "1",
      .min = 0,
      .max = 1,
      .group = other,
      .roles = door_roles,
      AT(otlp_sample),
      .help = "Which share of the requests that come without a traceparent header is traced; one "
              "that brings it decides for itself." },
    { .name = "otlp-file-mb",
      .type = FG_OPTION_U32,
      .default_text = "64",
      .min = 1,
      .max = 65536,
      .group = other,
      AT(otlp_file_mb),
      .help =
          "When the file of spans has so many MiB it becomes FILE.1, in place of the one before, "
          "and a new one begins." },
    { .name = "flight-recorder-mb",
      .type = FG_OPTION_U32,
      .default_text = "16",
      .max = 4096,
      .group = other,
      AT(flight_recorder_mb),
      .help = "Memory for what a router or worker was told lately, for `forge sim --replay`: no "
              "prompts, "
              "no answers, no keys. Written into --flight-dir after a crash and on SIGUSR2; GET "
              "/debug/flight returns it. 0: nothing is kept." },
    { .name = "flight-dir",
      .type = FG_OPTION_STRING,
      .default_text = ".",
      .group = other,
      .value_name = "DIR",
      AT(flight_dir),
      .help =
          "Where forge-flight-NAME-PID.bin is written, readable by its owner only; a standalone "
          "server's worker has forge-flight-NAME-worker-PID.bin. A folder that takes no files is "
          "refused at start, and the default, if it takes none, is only warned of." },
    { .name = "log-level",
      .type = FG_OPTION_CHOICE,
      .default_text = "info",
      .choices = levels,
      .group = other,
      AT(log_level),
      .help = "The least important lines that are logged." },
    { .name = "insecure-network",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = other,
      AT(insecure_network),
      .help = "Allows addresses beyond loopback without --keys, and without --api-key-file for "
              "--host." },
};

/* Read by the tests and by the scripts of deploy/, not by this program; FORGE_CUDA_PLUGIN by
 * kernels/backend.c, FORGE_CUDA_AHEAD by common/engine/forward.c. */
static const char *const known_environment[] = {
    "FORGE_BIN",           "FORGE_BUILD_PACKAGES",       "FORGE_CACHE",
    "FORGE_CORPUS",        "FORGE_CUDA_AHEAD",           "FORGE_CUDA_PLUGIN",
    "FORGE_FULL_PACKAGES", "FORGE_MODEL_FILE",           "FORGE_NCCL",
    "FORGE_NCCL_GRAPHS",   "FORGE_NCCL_HOSTID_PER_RANK", "FORGE_NCCL_SECONDS",
    "FORGE_ROOT",          "FORGE_RUN_PACKAGES",         "FORGE_SCRIPT_PACKAGES",
    "FORGE_TESTS",         "FORGE_TEST_PACKAGES",        NULL,
};

const fg_conf_spec fg_serve_spec = {
    .command = "forge serve",
    .intro = "Serves a model over an OpenAI-compatible HTTP API.\n\n"
             "  forge serve --model FILE                            one process, port 8080\n"
             "  forge serve --model FILE --mode router              a cluster: the front door,\n"
             "  forge serve --model FILE --mode prefill --name p0   a worker for prompts,\n"
             "  forge serve --model FILE --mode decode --name d0    a worker for answers",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .known_environment = known_environment,
};
