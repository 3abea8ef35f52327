#!/usr/bin/env python3
"""A model served from a Hugging Face folder is the model that a GGUF file of the same weights is: the same ids (and those of
PyPI's tokenizers), the same logits and answers, bit for bit, alone, in a cluster and on two ranks, for every architecture,
type of weights, number of files and spelling of merges; what is not read is refused in a line.

The folders are written here from GGUF files, since no network is at hand; see tests/support/hf_folder.py.
"""
# needs: numpy gguf tokenizers safetensors
# needs-model
import json
import lzma
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unicodedata

import numpy as np

from _forge import ROOT, Suite, answer_of, assert_same, find_tool, plain_environment, post, run_all, served_model
from _logits import forge_logits
from tokenizer_vs_llamacpp import (DIGITS, EMOJI, LONG, MARKS, SCRIPTS, SPECIAL, WHITE, forge_ids, pack, random_texts)

sys.path.insert(0, str(ROOT / "tests/support"))
import hf_folder  # noqa: E402  pylint: disable=wrong-import-position,import-error
import layers_gguf  # noqa: E402  pylint: disable=wrong-import-position,import-error

# Of qwen2, phi3, granite, gemma3, smollm3, qwen3moe, llama with experts, qwen2moe.
SHAPES = ["tiny-yarn", "tiny-longrope", "tiny-granite", "tiny-gemma3", "tiny-smollm3", "tiny-moe", "tiny-mixtral",
          "tiny-qwen2moe"]
MORE_SHAPES = ["qwen2.5-0.5b", "qwen3-0.6b", "tiny-phi4", "tiny-gemma"]
VOCABULARIES = [("llama-bpe", {}), ("qwen2", {}), ("gpt-2", {}), ("llama-spm", {"metaspace": True}), ("llama-spm", {})]
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}


def llama3_divisors(config, pairs):
    """What Llama 3.1 divides each pair's frequency by."""
    factor, original, divisors = config["factor"], config["original_max_position_embeddings"], []
    for i in range(pairs):
        wave = 2 * math.pi * 10000.0 ** (i / pairs)
        smooth = ((original / wave - config["low_freq_factor"])
                  / (config["high_freq_factor"] - config["low_freq_factor"]))
        between = 1 / ((1 - smooth) / factor + smooth)
        divisors.append(1.0 if wave < original / config["high_freq_factor"]
                        else factor if wave > original / config["low_freq_factor"] else between)
    return np.array(divisors, np.float32)


class World:
    def __init__(self, suite, folder):
        self.suite, self.folder = suite, pathlib.Path(folder)
        self.model = self.file = None

    def make_smollm2(self):
        """Two layers of it: the tokenizer is whole, the answers are its own."""
        source = self.suite.smollm2()
        if not self.suite.options.full:
            source = str(self.folder / "few-layers.gguf")
            layers_gguf.make(self.suite.smollm2(), source, 2)
        self.model, self.file = self.folder / "SmolLM2", self.folder / "SmolLM2.gguf"
        hf_folder.make(source, self.model, self.file, shards=3, pairs=True)

    def pair(self, shape, layers=2, **options):
        """A random model as a folder and as a file."""
        source, name = self.folder / f"{shape}.source.gguf", f"{shape}-{options.get('dtype', 'BF16')}"
        cut = [] if shape.startswith("tiny") else ["--layers", str(layers)]
        subprocess.run([find_tool(self.suite, "make-gguf"), source, "--shape", shape, *cut, "--vocab", "2000", "--type",
                        "f32"], check=True)
        hf_folder.make(str(source), self.folder / name, self.folder / f"{name}.gguf", **options)
        return self.folder / name, self.folder / f"{name}.gguf"


# ---- ids ----

def texts_of(world):
    return (SCRIPTS + EMOJI + DIGITS + WHITE + MARKS + SPECIAL + LONG
            + list(random_texts(world.suite.random, 1000 if world.suite.options.full else 300)))


def compare(world, folder, texts):
    """With PyPI's tokenizers; without random characters that are so new that tables of letters may lack them."""
    import tokenizers  # pylint: disable=import-outside-toplevel
    oracle = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    common = set("".join(SCRIPTS + EMOJI + DIGITS + WHITE + MARKS))
    texts = [text for text in texts
             if all(c in common or unicodedata.ucd_3_2_0.category(c) != "Cn" for c in text)]
    for text, have in zip(texts, forge_ids(find_tool(world.suite, "tokenize_tool"), str(folder), "special", texts)):
        want = oracle.encode(text, add_special_tokens=False).ids
        assert have == want, f"{text[:80]!r}: {have[:20]}, tokenizers says {want[:20]}"
    return f"{len(texts)} texts"


