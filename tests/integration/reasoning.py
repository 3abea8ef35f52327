#!/usr/bin/env python3
"""What a model thinks, told from what it answers, through real processes and seen with the openai package: a model that
is made here says word for word what it is told to, in one standalone process and in a cluster."""
# needs: openai gguf numpy jsonschema
import json
import lzma
import pathlib
import tempfile

from _forge import Suite, post
from _sayings import OpenAI, make_model

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "中"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Bern", "中"]}}, "required": ["city"], "additionalProperties": False}}}]

# What the model says; then thought, content and calls of the answer.
SAYINGS = {
    "plain": ("No, <think>x</think> is a text.", None, "No, <think>x</think> is a text.", []),
    "thought": ("<think>\nHm: Zürich 中 😀?\n a < b </ c.\n\n</think>\n\n It rains.\n", "Hm: Zürich 中 😀?\n a < b </ c.",
                " It rains.\n", []),
    "opened": ("Well, well.\n</think>\n\nSo it is 中.", "Well, well.", "So it is 中.", []),  # the prompt ends with <think>
    "closed": ("Only this.", None, "Only this.", []),  # it ends with the whole of an empty thought
    "empty": ("<think>\n\n</think>\n\nYes!!", None, "Yes!!", []),
    "endless": ("<think>\nOn and on", "On and on", None, []),
    "marked": (("<think>", "\nüber dies 中\n", "</think>", "\n\nund das."), "über dies 中", "und das.", []),  # control tokens
    "call": ("<think>\nUse <tool_call>{}</tool_call> now\n</think>\n\n" + CALL, "Use <tool_call>{}</tool_call> now", None,
             [("get_time", '{"city": "中"}')]),
}
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|{name}|>" for name in SAYINGS]
TEMPLATE = ("{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
            '<tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n"
            "{% if messages[-1].content == 'opened' %}<think>\n{% endif %}"
            "{% if messages[-1].content == 'closed' %}<think>\n\n</think>\n\n{% endif %}"
            + "".join(f"{{% if messages[-1].content == '{name}' %}}<|{name}|>{{% endif %}}"
                      for name in SAYINGS if name != "opened")
            + "{% endif %}")


def said(name):
    parts = SAYINGS[name][0]
    return parts if isinstance(parts, str) else "".join(part for part in parts if "think>" not in part)


class World(OpenAI):
    def ask(self, saying, body=None, **more):
        tools = {"tools": TOOLS} if saying == "call" else {}
        arguments = {"model": self.model, "messages": [{"role": "user", "content": saying}], "temperature": 0, **tools, **more}
        return self.client.chat.completions.create(extra_body=body, **arguments)

    def streamed(self, saying, **more):
        """An answer put together as a client does: (thought, content, calls, finish); thoughts come first."""
        thought, content, calls, finish = None, None, {}, None
        for chunk in self.ask(saying, stream=True, **more):
            choice = chunk.choices[0]
            part = getattr(choice.delta, "reasoning_content", None)
            if part is not None:
                assert part and content is None and not calls, chunk
                thought = (thought or "") + part
            if choice.delta.content is not None:
                assert part is None, chunk
                content = (content or "") + choice.delta.content
            for delta in choice.delta.tool_calls or []:
                call = calls.setdefault(delta.index, ["", ""])
                call[0] += delta.function.name or ""
                call[1] += delta.function.arguments or ""
            assert finish is None, "a chunk behind the finish"
            finish = choice.finish_reason
        return thought, content, [tuple(call) for call in calls.values()], finish


def told(choice):
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    return getattr(choice.message, "reasoning_content", None), choice.message.content, calls, choice.finish_reason


def wanted(name):
    _, thought, content, calls = SAYINGS[name]
    return thought, content, calls, "tool_calls" if calls else "stop"


