#!/usr/bin/env python3
"""Calls of tools through real processes, seen with the openai package and measured against OpenAI's own description: a
model that is made here says word for word what it is told to, chosen by the last message."""
# needs: openai gguf numpy jsonschema
import json
import lzma
import pathlib
import tempfile

from _forge import Suite, post
from _sayings import OpenAI, make_model

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": CITY, "strict": True}}
         for name in ("get_weather", "get_time")]
ZURICH = '{"city": "Zürich 中 😀"}'


def tagged(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# What the model says; then content, calls and finish of the answer.
SAYINGS = {
    "plain": ("No <tools> here.", "No <tools> here.", [], "stop"),
    "one": (tagged("get_weather", ZURICH), None, [("get_weather", ZURICH)], "tool_calls"),
    "two": ("Let me see.\n" + tagged("get_weather", '{"city":"a"}') + "\n" + tagged("get_time", '{"city":"b"}') + "\n",
            "Let me see.\n", [("get_weather", '{"city":"a"}'), ("get_time", '{"city":"b"}')], "tool_calls"),
    "marked": (("<tool_call>", "\n".join(["", '{"name": "get_time", "arguments": {"city": "c"}}', ""])), None,
               [("get_time", '{"city": "c"}')], "tool_calls"),  # behind <tool_call> as a control token
    "empty": ('<tool_call>{"name":"get_time"}</tool_call>', None, [("get_time", "{}")], "tool_calls"),
    "strange": (tagged("nobody", "{}"), None, [("nobody", "{}")], "tool_calls"),
    "broken": ("<tool_call>{'name': 1}</tool_call>", "<tool_call>{'name': 1}</tool_call>", [], "stop"),
}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"] + [f"<|{name}|>" for name in SAYINGS]

TEMPLATE = ("{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
            '<tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n{% endif %}'
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
            "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
            + "".join(f"{{% if messages[-1].content == '{name}' %}}<|{name}|>{{% endif %}}" for name in SAYINGS)
            + "{% endif %}")


class World(OpenAI):
    def ask(self, saying, **more):
        arguments = {"model": self.model, "messages": [{"role": "user", "content": saying}], "tools": TOOLS,
                     "temperature": 0, **more}
        return self.client.chat.completions.create(**arguments)

    def streamed(self, saying, **more):
        """An answer put together as a client does, by the rules of deltas: (content, calls, finish, ids)."""
        content, calls, finish = None, {}, None
        for chunk in self.ask(saying, stream=True, **more):
            choice = chunk.choices[0]
            if choice.delta.content is not None:
                content = (content or "") + choice.delta.content
            for delta in choice.delta.tool_calls or []:
                assert type(delta.index) is int, delta
                if delta.index not in calls:
                    assert delta.index == len(calls) and delta.id and delta.type == "function", delta
                    assert delta.function.name and delta.function.arguments == "", delta
                    calls[delta.index] = [delta.id, delta.function.name, ""]
                else:
                    assert delta.id is None and delta.type is None and delta.function.name is None, delta
                    assert delta.function.arguments, delta
                    calls[delta.index][2] += delta.function.arguments
            assert finish is None, "a chunk behind the finish"
            finish = choice.finish_reason
        return content, [tuple(call[1:]) for call in calls.values()], finish, [call[0] for call in calls.values()]


def told(choice):
    calls = choice.message.tool_calls or []
    ids = [call.id for call in calls]
    assert all(call.type == "function" for call in calls) and len(set(ids)) == len(ids), calls
    assert all(id.startswith("call_") and len(id) == 29 for id in ids), ids
    return choice.message.content, [(call.function.name, call.function.arguments) for call in calls], choice.finish_reason


def sayings(world):
    seen = set()
    for name, (_, content, calls, finish) in SAYINGS.items():
        whole = world.ask(name)
        assert told(whole.choices[0]) == (content, calls, finish), f"{name}: {whole.choices[0]}"
        *parts, ids = world.streamed(name)
        assert tuple(parts) == (content, calls, finish), f"{name}, streamed: {parts}"
        ids += [call.id for call in whole.choices[0].message.tool_calls or []]
        assert not seen & set(ids), "an id that was given before"
        seen.update(ids)
    return f"{len(seen)} calls"


def not_to_be_used(world):
    text = SAYINGS["one"][0]
    assert told(world.ask("one", tool_choice="none").choices[0]) == (text, [], "stop")
    assert world.streamed("one", tool_choice="none")[0] == text


def one_call_only(world):
    both, first = world.ask("two"), world.ask("two", parallel_tool_calls=False)
    want = ("Let me see.\n", [("get_weather", '{"city":"a"}')], "tool_calls")
    assert told(first.choices[0]) == want, first.choices[0]
    assert first.usage.completion_tokens < both.usage.completion_tokens, "it went on"
    assert tuple(world.streamed("two", parallel_tool_calls=False)[:3]) == want


def several_choices(world):
    answer = world.ask("two", n=3)
    for choice in answer.choices:
        assert told(choice)[1:] == (SAYINGS["two"][2], "tool_calls"), choice
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 6, ids


def cut_anywhere(world):
    """At each length: what was said so far, and the stream says the same."""
    total = world.ask("one").usage.completion_tokens
    cut_calls = 0
    for length in range(1, total):
        content, calls, finish = told(world.ask("one", max_tokens=length).choices[0])
        streamed = tuple(world.streamed("one", max_tokens=length)[:3])
        assert finish == "length" and streamed == (content, calls, finish), f"{length}: {calls} {streamed}"
        assert not calls or (content is None and ZURICH.startswith(calls[0][1].rstrip("\ufffd"))), f"{length}: {calls}"
        cut_calls += bool(calls)
    assert 3 <= cut_calls < total - 1, cut_calls
    return f"{total} lengths, {cut_calls} with a call"


def stopped(world):
    content, calls, finish = told(world.ask("one", stop="rich").choices[0])
    assert (content, calls, finish) == (None, [("get_weather", '{"city": "Zü')], "stop")
    content, calls, finish = told(world.ask("two", stop="</tool_call>").choices[0])
    assert (calls, finish) == ([("get_weather", '{"city":"a"}')], "tool_calls")


def the_helper_parses(world):
    with world.client.chat.completions.stream(model=world.model, messages=[{"role": "user", "content": "two"}],
                                              tools=TOOLS, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert final.finish_reason == "tool_calls" and final.message.content == "Let me see.\n"
    assert [call.function.parsed_arguments for call in final.message.tool_calls] == [{"city": "a"}, {"city": "b"}]


def a_conversation(world):
    """What the model called goes back as it came, with results."""
    first = world.ask("two").choices[0].message
    messages = [{"role": "user", "content": "two"}, first.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in first.tool_calls]
    answer = world.ask("plain", messages=messages + [{"role": "user", "content": "plain"}])
    assert told(answer.choices[0])[0] == SAYINGS["plain"][0]
    body = {"messages": messages, "tools": TOOLS}
    text = post(world.cluster.port, "/detokenize",
                {"tokens": post(world.cluster.port, "/tokenize", body)["tokens"]})["prompt"]
    assert '<tool_call>{"name": "get_time", "arguments": {"city": "b"}}</tool_call><|im_end|>\n<|im_start|>tool\n3' in text
    assert json.dumps(TOOLS[0]) in text, text


def a_batch(world):
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
              "body": {"messages": [{"role": "user", "content": name}], "tools": TOOLS, "temperature": 0}}
             for name in SAYINGS]
    for line in post(world.cluster.port, "/forge/v1/batch", lines)["data"]:
        choice = line["response"]["body"]["choices"][0]
        _, content, calls, finish = SAYINGS[line["custom_id"]]
        have = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls", [])]
        assert (choice["message"]["content"], have, choice["finish_reason"]) == (content, calls, finish), choice


