#!/usr/bin/env python3
"""llama.cpp as the prebuilt xllamacpp has it, through its server's own interface in one process: the tests
of `forge bench throughput`, one JSON object per line. With --serve it only serves and prints its address.

Prefill and decode of one sequence are timed by llama.cpp itself; several sequences by the clock, from the
first to the last of as many requests with prompts of one token.
"""
import json
import re
import sys
import threading
import time

import xllamacpp

from peer_options import batches_of, parser_for


def serve(options, sequences, context):
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_ctx = context
    params.n_parallel = sequences
    params.n_batch = 2048
    params.n_ubatch = 512
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.verbosity = -1
    params.port = 0
    return xllamacpp.Server(params)


def complete(server, tokens, count):
    answer = server.handle_completions({"prompt": tokens, "n_predict": count, "temperature": 0,
                                        "ignore_eos": True, "cache_prompt": False})
    return json.loads(answer) if isinstance(answer, (str, bytes)) else answer


def instructions():
    """Those of the processor that llama.cpp was compiled for and found."""
    return " ".join(re.findall(r"(\w+) = 1", xllamacpp.get_system_info()))


def together(server, batch, count):
    """Seconds for `batch` answers at once."""
    threads = [threading.Thread(target=complete, args=(server, [17 + s], count))
               for s in range(batch)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def main():
    parser = parser_for(__doc__)
    parser.add_argument("--serve", type=int, default=0, help="serve this many at once")
    options = parser.parse_args()
    if options.serve:
        server = serve(options, options.serve, options.serve * (options.prompt + options.generate + 64))
        print(json.dumps({"address": server.listening_address, "instructions": instructions()}),
              flush=True)
        sys.stdin.read()  # until whoever started this is gone
        return
    batches, most = batches_of(options)
    each = max(options.prompt, options.generate) + 64
    server = serve(options, most, each * most)
    # Any ids will do, and these are in every vocabulary.
    prompt = [17 + 7919 * i % 480 for i in range(options.prompt)]
    complete(server, prompt[:32] or [17], 2)
    if options.prompt:
        timings = complete(server, prompt, 1)["timings"]
        print(json.dumps({"test": f"pp{options.prompt}", "batch": 1, "tokens": timings["prompt_n"],
                          "tokens_per_s": timings["prompt_per_second"]}), flush=True)
    for batch in batches if options.generate else []:
        name = f"tg{options.generate}" + (f" b={batch}" if batch > 1 else "")
        together(server, batch, 1)
        seconds = together(server, batch, options.generate)
        tokens = options.generate * batch
        print(json.dumps({"test": name, "batch": batch, "tokens": tokens,
                          "tokens_per_s": tokens / seconds}), flush=True)


if __name__ == "__main__":
    main()
