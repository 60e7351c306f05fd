#!/bin/bash
# What every task of a batch executes inside its allocation: claim the task,
# then one srun step per run, in turn. The batch script exports:
#
#   SBENCH_BATCH       the batch's folder          SBENCH_DIGEST   of its batch.json
#   SBENCH_PROGRAMS    folder of sbench-runner     SBENCH_NODES    nodes of the gang
#   SBENCH_TIME_LIMIT  of the task, seconds        SBENCH_GRACE    seconds a run gets to seal
#   SBENCH_STEP_GRES   GRES of a step, may be ""   SBENCH_STEP_CPUS  CPUs of a step, may be ""
#
# It goes on after a run that failed or was refused, starts a run only if its
# time limit still fits, and says what it does in logs/task-*.record.
set -uo pipefail

batch=${SBENCH_BATCH:?} digest=${SBENCH_DIGEST:?} programs=${SBENCH_PROGRAMS:?}
nodes=${SBENCH_NODES:?} grace=${SBENCH_GRACE:?} limit_s=${SBENCH_TIME_LIMIT:?}
gres=${SBENCH_STEP_GRES-} cpus=${SBENCH_STEP_CPUS-}
task=${SLURM_ARRAY_TASK_ID:-0} job=${SLURM_JOB_ID:?} restart=${SLURM_RESTART_COUNT:-0}
record=$batch/logs/task-$task.$job-r$restart.record

now() { printf '%(%s)T' -1; }

# note appends a line to the record. A full disk must not stop a measurement.
note() { printf '%s %s\n' "$(now)" "$*" >>"$record" || true; }

# A controller that crashed may take a step that has ended for one that runs, for as
# long as the job lasts, and scancel does not help: so a step waits this many seconds
# for the allocation to be free, and no longer.
step_wait=180

# Slurm sends --signal up to a minute early.
deadline=$(($(now) + limit_s - grace - 60))

case $(uname -m) in
x86_64) runner=$programs/sbench-runner ;;
aarch64 | arm64) runner=$programs/sbench-runner-arm64 ;;
*)
  echo "sbench: no runner for $(uname -m)" >&2
  exit 70
  ;;
esac

# A shared file system may show a new file late.
await_runner() {
  local i
  for ((i = 0; i < 60; i++)); do
    [ -x "$runner" ] && return 0
    ls "$programs" >/dev/null 2>&1
    sleep 1
  done
  echo "sbench: $runner is not there" >&2
  return 1
}

# The name of the programs' folder says what is in it: the digest of a line
# "<digest> <name>" for each. What was changed there is not executed.
check_programs() {
  local LC_ALL=C file sum list=''
  for file in "$programs"/*; do
    sum=$(sha256sum <"$file") || return 1
    list+="${sum%% *} ${file##*/}"$'\n'
  done
  sum=$(printf '%s' "$list" | sha256sum)
  [ "${sum%% *}" = "${programs##*/}" ] && return 0
  echo "sbench: the programs in $programs are not those that were installed: nothing was started" >&2
  return 1
}

# On SIGTERM to the whole job, Slurm signals the steps itself. If it reached this
# shell alone, the step is told after a moment. srun must not get the signal: it
# would kill the step at once.
stopping='' interrupted='' child=''
# shellcheck disable=SC2317 # called by the trap
terminate() {
  stopping=1 interrupted=1
  note "term"
  [ -n "$child" ] || return 0
  local self=$child
  (
    sleep 2
    kill -0 "$self" 2>/dev/null && scancel --signal=TERM "${SLURM_ARRAY_JOB_ID:-$job}${SLURM_ARRAY_TASK_ID:+_$task}"
  ) >/dev/null 2>&1 &
}
trap terminate TERM

# wait_child waits for $child through signals and sets rc.
wait_child() {
  local again
  wait "$child"
  rc=$?
  while [ -n "$interrupted" ]; do
    interrupted=''
    wait "$child" 2>/dev/null
    again=$?
    [ "$again" -eq 127 ] || rc=$again
  done
  child=''
}

