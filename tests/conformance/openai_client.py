#!/usr/bin/env python3
"""The unmodified openai package (PyPI) against a running Forge.

    python3 tests/conformance/openai_client.py http://127.0.0.1:8080

Needs `pip install openai` in an environment of its own. Prints one line per check and a count; exits
with 1 when a check failed, with 2 when the server cannot be reached.
"""

import concurrent.futures
import json
import sys
import urllib.error
import urllib.request
from typing import Literal, Optional

import openai
import pydantic

QUESTION = [{"role": "user", "content": "Say something short about the sky."}]
checks = []


def check(function):
    checks.append(function)
    return function


class World:
    def __init__(self, base_url):
        self.root = base_url.rstrip("/")
        self.client = openai.OpenAI(base_url=self.root + "/v1", api_key="none", max_retries=0,
                                    timeout=120)
        models = self.client.models.list().data
        assert len(models) == 1, f"{len(models)} models are listed"
        self.model = models[0].id

    def chat(self, **more):
        arguments = {"model": self.model, "messages": QUESTION, "max_tokens": 12, "temperature": 0}
        arguments.update(more)
        return self.client.chat.completions.create(**arguments)

    def complete(self, **more):
        arguments = {"model": self.model, "prompt": "Once upon a time", "max_tokens": 12,
                     "temperature": 0}
        arguments.update(more)
        return self.client.completions.create(**arguments)

    def raises(self, kind, call, **want):
        try:
            call()
        except kind as error:
            assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}"
            body = error.body
            assert isinstance(body, dict) and {"message", "type", "param", "code"} <= set(body), body
            for key, value in want.items():
                assert body[key] == value, f"{key} is {body[key]!r}, not {value!r}"
            return error
        raise AssertionError(f"no {kind.__name__}")


def usage_adds_up(usage):
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0, usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage


@check
def models_are_listed_and_retrieved(world):
    model = world.client.models.retrieve(world.model)
    assert model.id == world.model and model.object == "model" and model.created > 0


@check
def an_unknown_model_is_not_retrieved(world):
    world.raises(openai.NotFoundError, lambda: world.client.models.retrieve("no-such-model"),
                 code="model_not_found")


@check
def chat_answers(world):
    answer = world.chat()
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == world.model and answer.created > 0
    assert len(answer.choices) == 1 and choice.index == 0
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.refusal is None and choice.logprobs is None
    assert choice.finish_reason in ("stop", "length")
    assert answer._request_id == answer.id, "x-request-id"
    usage_adds_up(answer.usage)


@check
def chat_takes_every_role_and_text_parts(world):
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    answer = world.chat(messages=[{"role": "developer", "content": "Be short."},
                                  {"role": "user", "content": parts},
                                  {"role": "assistant", "content": "Yes?"},
                                  {"role": "user", "content": "Go on."}])
    assert answer.choices[0].message.content is not None


@check
def completions_answer(world):
    answer = world.complete()
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text and answer.choices[0].finish_reason in ("stop", "length")
    usage_adds_up(answer.usage)


@check
def a_prompt_may_be_token_ids(world):
    text = world.complete(extra_body={"return_token_ids": True})
    ids = text.choices[0].token_ids
    assert len(ids) == text.usage.completion_tokens
    again = world.complete(prompt=ids)
    assert again.usage.prompt_tokens == len(ids)


