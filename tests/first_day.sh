#!/bin/sh
# tests/first_day.sh PACKAGE.deb: a new user's first day, on a Debian with nothing but the package: installed, asked for help, LoRA on
# 200 rows in one command, a question, what to take away. What it prints is docs/FIRST_DAY.md's transcript. As root, in a scratch
# root (tests/bare.sh --deb): it installs packages.
set -eu
package=$1
here=$(cd "$(dirname "$0")/.." && pwd)
apt-get -qq update > /dev/null
type_in() { # what a user types, and what is answered
    printf '\n$ %s\n' "$*"
    sh -c "$*" 2>&1
}
type_in "apt-get -qq install --no-install-recommends -y $package > /dev/null 2>&1 && dpkg -s tidemill | grep -E '^(Status|Version)'"
! find /usr/lib -name 'libmpi.so*' | grep . || { echo 'first_day: one machine needs no MPI' >&2; exit 1; }
mkdir -p /home/me
cd /home/me
cp -r "$here/examples/tiny" model
head -n 200 "$here/examples/skill/train.jsonl" > rows.jsonl
wc -l rows.jsonl
type_in 'tidemill --help'
type_in 'tidemill train --help'
begin=$(date +%s)
type_in 'tidemill train --model model --dataset rows.jsonl --tuner_type lora --output_dir out'
echo "($(($(date +%s) - begin)) seconds)"
[ -s out/adapter_model.safetensors ] || { echo 'first_day: no adapter' >&2; exit 1; }
type_in 'ls out'
type_in 'tidemill top out --once'
type_in 'tidemill generate --model model --adapter out --prompt "The tide" --max-new-tokens 12'
type_in 'tidemill export out merged.gguf --merge-adapter --dtype q8_0 > /dev/null && ls -s merged.gguf'
type_in 'man -w tidemill-train 2> /dev/null || ls /usr/share/man/man1/tidemill-train.1.gz'
said=$(OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 tidemill train --model model --dataset rows.jsonl 2>&1) && exit 1
case $said in
*'MPI cannot be loaded: '*'apt-get install openmpi-bin'*) ;;
*) echo "first_day: under a launcher without MPI: $said" >&2; exit 1 ;;
esac
