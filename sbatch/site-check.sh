#!/bin/bash
# What sbench site check runs on one compute node, as a job of a minute:
#
#   site-check.sh DIR NAME RESULTS CACHE TEMP MODELS IMAGES APPTAINER [HELPER]
#
# DIR is a folder in the shared spool that the daemon has made, with a file nonce.
# Prints nothing: one line "key value" for each thing is written to DIR/NAME.out,
# which appears complete or not at all. It leaves nothing else behind.
set -u

dir=$1 name=$2 results=$3 cache=$4 temp=${5:-${TMPDIR:-/tmp}} models=$6 images=$7 apptainer=$8 helper=${9:-}
out=$dir/$name.tmp
say() { printf '%s %s\n' "$1" "${*:2}" >>"$out"; }

# writable FOLDER: "ok", or why not; a new file is written there and removed.
writable() {
  local probe=$1/.site-check-$name-$$ why
  if why=$({ mkdir -p "$1" && echo probe >"$probe" && rm "$probe"; } 2>&1); then echo ok; else echo "${why:-not writable}"; fi
}

: >"$out" || exit 1
say time "$(date +%s.%N)"
say host "$(hostname -s 2>/dev/null || uname -n)"
say nonce "$(cat "$dir/nonce" 2>&1)"
say results "$(writable "$results")"
say cache "$(writable "$cache")"
say temp "$(writable "$temp")"
for folder in models:"$models" images:"$images"; do
  if [ -r "${folder#*:}" ] && [ -d "${folder#*:}" ]; then say "${folder%%:*}" ok; else say "${folder%%:*}" "${folder#*:} cannot be read"; fi
done
# The runner is started from the spool.
printf '#!/bin/sh\nexit 0\n' >"$dir/$name.exec" && chmod 755 "$dir/$name.exec"
if why=$("$dir/$name.exec" 2>&1); then say exec ok; else say exec "${why:-a program in the spool does not start}"; fi
rm -f "$dir/$name.exec"
if [ -z "$apptainer" ]; then apptainer=$(command -v apptainer || command -v singularity); fi
if [ -z "$apptainer" ]; then
  say container missing neither apptainer nor singularity is on PATH
elif why=$("$apptainer" --version 2>&1); then
  say container ok "$(printf '%s' "$why" | head -n 1)"
else
  say container failed "$(printf '%s' "$why" | head -n 1)"
fi
if [ -n "$helper" ]; then
  if command -v "$helper" >/dev/null; then say helper ok; else say helper "$helper is not there"; fi
fi
say gpus "${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-none}}"
mv "$out" "$dir/$name.out"