# begin RUN notes for the daemon that this start begins the run, and fails where
# the daemon has given the run up here: it may be under way elsewhere.
begin() {
  local rc
  "$runner" start --batch "$batch" --digest "$digest" --task "$task" --run "$1"
  rc=$?
  case $rc in
  0) return 0 ;;
  16) note "skip $1 closed" ;;
  *)
    # The daemon must not take it for a run that was only left out: what fails
    # here may fail for ever.
    note "start $1"
    note "end $1 $rc"
    ;;
  esac
  return 1
}

# open_run prints the run that the record says has begun and not ended.
open_run() {
  local what id open=''
  while read -r _ what id _; do
    case $what in
    start) open=$id ;;
    end) [ "$id" != "$open" ] || open='' ;;
    esac
  done <"$record"
  printf '%s' "$open"
}

# run_step executes a run; or several, 7,8,9, that one server may serve: then the
# runner notes which of them begins and ends. The ranks of a gang watch each other:
# killed by srun because of another, rank 0 could not seal what it knows.
run_step() {
  local runs=$1 freq=$2 first=${1%%,*} args open
  args=(
    --job-name="sb-run-$first" --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1
    --kill-on-bad-exit=$((nodes == 1)) --input=none --open-mode=append --immediate="$step_wait"
    --output="$batch/logs/run-$first.$job-r$restart.log"
  )
  # A step of several is no single run's to pay.
  [ "$runs" = "$first" ] || args+=(--job-name="sb-runs-$first")
  [ -z "$gres" ] || args+=(--gres="$gres")
  [ -z "$cpus" ] || args+=(--cpus-per-task="$cpus")
  [ -z "$freq" ] || args+=(--gpu-freq="$freq")
  note "start $first"
  SBENCH_RECORD=$record SBENCH_DEADLINE=$deadline \
    srun "${args[@]}" "$runner" run --batch "$batch" --digest "$digest" --task "$task" --run "$runs" &
  child=$!
  wait_child
  open=$(open_run)
  [ -z "$open" ] || note "end $open $rc"
  [ "$rc" -lt 128 ] || clean_up
}

# A runner that was killed leaves files behind, and processes where Slurm tracks
# none.
clean_up() {
  srun --job-name=sb-clean --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --overlap --input=none \
    "$runner" clean --batch "$batch" --digest "$digest" &
  child=$!
  wait_child
}

note "begin ${SLURMD_NODENAME:-$(uname -n)}"
if ! await_runner || ! check_programs; then
  note "claim failed"
  note "done"
  exit 70
fi

todo=$("$runner" claim --batch "$batch" --digest "$digest" --task "$task")
rc=$?
if [ "$rc" -ne 0 ]; then
  note "claim failed"
  note "done"
  exit "$rc"
fi
if [ -z "$todo" ]; then
  note "claim none" # another job measures this task, or all of it is sealed
  note "done"
  exit 0
fi
note "claim held"

while read -r runs limit freq <&3; do
  # Of runs that share a server, the first that may begin leads the others.
  while [ -n "$runs" ]; do
    run=${runs%%,*}
    if [ -n "$stopping" ]; then
      note "skip $run stopped"
    elif [ -e "$batch/cancelled/$run" ]; then
      note "skip $run cancelled"
    elif (($(now) + limit > deadline)); then
      note "skip $run time"
    elif begin "$run"; then
      run_step "$runs" "$freq"
      # 16: the runner was told to stop, and so is what would come after it.
      # 1: srun itself failed, and what would come after it would fail there too.
      if [ "$rc" -eq 16 ] || [ "$rc" -eq 1 ]; then
        stopping=1
      fi
      break
    fi
    runs=${runs#"$run"}
    runs=${runs#,}
  done
done 3<<<"$todo"

note "done"
exit 0
