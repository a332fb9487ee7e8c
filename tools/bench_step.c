/* tidemill bench step */
#include "tools/tools.h"
#include "infer/infer.h"

#include <stdio.h>

static double overlap(const tm_step_bench *b) {
    double longer = b->compute_seconds > b->io_seconds ? b->compute_seconds : b->io_seconds;
    return longer > 0 ? b->step_seconds / longer : 0;
}

static tm_status print_step_json(const tm_step_bench *b) {
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_uint(&w, "parameters", b->parameters);
    tm_jw_field_uint(&w, "tokens", b->tokens);
    tm_jw_field_double(&w, "step_seconds", b->step_seconds);
    tm_jw_field_double(&w, "compute_seconds", b->compute_seconds);
    tm_jw_field_double(&w, "io_seconds", b->io_seconds);
    tm_jw_field_uint(&w, "ranks", b->ranks);
    tm_jw_field_double(&w, "comm_seconds", b->comm_seconds);
    tm_jw_field_double(&w, "overlap", overlap(b));
    tm_jw_field_double(&w, "bound_seconds", b->bound_seconds);
    tm_jw_field_double(&w, "predicted_seconds", b->predicted_seconds);
    tm_jw_field_double(&w, "predicted_compute_seconds", b->predicted_compute_seconds);
    tm_jw_field_double(&w, "predicted_io_seconds", b->predicted_io_seconds);
    tm_jw_field_str(&w, "predicted_from", b->basis);
    tm_jw_field_double(&w, "tokens_per_second", (double)b->tokens / b->step_seconds);
    tm_jw_field_double(&w, "flops", b->flops);
    tm_jw_field_double(&w, "flops_per_second", b->flops / b->step_seconds);
    tm_jw_field_double(&w, "model_flops", b->model_flops);
    tm_jw_field_double(&w, "peak_flops_per_second", b->peak_flops);
    tm_jw_field_double(&w, "model_flop_utilisation", b->model_flops / b->step_seconds / b->peak_flops);
    tm_jw_field_uint(&w, "read_bytes", b->read_bytes);
    tm_jw_field_uint(&w, "write_bytes", b->write_bytes);
    tm_jw_field_uint(&w, "resident_bytes", b->resident_bytes);
    tm_jw_field_uint(&w, "window_bytes", b->window_bytes);
    tm_jw_field_uint(&w, "host_peak_bytes", b->peak_bytes);
    tm_jw_field_uint(&w, "planned_host_peak_bytes", b->planned_peak_bytes);
    tm_jw_field_str(&w, "update", b->update);
    tm_jw_field_str(&w, "activations", b->activations);
    tm_jw_field_str(&w, "order", b->order);
    return tm_cli_print_json(&w);
}

static void print_table(const tm_step_bench *b) {
    char x[32], y[32];
    double io = (double)(b->read_bytes + b->write_bytes);
    printf("model            %.1f M parameters, %llu tokens a step\n", (double)b->parameters * 1e-6,
           (unsigned long long)b->tokens);
    printf("plan             update %s, activations %s, %s by %s, %s resident, look-ahead %s\n", b->update,
           b->activations, b->order, b->order, tm_format_size(b->resident_bytes, x, sizeof x),
           tm_format_size(b->window_bytes, y, sizeof y));
    printf("host memory      %s at the peak, %s planned\n", tm_format_size(b->peak_bytes, x, sizeof x),
           tm_format_size(b->planned_peak_bytes, y, sizeof y));
    printf("a step moves     %s read, %s written: %.2f bytes a parameter\n", tm_format_size(b->read_bytes, x, sizeof x),
           tm_format_size(b->write_bytes, y, sizeof y), io / (double)b->parameters);
    printf("                 measured   predicted\n");
    printf("step             %8.3f s %9.3f s   %.1f tokens/s, %.1f GFLOP/s\n", b->step_seconds, b->predicted_seconds,
           (double)b->tokens / b->step_seconds, b->flops / b->step_seconds * 1e-9);
    printf("compute alone    %8.3f s %9.3f s   %.1f GFLOP/s\n", b->compute_seconds, b->predicted_compute_seconds,
           b->flops / b->compute_seconds * 1e-9);
    printf("I/O alone        %8.3f s %9.3f s   %.2f GB/s\n", b->io_seconds, b->predicted_io_seconds,
           b->io_seconds > 0 ? io / b->io_seconds * 1e-9 : 0);
    if (b->ranks > 1)
        printf("of the step      %8.3f s with exchanges between %u ranks under way\n", b->comm_seconds, b->ranks);
    printf("model FLOPs      %.1f GFLOP a step (nothing recomputed), %.1f GFLOP/s: %.1f%% of the peak of %.1f, compute "
           "alone %.1f%%\n",
           b->model_flops * 1e-9, b->model_flops / b->step_seconds * 1e-9,
           100 * b->model_flops / b->step_seconds / b->peak_flops, b->peak_flops * 1e-9,
           100 * b->model_flops / b->compute_seconds / b->peak_flops);
    printf("step over the longer of the two: %.3f; over the longer in each of forward, backward, update: %.3f\n",
           overlap(b), b->bound_seconds > 0 ? b->step_seconds / b->bound_seconds : 0);
    printf("predicted from   %s\n", b->basis);
}

int tm_bench_step(int argc, char **argv) {
    const char *set[256], *config[1] = {NULL}, *path = NULL, *hardware = NULL;
    tm_opt_list sets = {.value = set, .cap = TM_COUNT(set)};
    int64_t steps = 4;
    bool json = false, no_measure = false;
    const tm_opt opts[] = {
        TM_OPTION("set", TM_OPT_LIST, &sets, "KEY=VALUE", "override one key of the configuration; may be repeated"),
        TM_OPTION("steps", TM_OPT_INT, &steps, "N", "timed steps of each sort (4)"),
        TM_OPTION("offload-path", TM_OPT_STRING, &path, "DIR", "where the offload files are made, and removed"),
        TM_OPTION("hardware", TM_OPT_STRING, &hardware, "HW.json",
                  "predict exchanges between ranks by this file's link and network"),
        TM_FLAG("no-measure", &no_measure, "predict from what the profile knows"),
        TM_FLAG("json", &json, "print one JSON object"),
    };
    const tm_cli cli = {
        .usage = "bench step CONFIG.json [--set key.path=value]... [--steps N] [--offload-path DIR] [--json]",
        .about = "Runs the training step of a configuration on made-up rows: as it is, with its transfers alone, and "
                 "with its operations alone, and sets the simulator's prediction beside each. output_dir is left "
                 "alone.",
        .example = "tidemill bench step config.json --set memory.host_budget=1GiB --offload-path /mnt/nvme",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(config, 1, 1),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (steps < 1 || steps > 1000) return tm_cli_wrong("bench step", "--steps takes 1 to 1000");
    tm_step_bench b;
    tm_step_bench_args args = {
        .train = {.config = config[0], .set = set, .n_set = sets.count, .quiet = true, .scorer = &tm_task_scorer},
        .offload_path = path,
        .hardware = hardware,
        .steps = (uint32_t)steps,
        .no_measure = no_measure,
    };
    tm_status ran = tm_step_bench_run(&args, &b);
    if (b.rank > 0) return tm_exit_status(ran); /* the first rank says it */
    if (ran != TM_OK) return tm_cmd_fail();
    if (!json) print_table(&b);
    return json && print_step_json(&b) != TM_OK ? tm_cmd_fail() : TM_EXIT_DONE;
}
