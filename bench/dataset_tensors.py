"""Conversion of a data set's raw files to batches of tensors."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from bench import data_sets
from bench.data_sets import Prepared


class Batch(NamedTuple):
    """One process's share of an effective batch: images (N, C, H, W), labels (N), and the whole batch's size."""

    images: torch.Tensor
    labels: torch.Tensor
    total: int


class Samples:
    """A data set in memory: uint8 images (N, C, H, W) and int64 labels (N), for training and held-out."""

    def __init__(self, prepared: Prepared) -> None:
        self.set = prepared.set
        self._buffers = [_read(data_sets.part_path(prepared.path, part)) for part in data_sets.PARTS]
        images, labels, test_images, test_labels = (torch.frombuffer(raw, dtype=torch.uint8) for raw in self._buffers)
        self.images = images.view(-1, *self.set.shape)
        self.labels = labels.long()
        self.test_images = test_images.view(-1, *self.set.shape)
        self.test_labels = test_labels.long()

    def matches_published_digest(self) -> bool:
        """Return whether the data is byte for byte the published set (takes 0.1 s, so not in timed parts)."""
        return data_sets.images_digest(self._buffers) == self.set.digest


def _read(path: str) -> bytearray:
    raw = bytearray(os.path.getsize(path))
    with open(path, "rb") as file:
        file.readinto(raw)
    return raw


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Scale uint8 pixels to floats from 0 to 1, as torchvision's ToTensor does."""
    return images.float().div_(255)


class Rows(Dataset):
    """A data set that converts one sample at a time, on access, as a DataLoader over items does."""

    def __init__(self, samples: Samples) -> None:
        self.images, self.labels = samples.images, samples.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return to_float(self.images[index]), int(self.labels[index])
