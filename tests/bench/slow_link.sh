#!/bin/sh
# slow_link.sh RATE RANKS_PER_NODE PROGRAM [ARGUMENT]...: runs PROGRAM as an MPI job of two imitated nodes, two network
# namespaces joined by a veth pair that is shaped to RATE in each direction (tbf: "400mbit"). As root; Open MPI.
#   tests/bench/slow_link.sh 400mbit 2 build/bin/tidemill bench collective --op all_reduce --size 16MiB
# Ranks of a node talk through shared memory, ranks of different nodes by TCP over the link. Whatever happens the
# namespaces are removed at the end. 77: not root, or no ip, tc or mpirun.
set -eu
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
rate=$1
per_node=$2
shift 2
for tool in ip tc unshare mpirun; do
    command -v "$tool" > /dev/null || { echo "skipped: no $tool" >&2; exit 77; }
done
[ "$(id -u)" -eq 0 ] || { echo "skipped: not root" >&2; exit 77; }

a=tmlink-a-$$
b=tmlink-b-$$
work=$(mktemp -d)
clean() {
    ip netns del "$a" 2> /dev/null || :
    ip netns del "$b" 2> /dev/null || :
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM
ip netns add "$a" 2> "$work/error" || { echo "skipped: $(cat "$work/error")" >&2; exit 77; }
ip netns add "$b"
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b"
address=1
for ns in "$a" "$b"; do
    ip -n "$ns" link set lo up
    ip -n "$ns" addr add 10.199.0.$address/24 dev veth0
    ip -n "$ns" link set veth0 up
    tc -n "$ns" qdisc add dev veth0 root tbf rate "$rate" burst 256kb latency 50ms ||
        { echo "skipped: no tbf" >&2; exit 77; }
    address=$((address + 1))
done

# mpirun starts its daemon of the other node by "ssh HOST command": here, inside the other namespace.
cat > "$work/agent" << AGENT
#!/bin/sh
shift
exec ip netns exec $b unshare --uts sh -c "hostname $b; \$*"
AGENT
chmod +x "$work/agent"
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
TIDEMILL_NODE_SIZE=$per_node # one machine: real nodes would be told by shared memory, which both see
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM TIDEMILL_NODE_SIZE
# Names of their own, so that Open MPI does not take the two for one node.
ip netns exec "$a" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$a" \
    mpirun --bind-to none --oversubscribe -n $((2 * per_node)) --host "10.199.0.1:$per_node,10.199.0.2:$per_node" --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca oob_tcp_if_include veth0 --mca btl_tcp_if_include veth0 --mca btl self,vader,tcp --mca pml ob1 \
    -x TIDEMILL_NODE_SIZE "$@"
