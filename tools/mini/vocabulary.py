"""The tokenizer of dsv4-mini: whole words, punctuation, and bytes for everything else.

A text is cut into pieces: a word with the space before it, or one other character. A piece that the vocabulary
holds is one token; any other piece becomes the UTF-8 bytes of its characters, one token each, so every text can be
encoded. The space before a word is written U+2581 and a space is put before the text, as sentencepiece does;
decoding undoes both. `tokenizer_json` states exactly this in the format of Hugging Face tokenizers: a BPE model
without merges, `ignore_merges` for whole words and `byte_fallback` for the rest.

Ids: 0 <bos>, 1 <eos>, 2 <pad> (none of them is ever produced by encoding), 3..258 the bytes 0x00..0xFF, 259 the
bare U+2581, then punctuation, then the words of the world file in the order in which it lists them.
"""

import json
import re
from pathlib import Path

SPACE = "\u2581"
PUNCTUATION = [".", ":", "?", ","]
SPECIAL = ["<bos>", "<eos>", "<pad>"]
FIRST_BYTE = len(SPECIAL)
PIECE = f"{SPACE}?[A-Za-z]+|[^A-Za-z]"
LISTS = ["names", "adjectives", "code_first", "code_second", "berths", "places", "things", "weather", "verbs", "times"]


def load_world(path):
    """The world file: word lists and sentence templates, shared by this tool and by any other port."""
    world = json.loads(Path(path).read_text(encoding="utf-8"))
    assert world["format"] == "statepages-mini-world-1", world["format"]
    return world


def words_of(world):
    """Every word of the world, once, in file order: lists, attributes with their nouns, then the words of templates."""
    order = {}
    for name in LISTS:
        order.update(dict.fromkeys(world[name]))
    for attribute, nouns in world["attributes"].items():
        order[attribute] = None
        order.update(dict.fromkeys(nouns))
    order.update(dict.fromkeys(world["words"]))
    for group in world["templates"].values():
        for template in group:
            unknown = [w for w in template.split() if w[0] != "{" and w not in PUNCTUATION and w not in order]
            assert not unknown, f"template words that no list holds: {unknown}"
    return list(order)


class Vocabulary:
    """Word <-> id, and the reference encoder that `tokenizer.json` must agree with."""

    def __init__(self, world):
        self.tokens = SPECIAL + [f"<0x{b:02X}>" for b in range(256)] + [SPACE] + PUNCTUATION
        self.tokens += [SPACE + w for w in words_of(world)]
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        assert len(self.ids) == len(self.tokens), "a word is listed twice"

    def __len__(self):
        return len(self.tokens)

    def word(self, w):
        """Id of a template word or punctuation mark."""
        return self.ids[w if w in PUNCTUATION else SPACE + w]

    def encode(self, text):
        if text == "":
            return []
        out = []
        for piece in re.findall(PIECE, SPACE + text.replace(" ", SPACE), flags=re.DOTALL):
            if piece in self.ids:
                out.append(self.ids[piece])
            else:
                for char in piece:
                    known = self.ids.get(char)
                    out += [known] if known is not None else [FIRST_BYTE + b for b in char.encode("utf-8")]
        return out

    def decode(self, ids):
        raw = bytearray()
        for i in ids:
            if FIRST_BYTE <= i < FIRST_BYTE + 256:
                raw.append(i - FIRST_BYTE)
            elif i >= FIRST_BYTE:
                raw += self.tokens[i].replace(SPACE, " ").encode("utf-8")
        text = raw.decode("utf-8", errors="replace")
        return text[1:] if text.startswith(" ") else text

    def tokenizer_json(self):
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        special = [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for i, t in enumerate(SPECIAL)
        ]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]},
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": PIECE}, "behavior": "Isolated", "invert": False},
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": True,
                "ignore_merges": True,
                "vocab": {t: i for i, t in enumerate(self.tokens)},
                "merges": [],
            },
        }
