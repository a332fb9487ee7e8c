#!/bin/sh
# Compares our GGUF files with other programs: names, shapes and keys with gguf-py's tables, logits and token ids of the
# fixtures in llama.cpp with those of transformers, logits of our adapters there with PEFT's, quantised files with those of
# llama.cpp's own quantiser. Not part of ctest: it downloads and builds llama-cpp-python (15 minutes of CPU).
#
#   tests/peers_gguf.sh [BINARY]     default: build/bin/tidemill
#   TIDEMILL_PEERS_GGUF=DIR          keeps the Python environment in DIR for the next time
#   TIDEMILL_PEERS=DIR               as for peers.sh: with PyTorch there, models that no fixture has are compared, too
#   TIDEMILL_FIXTURES=DIR            the golden fixtures; default: ../shared/fixtures/public
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
tidemill=$(realpath "${1:-$root/build/bin/tidemill}")
fixtures=${TIDEMILL_FIXTURES:-$root/../shared/fixtures/public}
[ -x "$tidemill" ] || { echo "peers: $tidemill is not there; build it, or name it" >&2; exit 2; }
[ -d "$fixtures" ] || { echo "peers: $fixtures is not there" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
venv=${TIDEMILL_PEERS_GGUF:-$work/venv}
if [ ! -e "$venv/ready" ]; then
    echo "peers: gguf and llama-cpp-python into $venv" >&2
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q numpy gguf==0.19.0 llama-cpp-python==0.3.36
    touch "$venv/ready"
fi
if [ -x "${TIDEMILL_PEERS:-}/bin/python" ]; then
    mkdir "$work/models"
    "$TIDEMILL_PEERS/bin/python" "$root/tests/peers_gguf_models.py" "$work/models"
else
    echo "peers: SKIP models of transformers: TIDEMILL_PEERS names no environment" >&2
fi
"$venv/bin/python" "$root/tests/peers_gguf.py" "$tidemill" "$fixtures" "$work"
mkdir "$work/quants"
"$venv/bin/python" "$root/tests/peers_quants.py" "$tidemill" "$fixtures" "$work/quants"
