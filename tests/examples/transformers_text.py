"""A small BERT on short texts with Hugging Face's Trainer, searched: `python transformers_text.py`,
or for two trials `python transformers_text.py 2`.

Nothing is downloaded: the model is made from a configuration, and the texts are made here: orders
to a kitchen, of which one is to tell whether something hot is wanted, whatever is said of it.

Needs `pip install 'tune_speed[transformers]'`.
"""

import random
import sys
import tempfile
from functools import cache
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    Trainer,
    TrainingArguments,
)

import tune_speed
from tune_speed.custom import OwnRun
from tune_speed.custom.transformers import SpeedCallback

SPACE = {
    "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "batch_size": {"choices": [16, 32]},
    "layers": {"choices": [1, 2]},
}
SIZES = {"train": 512, "validation": 128, "test": 128}

HOT = ("soup", "tea", "coffee", "stew", "porridge")
COLD = ("salad", "juice", "sorbet", "lemonade", "yoghurt")
FILLERS = (
    "please",
    "a",
    "large",
    "small",
    "bowl",
    "cup",
    "of",
    "for",
    "me",
    "today",
    "the",
    "fresh",
)
WORDS = ("[PAD]", "[CLS]", *HOT, *COLD, *FILLERS)
NUMBERS = {word: number for number, word in enumerate(WORDS)}
LENGTH = 10
"""Words of a text, with the first, [CLS]."""


class Orders(Dataset[dict[str, torch.Tensor]]):
    """Texts as numbers of words, each with its label: 1 is hot."""

    def __init__(self, size: int, *, seed: int) -> None:
        makes = random.Random(seed)
        self.labels = [makes.randrange(2) for _ in range(size)]
        self.texts = [tokens(order(label, makes)) for label in self.labels]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text = torch.tensor(self.texts[index])
        return {
            "input_ids": text,
            "attention_mask": (text != NUMBERS["[PAD]"]).long(),
            "labels": torch.tensor(self.labels[index]),
        }


def order(label: int, makes: random.Random) -> str:
    """Returns a text of four to nine words, one of which tells whether it is hot."""
    words = makes.choices(FILLERS, k=makes.randint(3, 8))
    words.insert(makes.randint(0, len(words)), makes.choice(HOT if label else COLD))
    return " ".join(words)


def tokens(text: str) -> list[int]:
    """Returns the words' numbers, filled up to `LENGTH`."""
    words = ["[CLS]", *text.split()]
    return [NUMBERS[word] for word in words + ["[PAD]"] * (LENGTH - len(words))]


@cache
def part(name: str) -> Orders:
    """Returns a part of the texts, always the same."""
    return Orders(SIZES[name], seed=list(SIZES).index(name))


def accuracy(predicted: EvalPrediction) -> dict[str, float]:
    """Returns the share of texts whose label is right; Trainer calls it `eval_accuracy`."""
    right = predicted.predictions.argmax(axis=1) == predicted.label_ids
    return {"accuracy": float(right.mean())}


def my_train(params: dict[str, Any], run: OwnRun) -> None:
    """Trains a BERT; `SpeedCallback` keeps the clock, reports, and ends the training."""
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            num_hidden_layers=params["layers"],
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=LENGTH,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=1000,  # the run ends it before
            learning_rate=params["learning_rate"],
            lr_scheduler_type="constant",
            per_device_train_batch_size=params["batch_size"],
            per_device_eval_batch_size=128,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=run.seed,
            use_cpu=run.device == "cpu",
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=part("train"),
            eval_dataset=part(run.part),
            compute_metrics=accuracy,
            callbacks=[SpeedCallback(run, metric="eval_accuracy")],
        )
        trainer.train()


def main(trials: int = 10) -> None:
    """Searches and prints what was found."""
    study = tune_speed.search(
        train=my_train,
        space=SPACE,
        target={"metric": "accuracy", "value": 0.95},
        workload={"max_train_s": 60, "mode": "anytime"},
        trials=trials,
        study="transformers_text",
    )
    print(study)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
