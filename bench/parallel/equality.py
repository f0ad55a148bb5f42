"""The check that a parallel way trains as one process does: same data order, same effective batch, same losses."""

import torch
from torch.nn import functional

from bench import models, tensors, training
from bench.errors import BenchError, RunError
from bench.parallel import choices, methods, shards

#: Largest relative difference of a step's loss. Sums in another order differ in the seventh digit (2e-7 seen over 8
#: steps); a lost or doubled shard or a gradient of the wrong size is off by 1e-4 and more (tested). CUDA may use TF32,
#: bfloat16 differed by 1.3e-5 over 5 steps.
_TOLERANCE = {"cpu": 2e-5, "xla": 2e-5, "cuda": 1e-3, "bfloat16": 2e-4}


def refuse_what_cannot_be_equal(model, options):
    """Raise BenchError when the network itself makes shares unequal to the whole."""
    found = methods.batch_dependent_layers(model)
    if options["verify_steps"] and found:
        raise BenchError(
            f"--verify-steps cannot hold for {options['model']}: {', '.join(found)} sees its share of the batch only"
        )


def losses_of(step, source, steps, place):
    """Take ``steps`` steps and return the loss of each over all ranks (floats, the same list on every rank)."""
    return over_all_ranks([step(*next(source)) for _ in range(steps)], place)


def over_all_ranks(losses, place):
    """Return each step's loss as a float, the ranks' parts added up; the same list on every rank."""
    found = torch.stack([torch.as_tensor(loss).detach().cpu() for loss in losses]).double()
    if place.world > 1:
        device = "cuda" if place.backend == "nccl" else "cpu"
        found = found.to(device)
        torch.distributed.all_reduce(found)
    return found.tolist()


def one_process_losses(samples, options, world):
    """Train as one process on the CPU with plain PyTorch and return the loss of each of ``verify_steps`` steps."""
    torch.manual_seed(options["seed"])
    model = models.build(options, samples.set.shape, samples.set.classes)
    scaled = dict(options, learning_rate=choices.learning_rate(options, world))
    optimizer = training.optimizer_for(model.parameters(), scaled)
    generator = torch.Generator().manual_seed(options["seed"])
    batch = choices.effective_batch(options, world)
    found = []
    while True:
        for numbers in shards.epoch_order(len(samples.labels), batch, generator):
            if len(found) == options["verify_steps"]:
                return found
            optimizer.zero_grad()
            with training.autocast(options)():
                scores = model(tensors.to_float(samples.images[numbers]))
                loss = functional.cross_entropy(scores, samples.labels[numbers])
            loss.backward()
            optimizer.step()
            found.append(loss.item())


def compare(own, reference, kind):
    """Return what goes into ``result.equality``; a difference beyond the tolerance is a RunError.

    ``kind`` is the device, or the number format under autocast.
    """
    tolerance = _TOLERANCE[kind]
    differences = [abs(mine - theirs) / max(abs(theirs), 1e-6) for mine, theirs in zip(own, reference)]
    worst = max(differences)
    # Not "worst > tolerance": a loss that is not a number compares false with everything.
    if not all(difference <= tolerance for difference in differences):
        number = next(n for n, difference in enumerate(differences) if not difference <= tolerance)
        raise RunError(
            f"this way of training is not equal to one process: the loss of step {number + 1} is {own[number]:.6g}, "
            f"of one process {reference[number]:.6g} (tolerance {tolerance:g} of it)"
        )
    return {
        "steps": len(own),
        "losses": own,
        "one_process_losses": reference,
        "largest_difference": worst,
        "tolerance": tolerance,
    }
