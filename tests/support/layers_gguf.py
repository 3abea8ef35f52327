"""A GGUF model with another number of layers, to be guessed for or to guess. More: a slower one that says the same, as the
output projections of the added layers are zero, so that each adds nothing to what passes through it, exactly. Fewer: a
quicker one that says something else.

    python3 layers_gguf.py FROM TO LAYERS
"""
import re
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
ZERO = ("attn_output.weight", "ffn_down.weight")


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def text(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size:self.at]

    def skip_value(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.at += SIZES[inner] * count
            else:
                for _ in range(count):
                    self.skip_value(inner)
        else:
            self.at += SIZES[kind]


def read(path):
    """(version, metadata as [(key, bytes of type and value)], tensors as [(name, dims, type, bytes)], alignment)."""
    r = Reader(open(path, "rb").read())
    assert r.data[:4] == b"GGUF", "no GGUF file"
    r.at = 4
    version, tensor_count, meta_count = r.number("I"), r.number("Q"), r.number("Q")
    meta, infos, alignment = [], [], 32
    for _ in range(meta_count):
        key, start = r.text(), r.at
        r.skip_value(r.number("I"))
        meta.append((key, r.data[start:r.at]))
        if key == b"general.alignment":
            alignment, = struct.unpack("<I", meta[-1][1][4:])
    for _ in range(tensor_count):
        name = r.text()
        dims = [r.number("Q") for _ in range(r.number("I"))]
        infos.append((name, dims, r.number("I"), r.number("Q")))
    base = -(-r.at // alignment) * alignment
    ends = sorted([info[3] for info in infos] + [len(r.data) - base])
    tensors = [(name, dims, kind, r.data[base + at:base + ends[ends.index(at) + 1]])
               for name, dims, kind, at in infos]
    return version, meta, tensors, alignment


def with_layers(meta, tensors, layers):
    meta = [(key, struct.pack("<II", 4, layers) if key.endswith(b".block_count") else value)
            for key, value in meta]
    found = [(re.match(rb"blk\.(\d+)\.(.*)", t[0]), t) for t in tensors]
    found = [(m, t) for m, t in found if not m or int(m[1]) < layers]
    have = 1 + max(int(m[1]) for m, _ in found if m)
    first = [(m[2], t) for m, t in found if m and int(m[1]) == 0]
    added = [(b"blk.%d.%s" % (i, rest), dims, kind,
              bytes(len(data)) if rest.decode() in ZERO else data)
             for i in range(have, layers) for rest, (_, dims, kind, data) in first]
    return meta, [t for _, t in found] + added


def with_padding(meta, tensors, count):
    """So many unused tokens more at the end, whose logits are 0."""
    grown = []
    for key, value in meta:
        if key in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"):
            kind, inner, have = struct.unpack_from("<IIQ", value)
            more = b"".join(struct.pack("<Q", 8) + b"[PAD%03d]" % i for i in range(count))
            if inner != STRING:
                more = struct.pack(f"<{count}i", *[5] * count)
            value = struct.pack("<IIQ", kind, inner, have + count) + value[16:] + more
        elif key.endswith(b".vocab_size"):
            value = value[:4] + struct.pack("<I", struct.unpack("<I", value[4:])[0] + count)
        grown.append((key, value))
    padded = [(name, dims[:-1] + [dims[-1] + count], kind, data + bytes(len(data) // dims[-1] * count))
              if name in (b"token_embd.weight", b"output.weight") else (name, dims, kind, data)
              for name, dims, kind, data in tensors]
    return grown, padded


def write(path, version, meta, tensors, alignment):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(meta))
    head += b"".join(struct.pack("<Q", len(key)) + key + value for key, value in meta)
    at = 0
    for name, dims, kind, data in tensors:
        head += struct.pack("<Q", len(name)) + name
        head += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at)
        at += -(-len(data) // alignment) * alignment
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % alignment))
        for *_, data in tensors:
            out.write(data + bytes(-len(data) % alignment))


def make(source, target, layers):
    version, meta, tensors, alignment = read(source)
    write(target, version, *with_layers(meta, tensors, layers), alignment)


def pad(source, target, count):
    version, meta, tensors, alignment = read(source)
    write(target, version, *with_padding(meta, tensors, count), alignment)


def main():
    make(sys.argv[1], sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
