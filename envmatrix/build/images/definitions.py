"""Generate Dockerfiles and Apptainer definitions. Values from matrix.yaml are quoted and never executed.

Both are built without network from one folder (the *context*), filled on the host:
* debs/: Debian packages that the image adds to its base
* wheels/: wheels, and requirements.txt with their hashes
* lib.tar: shared libraries, each in a folder named by its key (a tar, because Apptainer would copy links' targets)
* bench/: the benchmark
* base.tar: (Apptainer only) the base as a Docker archive
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from envmatrix.build.debian.suites import SOURCE_DATE_EPOCH
from envmatrix.build.images.labels import (
    OF_BUILD,
    OF_PUBLISHER,
    base_digest_in,
    derived_image_labels,
    fixed_labels,
    image_title,
    named_labels,
)
from envmatrix.errors import InputError
from envmatrix.matrix.templates import is_open
from envmatrix.plan.environment import Environment, Image
from envmatrix.plan.export_lines import dockerfile_quote
from envmatrix.system import bench_options
from envmatrix.version import __version__

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
_CONTEXT = "/opt/context"
#: Copies of files that the build's own engine mounts, so the build cannot write them in place.
_ETC = "/opt/envmatrix/etc"
#: The image starts in the caller's folder: a bench/ there must not replace the image's own.
COMMAND = ("env", "PYTHONSAFEPATH=1", "python3", "-m", "bench")
#: Label of intermediate images; its value names the final image.
STAGE_LABEL = "org.envmatrix.stage"
#: Files newer than this marker were written by the build.
_START_MARKER = f"{_CONTEXT}/started"


@dataclass(frozen=True)
class Recipe:
    """The inputs of an image's definition. ``stage`` names the intermediate images of its build."""

    image: str
    base: str
    wheels: bool
    stage: str = "build"
    version: str = __version__


def make_recipe(image: Image, base: str, stage: str = "build") -> Recipe:
    """Return the recipe for an image on a base."""
    return Recipe(image.name, base, bool(image.requirements), stage)


def python_inside(wheels: bool) -> str:
    """Return the path of the Python with torch inside an image."""
    return f"{VENV}/bin/python3" if wheels else "/usr/bin/python3"


def docker_quote(value: str) -> str:
    """Quote a value for ENV and LABEL: only backslash, quote and dollar are special in double quotes."""
    refuse_control(value)
    return dockerfile_quote(value)


def shell_quote(value: str) -> str:
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


