#!/usr/bin/env python3
"""Chat templates give what Jinja2 gives, set up as transformers does: those of well-known models over
conversations with and without tools, and random ones; and of the text exactly the client's words are said to be
the client's."""
# needs: jinja2
import datetime
import json
import pathlib
import random
import re
import struct
import subprocess

from _forge import Skip, Suite

NOW = datetime.datetime(2026, 1, 1, 12)  # jinja_tool's


def environment():
    import jinja2.ext  # pylint: disable=import-outside-toplevel
    import jinja2.sandbox  # pylint: disable=import-outside-toplevel

    class Generation(jinja2.ext.Extension):
        """{% generation %} only marks what a model said."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.If(jinja2.nodes.Const(True), body, [], [], lineno=line)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


def pack(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def render_all(tool, pairs):
    """(kind, text, client's spans) of each pair of template and variables."""
    data = b"".join(pack(source) + pack(json.dumps(variables, ensure_ascii=False))
                    for source, variables in pairs)
    out = subprocess.run([tool], input=data, stdout=subprocess.PIPE, timeout=300, check=True).stdout
    at = 0
    for _ in pairs:
        texts = []
        for _ in range(3):
            size = struct.unpack_from("<I", out, at)[0]
            texts.append(out[at + 4:at + 4 + size])
            at += 4 + size
        numbers = [int(word) for word in texts[2].split()]
        yield texts[0].decode(), texts[1], list(zip(numbers[::2], numbers[1::2]))


def jinja2_renders(made, source, variables, _known={}):  # pylint: disable=dangerous-default-value
    """The text, or None where Jinja2 refuses or fails, and why."""
    try:
        if source not in _known:  # compiling takes longer than rendering
            _known[source] = made.from_string(source)
        return _known[source].render(**variables), None
    except Exception as error:  # pylint: disable=broad-exception-caught
        return None, f"{type(error).__name__}: {error}"


def stored(suite):
    return json.loads(suite.corpus("chat-templates/rendered-53.json").read_text(encoding="utf-8"))


def stored_renderings(suite, tool):
    """The corpus' expected texts; where Python's own differs from them, as the corpus says, Python's."""
    made = environment()
    items = stored(suite)
    equal = 0
    for item, (kind, have, _) in zip(items, render_all(
            tool, [(item["chat_template"], item["data"]) for item in items])):
        assert kind == "ok", f"{item['name']}: {kind} {have.decode()}"
        want = item["target"]
        if have.decode() != want:
            want, why = jinja2_renders(made, item["chat_template"], item["data"])
            assert have.decode() == want, f"{item['name']}: {why or 'another text'}"
        else:
            equal += 1
    assert equal >= 51, f"only {equal}"
    return f"{len(items)} equal, {equal} of them to the stored text"


def letters(text):
    """The same words in letters that no template has."""
    return "".join(chr(0xAC00 + ord(c)) if "!" <= c <= "~" else c for c in text)


TOOL = {"type": "function", "function": {
    "name": "weather", "description": "Looks out of the window", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "Where"},
            "days": {"type": "integer", "description": "How many", "enum": [1, 2]},
            "unit": {"type": ["string", "null"], "description": "°C or °F"}}}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "abcdefghi", "type": "function",
     "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}]}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "one question": {"messages": [say("user", "Why?")]},
    "with a system message": {"messages": [say("system", "Be brief. "), say("user", " Why? \n")]},
    "several turns": {"messages": [say("user", "a"), say("assistant", "b"), say("user", "c")]},
    "out of order": {"messages": [say("assistant", "b"), say("user", "c"), say("user", "d")]},
    "system twice": {"messages": [say("system", "a"), say("user", "b"), say("system", "c")]},
    "thoughts": {"messages": [say("user", "a"), say("assistant", "<think>\nhm\n</think>\n\nb"),
                              say("user", "c")]},
    "thoughts beside": {"messages": [say("user", "a"),
                                     say("assistant", "b", reasoning_content="hm")]},
    "no thoughts wanted": {"messages": [say("user", "a")], "enable_thinking": False},
    "thoughts wanted": {"messages": [say("user", "a")], "enable_thinking": True},
    "control tokens": {"messages": [say("user", "<|im_end|>{{ x }}<s>[INST]"),
                                    say("assistant", "<end_of_turn></s>"), say("user", "<|eot_id|>")]},
    "all kinds of spaces": {"messages": [say("user", "\u00a0 a\u3000\n\u2009"), say("assistant", "\t"),
                                         say("user", "\u200b\x1c")]},
    "tools": {"messages": [say("system", "s"), say("user", "a")], "tools": [TOOL]},
    "tools called": {"messages": [say("user", "a"), CALL,
                                  say("tool", "{\"c\": 3}", tool_call_id="abcdefghi", name="weather"),
                                  say("assistant", "3 °C"), say("user", "b")], "tools": [TOOL]},
    "two tools": {"messages": [say("user", "a")], "tools": [TOOL, TOOL]},
    "a strange role": {"messages": [say("wizard", "a")]},
    "nothing": {"messages": []},
    "no content": {"messages": [say("user", None)]},
    "parts": {"messages": [say("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]},
    "many": {"messages": [say(("user", "assistant")[i % 2], f"m{i}") for i in range(101)]},
    "documents": {"messages": [say("user", "a")],
                  "documents": [{"title": "T", "text": "x", "doc_id": 1}]},
}


def corpus_sources(suite):
    folder = suite.corpus("chat-templates/rendered-53.json").parent
    sources = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    for number, item in enumerate(stored(suite)):
        sources[f"{number} {item['name']}"] = item["chat_template"]
    return sources


def conversations(suite, tool):
    """Every template over every conversation; what one refuses the other refuses too."""
    made = environment()
    jobs = []
    for name, source in corpus_sources(suite).items():
        for about, variables in CONVERSATIONS.items():
            for prompt in (True, False):
                jobs.append((f"{name}, {about}", source, {
                    "tools": None, "documents": None, "bos_token": "<bos>", "eos_token": "<eos>",
                    **variables, "add_generation_prompt": prompt}))
    equal = refused = 0
    for (name, source, variables), (kind, have, _) in zip(
            jobs, render_all(tool, [job[1:] for job in jobs])):
        want, why = jinja2_renders(made, source, variables)
        have = have.decode()
        if want is None:
            assert kind != "ok", f"{name}: rendered, but Jinja2 has {why}: {have[-200:]!r}"
            refused += 1
            continue
        assert kind == "ok", f"{name}: {kind}, {have}; Jinja2 renders it"
        assert have == want, f"{name}: {first_difference(have, want)}"
        equal += 1
    return f"{equal} equal, {refused} refused by both"


def first_difference(have, want):
    at = next((i for i, (a, b) in enumerate(zip(have, want)) if a != b), min(len(have), len(want)))
    return f"{have[max(0, at - 40):at + 40]!r} is not {want[max(0, at - 40):at + 40]!r}"


def writers(suite, tool):
    """Clients' words, in letters that no template has, are the client's pieces, and nothing else is."""
    def foreign(value):
        if isinstance(value, str):
            return letters(value)
        if isinstance(value, list):
            return [foreign(item) for item in value]
        return value

    jobs = []
    for name, source in corpus_sources(suite).items():
        for about in ("one question", "with a system message", "several turns", "many"):
            messages = [{"role": message["role"], "content": foreign(message["content"])}
                        for message in CONVERSATIONS[about]["messages"]]
            jobs.append((f"{name}, {about}", source, {
                "tools": None, "bos_token": "", "eos_token": "", "messages": messages,
                "add_generation_prompt": True}))
    seen = 0
    for (name, _, _), (kind, text, spans) in zip(jobs, render_all(tool, [job[1:] for job in jobs])):
        if kind != "ok":
            continue
        marked = set()
        for start, length in spans:
            marked.update(range(start, start + length))
        want = set()
        for found in re.finditer("[\uac00-\uac7f]+", text.decode()):
            start = len(text.decode()[:found.start()].encode())
            want.update(range(start, start + len(found.group().encode())))
        missing = want - marked
        assert not missing, f"{name}: {text[min(missing):min(missing) + 60]!r} taken for the template's"
        for start, length in spans:
            # Words and white space of a message, or a role: all else is the template's.
            rest = re.sub("[\uac00-\uac7f]+", "", text[start:start + length].decode()).strip()
            assert rest.lower() in ("", "user", "assistant", "system"), f"{name}: {rest!r} taken for a client's"
        seen += 1
    assert seen > 100, f"only {seen}"
    return f"{seen} renderings"


class Maker:
    """Random templates whose values both sides have the same idea of."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = ["n", "r", "yes", "nil", "t", "pad", "items_", "m", "people", "zz", "neg", "x", "y"]

    def pick(self, *choices):
        return self.random.choice(choices)

    def text(self):
        return self.pick("'a'", "'<b> c'", '"it\'s"', "'\\n'", "' x '", "''", "'中€'", "'a,b,,c'")

    def atom(self):
        return self.pick(self.text(), str(self.random.randrange(-5, 12)), "1.5", "true", "none",
                         self.random.choice(self.names), self.random.choice(self.names),
                         "m.k", "people[0].name", "people[0]['age']", "loop.index0", "[]", "{}")

    def expression(self, depth):
        if depth == 0:
            return self.atom()
        sub = lambda: self.expression(depth - 1)  # pylint: disable=unnecessary-lambda-assignment
        kind = self.random.randrange(16)
        if kind == 0:
            return f"({sub()} {self.pick('+', '-', '*', '~', '//', '/')} {sub()})"
        if kind == 1:
            return self.pick(f"{sub()} {self.pick('+', '~', '==', '!=', '<', 'and', 'or')} {sub()}",
                             f"{sub()} {self.pick('in', 'not in')} [{sub()}, {sub()}]",
                             f"{self.text()} {self.pick('in', 'not in')} ({sub()})")
        if kind == 2:
            return f"({sub()} if {sub()} else {sub()})"
        if kind == 3:
            return f"(not {sub()})"
        if kind in (4, 5, 6):
            return f"({sub()}) | " + self.pick(
                "trim", "upper", "lower", "length", "string", "tojson", "list", "first", "last", "title",
                "default('d')", "default('d', true)", "join('-')", "capitalize", "reverse | list", "int",
                "replace('a', 'bb')", "tojson(indent=2)", "items | list", "string | indent(2)", "abs",
                "string | unique | list",
                "map('string') | list", "select | list", "map(attribute='name') | list", "float",
                "selectattr('age') | list", "rejectattr('age', 'equalto', 3) | list", "reject('none') | list")
        if kind == 7:
            return f"(({sub()}) is {self.pick('', 'not ')}" + self.pick(
                "defined", "none", "string", "mapping", "iterable", "number", "true", "false", "odd", "even",
                "equalto(3)", "in [1, 'a']", "undefined", "boolean", "integer", "sequence", "divisibleby 2") + ")"
        if kind == 8:
            # Not of other values: Jinja2 answers for constants of these otherwise than for variables.
            over = self.pick(f"[{sub()}, {sub()}]", f"(({sub()}) | string)", "items_", "t", "zz")
            return f"{over}[{self.pick('0', '-1', '1:', ':2', '::-1', '-2:', '1:3', '5', '::2', ':-1')}]"
        if kind == 9:
            return f"[{sub()}, {sub()}]"
        if kind == 10:
            return f"{{'a': {sub()}, {self.text()}: {sub()}}}"
        if kind in (11, 12):
            return f"({sub()})." + self.pick(
                "strip()", "split(',')", "split()", "startswith('a')", "endswith('c')", "upper()", "title()",
                "lstrip('a ')", "rstrip()", "replace('a', '中')", "items() | list", "get('k')", "keys() | list",
                "get('zz', 1)", "split(',', 1)", "rsplit(',', 1)", "find('b')", "count('a')", "k",
                "strip(' a')", "isdigit()", "capitalize()", "splitlines()", "values() | list",
                "removeprefix('a')", "lower()")
        if kind == 13:
            return f"-({sub()})"
        if kind == 14:
            return self.pick(f"range({self.random.randrange(5)}) | list", "n % 2", "neg % n", "r % 2")
        return f"({sub()}, {sub()})"

    def white(self):
        return self.pick("", "", " ", "\n", "  ", "\n  ", "\n\n", "x", " x\n", "\u00a0")

    def tag(self, inside, kind="%"):
        ends = ("{%", "%}") if kind == "%" else ("{{", "}}")
        left = self.pick("", "", "-", "+") if kind == "%" else self.pick("", "", "-")
        right = self.pick("", "", "-", "+") if kind == "%" else self.pick("", "", "-")
        return f"{self.white()}{ends[0]}{left} {inside} {right}{ends[1]}{self.white()}"

    def statement(self, depth):
        kind = self.random.randrange(9) if depth > 0 else self.random.randrange(3)
        body = lambda: "".join(self.statement(depth - 1)  # pylint: disable=unnecessary-lambda-assignment
                               for _ in range(self.random.randrange(1, 3)))
        if kind in (0, 1):
            return self.tag(self.expression(self.random.randrange(4)), "{")
        if kind == 2:
            return self.pick(self.tag(f"set {self.pick('x', 'y')} = {self.expression(2)}"),
                             self.white() + "{#" + self.pick("", "-") + " c " + self.pick("", "-") + "#}",
                             self.white())
        if kind == 3:
            return (self.tag(f"if {self.expression(2)}") + body() + self.tag("else") + body()
                    + self.tag("endif"))
        if kind in (4, 5):
            target = self.pick("x", "x", "k, v")
            over = self.pick("items_", "m", "people", "t", "[1, 2, 3]", "m.items()", "people | items") \
                if target == "x" else self.pick("m.items()", "[[1, 2], [3, 4]]", "m | items")
            test = f" if {self.expression(1)}" if self.random.random() < 0.2 else ""
            return (self.tag(f"for {target} in {over}{test}") + body()
                    + self.tag("if loop.last") + "L" + self.tag("endif") + self.tag("endfor"))
        if kind == 6:
            return self.tag("set x") + body() + self.tag("endset") + self.tag("x", "{")
        if kind == 7:
            return (self.tag("macro f(x, y=2)") + body() + self.tag("endmacro")
                    + self.tag(f"f({self.expression(1)}{self.pick('', ', 3', ', y=4')})", "{"))
        return (self.tag("set ns = namespace(c=0)") + self.tag("for x in items_")
                + self.tag(f"set ns.c = ns.c + {self.pick('1', 'x', 'loop.index')}") + self.tag("endfor")
                + self.tag("ns.c", "{"))


VARIABLES = {"n": 3, "r": 0.5, "yes": True, "nil": None, "t": "a,b c", "pad": "  x \n", "neg": -7,
             "items_": [3, 1, 2], "m": {"k": "v", "a": [1], "2": None},
             "people": [{"name": "Ann", "age": 3}, {"name": "Bo", "age": None}]}


def random_templates(tool, seed, count):
    made = environment()
    maker = Maker(seed)
    sources = ["".join(maker.statement(2) for _ in range(maker.random.randrange(1, 4)))
               for _ in range(count)]
    equal = refused = 0
    for source, (kind, have, _) in zip(sources, render_all(tool, [(s, VARIABLES) for s in sources])):
        want, why = jinja2_renders(made, source, VARIABLES)
        if want is None:
            assert kind != "ok", f"seed {seed}: rendered, but Jinja2 has {why}: {source!r}"
            refused += 1
            continue
        assert kind == "ok", f"seed {seed}: {kind}, {have.decode()}; Jinja2 gives {want!r}: {source!r}"
        assert have.decode() == want, f"seed {seed}: {source!r}: {first_difference(have.decode(), want)}"
        equal += 1
    return f"seed {seed}: {equal} equal, {refused} refused by both"


def main():
    suite = Suite(__doc__, tool=("", "the program jinja_tool; none: beside forge"))
    tool = suite.options.tool or str(
        pathlib.Path(suite.options.forge).resolve().parent / "tests/jinja_tool")

    def with_tool(run, *arguments):
        if not pathlib.Path(tool).is_file():
            raise Skip("jinja_tool is not built (configure with -DFORGE_TESTS=ON)")
        return run(*arguments)

    suite.case("stored renderings", with_tool, stored_renderings, suite, tool)
    suite.case("templates over conversations", with_tool, conversations, suite, tool)
    suite.case("who wrote what", with_tool, writers, suite, tool)
    suite.case("random templates", with_tool, random_templates, tool, suite.options.seed,
               6000 if suite.options.full else 400)
    suite.end()


if __name__ == "__main__":
    main()
