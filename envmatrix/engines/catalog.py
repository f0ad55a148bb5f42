"""Every engine by name. A new engine is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from envmatrix.engines.apptainer import ApptainerEngine
from envmatrix.engines.base import Engine
from envmatrix.engines.docker import DockerEngine
from envmatrix.engines.enroot import EnrootEngine
from envmatrix.engines.local import LocalEngine
from envmatrix.errors import InputError, suggestion
from envmatrix.images.places import Places, project_places
from envmatrix.say import Say

ENGINES: Mapping[str, Callable[[Places], Engine]] = {
    "local": LocalEngine,
    "docker": DockerEngine,
    "apptainer": ApptainerEngine,
    "enroot": EnrootEngine,
}
#: What ``--engine auto`` tries, in this order: a container confines better than a plain process.
_PREFERRED = ("docker", "apptainer", "local")


def find_engine(name: str, places: Places | None = None) -> Engine:
    """Return the engine of that name; an unknown name is an InputError with the nearest one."""
    if name not in ENGINES:
        raise InputError(f"no engine {name!r}", remedy=suggestion(name, (*ENGINES, "auto")))
    return ENGINES[name](places or project_places())


def choose_engine(say: Say) -> str:
    """Return the engine for ``--engine auto``: the first that this machine has; say which, and why."""
    reasons: list[str] = []
    for name in (name for name in _PREFERRED if name in ENGINES):
        reason = find_engine(name).unavailable()
        if reason is None:
            why = f" ({'; '.join(reasons)})" if reasons else ""
            say(f"engine auto: {name}{why}")
            return name
        reasons.append(f"no {name}: {reason}")
    return "local"
