"""Inference with a warm model: each message is one review, each row whether it is good, and how sure the model is.

    python reviews.py reviews.npz
    REVIEWS_MODEL=reviews.npz rocketcrew run reviews:score --topic reviews --group reviews --batch 32 --embedded

The first command trains a small model. `setup` loads it once in each worker, before its first message, and a batch is one
product of matrices. Each worker has one core, so let numpy have one thread: OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from functools import cache

import numpy as np

from rocketcrew import Message, handler

SCHEMA = "review string, good boolean, probability double"
BUCKETS = 4096
STEPS, RATE = 300, 1.0
GOOD = """great quality and fast delivery|works very well, I love it|excellent, better than expected|happy with this, perfect
beautiful and easy to use|good value, would buy again|my children love it, great gift|perfect size and very comfortable"""
BAD = """terrible quality and late delivery|broken after a week, hate it|awful, worse than expected|unhappy with this, useless
ugly and hard to use|bad value, would not buy again|my money back please, poor service|wrong size and very uncomfortable"""


def features(texts: list[str]) -> np.ndarray:
    """Texts x buckets: which words each text has. crc32, because Python's own hash differs from process to process."""
    found = np.zeros((len(texts), BUCKETS), np.float32)
    for row, text in zip(found, texts, strict=True):
        row[[zlib.crc32(word.encode()) % BUCKETS for word in re.findall(r"\w+", text.lower())]] = 1
    return found


def train(path: str) -> None:
    """Logistic regression by gradient descent."""
    good, bad = (re.split(r"[|\n]", text) for text in (GOOD, BAD))
    given, wanted = features(good + bad), np.array([1.0] * len(good) + [0.0] * len(bad))
    weights = np.zeros(BUCKETS)
    for _ in range(STEPS):
        weights += RATE * given.T @ (wanted - probabilities(given, weights)) / len(wanted)
    np.savez(path, weights=weights)


def probabilities(given: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-(given @ weights))))


@cache
def model() -> np.ndarray:
    """The weights: read once in each worker."""
    with np.load(os.environ["REVIEWS_MODEL"]) as file:
        return np.asarray(file["weights"])


@handler(schema=SCHEMA, batch=True, setup=model, body_errors="dead_letter")
def score(messages: list[Message], reviews: list[str]) -> list[dict[str, object]]:
    """One row for each review. What is no UTF-8 text becomes a dead letter, and its neighbours are scored."""
    found = probabilities(features(reviews), model())
    return [
        {"review": message.keys, "good": bool(each > 0.5), "probability": float(each)}
        for message, each in zip(messages, found, strict=True)
    ]


if __name__ == "__main__":
    train(sys.argv[1])
