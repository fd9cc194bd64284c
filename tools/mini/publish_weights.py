"""python publish_weights.py WEIGHTS_DIR MODEL_DIR: training weights -> model.safetensors and tokenizer.json in MODEL_DIR."""

import json
import os
import sys

import publish
from train import load_weights
from vocabulary import Vocabulary, load_world


def main():
    weights, folder = sys.argv[1:3]
    publish.write_safetensors(f"{folder}/model.safetensors", publish.published(load_weights(weights)))
    tokenizer = Vocabulary(load_world(f"{folder}/world.json")).tokenizer_json()
    with open(f"{folder}/tokenizer.json", "w", encoding="utf-8") as f:
        json.dump(tokenizer, f, ensure_ascii=False, indent=1)
        f.write("\n")
    print(os.path.getsize(f"{folder}/model.safetensors"), "bytes")


if __name__ == "__main__":
    main()
