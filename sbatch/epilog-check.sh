#!/bin/bash
# Verifies that a job of sbench left nothing on this node: no process of a run,
# no scratch folder, no shared memory of an engine, no half copy in the cache. For slurm.conf's Epilog, whose
# failure drains the node, or by hand:
#
#   epilog-check.sh [--scratch DIR]... [--cache DIR]... [--uid UID]
#
# The scratch folders are /tmp and $TMPDIR by default, the user is $SLURM_JOB_UID
# or who calls. Prints one line for everything that was left, on stderr; the exit
# status is 1 then, and 0 on a clean node. It changes nothing.
set -u

command -v flock >/dev/null || {
  echo "epilog-check: flock is not here: install util-linux" >&2
  exit 2
}
scratch=() cache=() uid=${SLURM_JOB_UID:-$(id -u)}
while [ $# -gt 0 ]; do
  case $1 in
  --scratch | --cache | --uid)
    [ $# -ge 2 ] || {
      echo "epilog-check: $1: no value" >&2
      exit 2
    }
    case $1 in
    --scratch) scratch+=("$2") ;;
    --cache) cache+=("$2") ;;
    --uid) uid=$2 ;;
    esac
    shift 2
    ;;
  *)
    echo "usage: epilog-check.sh [--scratch DIR]... [--cache DIR]... [--uid UID]" >&2
    exit 2
    ;;
  esac
done
[ ${#scratch[@]} -gt 0 ] || scratch=(/tmp "${TMPDIR:-/tmp}")

left=0
report() {
  echo "epilog-check: left behind: $*" >&2
  left=1
}

# alive FOLDER: a runner holds the scratch folder's lock, and answers for it: other
# jobs of the user on this node have runs of their own.
alive() {
  [ -f "$1/runner" ] && [ ! -L "$1/runner" ] && ! flock --nonblock --shared "$1/runner" true
}
# scratched FOLDER: it is, or was, in one of the scratch folders.
scratched() {
  local dir
  for dir in "${scratch[@]}"; do
    [ "${1%/*}" != "${dir%/}" ] || return 0
  done
  return 1
}
# shared_memory LIST: what the runner noted that its engine had; what has been
# replaced since is somebody else's.
shared_memory() {
  local device inode path
  if [ ! -f "$1" ] || [ -L "$1" ]; then
    return
  fi
  while read -r device inode path; do
    [ "$(stat -c '%d %i' "$path" 2>/dev/null)" = "$device $inode" ] && mine "$path" && report "shared memory $path"
  done <"$1"
}
mine() { [ "$(stat -c %u "$1" 2>/dev/null)" = "$uid" ]; }

for dir in "${scratch[@]}"; do
  for folder in "$dir"/sbench-run-*; do
    if [ -d "$folder" ] && mine "$folder" && ! alive "$folder"; then
      report "scratch folder $folder"
      shared_memory "$folder/shm"
    fi
  done
done

# A container program that was killed may leave a mount, or a loop device over an
# image that no runner holds open.
while read -r _ _ _ _ mount _; do
  case $mount in
  */sbench-run-*)
    parent=${mount%%/sbench-run-*} name=${mount#"${mount%%/sbench-run-*}/"}
    folder=$parent/${name%%/*}
    scratched "$folder" && ! alive "$folder" && report "mount $mount"
    ;;
  esac
done </proc/self/mountinfo
for file in /sys/block/loop*/loop/backing_file; do
  [ -f "$file" ] || continue
  for dir in "${cache[@]}"; do
    case $(cat "$file" 2>/dev/null) in
    "$dir"/*) [ -n "$(find /proc/[0-9]*/fd -lname "$dir/*" 2>/dev/null | head -n 1)" ] || report "loop device ${file#/sys/block/} over an image" ;;
    esac
  done
done

# Every process of an engine has the folder in its environment, or is in a
# container whose program has it in its command line.
pattern='/[^[:space:]:]*/sbench-run-[0-9]+-[0-9]+'
while IFS=: read -r file folder; do
  proc=${file%/*}
  scratched "$folder" && mine "$proc" && ! alive "$folder" && report "process ${proc#/proc/}: $(tr '\0' ' ' 2>/dev/null <"$proc/cmdline" | cut -c1-120)"
done < <(grep -zaoEH "$pattern" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | sort -u -t/ -k3,3)

for dir in "${cache[@]}"; do
  for file in "$dir"/copy-*.tmp; do
    # One that is being written is locked.
    [ -f "$file" ] && [ ! -L "$file" ] && mine "$file" && flock --nonblock --shared "$file" true && report "half copy $file"
  done
done
exit $left