def refusals(world):
    def refused(param, code, **more):
        try:
            world.ask("one", **more)
        except world.bad_request as error:
            assert (error.body["param"], error.body["code"]) == (param, code), error.body
            return
        raise AssertionError(f"{more} was taken")
    refused("tools[0].function.name", "invalid_value",
            tools=[{"type": "function", "function": {"name": "a b", "parameters": CITY}}])
    refused("tool_choice.function.name", "invalid_value", tool_choice={"type": "function", "function": {"name": "x"}})
    refused("tools[0].function.parameters", "invalid_value", tool_choice="required",
            tools=[{"type": "function", "function": {"name": "f", "strict": True,
                                                     "parameters": {"type": "array", "contains": {}}}}])
    refused("messages[0].tool_call_id", "invalid_type", messages=[{"role": "tool", "content": "x"}])


def as_described(world):
    """Whole answers and every chunk fit the schemas of OpenAI's description."""
    import jsonschema  # pylint: disable=import-outside-toplevel
    path = world.suite.corpus("openai-spec/openai-openapi.json.xz")
    spec = json.loads(lzma.open(path).read())

    def check(kind, value):
        schema = {"$ref": f"#/components/schemas/{kind}", "components": spec["components"]}
        errors = sorted(jsonschema.Draft202012Validator(schema).iter_errors(value), key=str)
        assert not errors, f"{kind}: {errors[0].message[:300]} at {list(errors[0].path)}"

    count = 0
    for name in SAYINGS:
        check("CreateChatCompletionResponse",
              world.client.chat.completions.with_raw_response.create(
                  model=world.model, messages=[{"role": "user", "content": name}], tools=TOOLS, temperature=0).http_response.json())
        with world.client.chat.completions.with_streaming_response.create(
                model=world.model, messages=[{"role": "user", "content": name}], tools=TOOLS, temperature=0,
                stream=True) as raw:
            for line in raw.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    for choice in chunk["choices"]:  # both are null in OpenAI's chunks, though not in its description
                        assert choice.pop("logprobs") is None
                        choice["finish_reason"] = choice["finish_reason"] or "stop"
                    check("CreateChatCompletionStreamResponse", chunk)
                    count += 1
    return f"{count} chunks"


