"""python check_tools.py MODEL_DIR: the quantisers, the tokenizer and the prompts of MODEL_DIR are what the tools here make. Exits 1 if not."""

import json
import random
import sys

import torch

import publish
import worldgen
from publish_weights import fnv1a
from vocabulary import Vocabulary, load_world


def check_quantisers(folder):
    g = torch.Generator().manual_seed(1)
    for shape in ((96, 256), (256, 96), (300, 160)):
        t = torch.randn(shape, generator=g) * torch.exp2(torch.randint(-9, 9, (shape[0], 1), generator=g).float())
        t[:2] = 0
        back = publish.dequantise_fp8(*publish.quantise_fp8(t))
        blocks = publish.blocks(t, 128, 128)
        step = publish.power_of_two(blocks.abs().amax((2, 3)), publish.FP8_MAX)[:, :, None, None]
        error = (publish.blocks(back, 128, 128) - blocks).abs()
        assert (error <= torch.maximum(blocks.abs() / 16, step * 2.0**-10)).all(), "fp8 is off by more than half a step"
        packed, scale = publish.quantise_fp4(t)
        fine = publish.dequantise_fp4(packed, scale).unflatten(1, (-1, 32))
        x, s = t.unflatten(1, (-1, 32)), scale.float()[:, :, None]
        table = torch.tensor(publish.FP4_VALUES + [-v for v in publish.FP4_VALUES])
        nearest = (x[..., None] / s[..., None] - table).abs().amin(-1)
        assert torch.allclose((x - fine).abs() / s, nearest), "fp4 did not take the nearest value"
    stored = publish.read_safetensors(f"{folder}/model.safetensors")
    weights = publish.restored(stored)
    again = publish.restored(publish.published(weights))
    assert set(weights) == set(again)
    assert all(torch.equal(weights[k], again[k]) for k in weights), "published weights do not survive being published again"


def check_tokenizer(folder, vocabulary):
    saved = json.load(open(f"{folder}/tokenizer.json", encoding="utf-8"))
    assert saved == vocabulary.tokenizer_json(), "tokenizer.json is not what vocabulary.py writes"
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("tokenizers is not installed: tokenizer.json was not run")
        return
    theirs, chance = Tokenizer.from_file(f"{folder}/tokenizer.json"), random.Random(1)
    parts = ["Otto", " ", "berth", ".", ":", "\u00e9", "z", "\n", "\U0001f642", " nine", "7", "\u65e5", "'", "\0"]
    for _ in range(3000):
        text = "".join(chance.choice(parts) for _ in range(chance.randrange(14)))
        ids = vocabulary.encode(text)
        assert theirs.encode(text, add_special_tokens=False).ids == ids, text
        assert theirs.decode(ids, skip_special_tokens=False) == vocabulary.decode(ids) == text, text


def check_prompts(folder, world):
    rows = [json.loads(line) for line in open(f"{folder}/prompts.jsonl", encoding="utf-8")]
    for row in rows[::20]:
        p = worldgen.evaluation_prompt(world, row["index"])
        ids = p["tokens"][: p["answer_start"]]
        assert (p["kind"], p["boundary"], len(ids), f"{fnv1a(ids):016x}") == (row["kind"], row["boundary"], row["tokens"], row["fnv1a"]), row
        assert world.vocabulary.encode(world.vocabulary.decode(p["tokens"])) == p["tokens"], row
        assert row["boundary"] < len(ids) <= row["boundary"] + 24 and 2600 <= len(ids) <= 4800, row


def main():
    folder = sys.argv[1]
    data = load_world(f"{folder}/world.json")
    check_quantisers(folder)
    check_tokenizer(folder, Vocabulary(data))
    check_prompts(folder, worldgen.World(data))
    print("all checks passed")


if __name__ == "__main__":
    main()
