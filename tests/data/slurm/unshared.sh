#!/bin/bash
# Run k3xa8w2mnp of clusterddp: train.py --lr 3e-4
# What its nodes unpack stands below it where clusterddp submits it.

#SBATCH --job-name='night run'
#SBATCH --comment=clusterddp:k3xa8w2mnp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --partition=a100
#SBATCH --time=90
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@120
#SBATCH --export=NONE
#SBATCH --chdir=/
#SBATCH --open-mode=append
#SBATCH --output=/dev/null
#SBATCH --exclusive

state=/home/u/.clusterddp
folder=/home/u/.clusterddp/slurm/k3xa8w2mnp  # of this run; on each node
code="$folder"/clusterddp.pyz  # of clusterddp, the same on every node
python=python3  # what runs it there, 3.8 or newer

# Code is run from the state folder. It has to be this user's, and the folders and links on the way to it this user's or
# root's, where nobody else could put their own in its place. A link is followed name by name, as it leads.
safe() {
    local at= rest=${1%/}/ name link me=$(id -un 2>/dev/null) group=$(id -g)
    [[ $(getent group "$group") =~ ^"$me":[^:]*:[^:]*:("$me")?$ ]] || group=0  # others may be in any other one
    while [ "$rest" ]; do
        name=${rest%%/*} rest=${rest#*/}
        [ "$name" ] || continue
        at=$at/$name
        [ -e "$at" ] || mkdir -m 700 "$at"
        [ -n "$rest" ] || [ -L "$at" ] || break
        [ "$(cd / && find "$at" -maxdepth 0 '(' -uid 0 -o -uid "$UID" -o -uid "$(stat -c %u .)" ')' '(' -type l \
            -o -perm -1000 -o ! -perm /022 -o ! -perm /002 '(' -gid 0 -o -gid "$group" ')' ')')" ] || return
        if [ -L "$at" ]; then
            link=$(readlink "$at") && [[ $link == /* ]] || link=${at%/*}/$link
            safe "$link/$rest"
            return
        fi
        [[ -k $at || $(ls -ld "$at") != d????w????+* ]] || return  # an access list may name others
    done
    [ ! -L "$at" ] && [ -d "$at" ] && [ -O "$at" ] && chmod 700 "$at"
}
own() {
    umask 077
    safe "$1" && return
    echo "clusterddp: $1 is not this user's alone on $HOSTNAME: set clusterddp_state to a folder of your own" >&2
    exit 92
}
own "$state"

# What the nodes start. They find each other in the folder, and choose addresses and ports for torchrun themselves.
# A requeue is the run's next attempt, and a start of its own.
mkdir -p "$folder/start.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" || exit 94
rm -f "$folder/end.json"
cat >"$folder/job.json.new" <<'END OF JOB'
{
 "plan": {
  "argv": ["-m", "torch.distributed.run", "train.py"],
  "attempt": 1,
  "clock_error_ns": 2000000,
  "clock_offset_ns": -7,
  "cwd": "/home/u/work",
  "env": {},
  "host": "node",
  "host_settings": {
   "ports": [29400, 29499],
   "setup": ["module load cuda"]
  },
  "members": [],
  "nnodes": 1,
  "node": "0-node",
  "node_rank": 0,
  "nproc": 2,
  "python": "/opt/py/bin/python",
  "record": {
   "argv": ["--lr", "3e-4"],
   "hosts": [],
   "name": "night run",
   "run": "k3xa8w2mnp",
   "script": "train.py"
  },
  "run": "k3xa8w2mnp",
  "run_dir": "/home/u/.clusterddp/rundirs/run1-h",
  "secrets": ["TOKEN"],
  "settings": {},
  "store": null,
  "workdir": "/home/u/work",
  "world_size": 2
 },
 "python": "python3",
 "sent_code": {"broadcast": false, "order": {"base": "", "chunk_lists": 2, "data": null, "data_base": "", "data_size": 0, "digest": "ab12", "edited": false, "folders": [], "known": [], "links": {}, "made": false, "manifest": 10, "name": "", "prove": false, "reuse": false, "spread": false, "take": "", "workdir": "~/work"}},
 "state": "/home/u/.clusterddp"
}
END OF JOB
# The login host reads it meanwhile, and keeps the one that is there if the disk is full.
[ $? = 0 ] && mv "$folder/job.json.new" "$folder/job.json" || exit 94

# `--export=NONE` above keeps the environment of whoever submits out of the job; a step is to get the job's own.
unset SLURM_EXPORT_ENV

# The nodes share no folder. What they lack is at the end of this script, and each unpacks it; our own output is here.
exec >>"$folder.out" 2>&1
sed '1,/^# PACKED$/d' "$0" | base64 -d | srun --kill-on-bad-exit=1 --mpi=none \
    bash -c "$(declare -f safe own)"'; own "$2"; mkdir -p "$1" && tar -C "$1" -xzmf -' bash "$folder" "$state" \
    || exit $(($? == 92 ? 92 : 94))

# Signals to the job reach this shell alone, which tells the nodes: the notice before the time limit or a preemption is
# passed on to the workers that handle SIGUSR1; SIGTERM ends this start.
trap '"$python" -I -S "$code" slurm notice "$folder"' USR1
trap '"$python" -I -S "$code" slurm stop "$folder"' TERM

# A job that has its nodes whole has all their GPUs, however many each has, and a step those that it asks for.
own=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}  # an array's number alone means all its jobs
gpus=$(scontrol show job -d -o "${own:-$SLURM_JOB_ID}" | grep -o 'JOB_GRES=[^ ]*' | tr '=,' '\n\n' |
    awk -F: '$1 == "gpu" {n += $NF} END {if (n) print n}')

# One task a node: clusterddp's supervisor, which starts torchrun, keeps what the workers print, and ends all of it.
"$python" -I -S "$code" slurm step "$folder" \
    srun --kill-on-bad-exit=1 ${gpus:+--gpus=$gpus} --mpi=none ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK} \
    "$python" -I -S "$code" slurm task "$folder" &
step=$!
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
    status=$?
done

# How the run ended, by the nodes' own word; the job ends with its exit code. With --relaunch it is requeued in place
# of that when its workers had the notice, or a node was lost.
exec "$python" -I -S "$code" slurm end "$folder" "$status"

# PACKED
aGVsbG8=
