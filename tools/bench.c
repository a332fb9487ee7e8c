/* tidemill bench: the table of what can be measured, and nothing else. */
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

static const tm_command benches[] = {
    {"io", tm_bench_io, "folders: rates, latencies and processor time of reads and writes"},
    {"adam", tm_bench_adam, "the optimizer's kernel"},
    {"gemm", tm_bench_gemm, "matrix products on each back-end"},
    {"step", tm_bench_step, "training steps, with and without their disk and compute halves"},
    {"generate", tm_bench_generate, "first tokens, tokens a second, bytes of weights a second"},
    {"collective", tm_bench_collective, "reductions and gathers between ranks"},
    {"device", tm_bench_device, "copies between host memory and a device's arena"},
};

static void print_help(FILE *f) {
    fputs("usage: tidemill bench WHAT [ARGUMENT]...\n\nMeasures a part of this machine or of this program.\n\n", f);
    for (size_t i = 0; i < TM_COUNT(benches); i++) fprintf(f, "  %-12s%s\n", benches[i].name, benches[i].help);
    fputs("\n'tidemill bench WHAT --help' explains one.\n\n"
          "example:\n  tidemill bench io /nvme --rw mixed --block 1MiB --depth 8\n",
          f);
}

static int unknown(const char *name) {
    const char *near = tm_cli_suggest(name, benches, TM_COUNT(benches), sizeof *benches);
    if (near) return tm_cli_wrong("bench", "nothing called '%s' can be measured; did you mean '%s'?", name, near);
    return tm_cli_wrong("bench", "nothing called '%s' can be measured", name);
}

static void describe_all(void) {
    for (size_t i = 0; i < TM_COUNT(benches); i++) {
        char name[32], *argv[] = {name, NULL};
        snprintf(name, sizeof name, "bench %s", benches[i].name);
        (void)benches[i].run(1, argv);
    }
}

int tm_cmd_bench(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : NULL;
    if (tm_cli_describing()) {
        describe_all();
        return TM_EXIT_DONE;
    }
    if (!what) {
        print_help(stderr);
        return TM_EXIT_INPUT;
    }
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        print_help(stdout);
        return TM_EXIT_DONE;
    }
    for (size_t i = 0; i < TM_COUNT(benches); i++) {
        if (strcmp(what, benches[i].name) != 0) continue;
        char name[32]; /* what messages and help call it */
        snprintf(name, sizeof name, "bench %s", what);
        argv[1] = name;
        return benches[i].run(argc - 1, argv + 1);
    }
    return unknown(what);
}
