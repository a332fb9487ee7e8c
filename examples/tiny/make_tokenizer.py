"""Trains tokenizer.json of the tiny model: byte-level BPE, digits one by one, as SmolLM2 splits.

    awk -v seed=1 -v rows=50000 -f generate.awk > pretrain.jsonl
    python3 make_tokenizer.py pretrain.jsonl tokenizer.json      (pip install tokenizers==0.23.3)
"""
import json
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def texts(path):
    with open(path, encoding="utf-8") as rows:
        for line in rows:
            for message in json.loads(line)["messages"]:
                yield message["role"] + "\n" + message["content"] + "\n"


tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    texts(sys.argv[1]),
    trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
tokenizer.save(sys.argv[2])
