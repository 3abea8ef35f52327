#!/usr/bin/env python3
"""Answers that are held to something are of it: sampled ones validate against their schema, match their expression, are
on their list; whether tokens are guessed or not, alone, split and in a crowd they are the same ones."""
# needs: jsonschema
# needs-model
import json
import re

import jsonschema
from _forge import Failed, Stream, Suite, answer_of, assert_same, post, run_all, served_model

PERSON = {"type": "object", "required": ["name", "age", "tags"],
          "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12},
                         "age": {"type": "integer", "minimum": 0, "maximum": 120},
                         "height": {"type": "number", "minimum": 0, "maximum": 3},
                         "tags": {"type": "array", "maxItems": 3,
                                  "items": {"enum": ["red", "green", 5, None, True]}}}}
TREE = {"$ref": "#/$defs/node",
        "$defs": {"node": {"type": "object", "required": ["v"], "additionalProperties": False,
                           "properties": {"v": {"type": "boolean"},
                                          "next": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]}}},
                  "leaf": {"type": "object", "required": ["v"], "additionalProperties": False,
                           "properties": {"v": {"const": "leaf"}}}}}
CALL = {"oneOf": [{"type": "object", "required": ["kind", "x"],
                   "properties": {"kind": {"const": "move"}, "x": {"type": "integer"}}},
                  {"type": "object", "required": ["kind", "text"],
                   "properties": {"kind": {"const": "say"}, "text": {"type": "string", "maxLength": 9}}}]}
DATE = {"type": "array", "minItems": 1, "maxItems": 2,
        "items": {"type": "string", "format": "date"}}
SCHEMAS = [PERSON, TREE, CALL, DATE]
EXPRESSIONS = [r"[A-Z][a-z]{2,8} [0-9]{3}-[0-9]{4}", r"(yes|no)(, (but|and) [a-z ]{1,20})?\.",
               r"#[0-9a-f]{6}", "[äöüß€😀]{1,4}"]
CHOICES = [["positive", "negative"], ["a", "ab", "abc"], ["日本", "日光"]]
GRAMMAR = 'root ::= "(" (root | [a-z]{1,4})? ")"'


def is_nested(text):
    while re.fullmatch(r"\(+[a-z]{0,4}\)+", text) and text[1:-1].startswith("("):
        text = text[1:-1]
    return re.fullmatch(r"\([a-z]{0,4}\)", text) is not None


def wishes(rng, count):
    """(request, judge of its text) pairs."""
    for index in range(count):
        kind = index % 4
        if kind == 0:
            schema = rng.choice(SCHEMAS)
            wish = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
            judge = lambda text, s=schema: jsonschema.validate(
                json.loads(text), s, format_checker=jsonschema.FormatChecker())
        elif kind == 1:
            expression = rng.choice(EXPRESSIONS)
            wish = {"structured_outputs": {"regex": expression}}
            judge = lambda text, e=expression: must(re.fullmatch(e, text), text)
        elif kind == 2:
            choice = rng.choice(CHOICES)
            wish = {"structured_outputs": {"choice": choice}}
            judge = lambda text, c=choice: must(text in c, text)
        else:
            wish = {"grammar": GRAMMAR}
            judge = lambda text: must(is_nested(text), text)
        yield {"prompt": rng.choice(["Once upon a time", "The", "{"]), "max_tokens": 400, "temperature": 1,
               "seed": rng.randrange(1 << 31), **wish}, judge


def must(truth, text):
    assert truth, f"not what was asked for: {text!r}"


def judged(requests, judges, answers):
    for request, judge, answer in zip(requests, judges, answers):
        assert not isinstance(answer, Exception), f"{request}: {answer}"
        if answer["finish"] == "stop":
            judge(answer["text"])
    stopped = sum(a["finish"] == "stop" for a in answers)
    assert stopped > 0.9 * len(answers), f"only {stopped} of {len(answers)} came to their end"
    return f"{stopped} of {len(answers)} ended by themselves, all are what was asked for"


def answers_of(model, suite, requests, **shape):
    with suite.cluster(model=model, **shape) as cluster:
        for request in requests:
            request["model"] = served_model(cluster)
        answers = []
        for at in range(0, len(requests), 16):
            answers += run_all([lambda r=r: answer_of(cluster.port, r) for r in requests[at:at + 16]])
        cluster.wait_at_rest()
    return answers


def main():
    suite = Suite(__doc__, answers=(1000, "how many sampled answers"))
    pairs = list(wishes(suite.random, suite.options.answers))
    requests, judges = [p[0] for p in pairs], [p[1] for p in pairs]
    want = []

    def first():
        want.extend(answers_of(suite.stories(), suite, requests, standalone=True))
        return judged(requests, judges, want)

    def again(shape):
        have = answers_of(suite.stories(), suite, requests, **shape)
        assert_same(requests, want, have, "are others")
        return judged(requests, judges, have)

    suite.case("sampled answers", first)
    if want:
        suite.case("without guesses", again, dict(standalone=True, flags=["--speculate", "off"]))
        suite.case("split, 2P+2D", again, dict(prefill=2, decode=2))
    if suite.options.full:
        suite.case("SmolLM2", real, suite, requests[:48], judges)
    suite.case("in a stream, and refused", streams, suite)
    suite.end()


def real(suite, requests, judges):
    """A vocabulary of 49,152 tokens."""
    answers = answers_of(suite.smollm2(), suite, requests, standalone=True, threads=2)
    return judged(requests, judges, answers)


def streams(suite):
    with suite.cluster(model=suite.stories(), standalone=True) as cluster:
        body = {"model": served_model(cluster), "prompt": "The", "max_tokens": 300, "temperature": 1, "seed": 3,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PERSON}}}
        whole = post(cluster.port, "/v1/completions", body)["choices"][0]
        stream = Stream(cluster.port, "/v1/completions", body)
        stream.run()
        assert stream.text == whole["text"]
        jsonschema.validate(json.loads(whole["text"]), PERSON)
        several = post(cluster.port, "/v1/completions", {**body, "n": 4})["choices"]
        for choice in several:
            jsonschema.validate(json.loads(choice["text"]), PERSON)
        assert len({choice["text"] for choice in several}) > 1
        try:
            post(cluster.port, "/v1/completions", {**body, "response_format": {
                "type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}})
            raise AssertionError("a schema that cannot be held to was taken")
        except Failed as why:
            assert why.status == 400 and "#/not" in str(why), why


if __name__ == "__main__":
    main()
