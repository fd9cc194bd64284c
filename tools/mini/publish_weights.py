"""python publish_weights.py WEIGHTS_DIR MODEL_DIR: training weights -> model.safetensors, tokenizer.json and
prompts.jsonl in MODEL_DIR.

prompts.jsonl names the evaluation prompts without their texts: number, kind, boundary, count of prompt tokens, question, answer, and the
64-bit FNV-1a digest of the prompt's ids (each as four bytes, little end first), by which a port of the generator can be checked.
"""

import json
import os
import sys

import publish
import worldgen
from train import load_weights
from vocabulary import Vocabulary, load_world

PROMPTS = 522


def fnv1a(ids):
    digest = 0xCBF29CE484222325
    for i in ids:
        for byte in i.to_bytes(4, "little"):
            digest = ((digest ^ byte) * 0x100000001B3) & worldgen.MASK
    return digest


def write_prompts(path, data):
    world, wanted, index = worldgen.World(data), {k: PROMPTS // 3 for k in worldgen.KINDS.values()}, 0
    with open(path, "w", encoding="utf-8") as f:
        while any(wanted.values()):
            p = worldgen.evaluation_prompt(world, index)
            index += 1
            if p is None or wanted[p["kind"]] == 0:
                continue
            wanted[p["kind"]] -= 1
            ids, answer = p["tokens"][: p["answer_start"]], p["tokens"][p["answer_start"] : -1]
            decode = world.vocabulary.decode
            row = {"index": p["index"], "kind": p["kind"], "boundary": p["boundary"], "tokens": len(ids),
                   "question": decode(ids[p["boundary"] :]), "answer": decode(answer), "fnv1a": f"{fnv1a(ids):016x}"}
            f.write(json.dumps(row) + "\n")


def main():
    weights, folder = sys.argv[1:3]
    publish.write_safetensors(f"{folder}/model.safetensors", publish.published(load_weights(weights)))
    world = load_world(f"{folder}/world.json")
    with open(f"{folder}/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(Vocabulary(world).tokenizer_json(), f, ensure_ascii=False, indent=1)
        f.write("\n")
    write_prompts(f"{folder}/prompts.jsonl", world)
    print(os.path.getsize(f"{folder}/model.safetensors"), "bytes")


if __name__ == "__main__":
    main()
