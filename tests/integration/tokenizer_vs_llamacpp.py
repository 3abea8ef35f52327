#!/usr/bin/env python3
"""SmolLM2's token ids equal llama.cpp's on odd texts: scripts, emoji, digits, white space, long runs,
special-token names, and random mixtures of them (the seed is printed)."""
# needs: xllamacpp
# needs-model
import json
import pathlib
import struct
import subprocess
import urllib.request

from _forge import Skip, Suite

SCRIPTS = [
    "The quick brown fox jumps over the lazy dog.", "Äpfel, Öl und Übermut – groß", "Être ou ne pas être",
    "Съешь же ещё этих мягких французских булок", "Ο γρήγορος καφέ αλεπού", "שלום עולם", "مرحبا بالعالم ١٢٣",
    "नमस्ते दुनिया १२३", "สวัสดีชาวโลก", "안녕하세요 세계", "日本語の文章です。テスト", "我能吞下玻璃而不伤身体。", "ქართული ენა",
    "Tiếng Việt có dấu", "ગુજરાતી", "தமிழ் மொழி", "ខ្មែរ", "አማርኛ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛", "𐍈𐌰𐌽", "ꙮ𞤀𞤁", "İstanbul ıI ſ K Å",
]
EMOJI = [
    "🦙", "👩‍👩‍👧‍👦 family", "🏳️‍🌈", "🇩🇪🇫🇷", "👍🏽👍🏿", "1️⃣2️⃣", "☃️❄", "🤷‍♂️shrug", "a🦙b🦙 c", "🚀" * 40,
]
DIGITS = [
    "1", "12", "123", "1234567890", "3.14159", "1,000,000", "2024-11-21T12:34:56Z", "x1y2z3", "  42", "½ ¾ ²³",
    "٠١٢٣", "Ⅷ ⅷ", "①②", "a1 b22 c333", "0x1F 0b11", "１２３", "7" * 500,
]
WHITE = [
    " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "a b", "a  b", "a   b", "a\tb", "a\n b", "a \nb", "a\r\n\r\nb",
    "  lead", "trail  ", "\t\t  x", "x \t y", "\u00a0", "a\u00a0b", "\u2003x", "a\u200bb", "\u3000全", " \u3000 ", "\x0b\x0c",
    "\x85 ", "\u2028x\u2029", "if x:\n    return  y\n\n\n", " " * 300, "\n" * 300, " \n" * 100, "a" + " " * 77 + "b",
]
MARKS = [
    "I'm you're he's we'll they'd I've can't", "I'M YOU'RE", "'", "''", "'s", "x's'", "don’t", "«a» „b“", "...", "!?!?",
    "a.b,c;d", "(a)[b]{c}", "a_b__c", "e-mail@host.org", "https://x.y/z?a=1&b=%20", "<b>&amp;</b>", "--flag=1", "$x += 2;",
    "#include <stdio.h>", "é e\u0301", "\u0301\u0301", "\u202etxt", "\ufeffbom", "\ufffd", "\U0010ffff", "\ue000", "\x00",
    "a\x00b", "\x01\x02\x7f", "\\n", '"quoted"', "=" * 200, "-_" * 80,
]
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "a<|im_end|>b", "<|im_start|>user\nHi<|im_end|>\n", "<|im_", "|im_end|>",
    "<<|im_end|>>", "<|im_end|><|im_end|>", "<repo_name>x<file_sep>", "<jupyter_code>", "<empty_output>", " <|im_end|> ",
    "<|IM_END|>", "<filename>a.c", "<gh_stars>9", "<|im_start|", "<|endoftext|", "<reponame>",
]
LONG = [
    "a" * 4000, "ab" * 2000, "word " * 800, "é" * 900, "日" * 700, "\u0301" * 300, "abcdefghijklmnopqrstuvwxyz" * 60,
    "ACGT" * 500, "lorem ipsum dolor sit amet, " * 100,
]


