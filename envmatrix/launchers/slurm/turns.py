"""The part of a block's script for trials that live together and take turns (docs/interleaving.md): plain ``sh``.

One pipe, ``events``, has all that happens: what a trial says at its gate, that one has ended, and a tick each second,
so that every wait has an end. Between turns a trial's processes stand still: those of its session, or those in its
container. Should the script itself be killed, a guard in a session of its own ends what stands still.
"""

from __future__ import annotations

from collections.abc import Sequence

from envmatrix.trials.barrier import FOLDER

FUNCTIONS = r"""
gate=@FOLDER@ members= helpers= restore=
! env --default-signal=INT,QUIT true 2>/dev/null || restore="env --default-signal=INT,QUIT"
trap leave EXIT
note() { eval "$1_$2=\$3"; }  # WHAT PLACE VALUE: it is known of the trial at that place
of() { eval "$1=\${$2_$3:-}"; }  # NAME WHAT PLACE: NAME becomes what is known
clock() {  # $now: hundredths of a second since the node started
  read -r up idle </proc/uptime
  now=${up%.*}${up#*.}
}
memory_there() {  # the bytes that processes can have now: the node's, or what is left of this job's control groups
  while read -r key value unit; do [ "$key" != MemAvailable: ] || break; done </proc/meminfo
  least=$((value * 1024))
  while IFS=: read -r number kind path; do
    case $kind in
      memory) top=/sys/fs/cgroup/memory most=memory.limit_in_bytes used=memory.usage_in_bytes ;;
      '') top=/sys/fs/cgroup most=memory.max used=memory.current ;;
      *) continue ;;
    esac
    while :; do
      if read -r most_of <"$top$path/$most" && read -r taken <"$top$path/$used" && [ "$most_of" != max ]; then
        [ $((most_of - taken)) -ge "$least" ] || least=$((most_of - taken))
      fi
      [ -n "${path%/}" ] || break
      path=${path%/*}
    done 2>/dev/null
  done </proc/self/cgroup
  echo "$least"
}
pipe() {  # FILE...
  mkfifo "$@" && return
  put "stopped-$attempt" "68 $node"
  exit 68
}
guard() {  # ends what it was told of should this script be killed
  setsid sh -c 'trap "" HUP INT TERM
    known=" "
    while read -r pid; do
      case $pid in
        over) exit 0 ;;
        -*) case $known in *" ${pid#-} "*) known="${known%% ${pid#-} *} ${known#* ${pid#-} }" ;; esac ;;
        *) known="$known$pid " ;;
      esac
    done
    for pid in $known; do kill -s KILL -- "$pid" "-$pid"; done' sh <"$whole/guard" 8>&- 9>&- 2>/dev/null &
}
tick() {
  exec 9>&-  # that of the guard is closed when the script itself is gone
  while sleep 1; do echo "0 tick 0" >&8; done
}
listen() {  # PLACE FOLDER: says what the trial says at its gate, whose pipes stay open as long as this lives
  exec 3<>"$2/ready" 4<>"$2/go" 9>&-
  while read -r word value rest <&3; do
    case $word/$rest/${#value}/$value in
      ready//[1-9]/*[!0-9]*) echo "$1 wrong 0" >&8 ;;
      ready//[1-9]/*) echo "$1 ready $value" >&8 ;;
      *) echo "$1 wrong 0" >&8 ;;
    esac
  done
}
run_member() {  # PLACE WORK LOG: its process leads a session of its own
  exec 9>&-
  mark=$mark/$1
  (cd "$2" && "member_$1" exec setsid $restore) >"$3" 2>&1 8>&- &
  echo "$1 began $!" >&8
  wait "$!"
  echo "$1 ended $?" >&8
}
helper() {  # PID: is ended with the trials
  helpers="$helpers $1"
  echo "$1" >&9
}
start_member() {  # PLACE: its process begins; where that stands still next is its gate
  "facts_$1"
  own=$whole/$name
  insist mkdir -p "$own/work/$gate"
  pipe "$own/work/$gate/ready" "$own/work/$gate/go"
  [ -z "${program:-}" ] || link_program
  program=
  for fact in left over leader stopped; do note "$fact" "$1" ''; done
  for fact in late ran ooms status; do note "$fact" "$1" 0; done
  note name "$1" "$name"
  note apart "$1" "$apart"
  note held "$1" "$held"
  note from "$1" "$(uptime_s)"
  note epoch "$1" "$(date +%s)"
  listen "$1" "$own/work/$gate" &
  helper "$!"
  run_member "$1" "$work" "$own/log" &
  note runner "$1" "$!"
  echo "$!" >&9
  until of leader leader "$1"; [ -n "$leader" ] || [ "$stops" != 0 ]; do hear; done
}
inside() {  # LEADER: what runs in its container, but for the first process there and the runtime around it
  for file in $(grep -Ls '^NSpid:.*[[:blank:]]1$' $(grep -ls "^NSsid:[[:blank:]]$1[[:blank:]]" /proc/[0-9]*/status)); do
    file=${file%/status}
    case $file in /proc/*) echo "${file#/proc/}" ;; esac
  done </dev/null
}
hold() {  # PLACE: none of its processes gets a CPU from now on, also where a thread spins
  of leader leader "$1"
  of held held "$1"
  case $held in
    session) kill -s STOP -- "-$leader" ;;
    container)
      note stopped "$1" "$(inside "$leader" | tr '\n' ' ')"
      of stopped stopped "$1"
      [ -z "$stopped" ] || kill -s STOP $stopped
      ;;
  esac 2>/dev/null
}
go_on() {  # PLACE
  of leader leader "$1"
  of stopped stopped "$1"
  if [ -n "$stopped" ]; then kill -s CONT $stopped; else kill -s CONT -- "-$leader"; fi 2>/dev/null
}
ended_member() {  # PLACE STATUS: and so does all that came of it
  note over "$1" 1
  note status "$1" "$2"
  note to "$1" "$(uptime_s)"
  of leader leader "$1"
  for file in $(grep -lszxF "ENVMATRIX_TRIAL=$mark/$1" /proc/[0-9]*/environ); do
    file=${file%/environ}
    kill -s KILL "${file#/proc/}"
  done 2>/dev/null
  kill -s KILL -- "-$leader" 2>/dev/null
  of runner runner "$1"
  printf '%s\n' "-$leader" "-$runner" >&9
  [ "$2" = 0 ] && return
  status=$2 killed=$(ooms)
  note ooms "$1" $((killed - seen))
  seen=$killed
}
hear() {  # takes in what happens next: something does each second
  read -r at word value <&8 || return 0
  case $word in
    began)
      note leader "$at" "$value"
      echo "$value" >&9
      ;;
    ready)
      of over over "$at"
      [ -z "$over" ] || return 0
      hold "$at"
      note left "$at" "$value"
      ;;
    wrong) end_member "$at" ;;
    ended)
      of over over "$at"
      [ -n "$over" ] || ended_member "$at" "$value"
      ;;
  esac
}
end_member() {  # PLACE: asks it to end, and makes it end five seconds later
  of leader leader "$1"
  kill -s TERM -- "-$leader" 2>/dev/null
  go_on "$1"
  clock
  note asked "$1" "$now"
  while of over over "$1"; [ -z "$over" ] && [ "$stops" = 0 ]; do
    hear  # which may be asked of others, too
    clock
    of asked asked "$1"
    of leader leader "$1"
    of over over "$1"
    [ -n "$over" ] || [ $((now - asked)) -lt 500 ] || kill -s KILL -- "$leader" "-$leader" 2>/dev/null
    [ -n "$over" ] || [ $((now - asked)) -lt 2000 ] || ended_member "$1" 137  # the kernel does not let go of it
  done
}
time_out() {
  note late "$1" 1
  end_member "$1"
}
pending() {  # [AT_GATE [MOST]]: whether more than MOST (0) are neither over nor (with AT_GATE) wait at their gate
  waiting= unready=0
  for one in $members; do
    of over over "$one"
    of due left "$one"
    [ -n "$over" ] || [ -n "${1:+$due}" ] || waiting="$waiting $one" unready=$((unready + 1))
  done
  [ "$unready" -gt "${2:-0}" ]
}
await() {  # HUNDREDTHS [AT_GATE [MOST]]: until no more than MOST are pending; those that are late are ended
  clock
  until_then=$((now + $1))
  while pending "${2:-}" "${3:-}" && [ "$stops" = 0 ]; do
    clock
    [ "$now" -ge "$until_then" ] && for late in $waiting; do time_out "$late"; done
    pending "${2:-}" "${3:-}" && hear
  done
}
say_at_gate() {  # PLACE TEXT
  of name name "$1"
  echo "$2" 1<>"$whole/$name/work/$gate/go"
}
take_turn() {  # PLACE
  of apart apart "$1"
  of ran ran "$1"
  of given left "$1"
  [ "$steps" = 0 ] || given=$steps
  note left "$1" ''
  clock
  since=$now
  say_at_gate "$1" "go $apart $given"
  go_on "$1"
  while of over over "$1"; of due left "$1"; [ -z "$over$due" ] && [ "$stops" = 0 ]; do
    hear
    clock
    [ $((ran + now - since)) -lt $((100 * limit)) ] || [ "$stops" != 0 ] || is_back "$1" || time_out "$1"
  done
  clock
  note ran "$1" $((ran + now - since))
}
is_back() {  # PLACE: whether it has ended, or waits at its gate
  of over over "$1"
  of due left "$1"
  [ -n "$over$due" ]
}
have_turns() {
  for one in $members; do
    of over over "$one"
    of due left "$one"
    [ -z "$over" ] && [ "${due:-0}" != 0 ] && [ "$stops" = 0 ] && return 0
  done
  return 1
}
take_round() {  # PLACE,PLACE,...
  IFS=,
  set -- $1
  IFS=$blanks
  for turn; do
    case " $members " in *" $turn "*) ;; *) continue ;; esac
    of over over "$turn"
    of due left "$turn"
    [ -z "$over" ] && [ "${due:-0}" != 0 ] && [ "$stops" = 0 ] && take_turn "$turn"
  done
}
leave() {  # ends whatever lives or stands still of trials that take turns
  [ -n "$members$helpers" ] || return 0
  for one in $members; do
    of over over "$one"
    of leader leader "$one"
    of runner runner "$one"
    [ -n "$over" ] || kill -s KILL -- ${runner:+"$runner"} ${leader:+"$leader" "-$leader"}
  done 2>/dev/null
  kill -s KILL $helpers 2>/dev/null
  echo over >&9
  exec 8>&- 9>&-
  members= helpers=
}
company() {  # PLACE...: trials that live together, from their start to the end of all
  rm -f "$whole/events" "$whole/guard"
  pipe "$whole/events" "$whole/guard"
  for one; do note over "$one" '' && note leader "$one" '' && note runner "$one" ''; done
  exec 8<>"$whole/events" 9<>"$whole/guard"
  members= together=$# blanks=$IFS at_once=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
  [ "$at_once" -le "$#" ] || at_once=$#
  guard
  tick &
  helper "$!"
  for first; do  # one a CPU at once: more of them are ready no sooner
    await $((100 * limit * at_once)) at_gate $((at_once - 1))
    [ "$stops" = 0 ] || continue
    members="$members $first"
    start_member "$first"
  done
  await $((100 * limit * at_once)) at_gate
  while have_turns; do
    for order in $orders; do take_round "$order"; done
  done
  for last; do
    of over over "$last"
    [ -n "$over" ] || [ "$stops" != 0 ] || { say_at_gate "$last" end && go_on "$last"; }
  done
  await $((100 * limit * together))
  leave
}
once_together() {  # all of them, in a new folder: side by side, or alone where the memory does not hold them
  tidy
  before=$((before + left))
  insist fresh_whole
  places= started= number=0 program=
  while [ "$number" -lt "$count" ]; do
    number=$((number + 1))
    places="$places $number"
    "facts_$number"
    started="$started${started:+
}$name $attempt $restarts $job $node"
  done
  places=${places# } program=
  insist append starts "$started"
  stops=0 status=0 seen=$(ooms) room=$(($(memory_there) / 5 * 4))
  if [ "$bytes" -le "$room" ] || [ "$count" = 1 ]; then
    company $places
  else
    say "$count processes at once may need $bytes bytes, and there is room for $room: one after the other"
    for alone in $places; do [ "$stops" != 0 ] || company "$alone"; done
  fi
  [ "$status" -le 128 ] && [ "$stops" = 0 ] || sleep 2  # if the job is being ended, its own signal comes now
}
fresh_whole() { rm -rf "$whole" && mkdir -p "$whole"; }
turns() {  # GROUP LIMIT BYTES STEPS COUNT ORDERS: STEPS a turn, 0: all; its folder gets its final name in the end
  unit=$1 limit=$2 bytes=$3 steps=$4 count=$5 orders=$6 whole=$1.try$attempt try=$1.try$attempt
  ! finished "$unit" || return 0
  current
  before=0 repeated=0
  once_together
  while spoilt && [ "$repeated" -lt 3 ]; do
    repeated=$((repeated + 1))
    say "$unit: $why: all of it runs again"
    once_together
  done
  [ "$status" = 0 ] || there
  for each in $places; do
    for fact in name status from to epoch late; do of "$fact" "$fact" "$each"; done
    of out_of_memory ooms "$each"
    write_end "$whole/$name" ",\"together\":$together,\"late\":$late"
    before=0
    rm -rf "$whole/$name/work/$gate"
    say "$name ended with status $status"
  done
  rm -f "$whole/events" "$whole/guard" "$whole/end"
  [ -e node ] || put node "$node"
  [ -e "$unit" ] || insist mv "$whole" "$unit"
}
""".replace("@FOLDER@", FOLDER)


def orders_text(orders: Sequence[Sequence[int]]) -> str:
    """Return the rounds, each the places of its trials (from 1) in the order of their turns: ``2,1,3 3,2,1``."""
    return " ".join(",".join(map(str, order)) for order in orders)
