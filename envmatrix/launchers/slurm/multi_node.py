"""The part of a block's script for trials over several nodes: `srun` starts the benchmark once on each of them."""

from __future__ import annotations

#: Comes before ``begin``: the nodes of the job in the order in which a trial takes them. The first one runs the script.
NAMES = 'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d , -)'

FUNCTIONS = r"""
over=1 within=
everywhere() {  # COUNT OPTIONS... COMMAND...: one task on each of the first COUNT nodes of the job
  count=$1
  shift
  $within srun --nodes="$count" --ntasks="$count" --ntasks-per-node=1 --mpi=none --cpu-bind=none --wait=0 \
    --nodelist="$(echo "$node" | cut -d , -f "1-$count")" --kill-on-bad-exit=0 --input=none "$@"
}
need_everywhere() {  # COUNT PATH...
  count=$1
  shift
  everywhere "$count" sh -c 'for path; do [ -e "$path" ] || { echo "$SLURMD_NODENAME $path"; exit 69; }; done' sh \
    "$folder" "$@" >".lacks.$attempt" && return
  read -r lacking <".lacks.$attempt" || { say "srun could not start a task on each node"; exit 70; }
  say "missing: $lacking"
  put "stopped-$attempt" "69 $lacking"
  exit 69
}
meeting_place() {  # the address by which Slurm itself reaches the first node, and a port that is free there
  address=$(scontrol --oneliner show node "${node%%,*}" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  port=$((20000 + SLURM_JOB_ID * 16 % 10000))
  while grep -q "$(printf ':%04X ' "$port")" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do port=$((port + 1)); done
  echo "${address:-${node%%,*}}:$port"
}
launch_over() {  # the trial's command, once on each node; what srun itself says comes before what they say
  place=$(meeting_place)
  (
    cd "$work" && within="timeout --kill-after=30 $limit" && everywhere "$over" --output=../tasks sh -c 'meet=$1
      shift
      exec "$@" --node-rank="$SLURM_PROCID" --node-name="$SLURMD_NODENAME" --meet="$meet"' sh "$place" "$@"
  ) >"$try/srun" 2>&1
  status=$?
  cat "$try/srun" "$try/tasks" >"$try/log" 2>/dev/null
  [ "$status" = 0 ] || sleep 5  # a node that failed ends the whole job, and then this trial is not finished
}
trial_over() {  # COUNT NAME LIMIT FOLDER COMMAND...
  over=$1
  shift
  trial "$@"
  over=1
}
"""