GO = {"type": "object", "required": ["city"], "additionalProperties": False,
      "properties": {"city": {"enum": ["Bern", "Zürich"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14}}}
FORCED = [{"type": "function", "function": {"name": name, "parameters": GO}} for name in ("go", "stay")]


def calls_that_have_to_be_made(world):
    """Whatever the model would say: it calls, as the schema wants it, and the stream says the same."""
    import jsonschema  # pylint: disable=import-outside-toplevel
    several = 0
    for seed in range(12):
        for choice, names, most in (("required", {"go", "stay"}, 99),
                                    ({"type": "function", "function": {"name": "stay"}}, {"stay"}, 1)):
            wish = dict(tools=FORCED, tool_choice=choice, temperature=1, seed=seed, max_tokens=900)
            content, calls, finish = told(world.ask("plain", **wish).choices[0])
            assert content is None and finish == "tool_calls" and 1 <= len(calls) <= most, (content, calls, finish)
            for name, arguments in calls:
                assert name in names, calls
                jsonschema.validate(json.loads(arguments), GO)
            assert tuple(world.streamed("plain", **wish)[:3]) == (content, calls, finish)
            several += len(calls) > 1
    one = world.ask("plain", tools=FORCED, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=1)
    assert len(told(one.choices[0])[1]) == 1
    return f"{several} answers with several calls"


CASES = [calls_that_have_to_be_made, sayings, not_to_be_used, one_call_only, several_choices, cut_anywhere, stopped, the_helper_parses,
         a_conversation, a_batch, refusals, as_described]


def in_shape(suite, name, model, shape):
    with suite.cluster(model=model, **shape) as cluster:
        world = World(suite, cluster)
        for case in CASES:
            suite.case(f"{name}, {case.__name__.replace('_', ' ')}", case, world)
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        model = str(pathlib.Path(folder) / "sayings.gguf")
        make_model(model, {name: saying for name, (saying, *_) in SAYINGS.items()}, SPECIALS, TEMPLATE)
        for name, shape in (("standalone", dict(standalone=True)), ("1P+1D", dict(prefill=1, decode=1))):
            suite.case(f"{name} starts and ends", in_shape, suite, name, model, shape)
    suite.end()


if __name__ == "__main__":
    main()
