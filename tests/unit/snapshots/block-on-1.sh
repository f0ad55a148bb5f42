#!/bin/sh
# run r, block 3; attempt 2: 1 trial(s), one after the other, on one node.
#SBATCH --job-name=envmatrix-0-b0003
#SBATCH --comment=run-r-block-3
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --mem=8192M
#SBATCH --time=1:30:00
#SBATCH --chdir=/
#SBATCH --output=/dev/null
#SBATCH --export=ALL
#SBATCH --partition=gpu
#SBATCH --account=me
#SBATCH --constraint=a&b
#SBATCH --gres=gpu:a100:2
#SBATCH --nodelist=n1
#SBATCH --exclude=n1,n7
#SBATCH --qos=high
export PATH=/usr/bin:/bin
export HOME='/home/o'"'"'neill'
node=${SLURMD_NODENAME:-$(uname -n)}
cd '/shared/it'"'"'s $here/b0003' 2>/dev/null || exit 66
log=job-2.log; stop() { echo "$*" >stopped-2; exit "$1"; }
command -v module >/dev/null 2>&1 || . /etc/profile
module load apptainer/1.4 2>>"${log:-/dev/null}" || stop 67 "$node" apptainer/1.4
for python in /this/python python3 ''; do
  [ -n "$python" ] || stop 65 "$node"
  "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
done
exec "$python" -I -S -B '/shared/it'"'"'s $here/block-0' '/shared/it'"'"'s $here/b0003'/order-2.json "$node" "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-${SLURM_JOB_ID:-none}}" "${SLURM_RESTART_COUNT:-0}"

# The order:
# {
#  "title": "run r, block 3",
#  "folder": "/shared/it's $here/b0003",
#  "attempt": 2,
#  "parts": [
#   {
#    "name": "b0003-p000",
#    "trials": [
#     {
#      "name": "b0003-p000",
#      "title": "base:cnn@local",
#      "argv": [
#       "/venv/bin/python",
#       "-m",
#       "bench",
#       "--x=a b"
#      ],
#      "env": {
#       "LD_PRELOAD": "/l/x.so",
#       "PAD": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#      },
#      "limit_s": 300.0,
#      "keep": [
#       "HOME"
#      ],
#      "place": {
#       "cpus": [
#        0,
#        1
#       ],
#       "memory_nodes": [],
#       "groups": [],
#       "data_bytes": null
#      },
#      "needs": [
#       "/venv/bin/python",
#       "/a b"
#      ],
#      "nodes": 1,
#      "program": null,
#      "pauses_itself": false,
#      "apart": 0,
#      "srun": []
#     }
#    ],
#    "turns": null
#   }
#  ],
#  "busy": 1.0,
#  "patience_s": 60.0
# }
