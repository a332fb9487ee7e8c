"""What the slow-link scripts share: jobs on two imitated nodes, the rates between their ranks, a hardware file of them."""
import json
import os

import lib

SLOW = str(lib.ROOT / "tests" / "bench" / "slow_link.sh")
ENV = dict(os.environ, OMP_NUM_THREADS="1", TIDEMILL_PROFILE=str(lib.WORK / "profile.json"))


def run(rate, per_node, arguments, what=None):
    """What tidemill prints on two nodes of `per_node` ranks, joined by a link of that rate."""
    return lib.output_of([SLOW, rate, str(per_node), lib.BINARY, *map(str, arguments)], ENV, what)


def json_of(text):
    return json.loads(text[text.index("{"):])


def measured(rate, per_node, group):
    """Bytes a second and rank, each way, and seconds of a start, of a gather and a reduction one after the other: steps
    are made of them in about equal parts; all groups at once, as in training."""
    out = run(rate, per_node, ["bench", "collective", "--op", "all_gather", "--op", "reduce_scatter", "--group", group,
                               "--size", "16MiB", "--size", "4KiB", "--seconds", "2", "--json"])
    results = json_of(out)["results"]
    large, small = [r for r in results if r["bytes"] > 4096], [r for r in results if r["bytes"] == 4096]
    return (sum(r["sent_bytes"] for r in large) / sum(r["seconds"] for r in large),
            sum(r["seconds"] for r in small) / len(small))


def hardware(rate, per_node):
    """A hardware file of what there is, its links measured just now."""
    node, start = measured(rate, per_node, "node") if per_node > 1 else (2e9, 30e-6)
    across, far_start = measured(rate, per_node, "across")
    gemm = max(r["flops_per_second"] for r in json.loads(lib.output_of([lib.BINARY, "bench", "gemm", "--json"], ENV))["results"]
               if r.get("type") in ("bf16", "fp32"))
    path = lib.WORK / "hardware.json"
    path.write_text(json.dumps({
        "name": f"two nodes, {rate}", "nodes": 2, "ranks_per_node": per_node, "host_memory": "8GiB",
        "cpu": {"cores": 1, "flops_fp32": gemm, "flops_bf16": gemm, "memory_bytes_per_second": 4e9},
        "link": {"bytes_per_second": node, "latency_seconds": start},
        "network": {"bytes_per_second": per_node * across, "latency_seconds": far_start}}))
    inside = f"{node / 1e6:.0f} MB/s in the node (start {start * 1e6:.0f} us), " if per_node > 1 else ""
    print(f"measured: {inside}{per_node * across / 1e6:.2f} MB/s a node between them (start {far_start * 1e6:.0f} us), "
          f"{gemm / 1e9:.0f} GFLOP/s a core", flush=True)
    return path
