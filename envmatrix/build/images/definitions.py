"""Generate Dockerfiles and Apptainer definitions. Values from matrix.yaml are quoted and never executed.

Both are built without network from one folder (the *context*), filled on the host:
* debs/: Debian packages that the image adds to its base
* wheels/: wheels, and requirements.txt with their hashes
* lib.tar: shared libraries, each in a folder named by its key (a tar, because Apptainer would copy links' targets)
* bench/: the benchmark
* base.tar: (Apptainer only) the base as a Docker archive

The steps of a build (templates/steps.sh.j2) contain no user input, and the same context gives the same files on any
machine, at any time. So modes do not depend on the umask, and files written by the build get one time, because layer
digests include times. Bytecode contains no times, and is not checked against its sources, which nobody edits.
Machine-specific caches are removed. /opt/envmatrix/etc has copies of files that the build's own engine mounts, which
the build cannot write in place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from envmatrix.build.debian.minimal_base import SOURCE_DATE_EPOCH
from envmatrix.build.images.labels import OF_BUILD, OF_PUBLISHER, derived_image_labels, image_labels
from envmatrix.errors import InputError
from envmatrix.matrix.placeholders import is_open
from envmatrix.plan.environment import Environment, Image
from envmatrix.plan.export_lines import dockerfile_quote
from envmatrix.system import bench_options
from envmatrix.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment as Templates

VENV = "/opt/envmatrix/venv"
LIBRARIES = "/opt/envmatrix/lib"
MOUNT_FOLDER = "/envmatrix"
#: An ordinary user that owns no files: 65532 is "nonroot" in distroless images too.
USER = 65532

#: Variables of every image; an environment's own variables override them.
COMMON: Mapping[str, str] = {
    "PATH": f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the one writable place of a read-only container
    "TMPDIR": "/tmp",  # noqa: S108
    "LANG": "C.UTF-8",
    "PYTHONPATH": MOUNT_FOLDER,
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
}
#: The image starts in the caller's folder: a bench/ there must not replace the image's own.
COMMAND = ("env", "PYTHONSAFEPATH=1", "python3", "-m", "bench")
#: Label of intermediate images; its value names the final image.
STAGE_LABEL = "org.envmatrix.stage"


def docker_quote(value: str) -> str:
    """Quote a value for ENV and LABEL: only backslash, quote and dollar are special in double quotes."""
    refuse_control(value)
    return dockerfile_quote(value)


def apptainer_quote(value: str) -> str:
    """Quote a value for %environment with single quotes; ``{{`` is split, because it starts a build argument.

    Raises InputError for a single quote: Apptainer 1.4 rewrites these values and would add a backslash.
    """
    refuse_control(value)
    if "'" in value:
        raise InputError(
            f"{value!r} contains a single quote, which Apptainer would change in an image's variables",
            remedy="remove it, or use the docker or local engine (trials under Apptainer get it unchanged)",
        )
    quoted = f"'{value}'"
    while "{{" in quoted:
        quoted = quoted.replace("{{", "{''{")
    return quoted


def refuse_control(value: str) -> None:
    """Raise InputError for control characters, which a one-line definition cannot contain."""
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise InputError(
            f"{value!r} contains a newline or another control character, which is not allowed in an image's variables",
            remedy="remove it from matrix.yaml",
        )


def environment_variables(environment: Environment) -> dict[str, str]:
    """Return the variables of a named image beyond COMMON.

    Values that depend on the machine ({physical_cores}) and are not filled in are left out.
    """
    set_variables = {name: value for name, value in environment.variables.items() if value is not None}
    fixed = {name: value for name, value in set_variables.items() if not is_open(value)}
    paths = [f"{LIBRARIES}/{key}/{file}" if key else file for key, file in environment.preload]
    preload = {"LD_PRELOAD": ":".join(paths)} if paths else {}
    return {**fixed, **preload, **bench_options.recorded_names_variable(set_variables)}


def unfilled_variables(environment: Environment) -> dict[str, str]:
    """Return the variables whose values depend on the machine, with their templates."""
    written_variables = environment.variables.items()
    return {name: value for name, value in written_variables if value is not None and is_open(value)}


@dataclass(frozen=True)
class DefinitionFormat:
    """How one kind of build file is written: its template, its quoting, and its notation for a build argument."""

    template: str
    quote: Callable[[str], str]
    label: Callable[[str, str], str]
    argument: str


def _apptainer_label(name: str, value: str) -> str:
    refuse_control(value)
    return f"{name} {value.replace('{{', '{ {')}"


#: Dockerfiles work with BuildKit, the classic builder and Podman.
DOCKER = DefinitionFormat(
    "Dockerfile.j2", docker_quote, lambda name, value: f"{name}={docker_quote(value)}", '{}="${{{}}}"'
)
APPTAINER = DefinitionFormat("apptainer.def.j2", apptainer_quote, _apptainer_label, "{} {{{{ {} }}}}")


def image_definition(
    form: DefinitionFormat,
    image: Image,
    base: str,
    environment: Environment | None = None,
    *,
    stage: str = "build",
    by_hand: bool = False,
) -> str:
    """Return the definition of an image, or of a named environment on it, built from a context.

    ``stage`` is the label of Docker's intermediate images. ``by_hand``: it starts with comments on how to build it, as
    committed in containers/.
    """
    refuse_control(base)
    label_arguments = {**OF_BUILD, **(OF_PUBLISHER if environment else {})}
    defaults = {"VERSION": __version__, "BASE_NAME": base, "BASE_DIGEST": base.partition("@")[2]}
    values = {
        "parent": "",
        "base": base,
        "arguments": {name: defaults.get(name, "") for name in label_arguments.values()},
        "steps": _templates().get_template("steps.sh.j2").render(wheels=bool(image.requirements)).splitlines(),
        "stage": stage,
        "by_hand": by_hand,
    }
    return _render(form, environment, image_labels(image.name, environment), label_arguments, COMMON, values)


def named_definition(
    form: DefinitionFormat, environment: Environment, parent: str, publisher: Mapping[str, str]
) -> str:
    """Return the definition of a named environment on its image; it adds metadata but no files."""
    refuse_control(parent)
    return _render(form, environment, derived_image_labels(environment, publisher), {}, {}, {"parent": parent})


def _render(
    form: DefinitionFormat,
    environment: Environment | None,
    labels: Mapping[str, str],
    label_arguments: Mapping[str, str],
    common: Mapping[str, str],
    values: Mapping[str, object],
) -> str:
    label_lines = {name: form.label(name, value) for name, value in labels.items()}
    label_lines |= {name: form.argument.format(name, argument) for name, argument in label_arguments.items()}
    filled = environment_variables(environment) if environment else {}
    return _templates().get_template(form.template).render(
        environment=environment,
        common=common,
        filled=filled,
        exports={**common, **filled},
        unfilled=unfilled_variables(environment) if environment else {},
        labels=[label_lines[name] for name in sorted(label_lines)],
        quote=form.quote,
        **values,
    )  # fmt: skip


@cache
def text_templates(package: str) -> Templates:
    """Return the templates of a package for files that are not HTML; each of them quotes its values."""
    from jinja2 import Environment as Templates
    from jinja2 import PackageLoader, StrictUndefined

    return Templates(  # noqa: S701 - not HTML
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="[[",  # Apptainer's build arguments are {{ NAME }}
        variable_end_string="]]",
    )


@cache
def _templates() -> Templates:
    templates = text_templates("envmatrix.build.images")
    templates.globals |= {"venv": VENV, "libraries": LIBRARIES, "mounts": MOUNT_FOLDER, "user": USER}
    templates.globals |= {"command": COMMAND, "epoch": SOURCE_DATE_EPOCH, "stage_label": STAGE_LABEL}
    return templates


def recipe_digest(wheels: bool) -> str:
    """Return a digest of the build steps: images of an older recipe are rebuilt."""
    image = Image("", requirements=("torch",) if wheels else ())
    return hashlib.sha256(image_definition(DOCKER, image, "").encode()).hexdigest()
