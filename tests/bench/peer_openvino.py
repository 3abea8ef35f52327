#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching on a GGUF file: the tests of `forge bench throughput` on the same token
ids, one JSON object per line. Started by tests/bench/peers with the Python of its environment.

A whole answer is timed by the clock. Prompts of decode have one token, so that each token is one step of all
sequences; each is chosen greedily, as Forge's. KV cache of 16 bits and threads not pinned, as Forge's; the
rest is as OpenVINO chooses, unless OPENVINO_PROPERTIES says otherwise, as NAME=VALUE NAME=VALUE.
"""
import json
import os
import time

import numpy
import openvino
import openvino_genai

from peer_options import batches_of, parser_for


def load(options, sequences, tokens):
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = sequences * (tokens // 16 + 2)  # of 32 tokens, on a CPU
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = sequences
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_NUM_THREADS": options.threads, "KV_CACHE_PRECISION": "f16",
                  "ENABLE_CPU_PINNING": False}
    properties.update(pair.split("=", 1) for pair in os.environ.get("OPENVINO_PROPERTIES", "").split())
    try:
        return openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
    except RuntimeError as error:
        raise SystemExit(f"it does not load the file: {str(error).strip().splitlines()[-1]}") from None


def answer(pipeline, prompts, count):
    """Seconds for `count` tokens after each prompt."""
    config = openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
    inputs = [openvino.Tensor(numpy.array([prompt], numpy.int64)) for prompt in prompts]
    began = time.perf_counter()
    answers = pipeline.generate(inputs, [config] * len(inputs))
    seconds = time.perf_counter() - began
    if any(len(a.m_generation_ids[0]) != count for a in answers):
        raise SystemExit(f"an answer has not the {count} tokens asked for")
    return seconds


def main():
    parser = parser_for(__doc__)
    options = parser.parse_args()
    batches, most = batches_of(options)
    pipeline = load(options, most, max(options.prompt, options.generate) + 2)
    vocabulary = len(pipeline.get_tokenizer().get_vocab())

    def ids(count):
        return [(7919 * i + 17) % vocabulary for i in range(count)]

    def report(test, batch, tokens, seconds):
        print(json.dumps({"test": test, "batch": batch, "tokens": tokens,
                          "tokens_per_s": tokens / seconds}), flush=True)

    if options.prompt:
        answer(pipeline, [ids(options.prompt)], 1)  # kernels are made for a shape when it first comes
        report(f"pp{options.prompt}", 1, options.prompt, answer(pipeline, [ids(options.prompt)], 1))
    for batch in batches if options.generate else []:
        name = f"tg{options.generate}" + (f" b={batch}" if batch > 1 else "")
        prompts = [[token] for token in ids(batch)]
        answer(pipeline, prompts, 2)
        report(name, batch, options.generate * batch, answer(pipeline, prompts, options.generate))


if __name__ == "__main__":
    main()
