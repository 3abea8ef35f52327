#!/usr/bin/env python3
"""What shapes a choice, and what is told of it, against NumPy: from Forge's own logits of each prefix it works out which
token a greedy request with biases and penalties takes, and how probable each token is."""
# needs: numpy
# needs-model
import numpy as np
from _forge import Suite, post, served_model
from _logits import forge_logits

F32 = np.float32

# name, and what a request wishes
WISHES = [
    ("nothing", {}),
    ("presence", dict(presence_penalty=1.5)),
    ("presence below 0", dict(presence_penalty=-2)),
    ("frequency", dict(frequency_penalty=0.7)),
    ("repetition", dict(repetition_penalty=1.3)),
    ("repetition below 1", dict(repetition_penalty=0.8)),
    ("all three", dict(repetition_penalty=1.15, frequency_penalty=0.4, presence_penalty=0.3)),
    ("biases", "biases"),
    ("biases and penalties", "both"),
    ("an answer that may not end early", dict(min_tokens=20)),
]


def shaped(logits, wish, prompt, said, ends):
    """The row as it is chosen from: the order and the roundings of docs/API.md."""
    row = logits.copy()
    for token, bias in wish.get("logit_bias", {}).items():
        row[int(token)] += F32(bias)
    if len(said) < wish.get("min_tokens", 0):
        row[ends] = -np.inf
    repetition = F32(wish.get("repetition_penalty", 1))
    if repetition != 1:
        for token in set(prompt) | set(said):
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    frequency, presence = F32(wish.get("frequency_penalty", 0)), F32(wish.get("presence_penalty", 0))
    for token in set(said):
        row[token] = F32(F32(row[token] - F32(frequency * F32(said.count(token)))) - presence)
    return row


def ids_of(cluster, text):
    return post(cluster.port, "/tokenize", {"prompt": text})["tokens"]


def wish_of(suite, wish, vocabulary, answer):
    if isinstance(wish, dict):
        return wish
    some = {str(token): round(suite.random.uniform(-4, 4), 2) for token in
            [*answer[:6], *(suite.random.randrange(vocabulary) for _ in range(8))]}
    more = dict(repetition_penalty=1.2, presence_penalty=0.5) if wish == "both" else {}
    return {"logit_bias": some, **more}


def check(suite, model, cluster, text, wish, ends, kv):
    name = served_model(cluster)
    body = {"model": name, "prompt": text, "max_tokens": 24, "temperature": 0, "logprobs": 5,
            "return_token_ids": True}
    plain = post(cluster.port, "/v1/completions", body)["choices"][0]["token_ids"]
    wish = wish_of(suite, wish, 400, plain)
    choice = post(cluster.port, "/v1/completions", {**body, **wish})["choices"][0]
    prompt, said = ids_of(cluster, text), choice["token_ids"]
    _, logits = forge_logits(suite, model, [prompt + said[:i] for i in range(len(said))], steps=1, kv=kv)
    logits = logits[:, 0, :]
    worst = 0.0
    for i, token in enumerate(said):
        row = shaped(logits[i], wish, prompt, said[:i], ends)
        assert token == int(row.argmax()), f"token {i} is {token}, not {int(row.argmax())}"
        exact = logits[i].astype(np.float64)
        exact -= exact.max()
        exact -= np.log(np.exp(exact).sum())
        told = choice["logprobs"]["token_logprobs"][i]
        worst = max(worst, abs(told - exact[token]))
        likely = np.sort(exact)[::-1][:5]
        have = sorted(choice["logprobs"]["top_logprobs"][i].values(), reverse=True)
        worst = max(worst, float(np.abs(likely[:len(have)] - have).max()))
    assert worst < 2e-5, f"a logprob is off by {worst}"
    return f"{len(said)} tokens, logprobs within {worst:.1e}"


def main():
    suite = Suite(__doc__)
    models = [("stories260K", suite.stories, "Once upon a time there was a dog who", [2], "f16"),
              ("SmolLM2", suite.smollm2, "The three best things about the sea are", [0, 2], "bf16")]
    for label, find, text, ends, kv in models:
        def opened():
            return suite.cluster(model=find(), standalone=True, flags=["--kv-dtype", kv])
        try:
            cluster = opened()
        except Exception as why:  # pylint: disable=broad-except
            suite.case(f"{label}: start", lambda w=why: (_ for _ in ()).throw(w))
            continue
        with cluster:
            for name, wish in WISHES if label != "SmolLM2" or suite.options.full else WISHES[-4:]:
                suite.case(f"{label}: {name}", check, suite, find(), cluster, text, wish, ends, kv)
    suite.end()


if __name__ == "__main__":
    main()
