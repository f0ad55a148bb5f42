"""The text of a block's batch script: a pure function, so that what runs on a node can be read and tested."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envmatrix.engines.base import CommandLine
from envmatrix.launchers.slurm import multi_node, node_checks, turns
from envmatrix.matrix import Slurm
from envmatrix.plan.export import posix_quote

#: Seconds a job may take beyond the sum of its trials' limits: start, images read for the first time, the end.
_SLACK_S = 120.0
_LONG_PADDING = re.compile(r"([A-Za-z_]\w*=)(x{32,})\Z")
CANNOT_WRITE, NO_MODULE, NO_PIPES, NOT_SEEN, OTHER_NODE, BUSY = 66, 67, 68, 69, 75, 76
#: Exit statuses of a script that stopped by itself, and what they mean.
STOPPED: Mapping[int, str] = {
    CANNOT_WRITE: "the node cannot write to the results folder",
    NO_MODULE: "the node cannot load a module that was asked for (the job's log has its words)",
    NO_PIPES: "the results folder's file system has no named pipes, which turns need: write `schedule: sequential`",
    NOT_SEEN: "the node does not see a file that the trials need",
    OTHER_NODE: "the job started again on another node than the one that began its block",
    BUSY: "others use more of the node than `busy` allows",
}


@dataclass(frozen=True)
class Step:
    """One trial of a block: ``limit_s`` is its time limit in seconds, ``nodes`` how many it is spread over.

    ``program`` is the folder of the user's own program, its path inside the environment, and its metric file. Of one
    that takes turns ``held`` are the processes that the script stops between them ('': none, the trial does so itself),
    and ``apart`` how many steps of each turn count in nothing.
    """

    trial: str
    title: str
    command: CommandLine
    limit_s: float
    nodes: int = 1
    program: tuple[Path, str, str] | None = None
    held: Literal["", "session", "container"] = ""
    apart: int = 0


@dataclass(frozen=True)
class Together:
    """Trials that live together and take turns of ``turn`` steps (0: of all they have, once).

    ``name`` is the folder that has them when all ended. ``orders`` are the rounds, each the places (from 1) of
    ``steps`` in the order of their turns; after the last one comes the first. If a node has less than ``needs`` bytes
    of memory free, they run one after the other.
    """

    name: str
    steps: tuple[Step, ...]
    turn: int
    needs: int
    orders: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class BlockJob:
    """What one batch job does, in this order. ``folder`` is the block's folder on the shared file system.

    ``variables`` are those of the script itself (PATH and HOME of whoever submits). ``node`` pins the job to the
    node (or nodes, with commas between them) that began the block, ``avoid`` names nodes that failed.
    """

    job_name: str
    title: str
    folder: Path
    attempt: int
    parts: tuple[Step | Together, ...]
    options: Slurm
    variables: Mapping[str, str]
    node: str = ""
    avoid: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of its trials."""
        return tuple(step for part in self.parts for step in (part.steps if isinstance(part, Together) else (part,)))

    @property
    def in_turns(self) -> bool:
        """Whether some of them take turns."""
        return any(isinstance(part, Together) for part in self.parts)

    @property
    def nodes(self) -> int:
        """How many nodes the job takes: as many as the trial that is spread the widest."""
        return max((step.nodes for step in self.steps), default=1)


def block_script(job: BlockJob) -> str:
    """Return the POSIX shell script that runs a block's trials one after the other on one node.

    Every trial runs in a folder of its own that gets its final name, in one rename, only when its record and its
    end are in it. Raises InputError for a newline in any value: no line of a script could hold it safely.
    """
    needs = sorted({str(path) for step in job.steps for path in step.command.needs})
    many = "one node" if job.nodes == 1 else f"up to {job.nodes} nodes"
    how = "some in turns" if job.in_turns else "one after the other"
    lines = [
        "#!/bin/sh",
        f"# {_plain(job.title)}; attempt {job.attempt}: {len(job.steps)} trial(s), {how}, on {many}.",
        *directives(job, job.nodes, time_limit_s(job)),
        "set -u",
        *(f"export {name}={posix_quote(value)}" for name, value in job.variables.items()),
        f"folder={posix_quote(str(job.folder))}",
        f"attempt={job.attempt}",
        "trap 'exit 143' TERM  # the job itself is ending: what runs now is not finished",
        "stops=0",
        "trap 'stops=$((stops + 1))' CONT  # it was suspended, and so was the trial that ran",
        _FUNCTIONS.strip("\n"),
        node_checks.functions(job.nodes),
        *([multi_node.FUNCTIONS.strip("\n"), multi_node.NAMES] if job.nodes > 1 else []),
        *([turns.FUNCTIONS.strip("\n")] if job.in_turns else []),
        'begin "$@"',
        *(f"load {posix_quote(name)}" for name in job.options.modules),
        "there() {  # that every node sees what the trials need",
        "  :",
        *(f"  {line}" for line in _checked(job.nodes, needs)),
        "}",
        "there",
        node_checks.call(job.nodes, 100 if job.options.busy is None else round(100 * job.options.busy)),
    ]
    for part in job.parts:
        lines += ["", *(_together(part) if isinstance(part, Together) else [f"# {_plain(part.title)}", _trial(part)])]
    return "\n".join([*lines, "", "tidy", "forget", 'say "all trials of this job are done"', ""])


