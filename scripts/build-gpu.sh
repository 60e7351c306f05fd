#!/bin/bash
# Builds sbench-gpu into the given folder, and sbench-gpu-arm64 for nodes with
# Grace processors where the compiler for them is installed (gcc-aarch64-linux-gnu):
#
#   build-gpu.sh DIR [LDFLAGS]
#
# It loads the node's NVML at run time, which is why it is no static program: it
# asks for no symbol of glibc newer than 2.28, so that it starts on RHEL 8 nodes
# wherever it was built.
set -euo pipefail
out=${1:?usage: build-gpu.sh DIR [LDFLAGS]} ldflags=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

# stub CC FILE SONAME MACRO MAP: an empty library with versions.
stub() {
  printf '%s\n' "$5" >"$new/map"
  "$1" -w -fno-builtin -shared -nostdlib -fPIC "-D$4" "-Wl,-soname,$3" "-Wl,--version-script=$new/map" -o "$new/lib$2.so" "$root/scripts/glibc/old.c"
  mv -f "$new/lib$2.so" "$stubs/lib$2.so"
}

# build GOARCH CC FILE
build() {
  local arch=$1 cc=$2 file=$3 base dlinfo
  # Always the same folder: Go builds everything again where its flags differ.
  stubs=$root/.cache/glibc/$arch
  mkdir -p "$stubs"
  # The base version of glibc's symbols, and dlinfo's own where it is later.
  case $arch in
  amd64) base=GLIBC_2.2.5 dlinfo=GLIBC_2.3.3 ;;
  arm64) base=GLIBC_2.17 dlinfo=GLIBC_2.17 ;;
  esac
  stub "$cc" oldpthread libpthread.so.0 PTHREAD "$base { global: *; };"
  if [ "$base" = "$dlinfo" ]; then
    stub "$cc" olddl libdl.so.2 DL "$base { global: *; };"
  else
    stub "$cc" olddl libdl.so.2 DL "$base { global: dlopen; dlsym; dlclose; dlerror; }; $dlinfo { global: dlinfo; } $base;"
  fi
  CGO_ENABLED=1 GOARCH=$arch CC=$cc CGO_CFLAGS="-Wno-deprecated-declarations" \
    CGO_LDFLAGS="-Wl,--no-as-needed -L$stubs -loldpthread -lolddl" \
    "${GO:-go}" build -trimpath -ldflags "$ldflags" -o "$out/$file" ./cmd/sbench-gpu
}

mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$root"
case $(uname -m) in
x86_64)
  build amd64 "${CC:-cc}" sbench-gpu
  if command -v aarch64-linux-gnu-gcc >/dev/null; then
    build arm64 aarch64-linux-gnu-gcc sbench-gpu-arm64
  fi
  ;;
aarch64) build arm64 "${CC:-cc}" sbench-gpu ;;
*)
  echo "build-gpu: $(uname -m): no node of this kind is known" >&2
  exit 1
  ;;
esac
