"""The part of a block's script around its trials: it looks at the nodes before, and removes what is left after."""

from __future__ import annotations

import shlex

#: What every node runs.
_ONE = r"""
ticks() {  # how long all CPUs worked since the node started, and how long there were any, in ticks
  read -r cpu user nice system idle iowait irq softirq steal rest </proc/stat
  worked=$((user + nice + system + irq + softirq))
  echo "$worked $((worked + idle + iowait + steal))"
}
throttled() {  # how often a processor was slowed for its heat since the node started
  found=null
  for file in /sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/core_throttle_count; do
    [ -r "$file" ] && read -r times <"$file" || continue
    [ "$found" != null ] || found=0
    found=$((found + times))
  done
  echo "$found"
}
strangers() {  # the programs that run now, this one left out
  read -r own rest </proc/self/stat
  found= many=0
  for file in /proc/[0-9]*/stat; do
    read -r line <"$file" || continue
    state=${line##*) }
    [ "${state%% *}" = R ] && [ "${line%% *}" != "$own" ] && [ "$many" -lt 5 ] || continue
    name=${line#*(} many=$((many + 1))
    found="$found,\"$(printf %s "${name%)*}" | tr -c 'A-Za-z0-9._/:+-' _)\""
  done 2>/dev/null
  echo "[${found#,}]"
}
glance() {  # prints its place, its name, the percentage of its CPUs that others use, and what else was seen of it
  set -- $(ticks) $(sleep 0.5) $(ticks)
  busy=$(($4 > $2 ? 100 * ($3 - $1) / ($4 - $2) : 0))
  read -r load rest </proc/loadavg
  while read -r key value unit; do [ "$key" != MemAvailable: ] || break; done </proc/meminfo
  share=$((busy / 100)).$((busy % 100 / 10))$((busy % 10))
  seen="{\"load_1m\":$load,\"free_bytes\":$((value * 1024)),\"busy\":$share,\"throttled\":$(throttled)"
  echo "${SLURM_PROCID:-0} ${SLURMD_NODENAME:-$(uname -n)} $busy $seen,\"others\":$(strangers)}"
}
"""
_ALL = r"""
born=$(date +%s)
forget() {  # removes what OpenMP runtimes of this job's ended processes noted, which Intel's never do
  for file in /dev/shm/__KMP_REGISTERED_LIB_*; do
    number=${file##*_LIB_}
    [ -O "$file" ] && [ ! -e "/proc/${number%%_*}" ] && [ "$(stat -c %Y "$file")" -ge "$born" ] || continue
    rm -f "$file"
  done
}
look_around() {  # PERCENT COMMAND...: what others use of each node; more than that many percent of its CPUs end the job
  most=$1 checks='' taken=''
  shift
  while read -r place at busy seen; do
    [ -n "$seen" ] || continue
    say "$at before the block: $seen"
    checks="$checks,$seen" others=${seen#*\"others\":}
    [ "$busy" -le "$most" ] || taken=${taken:-$at $busy % of its CPUs are busy, these ran: ${others%?}}
  done <<END
$("$@" | sort -n)
END
  checks=${checks#,}
  [ -n "$taken" ] || return 0
  put "stopped-$attempt" "76 $taken"
  exit 76
}
"""


def functions(nodes: int) -> str:
    """Return the functions; of several nodes each is told those that it runs, as ``$glance``."""
    one = _ONE.strip("\n")
    told = [f"glance={shlex.quote(one)}", 'eval "$glance"'] if nodes > 1 else [one]
    return "\n".join([*told, _ALL.strip("\n")])


def call(nodes: int, percent: int) -> str:
    """Return the line that looks at so many nodes, of which others may use ``percent`` % of the CPUs."""
    where = f'everywhere {nodes} sh -c "$glance\n  glance"' if nodes > 1 else "glance"
    return f"look_around {percent} {where}"
