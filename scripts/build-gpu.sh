#!/bin/bash
# Builds sbench-gpu into the given folder:
#
#   build-gpu.sh DIR [LDFLAGS]
#
# It loads the node's NVML at run time, which is why it is no static program: it
# asks for no symbol of glibc newer than 2.28, so that it starts on RHEL 8 nodes
# wherever it was built.
set -euo pipefail
out=${1:?usage: build-gpu.sh DIR [LDFLAGS]} ldflags=${2:-}
root=$(cd "$(dirname "$0")/.." && pwd)
stubs=$(mktemp -d)
trap 'rm -rf "$stubs"' EXIT

# The base version of glibc's symbols, and dlinfo's own where it is later.
case $(uname -m) in
x86_64) base=GLIBC_2.2.5 dlinfo=GLIBC_2.3.3 ;;
aarch64) base=GLIBC_2.17 dlinfo=GLIBC_2.17 ;;
*)
  echo "build-gpu: $(uname -m): no node of this kind is known" >&2
  exit 1
  ;;
esac

# stub FILE SONAME MACRO MAP: an empty library with versions.
stub() {
  printf '%s\n' "$4" >"$stubs/map"
  "${CC:-cc}" -w -fno-builtin -shared -nostdlib -fPIC "-D$3" "-Wl,-soname,$2" "-Wl,--version-script=$stubs/map" -o "$stubs/lib$1.so" "$root/scripts/glibc/old.c"
}
stub oldpthread libpthread.so.0 PTHREAD "$base { global: *; };"
if [ "$base" = "$dlinfo" ]; then
  stub olddl libdl.so.2 DL "$base { global: *; };"
else
  stub olddl libdl.so.2 DL "$base { global: dlopen; dlsym; dlclose; dlerror; }; $dlinfo { global: dlinfo; } $base;"
fi

cd "$root"
CGO_ENABLED=1 CGO_CFLAGS="-Wno-deprecated-declarations" \
  CGO_LDFLAGS="-Wl,--no-as-needed -L$stubs -loldpthread -lolddl" \
  "${GO:-go}" build -trimpath -ldflags "$ldflags" -o "$out/" ./cmd/sbench-gpu
