"""The part of a block's script that looks at its node before the first trial, while the job itself does nothing."""

from __future__ import annotations

FUNCTIONS = r"""
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
  found= many=0
  for file in /proc/[0-9]*/stat; do
    read -r line <"$file" || continue
    state=${line##*) }
    [ "${state%% *}" = R ] && [ "${line%% *}" != $$ ] && [ "$many" -lt 5 ] || continue
    name=${line#*(} many=$((many + 1))
    found="$found,\"$(printf %s "${name%)*}" | tr -c 'A-Za-z0-9._/:+-' _)\""
  done 2>/dev/null
  echo "[${found#,}]"
}
look_around() {  # [PERCENT]: what others use of this node; more than that many percent of its CPUs end the job
  before=$(ticks)
  sleep 0.5
  set -- "${1:-100}" $before $(ticks)
  busy=$(($5 > $3 ? 100 * ($4 - $2) / ($5 - $3) : 0))
  read -r load rest </proc/loadavg
  while read -r key value unit; do [ "$key" != MemAvailable: ] || break; done </proc/meminfo
  others=$(strangers) share=$((busy / 100)).$((busy % 100 / 10))$((busy % 10))
  check="{\"load_1m\":$load,\"free_bytes\":$((value * 1024)),\"busy\":$share,\"throttled\":$(throttled)"
  check="$check,\"others\":$others}"
  say "the node before the block: $check"
  [ "$busy" -gt "$1" ] || return 0
  put "stopped-$attempt" "76 $node $busy % of its CPUs are busy, these ran: $others"
  exit 76
}
"""
