"""Engine ``apptainer``: one SIF per image, made of the Docker image's bits, or of a definition without Docker."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envmatrix.build.archive import docker_archive, rooted
from envmatrix.build.cache import digest_of, disk_errors, disk_full, file_digest, file_stamp, has_stamp, is_disk_full
from envmatrix.build.context import Base, bench_digest, context_facts, gather, write_context
from envmatrix.build.definitions import ROOM, definition, named_definition
from envmatrix.build.file_listing import OF_ENGINES, keep_listing, listing_argv
from envmatrix.build.labels import publisher_labels
from envmatrix.build.paths import Places
from envmatrix.build.sbom import PACKAGES
from envmatrix.engines import sbom_files
from envmatrix.engines.apptainer_command import (
    OF_THE_HOST,
    WORK,
    exec_argv,
    find_program,
    groups_seen,
    host_variables,
    identity,
    lacks_privilege,
    needs_namespace,
    other_user,
    rights,
)  # fmt: skip
from envmatrix.engines.base import CommandLine, Engine, Job, Mounts, NamedImage, Prepared
from envmatrix.engines.base_images import bootstrapped_base
from envmatrix.engines.build_record import inputs_digest, prepared_from, recorded
from envmatrix.engines.confinement import InGroups, plain_place
from envmatrix.engines.docker import DockerEngine, let_write
from envmatrix.engines.docker_client import why_not
from envmatrix.engines.local import GuardedJob, guarded_job, plain_name, sweep_groups
from envmatrix.engines.ready import prepared_ready
from envmatrix.engines.ready_sif import ARCHIVE, ready_sif
from envmatrix.errors import EngineError, EnvmatrixError
from envmatrix.plan.environment import Environment, Image, Library
from envmatrix.plan.export import quoted, started
from envmatrix.system.process import Exit, Finished, run
from envmatrix.system.progress import ProgressCallback

_BUILD_S = 3600.0
#: A trial unpacks what it reads of its SIF anew: importing torch takes a third of a second longer from zstd than from
#: lz4, which is as fast as no compression at all and a third larger than zstd. So images are lz4, and SIFs that are
#: handed out zstd at level 1; both are packed several times faster than with the default, gzip. All files have one
#: owner, so that a user namespace (which knows one user) can unpack them again for a named SIF.
_SQUASH = "-comp lz4 -all-root"
#: SIFs that are made in another way are others: how files are packed, and the name of their archive.
_MADE = (_SQUASH, ARCHIVE)
_SQUASH_NAMED = "-comp zstd -Xcompression-level 1 -all-root"
#: What building takes at most beside its result. From a Docker image: its archive, Apptainer's copy of that, its files.
#: From a SIF: its files (three to four times a SIF of this compression), and the new SIF.
_COPIES_OF_IMAGE, _COPIES_OF_SIF = 4, 6
#: What a SIF's folder says of its files depends on how they are listed.
_LISTED = listing_argv("", "/", OF_ENGINES)
_BENCH = f"""
import sys
sys.path.insert(0, {ROOM!r})
try:
    from bench import digest
    print(digest.bench_digest())
except ImportError:
    pass
"""
#: What unshare(1) says where it may not, and Apptainer of a root that has not all of root's capabilities.
_NO_NAMESPACE = re.compile(r"unshare: .*failed|Requesting capability set 0x\w+ while permitted")
_LOADER = "import subprocess; print(subprocess.run(['/sbin/ldconfig', '-p'], capture_output=True, text=True).stdout)"


@dataclass(frozen=True)
class ContainerJob(GuardedJob):
    """A job in a container."""

    def exit(self) -> Exit:
        """Wait for its end and return how it ended: a death by signal N is Apptainer's exit status 128 + N."""
        ended = super().exit()
        return replace(ended, code=-(ended.code - 128)) if ended.code > 128 else ended