def sayings(world):
    for name in SAYINGS:
        answer = world.ask(name)
        assert told(answer.choices[0]) == wanted(name), f"{name}: {answer.choices[0]}"
        assert world.streamed(name) == wanted(name), f"{name}, streamed: {world.streamed(name)}"
        used, thought = answer.usage.completion_tokens_details.reasoning_tokens, name not in ("plain", "closed")
        assert (used > 0) == thought and used <= answer.usage.completion_tokens, f"{name}: {answer.usage}"
        assert name == "endless" or used < answer.usage.completion_tokens, f"{name}: {answer.usage}"


def cut_anywhere(world):
    """At each length: a beginning of what is said, and the stream says the same."""
    places = set()
    for name in ("thought", "opened", "marked", "call"):
        total = world.ask(name).usage.completion_tokens
        for length in range(1, total):
            have = told(world.ask(name, max_tokens=length).choices[0])
            assert have[3] == "length" and world.streamed(name, max_tokens=length) == have, f"{name}, {length}: {have}"
            thought, content = (text or "" for text in have[:2])
            want = [text or "" for text in SAYINGS[name][1:3]]
            if thought == want[0]:
                assert want[1].startswith(content.rstrip("\ufffd")) or name == "call", f"{name}, {length}: {have}"
            else:  # half a mark is what it is
                assert "<think>".startswith(content), f"{name}, {length}: {have}"
                assert (want[0] + "\n\n</think>").replace("\n", "").startswith(
                    thought.rstrip("\ufffd").replace("\n", "")), f"{name}, {length}: {have}"
            places.add((bool(thought), bool(content or have[2])))
    assert {(True, False), (True, True)} <= places, places


def not_split(world):
    for name in SAYINGS:
        tools = {"tools": None, "tool_choice": None} if name == "call" else {}
        have = told(world.ask(name, {"reasoning_format": "none"}, **tools).choices[0])
        assert have == (None, said(name), [], "stop"), f"{name}: {have}"
        assert world.streamed(name, body={"reasoning_format": "none"}, **tools) == have, name
    usage = world.ask("thought", {"reasoning_format": "none"}).usage
    assert usage.completion_tokens_details is None, usage
    prompt = post(world.cluster.port, "/detokenize", {"tokens": post(world.cluster.port, "/tokenize", {
        "messages": [{"role": "user", "content": "thought"}]})["tokens"]})["prompt"]
    answer = world.client.completions.create(model=world.model, prompt=prompt, temperature=0, max_tokens=100)
    assert answer.choices[0].text == said("thought"), "a completion is no chat"


def left_out(world):
    for name in SAYINGS:
        want = (None, *wanted(name)[1:])
        answer = world.ask(name, {"include_reasoning": False})
        assert told(answer.choices[0]) == want, f"{name}: {answer.choices[0]}"
        assert world.streamed(name, body={"include_reasoning": False}) == want, name
        assert answer.usage == world.ask(name).usage, "it costs the same"


def stopped(world):
    assert told(world.ask("thought", stop="rich").choices[0]) == ("Hm: Zü", None, [], "stop")
    assert told(world.ask("thought", stop="</think>").choices[0]) == (wanted("thought")[0] + "\n\n", None, [], "stop")
    assert told(world.ask("thought", stop="rains").choices[0]) == (wanted("thought")[0], " It ", [], "stop")
    assert told(world.ask("thought", {"include_stop_str_in_output": True}, stop="rains").choices[0])[1] == " It rains"
    all_ids = world.ask("thought", {"return_token_ids": True}).choices[0].token_ids
    for at in (3, len(all_ids) // 2, len(all_ids) - 3):
        choice = world.ask("thought", {"return_token_ids": True, "stop_token_ids": [all_ids[at]]}).choices[0]
        before = told(world.ask("thought", max_tokens=at).choices[0])
        assert choice.finish_reason == "stop" and choice.token_ids == all_ids[:at + 1], choice
        assert told(choice)[:3] == before[:3], f"{at}: {choice}, not {before}"


def several_choices(world):
    answer = world.ask("thought", n=3, logprobs=True)
    for choice in answer.choices:
        assert told(choice) == wanted("thought"), choice
        text = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content).decode()
        assert text == said("thought") + "<|im_end|>", f"logprobs are of all tokens: {text}"
    one = world.ask("thought").usage.completion_tokens_details.reasoning_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3 * one


