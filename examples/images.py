"""Images to features: each message is one picture (binary PPM, P6), each row what a search for similar pictures needs.

    rocketcrew run images:features --topic images --group features --embedded

Decoding and arithmetic are numpy's; for JPEG or PNG put Pillow's `Image.open(io.BytesIO(message.body))` in place of `pixels`.
"""

from __future__ import annotations

import re

import numpy as np

from rocketcrew import Message, handler

SCHEMA = """
    image string, width int, height int, brightness double, contrast double, edges double,
    red array<double>, fingerprint string
"""
HEAD = re.compile(rb"P6\s+(?:#.*\n\s*)*(\d+)\s+(\d+)\s+(\d+)\s", re.ASCII)
BINS = 8
FINGERPRINT_SIDE = 8


@handler(schema=SCHEMA)
def features(message: Message) -> dict[str, object]:
    """One row. What is no picture raises ValueError: it is retried and becomes a dead letter."""
    picture = pixels(message.body)
    height, width, _ = picture.shape
    grey = picture @ np.array([0.299, 0.587, 0.114])
    histogram, _ = np.histogram(picture[:, :, 0], bins=BINS, range=(0.0, 1.0))
    return {
        "image": message.keys,
        "width": width,
        "height": height,
        "brightness": float(grey.mean()),
        "contrast": float(grey.std()),
        "edges": float(np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean()),
        "red": (histogram / (width * height)).tolist(),
        "fingerprint": fingerprint(grey),
    }


def pixels(data: bytes) -> np.ndarray:
    """Height x width x 3 values from 0 to 1. Raises ValueError for anything but a whole P6 picture of 8 bits a colour."""
    head = HEAD.match(data)
    if head is None:
        raise ValueError("not a binary PPM picture (P6)")
    width, height, top = (int(number) for number in head.groups())
    if not 0 < top < 256 or min(width, height) < 2:
        raise ValueError(f"a picture of {width} x {height} with values up to {top} is not supported")
    values = np.frombuffer(data, np.uint8, offset=head.end())
    if values.size != width * height * 3:
        raise ValueError(f"{values.size} values where {width} x {height} x 3 belong")
    return values.reshape(height, width, 3) / top


def fingerprint(grey: np.ndarray) -> str:
    """64 bits as hexadecimal digits: which cells of an 8 x 8 grid are brighter than the whole. Alike for alike pictures."""
    rows = (
        np.array_split(grey, FINGERPRINT_SIDE, axis=0)
        if grey.shape[0] >= FINGERPRINT_SIDE
        else [grey] * FINGERPRINT_SIDE
    )
    cells = [
        cell.mean() if cell.size else row.mean()
        for row in rows
        for cell in np.array_split(row, FINGERPRINT_SIDE, axis=1)
    ]
    bits = "".join("1" if cell > grey.mean() else "0" for cell in cells)
    return f"{int(bits, 2):016x}"