def ids_as_file(world):
    tool, texts = find_tool(world.suite, "tokenize_tool"), texts_of(world)
    for mode in ("encode", "special", "bos"):
        assert forge_ids(tool, str(world.model), mode, texts) == forge_ids(tool, str(world.file), mode, texts), mode
    conversation = b"".join(pack(text) for text in ("1", "2", "system", "Be brief.", "user", "Why is the sky blue?"))
    chats = [subprocess.run([tool, str(path), "chat"], input=conversation, stdout=subprocess.PIPE, check=True).stdout
             for path in (world.model, world.file)]
    assert chats[0] == chats[1] and b"<|im_start|>user" in chats[0], chats
    return f"{len(texts)} texts"


def other_cuts(world, shape):
    """Expressions of other families, over a vocabulary of letters."""
    folder, file = world.pair(shape)
    tool, texts = find_tool(world.suite, "tokenize_tool"), texts_of(world)
    assert forge_ids(tool, str(folder), "special", texts) == forge_ids(tool, str(file), "special", texts), "not the file's"
    return compare(world, folder, texts)


def vocabulary(world, name, **options):
    """A whole published vocabulary, as a folder."""
    source = world.folder / f"{name}.vocabulary.gguf"
    source.write_bytes(lzma.open(world.suite.corpus(f"tokenizers/ggml-vocab-{name}.gguf.xz")).read())
    folder = world.folder / f"vocabulary-{name}-{len(options)}"
    hf_folder.make_vocabulary(str(source), folder, **options)
    source.unlink()
    return compare(world, folder, texts_of(world) + ["<s>Hi</s> there<s>  x", " <s> a", "<|begin_of_text|>Hi<|eot_id|>",
                                                     "a\n\nb"])


# ---- logits and answers ----

def same_logits(world, shape, **options):
    folder, file = world.pair(shape, **options)
    rng = world.suite.random
    prompts = [[rng.randrange(300, 1700) for _ in range(count)] for count in (1, 17, 90)]
    (tokens, logits), (want_tokens, want) = (forge_logits(world.suite, str(path), prompts, steps=6, kv="auto")
                                             for path in (folder, file))
    assert (tokens == want_tokens).all() and logits.tobytes() == want.tobytes(), "logits differ"
    shutil.rmtree(folder)
    file.unlink()
    return f"{logits.size} logits"


def requests():
    prompts = ["Why is the sky blue?", "The capital of France is", "def fibonacci(n):",
               "My favourite season is autumn because " * 12]
    bodies = [{"model": "any", "prompt": prompt, "max_tokens": 8, "temperature": 0} for prompt in prompts]
    bodies[1].update(temperature=0.9, top_p=0.95, seed=7)
    bodies[3].update(structured_outputs={"regex": "([A-Za-z]+,? ){4,8}[a-z]+[.]"})
    return bodies


def answers(world, model, **shape):
    with world.suite.cluster(model=str(model), **shape) as cluster:
        name = served_model(cluster)
        have = run_all([lambda body=body: answer_of(cluster.port, {**body, "model": name}) for body in requests()])
        chat = post(cluster.port, "/v1/chat/completions", {
            "model": name, "messages": [{"role": "user", "content": "Name a fruit."}], "max_tokens": 12, "temperature": 0,
            "logits_digest": True})
        cluster.wait_at_rest()
    return name, have, chat["choices"]


def same_answers(world, want, **shape):
    if not want:
        want.append(answers(world, world.file, standalone=True))
    name, have, chat = answers(world, f"{world.model}/", **shape)
    assert name == "SmolLM2" == want[0][0], name
    assert_same(requests(), want[0][1], have, "differ from the file's")
    assert chat == want[0][2], f"{chat} is not {want[0][2]}"


def as_draft(world):
    """The folder guesses for the file, the file for the folder: all guesses are right."""
    for model, draft in ((world.file, world.model), (world.model, world.file)):
        name, have, _ = answers(world, model, standalone=True, flags=["--speculative-model", draft])
        assert name and have == answers(world, world.file, standalone=True)[1], "a draft model changed the answers"


# ---- the sidecar ----

def sidecar(world):
    cache = world.folder / "cache"

    def origin():
        with world.suite.cluster(model=str(world.model), standalone=True, flags=["--weights-cache", cache]) as cluster:
            answer_of(cluster.port, {**requests()[0], "model": served_model(cluster)})
            text = cluster.router.log_tail(100)
        return text, [(path.name, path.stat().st_ino) for path in cache.iterdir()]

    _, first = origin()
    assert len(first) == 1 and first[0][0].startswith("SmolLM2-"), first
    _, again = origin()
    assert again == first, f"{again}: packed again"
    (world.model / "config.json").touch()  # any of the files
    text, third = origin()
    assert third[0][1] != first[0][1] and "older than the model file" in text, f"{third} after a change: {text[-500:]}"