def time_limit_s(job: BlockJob) -> float:
    """Return the job's time limit: the one asked for, or what its trials may take at most.

    Trials that take turns do the same work, side by side or in turns; one that never gets ready, or never ends, is
    waited for as long as that may take once more.
    """
    times = sum(sum(step.limit_s for step in part.steps) for part in job.parts if isinstance(part, Together))
    return job.options.time or sum(step.limit_s for step in job.steps) + times + _SLACK_S


def most_seconds(trials: int, in_turns: int, limit_s: float) -> float:
    """Return the time limit of a job of so many trials, some in turns, each of the same limit."""
    return (trials + in_turns) * limit_s + _SLACK_S


def directives(job: BlockJob, nodes: int, seconds: float) -> list[str]:
    """Return the #SBATCH lines; no path stands in them, so nothing in them needs Slurm's own quoting."""
    options = job.options
    asked = [
        ("job-name", job.job_name), ("nodes", str(nodes)), ("ntasks", str(nodes)), ("exclusive", None),
        ("mem", "0" if options.memory is None else f"{max(1, options.memory // 2**20)}M"),
        ("time", slurm_time(seconds)),
        ("chdir", "/"), ("output", "/dev/null"), ("export", "ALL"), ("requeue", None),
    ]  # fmt: skip
    given = [
        ("partition", options.partition), ("account", options.account), ("constraint", options.constraint),
        ("gres", f"gpu:{options.gpus}" if options.gpus else None), ("nodelist", job.node or None),
        ("exclude", ",".join(job.avoid) or None),
    ]  # fmt: skip
    asked += [(name, value) for name, value in given if value]
    lines = [f"#SBATCH --{name}" + ("" if value is None else f"={value}") for name, value in asked]
    return [*lines, *(f"#SBATCH {option}" for option in options.options)]


def _checked(nodes: int, needs: list[str]) -> list[str]:
    """Return the lines that check, before any trial and when one failed, that every node sees what the trials need."""
    if nodes == 1:
        return [f"need {posix_quote(path)}" for path in needs]
    return [" ".join([f"need_everywhere {nodes}", *(posix_quote(path) for path in needs)])]


