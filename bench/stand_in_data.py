"""A generated, learnable stand-in for an image data set, with the same bytes on every machine.

Used if the real set is not available. Each image shows its class's prototype and, fainter, another class's, shifted,
scaled and with noise. The second is sometimes nearly as strong, so no model reaches 100 %. Bytes are added as big
integers: this is fast without numpy, and bounded values prevent overflow.
"""

from __future__ import annotations

import hashlib
import random

#: Channels, height and width of an image.
Shape = tuple[int, int, int]

_PROTOTYPES = 4  # per class: too varied to be learnt in a few dozen steps
_NOISE_MASK = 0x3F
_PEAK = 192  # 255 - _NOISE_MASK: the brightest pixel before noise


def generate(name: str, shape: Shape, classes: int, train: int, test: int) -> list[bytes]:
    """Return [train images, train labels, test images, test labels] as bytes; ``shape`` is (C, H, W)."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    source = random.Random(seed)
    prototypes = [[_prototype(source, shape) for _ in range(_PROTOTYPES)] for _ in range(classes)]
    buffers = []
    for offset, count in ((1, train), (2, test)):
        buffers += _images(random.Random(seed + offset), prototypes, shape, count)
    return buffers


def _prototype(source: random.Random, shape: Shape) -> bytes:
    """Draw a few soft strokes (bytes, 0 to 255) away from the border, so that shifts lose nothing."""
    channels, height, width = shape
    pixels = bytearray(channels * height * width)
    for _ in range(5):
        row, column = 6 + source.getrandbits(16) % (height - 12), 6 + source.getrandbits(16) % (width - 12)
        shift_down, shift_right = source.getrandbits(16) % 3 - 1, source.getrandbits(16) % 3 - 1
        tint = [128 + source.getrandbits(7) for _ in range(channels)]
        for step in range(6):
            for channel in range(channels):
                _dab(pixels, shape, (channel, row + step * shift_down, column + step * shift_right), tint[channel])
    return bytes(pixels)


def _dab(pixels: bytearray, shape: Shape, place: tuple[int, int, int], strength: int) -> None:
    _, height, width = shape
    channel, row, column = place
    for y in range(max(3, row - 1), min(height - 3, row + 2)):
        for x in range(max(3, column - 1), min(width - 3, column + 2)):
            index = (channel * height + y) * width + x
            weight = strength if (y, x) == (row, column) else strength // 2
            pixels[index] = max(pixels[index], weight)


def _images(source: random.Random, prototypes: list[list[bytes]], shape: Shape, count: int) -> list[bytes]:
    size, width, classes = shape[0] * shape[1] * shape[2], shape[2], len(prototypes)
    scales = [bytes(value * peak // 255 for value in range(256)) for peak in range(_PEAK + 1)]
    mask = int.from_bytes(bytes([_NOISE_MASK]) * size, "little")
    images, labels = bytearray(), bytearray()
    for _ in range(count):
        draw = source.getrandbits(64)
        label, other_label = draw % classes, (draw >> 8) % classes
        main = 64 + (draw >> 16) % 65
        image_bytes = prototypes[label][(draw >> 24) % _PROTOTYPES].translate(scales[main])
        faint = prototypes[other_label][(draw >> 40) % _PROTOTYPES].translate(scales[(draw >> 56) % 64])
        noise = source.getrandbits(size * 8) & mask
        image = _shifted(image_bytes, draw >> 32, width) + _shifted(faint, draw >> 48, width) + noise
        images += image.to_bytes(size, "little")
        labels.append(label)
    return [bytes(images), bytes(labels)]


def _shifted(pixels: bytes, draw: int, width: int) -> int:
    """Return the image as an integer, shifted by up to 2 rows and columns either way (the border is empty)."""
    shift = ((draw & 0xF) % 5 - 2) * width + ((draw >> 4) & 0xF) % 5 - 2
    number = int.from_bytes(pixels, "little")
    return number << (8 * shift) if shift >= 0 else number >> (-8 * shift)
