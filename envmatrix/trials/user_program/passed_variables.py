"""Variables of the user's own program: those that it gets, and those of this shell that it does not get."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from envmatrix.errors import InputError
from envmatrix.matrix.known_variables import find_reader
from envmatrix.matrix.model import Workload
from envmatrix.plan.environment import Image
from envmatrix.system.progress import ProgressCallback
from envmatrix.system.regular_files import RefusedFileError, read_bytes

#: Path lists that contain folders of envmatrix and of the user.
_PATH_VARIABLES = ("PATH", "PYTHONPATH")
#: Set by terminals, desktops and logins for themselves; every trial has its own values for the last line.
_SESSION_VARIABLES = re.compile(
    r"(_|SHELL|SHLVL|PWD|OLDPWD|TERM\w*|COLORTERM|EDITOR|VISUAL|PAGER|MAIL|LOGNAME|HOST|HOSTNAME|LS_COLORS|PS\d|DISPLAY|"
    r"INFOPATH|MANPATH|LESS\w*|(SSH|XDG|DBUS|GPG|GDM|GNOME|KDE|GTK|QT|VTE|WAYLAND|ENVMATRIX|PYENV|NVM|CI|GITHUB)_\w+|"
    r"HOME|USER|PATH|LANG|LC_\w+|TMPDIR|LD_PRELOAD)\Z"
)
#: The disk cache of torch.compile; in /tmp, the first trial would compile for all others.
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"
#: Names of locations of a program's modules, libraries, data or models.
_LOCATION_NAME = re.compile(
    r"(\w+_)?(HOME|DIR|DIRS|PATH|ROOT|CACHE|DATA|PREFIX)\Z|PYTHONPATH\Z|(HF|TRANSFORMERS|WANDB)_\w+\Z"
)
_LARGEST_SOURCE = 2**20
#: The error of an import, and of ``python -m``.
_NO_MODULE = re.compile(
    r"^ModuleNotFoundError: No module named '?([\w.]+)|^/\S*python[\w.]*: No module named ([\w.]+)", re.MULTILINE
)


def starting_variables(workload: Workload, base: Mapping[str, str]) -> dict[str, str]:
    """Return a program's initial variables: ``base``, and those that its workload sets and passes on."""
    own_variables = {name: os.environ[name] for name in workload.pass_env if name in os.environ} | dict(workload.env)
    own_variables = {name: value for name, value in own_variables.items() if value or name not in _PATH_VARIABLES}
    work = base["HOME"]
    joined = {
        name: _join_path_lists(base[name], own_variables[name]) for name in _PATH_VARIABLES if name in own_variables
    }
    if workload.home == "real":
        base = {name: value for name, value in base.items() if name != "PYTHONNOUSERSITE"}
        own_variables |= {"HOME": os.environ.get("HOME") or str(Path.home())}
    return {**base, _COMPILED: f"{work}/.torchinductor", **own_variables, **joined}


def _join_path_lists(ours: str, user_folders: str) -> str:
    """Put the user's folders after our first one: that of the environment's Python, or of the benchmark."""
    first_folder, _, remaining_folders = ours.partition(":")
    return ":".join(filter(None, (first_folder, user_folders, remaining_folders)))


def pass_available_variables(workload: Workload, progress: ProgressCallback) -> Workload:
    """Return a workload that passes on the variables of ``pass_env`` set in this shell; report the others."""
    missing_names = [name for name in workload.pass_env if name not in os.environ]
    if missing_names:
        progress(
            f"workload {workload.name}: not set in your shell, so no trial has it (pass_env): "
            f"{', '.join(missing_names)}"
        )
    return workload.model_copy(
        update={"pass_env": tuple(name for name in workload.pass_env if name not in missing_names)}
    )