def held_to(world):
    """A text that is held to a format is that text, whatever marks are in it, and calls that have to be made are calls."""
    for name in ("thought", "opened"):
        body = {"regex": "<think>a</think>b{4}"}
        assert told(world.ask(name, body).choices[0]) == (None, "<think>a</think>bbbb", [], "stop"), name
    have = told(world.ask("call", tool_choice="required", parallel_tool_calls=False).choices[0])
    assert have[:2] == (None, None) and have[2][0][0] == "get_time" and have[3] == "tool_calls", have


def a_batch(world):
    lines = [{"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
              "body": {"messages": [{"role": "user", "content": name}], "temperature": 0,
                       **({"tools": TOOLS} if name == "call" else {})}} for name in SAYINGS]
    for line in post(world.cluster.port, "/forge/v1/batch", lines)["data"]:
        message = line["response"]["body"]["choices"][0]["message"]
        have = message.get("reasoning_content"), message["content"]
        assert have == wanted(line["custom_id"])[:2], message


def a_conversation(world):
    """What was thought may go back with the answer."""
    message = world.ask("thought").choices[0].message.model_dump(exclude_none=True)
    assert message["reasoning_content"] == wanted("thought")[0]
    answer = world.ask("x", messages=[{"role": "user", "content": "thought"}, message, {"role": "user", "content": "plain"}])
    assert told(answer.choices[0]) == wanted("plain")


def refusals(world):
    for body, param in (({"reasoning_format": "hidden"}, "reasoning_format"), ({"include_reasoning": 1}, "include_reasoning")):
        try:
            world.ask("plain", body)
        except world.bad_request as error:
            assert error.body["param"] == param, error.body
        else:
            raise AssertionError(f"{body} was taken")


def as_described(world):
    """Whole answers fit OpenAI's description."""
    import jsonschema  # pylint: disable=import-outside-toplevel
    path = world.suite.corpus("openai-spec/openai-openapi.json.xz")
    spec = json.loads(lzma.open(path).read())
    schema = {"$ref": "#/components/schemas/CreateChatCompletionResponse", "components": spec["components"]}
    for name in SAYINGS:
        raw = world.client.chat.completions.with_raw_response.create(
            model=world.model, messages=[{"role": "user", "content": name}], temperature=0)
        jsonschema.Draft202012Validator(schema).validate(raw.http_response.json())


CASES = [sayings, cut_anywhere, not_split, left_out, stopped, several_choices, held_to, a_batch, a_conversation, refusals,
         as_described]


def in_shape(suite, name, model, shape):
    with suite.cluster(model=model, **shape) as cluster:
        world = World(suite, cluster)
        for case in CASES:
            suite.case(f"{name}, {case.__name__.replace('_', ' ')}", case, world)
        cluster.wait_at_rest()


def the_server_does_not_split(suite, model):
    with suite.cluster(model=model, standalone=True, flags=("--reasoning-format", "none")) as cluster:
        world = World(suite, cluster)
        assert told(world.ask("thought").choices[0]) == (None, said("thought"), [], "stop")
        assert told(world.ask("thought", {"reasoning_format": "auto"}).choices[0]) == wanted("thought")
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        model = str(pathlib.Path(folder) / "sayings.gguf")
        make_model(model, {name: saying for name, (saying, *_) in SAYINGS.items()}, SPECIALS + ["<think>", "</think>"],
                   TEMPLATE, {"opened": ord("\n")})
        for name, shape in (("standalone", dict(standalone=True)), ("1P+1D", dict(prefill=1, decode=1))):
            suite.case(f"{name} starts and ends", in_shape, suite, name, model, shape)
        suite.case("--reasoning-format none", the_server_does_not_split, suite, model)
    suite.end()


if __name__ == "__main__":
    main()
