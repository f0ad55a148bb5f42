"""The ways a batch reaches the training loop; waiting for it is measured apart from computing."""

from __future__ import annotations

import importlib
import os
import shutil
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench import tensors
from bench.options import Options
from bench.tensors import Batch, Samples

#: Files of loader: image-folder; enough for an epoch, few enough to be written in a second.
FOLDER_IMAGES = 2048


class Feed:
    """Batches without end: ``source`` yields (images, labels), ``epoch_steps`` of them are one pass.

    ``prepare_ns`` is what was spent on writing files, which is no part of a program's start.
    """

    def __init__(self, samples: Samples, options: Options, cpus: list[int] | None) -> None:
        self._folder: str | None = None
        start = time.perf_counter_ns()
        if options["loader"] == "image-folder":
            self._folder = _write_folder(samples)
        self.prepare_ns = time.perf_counter_ns() - start
        generator = torch.Generator().manual_seed(options["seed"])
        if options["loader"] == "memory":
            count, self._epoch = len(samples.labels), _in_memory(samples, options, generator)
        else:
            rows = _rows(samples, options["loader"], self._folder)
            count, loader = len(rows), _data_loader(rows, options, generator, cpus)
            self._epoch = lambda: iter(loader)
        size = options["batch_size"]
        self.epoch_steps = max(1, count // size if options["drop_last"] else -(-count // size))
        self.source = self._endless()

    def _endless(self) -> Generator[Batch, None, None]:
        while True:
            given = 0
            for batch in self._epoch():
                given += 1
                yield batch
            if not given:
                raise ValueError("drop_last leaves no batch: batch_size is larger than the data set")

    def close(self) -> None:
        """End worker processes and remove files."""
        self.source.close()
        self._epoch = lambda: iter(())
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _in_memory(samples: Samples, options: Options, generator: torch.Generator) -> Callable[[], Iterator[Batch]]:
    size, last = options["batch_size"], options["drop_last"]

    def epoch() -> Iterator[Batch]:
        order = torch.randperm(len(samples.labels), generator=generator)
        for chosen in order.split(size):
            if len(chosen) == size or not last:
                yield tensors.to_float(samples.images[chosen]), samples.labels[chosen]

    return epoch


class _VisionRows(tensors.Rows):
    """The book's way: a PIL image and ToTensor for every sample, as torchvision's FashionMNIST does it."""

    def __init__(self, samples: Samples) -> None:
        from bench.vision import torchvision

        super().__init__(samples)
        transforms = torchvision().transforms
        self.picture, self.convert = transforms.ToPILImage(), transforms.ToTensor()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.convert(self.picture(self.images[index])), int(self.labels[index])


def _rows(samples: Samples, loader: str, folder: str | None) -> Any:
    if loader == "dataloader":
        return tensors.Rows(samples)
    if loader == "torchvision":
        return _VisionRows(samples)
    from bench import vision

    torchvision = vision.torchvision()
    datasets = importlib.import_module("torchvision.datasets")
    steps = [torchvision.transforms.Grayscale()] if len(samples.images[0]) == 1 else []
    transform = torchvision.transforms.Compose([*steps, torchvision.transforms.ToTensor()])
    return datasets.ImageFolder(folder, transform=transform)


class _KeepAffinity:
    """Give worker processes the CPU set from before ``import torch``.

    Binding shrinks the parent's mask, which forked workers inherit:
    https://github.com/pytorch/pytorch/issues/101850
    """

    def __init__(self, cpus: list[int] | None) -> None:
        self.cpus = cpus

    def __call__(self, _worker: int) -> None:
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)


def _data_loader(rows: Any, options: Options, generator: torch.Generator, cpus: list[int] | None) -> DataLoader:
    more = {} if options["prefetch_factor"] is None else {"prefetch_factor": options["prefetch_factor"]}
    return DataLoader(
        rows,
        batch_size=options["batch_size"],
        shuffle=True,
        generator=generator,
        drop_last=options["drop_last"],
        num_workers=options["workers"],
        persistent_workers=options["persistent_workers"],
        pin_memory=options["pin_memory"],
        worker_init_fn=_KeepAffinity(cpus),
        **more,
    )


def _write_folder(samples: Samples) -> str:
    """Write the first images as PNG files in one folder per class, and return the folder."""
    folder = tempfile.mkdtemp(prefix="bench-images.")
    for label in range(samples.set.classes):
        os.mkdir(os.path.join(folder, str(label)))
    for number in range(min(FOLDER_IMAGES, len(samples.labels))):
        path = os.path.join(folder, str(int(samples.labels[number])), f"{number:05d}.png")
        with open(path, "wb") as file:
            file.write(_png(samples.images[number]))
    return folder


def _png(image: torch.Tensor) -> bytes:
    """Return a uint8 image (1 or 3, H, W) as the bytes of a PNG file (https://www.w3.org/TR/png-3/)."""
    channels, height, width = image.shape
    raw = bytes(image.permute(1, 2, 0).flatten().tolist())
    line = width * channels
    rows = b"".join(b"\0" + raw[start : start + line] for start in range(0, len(raw), line))
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