# ---- refusals ----

def change(folder, name, edit):
    path = folder / name
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    path.write_text(json.dumps(value), encoding="utf-8")


REFUSED = [
    ("another architecture", lambda f: change(f, "config.json", lambda c: c.update(architectures=["OPTForCausalLM"])),
     "OPTForCausalLM is not read from a folder"),
    ("quantised weights", lambda f: change(f, "config.json", lambda c: c.update(
        quantization_config={"quant_method": "gptq"})), "quantised by gptq are not read"),
    ("another tokenizer", lambda f: change(f, "tokenizer.json", lambda t: t["model"].update(type="Unigram")),
     "model Unigram is not supported"),
    ("other cuts", lambda f: change(f, "tokenizer.json", lambda t: t.update(pre_tokenizer={"type": "WhitespaceSplit"})),
     "pre_tokenizer (WhitespaceSplit)"),
    ("a path out of the folder", lambda f: change(f, "model.safetensors.index.json", lambda i: i["weight_map"].update(
        {"model.norm.weight": "../x.safetensors"})), "in no .safetensors file of this folder"),
    ("a file of weights is cut off", lambda f: (f / "model-00002-of-00003.safetensors").write_bytes(
        (f / "model-00002-of-00003.safetensors").read_bytes()[:-1]), "cut off or damaged"),
    ("a file of weights is missing", lambda f: (f / "model-00003-of-00003.safetensors").unlink(),
     "there is no model-00003-of-00003.safetensors in it"),
    ("no tokenizer", lambda f: (f / "tokenizer.json").unlink(), "there is no tokenizer.json"),
    ("no config", lambda f: (f / "config.json").unlink(), "there is no config.json"),
]


def refused(world, edit, text):
    folder = world.folder / "refused"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world.model, folder)
    edit(folder)
    done = subprocess.run([world.suite.options.forge, "serve", "--model", str(folder), "--port", "0"], timeout=60,
                          env=plain_environment(), capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and text in lines[0], f"{done.returncode}: {done.stderr[-1000:]}"


def well_formed(world):
    """PyPI's safetensors reads what the suite wrote: the format is theirs, not the suite's."""
    import safetensors  # pylint: disable=import-outside-toplevel
    names = []
    for path in sorted(world.model.glob("*.safetensors")):
        with safetensors.safe_open(str(path), framework="np") as file:
            names += file.keys()
    assert "model.embed_tokens.weight" in names and len(names) == len(set(names)), names
    return f"{len(names)} tensors"


def main():
    suite = Suite(__doc__)
    with tempfile.TemporaryDirectory(prefix="forge-hf-") as folder:
        world, want = World(suite, folder), []
        world.make_smollm2()
        suite.case("the folder is one for others", well_formed, world)
        suite.case("ids are the file's", ids_as_file, world)
        suite.case("ids are those of PyPI's tokenizers", lambda: compare(world, world.model, texts_of(world)))
        for shape in ("tiny-yarn", "tiny-smollm3") if suite.options.full else ("tiny-yarn",):
            suite.case(f"ids of {shape}", other_cuts, world, shape)
        for name, options in VOCABULARIES if suite.options.full else []:
            suite.case(f"ids of the vocabulary {name}{' with Metaspace' if options else ''}",
                       lambda n=name, o=options: vocabulary(world, n, **o))
        suite.case("answers alone", same_answers, world, want)
        suite.case("answers of a cluster",
                   lambda: same_answers(world, want, prefill=1, decode=1, transport="shm"))
        suite.case("answers of two ranks",
                   lambda: same_answers(world, want, standalone=True, flags=["--tensor-parallel-size", 2, "--weights-cache", "off"]))
        if suite.options.full:
            suite.case("as a draft model", as_draft, world)
        suite.case("the sidecar is kept, and made again after a change", sidecar, world)
        for shape in SHAPES + (MORE_SHAPES if suite.options.full else []):
            suite.case(f"logits of {shape}", same_logits, world, shape)
        for dtype in ("F16", "F32"):
            suite.case(f"logits of {dtype} weights", lambda kind=dtype: same_logits(world, "tiny-granite", dtype=kind))
        suite.case("logits of weights at odd addresses", lambda: same_logits(world, "tiny-smollm3", odd=True))
        suite.case("logits with Llama 3.1's turns", lambda: same_logits(
            world, "tiny-mixtral", extra={"rope_scaling": LLAMA3},
            added=[("rope_freqs.weight", llama3_divisors(LLAMA3, 32))]))
        for name, edit, text in REFUSED:
            suite.case(f"refused: {name}", refused, world, edit, text)
    suite.end()


if __name__ == "__main__":
    main()
