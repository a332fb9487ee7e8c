#!/bin/sh
# Planning time and memory over micro-batches, and what of it the proof is.
#   tests/bench/planning.sh [TIDEMILL] [MOST]     MOST micro-batches (4096), in steps of four
# One model of two blocks (so that plans are nearly all there is), one of 134 M parameters, one of 1.2 B; of each a
# million, too, which are refused.
set -eu
tm=${1:-build/bin/tidemill} most=${2:-4096}
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
export OMP_NUM_THREADS=1
model() { # name hidden intermediate layers heads kv vocabulary budget
    mkdir "$dir/$1"
    cat >"$dir/$1/config.json" <<E
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": $2, "intermediate_size": $3,
 "num_hidden_layers": $4, "num_attention_heads": $5, "num_key_value_heads": $6, "vocab_size": $7,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu"}
E
    echo "{\"model\": \"$dir/$1\", \"init\": \"random\", \"data\": {\"seq_len\": 64}, \"output_dir\": \"$dir/out\",
           \"memory\": {\"host_budget\": \"$8\"}}" >"$dir/$1.json"
    n=1
    while [ "$n" -le "$most" ]; do
        /usr/bin/time -f "%U %M" -o "$dir/time" "$tm" plan "$dir/$1.json" --no-measure --json \
            --set gradient_accumulation_steps=$n >"$dir/plan" 2>"$dir/err" || { tail -1 "$dir/err"; return 0; }
        sed 's/.*"operations": \([0-9]*\), "planning_seconds": \([^,]*\), "proof_seconds": \([^,]*\),.*/\1 \2 \3/' "$dir/plan" |
            paste - "$dir/time" | awk -v m="$1" -v n="$n" \
                '{printf "%-8s %7d %10d %9.3f %9.3f %6.1f%% %9.2f %8.1f\n", m, n, $1, $2, $3, 100 * $3 / $2, $4, $5 / 1024}'
        n=$((n * 4))
    done
    /usr/bin/time -f "%U %M" -o "$dir/time" "$tm" plan "$dir/$1.json" --no-measure --set gradient_accumulation_steps=1000000 \
        >"$dir/plan" 2>"$dir/err" || true
    sed 's/.*at most \([0-9]*\) fit.*/\1/;$!d' "$dir/err" | paste - "$dir/time" | awk -v m="$1" \
        'NR == 1 {n = $1} {seconds = $(NF - 1); kib = $NF} END {printf "%-8s 1000000 refused, %d fit %31.2f %8.1f\n", m, n, seconds, kib / 1024}'
}
echo "model     batches operations   seconds     proof   share processor      MiB"
model tiny 64 128 2 4 2 512 8GiB
model 134M 576 1536 30 9 3 49152 6GiB
model 1.2B 2048 8192 16 32 8 32000 12GiB
