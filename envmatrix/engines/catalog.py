"""Every engine by name. A new engine is one file and one line here, or an entry point of another package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envmatrix.errors import InputError, suggestion
from envmatrix.system.plugins import Catalog, ExtensionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from envmatrix.build.paths import BuildPaths
    from envmatrix.engines.base import Engine
    from envmatrix.errors import Where
    from envmatrix.system.progress import ProgressCallback

#: What ``--engine`` takes for the best that this machine has.
AUTO = "auto"
#: What commands on one environment use without ``--engine``.
DEFAULT = "local"
ENGINES: Catalog[Engine] = Catalog(
    kind="engine",
    group="envmatrix.engines",
    protocol="envmatrix.engines.base:Engine",
    built_in={
        "local": "envmatrix.engines.local:LocalEngine",
        "docker": "envmatrix.engines.docker:DockerEngine",
        "apptainer": "envmatrix.engines.apptainer:ApptainerEngine",
        "enroot": "envmatrix.engines.enroot:EnrootEngine",
    },
    reserved=(AUTO,),
)


def find_engine(name: str, places: BuildPaths | None = None) -> Engine:
    """Return the engine of that name; an unknown name is an InputError with the nearest one."""
    return ENGINES.make(name, places or _default_paths())


def check_engine(name: str, where: Callable[[], Where]) -> None:
    """Refuse a name that is no engine's, nor ``auto``; ``where`` finds the place at which it stands."""
    names = (*ENGINES.names(), AUTO)
    if name not in names:
        raise InputError(f"no engine {name!r}", remedy=suggestion(name, names), where=where())


def choose_engine(progress: ProgressCallback) -> str:
    """Return the engine for ``--engine auto``: the most preferred that this machine has; say which, and why."""
    engines = [engine for _, engine in ENGINES.make_all(_default_paths()) if not isinstance(engine, ExtensionError)]
    reasons: list[str] = []
    for engine in sorted(
        (engine for engine in engines if engine.preference > 0), key=lambda engine: -engine.preference
    ):
        reason = engine.unavailable()
        if reason is None:
            why = f" ({'; '.join(reasons)})" if reasons else ""
            progress(f"engine auto: {engine.name}{why}")
            return engine.name
        reasons.append(f"no {engine.name}: {reason}")
    return DEFAULT


def _default_paths() -> BuildPaths:
    from envmatrix.build.paths import project_paths

    return project_paths()
