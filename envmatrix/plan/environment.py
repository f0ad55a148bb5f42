"""Environments: one level of every factor, resolved into an image, variables, preloads and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from packaging.utils import canonicalize_name

from envmatrix.errors import InputError, suggestion
from envmatrix.evidence.checks import Claims, parse_claims
from envmatrix.matrix import model
from envmatrix.matrix.known_variables import unread_variables
from envmatrix.matrix.model import Factor, Level, Matrix, factorial_cells
from envmatrix.matrix.placeholders import fill_templates, unfilled_template
from envmatrix.system.host import parse_cpus

#: Variables that are lists, to which several levels can contribute -> separator.
JOINED_VARIABLES = {
    "GLIBC_TUNABLES": ":",
    "MALLOC_CONF": ",",
    "PYTORCH_ALLOC_CONF": ",",
    "PYTORCH_CUDA_ALLOC_CONF": ",",
}
_REFERENCE_IMAGE = "default"


def exists_for(architectures: Sequence[str], architecture: str) -> bool:
    """Return whether something that these ``architectures`` have (none: all) exists for ``architecture``."""
    return not architectures or architecture in architectures


@dataclass(frozen=True)
class Library:
    """Shared libraries that a setting factor's level needs, held by every image in a folder of its own.

    ``requirements`` are wheels (unpacked, never installed into the venv: two versions of one library must be able
    to lie side by side), ``apt`` Debian packages (unpacked likewise). ``images`` are the image levels that its level
    requires, as they stand in images' names: no other image holds it. ``architectures`` have it (none: all).
    """

    key: str
    requirements: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()

    def is_for(self, image: Image, architecture: str) -> bool:
        """Whether an image of an architecture holds it."""
        held = not self.images or any(f"_{level}_" in f"_{image.name}_" for level in self.images)
        return held and exists_for(self.architectures, architecture)


@dataclass(frozen=True)
class SourceBuild:
    """How one requirement is built from source; ``edit`` is (file, text in it, replacement)."""

    name: str
    env: tuple[tuple[str, str], ...] = ()
    edit: tuple[tuple[str, str, str], ...] = ()
    programs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Image:
    """One combination of image factors. ``name`` is a stable identifier used in file names and tags.

    ``ready`` is an existing image: its reference, or its file. ``modules`` are loaded on the machine. ``conda`` are
    packages of ``channels`` (none: conda-forge) for a separate environment on the machine. ``architectures`` have it
    (none: all).
    """

    name: str
    python: str | None = None
    requirements: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    suite: str | None = None
    base: str | None = None
    interpreter: str | None = None
    builds: tuple[SourceBuild, ...] = ()
    ready: str | None = None
    modules: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()

    @property
    def on_host(self) -> bool:
        """Whether its Python is on the machine, not in an image."""
        return bool(self.interpreter or self.modules or self.conda)


@dataclass(frozen=True)
class Environment:
    """A name, one level of every factor, and the resulting settings. Templates are already filled in.

    ``variables``: None for a variable that must be absent. ``preload``: (library key, file name) in the order of
    LD_PRELOAD; an empty key means the system's library. ``own_levels``: levels that are not their factor's first (None:
    unknown, in runs of an older envmatrix). ``side``: ``old`` or ``new`` if a run compares two matrices. ``turns``: its
    processes may be paused. ``unread``: variables that nothing is known to read. ``cpu_quota``: CPU time per time, in
    CPUs (None: no limit). ``srun``: options of Slurm's srun, which then starts it. ``architectures``: level -> the
    processors that have it, of levels that not all have.
    """

    name: str
    description: str
    levels: Mapping[str, str]
    image: Image
    variables: Mapping[str, str | None]
    preload: tuple[tuple[str, str], ...]
    claims: Claims
    cpus: str | None = None
    memory_nodes: str | None = None
    srun: tuple[str, ...] = ()
    cpu_quota: float | None = None
    changes_numerics: bool = False
    libraries: tuple[Library, ...] = ()
    own_levels: Mapping[str, str] | None = None
    side: str | None = None
    turns: bool = True
    unread: tuple[str, ...] = ()
    architectures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def image_key(self) -> str:
        """Name of the image within its run; with two sides, both may use the same image name."""
        return f"{self.side}.{self.image.name}" if self.side else self.image.name

    @property
    def for_cuda(self) -> bool:
        """Whether it promises something of CUDA, so that whoever starts it wants a GPU inside."""
        return any(claim.path.startswith("cuda.") for claim in self.claims)

    def named_for_side(self, side: str | None) -> Environment:
        """Return the environment of one side under a name of its own; None: unchanged."""
        return replace(self, name=f"{side}.{self.name}", side=side) if side else self

    def variable_assignments(self) -> tuple[str, ...]:
        """Return what its process gets, as NAME=VALUE, LD_PRELOAD last; not the variables that must be absent."""
        texts = tuple(f"{name}={value}" for name, value in self.variables.items() if value is not None)
        return (*texts, f"LD_PRELOAD={':'.join(file for _, file in self.preload)}") if self.preload else texts

    def levels_text(self) -> str:
        """Return the levels that differ from the first level of their factor, as text."""
        levels = self.levels if self.own_levels is None else self.own_levels
        return ", ".join(f"{factor}={level}" for factor, level in levels.items()) or "every factor at its first level"


def library_for_level(matrix: Matrix, factor: Factor, level_name: str) -> Library | None:
    """Return the library folder that a level needs; None if it needs none, or belongs to an image factor."""
    level = factor.levels[level_name]
    if factor.changes_installed_software or not (level.requirements or level.apt):
        return None
    required_images = tuple(
        f"{other}-{name}"
        for other, names in level.requires.items()
        if matrix.factors[other].changes_installed_software
        for name in names
    )
    key = f"{factor.name}-{level_name}"
    return Library(key, level.requirements, level.apt, level.preload, required_images, level.architectures)


def all_libraries(matrix: Matrix) -> tuple[Library, ...]:
    """Return the libraries of every setting factor's level: every image holds all that its levels allow."""
    libraries = (
        library_for_level(matrix, factor, name) for factor in matrix.factors.values() for name in factor.levels
    )
    return tuple(library for library in libraries if library)


