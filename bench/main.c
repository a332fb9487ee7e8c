/* The table of benches, and nothing else. */
#include "bench/bench.h"

static const tm_command benches[] = {
    {"attention", bench_attention, "causal attention by length"},
    {"decode", bench_decode, "stored types to what is computed with"},
    {"json", bench_json, "a data file to records, and these to trees"},
    {"kernels", bench_kernels, "each kernel on a device, beside its memory and its products"},
};

int main(int argc, char **argv) {
    const tm_program bench = {.name = "tidemill-bench",
                              .about = "Measures parts of tidemill, for those who develop it.",
                              .commands = benches,
                              .n_commands = TM_COUNT(benches)};
    return tm_program_run(&bench, argc, argv);
}
