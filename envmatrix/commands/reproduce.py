"""``envmatrix reproduce``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from envmatrix.commands import arguments as shared
from envmatrix.commands import bench, common, launching
from envmatrix.commands.grammar import Parser, one_name, percentage
from envmatrix.errors import ExitCode, InputError

if TYPE_CHECKING:
    from envmatrix.pack.comparison import Reproduction
    from envmatrix.pack.rerun import Opened

_UNVOUCHED = (
    "what runs now is the archive's own bench/, on this host and in its environments, "
    "and neither --signers nor --sha256 vouches for it"
)


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    parser.add_argument("archive", type=Path, metavar="ARCHIVE", help="what `envmatrix pack` wrote")
    parser.add_argument("--check", action="store_true", help="only verify the archive and say what is in it")
    parser.add_argument(
        "run_name", nargs="?", type=one_name, metavar="RUN", help="compare with this run, begun from it earlier"
    )
    parser.formerly("--run", "the run as a word behind the archive: ARCHIVE RUN")
    parser.add_argument("--sha256", metavar="HEX", help="the digest that the archive must have")
    parser.add_argument("--signers", type=Path, metavar="FILE", help="allowed signers (ssh-keygen); others are refused")
    parser.add_argument(
        "--tolerance",
        type=percentage,
        default=0.05,
        metavar="PERCENT",
        help="effects this close agree (default: 5%%)",
    )
    parser.add_argument("--rebuild", action="store_true", help="build images here even if they are in the archive")
    shared.add_results(parser)
    launching.add_launcher(parser)
    shared.add_answer(parser)
    parser.examples(
        "envmatrix reproduce run.tar.gz --check", "envmatrix reproduce run.tar.gz --signers allowed_signers --rebuild"
    )


def run(arguments: argparse.Namespace) -> int:
    """Verify, rebuild, run the plan again, and say which effects were found again."""
    from envmatrix.errors import StoreError, Where
    from envmatrix.images.cache import file_digest
    from envmatrix.pack.manifest import summary_of
    from envmatrix.pack.rerun import open_pack

    archive: Path = arguments.archive
    if not archive.is_file():
        raise InputError(f"there is no archive {archive}", remedy="make one with `envmatrix pack`")
    if arguments.sha256 and file_digest(archive) != arguments.sha256.lower().removeprefix("sha256:"):
        raise StoreError("the archive has another sha256", where=Where(archive), remedy="get it again")
    pack = open_pack(archive, arguments.results / f"packed-{file_digest(archive)[:12]}", arguments.signers)
    common.say_to_stderr(f"{archive}: {len(pack.manifest.files)} files are as promised; {pack.signed}")
    if arguments.check:
        if arguments.json:
            common.print_json({**summary_of(pack.manifest), "signed": pack.signed})
        return ExitCode.FINE
    return _again(pack, arguments, arguments.tolerance)


def _again(pack: Opened, arguments: argparse.Namespace, tolerance: float) -> int:
    """Run the plan of a pack here, or take the run that was named, and compare."""
    import json

    from envmatrix.launchers.catalog import LAUNCHERS
    from envmatrix.pack.comparison import reproduction
    from envmatrix.pack.rerun import begin_again, built_images, was_begun_from
    from envmatrix.report.write import write_reports
    from envmatrix.store import write_whole
    from envmatrix.trials.experiment import reopen

    code = ExitCode.FINE
    if arguments.run_name:
        folder = common.find_run(arguments.results, arguments.run_name)
        if not was_begun_from(pack, folder.load()):
            raise InputError(f"run {arguments.run_name} was not begun from this archive")
        experiment = reopen(folder, pack.folder / "matrix.yaml", common.say_to_stderr)
    else:
        if not (arguments.signers or arguments.sha256):
            common.say_to_stderr(_UNVOUCHED)
        kind = LAUNCHERS.make(arguments.launcher)
        experiment = begin_again(
            pack, arguments.results, common.say_to_stderr,
            lambda matrix, design, engines, asked: bench.place(kind, matrix, design, engines, asked),
            launcher=kind.name, asked=launching.asked_of(kind, arguments), rebuild=arguments.rebuild,
        )  # fmt: skip
        ended = bench.measure(experiment, quiet=arguments.quiet)
        write_reports(experiment.folder, say=common.say_to_stderr)
        code = bench.end(experiment, ended)
        if code in (ExitCode.INTERRUPTED, ExitCode.NOTHING_RAN):
            common.say_to_stderr(f"then: envmatrix reproduce {arguments.archive} {experiment.run.name}")
            return code
    found = reproduction((pack.run, experiment.folder), pack.manifest.images, built_images(experiment), tolerance)
    write_whole(experiment.folder.path / "reproduction.json", json.dumps(found.to_json(), indent=1) + "\n")
    if arguments.json:
        common.print_json(found.to_json())
    else:
        common.print_text(describe(found))
    failed = any(item.answer == "not reproduced" for item in found.effects)
    return ExitCode.SOME_FAILED if failed else code


def describe(found: Reproduction) -> str:
    """Write the answer for people: what differs, then every effect with both intervals."""
    from envmatrix.printable import clean

    lines = [f"{found.first.name} (packed) and {found.second.name} (here)", ""]
    lines += ["what differs:" if found.differences else "nothing differs in machine, images and environments"]
    lines += [f"  {item}" for item in found.differences]
    width = max((len(item.environment) for item in found.effects), default=0)
    lines += ["", f"{'effect':{width}}  {'packed':24}  {'here':24}  answer"]
    for item in found.effects:
        then, now = _interval(item.first), _interval(item.second)
        lines.append(f"{item.environment:{width}}  {then:24}  {now:24}  {item.answer}")
    lines += ["", f"reproduced: the two effects surely differ by less than {found.tolerance:.0%}; "
              "not reproduced: they surely differ; undecided: neither is sure"]  # fmt: skip
    return "\n".join(map(clean, lines))  # a pack may come from anybody


def _interval(effect: object) -> str:
    from envmatrix.stats.effects import Effect

    if not isinstance(effect, Effect) or effect.ratio is None:
        return "not measured"
    if effect.low is None or effect.high is None:
        return f"{effect.ratio:.3f} (too few blocks)"
    return f"{effect.ratio:.3f} [{effect.low:.3f}, {effect.high:.3f}]"
