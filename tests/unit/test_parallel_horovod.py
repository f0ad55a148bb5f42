"""Horovod's settings for ranks, and checks of what Horovod does with them; real runs are in tests/parallel."""

import contextlib
import os
import sys
from types import ModuleType
from unittest import mock

import pytest

from bench import options as workload_options
from bench.errors import RunError

OPTIONS = {**workload_options.defaults(), "parallel": "horovod", "collective_timeout_s": 7}


class Fake(ModuleType):
    """Takes part as rank ``rank`` of ``world``, whatever its settings are."""

    def __init__(self, rank, world):
        super().__init__("horovod.torch")
        self.told, self.ended = {}, False
        self.rank, self.size = lambda: rank, lambda: world

    def init(self):
        self.told = {name: value for name, value in os.environ.items() if name.startswith("HOROVOD_")}

    def shutdown(self):
        self.ended = True


@contextlib.contextmanager
def started(fake, rank, world, monkeypatch):
    torch = pytest.importorskip("torch")
    from bench.devices import Cpu
    from bench.parallel import horovod_strategy
    from bench.rank_and_device import Place

    package = ModuleType("horovod")
    package.torch = fake
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", fake)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr(horovod_strategy, "_rendezvous", lambda _place: contextlib.nullcontext(4242))
    place = Place(Cpu(), rank, world, "gloo", "lo")
    with mock.patch.dict(os.environ), horovod_strategy.started(place, OPTIONS):
        yield


def test_a_rank_is_told_what_horovodrun_would_tell_it_and_is_shut_down_in_the_end(monkeypatch):
    fake = Fake(1, 3)
    with started(fake, 1, 3, monkeypatch):
        assert not fake.ended
    assert fake.ended
    assert fake.told == {
        "HOROVOD_HOSTNAME": "127.0.0.1",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4242",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "7",
    }


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (1, 4), (0, 2)])
def test_a_horovod_that_sees_other_ranks_than_there_are_breaks_the_run(monkeypatch, rank, world):
    fake = Fake(rank, world)
    with pytest.raises(RunError, match=f"made this rank {rank} of {world}, and it is rank 1 of 2"):
        started(fake, 1, 2, monkeypatch).__enter__()
    assert not fake.ended  # the others may be gone


def test_after_a_broken_step_nobody_is_waited_for(monkeypatch):
    fake = Fake(0, 2)
    with pytest.raises(ZeroDivisionError), started(fake, 0, 2, monkeypatch):
        raise ZeroDivisionError
    assert not fake.ended
