#!/usr/bin/env python3
"""Each pre-tokenizer cuts as llama.cpp does, on texts made for the expressions and on random mixtures (the seed
is printed). The vocabulary shows cuts: any two bytes of the texts may merge, in an order that the seed draws, so
where one side cuts and the other does not, other ids come out; and a few longer tokens that no merge leads to
show which names take a word that is a token as it is."""
# needs: xllamacpp
import pathlib
import struct
import tempfile

from _forge import Skip, Suite
from tokenizer_vs_llamacpp import DIGITS, EMOJI, MARKS, SCRIPTS, WHITE, LlamaCpp, forge_ids, random_texts

# Families with all their expressions' own texts; further names only have to mean the same.
FAMILIES = ["gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "seed-coder", "tekken", "gpt-4o", "deepseek-llm",
            "deepseek-coder", "deepseek-v3", "falcon", "bloom", "viking"]
OTHER_NAMES = [
    "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling", "gigachat", "a.x-4.0", "mellum",
    "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2", "llama-v3", "llama3", "falcon3",
    "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe", "deepseek-r1-qwen",
    "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2", "kormo", "bailingmoe", "bailingmoe2", "llada-moe",
    "llama4", "kanana2", "minimax-m2", "hunyuan-dense", "joyai-llm", "poro-chat", "gpt3-finnish",
]

CASES = [
    "camelCase HTTPServer XMLHttpRequest iPhone McDonald aB AB ABc aBC", "ÉcoleNormale ÉCOLE éÉéÉ ÀÉABC abcÉDEF ABCÉ ABCé",
    "ǅungla ǅ ǈ ǋabc ᾈ Aǅa", "ʰʷ aʰ ʰA modifierʼletter ªº", "日本ABC abc日本 A日b", " École École  école \tÉcole -École",
    "СССР Москва мОСКВА", "ßẞ ŒuvreŒUVRE",
]
COMBINING = [
    "e\u0301cole E\u0301COLE", "a\u0301\u0302b", " \u0301a", "\u0301", "!\u0301", "1\u0301", "\u0301\u0301 x", "नमस्ते हिन्दी",
    "ภาษาไทย", "x\u20e3 1\ufe0f\u20e3", "תּוֹרָה", "a\u200db \u200d\u200dc \u200d!", "\u200c", "\u00ad a\u00adb",
]
APOSTROPHES = [
    "I'm I'M don't DON'T we'Ll they're THEY'RE I've i'd 's 't x'", "it’s don’t ’s", "''s '''ll '", "a's's b'lls c'rE",
    "É's éCole'S", "'école 'École 'Ab", "1's 2't", "`s ´s ʼs", "a'", "A'LLB", "'D", "'x", "fooBar's BAR'S ABCé's",
]
NUMBERS = [
    "1 12 123 1234 12345 1234567", " 123456", "  1", "a1b22c333d4444", "1½234 ½½½ 12½345", "१२३४५ ٠١٢٣", "ⅧⅨ 1Ⅷ Ⅷ1 ①②③ 1① 〇一二",
    "１２３４", "3.14,15", "x 1  2   3", "\t123 \n1234", "𝟙𝟚𝟛𝟜", "123日456 日1本2", "é12é", "-1 +2 $300 1%",
]
CJK = [
    "日本語の文章です。テスト", "日・本 ー゛゜ヽヾ", "中文,中文。中文、中文！", " 日本  日本\n日本", "한국어 가나 abc한글", "龥龦鿿㐀", "カタカナ・ｶﾀｶﾅ",
    "日a本b", "“日本” 「日本」『あ』", "\u3099か\u3099", "か゚", "゠ァ\u3097\u3098あ", "日\n\n本", "・\n\n・ ・", "ế Tiếng Việt  ế", "née café  née",
]
SIGNS = [
    "a/b //x path/to/file ///\n/ \n!/\r\n//", "foo();\n\n\nbar", "!?\n!? \n !\n", "... !!! ~~ ~a ~é ~~~b ~! ~ a~b !~ !~! ~\n", "<a>|b|^c`d`$e+f=g",
    "!\n/a ?\n/b .\n//c )\n/\n/d -\r\n/e *\n/ +\r/ =\n/\r\n/", "//\n//\n//\n//x /* y */\n/* z */\n/\n///",
    ".hello .helloé !!hello  .x -École", "“quoted” ‘single’ „low“ …", " “x", "€5 £5 ¥5 ©®™ → ∑", "a_b __init__", "{}[]()", "。，、।۔،(x|y)!? a. b",
    "(a), (b). |c|", "# Title\n- item\n  * sub", "a=b&c=d;e", "§¶•", "\x01a \x01\x02 \x7fb \x00",
]
SPACES = [
    "a  b   c", "  \n  a", "a \n\n b", "a\u00a0b \u00a0c", "\u3000\u3000a \u3000", "\ta\t\tb", "a \t b", "  ", " \n", "\n ", "\r\n\r\n a", "a   ",
    "a\n\n\n   b", "x  1", "x  !", "x  🦙", "🦙  🦙 🦙\n🦙  ", "🦙 1  日 é", "   é", "  日", "\x85\x85a", "\u2028 b\u2029", "\x0b\x0ca", "  \u3000日  ",
    " \r a", "🦙  a", "🦙 a", "🦙   !", "🦙 ", "1  ", "日  \n", "日 🦙  日",
]
OWN = CASES + COMBINING + APOSTROPHES + NUMBERS + CJK + SIGNS + SPACES

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5  # GGUF's types
Q4_0_BYTES = 18  # of 32 values
WIDTH = 32
WORDS = [" hello", "hello", "École", " École", "HTTP", " 123", "123", "日本", " the", "café", "\n\n", ".x!", "//\n", "'ll", "    "]


