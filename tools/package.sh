#!/bin/sh
# tools/package.sh [FOLDER]: a .deb that depends on Debian's libraries, and a tarball that runs from wherever it is unpacked, in
# FOLDER (packages/). Only what they hold is built, in build-package/.
set -eu
cd "$(dirname "$0")/.."
out=${1:-packages}
mkdir -p "$out" build-package
out=$(cd "$out" && pwd)
tools/deps.sh ranks file dpkg-dev > /dev/null
cmake --preset release -B build-package -DCMAKE_INSTALL_PREFIX=/usr -DTIDEMILL_FAULTS=OFF \
    -DCMAKE_SKIP_INSTALL_ALL_DEPENDENCY=ON > build-package/configure.log 2>&1 || { cat build-package/configure.log; exit 1; }
cmake --build build-package --target help > build-package/targets
tools/build.sh build-package pages
tools/build.sh build-package changelog
for module in tidemill_mpi tidemill_cuda; do # where MPI and nvcc are
    ! grep -q "^$module: " build-package/targets || tools/build.sh build-package $module
done
cd build-package
cpack -B "$out" > cpack.log 2>&1 || { tail -n 30 cpack.log >&2; exit 1; }
rm -rf "$out/_CPack_Packages"
for deb in "$out"/*.deb; do
    ! dpkg-deb -f "$deb" Depends | grep -q mpi || { echo "tools/package.sh: one rank needs no MPI, and $deb does" >&2; exit 1; }
done
ls "$out"/*.deb "$out"/*.tar.gz
