#!/bin/sh
# skip.sh TEST REASON: a shell or Python test leaves by it (exec) where it cannot run here: status 77, and the reason where
# tests/run.sh lists all of them. What tests/support/skip.h is for C.
line="$1: all of it: $2"
echo "SKIP $line" >&2
[ -z "${TIDEMILL_SKIPS:-}" ] || echo "$line" >> "$TIDEMILL_SKIPS"
exit 77
