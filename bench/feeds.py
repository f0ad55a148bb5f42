"""The ways to load batches for the training loop. The wait for a batch is measured separately from computing."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import time
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from bench import dataset_tensors
from bench.dataset_tensors import Batch
from bench.errors import BenchError
from bench.options import Options
from bench.rank_and_device import Place

#: The number of files for ``loader: image-folder``: enough for an epoch, and written within a second.
FOLDER_IMAGES = 2048


class Feed:
    """An endless supply of batches: ``source`` yields this process's shares, ``epoch_steps`` of them are one epoch.

    Each epoch is shuffled with one seed for all loaders and processes. Each effective batch is then cut into contiguous
    shares: no sample is seen twice, and the ranks' shares together are exactly the batch of one process. ``prepare_ns``
    is the time spent on writing files, which does not count as start-up time.
    """

    def __init__(self, samples: dataset_tensors.Samples, options: Options, place: Place, batch: int) -> None:
        self._folder: str | None = None
        start = time.perf_counter_ns()
        if options["loader"] == "image-folder":
            self._folder = _write_folder(samples, place.scratch)
        self.prepare_ns = time.perf_counter_ns() - start
        count = epoch_samples(samples, options)
        self.epoch_steps = count // batch if options["drop_last"] else -(-count // batch)
        if not self.epoch_steps:
            raise BenchError(f"drop_last leaves no batch: a batch of {batch} is larger than the data set ({count})")
        if options["loader"] == "memory":
            self.source: Generator[Batch, None, None] = in_memory(samples, options, batch, place)
        else:
            rows = _rows(samples, options["loader"], self._folder)
            self.source = _data_loader_batches(rows, samples, options, batch, place)

    def close(self) -> None:
        """End worker processes and remove files."""
        self.source.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def epoch_samples(samples: dataset_tensors.Samples, options: Options) -> int:
    """Return the number of samples in an epoch."""
    return min(FOLDER_IMAGES, len(samples.labels)) if options["loader"] == "image-folder" else len(samples.labels)


def _epochs(count: int, batch: int, options: Options) -> Iterator[Iterator[Tensor]]:
    """Yield an endless series of epochs, each an iterator over the sample numbers of its effective batches."""
    generator = torch.Generator().manual_seed(options["seed"])
    while True:
        epoch = torch.randperm(count, generator=generator).split(batch)
        yield (numbers for numbers in epoch if len(numbers) == batch or not options["drop_last"])


def order(count: int, batch: int, options: Options) -> Iterator[Tensor]:
    """Yield the sample numbers of each effective batch without end; a seed gives the same order everywhere."""
    return chain.from_iterable(_epochs(count, batch, options))


def share(chosen: Tensor, rank: int, world: int) -> Tensor:
    """Return a rank's contiguous part of an effective batch; parts differ by at most one sample."""
    return chosen if world == 1 else chosen.tensor_split(world)[rank]


def in_memory(
    samples: dataset_tensors.Samples, options: Options, batch: int, place: Place
) -> Generator[Batch, None, None]:
    """Yield batches indexed from the tensor that contains all samples."""
    for numbers in order(len(samples.labels), batch, options):
        own_numbers = share(numbers, place.rank, place.world)
        yield Batch(dataset_tensors.to_float(samples.images[own_numbers]), samples.labels[own_numbers], len(numbers))


class _Shares:
    """The batch sampler of one rank: it yields lists of sample numbers, one epoch per iteration."""

    def __init__(self, count: int, batch: int, options: Options, place: Place) -> None:
        self._epochs = _epochs(count, batch, options)
        self._place = place
        self.sizes: deque[int] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        for numbers in next(self._epochs):
            self.sizes.append(len(numbers))
            yield share(numbers, self._place.rank, self._place.world).tolist()


def _data_loader_batches(
    rows: Dataset[Any], samples: dataset_tensors.Samples, options: Options, batch: int, place: Place
) -> Generator[Batch, None, None]:
    """Yield the batches of torch's DataLoader."""
    shares = _Shares(len(rows), batch, options, place)
    more = {} if options["prefetch_factor"] is None else {"prefetch_factor": options["prefetch_factor"]}
    loader = DataLoader(
        rows,
        batch_sampler=shares,
        collate_fn=partial(_collate, (dataset_tensors.to_float(samples.images[:0]), samples.labels[:0])),
        num_workers=options["workers"],
        persistent_workers=options["persistent_workers"],
        pin_memory=options["pin_memory"],
        worker_init_fn=partial(_keep_affinity, place.cpus),
        **more,
    )
    while True:
        for images, labels in loader:
            yield Batch(images, labels, shares.sizes.popleft())


def _collate(empty: tuple[Tensor, Tensor], rows: list[Any]) -> Any:
    """Return the batch of these rows; torch's own function fails for an empty share."""
    return default_collate(rows) if rows else empty


def _keep_affinity(cpus: Sequence[int] | None, _worker: int) -> None:
    """Restore the CPU set from before ``import torch`` in a worker.

    Thread binding shrinks the parent's mask, which forked workers inherit:
    https://github.com/pytorch/pytorch/issues/101850
    """
    if cpus:
        os.sched_setaffinity(0, cpus)


class _VisionRows(dataset_tensors.Rows):
    """Samples converted one by one with PIL and ToTensor, as in the book and in torchvision's FashionMNIST."""

    def __init__(self, samples: dataset_tensors.Samples) -> None:
        from bench.torchvision_import import torchvision

        super().__init__(samples)
        transforms = torchvision().transforms
        self.picture, self.convert = transforms.ToPILImage(), transforms.ToTensor()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.convert(self.picture(self.images[index])), int(self.labels[index])


def _rows(samples: dataset_tensors.Samples, loader: str, folder: str | None) -> Dataset[Any]:
    if loader == "dataloader":
        return dataset_tensors.Rows(samples)
    if loader == "torchvision":
        return _VisionRows(samples)
    from bench.torchvision_import import torchvision

    vision = torchvision()
    from torchvision import datasets

    steps = [vision.transforms.Grayscale()] if len(samples.images[0]) == 1 else []
    transform = vision.transforms.Compose([*steps, vision.transforms.ToTensor()])
    return datasets.ImageFolder(folder, transform=transform)


def _write_folder(samples: dataset_tensors.Samples, scratch: str | None) -> str:
    """Write the first images as PNG files in one folder per class, and return the folder."""
    folder = tempfile.mkdtemp(prefix=f"bench-images.{os.getpid()}.", dir=scratch)
    for label in range(samples.set.classes):
        os.mkdir(os.path.join(folder, str(label)))
    for number in range(min(FOLDER_IMAGES, len(samples.labels))):
        path = os.path.join(folder, str(int(samples.labels[number])), f"{number:05d}.png")
        with open(path, "wb") as file:
            file.write(_png(samples.images[number]))
    return folder


def _png(image: Tensor) -> bytes:
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
