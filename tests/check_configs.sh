#!/bin/sh
# check_configs.sh TIDEMILL SOURCE: `plan` takes the configurations of examples/ as they are, each under its own
# budget. SmolLM2 need not be here: examples/tiny stands in for it, and a folder made here for the offload paths.
set -eu
tidemill=$1
cd "$2"
work=$(mktemp -d "$(dirname "$tidemill")/configs.XXXXXX")
trap 'rm -rf "$work"' EXIT
offload="--set zero_optimization.offload_param.nvme_path=$work --set zero_optimization.offload_optimizer.nvme_path=$work"
sed "s|/mnt/nvme/offload|$work|" examples/ds_config.json > "$work/ds.json"
for config in examples/demo.json examples/lora.json examples/qlora.json examples/dpo.json examples/pretrain.json examples/ds_train.json examples/tiny/demo.json examples/tiny/lora.json examples/mpi/*.json; do
    set --
    ! grep -q nvme_path "$config" || set -- $offload
    [ "$config" != examples/pretrain.json ] || set -- --set data.train=examples/skill/train.jsonl # the user's text
    [ "$config" != examples/ds_train.json ] || set -- --set deepspeed="$work/ds.json"
    "$tidemill" plan "$config" --set model=examples/tiny "$@" > "$work/out" 2> "$work/err" || {
        echo "plan $config: exit status $?"
        cat "$work/err"
        exit 1
    }
done
# The adapter that they describe is what training writes.
"$tidemill" train examples/tiny/lora.json --quiet --resume never --set max_steps=2 --set output_dir="$work/lora" $offload
for file in adapter_config.json adapter_model.safetensors; do
    [ -s "$work/lora/$file" ] || { echo "examples/tiny/lora.json wrote no $file"; exit 1; }
done
[ ! -e "$work/lora/model.safetensors" ] || { echo 'examples/tiny/lora.json wrote the base'; exit 1; }
