"""Environment modules (Lmod, Environment Modules): which variables loading them sets, asked of their own command."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from envmatrix.errors import SkipEnvironmentError
from envmatrix.system.process import run

#: Loads its arguments as a login shell would, and prints all variables as they were before and as they are then.
_SHELL = """
command -v module >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1
command -v module >/dev/null 2>&1 || . "$MODULESHOME/init/bash" >/dev/null 2>&1
command -v module >/dev/null 2>&1 || exit 97
/usr/bin/env -0
printf '\\1\\0'
for name; do module load "$name" >&2 || exit 98; done
/usr/bin/env -0
"""
_NONE = 97
_LOAD_S = 120.0
#: Of this shell, what says where modules are and how their command behaves.
_GIVEN = ("HOME", "USER", "MODULEPATH", "MODULEPATH_ROOT", "MODULESHOME", "MODULES_CMD", "MODULERCFILE")
_PREFIXES = ("LMOD_", "MODULES_")
#: What modules keep for their own use, and what a trial has from elsewhere.
_OWN = ("LMOD_", "_LMOD", "__LMOD", "_ModuleTable", "__MODULES", "MODULES_", "MODULEPATH", "BASH_FUNC_", "_LMFILES_")
_NOT_SET = frozenset({"LOADEDMODULES", "_", "SHLVL", "PWD", "OLDPWD", "HOME", "USER", "TMPDIR", "MANPATH"})
_LISTS = ("PATH", "PYTHONPATH")


@dataclass(frozen=True)
class Loaded:
    """What loading modules does: the variables it sets (of PATH what it adds), and which modules were loaded then.

    ``digest`` is that of the modules' files.
    """

    variables: Mapping[str, str]
    names: tuple[str, ...]
    digest: str


def load(names: Sequence[str]) -> Loaded:
    """Load modules in a fresh shell of this machine. Raises SkipEnvironmentError where they cannot be loaded."""
    shown = f"modules: {' '.join(names)}"
    argv = ["/bin/bash", "--noprofile", "--norc", "-c", _SHELL, "modules", *names]
    done = run(argv, limit_s=_LOAD_S, env=_given())
    if done.exit.code == _NONE:
        raise SkipEnvironmentError(
            f"{shown}: neither Lmod nor Environment Modules is here: a login shell has no command `module`",
            remedy="run it where they are, or set MODULESHOME to the folder that holds init/bash",
        )
    before, _, after = done.stdout.partition("\1\0")
    old, new = _variables(before), _variables(after)
    loaded = tuple(name for name in new.get("LOADEDMODULES", "").split(":") if name)
    if not done.exit.ok or not loaded:
        told = [line.strip() for line in done.stderr.splitlines() if line.strip()][:2]  # what follows is advice
        raise SkipEnvironmentError(
            f"{shown} cannot be loaded: {' '.join(told) or done.exit}",
            remedy="`module avail` lists what there is; MODULEPATH names the folders that are searched",
        )
    return Loaded(_set_by(old, new), loaded, _digest(new))


def with_modules(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process: what modules set, and above that ``given``.

    Of PATH the first folder, which is that of the Python, stays first; PYTHONPATH begins with what is given.
    """
    joined = {**own, **given}
    if "PATH" in own and "PATH" in given:
        first, _, rest = given["PATH"].partition(":")
        joined["PATH"] = ":".join((first, own["PATH"], rest))
    if "PYTHONPATH" in own and "PYTHONPATH" in given:
        joined["PYTHONPATH"] = f"{given['PYTHONPATH']}:{own['PYTHONPATH']}"
    return joined


def _given() -> dict[str, str]:
    wanted = {name: value for name, value in os.environ.items() if name in _GIVEN or name.startswith(_PREFIXES)}
    return {"HOME": "/", **wanted, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def _variables(printed: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in printed.split("\0") if "=" in item)


def _set_by(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return what differs; of the lists that a trial has too only what was added."""
    found = {name: value for name, value in new.items() if value != old.get(name)}
    found = {name: value for name, value in found.items() if name not in _NOT_SET and not name.startswith(_OWN)}
    for name in set(_LISTS) & set(found):
        there = old.get(name, "").split(":")
        found[name] = ":".join(part for part in found[name].split(":") if part and part not in there)
    return dict(sorted(found.items()))


def _digest(variables: Mapping[str, str]) -> str:
    whole = sha256()
    for file in variables.get("_LMFILES_", "").split(":"):
        whole.update(file.encode() + b"\0")
        whole.update(Path(file).read_bytes() if Path(file).is_file() else b"")
    return f"sha256:{whole.hexdigest()}"