def check_passed_variables(workloads: Iterable[Workload]) -> None:
    """Raise InputError if this shell lacks a variable that was passed on when the run began."""
    for workload in workloads:
        absent = next((name for name in workload.pass_env if name not in os.environ), None)
        if absent:
            raise InputError(
                f"workload {workload.name!r}: {absent} was set when this run started, but is not set now",
                remedy=f"export {absent} with its old value, then try again",
            )


def likely_needed_variables(sources: Iterable[Path], output: str = "", *, places: bool = True) -> list[str]:
    """Return shell variables that a program seems to need: its sources mention them, or their names denote locations.

    ``output`` is what it printed. Only names are returned, as a value may be a secret. ``places=False`` ignores names
    of locations.
    """
    shell_names = [name for name in sorted(os.environ) if not _SESSION_VARIABLES.match(name)]
    mentioned_names = words_in_sources(sources, output)
    return [name for name in shell_names if name in mentioned_names or (places and _LOCATION_NAME.match(name))]


def describe_shell_variables(passed_names: Iterable[str]) -> list[str]:
    """Describe which performance variables of this shell every environment has, and which none has."""
    settings = [
        f"{name}={os.environ[name]}" for name in sorted(passed_names) if find_reader(name) and name in os.environ
    ]
    lines = (
        [f"your shell sets {', '.join(settings)}: every environment gets it, unless a level sets it"]
        if settings
        else []
    )
    preload = os.environ.get("LD_PRELOAD")
    if preload:
        lines.append(
            f"your shell's LD_PRELOAD ({preload}) is not passed to any run: to use it, write `preload:` in a level"
        )
    return lines


def words_in_sources(sources: Iterable[Path], output: str = "") -> set[str]:
    """Return the words of a program's sources, and of its ``output``, that can be names of variables."""
    return set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", "\n".join([output, *_source_texts(sources)])))


def _source_texts(sources: Iterable[Path]) -> Iterator[str]:
    for file in sources:
        try:
            yield read_bytes(file, _LARGEST_SOURCE).decode(errors="replace")
        except (OSError, RefusedFileError):
            continue


def dropped_variables_hint(workload: Workload, sources: Iterable[Path], output: str, *, by_option: bool = False) -> str:
    """Return one line on shell variables that a program seems to need and did not get; otherwise ''.

    ``by_option``: the program comes from the command line, where an option passes variables on.
    """
    names = [
        name for name in likely_needed_variables(sources, output) if name not in (*workload.pass_env, *workload.env)
    ]
    if not names:
        return ""
    omitted_text = f" and {len(names) - 8} more" if len(names) > 8 else ""
    listed = ", ".join(names[:8])
    remedy = f"write `pass_env: [{listed}]` in its workload"
    remedy = f"start again with --pass-env {','.join(names[:8])}" if by_option else remedy
    return f"{workload.name} did not get {listed}{omitted_text} from your shell; to pass them on, {remedy}"


def missing_module_name(output: str) -> str:
    """Return the module that a Python did not find, from its output; otherwise ''."""
    match = _NO_MODULE.search(output)
    return (match[1] or match[2]) if match else ""


def missing_module_text(workload: Workload, image: Image, output: str) -> str:
    """Return one line on the module that a program's Python lacks, and how to supply it; otherwise ''."""
    module = missing_module_name(output)
    if not module:
        return ""
    if image.interpreter and not image.requirements:
        python, remedy = image.interpreter, "install it there, or use another `interpreter`"
    elif image.conda:
        python, remedy = f"a conda environment of {', '.join(image.conda)}", "add its package under `conda`"
    elif image.ready or image.modules:
        python, remedy = image.ready or " ".join(image.modules), "use an image or module that has it"
    elif image.requirements:
        python, remedy = f"a Python with {', '.join(image.requirements)}", "add it under `requirements` of that level"
    else:
        python = "a fresh Python without any package"
        remedy = (
            "use your own Python in a factor: `python: {mine: {interpreter: .venv/bin/python}}` (envmatrix "
            "docs interpreters)"
        )
    return f"{workload.name} runs in {python}, which has no module {module!r}; {remedy}"