def random_texts(rng, count, more=()):
    pool = SCRIPTS + EMOJI + DIGITS + WHITE + MARKS + SPECIAL + list(more)
    ranges = [(0x20, 0x7E), (0x80, 0x24F), (0x250, 0x5FF), (0x600, 0x1FFF), (0x2000, 0x2FFF),
              (0x3000, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x10FFFF)]
    for _ in range(count):
        text = ""
        for _ in range(rng.randint(1, 12)):
            kind = rng.random()
            if kind < 0.4:
                piece = rng.choice(pool)
                start = rng.randrange(len(piece))
                text += piece[start:start + rng.randint(1, 20)]
            elif kind < 0.7:
                low, high = rng.choice(ranges)
                text += "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6)))
            elif kind < 0.85:
                text += rng.choice([" ", "  ", "\n", "\t", "'", "1", "a", "\r\n"]) * rng.randint(1, 4)
            else:
                text += rng.choice(["hello", " world", "Don't", " 2024", "_x", "é", "日本", "🦙"])
        yield text


class LlamaCpp:
    """llama.cpp's server in this process, asked over its loopback port."""

    def __init__(self, model):
        import xllamacpp  # pylint: disable=import-outside-toplevel
        params = xllamacpp.CommonParams()
        params.model.path = model
        params.n_ctx = 256
        params.n_parallel = 1
        params.port = 0
        params.warmup = False
        self.server = xllamacpp.Server(params)

    def ids(self, text, special, bos=False):
        body = json.dumps({"content": text, "add_special": bos, "parse_special": special})
        request = urllib.request.Request(self.server.listening_address + "/tokenize", body.encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["tokens"]


def pack(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<I", len(data)) + data


def forge_ids(tool, model, mode, texts):
    done = subprocess.run([tool, model, mode], input=b"".join(map(pack, texts)), timeout=120,
                          stdout=subprocess.PIPE, check=True)
    lines = done.stdout.decode().split("\n")[:-1]
    assert len(lines) == len(texts), f"{len(lines)} answers to {len(texts)} texts"
    return [[int(word) for word in line.split()] for line in lines]


def compare(tool, model, oracle, special, texts):
    mode = "special" if special else "encode"
    count = 0
    for text, have in zip(texts, forge_ids(tool, model, mode, texts)):
        want = oracle.ids(text, special)
        count += len(want)
        assert have == want, f"{text[:120]!r}: {have[:40]} is not {want[:40]}"
    return f"{len(texts)} texts, {count} ids equal"


def decodes(tool, model, texts):
    # SmolLM2's vocabulary lacks some bytes; a text that has one cannot come back whole.
    singles = [bytes([byte]) for byte in range(256)]
    lost = {one[0] for one, ids in zip(singles, forge_ids(tool, model, "encode", singles)) if not ids}
    texts = [text for text in texts if lost.isdisjoint(text.encode())]
    done = subprocess.run([tool, model, "decode"], input=b"".join(map(pack, texts)), timeout=120,
                          stdout=subprocess.PIPE, check=True)
    at = 0
    for text in texts:
        size = struct.unpack_from("<I", done.stdout, at)[0]
        back = done.stdout[at + 4:at + 4 + size].decode()
        at += 4 + size
        assert back == text, f"{text[:120]!r} came back as {back[:120]!r}"
    return f"{len(texts)} texts"


def main():
    suite = Suite(__doc__, tool=("", "the program tokenize_tool; none: beside forge"),
                  count=(300, "random texts"))
    tool = suite.options.tool or str(
        pathlib.Path(suite.options.forge).resolve().parent / "tests/tokenize_tool")

    def ready():
        if not pathlib.Path(tool).is_file():
            raise Skip("tokenize_tool is not built (configure with -DFORGE_TESTS=ON)")
        return LlamaCpp(suite.smollm2())

    oracle = []
    suite.case("llama.cpp starts", lambda: oracle.append(ready()))
    if oracle:
        count = suite.options.count * (10 if suite.options.full else 1)
        groups = [("scripts", SCRIPTS), ("emoji", EMOJI), ("digits", DIGITS), ("white space", WHITE),
                  ("marks", MARKS), ("names of special tokens", SPECIAL), ("long runs", LONG),
                  ("random mixtures", list(random_texts(suite.random, count)))]
        for name, texts in groups:
            for special in (False, True):
                suite.case(f"{name}, special tokens {'parsed' if special else 'as text'}", compare,
                           tool, suite.smollm2(), oracle[0], special, texts)
            suite.case(f"{name} decode to themselves", decodes, tool, suite.smollm2(), texts)
    suite.end()


if __name__ == "__main__":
    main()
