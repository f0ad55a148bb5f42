"""Which samples each process sees: the epoch is shuffled first and cut afterwards, so no sample is seen twice."""

import torch
from torch.utils.data import DataLoader

from bench import tensors


def epoch_order(count, batch, generator):
    """Yield the sample numbers of each effective batch of one epoch; the same on every rank for one seed."""
    yield from torch.randperm(count, generator=generator).split(batch)


def share(chosen, rank, world):
    """Return a rank's part of an effective batch: contiguous parts that differ by one sample at most."""
    return chosen.tensor_split(world)[rank]


def batches(samples, options, batch, rank, world):
    """Yield (images, labels, size of the effective batch) for one rank without end.

    The order is that of the one-process loader ``memory`` with this seed: rank after rank, the shares of a step
    are exactly its batch.
    """
    generator = torch.Generator().manual_seed(options["seed"])
    epoch = _LOADERS[options["loader"]]
    while True:
        chosen = list(epoch_order(len(samples.labels), batch, generator))
        yield from epoch(samples, options, chosen, rank, world)


def _in_memory(samples, _options, chosen, rank, world):
    for numbers in chosen:
        mine = share(numbers, rank, world)
        yield tensors.to_float(samples.images[mine]), samples.labels[mine], len(numbers)


def _data_loader(samples, options, chosen, rank, world):
    mine = [share(numbers, rank, world).tolist() for numbers in chosen]
    whole = [numbers for numbers in mine if numbers]  # a DataLoader cannot make an empty batch
    loaded = iter(DataLoader(tensors.Rows(samples), batch_sampler=whole, num_workers=options["workers"]))
    for numbers, given in zip(chosen, mine):
        if given:
            images, labels = next(loaded)
        else:
            images, labels = tensors.to_float(samples.images[:0]), samples.labels[:0]
        yield images, labels, len(numbers)


_LOADERS = {"memory": _in_memory, "dataloader": _data_loader}
