/*
 * top_golden - what the screens of test_top.c look like.
 */
#ifndef FORGE_TESTS_UNIT_CLI_TOP_GOLDEN_H
#define FORGE_TESTS_UNIT_CLI_TOP_GOLDEN_H

#include "cli/top_draw.h"

static const struct {
    const char *name;
    fg_top_view view;
    bool blank; /* nothing was read yet */
    const char *want;
} goldens[] = {
    { "80 x 24",
      { .width = 80, .height = 24, .keys = true },
      false,
      "forge top  ready  up 1h02m  http://127.0.0.1:8080\n"
      "requests  running 3  queued 2  3/s  429 7  failed 2\n"
      "tokens/s  in 0  out 500  kv 25% of 2.05k blocks in use\n"
      "latency   ttft p50 150ms p95 195ms  itl p50 - p95 -\n"
      "queue     2 requests  640 tokens  oldest 1.5s\n"
      "\n"
      "WORKER      ROLE    STATE     RUN WAIT BLOCKS         HIT STEPS/S BUSY   SEEN\n"
      "decode-0    decode  up          2    1 [...........]    -     200   0%  120ms\n"
      "decode-1    decode  up          2    1 [#####======]  71%     200  75%  120ms\n"
      "prefill-0   prefill draining    2    1 [#=.........]    -     200  75%  120ms\n"
      "\n"
      "REQUEST          STATE           AGE     IN TOKENS PREFILL     DECODE\n"
      "00000000000000a1 decoding      12.3s   40ms     12 -           decode-1\n"
      "00000000000000a2 prefilling    800ms   40ms     12 prefill-0   decode-0\n"
      "00000000000000a3 queued         90ms   40ms     12 -           -\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "q quit  p pause  s sort (name)  ? help\n" },
    { "80 x 24, by busy, paused",
      { .width = 80, .height = 24, .keys = true, .sort = FG_TOP_BY_BUSY, .paused = true },
      false,
      "forge top  ready (paused)  up 1h02m  http://127.0.0.1:8080\n"
      "requests  running 3  queued 2  3/s  429 7  failed 2\n"
      "tokens/s  in 0  out 500  kv 25% of 2.05k blocks in use\n"
      "latency   ttft p50 150ms p95 195ms  itl p50 - p95 -\n"
      "queue     2 requests  640 tokens  oldest 1.5s\n"
      "\n"
      "WORKER      ROLE    STATE     RUN WAIT BLOCKS         HIT STEPS/S BUSY   SEEN\n"
      "decode-1    decode  up          2    1 [#####======]  71%     200  75%  120ms\n"
      "prefill-0   prefill draining    2    1 [#=.........]    -     200  75%  120ms\n"
      "decode-0    decode  up          2    1 [...........]    -     200   0%  120ms\n"
      "\n"
      "REQUEST          STATE           AGE     IN TOKENS PREFILL     DECODE\n"
      "00000000000000a1 decoding      12.3s   40ms     12 -           decode-1\n"
      "00000000000000a2 prefilling    800ms   40ms     12 prefill-0   decode-0\n"
      "00000000000000a3 queued         90ms   40ms     12 -           -\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "q quit  p go on  s sort (busy)  ? help\n" },
    { "40 x 10",
      { .width = 40, .height = 10, .keys = true },
      false,
      "forge top  ready  up 1h02m  http://127.0\n"
      "requests  running 3  queued 2  3/s  429\n"
      "WORKER   STATE     RUN WAIT BLOCKS\n"
      "decode-0 up          2    1 [........]\n"
      "  and 2 more workers\n"
      "REQUEST             AGE TOKENS PREFILL\n"
      "00000000000000a1  12.3s     12 -\n"
      "00000000000000a2  800ms     12 prefill-\n"
      "00000000000000a3   90ms     12 -\n"
      "q quit  p pause  s sort (name)  ? help\n" },
    { "200 x 50",
      { .width = 200, .height = 50, .keys = true },
      false,
      "forge top  ready  up 1h02m  http://127.0.0.1:8080\n"
      "requests  running 3  queued 2  3/s  429 7  failed 2\n"
      "tokens/s  in 0  out 500  kv 25% of 2.05k blocks in use\n"
      "latency   ttft p50 150ms p95 195ms  itl p50 - p95 -\n"
      "queue     2 requests  640 tokens  oldest 1.5s\n"
      "\n"
      "WORKER                       ROLE    STATE     RUN WAIT BLOCKS                             "
      "HIT STEPS/S BUSY   SEEN\n"
      "decode-0                     decode  up          2    1 [...............................]   "
      " -     200   0%  120ms\n"
      "decode-1                     decode  up          2    1 [#############================..]  "
      "71%     200  75%  120ms\n"
      "prefill-0                    prefill draining    2    1 [#=.............................]   "
      " -     200  75%  120ms\n"
      "\n"
      "REQUEST          STATE           AGE     IN  PROMPT TOKENS PREFILL                      "
      "DECODE\n"
      "00000000000000a1 decoding      12.3s   40ms     300     12 -                            "
      "decode-1\n"
      "00000000000000a2 prefilling    800ms   40ms     300     12 prefill-0                    "
      "decode-0\n"
      "00000000000000a3 queued         90ms   40ms     300     12 -                            -\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "q quit  p pause  s sort (name)  ? help\n" },
    { "20 x 4",
      { .width = 20, .height = 4, .keys = true },
      false,
      "forge top  ready  up\n"
      "requests  running 3\n"
      "WORKER    RUN WAIT\n"
      "REQUEST\n" },
    { "3 x 2",
      { .width = 3, .height = 2, .keys = true },
      false,
      "for\n"
      "req\n" },
    { "1 x 1", { .width = 1, .height = 1 }, false, "f\n" },
    { "no width", { .width = 0, .height = 5 }, false, "" },
    { "text without an end",
      { .width = 120, .height = 0 },
      false,
      "forge top  ready  up 1h02m  http://127.0.0.1:8080\n"
      "requests  running 3  queued 2  3/s  429 7  failed 2\n"
      "tokens/s  in 0  out 500  kv 25% of 2.05k blocks in use\n"
      "latency   ttft p50 150ms p95 195ms  itl p50 - p95 -\n"
      "queue     2 requests  640 tokens  oldest 1.5s\n"
      "\n"
      "WORKER            ROLE    STATE     RUN WAIT BLOCKS                HIT STEPS/S BUSY   SEEN\n"
      "decode-0          decode  up          2    1 [..................]    -     200   0%  120ms\n"
      "decode-1          decode  up          2    1 [########=========.]  71%     200  75%  120ms\n"
      "prefill-0         prefill draining    2    1 [#=................]    -     200  75%  120ms\n"
      "\n"
      "REQUEST          STATE           AGE     IN  PROMPT TOKENS PREFILL           DECODE\n"
      "00000000000000a1 decoding      12.3s   40ms     300     12 -                 decode-1\n"
      "00000000000000a2 prefilling    800ms   40ms     300     12 prefill-0         decode-0\n"
      "00000000000000a3 queued         90ms   40ms     300     12 -                 -\n" },
    { "nothing yet",
      { .width = 60, .height = 8, .keys = true },
      true,
      "forge top  waiting  up -  http://127.0.0.1:8080\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "q quit  p pause  s sort (name)  ? help\n" },
    { "away before anything came",
      { .width = 60, .height = 8, .problem = "nobody answers", .retry_s = 4 },
      true,
      "forge top  AWAY, asked again in 4 s: nobody answers\n" },
    { "away",
      { .width = 70, .height = 13, .problem = "nobody answers", .retry_s = 4 },
      false,
      "forge top  AWAY, asked again in 4 s: nobody answers\n"
      "requests  running 3  queued 2  3/s  429 7  failed 2\n"
      "tokens/s  in 0  out 500  kv 25% of 2.05k blocks in use\n"
      "latency   ttft p50 150ms p95 195ms  itl p50 - p95 -\n"
      "queue     2 requests  640 tokens  oldest 1.5s\n"
      "WORKER     ROLE    STATE     RUN WAIT BLOCKS       HIT STEPS/S BUSY\n"
      "decode-0   decode  up          2    1 [.........]    -     200   0%\n"
      "decode-1   decode  up          2    1 [####=====]  71%     200  75%\n"
      "prefill-0  prefill draining    2    1 [#=.......]    -     200  75%\n"
      "REQUEST          STATE           AGE TOKENS PREFILL    DECODE\n"
      "00000000000000a1 decoding      12.3s     12 -          decode-1\n"
      "00000000000000a2 prefilling    800ms     12 prefill-0  decode-0\n"
      "00000000000000a3 queued         90ms     12 -          -\n" },
    { "help",
      { .width = 80, .height = 20, .keys = true, .help = true },
      false,
      "forge top  ready  up 1h02m  http://127.0.0.1:8080\n"
      "requests  running 3  queued 2  3/s  429 7  failed 2\n"
      "tokens/s  in 0  out 500  kv 25% of 2.05k blocks in use\n"
      "latency   ttft p50 150ms p95 195ms  itl p50 - p95 -\n"
      "queue     2 requests  640 tokens  oldest 1.5s\n"
      "q  leave    p  pause    s  sort the workers    ?  this\n"
      "\n"
      "BLOCKS   # in use   = cached, given up when needed   . free\n"
      "HIT      prompt tokens found in the worker's prefix cache, since it started\n"
      "BUSY     share of the time that its engine computed\n"
      "SEEN     since the worker last spoke\n"
      "IN       since the request entered its state\n"
      "ttft     from an accepted request to its first token\n"
      "itl      from one token to the next\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "\n"
      "q quit  p pause  s sort (name)  ? help\n" },
};

#endif
