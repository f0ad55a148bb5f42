#!/bin/sh
export PATH=/usr/bin:/bin
export HOME='/home/o'"'"'neill'
node=$(uname -n); node=${node%%.*}  # PBS calls a host by its short name
cd '/shared/it'"'"'s $here/batch/b0003' 2>/dev/null || exit 66
log=job-1.log; stop() { echo "$*" >stopped-1; exit "$1"; }
command -v module >/dev/null 2>&1 || . /etc/profile
module load a/1 2>>"${log:-/dev/null}" || stop 67 "$node" a/1
for python in /this/python python3 ''; do
  [ -n "$python" ] || stop 65 "$node"
  "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
done
exec "$python" -I -S -B '/shared/it'"'"'s $here/batch/block-0' '/shared/it'"'"'s $here/batch/b0003'/order-1.json "$node" "$PBS_JOBID" 0 alone noticed
