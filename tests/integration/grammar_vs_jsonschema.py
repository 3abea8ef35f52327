#!/usr/bin/env python3
"""Grammars allow what jsonschema and Python's re say is right: texts made from every schema of the JSON Schema Test
Suite that compiles are valid, its invalid instances are refused, and its valid ones taken, but for those that our
conventions exclude (common/grammar/grammar.h); regular expressions match the same texts."""
# needs: jsonschema
import collections
import io
import json
import pathlib
import re
import struct
import subprocess
import tarfile

from _forge import Skip, Suite

SAMPLES = 12
TYPE_WORDS = {
    "string": ["minLength", "maxLength", "pattern", "format"],
    "number": ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
    "object": ["properties", "required", "additionalProperties", "minProperties", "maxProperties"],
    "array": ["items", "prefixItems", "additionalItems", "minItems", "maxItems"],
}
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"]


def pack(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<I", len(data)) + data


def run_tool(tool, asked):
    """Of each (kind, grammar, samples, seed, texts): why it was refused or None, samples, whether texts are taken."""
    data = b"".join(
        pack(kind) + pack(grammar) + pack(str(samples)) + pack(str(seed)) + pack(str(len(texts)))
        + b"".join(map(pack, texts)) for kind, grammar, samples, seed, texts in asked)
    out = io.BytesIO(subprocess.run([tool], input=data, stdout=subprocess.PIPE, timeout=120, check=True).stdout)

    def read():
        return out.read(struct.unpack("<I", out.read(4))[0])

    for _, _, samples, _, texts in asked:
        state, why = read(), read().decode()
        if state == b"refused":
            assert why, "refused without a reason"
            yield why, [], []
        else:
            yield None, [read() for _ in range(samples)], [read() == b"1" for _ in texts]


def copied(schema):
    """The same schema, to be written into."""
    if not isinstance(schema, dict):
        return schema
    tight = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):
            tight[key] = {name: copied(one) for name, one in value.items()}
        elif key in ("additionalProperties", "items", "additionalItems"):
            tight[key] = ([copied(one) for one in value] if isinstance(value, list)
                          else copied(value))
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            tight[key] = [copied(one) for one in value]
        else:
            tight[key] = value
    return tight


def guessed(schema):
    """What the other keywords of a schema without a type are about."""
    kinds = [kind for kind, words in TYPE_WORDS.items() if any(word in schema for word in words)]
    if kinds and not any(word in schema for word in ("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf")):
        return kinds
    return None


