#!/bin/sh
# The Debian packages that tidemill needs, in one place, and their installation.
#   tools/deps.sh build [MORE...]   to build and run the program
#   tools/deps.sh test  [MORE...]   that, and to run the tests and checks
#   tools/deps.sh all   [MORE...]   that, and for the presets tsan and fuzz
# Only what is missing is installed (so nothing is fetched where all is there), as root or with sudo.
set -eu
packages='build-essential cmake ninja-build pkg-config
          liburing-dev libxxhash-dev libpcre2-dev libutf8proc-dev libopenblas0-pthread
          libopenmpi-dev openmpi-bin'
for_tests='libcmocka-dev libglpk-dev libdnnl2 clang-format'
for_clang='clang-14 libomp-14-dev'

case ${1:-} in
build) ;;
test) packages="$packages $for_tests" ;;
all) packages="$packages $for_tests $for_clang" ;;
*)
    echo "usage: tools/deps.sh build|test|all [MORE PACKAGES...]" >&2
    exit 2
    ;;
esac
shift
if ! command -v dpkg-query > /dev/null; then
    # shellcheck disable=SC2086
    echo "tools/deps.sh: this is no Debian; needed are the equivalents of:" $packages "$@" >&2
    exit 0 # the configuration says what is really missing
fi

missing=
for package in $packages "$@"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null) || status=absent
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo > /dev/null || {
        echo "tools/deps.sh: to be installed by root: apt-get install$missing" >&2
        exit 1
    }
    root=sudo
fi
echo "installing:$missing"
install() {
    # shellcheck disable=SC2086
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing < /dev/null
}
# A fresh machine or container has no package lists, or old ones that name files that are gone.
$root apt-get update -q < /dev/null || echo "tools/deps.sh: apt-get update failed; trying with the lists that are here" >&2
install || {
    echo "tools/deps.sh: apt-get could not install:$missing" >&2
    exit 1
}
