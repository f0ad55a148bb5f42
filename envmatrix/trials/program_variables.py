"""The variables of the user's own program: what it is given, and what of this shell's it has to do without."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.matrix.model import Workload
from envmatrix.matrix.readers import reader_of
from envmatrix.plan.environment import Image
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import RefusedFileError, read_bytes

#: Lists of folders that hold ours and the user's own.
_LISTS = ("PATH", "PYTHONPATH")
#: What a terminal, a desktop or a login sets for itself; every trial has its own of the last ones.
_OF_THE_SESSION = re.compile(
    r"(_|SHELL|SHLVL|PWD|OLDPWD|TERM\w*|COLORTERM|EDITOR|VISUAL|PAGER|MAIL|LOGNAME|HOST|HOSTNAME|LS_COLORS|PS\d|DISPLAY|"
    r"INFOPATH|MANPATH|LESS\w*|(SSH|XDG|DBUS|GPG|GDM|GNOME|KDE|GTK|QT|VTE|WAYLAND|ENVMATRIX|PYENV|NVM|CI|GITHUB)_\w+|"
    r"HOME|USER|PATH|LANG|LC_\w+|TMPDIR|LD_PRELOAD)\Z"
)
#: Names that say that a program looks there for its modules, libraries, data or models.
_A_PLACE = re.compile(
    r"(\w+_)?(HOME|DIR|DIRS|PATH|ROOT|CACHE|DATA|PREFIX)\Z|PYTHONPATH\Z|(HF|TRANSFORMERS|WANDB)_\w+\Z"
)
_LARGEST_SOURCE = 2**20
#: As an import says it, and as ``python -m`` does.
_NO_MODULE = re.compile(
    r"^ModuleNotFoundError: No module named '?([\w.]+)|^/\S*python[\w.]*: No module named ([\w.]+)", re.MULTILINE
)


def given_variables(workload: Workload, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a trial of a program starts from: ``base``, and what its workload writes and passes."""
    own = {name: os.environ[name] for name in workload.pass_env if name in os.environ} | dict(workload.env)
    joined = {name: _joined(base[name], own[name]) for name in _LISTS if own.get(name)}
    if workload.home == "real":
        base = {name: value for name, value in base.items() if name != "PYTHONNOUSERSITE"}
        own |= {"HOME": os.environ.get("HOME") or str(Path.home())}
    return {**base, **own, **joined}


def _joined(ours: str, own: str) -> str:
    """Put the user's folders behind our first one: that of the environment's Python, or of the benchmark."""
    first, _, rest = ours.partition(":")
    return ":".join(filter(None, (first, own, rest)))


def settled_passing(workload: Workload, progress: ProgressCallback) -> Workload:
    """Return a workload that passes on what this shell has of its ``pass_env``; the rest is told."""
    absent = [name for name in workload.pass_env if name not in os.environ]
    if absent:
        progress(f"workload {workload.name}: {', '.join(absent)}: not set here, so no trial has it (pass_env)")
    return workload.model_copy(update={"pass_env": tuple(name for name in workload.pass_env if name not in absent)})


def check_passing(workloads: Iterable[Workload]) -> None:
    """Raise InputError where this shell lacks a variable that a run began with."""
    for workload in workloads:
        absent = next((name for name in workload.pass_env if name not in os.environ), None)
        if absent:
            raise InputError(
                f"workload {workload.name!r}: {absent} was set when this run began, and is not now",
                remedy=f"export {absent} as it was, then go on",
            )


def looked_for(sources: Iterable[Path], said: str = "", *, places: bool = True) -> list[str]:
    """Return the variables of this shell that a program seems to look for: its sources name them, or they name a place.

    ``said`` is what it printed. Names alone: a value may be a secret. Without ``places`` those that name one do not
    count.
    """
    here = [name for name in sorted(os.environ) if not _OF_THE_SESSION.match(name)]
    named = named_in(sources, said)
    return [name for name in here if name in named or (places and _A_PLACE.match(name))]


def about_shell(passed: Iterable[str]) -> list[str]:
    """Say which variables of this shell that bear on speed every environment has, and which none has."""
    given = [f"{name}={os.environ[name]}" for name in sorted(passed) if reader_of(name) and name in os.environ]
    said = [f"your shell sets {', '.join(given)}: every environment has it, unless a level sets it"] if given else []
    preload = os.environ.get("LD_PRELOAD")
    if preload:
        said.append(f"your shell's LD_PRELOAD ({preload}) is left out of every run: write `preload:` in a level for it")
    return said


def named_in(sources: Iterable[Path], said: str = "") -> set[str]:
    """Return the words of a program's sources, and of what it ``said``, that can be names of variables."""
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", "\n".join([said, *_texts(sources)])))


def _texts(sources: Iterable[Path]) -> Iterator[str]:
    for file in sources:
        try:
            yield read_bytes(file, _LARGEST_SOURCE).decode(errors="replace")
        except (OSError, RefusedFileError):
            continue


def dropped_variables(workload: Workload, sources: Iterable[Path], said: str, *, by_option: bool = False) -> str:
    """Say in one line which variables of this shell a program seems to look for and did not get; else ''.

    ``by_option``: the program is of the command line, where an option gives them to it.
    """
    found = [name for name in looked_for(sources, said) if name not in (*workload.pass_env, *workload.env)]
    if not found:
        return ""
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    listed = ", ".join(found[:8])
    how = f"write `pass_env: [{listed}]` in its workload"
    how = f"begin again with --pass-env {','.join(found[:8])}" if by_option else how
    return f"of this shell's variables {workload.name} did not get {listed}{more}; to give them to it, {how}"


def lost_module(said: str) -> str:
    """Return the module that a Python did not find, by what it said last; '' where it said no such thing."""
    found = _NO_MODULE.search(said)
    return (found[1] or found[2]) if found else ""


def missing_module(workload: Workload, image: Image, said: str) -> str:
    """Say in one line which Python lacks the module that a program wants, and how it gets another; else ''."""
    module = lost_module(said)
    if not module:
        return ""
    if image.interpreter and not image.requirements:
        python, remedy = image.interpreter, "install it there, or name another `interpreter`"
    elif image.conda:
        python, remedy = f"a conda environment of {', '.join(image.conda)}", "write its package under `conda`"
    elif image.ready or image.modules:
        python, remedy = image.ready or " ".join(image.modules), "take one that has it"
    elif image.requirements:
        python, remedy = f"a Python with {', '.join(image.requirements)}", "write it under `requirements` of that level"
    else:
        python = "a Python of its own, without any package"
        remedy = (
            "name yours in a factor: `python: {mine: {interpreter: .venv/bin/python}}` (envmatrix docs interpreters)"
        )
    return f"{workload.name} runs in {python}: there is no module {module!r}; {remedy}"
