#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python's low-level calls: the tests of `forge bench throughput` on the same
token ids, one JSON object per line. Started by tests/bench/peers with the Python of its environment.

Nothing is sampled and no text is made: the ids of decode are the same made-up ones, so that only the
model's own work is timed. KV cache in f16, as Forge's.
"""
import ctypes
import json
import platform
import time

import llama_cpp

from peer_options import batches_of, parser_for


def allow_tiles():
    """A build for a processor with AMX uses its tiles without asking Linux for them, and dies of it."""
    arch_prctl, ask_permission, tile_data = 158, 0x1023, 18
    if platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(arch_prctl, ask_permission, tile_data)  # refused where there are none


def ids(count, vocabulary):
    return [(7919 * i + 17) % vocabulary for i in range(count)]


class Engine:
    def __init__(self, path, threads, context, sequences):
        allow_tiles()
        self.keep = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.keep, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = 2048
        params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = threads
        params.n_threads_batch = threads
        params.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit("llama.cpp opens no context")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(2048, 0, 1)

    def clear(self):
        llama_cpp.llama_memory_clear(self.memory, True)

    def step(self, items):
        """items: (token, position, sequence, wants logits)."""
        batch = self.batch
        batch.n_tokens = len(items)
        for i, (token, position, sequence, wanted) in enumerate(items):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        code = llama_cpp.llama_decode(self.context, batch)
        if code != 0:
            raise SystemExit(f"llama_decode says {code}")
        llama_cpp.llama_synchronize(self.context)

    def prompt(self, tokens, sequence=0, chunk=512):
        for at in range(0, len(tokens), chunk):
            part = tokens[at:at + chunk]
            self.step([(token, at + i, sequence, at + i + 1 == len(tokens))
                       for i, token in enumerate(part)])

    def decode(self, count, sequences, depth):
        first = ids(sequences, self.vocabulary)
        for i in range(count):
            self.step([((first[s] + i) % self.vocabulary, depth + i, s, True)
                       for s in range(sequences)])


def negative_log_probabilities(options):
    """For each line of ids: how many tokens were predicted, and the sum in nats."""
    import numpy
    with open(options.nats, encoding="ascii") as lines:
        windows = [[int(word) for word in line.split()] for line in lines if line.strip()]
    engine = Engine(options.model, options.threads, -(-max(map(len, windows)) // 256) * 256, 1)
    for window in windows:
        engine.clear()
        total = 0.0
        for at in range(0, len(window), 32):
            part = window[at:at + 32]
            engine.step([(token, at + i, 0, True) for i, token in enumerate(part)])
            for i in range(len(part)):
                if at + i + 1 < len(window):
                    row = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(engine.context, i),
                                                   (engine.vocabulary,)).astype(numpy.float64)
                    peak = row.max()
                    total += numpy.log(numpy.exp(row - peak).sum()) + peak - row[window[at + i + 1]]
        print(len(window) - 1, total, flush=True)


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def main():
    parser = parser_for(__doc__)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--nats", default=None, help="instead: score the lines of ids in this file")
    options = parser.parse_args()
    if options.nats:
        negative_log_probabilities(options)
        return
    batches, most = batches_of(options)
    room = max(options.prompt, options.generate + 1)
    # The context is shared out evenly among the sequences, in pieces of 256.
    each = -(-room // 256) * 256
    engine = Engine(options.model, options.threads, each * most, most)

    def report(test, batch, tokens, seconds):
        print(json.dumps({"test": test, "batch": batch, "tokens": tokens,
                          "tokens_per_s": tokens / seconds}), flush=True)

    if options.prompt:
        prompt = ids(options.prompt, engine.vocabulary)
        engine.prompt(prompt[:32])
        for _ in range(options.repeat):
            engine.clear()
            report(f"pp{options.prompt}", 1, options.prompt, timed(lambda: engine.prompt(prompt)))
    for batch in batches if options.generate else []:
        name = f"tg{options.generate}" + (f" b={batch}" if batch > 1 else "")
        engine.clear()
        engine.decode(1, batch, 0)
        for _ in range(options.repeat):
            engine.clear()
            seconds = timed(lambda b=batch: engine.decode(options.generate, b, 0))
            report(name, batch, options.generate * batch, seconds)


if __name__ == "__main__":
    main()
