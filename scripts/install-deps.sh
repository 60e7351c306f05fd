#!/usr/bin/env bash
# Installs from Debian's packages what `make demo` and `make test` need and this
# machine lacks; does nothing when all is there.
#
#   install-deps.sh           install, as root or through sudo
#   install-deps.sh --check   only say what is missing; exit 1 if anything is
#
# No service needs to run: the private cluster starts its own.
set -euo pipefail

check=0
case ${1:-} in
"") ;;
--check) check=1 ;;
*)
  echo "usage: install-deps.sh [--check]" >&2
  exit 2
  ;;
esac

# Ordinary users often lack the folders of daemons.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

packages=()
need() { # PACKAGE COMMAND...: the package is needed unless the command succeeds
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || packages+=("$package")
}
program() { command -v "$1"; }
file() { compgen -G "$1"; }

need slurmctld program slurmctld
need slurmd program slurmd
need slurm-client program sbatch
need munge program munged
need slurmdbd program slurmdbd
need mariadb-server-core program mariadbd
program initdb >/dev/null 2>&1 || need postgresql file '/usr/lib/postgresql/*/bin/initdb'
program psql >/dev/null 2>&1 || need postgresql-client file '/usr/lib/postgresql/*/bin/psql'
need util-linux program setpriv
need squashfs-tools program mksquashfs
need shellcheck program shellcheck
need gcc program cc
need libc6-dev file '/usr/include/stdio.h'
# Containers: apptainer or, in its place, bubblewrap.
program apptainer >/dev/null 2>&1 || program singularity >/dev/null 2>&1 || need bubblewrap program bwrap
# The demo's engine: a prebuilt library from an npm package, which uses libffi.
libffi() { [[ $(ldconfig -p) == *libffi.so.8* ]]; }
need libffi8 libffi
need nodejs program node
need npm program npm

if [ ${#packages[@]} -eq 0 ]; then
  exit 0
fi
echo "missing: ${packages[*]}" >&2
if [ "$check" -eq 1 ]; then
  exit 1
fi

install=(apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${packages[@]}")
if ! command -v apt-get >/dev/null; then
  echo "install-deps.sh: no apt-get here: install what provides the packages above (Debian's names), then try again" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  # Without a terminal nobody can type a password.
  if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
    as_root=(sudo)
  else
    echo "install-deps.sh: neither root nor sudo: run this as root, then try again:" >&2
    echo "  apt-get update && ${install[*]}" >&2
    exit 1
  fi
fi
as_root+=(env DEBIAN_FRONTEND=noninteractive)

# An old list may name packages that are no longer there; without network an old
# one may do.
"${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -q ||
  echo "install-deps.sh: apt-get update failed: going on with the lists that are there" >&2
"${as_root[@]}" "${install[@]}"
