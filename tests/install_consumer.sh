#!/bin/sh
# install_consumer.sh BUILD CC: installs BUILD into an empty prefix and builds a small project outside of the tree
# against it, once with pkg-config and once with find_package. Every installed header must compile on its own.
set -eu
build=$1
cc=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build" --prefix "$prefix" > "$work/install.log"
pc=$(find "$prefix" -name tidemill.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH

mkdir "$work/app"
cat > "$work/app/main.c" << 'C'
#include <stdio.h>
#include <tidemill/base/base.h>
#include <tidemill/io/io.h>

int main(void) {
    tm_json_doc *doc;
    tm_io *io;
    if (tm_json_parse(&doc, "{\"grist\": [7]}", 14, "text", 0, 0) != TM_OK) return 1;
    if (tm_io_open(&io, &(tm_io_opts){.engine = "sync"}) != TM_OK) return 2;
    printf("%d %s\n", (int)tm_json_get(tm_json_root(doc), "grist")->child->integer, tm_io_engine_name(io));
    tm_io_close(io);
    tm_json_free(doc);
    return 0;
}
C
cat > "$work/app/CMakeLists.txt" << 'C'
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(tidemill REQUIRED)
add_executable(app main.c)
target_link_libraries(app tidemill::tidemill)
C

expect() {
    got=$("$1")
    [ "$got" = "7 sync" ] || { echo "$1 printed \"$got\", expected \"7 sync\"" >&2; exit 1; }
}
cd "$work/app"
# shellcheck disable=SC2046
$cc main.c -o "$work/by-pkg-config" $(pkg-config --cflags --libs tidemill)
expect "$work/by-pkg-config"
[ "$(pkg-config --modversion tidemill)" ] || exit 1

cmake -S . -B "$work/app-build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" > "$work/configure.log" ||
    { cat "$work/configure.log"; exit 1; }
cmake --build "$work/app-build" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
expect "$work/app-build/app"

(cd "$prefix/include" && find tidemill -name '*.h') | while read -r header; do
    case $header in *_internal.h) echo "private header $header was installed" >&2; exit 1 ;; esac
    echo "#include <$header>" > header.c
    # shellcheck disable=SC2046
    $cc -std=c17 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags tidemill) header.c
done
"$prefix/bin/tidemill" --version

# MPI is nobody's need but the module's, which is found beside the program, wherever that is.
! ldd "$prefix/bin/tidemill" "$work/by-pkg-config" | grep libmpi || { echo "MPI is linked" >&2; exit 1; }
if [ -e "$build/lib/tidemill/libtidemill_mpi.so" ]; then
    mv "$prefix" "$work/moved"
    "$work/moved/bin/tidemill" doctor > "$work/doctor.log" || : # which may lack something else
    grep -q '^  ok  *several ranks' "$work/doctor.log" || { cat "$work/doctor.log"; exit 1; }
fi
