"""Registry of engines by name. A new engine is one module and one line here, or another package's entry point."""

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

#: The value of ``--engine`` that selects the most preferred available engine.
AUTO = "auto"
#: The engine for commands on one environment, unless ``--engine`` is given.
DEFAULT = "local"
ENGINES: Catalog[Engine] = Catalog(
    kind="engine",
    group="envmatrix.engines",
    protocol="envmatrix.engines.base:Engine",
    built_in={
        "local": "envmatrix.engines.local:LocalEngine",
        "docker": "envmatrix.engines.docker:DockerEngine",
        "podman": "envmatrix.engines.podman:PodmanEngine",
        "apptainer": "envmatrix.engines.apptainer:ApptainerEngine",
        "enroot": "envmatrix.engines.enroot:EnrootEngine",
    },
    reserved=(AUTO,),
)


def find_engine(name: str, places: BuildPaths | None = None) -> Engine:
    """Return the engine with that name. Raises InputError with a suggestion for an unknown name."""
    return ENGINES.make(name, places or _default_paths())


def check_engine(name: str, where: Callable[[], Where] | None = None) -> None:
    """Raise InputError unless a name is an engine's or ``auto``; ``where`` returns its location."""
    names = (*ENGINES.names(), AUTO)
    if name not in names:
        raise InputError(f"no engine {name!r}", remedy=suggestion(name, names), where=where() if where else None)


def choose_engine(progress: ProgressCallback) -> str:
    """Return the most preferred engine available on this machine, for ``--engine auto``; report the reasons."""
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
        reasons.append(f"no {engine.name}: {reason.splitlines()[0]}")
    return DEFAULT


def _default_paths() -> BuildPaths:
    from envmatrix.build.paths import project_paths

    return project_paths()
