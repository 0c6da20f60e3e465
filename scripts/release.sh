#!/usr/bin/env bash
# Makes a release of what is committed, in the folder dist: the source, a .deb of this system, a wheel
# for every Linux with at least this system's C library, and their checksums.
#   scripts/release.sh               builds in build-release, for all GPUs if there is a CUDA toolkit
#   BUILD=FOLDER scripts/release.sh  takes what is compiled there
# The version stands in CMakeLists.txt, and CHANGELOG.md must have its section, with a date.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -nE 's/^project\(smallworld VERSION ([0-9.]+).*/\1/p' CMakeLists.txt)
if ! grep -qE "^## $version, [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md; then
  echo "release.sh: CHANGELOG.md: expected a section '## $version, YEAR-MONTH-DAY'" >&2
  exit 1
fi
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
  echo "release.sh: changes are not committed; the source's archive leaves them out" >&2
fi
scripts/install.sh --release

dist=${DIST:-dist}
rm -rf "$dist"
mkdir -p "$dist"
dist=$(realpath "$dist")
git archive --prefix="smallworld-$version/" HEAD | gzip -9n >"$dist/smallworld-$version.tar.gz"

if [ -z "${BUILD:-}" ]; then
  BUILD=build-release
  scripts/build.sh "$BUILD" -DCMAKE_BUILD_TYPE=Release -DSMALLWORLD_ALL_GPUS=ON \
    -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON -DSMALLWORLD_MPI=OFF \
    -DSMALLWORLD_PYTHON_DIR=lib/python3/dist-packages -- installed
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quiet() { # what a command says if it fails
  "$@" >"$log" 2>&1 || { cat "$log" >&2; return 1; }
}
(cd "$BUILD" && quiet cpack -D CPACK_OUTPUT_FILE_PREFIX="$dist" -D CPACK_PACKAGING_INSTALL_PREFIX=/usr)
rm -rf "$dist/_CPack_Packages"
quiet env SMALLWORLD_BUNDLE=1 SMALLWORLD_BUILD_DIR="$PWD/$BUILD" /usr/bin/python3 -m pip wheel . \
  --no-build-isolation --no-deps --no-index --wheel-dir "$dist"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
