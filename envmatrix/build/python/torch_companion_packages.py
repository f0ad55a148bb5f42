"""Install torch and packages compiled against it (torchvision, torchaudio) from the same build.

PyPI's torch and torchvision for x86-64 are CUDA builds. PyTorch's own indexes have the other builds, marked by a local
version: 2.13.0+cpu. A CUDA torchvision with a CPU torch installs without an error, but ``import torchvision`` fails:
``operator torchvision::nms does not exist`` (https://github.com/pytorch/vision/issues/9085).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from envmatrix.build.lockfile import PinnedPackage
from envmatrix.build.python.pip import ResolveRequest
from envmatrix.errors import EngineError
from envmatrix.system.progress import ProgressCallback

#: Base URL of PyTorch's indexes; each build's index is named by its local version.
PYTORCH_INDEX = "https://download.pytorch.org/whl/"
_COMPILED_PACKAGES = ("torchvision", "torchaudio")


def local_version(version: str) -> str:
    """Return the build of a version: ``cpu`` for 2.13.0+cpu, '' for 2.13.0."""
    return version.partition("+")[2]


def strangers(pins: Iterable[PinnedPackage], torch: str | None = None) -> tuple[PinnedPackage, ...]:
    """Return the packages that are compiled against a different build of torch.

    ``torch`` is the version that is already installed (PEP 440), used if ``pins`` contain none.
    """
    packages = tuple(pins)
    version = next((pin.version for pin in packages if pin.name == "torch"), torch)
    if version is None:
        return ()
    build = local_version(version)
    return tuple(pin for pin in packages if pin.name in _COMPILED_PACKAGES and local_version(pin.version) != build)


def request_for_build(request: ResolveRequest, others: Iterable[PinnedPackage], build: str) -> ResolveRequest:
    """Return a request for the same versions of ``others`` from ``build`` ('': PyPI's)."""
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
    """Resolve ``request``, then resolve packages of a different torch build again for the build of torch.

    If they are not available, report it and keep the first result. ``torch``: see ``strangers``.
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
    """Return the warning about mismatched builds, with a remedy."""
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
