/*
 * limits - every bound on what an outsider, a peer or time can make grow. Full means FG_AGAIN inside
 * and 429 (or 413, 431) at the edge.
 */
#ifndef FORGE_COMMON_BASE_LIMITS_H
#define FORGE_COMMON_BASE_LIMITS_H

#define FG_LIMIT_HTTP_HEADER_BYTES (64u * 1024u)
#define FG_LIMIT_HTTP_HEADER_COUNT 100u
#define FG_LIMIT_HTTP_BODY_BYTES   (8u * 1024u * 1024u)
#define FG_LIMIT_HTTP_CONNECTIONS  4096u
#define FG_LIMIT_DESCRIPTORS       8192u /* asked of the system at start */
#define FG_LIMIT_HTTP_HEADER_MS    10000u
#define FG_LIMIT_HTTP_BODY_MS      30000u
#define FG_LIMIT_HTTP_IDLE_MS      75000u
#define FG_LIMIT_STREAM_BYTES      (256u * 1024u) /* unread output of one event stream */
#define FG_LIMIT_STREAM_STALL_MS   30000u
/* Unread output of all connections: as much as they have if all are event streams, and as much again. */
#define FG_LIMIT_UNREAD_BYTES (2u * FG_LIMIT_HTTP_CONNECTIONS * FG_LIMIT_STREAM_BYTES)
/* Whole answers in the making, of all requests: where there is more, who comes waits. */
#define FG_LIMIT_GATHERED_BYTES    (1024u * 1024u * 1024u)
#define FG_LIMIT_FRAME_BYTES       (8u * 1024u * 1024u) /* one bus frame */
#define FG_LIMIT_FRAME_ARENA_BYTES (64u * 1024u * 1024u)
#define FG_LIMIT_BUS_QUEUE         4096u /* frames towards one peer */
#define FG_LIMIT_JSON_DEPTH        64u
#define FG_LIMIT_JSON_GROUPS       (1u << 18) /* arrays and objects of one text */
#define FG_LIMIT_JSON_VALUES       (1u << 21)
#define FG_LIMIT_STOP_STRINGS      16u
#define FG_LIMIT_STOP_BYTES        1024u
#define FG_LIMIT_QUEUED_REQUESTS   1024u
#define FG_LIMIT_LIVE_REQUESTS     4096u
#define FG_LIMIT_WORKERS           256u
#define FG_LIMIT_NAME_BYTES        64u
#define FG_LIMIT_CLASS_BYTES       128u  /* of a numerics class */
#define FG_LIMIT_KEYS              1024u /* of workers that a router lets in */
#define FG_LIMIT_KEY_FILE_BYTES    (256u * 1024u)
#define FG_LIMIT_CONTEXT_TOKENS    (1u << 20)
#define FG_LIMIT_BLOCKS            (1u << 22)
#define FG_LIMIT_MESSAGES          10000u
#define FG_LIMIT_TOOLS             128u                  /* of a request */
#define FG_LIMIT_CHOICES           64u                   /* `n` */
#define FG_LIMIT_EMBEDDINGS        2048u                 /* texts of one request */
#define FG_LIMIT_PIN_MS            (24u * 3600u * 1000u) /* of a pinned prefix */
#define FG_LIMIT_CACHE_SALT_BYTES  1024u
#define FG_LIMIT_BIASES            1024u      /* entries of `logit_bias` */
#define FG_LIMIT_LOGPROBS          (1u << 20) /* of one whole answer */
#define FG_LIMIT_GRAMMAR_BYTES     (128u * 1024u)
#define FG_LIMIT_BATCHES           4u /* at a time */
#define FG_LIMIT_BATCH_ITEMS       10000u
#define FG_LIMIT_BATCH_RUNNING     256u /* choices of one batch that dispatch has at a time */
#define FG_LIMIT_BATCH_BYTES       (64u * 1024u * 1024u) /* answers of one batch */
#define FG_LIMIT_CUSTOM_ID_BYTES   512u

#endif