@dataclass(frozen=True)
class ApptainerEngine(InGroups, Engine):
    """Runs trials from SIFs, as an ordinary user does on a cluster."""

    places: Places
    name: str = "apptainer"
    preference = 2
    starts_packed = True

    @property
    def isolation(self) -> str:
        """A trial is kept from the machine, by more or less depending on who starts it."""
        return f"trials have no network, no capabilities and {rights()}; seccomp is off"

    def unavailable(self) -> str | None:
        """Say why Apptainer cannot be used here, or None when it can."""
        if find_program() is None:
            return (
                "neither apptainer nor singularity is on PATH: https://apptainer.org/docs/admin/main/installation.html"
            )
        if not Path("/proc/self/ns/user").exists():
            return "this kernel has no user namespaces"
        return None

    def prepare(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build the image's SIF, or find it built."""
        if image.ready:
            return self._ready(image, libraries, progress)
        key = inputs_digest(self.places, image, libraries, "apptainer", *_MADE)
        build_record = self.places.cache.root / "prepared" / f"apptainer-{key[:24]}.json"
        known = prepared_from(self.places.cache.read_json(build_record))
        if known and self.holds(known) and self.bill_file(known).exists():
            return known
        if known and not self.holds(known):
            shutil.rmtree(Path(known.reference).parent, ignore_errors=True)
        if why_not() is None:
            prepared = self._from_docker(DockerEngine(self.places).prepare(image, libraries, progress), progress)
        else:
            prepared = self._alone(image, libraries, progress)
        self.places.cache.write(build_record, json.dumps(recorded(prepared)))
        return prepared

    def _ready(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        def inside(argv: Sequence[str], mounted: Mapping[str, str]) -> str:
            binds = [word for place, path in mounted.items() for word in ("--bind", f"{path}:{place}:ro")]
            return self._said(Path(found[0]), argv, binds)

        found = ready_sif(self.places.cache, image, self._sif, self._build, progress)
        return prepared_ready(self.places, self.name, image, libraries, found, inside, progress)

    def _from_docker(self, prepared: Prepared, progress: ProgressCallback) -> Prepared:
        docker = DockerEngine(self.places)
        sif = self._sif(prepared.facts["image_id"])

        def build(place: Path) -> None:
            progress(f"making a SIF of {prepared.reference}")
            room = _COPIES_OF_IMAGE * docker.image_bytes(prepared)
            with self.places.cache.quick_scratch("sif", room) as scratch:
                docker.save(prepared, scratch / ARCHIVE)
                self._build(place / "image.sif", f"docker-archive:{ARCHIVE}", scratch)

        digest, stamp = self._made(sif, prepared.python, build)
        facts = {**prepared.facts, "files_digest": digest, "sif_from": "docker archive"}
        return replace(prepared, engine=self.name, reference=str(sif), facts=facts, stamp=stamp)

    def _made(self, sif: Path, python: str, build: Callable[[Path], None]) -> tuple[str, str]:
        """Build a SIF in a folder, or find it built; return what its files' digest and its stamp were then."""

        def build_and_look(place: Path) -> None:
            build(place)
            (place / "files_digest").write_text(self._files_digest(place / sif.name, python), encoding="ascii")
            (place / "stamp").write_text(file_stamp(place / sif.name), encoding="ascii")

        self.places.cache.folder(sif.parent, build_and_look)
        digest, stamp = ((sif.parent / name).read_text(encoding="ascii") for name in ("files_digest", "stamp"))
        return digest, stamp

    def _sif(self, digest: str) -> Path:
        return self.places.cache.root / "sif" / digest_of(digest, *_MADE, _LISTED)[:24] / "image.sif"

    def _alone(self, image: Image, libraries: tuple[Library, ...], progress: ProgressCallback) -> Prepared:
        """Build from a definition, on a base made by mmdebstrap: no Docker is needed."""
        base, tar = bootstrapped_base(image, self.places, progress)
        made = gather(self.places, image, libraries, base, progress)
        sif = self._sif(made.key)

        def build(place: Path) -> None:
            progress(f"building a SIF of {image.name} from its definition (no Docker here)")
            with self.places.cache.scratch("context") as scratch:
                write_context(made, self.places.bench, scratch / "context")
                rooted(tar, scratch / "rooted.tar")
                docker_archive(scratch / "rooted.tar", scratch / "base.tar", base.reference)
                said = made.build_arguments(bench_digest(self.places))
                self._build_definition(place / "image.sif", definition(None, made.recipe()), scratch, said)

        digest, stamp = self._made(sif, made.python, build)
        loader = self._inside(sif, made.python, _LOADER)
        names = frozenset(line.split()[0] for line in loader.splitlines()[1:] if " => " in line)
        packages = self._inside(sif, made.python, PACKAGES)
        facts = {**context_facts(made), "files_digest": digest, "sif_from": "definition"}
        prepared = Prepared(
            image.name, self.name, str(sif), made.python, made.libraries(), facts, made.folders.missing, names,
            stamp=stamp,
        )  # fmt: skip
        sbom_files.write_bill(self.places.cache, prepared, packages, made)
        return prepared

    def bill_file(self, prepared: Prepared) -> Path:
        """Return where the image's CycloneDX bill of materials lies."""
        return sbom_files.bill_file(self.places.cache, prepared)

    def base(self, image: Image, progress: ProgressCallback) -> Base:
        """Return what an image starts from: Docker's base where Docker is, else one made here."""
        if why_not() is None:
            return DockerEngine(self.places).base(image, progress)
        return bootstrapped_base(image, self.places, progress)[0]

    def _build_definition(self, sif: Path, text: str, scratch: Path, said: Mapping[str, str]) -> None:
        (scratch / "image.def").write_text(text, encoding="utf-8")
        given = {"BOOTSTRAP": "docker-archive", "FROM": "base.tar", "CONTEXT": "context", **said}
        arguments = [word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")]
        self._build(sif, "image.def", scratch, arguments)

    def _build(self, sif: Path, source: str, scratch: Path, more: Sequence[str] = (), squash: str = _SQUASH) -> None:
        """Build a SIF of what lies in ``scratch``: a SIF names what it was built from, so folders go unsaid."""
        program = find_program() or "apptainer"
        steps = not source.startswith("docker-archive:")
        prefix = ["unshare", "--user", "--map-root-user"] if steps and lacks_privilege() else []
        argv = [*prefix, program, "build", "--force", f"--mksquashfs-args={squash}", *more, str(sif), source]
        folders = {"APPTAINER_TMPDIR": str(scratch), "APPTAINER_CACHEDIR": str(scratch / "cache")}
        done = run(argv, limit_s=_BUILD_S, env={**os.environ, **folders}, cwd=scratch)
        if not done.exit.ok:
            raise _build_error(done, sif)

    def image_file(self, prepared: Prepared) -> Path:
        """Return the SIF."""
        return Path(prepared.reference)

    def build_named(
        self, environment: Environment, libraries: tuple[Library, ...], folder: Path, progress: ProgressCallback
    ) -> NamedImage:
        """Write the stand-alone SIF of a named environment into ``folder``, its bill beside it."""
        target = folder / f"{environment.name}.sif"
        if why_not() is None:
            prepared = self._from_docker(
                DockerEngine(self.places).prepare_current(environment.image, libraries, progress), progress
            )
        else:
            prepared = self.prepare(environment.image, libraries, progress)
        held = self._inside(Path(prepared.reference), prepared.python, _BENCH).strip()
        if held and held != bench_digest(self.places):
            progress(f"{target.name} holds an older bench/ than this checkout; its record says which")
        progress(f"building {target} on the SIF of {prepared.image}")
        room = _COPIES_OF_SIF * Path(prepared.reference).stat().st_size
        with self.places.cache.quick_scratch("named", room) as scratch:
            (scratch / "image.sif").symlink_to(prepared.reference)
            text = named_definition(environment, "image.sif", publisher_labels(folder))
            (scratch / "named.def").write_text(text, encoding="utf-8")
            built = scratch / "named.sif"
            self._build(built, "named.def", scratch, (), _SQUASH_NAMED)
            with disk_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                beside = target.with_name(f".{target.name}.{os.getpid()}")
                try:
                    shutil.copyfile(built, beside)
                    beside.chmod(0o755)
                    beside.replace(target)
                finally:
                    beside.unlink(missing_ok=True)
        bill = target.with_name(f"{target.name}.sbom.json")
        sbom_files.lay_beside(self.places.cache, prepared, bill, target.name, f"sha256:{file_digest(target)}")
        options = "--userns " if lacks_privilege() or needs_namespace() else ""
        return NamedImage(str(target), f"apptainer run {options}{target}")

    def _files_digest(self, sif: Path, python: str) -> str:
        return keep_listing(self.places.cache, self._said(sif, listing_argv(python, "/", OF_ENGINES)))

    def _inside(self, sif: Path, python: str, code: str) -> str:
        return self._said(sif, [python, "-I", "-c", code]).strip()

    def _said(self, sif: Path, command: Sequence[str], binds: Sequence[str] = ()) -> str:
        options = ["--containall", "--cleanenv", "--no-home", "--no-privs", *identity(), *binds]
        argv = [find_program() or "apptainer", "--silent", "exec", *options, str(sif), *command]
        done = run(argv, limit_s=600.0)
        if not done.exit.ok:
            raise EngineError(
                f"the SIF does not start: {done.last_words(3)}", remedy="`apptainer --debug exec` says more"
            )
        return done.stdout

    def inside(self, mounts: Mounts) -> Mapping[str, str]:
        """Return the paths inside the container."""
        return {"work": WORK, **{name: f"{ROOM}/{name}" for name in mounts.read}}

    def holds(self, prepared: Prepared) -> bool:
        """Whether the SIF is still there, and the one that was made."""
        return has_stamp(Path(prepared.reference), prepared.stamp)

    def run(self, job: Job) -> Exit:
        """Run ``job`` in a container; nothing of it is left running afterwards."""
        with self.started(job) as running:
            return running.exit()

    @contextlib.contextmanager
    def started(self, job: Job) -> Iterator[ContainerJob]:
        """Start ``job`` in a container."""
        marker = self._markers / marker_name(job)
        with disk_errors(marker):
            marker.mkdir(parents=True, exist_ok=True)
        if user := other_user():
            let_write(job.mounts.work, user, made_here=job.mounts.work.is_relative_to(self.places.cache.root))
        argv = exec_argv(job, find_program() or "apptainer", (*identity(), *groups_seen(job.limits)), marker)
        try:
            with guarded_job(job, argv, host_variables()) as running:
                yield ContainerJob(running.program, running.confinement)
        finally:
            self._end(marker.name)

    @property
    def _markers(self) -> Path:
        return self.places.cache.root / "work" / "apptainer"

    def _end(self, marker: str) -> int:
        """Kill what still runs under a marker, and remove the marker."""
        left = marked_processes(f"{self._markers}/{marker}")
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        for folder in self._markers.glob(f"{marker}*"):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return len(left)

    def command_line(self, job: Job) -> CommandLine:
        """Return ``job`` as a command; its variables are set inside the container, so its own ``env`` is empty."""
        argv = exec_argv(job, "apptainer", identity())
        if owner := other_user():
            argv = ["sh", "-c", f'chown -R {owner} . 2>/dev/null; exec "$@"', "sh", *argv]
        needs = (Path(job.prepared.reference), *map(Path, job.prepared.mounted.values()))
        return CommandLine(tuple(argv), {}, job.mounts.work, OF_THE_HOST, plain_place(job.limits), needs)

    def script_lines(
        self, prepared: Prepared, variables: Mapping[str, str | None], placement: str, program: Sequence[str] = ()
    ) -> list[str]:
        """Return shell lines that start a program in the SIF with nothing set but ``variables``."""
        verb = "exec --userns" if lacks_privilege() else "exec"
        return [
            f"image={quoted(prepared.reference)}  # copy it to a file system that the nodes see, and change this",
            "# --cleanenv: only what is set here gets in. --nv: gives the container this node's GPUs.",
            f'exec {placement}apptainer {verb} --cleanenv --bind "$PWD" --pwd "$PWD" \\',
            '  $(command -v nvidia-smi >/dev/null && echo --nv) "$image" /usr/bin/env \\',
            *(f"  -u {name} \\" for name, value in variables.items() if value is None),
            *(f"  {quoted(f'{name}={value}')} \\" for name, value in variables.items() if value is not None),
            f"  {started(prepared.python, program)}",
        ]

    def sweep(self, run: str) -> int:
        """Kill the containers that a killed run left behind, and remove its cgroups."""
        return self._end(f"{plain_name(run)}.") + sweep_groups(run)


def marker_name(job: Job) -> str:
    """Return the name of a job's marker folder: run, then trial."""
    return f"{plain_name(job.run)}.{plain_name(job.label)}"


def marked_processes(marker: str) -> list[int]:
    """Return the processes in whose mount table a marker folder (or one whose path begins so) stands.

    A container's process is no child of Apptainer's once that was killed, and its command line and variables
    are the job's own: its mounts are what still says where it came from (proc_pid_mountinfo(5)).
    """
    found = []
    for table in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            text = table.read_text(encoding="utf-8", errors="replace")
            if any(_mounted(line, marker) for line in text.splitlines()):
                found.append(int(table.parent.name))
    return found


def _mounted(line: str, marker: str) -> bool:
    words = line.split(" ")
    return len(words) > 4 and words[4].endswith("/mnt") and _tail(marker) in words[3]


def _tail(marker: str) -> str:
    """Return the last two parts of a path: a mount's root is relative to its own file system."""
    return "/" + "/".join(marker.split("/")[-2:])


def _build_error(done: Finished, sif: Path) -> EnvmatrixError:
    said = done.stderr + done.stdout
    if _NO_NAMESPACE.search(said):  # first: what is beyond the limit of namespaces is "no space left" too
        return EngineError(
            f"apptainer could not build {sif.name}: this root lacks CAP_SYS_RESOURCE and may make no user namespace",
            remedy="start the container with --cap-add SYS_RESOURCE, or allow namespaces on its host: "
            "sysctl user.max_user_namespaces=15000",
        )
    if is_disk_full(said):
        return disk_full(sif.parent)
    wrong = [line for line in said.splitlines() if line.startswith(("FATAL", "E:", "ERROR"))]
    return EngineError(
        f"apptainer could not build {sif.name}: {'; '.join(wrong[-3:]) or done.last_words(3)}",
        remedy="`envmatrix doctor` says what this machine lacks; a base that lacks a package: `envmatrix lock`",
    )