def combine_image(matrix: Matrix, levels: Mapping[str, str]) -> Image:
    """Combine the image factors' levels into one image, named after the levels that change it."""
    factor_levels = [
        (factor, levels[factor.name]) for factor in matrix.factors.values() if factor.changes_installed_software
    ]
    image_levels = [factor.levels[level] for factor, level in factor_levels]
    name_parts = [f"{factor.name}-{level}" for factor, level in factor_levels if factor.levels[level].changes_image]

    def level_value(attribute: str) -> str | None:
        values = [value for level in image_levels if (value := getattr(level, attribute))]
        return values[-1] if values else None

    return Image(
        name="_".join(name_parts) or _REFERENCE_IMAGE,
        python=level_value("python"),
        requirements=tuple(item for level in image_levels for item in level.requirements),
        index=tuple(level.index for level in image_levels if level.index),
        apt=tuple(item for level in image_levels for item in level.apt),
        suite=level_value("suite"),
        base=level_value("base"),
        interpreter=level_value("interpreter"),
        ready=level_value("image"),
        modules=tuple(item for level in image_levels for item in level.modules),
        conda=tuple(item for level in image_levels for item in level.conda),
        channels=tuple(dict.fromkeys(item for level in image_levels for item in level.channels)),
        builds=tuple(_source_build(name, body) for level in image_levels for name, body in level.build.items()),
        architectures=_common_architectures(image_levels),
    )


def _common_architectures(levels: list[Level]) -> tuple[str, ...]:
    """Return the architectures that have all of ``levels``; none: all architectures."""
    limited = [level.architectures for level in levels if level.architectures]
    return tuple(name for name in limited[0] if all(name in names for names in limited)) if limited else ()


