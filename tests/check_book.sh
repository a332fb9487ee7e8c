#!/bin/sh
# tests/check_book.sh PROGRAM SOURCE: the book (docs/book) is true. Blocks "```sh" of a chapter are run one after the other, in a
# folder with a small model and data; "```json NAME" and "```yaml NAME" become files there. The table of names is what the program
# knows, and what "What can go wrong" quotes is in the source.
#   --names PROGRAM   prints that table
set -eu
names() { # PROGRAM
    echo '| name | is here |'
    echo '|---|---|'
    "$1" train --keys | awk '/^  [a-z]/ { key = $1 } /^      the same as / { print "| `" key "` | `" $4 "` |" }' | LC_ALL=C sort
}
if [ "${1:-}" = --names ]; then
    names "$2"
    exit 0
fi
program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$2"
work=$(mktemp -d "$(dirname "$program")/book.XXXXXX")
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=1
PATH=$(dirname "$program"):$PATH
failed=0

for chapter in docs/book/*.md; do
    name=$(basename "$chapter" .md)
    here=$work/$name
    mkdir -p "$here/nvme"
    cp -r examples/tiny "$here/model"
    cp -r hardware "$here/hardware"
    head -n 40 examples/skill/train.jsonl > "$here/train.jsonl"
    head -n 8 examples/skill/heldout.jsonl > "$here/heldout.jsonl"
    head -n 12 examples/skill/pairs.jsonl > "$here/pairs.jsonl"
    cp README.md "$here/text.txt"
    # files first, then the commands
    awk -v here="$here" '/^```(json|yaml) / { file = here "/" $2; next } /^```$/ { file = "" } file { print > file }' "$chapter"
    awk '/^```sh$/ { on = 1; next } /^```$/ { on = 0 } on' "$chapter" > "$here/commands"
    (cd "$here" && sh -eux commands) > "$work/$name.out" 2>&1 || {
        failed=1
        echo "$chapter: this command failed:" >&2
        grep "^+ " "$work/$name.out" | tail -n 1 >&2
        tail -n 3 "$work/$name.out" >&2
    }
done

names "$program" > "$work/names"
sed -n '/<!-- names:/,/<!-- \/names/p' docs/book/coming-from.md | sed '1d;$d' > "$work/said"
cmp -s "$work/names" "$work/said" || {
    echo "docs/book/coming-from.md: the table of names is not the program's; tests/check_book.sh --names prints it" >&2
    failed=1
}

# Of a row of "What can go wrong" the first cell; each of its quotes is a literal's part.
quotes=0
sed -n 's/^| \(`.*\)/\1/p' docs/book/what-can-go-wrong.md | sed 's/ | .*//' | grep -o '`[^`]*`' | tr -d '`' > "$work/quotes"
while read -r quote; do
    quotes=$((quotes + 1))
    grep -rqF --include='*.c' -- "$quote" src tools offload io || {
        echo "docs/book/what-can-go-wrong.md: nothing says \"$quote\"" >&2
        failed=1
    }
done < "$work/quotes"
[ "$quotes" -ge 30 ] || { echo "only $quotes of the likeliest refusals" >&2; failed=1; }
commands=$(cat "$work"/*/commands | grep -c .)
[ "$commands" -ge 40 ] || { echo "only $commands commands: that cannot be all" >&2; failed=1; }
echo "$commands commands of $(ls docs/book/*.md | wc -l) chapters, $quotes quotes"
exit $failed
