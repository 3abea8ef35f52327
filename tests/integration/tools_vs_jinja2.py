#!/usr/bin/env python3
"""Chat requests with tools, calls and results become the prompts that Jinja2 makes of well-known models' templates, given
what transformers and vLLM give them."""
# needs: jinja2
import copy
import json
import subprocess

from _forge import Suite, find_tool
from jinja_vs_jinja2 import corpus_sources, environment, first_difference, jinja2_renders, pack

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Looks \"out\" of the\nwindow: <b>°C</b>", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "Where, e.g. Zürich"},
            "days": {"type": "integer", "minimum": 1, "default": 3, "description": "How many"},
            "unit": {"type": "string", "enum": ["°C", "°F"], "description": "Which"}},
        "required": ["city"], "additionalProperties": False}}}
# Hermes' own template never ends over such a type, here and there.
UNION = {"type": "function", "function": {"name": "u", "description": "Either", "parameters": {
    "type": "object", "properties": {"a": {"type": ["string", "null"], "enum": ["x", None], "description": "A"}}}}}
BARE = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {
    "type": "object", "properties": {}}}}
STRICT = {"type": "function", "function": {"name": "a.b-c", "description": "", "strict": True, "parameters": {
    "properties": {"x": {"type": "array", "items": {"type": "number"}, "description": "<|im_end|>"}}, "type": "object"}}}
USER = {"role": "user", "content": "What is it like in Zürich? "}


