"""Load environment modules (Lmod, Environment Modules) and find the variables they set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from envmatrix.errors import SkipEnvironmentError
from envmatrix.system.process import run

#: Loads its arguments as a login shell would, and prints all variables before and after.
_SHELL = """
command -v module >/dev/null 2>&1 || . /etc/profile >/dev/null 2>&1
command -v module >/dev/null 2>&1 || . "$MODULESHOME/init/bash" >/dev/null 2>&1
command -v module >/dev/null 2>&1 || exit 97
/usr/bin/env -0
printf '\\1\\0'
for name; do module load "$name" >&2 || exit 98; done
/usr/bin/env -0
"""
_NO_MODULE_COMMAND = 97
_LOAD_S = 120.0
#: Variables passed on: the locations of modules, and settings of their command.
_PASSED_VARIABLES = ("HOME", "USER", "MODULEPATH", "MODULEPATH_ROOT", "MODULESHOME", "MODULES_CMD", "MODULERCFILE")
_PREFIXES = ("LMOD_", "MODULES_")
#: Internal variables of the module systems, and variables that a trial gets in other ways.
_MODULE_VARIABLES = (
    "LMOD_", "_LMOD", "__LMOD", "_ModuleTable", "__MODULES", "MODULES_", "MODULEPATH", "BASH_FUNC_", "_LMFILES_",
)  # fmt: skip
_NOT_SET = frozenset({"LOADEDMODULES", "_", "SHLVL", "PWD", "OLDPWD", "HOME", "USER", "TMPDIR", "MANPATH"})
_PATH_LISTS = ("PATH", "PYTHONPATH")


@dataclass(frozen=True)
class LoadedModules:
    """The effect of loading modules: the variables set (for PATH, the folders added) and the modules loaded.

    ``digest`` covers the modules' files.
    """

    variables: Mapping[str, str]
    names: tuple[str, ...]
    digest: str


def load_modules(names: Sequence[str]) -> LoadedModules:
    """Load modules in a fresh shell. Raises SkipEnvironmentError if they cannot be loaded."""
    subject = f"modules: {' '.join(names)}"
    argv = ["/bin/bash", "--noprofile", "--norc", "-c", _SHELL, "modules", *names]
    result = run(argv, limit_s=_LOAD_S, env=_passed_variables())
    if result.exit.code == _NO_MODULE_COMMAND:
        raise SkipEnvironmentError(
            f"{subject}: neither Lmod nor Environment Modules was found: a login shell has no command `module`",
            remedy="run it on a machine that has them, or set MODULESHOME to the folder that contains init/bash",
        )
    output_before, _, output_after = result.stdout.partition("\1\0")
    old_variables, new_variables = _parse_variables(output_before), _parse_variables(output_after)
    loaded = tuple(name for name in new_variables.get("LOADEDMODULES", "").split(":") if name)
    if not result.exit.ok or not loaded:
        error_lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        raise SkipEnvironmentError(
            f"{subject} cannot be loaded: {' '.join(error_lines[:2]) or result.exit}",  # the rest is advice
            remedy="check the name with `module avail`; MODULEPATH lists the folders that are searched",
        )
    return LoadedModules(_changed_variables(old_variables, new_variables), loaded, _digest(new_variables))


def merge_module_variables(module_variables: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process: those set by modules, overridden by ``given``.

    The first folder of PATH, which has the Python, stays first. PYTHONPATH starts with the given one.
    """
    merged = {**module_variables, **given}
    if "PATH" in module_variables and "PATH" in given:
        first_folder, _, other_folders = given["PATH"].partition(":")
        merged["PATH"] = ":".join((first_folder, module_variables["PATH"], other_folders))
    if "PYTHONPATH" in module_variables and "PYTHONPATH" in given:
        merged["PYTHONPATH"] = f"{given['PYTHONPATH']}:{module_variables['PYTHONPATH']}"
    return merged


def _passed_variables() -> dict[str, str]:
    passed = {
        name: value for name, value in os.environ.items() if name in _PASSED_VARIABLES or name.startswith(_PREFIXES)
    }
    return {"HOME": "/", **passed, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


def _parse_variables(printed: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in printed.split("\0") if "=" in item)


def _changed_variables(old_variables: Mapping[str, str], new_variables: Mapping[str, str]) -> dict[str, str]:
    """Return the changed variables; for lists such as PATH, only the added folders."""
    own_variables = {
        name: value
        for name, value in new_variables.items()
        if name not in _NOT_SET and not name.startswith(_MODULE_VARIABLES)
    }
    changed = {name: value for name, value in own_variables.items() if value != old_variables.get(name)}
    for name in set(_PATH_LISTS) & set(changed):
        old_folders = old_variables.get(name, "").split(":")
        changed[name] = ":".join(part for part in changed[name].split(":") if part and part not in old_folders)
    return dict(sorted(changed.items()))


def _digest(variables: Mapping[str, str]) -> str:
    hasher = sha256()
    for file in variables.get("_LMFILES_", "").split(":"):
        hasher.update(file.encode() + b"\0")
        hasher.update(Path(file).read_bytes() if Path(file).is_file() else b"")
    return f"sha256:{hasher.hexdigest()}"
