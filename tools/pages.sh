#!/bin/sh
# tools/pages.sh PROGRAM FOLDER: the manual pages and the shells' completions, by the program itself, as they are installed
# below a prefix's share: FOLDER/man/man1, man5, bash-completion/completions, zsh/site-functions, fish/vendor_completions.d.
set -eu
program=$1
folder=$2
mkdir -p "$folder/man/man1" "$folder/man/man5" "$folder/bash-completion/completions" "$folder/zsh/site-functions" \
    "$folder/fish/vendor_completions.d"
"$program" man > "$folder/man/man1/tidemill.1"
"$program" man config > "$folder/man/man5/tidemill-config.5"
"$program" man --list | while read -r command; do
    "$program" man "$command" > "$folder/man/man1/tidemill-$(echo "$command" | tr ' ' -).1"
done
gzip -9nf "$folder"/man/man1/*.1 "$folder"/man/man5/*.5
"$program" completion bash > "$folder/bash-completion/completions/tidemill"
"$program" completion zsh > "$folder/zsh/site-functions/_tidemill"
"$program" completion fish > "$folder/fish/vendor_completions.d/tidemill.fish"