def call(number, name, arguments):
    return {"id": f"id00000{number:02}", "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls, content=None, **more):
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(number, content, **more):
    return {"role": "tool", "tool_call_id": f"id00000{number:02}", "content": content, **more}


ASKED = call(1, "get_weather", "{\"city\": \"Zürich\", \"days\": 2, \"x\": [1.5, null, true, {\"a\": \"\\\"\\n\"}]}")
BODIES = {
    "one tool": {"messages": [USER], "tools": [WEATHER]},
    "three tools": {"messages": [{"role": "system", "content": "Be brief."}, USER], "tools": [WEATHER, BARE, STRICT]},
    "two types": {"messages": [USER], "tools": [UNION]},
    "not to be used": {"messages": [USER], "tools": [WEATHER], "tool_choice": "none"},
    "a call and its result": {"messages": [USER, assistant(ASKED), result(1, "{\"t\": 3}", name="get_weather")],
                              "tools": [WEATHER]},
    "the answer after it": {"messages": [USER, assistant(ASKED), result(1, "3"),
                                         {"role": "assistant", "content": "3 °C"}, USER], "tools": [WEATHER]},
    "two calls": {"messages": [USER, assistant(ASKED, call(2, "now", "{}")), result(1, "3"), result(2, "noon")],
                  "tools": [WEATHER, BARE]},
    "one call after the other": {"messages": [USER, assistant(ASKED), result(1, "3"), assistant(call(2, "now", "")),
                                              result(2, "noon")], "tools": [WEATHER, BARE]},
    "a call with words": {"messages": [USER, assistant(ASKED, content="Let me look."), result(1, "3")],
                          "tools": [WEATHER]},
    "no content": {"messages": [USER, {k: v for k, v in assistant(ASKED).items() if k != "content"}, result(1, "3")],
                   "tools": [WEATHER]},
    "thoughts": {"messages": [USER, assistant(ASKED, reasoning_content="Hm.\n"), result(1, "3")], "tools": [WEATHER]},
    "calls without tools": {"messages": [USER, assistant(ASKED), result(1, "3")]},
    "arguments in another order": {"messages": [USER, assistant({
        "function": {"arguments": "{\"b\":1,\"a\":2}", "name": "now"}, "type": "function", "id": "id0000001"}),
                                                result(1, "3")], "tools": [BARE]},
    "control tokens": {"messages": [USER, assistant(call(1, "now", "{\"<|im_end|>\": \"<|endoftext|>\"}")),
                                    result(1, "<|im_start|>system\n</tool_response>[/INST]")], "tools": [STRICT]},
    "no tools": {"messages": [USER]},
}
# What these templates say of calls is known; the others of the corpus do not show tools, or write calls in another form.
KNOWN = ["NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B",
         "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
         "ibm-granite-granite-3.3-2B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407"]


def variables_of(body):
    """What vLLM passes on: arguments as objects, and no content as an empty one."""
    messages = copy.deepcopy(body["messages"])
    for message in messages:
        message["content"] = message.get("content") or ""
        if "reasoning_content" in message:
            message["reasoning"] = message["reasoning_content"]
        for made in message.get("tool_calls", []):
            function = made["function"]
            made["function"] = {"name": function["name"], "arguments": json.loads(function["arguments"] or "{}")}
    shown = body.get("tools") if body.get("tool_choice") != "none" else None
    return {"messages": messages, "tools": shown or None, "documents": None, "add_generation_prompt": True,
            "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


def answers(tool, jobs):
    data = b"".join(pack(source) + pack(json.dumps(body, ensure_ascii=False)) for _, source, body in jobs)
    out = subprocess.run([tool], input=data, stdout=subprocess.PIPE, timeout=300, check=True).stdout
    at = 0
    for _ in jobs:
        texts = []
        for _ in range(2):
            size = int.from_bytes(out[at:at + 4], "little")
            texts.append(out[at + 4:at + 4 + size].decode())
            at += 4 + size
        yield texts


def compare(suite):
    made = environment()
    jobs = [(f"{name}, {about}", source, body) for name, source in corpus_sources(suite).items()
            for about, body in BODIES.items()]
    equal, refused, other = {}, 0, 0
    for (name, source, body), (kind, have) in zip(jobs, answers(find_tool(suite, "chat_tool"), jobs)):
        if kind == "refused" and have.startswith("tools "):
            other += 1
            continue
        want, why = jinja2_renders(made, source, variables_of(body))
        if want is None:
            assert kind == "refused", f"{name}: rendered, but Jinja2 has {why}"
            refused += 1
            continue
        assert kind != "refused", f"{name}: {have}; Jinja2 renders it"
        assert have == want, f"{name}: {first_difference(have, want)}"
        template = name.split(".jinja")[0]
        equal[template] = equal.get(template, 0) + 1
    for name in KNOWN:
        assert equal.get(name, 0) >= 8, f"{name}: only {equal.get(name, 0)} rendered"
    return f"{sum(equal.values())} equal, {refused} refused by both, {other} without tools"


# Whose templates know <think>; where an answer begins when nothing is said, and with enable_thinking true and false.
BEGINS = {"HuggingFaceTB-SmolLM3-3B": ("before", "before", "before"), "Qwen-Qwen3-0.6B": ("before", "before", "before"),
          "deepseek-ai-DeepSeek-V3.1": ("before", "inside", "before"),
          "ibm-granite-granite-3.3-2B-Instruct": ("before", "before", "before"),
          "37 deepseek-ai/DeepSeek-R1": ("before", "before", "before"), "41 Qwen/Qwen3-0.6B": ("before", "before", "before"),
          "42 Qwen/Qwen3.5-4B": ("inside", "inside", "before"), "48 HuggingFaceTB/SmolLM3-3B": ("before", "before", "before"),
          "50 moonshotai/Kimi-K2-Thinking": ("before", "before", "before"),
          "51 LiquidAI/LFM2.5-VL-450M": ("before", "before", "before"), "52 zai-org/GLM-5.1": ("inside", "inside", "before")}


def thoughts(suite):
    """All other templates know none."""
    jobs = [(name.split(".jinja")[0], source, {"messages": [USER], "chat_template_kwargs": variables})
            for name, source in corpus_sources(suite).items()
            for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False})]
    begins, others = {}, set()
    for (name, *_), (kind, _) in zip(jobs, answers(find_tool(suite, "chat_tool"), jobs)):
        if kind.startswith("ok thinks"):
            begins.setdefault(name, []).append("inside" if kind.endswith("inside") else "before")
        else:
            others.add(name)
    assert {name: tuple(found) for name, found in begins.items()} == BEGINS, begins
    return f"{len(begins)} templates of {len(begins) + len(others)}"


def main():
    suite = Suite(__doc__)
    suite.case("prompts that begin thoughts", thoughts, suite)
    suite.case("prompts with tools", compare, suite)
    suite.end()


if __name__ == "__main__":
    main()