def walk(schema):
    """Every schema inside of this one, as far as keywords that we know lead."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions"):
            inside = value.values()
        elif key in ("additionalProperties", "items", "additionalItems", "anyOf", "oneOf", "allOf", "prefixItems"):
            inside = value if isinstance(value, list) else [value]
        else:
            continue
        for one in inside:
            yield from walk(one)


def tighten(schema):
    """The schema with our conventions written into it, and whether it merges others, for which that is not done."""
    tight = copied(schema)
    merged = any(word in str(schema) for word in ("'allOf'", "'anyOf'", "'oneOf'", "'$ref'"))
    for one in list(walk(tight)):
        kinds = guessed(one)
        if kinds:
            one["type"] = kinds
        if not merged:
            if "properties" in one:
                one.setdefault("additionalProperties", False)
                for name in one.get("required", []):
                    one["properties"].setdefault(name, True)
            first = one.get("prefixItems", one.get("items"))
            if isinstance(first, list) and one.get("minItems", 0) <= len(first):
                one.setdefault("items" if "prefixItems" in one else "additionalItems", False)
    return tight, merged


def ordered(schema, value):
    """Members in the order of `properties`, and of those of `required`."""
    for given in [schema["const"]] if isinstance(schema, dict) and "const" in schema else (
            schema.get("enum", []) if isinstance(schema, dict) else []):
        if given == value and json.dumps(given, sort_keys=True) == json.dumps(value, sort_keys=True):
            return given
    if isinstance(value, list):
        rest = schema.get("items") if isinstance(schema, dict) else None
        first = schema.get("prefixItems", rest if isinstance(rest, list) else []) if isinstance(schema, dict) else []
        return [ordered(first[i] if i < len(first) else rest, one) for i, one in enumerate(value)]
    if not isinstance(value, dict) or not isinstance(schema, dict):
        return value
    parts = [schema] + [one for one in schema.get("allOf", []) if isinstance(one, dict)]
    properties = {name: one for part in reversed(parts) for name, one in part.get("properties", {}).items()}
    names = [name for word in ("properties", "required") for part in parts for name in part.get(word, []) if name in value]
    names += [name for name in value if name not in names]
    return {name: ordered(properties.get(name, schema.get("additionalProperties")), value[name]) for name in names}


def unusual(schema, text):
    """What JSON can say and we do not."""
    value = json.loads(text)
    if "\\u0000" in text or re.search(r"\d{19}|-0\b(?!\.)|[eE][+-]?\d{3}", text):
        return True
    if re.search(r"\d\.\d|[eE]\d", text) and re.search(r"integer|minimum|maximum|inimum|aximum|const|enum", str(schema)):
        return True  # 1.0 for an integer, exponents beside limits
    if isinstance(value, dict) and any("\\" in json.dumps(key, ensure_ascii=False) for key in value):
        return True  # escapes in other keys
    return False


class Draft:
    def __init__(self, suite, tool, name, validator, archive):
        self.suite, self.tool, self.name = suite, tool, name
        self.validator = validator
        self.cases = []
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getnames()):
                if re.fullmatch(rf"tests/{name}/[^/]+\.json", member) or (
                        re.fullmatch(rf"tests/{name}/optional/format/[^/]+\.json", member)
                        and pathlib.Path(member).stem in FORMATS):
                    for case in json.load(tar.extractfile(member)):
                        self.cases.append((pathlib.Path(member).stem, case))

    def check(self):
        checker = self.validator.FORMAT_CHECKER
        asked = []
        for _, case in self.cases:
            schema = case["schema"]
            texts = []
            for test in case["tests"]:
                value = ordered(schema, test["data"])
                texts += [json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, separators=(",", ":")),
                          json.dumps(value, ensure_ascii=False, indent=2)]
            asked.append(("schema", json.dumps(schema, ensure_ascii=False), SAMPLES,
                          self.suite.random.randrange(1 << 40), texts))
        refused, made, cut, taken, left, kept_out = collections.Counter(), 0, 0, 0, 0, 0
        compiled = 0
        for (stem, case), (why, samples, answers) in zip(self.cases, run_tool(self.tool, asked)):
            schema = case["schema"]
            about = f"{self.name}/{stem}, {case['description']}"
            if why:
                word = re.search(r'"([^"]+)" is not supported', why)
                refused[word.group(1) if word else re.sub(r"[\d\"(].*", "", why.split(": ")[-1]).strip()] += 1
                continue
            compiled += 1
            of_format = stem in FORMATS + ["format"]
            validator = self.validator(schema, format_checker=checker if of_format else None)
            for sample in samples:
                text = sample[1:].decode()
                if sample[:1] == b"-":
                    cut += 1
                    continue
                try:
                    value = json.loads(text)
                except ValueError as error:
                    raise AssertionError(f"{about}: {text!r}: {error}") from error
                wrong = next(validator.iter_errors(value), None)
                assert wrong is None, f"{about}: {text!r}: {wrong.message}"
                made += 1
            tight, merged = tighten(schema)
            tight_validator = self.validator(tight)
            for i, test in enumerate(case["tests"]):
                value = ordered(schema, test["data"])
                mine = answers[3 * i:3 * i + 3]
                text = json.dumps(value, ensure_ascii=False)
                if not test["valid"]:
                    assert not any(mine), f"{about}: takes {text!r}, {test['description']}"
                    kept_out += 1
                elif merged or (of_format and isinstance(value, str)) or unusual(schema, text) or not tight_validator.is_valid(value):
                    left += not all(mine)
                    taken += all(mine)
                else:
                    assert all(mine), f"{about}: refuses {text!r}, {test['description']}: {mine}"
                    taken += 1
        words = ", ".join(f"{word} {count}" for word, count in refused.most_common())
        print(f"  {self.name}: {compiled} of {len(self.cases)} schemas compile; refused: {words}", flush=True)
        assert compiled > 50 and made > 500
        return (f"{made} texts valid ({cut} cut off), {kept_out} invalid ones refused, {taken} valid ones taken, "
                f"{left} excluded by conventions")


def random_regex(rng, depth=0):
    """An expression of both languages."""
    kind = rng.randrange(9 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(["a", "b", "é", "\\.", "\\n", "€", " ", "\\\\", "\\x41", "\\u00e9", "\"", "-", "😀"])
    if kind == 1:
        return rng.choice(["[a-c]", "[^a-c]", "[\\d_]", "[^\\s\\d]", "[é-€]", "[\\]a^-]", "[^\\n]"])
    if kind == 2:
        return rng.choice(["\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "."])
    if kind < 5:
        return rng.choice("abc")
    inside = random_regex(rng, depth + 1)
    if kind == 5:
        return "(" + inside + "|" + random_regex(rng, depth + 1) + ")"
    if kind == 6:
        return inside + random_regex(rng, depth + 1)
    low = rng.randrange(3)
    return "(?:" + inside + ")" + rng.choice(
        ["*", "+", "?", "*?", f"{{{low}}}", f"{{{low},}}", f"{{{low},{low + rng.randrange(3)}}}"])


def regexes(suite, tool):
    rng = suite.random
    alphabet = ["a", "b", "c", "A", "é", "€", "😀", " ", "\n", "1", "_", ".", "\\", "-", "\"", "]", "^"]
    asked = []
    for _ in range(600):
        texts = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(6))) for _ in range(20)]
        asked.append(("regex", random_regex(rng), 10, rng.randrange(1 << 40), texts))
    made = checked = matched = 0
    for (_, text, _, _, texts), (why, samples, answers) in zip(asked, run_tool(tool, asked)):
        assert why is None, f"{text!r}: {why}"
        # Python's dot takes all but a line feed, ours no line end of JavaScript's either.
        expression = re.compile(re.sub(r"(?<!\\)\.", r"[^\\n\\r\\u2028\\u2029]", text), re.ASCII)
        for sample in samples:
            if sample[:1] == b"+":
                assert expression.fullmatch(sample[1:].decode()), f"{text!r} does not match {sample!r}"
                made += 1
        for one, answer in zip(texts, answers):
            want = expression.fullmatch(one) is not None
            assert answer == want, f"{text!r}, {one!r}: {answer}, Python says {want}"
            checked += 1
            matched += want
    assert made > 3000 and matched > 300
    return f"{len(asked)} expressions, {made} texts made, {checked} compared, {matched} of them match"


def random_schema(rng, depth=0):
    """A schema of keywords that are supported, likely to have instances."""
    kind = rng.randrange(7 if depth > 2 else 13)
    if kind == 0:
        return rng.choice([{"type": "string"}, {"type": ["string", "null"]}, {"type": "boolean"}, {"type": "null"}])
    if kind == 1:
        least = rng.randrange(4)
        return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(5)}
    if kind == 2:
        low = rng.choice([0, -5, 99, rng.randrange(-3000, 3000), rng.randrange(-10 ** 9, 10 ** 9)])
        high = low + rng.choice([0, 1, 9, 100, 12345])
        return {"type": "integer", rng.choice(["minimum", "exclusiveMinimum"]): low - 1, "maximum": high}
    if kind == 3:
        low = rng.choice([0, -1, 0.5, -2.25, 100.125, rng.randrange(-999999, 999999) / 1000])
        return {"type": "number", rng.choice(["minimum", "exclusiveMinimum"]): low,
                rng.choice(["maximum", "exclusiveMaximum"]): round(low + rng.choice([0.001, 0.5, 1, 7.75, 1000]), 6)}
    if kind == 4:
        return rng.choice([{"type": "number"}, {"type": "integer", "minimum": 7}, {"type": "number", "maximum": -3.5},
                           {"type": "number", "exclusiveMinimum": 0}, {}])
    if kind == 5:
        return {"enum": rng.sample(["a", "ab", "é\n", "", 1, -2.5, None, True, [1, "x"], {"k": [], "l": {}}], 3)}
    if kind == 6:
        return {"type": "string", "pattern": rng.choice(["^a+$", "b", "^[^0-9\"]{2,4}$", "^\\w+@x$", "a|^b", "^\\S*$", "\\\\"])}
    if kind < 9:
        schema = {"type": "array", "items": random_schema(rng, depth + 1), "minItems": rng.randrange(3)}
        if rng.randrange(2):
            schema["maxItems"] = schema["minItems"] + rng.randrange(3)
        if rng.randrange(3) == 0:
            schema["prefixItems"] = [random_schema(rng, depth + 1) for _ in range(rng.randrange(1, 3))]
        return schema
    if kind == 9:
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    names = rng.sample(["a", "ab", "b", "é", "a b", "q\"q", "longer_name"], rng.randrange(5))
    schema = {"type": "object", "properties": {name: random_schema(rng, depth + 1) for name in names},
              "required": [name for name in names if rng.randrange(2)]}
    extra = rng.choice([None, False, True, "schema"])
    if extra is not None:
        schema["additionalProperties"] = random_schema(rng, depth + 1) if extra == "schema" else extra
    if extra is False and names and rng.randrange(2):
        schema["minProperties"] = rng.randrange(len(names) + 1)
        schema["maxProperties"] = max(schema["minProperties"], len(schema["required"]), rng.randrange(len(names) + 1))
    if rng.randrange(4) == 0:
        schema = {"allOf": [schema, {"type": "object", "properties": {"z": random_schema(rng, depth + 1)},
                                     "required": ["z"]}]}
    return schema


def altered(rng, text):
    """The same text with a byte or two changed, left out or put in; still JSON, or None."""
    for _ in range(20):
        at = rng.randrange(len(text))
        other = rng.choice([text[:at] + text[at + 1:], text[:at] + rng.choice("0129ab\",:-.[]{}") + text[at:],
                            text[:at] + rng.choice("0129ab") + text[at + 1:]])
        try:
            json.loads(other)
            return other
        except ValueError:
            continue
    return None


def random_schemas(suite, tool, count):
    import jsonschema  # pylint: disable=import-outside-toplevel
    rng = suite.random
    schemas = [random_schema(rng) for _ in range(count)]
    seed = rng.randrange(1 << 40)
    asked = [("schema", json.dumps(schema), 6, seed, []) for schema in schemas]
    made = compared = taken = refused = 0
    others = []
    for schema, (why, samples, _) in zip(schemas, run_tool(tool, asked)):
        refused += why is not None
        assert why is None or re.search("no text can be|supported together|not supported$|two of these", why), f"{json.dumps(schema)}: {why}"
        validator = jsonschema.Draft202012Validator(schema)
        texts = [sample[1:].decode() for sample in samples if sample[:1] == b"+"]
        for text in texts:
            wrong = next(validator.iter_errors(json.loads(text)), None)
            assert wrong is None, f"{json.dumps(schema)}: {text!r}: {wrong.message}"
            made += 1
        others.append(texts[:2] + [other for other in (altered(rng, text) for text in texts) if other])
    asked = [("schema", json.dumps(schema), 0, 0, texts) for schema, texts in zip(schemas, others)]
    for schema, texts, (_, _, answers) in zip(schemas, others, run_tool(tool, asked)):
        validator = jsonschema.Draft202012Validator(schema)
        for i, (text, answer) in enumerate(zip(texts, answers)):
            assert answer or i >= 2, f"{json.dumps(schema)}: does not take its own {text!r}"
            assert not answer or validator.is_valid(json.loads(text)), f"{json.dumps(schema)}: takes {text!r}"
            compared += 1
            taken += answer
    return f"{count} schemas, {refused} refused; {made} texts made, {compared} compared, {taken} taken"


def any_json(suite, tool):
    (why, samples, answers), = run_tool(tool, [("json", "", 300, suite.random.randrange(1 << 40), ["{}", "[]", " {}"])])
    assert why is None and answers == [True, False, False]
    done = [json.loads(sample[1:]) for sample in samples if sample[:1] == b"+"]
    assert len(done) > 250 and all(isinstance(value, dict) for value in done)
    return f"{len(done)} objects"


def main():
    suite = Suite(__doc__, tool=("", "the program grammar_tool; none: beside forge"))
    tool = suite.options.tool or str(pathlib.Path(suite.options.forge).resolve().parent / "tests/grammar_tool")

    def with_tool(function, *arguments):
        if not pathlib.Path(tool).is_file():
            raise Skip("grammar_tool is not built (configure with -DFORGE_TESTS=ON)")
        return function(*arguments)

    def draft(name, validator):
        import jsonschema  # pylint: disable=import-outside-toplevel
        archive = suite.corpus("json-schema/json-schema-test-suite.tar.xz")
        return Draft(suite, tool, name, getattr(jsonschema, validator), archive).check()

    suite.case("any JSON object", with_tool, any_json, suite, tool)
    suite.case("JSON Schema Test Suite, draft 2020-12", with_tool, draft, "draft2020-12", "Draft202012Validator")
    suite.case("JSON Schema Test Suite, draft 7", with_tool, draft, "draft7", "Draft7Validator")
    suite.case("random schemas", with_tool, random_schemas, suite, tool, 3000 if suite.options.full else 600)
    suite.case("regular expressions", with_tool, regexes, suite, tool)
    suite.end()


if __name__ == "__main__":
    main()
