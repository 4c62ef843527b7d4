#!/usr/bin/env bash
# A study on a real Slurm: docs/howto/study.sbatch with 16 shards, of which one is killed and two reach their time limit, against
# the same study in one process. Takes about ten minutes. By hand, and once a week (.github/workflows/slurm.yml):
#
#     apt-get install slurm-wlm munge
#     tests/clusters/slurm.sh FOLDER         # a new folder, for all files; fedsim must be on PATH
#
# Slurm's controller, one node with made-up processors and munge run as this user, and end with this script.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ $# -ne 1 ] || [ -e "$1" ]; then
    echo "usage: $0 FOLDER, which must not exist" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
user=$(id -un)
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
daemons=()

# kill_processes ENTRY...: those of this Slurm that have the entries in their environment
kill_processes() {
    local environment process entry
    for environment in /proc/[0-9]*/environ; do
        process=${environment#/proc/}
        process=${process%/environ}
        if [ "$process" = $$ ]; then continue; fi
        for entry in "SLURM_CONF=$SLURM_CONF" "$@"; do
            grep -qszFx "$entry" "$environment" || continue 2
        done
        kill -KILL "$process" 2> /dev/null || true
    done
}

end() {
    status=$?
    trap - EXIT
    timeout 10 scancel --user "$user" 2> /dev/null || true
    for daemon in "${daemons[@]}"; do kill "$daemon" 2> /dev/null || true; done
    sleep 3
    kill_processes                 # what is left of them
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM HUP

say() { echo "$(date +%T) $*"; }

fail() {
    say "FAILED: $*"
    tail -n 5 "$folder"/*.log "$folder"/logs/*.log || true
    exit 1
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds
wait_for() {
    local last=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        if [ $SECONDS -ge $last ]; then fail "no $what"; fi
        sleep 1
    done
}

start_slurm() {
    mkdir -p "$folder"/{munge,state,spool,logs,scratch}
    chmod 0755 "$folder/munge"
    head -c 1024 /dev/urandom > "$folder/munge.key"
    chmod 0400 "$folder/munge.key"
    cat > "$SLURM_CONF" <<END
ClusterName=fedsim
SlurmctldHost=$host
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
# a requeued job waits until its credential has expired: 120 s by default
AuthInfo=socket=$folder/munge/socket,cred_expire=5
SlurmctldPort=$((17000 + $$ % 1000))
SlurmdPort=$((18000 + $$ % 1000))
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=20
MinJobAge=3600
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
    # newer versions look for control groups whatever tracks the processes
    if [[ "$(slurmd -V)" != *" 22."* ]]; then echo "CgroupPlugin=disabled" > "$folder/cgroup.conf"; fi
    munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge/socket" \
        --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" --log-file="$folder/munge.log" \
        > "$folder/munged.out" 2>&1 &
    daemons+=($!)
    wait_for 30 "socket of munge" test -S "$folder/munge/socket"
    slurmctld -D > "$folder/slurmctld.out" 2>&1 &
    daemons+=($!)
    slurmd -D -N "$host" > "$folder/slurmd.out" 2>&1 &
    daemons+=($!)
    wait_for 60 "node that is idle" is_idle
    say "$(slurmd -V) is up on $host"
}

is_idle() { [ "$(sinfo --noheader --format=%T 2> /dev/null)" = idle ]; }

is_over() { [ -z "$(squeue --noheader --job "$1" 2> /dev/null)" ]; }

# field JOB NAME: an entry of what Slurm says of a job
field() { scontrol --oneliner show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | sed -n 1p; }

is_ended() { [[ "$(field "$1" JobState)" != @(PENDING|RUNNING|COMPLETING) ]]; }

has_checkpoint() {
    if is_ended "$1"; then fail "$1 is $(field "$1" JobState)"; fi
    compgen -G "$folder/scratch/fedsim-$(field "$1" JobId)/runs/*/seed-*/checkpoint/*" > /dev/null
}

submit() {
    sbatch --parsable --cpus-per-task=1 --mem-per-cpu=1G --output="$folder/logs/%A-%a.log" "$@" \
        study.sbatch slurm.toml shards --allow-code
}

export PACED_SHARDS="3 5 11"                       # these take minutes
export TMPDIR=$folder/scratch
export OMP_NUM_THREADS=1
killed=5

start_slurm
cp docs/howto/study.sbatch tests/clusters/{slurm.toml,base.toml,pace.py} "$folder"
cd "$folder"
# Slurm sends a signal up to 60 s early
job=$(submit --time=2 --signal=USR1@30)
say "job $job: 16 shards, at most 4 at a time"
wait_for 600 "checkpoint of shard $killed" has_checkpoint "${job}_$killed"
# the processes of its step; those of the script live on
kill_processes "SLURM_JOB_ID=$(field "${job}_$killed" JobId)" SLURM_STEP_ID=0
say "shard $killed is killed"
wait_for 60 "end of shard $killed" is_ended "${job}_$killed"
wait_for 1800 "end of the array" is_over "$job"

requeued=()
for shard in $(seq 16); do
    restarts=$(field "${job}_$shard" Restarts)
    state=$(field "${job}_$shard" JobState)
    say "shard $shard: $state after $restarts restarts, exit code $(field "${job}_$shard" ExitCode)"
    if [ "$restarts" -gt 0 ]; then requeued+=("$shard"); fi
    if [ "$shard" -eq "$killed" ]; then
        if [ "$state" != FAILED ]; then fail "shard $killed is $state, though it was killed"; fi
    elif [ "$state" != COMPLETED ]; then
        fail "shard $shard is $state"
    fi
done
if [ ${#requeued[@]} -eq 0 ]; then fail "no shard has reached its time limit"; fi
say "requeued at the time limit: ${requeued[*]}"
grep -l "resumed\|interrupted" logs/*.log || fail "no shard was interrupted"

status=0
fedsim study merge shards/shard-* --out merged || status=$?
if [ $status -ne 1 ]; then fail "a merge without the killed shard ends with $status"; fi
PACED_SHARDS='' again=$(submit --array="$killed")
say "shard $killed is submitted again: job $again"
wait_for 600 "end of shard $killed" is_over "$again"
fedsim study merge shards/shard-* --out merged || fail "runs are missing"
if [ -n "$(ls scratch)" ]; then fail "scratch folders are left: $(ls scratch)"; fi

say "the same study in one process"
fedsim study slurm.toml --out whole --workers 1 --allow-code --quiet
for table in compare.csv compare.md paired.csv index.json study.toml; do
    cmp "merged/$table" "whole/$table" || fail "$table differs"
done
python - merged whole <<'END' || fail "runs differ"
import json
import sys
from pathlib import Path

names = ("events_sha256", "models_sha256", "bytes", "accuracy")
merged, whole = (
    {
        str(path.parent.relative_to(folder)): [json.loads(path.read_text())[name] for name in names]
        for path in sorted(Path(folder).glob("runs/*/*/summary.json"))
    }
    for folder in sys.argv[1:]
)
assert merged == whole, [run for run in whole if merged.get(run) != whole[run]]
print(f"{len(whole)} runs have equal events, models and bytes")
END
say "PASSED: the tables of 16 shards equal those of one process to the byte"
