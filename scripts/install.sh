#!/usr/bin/env bash
# Installs what building, testing and the quickstart need on Debian 12 or Ubuntu 24.04, as root or
# through sudo. It does nothing if all of it is installed. It never installs a CUDA toolkit.
#   --tests  also what single tests need: Chromium for tests/pages.py (Debian's; Ubuntu's package is
#            a snap), Open MPI for tests/ranks.py, PyTorch, and what --release installs
#   --fuzz   also what tests/fuzz/run.sh needs
#   --lint   also what scripts/lint.sh needs
#   --release  also what scripts/release.sh needs
set -euo pipefail

packages=(
  gcc g++ libc6-dev cmake ninja-build pkg-config  # to build
  zlib1g-dev liblzma-dev libyaml-dev libcsv-dev libcjson-dev  # the program's libraries
  libcmocka-dev liblinear-dev                     # unit tests
  python3 python3-numpy python3-sklearn python3-networkx  # tests against other programs
  help2man                                        # man pages
  xz-utils                                        # the quickstart's comparison
)
release=(dpkg-dev patchelf git python3-pip python3-setuptools python3-wheel)
case ${1:-} in
  --tests)
    packages+=(chromium locales openmpi-bin libopenmpi-dev python3-torch "${release[@]}")
    ;;
  --fuzz) packages+=(clang libclang-rt-dev libomp-dev) ;;
  --release) packages+=("${release[@]}") ;;
  --lint) packages+=(clang-format-14 clang-tidy-14) ;;
  '') ;;
  *) echo "usage: scripts/install.sh [--tests|--fuzz|--lint|--release]" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  echo "install.sh: not Debian or Ubuntu: expecting to find ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: run it as root, or install sudo; missing: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -qq -y \
    -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >"$log" 2>&1 </dev/null
}

echo "install.sh: installing ${missing[*]}" >&2
if ! { apt update && apt install --no-install-recommends "${missing[@]}"; }; then
  cat "$log" >&2
  echo "install.sh: apt-get failed (above)" >&2
  exit 1
fi
