#!/usr/bin/env bash
# Builds the tests' inference engine into OUTDIR:
#
#   engine.sif          a genuine SIF with a llama-server and an evaluation program in it
#   engine-drifted.sif  the same engine in an image whose content differs
#   model.gguf          a small generated model
#   apptainer           the real program where one is installed and works, else the stand-in
#   digests.json        SHA-256 of the above
#
# Nothing is rebuilt while the inputs are unchanged, and then nothing is
# fetched. Needs go, npm, mksquashfs, unsquashfs, and libffi's and glibc's
# libraries, which are copied into the image; bwrap for the stand-in.
set -euo pipefail

say() { echo "engine: $*"; }
die() { echo "engine: error: $*" >&2 && exit 1; }

[[ $# -eq 1 ]] || { echo "usage: build.sh OUTDIR" >&2 && exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")"

[[ $(uname -sm) == "Linux x86_64" ]] || die "the prebuilt engine is for Linux on x86-64 only"
PATH=$PATH:/usr/sbin:/sbin
for tool in go npm mksquashfs unsquashfs sha256sum ldconfig ldd; do
  command -v "$tool" >/dev/null || die "$tool is missing: install golang, npm, squashfs-tools or libc-bin"
done

# The image carries its own C library: it is a system of its own.
host_library() { # SONAME: its path on this machine
  # awk reads to the end: ldconfig must not die of a closed pipe.
  ldconfig -p | awk -v name="$1" '$1 == name && /x86-64/ && !found++ {print $NF}'
}
libraries=()
for soname in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1 libstdc++.so.6 libffi.so.8; do
  path=$(host_library "$soname")
  [[ -n $path ]] || die "$soname is missing: install libffi8 and libstdc++6"
  libraries+=("$path")
done

container_program() { command -v apptainer || command -v singularity || true; }

inputs() { # what the products depend on, one line each
  find . -name "*.go" ! -name "*_test.go" -print0 | sort -z | xargs -0 sha256sum
  sha256sum build.sh apptainer-standin go.mod go.sum package.json package-lock.json "${libraries[@]}"
  go env GOVERSION
  mksquashfs -version | awk 'NR == 1 {print $3}'
  container_program
}
key=$(inputs | sha256sum | cut -d' ' -f1)

exec 8>"$out/.lock"
if ! flock -n 8; then
  say "waiting for another build of $out"
  flock 8
fi

complete() {
  local file
  [[ -f $out/.key && $(<"$out/.key") == "$key" ]] || return 1
  for file in engine.sif engine-drifted.sif model.gguf apptainer digests.json; do [[ -f $out/$file ]] || return 1; done
}
if complete; then
  say "$out is up to date"
  exit 0
fi
rm -f "$out/.key"
build=$out/.build
mkdir -p "$build"

# npm checks the package against the digest in package-lock.json.
npm_key=$(sha256sum package.json package-lock.json | sha256sum | cut -d' ' -f1)
if [[ ! -f $build/npm/.key || $(<"$build/npm/.key") != "$npm_key" ]]; then
  say "installing the prebuilt libllama ($(awk -F'"' '/linux-x64":/ {print $2, $4; exit}' package.json))"
  rm -rf "$build/npm"
  mkdir -p "$build/npm"
  cp package.json package-lock.json "$build/npm/"
  npm ci --prefix "$build/npm" --prefer-offline --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null
  echo "$npm_key" >"$build/npm/.key"
fi
prebuilt=$build/npm/node_modules/@node-llama-cpp/linux-x64/bins/linux-x64

say "compiling llama-server, score, ggufgen and mksif"
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$build/" ./llama-server ./score ./ggufgen ./mksif

say "generating the model"
"$build/ggufgen" -o "$build/model.gguf"

say "laying out the root file system"
root=$build/rootfs
rm -rf "$root"
mkdir -p "$root"/{usr/bin,usr/lib/llama,usr/lib/x86_64-linux-gnu,usr/lib64,etc,proc,sys,dev,tmp,var/tmp,run,home,root}
for link in bin lib lib64; do ln -s "usr/$link" "$root/$link"; done
cp "$build/llama-server" "$build/score" "$root/usr/bin/"
cp "$prebuilt"/libggml*.so "$prebuilt"/libllama.v*.so "$root/usr/lib/llama/"
for versioned in "$root"/usr/lib/llama/*.v*.so; do # libllama.v1.2.3.so, also loaded as libllama.so
  name=${versioned##*/}
  ln -s "$name" "$root/usr/lib/llama/${name%%.v*}.so"
done
for path in "${libraries[@]}"; do cp -L "$path" "$root/usr/lib/x86_64-linux-gnu/"; done
cp -L /lib64/ld-linux-x86-64.so.2 "$root/usr/lib64/"
echo "root:x:0:0:root:/root:/bin/false" >"$root/etc/passwd"
echo "127.0.0.1 localhost" >"$root/etc/hosts"
: >"$root/etc/resolv.conf"
echo "built=1" >"$root/etc/engine-release"
# Owner, times and order are fixed; only the modes are left, and a umask would show.
chmod -R u=rwX,go=rX "$root"
chmod 1777 "$root/tmp" "$root/var/tmp"

image() { # FILE: pack the root file system
  rm -f "$build/root.sqfs" "$build/$1"
  mksquashfs "$root" "$build/root.sqfs" -quiet -no-progress -noappend -all-root -mkfs-time 0 -all-time 0 -no-xattrs -comp gzip >/dev/null
  "$build/mksif" -arch amd64 -label org.opencontainers.image.title=llama-server "$build/root.sqfs" "$build/$1"
}
say "packing engine.sif"
image engine.sif
say "packing engine-drifted.sif, whose /etc/engine-release differs"
echo "built=2" >"$root/etc/engine-release"
image engine-drifted.sif

rm -rf "$out/unpacked"
for file in engine.sif engine-drifted.sif model.gguf; do
  chmod 0644 "$build/$file"
  mv -f "$build/$file" "$out/$file"
done

real=$(container_program)
rm -f "$out/apptainer"
if [[ -n $real ]] && reason=$("$real" exec --containall --no-home "$out/engine.sif" llama-server --version 2>&1); then
  say "containers run with $real: $("$real" --version)"
  printf '#!/bin/sh\nexec %q "$@"\n' "$real" >"$out/apptainer"
else
  if [[ -n $real ]]; then say "$real does not run the image here: ${reason##*$'\n'}"; fi
  command -v bwrap >/dev/null || die "neither apptainer nor bwrap is there: install bubblewrap"
  say "containers run with the stand-in: no working apptainer is installed"
  cp apptainer-standin "$out/apptainer"
fi
chmod 0755 "$out/apptainer"

{
  echo "{"
  for file in engine.sif engine-drifted.sif model.gguf apptainer; do
    printf '  "%s": "sha256:%s",\n' "$file" "$(sha256sum "$out/$file" | cut -d' ' -f1)"
  done
  printf '  "container_program": "%s"\n}\n' "$("$out/apptainer" --version)"
} >"$out/digests.json"
rm -rf "$root" "$build/root.sqfs"
echo "$key" >"$out/.key"
say "done: $out/engine.sif ($(du -k "$out/engine.sif" | cut -f1) KiB)"
