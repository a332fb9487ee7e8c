#!/bin/sh
# The Debian packages that tidemill needs, in one place, and their installation.
#   tools/deps.sh build [MORE...]   to build the program and run it on one rank
#   tools/deps.sh ranks [MORE...]   that, and for several ranks: MPI
#   tools/deps.sh test  [MORE...]   that, and to run the tests and checks
#   tools/deps.sh all   [MORE...]   that, and for the presets tsan and fuzz
#   tools/deps.sh only  MORE...     just these
# Only what is missing is installed (so nothing is fetched where all is there), as root or with sudo.
set -eu
packages='build-essential cmake ninja-build pkg-config
          liburing-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libmicrohttpd-dev libyaml-dev libedit-dev
          libopenblas0-pthread'
for_ranks='libopenmpi-dev openmpi-bin'
for_tests='libcmocka-dev libglpk-dev clang-format python3 zsh fish' # shells: for the completions
for_clang='clang-14 libclang-rt-14-dev libomp-14-dev' # the runtimes of its sanitizers and fuzzers are a package of their own

case ${1:-} in
build) ;;
ranks) packages="$packages $for_ranks" ;;
test) packages="$packages $for_ranks $for_tests" ;;
all) packages="$packages $for_ranks $for_tests $for_clang" ;;
only) packages= ;;
*)
    echo "usage: tools/deps.sh build|ranks|test|all|only [MORE PACKAGES...]" >&2
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
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    $root env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" < /dev/null
}
# The log's lines as some signs of life: so many of so many packages.
progress() {
    awk -v total="$1" '
        /^Unpacking / { if (int(++n * 4 / total) > int((n - 1) * 4 / total)) print "unpacked " n "/" total; fflush() }
        /^Setting up / { if (int(++m * 2 / total) > int((m - 1) * 2 / total)) print "set up " m "/" total; fflush() }'
}
# Its whole output is in the log, which speaks only if it fails.
install() {
    # shellcheck disable=SC2086
    count=$(apt install -s --no-install-recommends $missing 2> /dev/null | grep -c '^Inst ') || count=0
    [ "$count" -gt 0 ] || count=1
    echo "installing $count packages:$missing and what they need"
    # shellcheck disable=SC2086
    { apt install -y --no-install-recommends $missing 2>&1 || echo 'apt-get failed'; } | tee "$log" | progress "$count"
    [ "$(tail -n 1 "$log")" != 'apt-get failed' ]
}
# A fresh machine or container has no package lists, or old ones that name files that are gone.
echo "fetching the lists of packages"
apt update > "$log" 2>&1 || {
    tail -n 5 "$log" >&2
    echo "tools/deps.sh: apt-get update failed; trying with the lists that are here" >&2
}
install || {
    tail -n 20 "$log" >&2
    echo "tools/deps.sh: apt-get could not install:$missing" >&2
    exit 1
}