def _source_build(name: str, body: model.SourceBuild) -> SourceBuild:
    edit = tuple((file, old, new) for file, texts in body.edit.items() for old, new in texts.items())
    return SourceBuild(canonicalize_name(name.strip()), tuple(body.env.items()), edit, body.programs)


def all_images(matrix: Matrix) -> dict[str, Image]:
    """Return every image that a named environment or a design of ``matrix`` can use, by name."""
    environment_levels = [resolve_environment(matrix, name, {}).levels for name in matrix.environments]
    cells = [cell for design in matrix.designs.values() for cell in factorial_cells(design).values()]
    cell_levels = [complete_levels(matrix, cell, "") for cell in cells]
    images = [combine_image(matrix, levels) for levels in (*environment_levels, *cell_levels)]
    return {image.name: image for image in images}


class VariableConflictError(InputError):
    """Levels of an environment set ``variable`` to different values."""

    variable = ""


def _merge_variable(merged: dict[str, str | None], name: str, value: str | None, setter: str) -> None:
    existing = merged.get(name)
    if name not in merged or existing == value:
        merged[name] = value
    elif name in JOINED_VARIABLES and existing and value:
        merged[name] = f"{existing}{JOINED_VARIABLES[name]}{value}"
    else:
        error = VariableConflictError(
            f"{setter} sets {name} to {value!r}, but another level already sets it to {existing!r}",
            remedy="choose levels that do not set the same variable, or write one level that sets both values",
        )
        error.variable = name
        raise error


def _check_requires(name: str, factor: Factor, level: Level, levels: Mapping[str, str]) -> None:
    for other_factor, allowed in level.requires.items():
        if levels[other_factor] not in allowed:
            raise InputError(
                f"environment {name!r}: {factor.name}={levels[factor.name]} requires "
                f"{other_factor} to be {' or '.join(allowed)}, not {levels[other_factor]}",
                remedy=f"set {other_factor}: {allowed[0]} in it, or leave {factor.name} at {factor.reference}",
            )


def complete_levels(matrix: Matrix, chosen: Mapping[str, str], name: str) -> dict[str, str]:
    """Add the reference level of every factor not in ``chosen``. Raises InputError for unknown names."""
    prefix = f"environment {name!r}"
    for factor, level in chosen.items():
        if factor not in matrix.factors:
            raise InputError(f"{prefix}: no factor {factor!r}", remedy=suggestion(factor, matrix.factors))
        if level not in (known_levels := matrix.factors[factor].levels):
            raise InputError(f"{prefix}: {factor} has no level {level!r}", remedy=suggestion(level, known_levels))
    return {factor.name: chosen.get(factor.name, factor.reference) for factor in matrix.factors.values()}


def resolve_environment(matrix: Matrix, name: str, facts: Mapping[str, str]) -> Environment:
    """Resolve a named environment, or a factorial design's cell by its name in reports.

    ``facts`` fills templates such as {physical_cores} (empty: left as written).
    """
    if entry := matrix.environments.get(name):
        return build_environment(matrix, name, entry.levels, facts, entry.description)
    for design in matrix.designs.values():
        if name in (cells := factorial_cells(design)):
            return build_environment(matrix, name, cells[name], facts)
    raise InputError(f"no environment {name!r}", remedy=suggestion(name, matrix.environments))


