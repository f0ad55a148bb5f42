#!/bin/sh
# run r, block 3; attempt 2: 1 trial(s), one after the other, on one node.
#SBATCH --job-name=envmatrix-0-b0003
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --mem=8192M
#SBATCH --time=1:30:00
#SBATCH --chdir=/
#SBATCH --output=/dev/null
#SBATCH --export=ALL
#SBATCH --requeue
#SBATCH --partition=gpu
#SBATCH --account=me
#SBATCH --constraint=a&b
#SBATCH --gres=gpu:a100:2
#SBATCH --nodelist=n1
#SBATCH --exclude=n1,n7
#SBATCH --qos=high
set -u
export PATH=/usr/bin:/bin
export HOME='/home/o'"'"'neill'
folder='/shared/it'"'"'s $here/b0003'
attempt=2
trap 'exit 143' TERM  # the job itself is ending: what runs now is not finished
stops=0
trap 'stops=$((stops + 1))' CONT  # it was suspended, and so was the trial that ran
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
begin "$@"
load apptainer/1.4
there() {  # that every node sees what the trials need
  :
  need '/a b'
  need /venv/bin/python
}
there
look_around 100 glance

# base:cnn@local
trial b0003-p000 300 '/shared/it'"'"'s $here/b0003/w' \
  taskset --cpu-list 0-1 \
  env -i "ENVMATRIX_TRIAL=$mark" ${HOME+"HOME=$HOME"} \
  LD_PRELOAD=/l/x.so \
  PAD="$(padding 40)" \
  /venv/bin/python -m bench '--x=a b'

tidy
forget
say "all trials of this job are done"
