#!/usr/bin/env python3
"""Rendered conversations equal what Jinja2 makes of SmolLM2's own template, their ids what encoding
that text with special tokens gives, and of the corpus' templates only those that are rendered alike
are taken for ChatML."""
# needs: jinja2 gguf
# needs-model
import json
import pathlib
import struct
import subprocess

from _forge import Skip, Suite
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


def environment():
    import jinja2.sandbox  # pylint: disable=import-outside-toplevel
    # As transformers sets it up.
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda _: "1 Jan 2026"
    return made


def model_template(model):
    import gguf  # pylint: disable=import-outside-toplevel
    return gguf.GGUFReader(model).get_field("tokenizer.chat_template").contents()


def read_text(data, at):
    size = struct.unpack_from("<I", data, at)[0]
    return data[at + 4:at + 4 + size].decode(), at + 4 + size


def rendered(tool, model, prompt):
    """Forge's text and ids of every conversation."""
    data = b""
    for _, messages in CONVERSATIONS:
        data += pack("1" if prompt else "0") + pack(str(len(messages)))
        for message in messages:
            data += pack(message["role"]) + pack(message["content"])
    out = subprocess.run([tool, model, "chat"], input=data, stdout=subprocess.PIPE, timeout=60,
                         check=True).stdout
    at = 0
    for _ in CONVERSATIONS:
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
                                          rendered(tool, model, prompt)):
        assert have[0] == want, f"{name}: {have[0]!r} is not {want!r}"
        assert have[1] == ids, f"{name}: other ids"
    return f"{len(CONVERSATIONS)} conversations equal"


def corpus_templates(suite, tool):
    stored = json.loads(suite.corpus("chat-templates/rendered-53.json").read_text(encoding="utf-8"))
    sources = [item["chat_template"] for item in stored]
    sources += [path.read_text(encoding="utf-8") for path in sorted(
        suite.corpus("chat-templates/rendered-53.json").parent.glob("*.jinja"))]
    out = subprocess.run([tool, "-", "template"], input=b"".join(map(pack, sources)), timeout=60,
                         stdout=subprocess.PIPE, check=True).stdout
    at, known = 0, 0
    for source in sources:
        kind, at = read_text(out, at)
        system, at = read_text(out, at)
        if kind != "chatml":
            continue
        known += 1
        template = environment().from_string(source)
        for name, messages in CONVERSATIONS:
            if not messages:
                continue
            lead = [] if not system or messages[0]["role"] == "system" else [
                {"role": "system", "content": system}]
            want = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n"
                           for m in lead + messages) + "<|im_start|>assistant\n"
            have = template.render(messages=messages, add_generation_prompt=True)
            assert have == want, f"taken for ChatML, but {name} differs: {source[:200]!r}"
    assert known >= 2, f"only {known} recognised"
    return f"{known} of {len(sources)} are ChatML and rendered alike"


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
    suite.case("the corpus' templates", corpus_templates, suite, tool)
    suite.end()


if __name__ == "__main__":
    main()