def environment_variables(environment: Environment, libraries: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a named image beyond COMMON; ``libraries`` maps keys to folders inside.

    Values that depend on the machine ({physical_cores}) and are not filled in are left out.
    """
    set_variables = {name: value for name, value in environment.variables.items() if value is not None}
    fixed = {name: value for name, value in set_variables.items() if not is_open(value)}
    paths = [f"{libraries[key]}/{file}" if key else file for key, file in environment.preload]
    return {
        **fixed,
        **({"LD_PRELOAD": ":".join(paths)} if paths else {}),
        **bench_options.variables_to_show(set_variables),
    }


def unfilled_variables(environment: Environment) -> dict[str, str]:
    """Return the variables whose values depend on the machine, with their templates."""
    written_variables = environment.variables.items()
    return {name: value for name, value in written_variables if value is not None and is_open(value)}


def library_folders(environment: Environment) -> dict[str, str]:
    """Return library key -> folder inside the image for the libraries that an environment preloads."""
    return {key: f"{LIBRARIES}/{key}" for key, _ in environment.preload if key}


def dockerfile(recipe: Recipe, environment: Environment | None = None) -> str:
    """Return the Dockerfile of an image or a named environment (for BuildKit, the classic builder and Podman).

    Labels come last, so that intermediate images do not carry them.
    """
    refuse_control(recipe.base)
    arguments, labels = _build_arguments(recipe, environment), _labels(recipe, environment)
    steps = [
        *(f"ARG {name}={docker_quote(value)}" for name, value in arguments.items()),
        "ARG BASE=${BASE_NAME}",
        "FROM ${BASE} AS build",
        f"LABEL {STAGE_LABEL}={docker_quote(recipe.stage)}",
        "COPY . /opt/context/",
        "RUN " + " \\\n && ".join([f"touch {_START_MARKER}", *build_steps(recipe.wheels, _CONTEXT), *_set_same_time()]),
        "",
        "FROM scratch",
        "COPY --from=build / /",
        f"COPY --from=build {_ETC}/ /etc/",
        *(f"ENV {name}={docker_quote(value)}" for name, value in COMMON.items()),
        *(_docker_variables(environment) if environment else ()),
        "WORKDIR /work",
        f"USER {USER}:{USER}",
        f"ENTRYPOINT {json.dumps(list(COMMAND))}",
        *(f"ARG {name}" for name in arguments),
        _docker_labels({name: docker_quote(value) for name, value in labels.items()}, _label_arguments(environment)),
    ]
    return "\n".join(steps) + "\n"


def _label_arguments(environment: Environment | None) -> dict[str, str]:
    """Return label -> the build argument with its value."""
    return {**OF_BUILD, **(OF_PUBLISHER if environment else {})}


def _build_arguments(recipe: Recipe, environment: Environment | None) -> dict[str, str]:
    """Return the build arguments with their default values."""
    base_arguments = {"VERSION": recipe.version, "BASE_NAME": recipe.base, "BASE_DIGEST": base_digest_in(recipe.base)}
    return {name: base_arguments.get(name, "") for name in _label_arguments(environment).values()}


def _labels(recipe: Recipe, environment: Environment | None) -> dict[str, str]:
    environment_labels = named_labels(environment) if environment else {}
    return {**fixed_labels(image_title(recipe.image), SOURCE_DATE_EPOCH), **environment_labels}


def _docker_labels(quoted: Mapping[str, str], arguments: Mapping[str, str]) -> str:
    """Return a single LABEL instruction, because each instruction creates an intermediate image."""
    values = {**quoted, **{label: f'"${{{argument}}}"' for label, argument in arguments.items()}}
    return "LABEL " + " \\\n      ".join(f"{name}={value}" for name, value in sorted(values.items()))


def build_steps(wheels: bool, context: str) -> list[str]:
    """Return the shell commands that turn a base and a context into an image; they contain no user input.

    The same context gives the same files on any machine, at any time. Modes do not depend on the umask, and bytecode
    contains no times. Bytecode is not checked against its sources, which nobody edits. Machine-specific caches are
    removed.
    """
    install = [
        "umask 022",
        f"if ls {context}/debs/*.deb >/dev/null 2>&1; then"
        f" DEBIAN_FRONTEND=noninteractive apt-get -o APT::Sandbox::User=root install -qq -y --no-install-recommends"
        f" --allow-downgrades {context}/debs/*.deb >/dev/null; fi",
    ]
    venv = [
        f"python3 -m venv {VENV}",
        f"{VENV}/bin/python3 -m pip install -q --disable-pip-version-check --no-cache-dir --no-index --no-deps"
        f" --no-compile --require-hashes --find-links {context}/wheels -r {context}/wheels/requirements.txt",
        f"rm -rf {VENV}/lib/python3*/site-packages/pip* {VENV}/bin/pip*",
        f"{{ PYTHONHASHSEED=0 {VENV}/bin/python3 -m compileall -q -f -j 0 --invalidation-mode unchecked-hash {VENV}/lib"
        " || true; }",
    ]
    finish = [
        f"mkdir -p {LIBRARIES} {MOUNT_FOLDER}/bench {MOUNT_FOLDER}/data /work",
        f"tar -xf {context}/lib.tar -C {LIBRARIES}",
        f"cp -R {context}/bench/. {MOUNT_FOLDER}/bench/",
        f"chmod -R u=rwX,go=rX {LIBRARIES} {MOUNT_FOLDER}",
        "chmod 1777 /work",
        f"mkdir -p {_ETC} && touch {_ETC}/hosts {_ETC}/hostname {_ETC}/resolv.conf",
        "rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/cache/fontconfig/* /var/log/*"
        " /root/.cache",
    ]
    return [*install, *(venv if wheels else []), *finish]


def _set_same_time() -> list[str]:
    """Return commands that set one time on all files written by the build, because layer digests include times.

    Files that the engine mounts during a build are left unchanged.
    """
    mounted = " ".join(f"! -path /etc/{name}" for name in ("hosts", "hostname", "resolv.conf"))
    return [
        f"find / -xdev {mounted} -newer {_START_MARKER} -exec touch -h -d @{SOURCE_DATE_EPOCH} {{}} +",
        f"rm -rf {_CONTEXT}",
        f"touch -d @{SOURCE_DATE_EPOCH} /opt",
    ]


def recipe_digest(wheels: bool) -> str:
    """Return a digest of the build steps: images of an older recipe are rebuilt."""
    return hashlib.sha256(dockerfile(Recipe("", "", wheels)).encode()).hexdigest()


def named_dockerfile(environment: Environment, parent: str, publisher: Mapping[str, str]) -> str:
    """Return the Dockerfile of a named environment on its image; it adds metadata but no layer."""
    refuse_control(parent)
    labels = derived_image_labels(environment, publisher)
    quoted = {name: docker_quote(value) for name, value in labels.items()}
    lines = [f"FROM {parent}", *_docker_variables(environment), _docker_labels(quoted, {})]
    return "\n".join(lines) + "\n"


def _docker_variables(environment: Environment) -> list[str]:
    variables = environment_variables(environment, library_folders(environment))
    open_ones = unfilled_variables(environment).items()
    return [
        *(f"# on your machine, run it with --env {name}={value}" for name, value in open_ones),
        *(f"ENV {name}={docker_quote(value)}" for name, value in variables.items()),
    ]


def _comment_header(environment: Environment, *instructions: str, on_gpu: str) -> str:
    description = f": {environment.description}" if environment.description else ""
    steps = (f"envmatrix context {environment.name} --output build/context", *instructions)
    return (
        f"# {environment.name}{description}\n# {environment.levels_text()}\n"
        "# Generated from matrix.yaml by `envmatrix definitions`; do not edit. Build it by hand:\n"
        + "".join(f"#   {step}\n" for step in steps)
        + (f"# Run it on a GPU: {on_gpu}\n" if environment.for_cuda else "")
    )


def standalone_dockerfile(environment: Environment, recipe: Recipe) -> str:
    """Return the stand-alone Dockerfile of a named environment, as committed in containers/."""
    name = environment.name
    instructions = (
        "BASE=$(docker load -i build/context-base.tar | sed 's/.*: //')",
        "docker build --network none --build-arg BASE=$BASE $(sed 's/^/--build-arg /' build/context.args)"
        f" -f containers/{name}.Dockerfile -t envmatrix/{name} build/context",
    )
    on_gpu = f"docker run --rm --gpus all envmatrix/{name} --device cuda"
    return _comment_header(environment, *instructions, on_gpu=on_gpu) + "\n" + dockerfile(recipe, environment)


def apptainer_definition(environment: Environment | None, recipe: Recipe) -> str:
    """Return the Apptainer definition of an image, or of a named environment on it, built from a context."""
    steps = "\n".join(f"    {step}" for step in ["set -e", *build_steps(recipe.wheels, _CONTEXT), f"rm -rf {_CONTEXT}"])
    arguments = _build_arguments(recipe, environment)
    by_argument = {label: f"{{{{ {name} }}}}" for label, name in _label_arguments(environment).items()}
    return (
        "Bootstrap: {{ BOOTSTRAP }}\nFrom: {{ FROM }}\n\n"
        "%arguments\n    BOOTSTRAP=docker\n"
        f"    FROM={recipe.base}\n    CONTEXT=build/context\n"
        + "".join(f"    {name}={value}\n" for name, value in arguments.items())
        + "\n%files\n    {{ CONTEXT }} /opt/context\n\n"
        f"%post\n{steps}\n\n"
        + _environment_section(environment, is_standalone=True)
        + _labels_section(_labels(recipe, environment), by_argument)
        + _runscript()
    )


def standalone_definition(environment: Environment, recipe: Recipe) -> str:
    """Return the stand-alone definition of a named environment, as committed in containers/."""
    name = environment.name
    instructions = (
        "apptainer build --build-arg-file build/context.args --build-arg BOOTSTRAP=docker-archive"
        f" --build-arg FROM=build/context-base.tar containers/{name}.sif containers/{name}.def"
    )
    namespace_note = (
        "# A root without CAP_SYS_RESOURCE, as in most containers: unshare --user --map-root-user apptainer ...\n"
    )
    on_gpu = f"apptainer run --nv containers/{name}.sif --device cuda"
    return (
        _comment_header(environment, instructions, on_gpu=on_gpu)
        + namespace_note
        + apptainer_definition(environment, recipe)
    )


def named_definition(environment: Environment, sif: str, publisher: Mapping[str, str]) -> str:
    """Return the definition of a named SIF derived from its image's SIF."""
    refuse_control(sif)
    return (
        f"Bootstrap: localimage\nFrom: {sif}\n\n"
        + _environment_section(environment, is_standalone=False)
        + _labels_section(derived_image_labels(environment, publisher), {})
        + _runscript()
    )


def _environment_section(environment: Environment | None, *, is_standalone: bool) -> str:
    variables = environment_variables(environment, library_folders(environment)) if environment else {}
    lines = [
        f"    export {name}={shell_quote(value)}"
        for name, value in {**(COMMON if is_standalone else {}), **variables}.items()
    ]
    open_ones = unfilled_variables(environment).items() if environment else ()
    lines += [f"    # on your machine, run it with --env {name}={value}" for name, value in open_ones]
    return "%environment\n" + "\n".join(lines) + "\n\n" if lines else ""


def _labels_section(labels: Mapping[str, str], by_argument: Mapping[str, str]) -> str:
    for value in labels.values():
        refuse_control(value)
    escaped = {name: value.replace("{{", "{ {") for name, value in labels.items()}
    lines = "\n".join(f"    {name} {value}" for name, value in sorted({**escaped, **by_argument}.items()))
    return f"%labels\n{lines}\n\n"


def _runscript() -> str:
    return f'%runscript\n    exec {" ".join(COMMAND)} "$@"\n'