def string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def strings(texts):
    return struct.pack("<IIQ", ARRAY, STRING, len(texts)) + b"".join(map(string, texts))


def vocabulary(rng, texts):
    """The pairs of GGUF for a byte-level vocabulary of all bytes, the pairs of bytes in `texts`, and WORDS."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    alphabet = [chr(byte if byte in own else next(rest)) for byte in range(256)]
    words = ["".join(alphabet[byte] for byte in word.encode()) for word in WORDS]
    pairs = sorted({pair for text in texts for pair in zip(text.encode(), text.encode()[1:])})
    rng.shuffle(pairs)
    merges = [f"{alphabet[left]} {alphabet[right]}" for left, right in pairs]
    tokens = alphabet + [merge.replace(" ", "") for merge in merges]
    tokens += [word for word in words if len(word) > 2] + ["<|endoftext|>"]
    kinds = [1] * (len(tokens) - 1) + [3]
    return len(tokens), {
        "tokenizer.ggml.model": struct.pack("<I", STRING) + string("gpt2"),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.merges": strings(merges),
        "tokenizer.ggml.token_type": struct.pack(f"<IIQ{len(kinds)}i", ARRAY, I32, len(kinds), *kinds),
        "tokenizer.ggml.bos_token_id": struct.pack("<II", U32, len(tokens) - 1),
        "tokenizer.ggml.eos_token_id": struct.pack("<II", U32, len(tokens) - 1),
    }


def write_model(out, size, pairs, pre):
    """A llama of one layer, all zeros (Q4_0 and F32), which llama.cpp wants before it tokenizes."""
    pairs = dict(pairs)
    pairs["general.architecture"] = struct.pack("<I", STRING) + string("llama")
    pairs["tokenizer.ggml.pre"] = struct.pack("<I", STRING) + string(pre)
    for key, value in [("block_count", 1), ("context_length", 256), ("embedding_length", WIDTH),
                       ("feed_forward_length", WIDTH), ("attention.head_count", 1)]:
        pairs["llama." + key] = struct.pack("<II", U32, value)
    pairs["llama.attention.layer_norm_rms_epsilon"] = struct.pack("<If", F32, 1e-5)
    tensors = [("token_embd.weight", size), ("output_norm.weight", 0)]
    tensors += [(f"blk.0.{name}.weight", 0) for name in ("attn_norm", "ffn_norm")]
    tensors += [(f"blk.0.{name}.weight", WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output",
                                                            "ffn_gate", "ffn_up", "ffn_down")]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs))
    head += b"".join(string(key) + value for key, value in pairs.items())
    offset = 0
    for name, rows in tensors:
        shape = [WIDTH, rows] if rows else [WIDTH]
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 2 if rows else 0, offset)
        offset += -(-(rows * Q4_0_BYTES if rows else WIDTH * 4) // 32) * 32
    with open(out, "wb") as file:
        file.write(head + bytes(-len(head) % 32 + offset))


def compare(tool, folder, vocab, pre, texts):
    if not pathlib.Path(tool).is_file():
        raise Skip("tokenize_tool is not built (configure with -DFORGE_TESTS=ON)")
    model = str(pathlib.Path(folder) / "model.gguf")
    write_model(model, *vocab, pre)
    have = forge_ids(tool, model, "encode", texts)
    oracle = LlamaCpp(model)
    want = oracle.ids(texts, False)
    if sum(have, []) != want:
        for text, ids in zip(texts, have):
            alone = oracle.ids(text, False)
            assert ids == alone, f"{text[:120]!r}: {ids[:40]} is not {alone[:40]}"
        raise AssertionError("all texts in one request have other ids than one by one")
    have = forge_ids(tool, model, "bos", ["a"])[0]
    want_bos = oracle.ids("a", False, True)
    assert have == want_bos, f"with BOS, if it is wanted: {have} is not {want_bos}"
    return f"{len(texts)} texts, {len(want)} ids equal"


def main():
    suite = Suite(__doc__, tool=("", "the program tokenize_tool; none: beside forge"),
                  count=(150, "random texts for each family"))
    tool = suite.options.tool or str(
        pathlib.Path(suite.options.forge).resolve().parent / "tests/tokenize_tool")
    count = suite.options.count * (2 if suite.options.full else 1)
    own = OWN + WORDS
    texts = own + SCRIPTS + EMOJI + DIGITS + WHITE + MARKS + list(random_texts(suite.random, count, OWN))
    vocab = vocabulary(suite.random, texts)

    names = [(pre, texts) for pre in FAMILIES]
    names += [(pre, own) for pre in OTHER_NAMES if suite.options.full]
    with tempfile.TemporaryDirectory() as folder:
        for pre, some in names:
            suite.case(pre, compare, tool, folder, vocab, pre, some)
    suite.end()


if __name__ == "__main__":
    main()
