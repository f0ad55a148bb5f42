"""Packages compiled against torch are installed in a build that matches torch's, or the mismatch is reported."""

from pathlib import Path

import pytest

from envmatrix.build.lockfile import PinnedPackage, read_lock
from envmatrix.build.python.pip import ResolveRequest
from envmatrix.build.python.torch_companion_packages import PYTORCH_INDEX, resolve_one_build, strangers
from envmatrix.errors import EngineError

LOCKS = Path(__file__).parents[2] / "containers" / "locks"


def pins(*texts):
    return tuple(PinnedPackage(*text.split("=="), "0" * 64) for text in texts)


class Pip:
    """Fake pip that returns its prepared answers in order, and fails for None."""

    def __init__(self, first, second=None):
        self.answers, self.asked = [first, second], []

    def __call__(self, request):
        self.asked.append(request)
        answer = self.answers[len(self.asked) - 1]
        if answer is None:
            raise EngineError("No matching distribution")
        return answer


@pytest.mark.parametrize(
    ("there", "torch", "wrong"),
    [
        (("torch==2.13.0+cpu", "torchvision==0.28.0+cpu"), None, []),
        (("torch==2.13.0+cpu", "torchvision==0.28.0", "numpy==2"), None, ["torchvision"]),
        (("torch==2.13.0", "torchvision==0.28.0"), None, []),
        (("torch==2.13.0", "torchaudio==2.11.0+cpu"), None, ["torchaudio"]),
        (("torchvision==0.28.0",), "2.13.0+cpu", ["torchvision"]),
        (("torchvision==0.28.0+cpu",), "2.13.0+cpu", []),
        (("torchvision==0.28.0",), None, []),
    ],
)
def test_a_package_of_another_build_of_torch_is_known_by_its_local_version(there, torch, wrong):
    assert [pin.name for pin in strangers(pins(*there), torch)] == wrong


def test_a_stranger_is_asked_for_again_in_the_build_of_the_torch_that_is_there():
    pip, said = Pip(pins("torchvision==0.28.0"), pins("torchvision==0.28.0+cpu")), []
    found = resolve_one_build(pip, ResolveRequest(("torchvision",)), said.append, "2.13.0+cpu")
    assert found == pins("torchvision==0.28.0+cpu")
    assert pip.asked[1] == ResolveRequest(("torchvision", "torchvision==0.28.0+cpu"), (PYTORCH_INDEX + "cpu",))
    assert said == []


def test_what_has_no_local_version_is_asked_for_as_exactly_that():
    pip = Pip(pins("torch==2.13.0", "torchvision==0.28.0+cpu"), pins("torch==2.13.0", "torchvision==0.28.0"))
    resolve_one_build(pip, ResolveRequest(("torch", "torchvision"), (PYTORCH_INDEX + "cpu",)), print)
    assert pip.asked[1].requirements[-1] == "torchvision===0.28.0"
    assert pip.asked[1].index == (PYTORCH_INDEX + "cpu",)


def test_where_no_other_build_can_be_had_it_is_said_what_will_not_work_and_how_it_would():
    pip, said = Pip(pins("torch==2.13.0+cpu", "torchvision==0.28.0")), []
    assert resolve_one_build(pip, ResolveRequest(("torch", "torchvision")), said.append) == pip.answers[0]
    assert "torchvision==0.28.0 is compiled for another build of torch than torch 2.13.0+cpu" in said[0]
    assert "operator torchvision::nms does not exist" in said[0]
    assert f"-> install both from the same build: from {PYTORCH_INDEX}cpu" in said[0]


@pytest.mark.parametrize("file", sorted(LOCKS.glob("torch-*.txt")), ids=lambda file: file.name)
def test_every_lock_that_is_shipped_has_one_build_of_torch(file):
    lock = read_lock(file)
    assert lock is not None
    for section in lock.sections:
        assert any(pin.name == "torch" for pin in section.packages)
        assert strangers(section.packages) == ()
