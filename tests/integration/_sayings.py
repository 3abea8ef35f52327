"""Models that say word for word what they are told to, chosen by the last token of a prompt."""
EMBEDDING, HEADS, HEAD, LAYERS, FEED = 768, 12, 64, 1, 64


def alphabet():
    """GPT-2's characters for bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(moved)) for byte in range(256)]


def cut(data, known):
    """Pieces of two bytes or more, none of which is known or twice there: so each can say what comes next."""
    if not data:
        return []
    for size in range(2, len(data) + 1):
        if data[:size] not in known:
            rest = cut(data[size:], known | {data[:size]})
            if rest is not None:
                return [data[:size], *rest]
    return None


class OpenAI:
    """A cluster as the openai package sees it."""

    def __init__(self, suite, cluster):
        import openai  # pylint: disable=import-outside-toplevel
        self.suite, self.cluster = suite, cluster
        self.client = openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0, timeout=60)
        self.model = self.client.models.list().data[0].id
        self.bad_request = openai.BadRequestError


def make_model(path, sayings, specials, template, begins=None):
    """Attention and the rest give nothing, so a token's own row decides: the next one of its saying. A saying is a text, or
    several, of which those that are special are control tokens; it follows <|NAME|>, or the byte that begins[NAME] is."""
    import gguf  # pylint: disable=import-outside-toplevel
    import numpy  # pylint: disable=import-outside-toplevel
    letters = alphabet()
    tokens = list(letters) + specials
    end = tokens.index("<|im_end|>")
    follows = {end: end}
    known = set()
    for name, parts in sayings.items():
        last = begins[name] if name in (begins or {}) else tokens.index(f"<|{name}|>")
        for part in parts if isinstance(parts, tuple) else (parts,):
            if isinstance(parts, tuple) and part in specials:
                follows[last] = last = tokens.index(part)
                continue
            pieces = cut(part.encode(), known)
            known.update(pieces)
            for piece in pieces:
                follows[last] = last = len(tokens)
                tokens.append("".join(letters[byte] for byte in piece))
        follows[last] = end
    assert len(tokens) <= EMBEDDING, len(tokens)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(EMBEDDING)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in specials else 1 for token in tokens])
    writer.add_token_merges(["q z"])  # of no use: an empty list has no type
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
    zeros = lambda rows, columns: numpy.zeros((rows, columns), numpy.float32)  # pylint: disable=unnecessary-lambda-assignment
    ones = numpy.ones(EMBEDDING, numpy.float32)
    embedding, output = zeros(len(tokens), EMBEDDING), zeros(len(tokens), EMBEDDING)
    for token in range(len(tokens)):
        embedding[token, token] = 1
        output[follows.get(token, end), token] = 1
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", ones)
    for kind in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{kind}.weight", zeros(EMBEDDING, EMBEDDING))
    for kind, shape in (("ffn_gate", (FEED, EMBEDDING)), ("ffn_up", (FEED, EMBEDDING)), ("ffn_down", (EMBEDDING, FEED))):
        writer.add_tensor(f"blk.0.{kind}.weight", zeros(*shape))
    for kind in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{kind}.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
