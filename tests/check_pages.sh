#!/bin/sh
# tests/check_pages.sh PROGRAM SOURCE: manual pages and completions name every command, every option of its --help and every key
# that `train --keys` lists; shells that are here take their files.
set -eu
program=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() {
    echo "check_pages: $*" >&2
    failed=1
}

sh "$source/tools/pages.sh" "$program" "$work"
gunzip "$work"/man/man1/*.gz "$work"/man/man5/*.gz
bash=$work/bash-completion/completions/tidemill zsh=$work/zsh/site-functions/_tidemill
fish=$work/fish/vendor_completions.d/tidemill.fish

# roff writes "\-" for "-"
plain() { sed 's/\\-/-/g; s/\\f[A-Z]//g' "$1"; }

# ---- options ----
options=0
"$program" man --list > "$work/commands"
while read -r command; do
    page=$work/man/man1/tidemill-$(echo "$command" | tr ' ' -).1
    [ -s "$page" ] || { fail "no page of '$command'"; continue; }
    plain "$page" > "$work/page"
    # shellcheck disable=SC2086
    for option in $("$program" $command --help | sed -n 's/^  \(-[a-z], \)\{0,1\}--\([a-z0-9-]*\).*/\2/p'); do
        options=$((options + 1))
        grep -q -- "--$option" "$work/page" || fail "the page of '$command' lacks --$option"
        grep -- "'$command')" "$bash" | grep -q -- " --$option[ ']" || fail "bash: '$command' lacks --$option"
        grep -- "'$command')" "$zsh" | grep -q -- "--$option[=[]" || fail "zsh: '$command' lacks --$option"
        grep -q -- " -l $option " "$fish" || fail "fish lacks --$option"
    done
done < "$work/commands"

# ---- keys: those that mean something here ----
keys=0
plain "$work/man/man5/tidemill-config.5" > "$work/page"
"$program" train --keys | sed -n '/^Keys of/,/^Accepted/s/^  \([a-z][A-Za-z0-9_.]*\)$/\1/p' > "$work/keys"
while read -r key; do
    keys=$((keys + 1))
    grep -qx -- ".B $key" "$work/page" || fail "tidemill-config lacks $key"
    for file in "$bash" "$zsh"; do
        grep -q -e "--$key[ ='\")]" "$file" || fail "$(basename "$file") lacks --$key"
    done
    grep -q -- " -l $key " "$fish" || fail "fish lacks --$key"
done < "$work/keys"
[ "$options" -gt 100 ] && [ "$keys" -gt 100 ] || fail "$options options and $keys keys: that cannot be all"

# ---- shells ----
# NAME FILE OPTION: the shell's own parser
takes() {
    if command -v "$1" > /dev/null; then
        "$1" "$3" "$2" || fail "$1 does not take its file"
    else
        echo "check_pages: NOT CHECKED: there is no $1 here to parse its file (apt-get install $1)" >&2
    fi
}
takes bash "$bash" -n
takes zsh "$zsh" -n
takes fish "$fish" --no-execute
if command -v groff > /dev/null; then
    for page in "$work"/man/man?/*; do
        said=$(groff -man -Tutf8 -ww "$page" 2>&1 > /dev/null | grep -v 'cannot .*break\|adjust' | head -n 2)
        [ -z "$said" ] || fail "$(basename "$page"): $said"
    done
fi
echo "$options options of $(wc -l < "$work/commands") commands, $keys keys"
exit $failed
