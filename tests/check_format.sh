#!/bin/sh
# clang-format over every C file below DIR (default: this checkout). 77: no clang-format 14, whose layout this is.
set -eu
cd "${1:-$(dirname "$0")/..}"
for tool in clang-format-14 clang-format; do
    case $("$tool" --version 2>/dev/null) in
    *version\ 14.*)
        find src io offload optim examples tests tools bench -name '*.[ch]' -exec "$tool" --dry-run -Werror {} + && exit 0
        echo "to mend it: $tool -i FILE" >&2
        exit 1
        ;;
    esac
done
exec sh tests/support/skip.sh clang_format "clang-format 14 is not installed"
