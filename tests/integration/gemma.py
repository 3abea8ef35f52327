#!/usr/bin/env python3
"""A second real model, Gemma 3 270M (Q4_K_M, got by deploy/get-model): its token ids equal llama.cpp's, and so do its
choices, on prompts that are shorter and longer than the window of 512 tokens that five of six layers see."""
# runs-in: full
# needs: numpy xllamacpp
import pathlib
import re
import subprocess

from _forge import Skip, Suite, find_tool
from llamacpp_agreement import agreement
from tokenizer_vs_llamacpp import (DIGITS, EMOJI, LONG, MARKS, SCRIPTS, SPECIAL, WHITE, LlamaCpp, compare, forge_ids,
                                   random_texts)

# Several U+2581 beside each other, or one beside a space, are spaces for the model's own tokenizer and for Forge: one
# token. llama.cpp finds that token in spaces alone.
BLANKS = re.compile("▁[ ▁]| ▁")
NAMES = ["<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<bos>", "<eos>", "<pad>x", "a<unused12>b",
         "<start_of_image>", "\n\n\n\n", "\t\t\t", "<table><tr>", "a▁b"]
BEGINNINGS = ["The capital of France is", "Once upon a time, there was a little girl", "def fibonacci(n):\n    ",
              "Die drei wichtigsten Gründe sind", "Q: What is 17 + 25?\nA:"]
# A text that is never the same for long, so that what left the windows is missed; in tokens beyond two windows.
STORY = " ".join(f"On day {day} the {who} counted {day * 7 % 31} {what} and wrote it down."
                 for day in range(1, 100)
                 for who, what in [(("miller", "sacks"), ("sailor", "ships"), ("baker", "loaves"))[day % 3]])


def gemma():
    tool = pathlib.Path(__file__).resolve().parents[2] / "deploy/get-model"
    done = subprocess.run([tool, "gemma3-270m"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Skip("Gemma could not be got: " + done.stderr.strip().rsplit("\n", 1)[-1])
    return done.stdout.strip()


def choices(suite, tool, model):
    texts = BEGINNINGS + [STORY + " On day 100 the"]
    ids = forge_ids(tool, model, "bos", texts)
    assert len(ids[-1]) > 1500, f"{len(ids[-1])} tokens are no long prompt"
    prompts = [{"prompt": text, "ids": list(some)} for text, some in zip(texts, ids)]
    # llama.cpp computes a prompt beyond the window again for each token.
    return (agreement(suite, model, prompts[:-1], steps=32, context=3072)
            + "; beyond the window: " + agreement(suite, model, prompts[-1:], steps=8, context=3072))


def main():
    suite = Suite(__doc__)
    held = []
    suite.case("the model is got", lambda: held.append(gemma()))
    if held:
        model, tool = held[0], find_tool(suite, "tokenize_tool")
        oracle = LlamaCpp(model)
        texts = (SCRIPTS + EMOJI + DIGITS + WHITE + MARKS + SPECIAL + LONG + NAMES
                 + [text for text in random_texts(suite.random, 1000, NAMES) if not BLANKS.search(text)])
        for special in (False, True):
            suite.case(f"token ids, special tokens {'parsed' if special else 'as text'}", compare, tool, model, oracle,
                       special, texts)
        suite.case("top-1 agreement", choices, suite, tool, model)
    suite.end()


if __name__ == "__main__":
    main()