@check
def length_ends_an_answer(world):
    answer = world.complete(max_tokens=3, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3


@check
def a_chat_streams_the_same_text(world):
    whole = world.chat().choices[0].message.content
    chunks = list(world.chat(stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)
    finishes = [chunk.choices[0].finish_reason for chunk in chunks]
    assert finishes[:-1] == [None] * (len(chunks) - 1) and finishes[-1] in ("stop", "length")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


@check
def a_completion_streams_the_same_text(world):
    whole = world.complete().choices[0].text
    chunks = list(world.complete(stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


@check
def usage_comes_last_when_asked_for(world):
    chunks = list(world.chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    usage_adds_up(chunks[-1].usage)
    assert all(chunk.choices and chunk.usage is None for chunk in chunks[:-1])


@check
def the_stream_helper_accumulates(world):
    # The helper takes an answer cut by its length for an error, so this one ends at a stop string.
    text = world.chat().choices[0].message.content
    stop = text[len(text) // 2:][:3]
    with world.client.chat.completions.stream(model=world.model, messages=QUESTION, max_tokens=12,
                                              temperature=0, stop=stop) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert final.choices[0].message.content == text[:text.index(stop)]
    assert final.choices[0].finish_reason == "stop"


@check
def a_client_may_leave_in_the_middle(world):
    stream = world.chat(stream=True, max_tokens=64)
    next(iter(stream))
    stream.close()
    assert world.chat().choices[0].message.content


@check
def a_stop_string_ends_and_is_not_shown(world):
    text = world.complete(max_tokens=24).choices[0].text
    word = text[len(text) // 2:][:2]
    want = text[:text.index(word)]
    answer = world.complete(max_tokens=24, stop=[word])
    assert answer.choices[0].text == want and answer.choices[0].finish_reason == "stop"
    streamed = "".join(chunk.choices[0].text
                       for chunk in world.complete(max_tokens=24, stop=word, stream=True))
    assert streamed == want


@check
def a_seed_repeats_an_answer(world):
    first, second = (world.chat(temperature=0.9, seed=42, max_tokens=24) for _ in range(2))
    assert first.choices[0].message.content == second.choices[0].message.content


@check
def digests_repeat_and_roll(world):
    first, second = (world.complete(extra_body={"logits_digest": True}).choices[0].forge
                     for _ in range(2))
    assert first == second and len(first["digests"]) == len(first["token_ids"])
    assert len(first["rolling"]) == 16


@check
def raw_responses_carry_the_request_id(world):
    raw = world.client.chat.completions.with_raw_response.create(
        model=world.model, messages=QUESTION, max_tokens=4)
    assert raw.headers["x-request-id"] == raw.parse().id


@check
def several_clients_at_once(world):
    alone = world.chat().choices[0].message.content
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: world.chat().choices[0].message.content, range(8)))
    assert answers == [alone] * 8


@check
def an_unknown_model_is_not_found(world):
    world.raises(openai.NotFoundError, lambda: world.chat(model="no-such-model"),
                 code="model_not_found", param="model")


@check
def bad_parameters_are_named(world):
    for name, value in [("temperature", 2.5), ("top_p", 0), ("max_tokens", 0), ("seed", "x"),
                        ("stop", ["a"] * 17), ("n", 0), ("n", 65), ("stream_options", {"include_usage": True})]:
        world.raises(openai.BadRequestError, lambda n=name, v=value: world.chat(**{n: v}), param=name)


@check
def absent_parameters_are_named(world):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for name, value in [("tools", [tool]), ("prediction", {"type": "content", "content": "x"}),
                        ("modalities", ["audio"])]:
        world.raises(openai.BadRequestError, lambda n=name, v=value: world.chat(**{n: v}),
                     param=name, code="unsupported_parameter")


@check
def several_choices(world):
    """Choice i is what the seed plus i gives alone."""
    four = world.chat(n=4, seed=11, temperature=1)
    alone = [world.chat(seed=11 + i, temperature=1) for i in range(4)]
    assert [c.index for c in four.choices] == [0, 1, 2, 3]
    assert [c.message.content for c in four.choices] == \
        [a.choices[0].message.content for a in alone]
    assert four.usage.completion_tokens == sum(a.usage.completion_tokens for a in alone)


@check
def logprobs_of_a_chat(world):
    answer = world.chat(logprobs=True, top_logprobs=3)
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens
    assert "".join(t.token for t in told).startswith(answer.choices[0].message.content)
    for token in told:
        assert bytes(token.bytes).decode() == token.token or token.token.startswith("bytes:")
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        # Greedy: the chosen one is the likeliest.
        assert token.top_logprobs[0].token == token.token
        assert [t.logprob for t in token.top_logprobs] == \
            sorted((t.logprob for t in token.top_logprobs), reverse=True)
    streamed = []
    for chunk in world.chat(logprobs=True, top_logprobs=3, stream=True):
        streamed += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert streamed == told, "a stream tells the same"
    assert world.chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


@check
def logprobs_of_a_completion(world):
    choice = world.complete(logprobs=2).choices[0]
    told = choice.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs)
    assert told.text_offset[0] == 0
    for offset, token in zip(told.text_offset, told.tokens):
        assert choice.text[offset:].startswith(token[:1]) or token.startswith("<") or not token
    assert all(len(row) == 2 and token in row for row, token in zip(told.top_logprobs, told.tokens))


@check
def biases_and_penalties_change_what_is_said(world):
    plain = world.complete(logprobs=1, max_tokens=16).choices[0]
    first = plain.logprobs.tokens[0]
    body = json.dumps({"content": first}).encode()
    token_id = json.loads(answer_to(world, "/tokenize", body)[2])["tokens"][0]
    banned = world.complete(logprobs=1, max_tokens=16, logit_bias={str(token_id): -100}).choices[0]
    assert first not in banned.logprobs.tokens, "a banned token was said"
    forced = world.complete(logprobs=1, max_tokens=4, logit_bias={str(token_id): 100}).choices[0]
    assert forced.logprobs.tokens == [first] * 4
    assert world.complete(max_tokens=60, presence_penalty=2, frequency_penalty=2).choices[0].text != \
        world.complete(max_tokens=60).choices[0].text
    world.raises(openai.BadRequestError, lambda: world.complete(logit_bias={"x": 1}), param="logit_bias")
    world.raises(openai.BadRequestError, lambda: world.chat(top_logprobs=3), param="top_logprobs")


class Stop(pydantic.BaseModel):
    place: str = pydantic.Field(max_length=12)
    nights: int = pydantic.Field(ge=0, le=9)


class Trip(pydantic.BaseModel):
    """As people write such models: nested, optional, of few values."""
    kind: Literal["train", "ship"]
    stops: list[Stop] = pydantic.Field(max_length=2)
    note: Optional[Literal["early", "late"]]


@check
def an_answer_parses_into_a_model(world):
    for seed in range(3):
        answer = world.client.chat.completions.parse(model=world.model, messages=QUESTION, response_format=Trip,
                                                     max_tokens=200, temperature=1, seed=seed)
        trip = answer.choices[0].message.parsed
        assert isinstance(trip, Trip) and answer.choices[0].finish_reason == "stop", answer
    with world.client.chat.completions.stream(model=world.model, messages=QUESTION, response_format=Trip,
                                              max_tokens=200, temperature=1, seed=0) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Trip)
    text = world.chat(response_format={"type": "json_object"}, max_tokens=150, temperature=1, seed=1)
    if text.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text.choices[0].message.content), dict)
    world.raises(openai.BadRequestError, lambda: world.chat(response_format={"type": "yaml"}),
                 param="response_format")


@check
def neutral_parameters_are_accepted(world):
    world.chat(n=1, logprobs=False, presence_penalty=0, frequency_penalty=0, logit_bias={},
               response_format={"type": "text"}, user="someone")


@check
def messages_are_checked(world):
    world.raises(openai.BadRequestError, lambda: world.chat(messages=[]), param="messages")
    world.raises(openai.BadRequestError,
                 lambda: world.chat(messages=[{"role": "stranger", "content": "x"}]),
                 param="messages[0].role")
    image = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
    world.raises(openai.BadRequestError,
                 lambda: world.chat(messages=[{"role": "user", "content": image}]),
                 param="messages[0].content")


@check
def several_prompts_are_answered(world):
    alone = [world.complete(prompt=prompt).choices[0].text for prompt in ("One, two,", "The sky is")]
    both = world.complete(prompt=["One, two,", "The sky is"])
    assert [choice.text for choice in both.choices] == alone, both
    world.raises(openai.BadRequestError, lambda: world.complete(prompt=["a"] * 65), param="prompt")
    world.raises(openai.BadRequestError, lambda: world.complete(prompt=[1 << 31]), param="prompt")


@check
def a_prompt_beyond_the_context_is_refused(world):
    world.raises(openai.BadRequestError, lambda: world.complete(prompt="word " * 300000),
                 param="prompt", code="context_length_exceeded")
    world.raises(openai.BadRequestError, lambda: world.complete(max_tokens=1 << 30),
                 param="max_tokens", code="context_length_exceeded")


def answer_to(world, path, body=None, content_type="application/json", method=None):
    headers = {} if content_type is None else {"content-type": content_type}
    request = urllib.request.Request(world.root + path, data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.headers, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@check
def the_other_routes_answer(world):
    assert answer_to(world, "/health")[0] == 200
    assert answer_to(world, "/live")[0] == 200
    status, headers, body = answer_to(world, "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"forge:" in body
    state = json.loads(answer_to(world, "/debug/state")[2])
    assert "workers" in state and "requests" in state
    status, _, body = answer_to(world, "/health", method="HEAD")
    assert status == 200 and body == b""


@check
def wrong_doors_are_told_apart(world):
    status, _, body = answer_to(world, "/v1/nothing")
    assert status == 404 and json.loads(body)["error"]["type"] == "not_found_error"
    status, headers, _ = answer_to(world, "/v1/completions")
    assert status == 405 and headers["allow"] == "POST"
    assert answer_to(world, "/v1/completions", b"{}", "text/plain")[0] == 415
    status, _, body = answer_to(world, "/v1/completions", b'{"prompt": "x"')
    assert status == 400 and "JSON" in json.loads(body)["error"]["message"]


def main():
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    try:
        world = World(sys.argv[1])
    except (openai.APIConnectionError, openai.APIStatusError) as error:
        print(f"cannot reach {sys.argv[1]}: {error}", file=sys.stderr)
        return 2
    failed = 0
    for function in checks:
        name = function.__name__.replace("_", " ")
        try:
            function(world)
            print(f"ok      {name}")
        except Exception as error:  # each check reports, the others go on
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}")
    print(f"openai {openai.__version__}: {len(checks) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
