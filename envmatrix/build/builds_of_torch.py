"""torch, and packages that are compiled against it: of one build, or their operators cannot be loaded.

PyPI's torch for x86-64 is a build for CUDA, and so is PyPI's torchvision; PyTorch's own indexes have the others, and a
local version tells them: 2.13.0+cpu. A torchvision for CUDA beside a torch for the CPU installs without a word, and
``import torchvision`` ends with ``operator torchvision::nms does not exist``: https://github.com/pytorch/vision/issues/9085.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.pip import ResolveRequest
from envmatrix.errors import EngineError
from envmatrix.system.progress import ProgressCallback

#: Each build of torch has an index of its own, called by its local version.
PYTORCH_INDEX = "https://download.pytorch.org/whl/"
_COMPILED_PACKAGES = ("torchvision", "torchaudio")


def local_version(version: str) -> str:
    """Return what tells a build: ``cpu`` of 2.13.0+cpu, '' of 2.13.0."""
    return version.partition("+")[2]


def strangers(pins: Iterable[PinnedPackage], torch: str | None = None) -> tuple[PinnedPackage, ...]:
    """Return what is compiled against another build of torch than the one beside it.

    ``torch`` is the version of one that is there already (PEP 440), where ``pins`` hold none.
    """
    packages = tuple(pins)
    version = next((pin.version for pin in packages if pin.name == "torch"), torch)
    if version is None:
        return ()
    build = local_version(version)
    return tuple(pin for pin in packages if pin.name in _COMPILED_PACKAGES and local_version(pin.version) != build)


def request_for_build(request: ResolveRequest, others: Iterable[PinnedPackage], build: str) -> ResolveRequest:
    """Return the request for the same versions of ``others`` in the build ``build`` ('': PyPI's)."""
    public = ((pin.name, pin.version.partition("+")[0]) for pin in others)
    requirements = (f"{name}=={version}+{build}" if build else f"{name}==={version}" for name, version in public)
    index = (*request.index, *([PYTORCH_INDEX + build] if build and PYTORCH_INDEX + build not in request.index else []))
    return replace(request, requirements=(*request.requirements, *requirements), index=index)


def resolve_one_build(
    resolve: Callable[[ResolveRequest], tuple[PinnedPackage, ...]],
    request: ResolveRequest,
    progress: ProgressCallback,
    torch: str | None = None,
) -> tuple[PinnedPackage, ...]:
    """Resolve ``request``; what is compiled against another build of torch is asked for again, in torch's own.

    Where that cannot be had, it stays as it is, and that is said. ``torch``: as for ``strangers``.
    """
    pins = resolve(request)
    mismatched = strangers(pins, torch)
    if not mismatched:
        return pins
    version = next((pin.version for pin in pins if pin.name == "torch"), torch) or ""
    try:
        return resolve(request_for_build(request, mismatched, local_version(version)))
    except EngineError:
        progress(mismatch_message(mismatched, version))
        return pins


def mismatch_message(packages: Iterable[PinnedPackage], torch: str) -> str:
    """Say what will not work, and how it would."""
    package_names, build = ", ".join(map(str, packages)), local_version(torch)
    where = (
        f"from {PYTORCH_INDEX}{build}, or put their wheels in a folder and set PIP_FIND_LINKS to it"
        if build
        else "from PyPI"
    )
    return (
        f"{package_names} is compiled for another build of torch than torch {torch}, and no matching build "
        "was found; a program that imports it fails with an error such as 'operator torchvision::nms does "
        "not exist' (the built-in workloads do not use its operators)\n  -> install both from the same "
        f"build: {where}"
    )
