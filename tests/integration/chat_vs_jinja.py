#!/usr/bin/env python3
"""Rendered conversations equal what Jinja2 makes of SmolLM2's own template, and of other families' templates over
their real vocabularies; and their ids what encoding that text with special tokens gives."""
# needs: jinja2 gguf
# needs-model
import lzma
import pathlib
import struct
import subprocess
import tempfile

from _forge import Skip, Suite
from jinja_vs_jinja2 import environment
from tokenizer_vs_llamacpp import DIGITS, EMOJI, MARKS, SCRIPTS, WHITE, forge_ids, pack


def user(text):
    return {"role": "user", "content": text}


CONVERSATIONS = [
    ("one question", [user("Why is the sky blue?")]),
    ("system first", [{"role": "system", "content": "Be brief."}, user("Hi")]),
    ("system empty", [{"role": "system", "content": ""}, user("Hi")]),
    ("system late", [user("Hi"), {"role": "system", "content": "Be brief."}]),
    ("system twice", [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, user("x")]),
    ("several turns", [user("1+1?"), {"role": "assistant", "content": "2"}, user("2+2?")]),
    ("ends with the assistant", [user("Hi"), {"role": "assistant", "content": "Hello"}]),
    ("unknown role", [{"role": "tool", "content": "{\"a\": 1}"}, user("so?")]),
    ("System is not system", [{"role": "System", "content": "x"}, user("y")]),
    ("empty content", [user("")]),
    ("spaces kept", [user("  a  \n\n b\t\n")]),
    ("line ends at both ends", [user("\n\nx\n\n")]),
    ("jinja in a message", [user("{{ 7*7 }}{% raw %}{# x #}")]),
    ("quotes", [user("it's \"quoted\" \\n \\'")]),
    ("html is not escaped", [user("<b>&amp;</b>")]),
    ("digits next to the role", [user("123 4"), {"role": "user1", "content": "1"}]),
    ("no messages", []),
    ("long", [user("word " * 2000)]),
    ("many", [user(str(i)) for i in range(100)]),
] + [(f"text {i}", [user(text)]) for i, text in enumerate(SCRIPTS + EMOJI + DIGITS + MARKS + WHITE)]


def model_template(model):
    import gguf  # pylint: disable=import-outside-toplevel
    return gguf.GGUFReader(model).get_field("tokenizer.chat_template").contents()


def read_text(data, at):
    size = struct.unpack_from("<I", data, at)[0]
    return data[at + 4:at + 4 + size].decode(), at + 4 + size


def rendered(tool, model, prompt, chosen):
    """Forge's text and ids of these conversations."""
    data = b""
    for _, messages in chosen:
        data += pack("1" if prompt else "0") + pack(str(len(messages)))
        for message in messages:
            data += pack(message["role"]) + pack(message["content"])
    out = subprocess.run([tool, model, "chat"], input=data, stdout=subprocess.PIPE, timeout=60,
                         check=True).stdout
    at = 0
    for _ in chosen:
        text, at = read_text(out, at)
        end = out.index(b"\n", at)
        yield text, [int(word) for word in out[at:end].split()]
        at = end + 1


def conversations(tool, model, template, prompt):
    wants = [template.render(messages=messages, add_generation_prompt=prompt)
             for _, messages in CONVERSATIONS]
    # An empty prompt becomes BOS for the model; the text itself has no ids.
    want_ids = [ids or [1] for ids in forge_ids(tool, model, "special", wants)]
    for (name, _), want, ids, have in zip(CONVERSATIONS, wants, want_ids,
                                          rendered(tool, model, prompt, CONVERSATIONS)):
        assert have[0] == want, f"{name}: {have[0]!r} is not {want!r}"
        assert have[1] == ids, f"{name}: other ids"
    return f"{len(CONVERSATIONS)} conversations equal"


# Vocabularies of the corpus with the names of their first and last tokens, and templates that name their tokens.
FAMILIES = [
    ("qwen2", "<|endoftext|>", "<|endoftext|>", ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B"]),
    ("llama-bpe", "<|begin_of_text|>", "<|end_of_text|>", ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"]),
    ("llama-spm", "<s>", "</s>", ["mistralai-Mistral-Nemo-Instruct-2407", "google-gemma-2-2b-it",
                   "microsoft-Phi-3.5-mini-instruct"]),
]


def with_template(data, source):
    """A vocabulary's file with one more entry, the first one; one that it has gets another name."""
    data = data.replace(b"tokenizer.chat_template", b"tokenizer.chat_forgotten"[:23])
    count = struct.unpack_from("<Q", data, 16)[0]
    key = b"tokenizer.chat_template"
    text = source.encode()
    entry = (struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(text)) + text)
    return data[:16] + struct.pack("<Q", count + 1) + entry + data[24:]


def family(suite, tool, vocabulary, tokens, name):
    source = suite.corpus(f"chat-templates/{name}.jinja").read_text(encoding="utf-8")
    data = lzma.open(suite.corpus(f"tokenizers/ggml-vocab-{vocabulary}.gguf.xz")).read()
    template = environment().from_string(source)
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/model.gguf"
        pathlib.Path(model).write_bytes(with_template(data, source))
        wants, chosen = [], []
        for about, messages in CONVERSATIONS:
            try:
                wants.append(template.render(messages=messages, tools=None, documents=None,
                                             add_generation_prompt=True, bos_token=tokens[0],
                                             eos_token=tokens[1]))
                chosen.append((about, messages))
            except Exception:  # pylint: disable=broad-exception-caught
                continue  # what Forge says then is jinja_vs_jinja2's to compare
        today = forge_today(wants)
        ids = forge_ids(tool, model, "special", today)
        for (about, _), want, want_ids, (have, have_ids) in zip(
                chosen, today, ids, rendered(tool, model, True, chosen)):
            assert have == want, f"{about}: {have!r} is not {want!r}"
            # Where the template writes no BOS, encoding does for models that want one.
            assert want_ids in (have_ids, have_ids[1:]), f"{about}: other ids"
        assert len(chosen) >= 10, f"only {len(chosen)} rendered"
    return f"{len(chosen)} conversations equal"


def forge_today(texts):
    """tokenize_tool has no clock: its day is the first of all."""
    return [text.replace("01 Jan 2026", "01 Jan 1970") for text in texts]


def main():
    suite = Suite(__doc__, tool=("", "the program tokenize_tool; none: beside forge"))
    tool = suite.options.tool or str(
        pathlib.Path(suite.options.forge).resolve().parent / "tests/tokenize_tool")

    template = []

    def with_model(prompt):
        if not pathlib.Path(tool).is_file():
            raise Skip("tokenize_tool is not built (configure with -DFORGE_TESTS=ON)")
        if not template:  # reading the file takes seconds
            template.append(environment().from_string(model_template(suite.smollm2())))
        return conversations(tool, suite.smollm2(), template[0], prompt)

    suite.case("SmolLM2's template, with generation prompt", with_model, True)
    suite.case("SmolLM2's template, without", with_model, False)
    for vocabulary, first, last, names in FAMILIES:
        for name in names:
            suite.case(name, family, suite, tool, vocabulary, (first, last), name)
    suite.end()


if __name__ == "__main__":
    main()