def slurm_time(seconds: float) -> str:
    """Write a duration as Slurm reads it, rounded up to whole minutes: 5400 -> 1:30:00."""
    minutes = max(1, -(-int(seconds) // 60))
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def _plain(text: str) -> str:
    return re.sub(r"[^ -~]", "?", text)


def _trial(step: Step) -> str:
    start = "trial" if step.nodes == 1 else f"trial_over {step.nodes}"
    call = f"{start} {posix_quote(step.trial)} {_limit(step)} {posix_quote(str(step.command.cwd))}"
    return "\n".join([*_program(step), " \\\n  ".join([call, *_words(step.command)])])


def _together(part: Together) -> list[str]:
    lines = []
    for place, step in enumerate(part.steps, 1):
        work = posix_quote(str(step.command.cwd))
        facts = [
            f"name={posix_quote(step.trial)} work={work} apart={step.apart} held={step.held}",
            *_program(step),
        ]
        lines += [
            f"# {_plain(step.title)}",
            *(f"facts_{place}() {{", *(f"  {line}" for line in facts), "}"),
            *(f"member_{place}() {{", "  " + " \\\n    ".join(['"$@"', *_words(step.command)]), "}"),
        ]
    counts = f"{_limit(part.steps[0])} {part.needs} {part.turn} {len(part.steps)}"
    return [*lines, f"turns {posix_quote(part.name)} {counts} {posix_quote(turns.orders_text(part.orders))}"]


def _limit(step: Step) -> int:
    return max(1, round(step.limit_s))


def _program(step: Step) -> list[str]:
    return [f"program {' '.join(posix_quote(str(path)) for path in step.program)}"] if step.program else []


def _words(command: CommandLine) -> list[str]:
    return [
        *([shlex.join(command.prefix)] if command.prefix else []),
        " ".join(["env -i", '"ENVMATRIX_TRIAL=$mark"', *(f'${{{name}+"{name}=${name}"}}' for name in command.keep)]),
        *(_word(f"{name}={value}") for name, value in command.env.items()),
        " ".join(_word(word) for word in command.argv),
    ]


def _word(text: str) -> str:
    """Quote a word; the padding of an environment, up to 4 KiB of one letter, is written by its length."""
    padding = _LONG_PADDING.match(text)
    return f'{padding[1]}"$(padding {len(padding[2])})"' if padding else posix_quote(text)


_FUNCTIONS = r"""
say() { echo "$(date '+%Y-%m-%d %H:%M:%S') $node: $*"; }
padding() { printf "%${1}s" '' | tr ' ' x; }
uptime_s() { read -r up idle </proc/uptime && echo "$up"; }
ooms() {  # how many processes of this job's control group were killed for memory so far
  while IFS=: read -r number kind path; do
    case $kind in
      memory) events=/sys/fs/cgroup/memory$path/memory.oom_control ;;
      '') events=/sys/fs/cgroup$path/memory.events ;;
      *) continue ;;
    esac
    [ -r "$events" ] || continue
    while read -r key value; do [ "$key" = oom_kill ] && echo "$value" && return; done <"$events"
  done </proc/self/cgroup
  echo 0
}
overwrite() { printf '%s\n' "$2" >"$1"; }
append() { printf '%s\n' "$2" >>"$1"; }
insist() {  # COMMAND...: a folder that cannot be written for a moment (it is read-only) is waited for, a minute
  tries=0
  until "$@" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" != 1 ] || say "this failed, and is tried again: $*"
    [ "$tries" -lt 60 ] || exit 66
    sleep 1
  done
}
carriers() { grep -lszxE "ENVMATRIX_TRIAL=$mark(/[0-9]+)?" /proc/[0-9]*/environ; }
starting() {  # whether a program is in the middle of its start: its variables (the 51st word: their end) come last
  for file in $(grep -Lsz '' /proc/[0-9]*/environ); do
    file=${file%/environ}
    [ -e "$file/exe" ] && read -r line <"$file/stat" || continue
    set -- ${line##*) }
    [ "${49:-1}" != 0 ] || return 0
  done 2>/dev/null
  return 1
}
tidy() {  # what an earlier trial of this job left running is ended; $left: how many processes
  left=0 tries=0 ended=
  while found=$(carriers); [ -n "$found" ] || starting || { found=$(carriers); [ -n "$found" ]; }; do
    [ "$tries" -lt 50 ] || break
    for file in $found; do
      file=${file%/environ}
      case "$ended " in *" $file "*) ;; *) ended="$ended $file" left=$((left + 1)) ;; esac
      kill -s KILL "${file#/proc/}" 2>/dev/null
    done
    tries=$((tries + 1))
    sleep 0.1
  done
  [ "$left" = 0 ] || say "$left processes of an earlier trial still ran and were ended"
}
put() {  # FILE TEXT: the file is whole or absent
  insist overwrite ".$1.$attempt" "$2"
  insist mv -f ".$1.$attempt" "$1"
}
begin() {
  node=${nodes:-${SLURMD_NODENAME:-$(uname -n)}} job=${SLURM_JOB_ID:-none} restarts=${SLURM_RESTART_COUNT:-0}
  mark=slurm/$job/$$
  cd "$folder" 2>/dev/null || exit 66
  insist touch "job-$attempt.log"
  exec </dev/null >>"job-$attempt.log" 2>&1
  say "job $job begins, attempt $attempt, restart $restarts"
  put "begun-$attempt" "{\"job\":\"$job\",\"node\":\"$node\",\"epoch\":$(date +%s),\"restarts\":$restarts}"
  if [ -e node ] && read -r home <node && [ "$home" != "$node" ]; then
    say "this block belongs to node $home"
    put "stopped-$attempt" "75 $node"
    exit 75
  fi
}
load() {  # MODULE; the files of modules rarely bear `set -u`
  set +u
  command -v module >/dev/null 2>&1 || . /etc/profile
  module load "$1" || { put "stopped-$attempt" "67 $node $1"; exit 67; }
  set -u
}
need() {
  [ -e "$1" ] && return
  say "$1 is not there"
  put "stopped-$attempt" "69 $node $1"
  exit 69
}
program() {  # FOLDER INSIDE METRIC: the next trial runs what is in that folder, which its process sees at INSIDE
  program=$1 inside=$2 metric=$3
}
lay_out() {  # FOLDER INSIDE WORK METRIC: its entries appear in WORK, where the program may also write
  for entry in "$1"/* "$1"/.[!.]*; do
    [ -e "$entry" ] || continue
    if [ "${4%%/*}" = "${entry##*/}" ]; then  # what an earlier start wrote there must not be taken for this trial's
      [ -d "$entry" ] || continue
      mkdir "$3/${entry##*/}" || exit 66
      case $4 in
        */*) lay_out "$entry" "$2/${4%%/*}" "$3/${4%%/*}" "${4#*/}" ;;
        *) lay_out "$entry" "$2/$4" "$3/$4" '' ;;
      esac
    elif [ -f "$entry" ] && [ ! -L "$entry" ] && [ -r "$entry" ] && [ "$(wc -c <"$entry")" -le 1048576 ]; then
      cp -p "$entry" "$3/" || exit 66
    else
      ln -s "$2/${entry##*/}" "$3/${entry##*/}" || exit 66
    fi
  done
}
link_program() {
  lay_out "$program" "$inside" "$work" "$metric"
  rm -f "$work/record.json" || exit 66
}
launch() {  # COMMAND...: in its work folder, on this node or on the first $over ones
  if [ "${over:-1}" != 1 ]; then
    launch_over "$@"
    return
  fi
  (cd "$work" && exec timeout --kill-after=5 "$limit" "$@") >"$try/log" 2>&1
  status=$?
}
fresh() { rm -rf "$try" && mkdir -p "$work"; }
once() {  # COMMAND...: the trial, in a new folder
  tidy
  before=$((before + left))
  insist fresh
  [ -z "${program:-}" ] || link_program
  insist append starts "$name $attempt $restarts $job $node"
  stops=0 killed=$(ooms) epoch=$(date +%s) from=$(uptime_s)
  launch "$@"
  to=$(uptime_s)
  [ "$status" -le 128 ] || sleep 2  # if the job is being ended, its own signal comes now
  out_of_memory=$(($(ooms) - killed))
}
spoilt() {  # whether what happened to the trial was none of its own doing
  why="it was suspended while it ran"
  [ "$stops" = 0 ] || return 0
  why="its folder cannot be written"
  [ "$status" != 0 ] && ! touch "$folder/$try/end" 2>/dev/null  # by its path, as the trial
}
finished() { [ -e "$1" ] || [ -e "$1.done" ]; }  # before this job was started again
current() {  # or another attempt has taken over
  read -r wanted <attempt
  [ "$wanted" = "$attempt" ] || { say "attempt $wanted has taken over"; exit 0; }
}
write_end() {  # FOLDER MORE: how a trial ended
  ended="\"job\":\"$job\",\"node\":\"$node\",\"status\":$status,\"ooms\":$out_of_memory,\"epoch\":$epoch"
  ended="$ended,\"uptime\":[$from,$to],\"limit\":$limit,\"stops\":$stops,\"repeated\":$repeated,\"before\":$before"
  insist overwrite "$1/end" "{$ended,\"checks\":[$checks]$2}"
}
trial() {  # NAME LIMIT FOLDER COMMAND...
  name=$1 limit=$2 work=$3 try=$1.try$attempt
  shift 3
  if finished "$name"; then
    program=
    return
  fi
  current
  before=0 repeated=0
  once "$@"
  while spoilt && [ "$repeated" -lt 3 ]; do
    repeated=$((repeated + 1))
    say "$name ended with status $status, but $why: it runs again"
    once "$@"
  done
  program=
  [ "$status" = 0 ] || there  # its image is gone: it was no trial, and the next ones would be none
  write_end "$try" ''
  [ -e node ] || put node "$node"
  [ -e "$name" ] || insist mv "$try" "$name"
  say "$name ended with status $status"
}
"""