def build_environment(
    matrix: Matrix, name: str, chosen_levels: Mapping[str, str], facts: Mapping[str, str], description: str = ""
) -> Environment:
    """Build an environment from chosen levels (a factorial design's cell has no entry of its own)."""
    levels = complete_levels(matrix, chosen_levels, name)
    variables: dict[str, str | None] = {}
    preload: list[tuple[str, str]] = []
    claims: dict[str, tuple[str, ...]] = {}
    libraries: list[Library] = []
    bits = [(matrix.factors[factor], matrix.factors[factor].levels[level]) for factor, level in levels.items()]
    for factor, level in bits:
        _check_requires(name, factor, level, levels)
        for variable, value in level.env.items():
            text = None if value is None else _fill_value(name, value, facts)
            _merge_variable(variables, variable, text, f"{factor.name}={levels[factor.name]} of {name!r}")
        library = library_for_level(matrix, factor, levels[factor.name])
        libraries += [library] if library else []
        preload += [(library.key if library else "", item) for item in level.preload]
        for path, allowed in level.claims.items():
            claims[path] = tuple(_fill_value(name, value, facts) for value in allowed)
    quotas = [level.cpu_quota for _, level in bits if level.cpu_quota is not None]
    return Environment(
        name=name,
        description=description,
        levels=levels,
        image=combine_image(matrix, levels),
        variables=variables,
        preload=tuple(sorted(preload, key=_comes_late)),
        claims=parse_claims(claims),
        cpus=_cpu_or_node_list(name, "cpus", [level.cpus for _, level in bits], facts),
        memory_nodes=_cpu_or_node_list(name, "memory_nodes", [level.memory_nodes for _, level in bits], facts),
        srun=_srun_options(name, bits, levels),
        cpu_quota=min(quotas, default=None),
        changes_numerics=any(level.changes_numerics for _, level in bits),
        turns=all(level.turns for _, level in bits) and not quotas,  # a pause would renew the quota
        libraries=tuple(libraries),
        unread=tuple(dict.fromkeys(name for _, level in bits for name in unread_variables(level))),
        own_levels={factor: level for factor, level in levels.items() if level != matrix.factors[factor].reference},
        architectures={
            f"{factor.name}={levels[factor.name]}": level.architectures for factor, level in bits if level.architectures
        },
    )


def is_possible(matrix: Matrix, levels: Mapping[str, str]) -> bool:
    """Return whether an environment can have these levels."""
    try:
        build_environment(matrix, "", levels, {})
    except InputError:
        return False
    return True


def _srun_options(name: str, bits: Sequence[tuple[Factor, Level]], levels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options of srun of all levels. Raises InputError if two levels, or ``cpus``, choose the same."""
    options: dict[str, str | None] = {}
    for factor, level in bits:
        for option, _, value in (word.partition("=") for word in level.srun):
            _merge_variable(options, option, value, f"{factor.name}={levels[factor.name]} of {name!r}")
    if "--cpu-bind" in options and any(level.cpus for _, level in bits):
        raise InputError(
            f"environment {name!r}: `cpus:` and srun's --cpu-bind both choose CPUs", remedy="leave one of them out"
        )
    return tuple(f"{option}={value}" for option, value in options.items())


def _fill_value(name: str, text: str, facts: Mapping[str, str]) -> str:
    """Fill templates. Raises InputError if the machine's facts lack one."""
    filled = fill_templates(text, facts)
    missing_template = unfilled_template(filled) if facts else None
    if missing_template:
        no_gpu = "there is no GPU here next to CPUs that a trial may use, or "
        raise InputError(
            f"environment {name!r}: no value for {{{missing_template}}}: "
            f"{no_gpu if missing_template == 'gpu_cpu_list' else ''}the launcher does not report it for its nodes",
            remedy="write the value itself, or run on a node that has it with --launcher here",
        )
    return filled


def _cpu_or_node_list(name: str, key: str, values: Sequence[str | None], facts: Mapping[str, str]) -> str | None:
    """Return the last level's list of CPUs or nodes with templates filled in. Raises InputError if it is invalid."""
    written = [value for value in values if value]
    text = _fill_value(name, written[-1], facts) if written else None
    if text is not None and "{" not in text:
        try:
            parse_cpus(text)
        except ValueError as error:
            raise InputError(f"environment {name!r}: {key}: {error}") from error
    return text


def _comes_late(item: tuple[str, str]) -> bool:
    """Return False for allocators: OpenMP runtimes allocate while they load, and must find the final malloc."""
    return "malloc" not in item[1]
