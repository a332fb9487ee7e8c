#!/bin/sh
# The two commands of the README on a machine that has nothing: a Debian of its essential packages alone (debootstrap,
# minbase) in a scratch folder, with a checkout of HEAD and nothing beside it.
#   tests/bare.sh          examples/demo.sh --tiny, then tests/run.sh to its end
#   tests/bare.sh --demo   only the first half, which .ci/run does
#   tests/bare.sh --deb FILE   instead: the package (tools/package.sh) is installed there, and trains: tests/first_day.sh
#   --dir DIR              where the root is made (default: /var/tmp); about 5 GB, on a disk
# The mirror is this machine's own, from apt's configuration; packages that apt has here already are not fetched again.
# It needs root, and to be allowed to mount: where it is not, or there is no Debian mirror, it says so and exits 0 with
# nothing done (--demo), else 77. Mounts live in a namespace of their own and end with it, as do processes.
set -eu
usage='usage: tests/bare.sh [--demo | --deb FILE] [--dir DIR]'
demo=
deb=
dir=/var/tmp
while [ $# -gt 0 ]; do
    case $1 in
    --demo) demo=1 ;;
    --deb)
        [ $# -ge 2 ] && [ -f "$2" ] || { echo "$usage" >&2; exit 2; }
        deb=$(realpath "$2")
        shift
        ;;
    --dir)
        [ $# -ge 2 ] || { echo "$usage" >&2; exit 2; }
        dir=$2
        shift
        ;;
    *)
        echo "$usage" >&2
        exit 2
        ;;
    esac
    shift
done
source=$(cd "$(dirname "$0")/.." && pwd)
say() { printf '== bare: %s\n' "$*"; }
left_out() {
    say "left out: $*"
    [ -n "$demo" ] || exit 77
    exit 0
}

# ---- what this machine has ----

# "URI SUITE COMPONENT" of the release that runs here, its updates included, from apt's configuration.
sources() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        awk -v release="$release" '($2 == release || index($2, release "-") == 1) && $3 == "main" && !seen[$0]++'
}
look_around() {
    [ "$(id -u)" -eq 0 ] || left_out 'it needs root'
    command -v apt-get > /dev/null || left_out 'this is no Debian'
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    mirror=$(sources | awk -v release="$release" '$2 == release { print $1; exit }')
    [ -n "$mirror" ] || left_out "apt knows no mirror of $release"
    unshare --mount --pid --fork true 2> /dev/null || left_out 'mounting is not allowed here'
    "$source/tools/deps.sh" only debootstrap || left_out 'debootstrap could not be installed'
}

# ---- the root ----

make_root() {
    begin=$(date +%s)
    # apt's own copies, which are checked against the mirror's lists
    DPKG_FORCE=unsafe-io debootstrap --variant=minbase --cache-dir=/var/cache/apt/archives "$release" "$root" "$mirror" > "$work/log" 2>&1 || {
        tail -n 5 "$work/log" >&2
        tail -n 5 "$root/debootstrap/debootstrap.log" >&2 2> /dev/null || true
        left_out "debootstrap failed: is the mirror there?"
    }
    sources | sed 's/^/deb /' > "$root/etc/apt/sources.list"
    apt-config dump | grep -E '^Acquire::(http|https)::.*"[^"]' > "$root/etc/apt/apt.conf.d/90machine" || :
    for file in /etc/resolv.conf /etc/hosts; do [ ! -e $file ] || cat $file > "$root$file"; done
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || {
        mkdir -p "$root/etc/ssl/certs"
        cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    }
    # Links where that can be, so that what is fetched in there never gets here.
    find /var/cache/apt/archives -maxdepth 1 -name '*.deb' -exec cp -l -t "$root/var/cache/apt/archives" {} + 2> /dev/null || :
    echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/unsafe-io" # nobody needs it after a power failure
    mkdir -p "$root/tidemill"
    checkout | tar -x -C "$root/tidemill"
    say "a root of $(du -sm --exclude=archives "$root" | cut -f 1) MiB in $(($(date +%s) - begin)) s"
}
checkout() {
    if git -c safe.directory='*' -C "$source" archive HEAD 2> /dev/null; then
        [ -z "$(git -c safe.directory='*' -C "$source" status --porcelain)" ] ||
            say 'what is not committed is not in it' >&2
        return
    fi
    say 'no git: the files of this folder, whatever they are' >&2
    tar -C "$source" --exclude='./build*' --exclude=./.git -c .
}
mount_all() {
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o size=4g tmpfs "$root/dev/shm"
}
# Nothing of this machine's environment but how to reach the mirror.
inside() {
    begin=$(date +%s)
    say "$*"
    status=0
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
        ${no_proxy:+no_proxy="$no_proxy"} \
        chroot "$root" sh -c 'cd /tidemill && exec "$@"' sh "$@" < /dev/null || status=$?
    say "$*: exit $status after $(($(date +%s) - begin)) s"
    [ "$status" -eq 0 ] || exit 1
}

if [ -z "${TIDEMILL_BARE_ROOT:-}" ]; then
    look_around
    work=$(mktemp -d "$dir/tidemill-bare.XXXXXX")
    root=$work/root
    trap 'rm -rf --one-file-system "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    make_root
    [ -z "$deb" ] || cp "$deb" "$root/tidemill/package.deb"
    status=0
    TIDEMILL_BARE_ROOT=$root unshare --mount --propagation private --pid --fork --kill-child \
        sh "$source/tests/bare.sh" ${demo:+--demo} ${deb:+--deb "$deb"} || status=1
    exit "$status"
fi
root=$TIDEMILL_BARE_ROOT
mount_all
if [ -n "$deb" ]; then
    inside tests/first_day.sh /tidemill/package.deb
    exit 0
fi
inside examples/demo.sh --tiny
[ -z "$demo" ] || exit 0
inside tests/run.sh
