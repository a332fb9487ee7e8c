/* One system call or allocation of a small run fails, falls short or lies, once or from then on. The run ends well with
 * the right bits, or with one line that says why; and started again without the fault it comes to the right end.
 *
 * TIDEMILL_FAULT_CASES=N TIDEMILL_FAULT_SEED=S: that many cases drawn at random (default 30, 1).
 * TIDEMILL_FAULT_CALL=pwrite: every index, kind and mode of that call.
 * TIDEMILL_FAULT_VERBOSE=1: each case is named before it runs (to see which one hangs). */
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct scene {
    const char *dir, *config, *output, *offload;
} scene;

/* About as many calls as the run makes; an index beyond the last hits nothing, and the run has to be right. */
static const struct {
    const char *name;
    unsigned calls;
    bool lies; /* can do something else than it says */
} calls[] = {{"pwrite", 330, true}, {"pread", 480, true},     {"openat", 100, false}, {"fsync", 30, false},
             {"write", 14, false},  {"fdatasync", 14, false}, {"rename", 14, false},  {"unlink", 30, false},
             {"mkdir", 9, false},   {"fallocate", 8, false},  {"fstat", 60, false},   {"fstatfs", 10, false},
             {"flock", 2, false},   {"alloc", 6000, false},   {"map", 2, false}};
static const char *const fails[] = {"eio", "enospc", "eintr", "eagain", "short", "zero"};
static const char *const lies[] = {"flip", "lost", "misdirect"};

static scene scene_open(void) {
    scene s = {.dir = run_dir()};
    const char *model = run_path(s.dir, "model"), *rows = run_path(s.dir, "rows.safetensors");
    s.config = run_path(s.dir, "config.json");
    s.output = run_path(s.dir, "out");
    s.offload = run_path(s.dir, "offload");
    run_copy_model(TM_TEST_FIXTURES "/arch_llama", model);
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 4, 16, false);
    tm_st_close(golden);
    run_write(s.config, run_format("{\"model\": \"%s\", \"data\": {\"train\": \"%s\", \"seq_len\": 16},"
                                   " \"precision\": \"bf16\", \"max_steps\": 3, \"commit_steps\": 1, \"save_steps\": 2,"
                                   " \"memory\": {\"cache\": \"none\"}, \"output_dir\": \"%s\","
                                   " \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\", \"nvme_path\":"
                                   " \"%s\"}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                                   model, rows, s.output, s.offload, s.offload));
    return s;
}

static run_result train(const scene *s, const char *fault, unsigned way) {
    static const char *const engine[] = {"sync", "threads", "uring"}, *const update[] = {"U", "F"};
    const char *env[] = {fault, NULL};
    return run((run_opts){.env = fault ? env : NULL, .timeout_s = 30}, "train", s->config, "--quiet", "--set",
               run_format("memory.io_engine=%s", engine[way % 3]), "--set",
               run_format("memory.update=%s", update[way / 3 % 2]), "--set",
               way / 6 % 2 ? "memory.cache=auto" : "memory.cache=none", NULL);
}

static bool hash_is(const scene *s, const char *hash) {
    return strcmp(train_log_read(s->output).hash, hash) == 0;
}

static void start_over(const scene *s) {
    run_remove(s->output);
    run_remove(s->offload);
}

/* What such a call would have read belongs to the model or the data: nobody but the user knows what is right there. */
static bool reads_input(const scene *s, const char *call, unsigned index, unsigned way) {
    run_result r = train(s, run_format("TIDEMILL_FAULT=%s:%u:eio:once", call, index), way);
    bool input = r.status != 0 && !strstr(r.err, "offload/");
    run_free(&r);
    start_over(s);
    return input;
}

static void one_case(const scene *s, const char *hash, unsigned call, unsigned index, const char *kind, bool sticky,
                     unsigned way) {
    const char *spec =
        run_format("TIDEMILL_FAULT=%s:%u:%s:%s", calls[call].name, index, kind, sticky ? "sticky" : "once");
    if (getenv("TIDEMILL_FAULT_VERBOSE")) print_message("%s, way %u\n", spec, way);
    run_result r = train(s, spec, way);
    const char *line;
    if (r.status == 0 && !hash_is(s, hash)) {
        if (!reads_input(s, calls[call].name, index, way)) fail_msg("%s, way %u: wrong bits", spec, way);
    } else if (r.status != 0) {
        if (r.status != 1 && r.status != 2) fail_msg("%s, way %u: exit status %d\n%s", spec, way, r.status, r.err);
        if (run_error_lines(r.err, &line) < 1) fail_msg("%s, way %u: nothing was said\n%s", spec, way, r.err);
        run_result again = train(s, NULL, way + 5);
        bool done = again.status == 2 && strstr(again.err, "holds a finished run");
        /* a write that went astray and was committed: found out when it is read, every time */
        bool lost = again.status == 1 && strstr(again.err, "is not what was written there");
        if (again.status != 0 && !done &&
            !(lost && (strcmp(kind, "flip") == 0 || strcmp(kind, "lost") == 0 || strcmp(kind, "misdirect") == 0)))
            fail_msg("%s, way %u: then %s\nfirst: %s", spec, way, again.err, r.err);
        if (again.status == 0 && !hash_is(s, hash)) fail_msg("%s, way %u: wrong bits after it", spec, way);
        run_free(&again);
    }
    run_free(&r);
    start_over(s);
}

static uint64_t option(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void drawn_cases(const scene *s, const char *hash) {
    uint64_t cases = option("TIDEMILL_FAULT_CASES", 30), seed = option("TIDEMILL_FAULT_SEED", 1);
    for (uint64_t i = 0; i < cases; i++) {
        uint32_t r[4];
        tm_philox(seed, 1, i, r);
        unsigned call = r[0] % TM_COUNT(calls), n = TM_COUNT(fails) + (calls[call].lies ? TM_COUNT(lies) : 0);
        unsigned k = r[1] % n;
        one_case(s, hash, call, 1 + r[2] % calls[call].calls,
                 k < TM_COUNT(fails) ? fails[k] : lies[k - TM_COUNT(fails)], r[3] % 3 == 0, (r[3] >> 8) % 12);
    }
}

static void every_case(const scene *s, const char *hash, const char *name) {
    for (unsigned call = 0; call < TM_COUNT(calls); call++) {
        if (strcmp(calls[call].name, name) != 0) continue;
        for (unsigned i = 1; i <= calls[call].calls; i++)
            for (unsigned k = 0; k < TM_COUNT(fails) + (calls[call].lies ? TM_COUNT(lies) : 0); k++)
                for (unsigned sticky = 0; sticky < 2; sticky++)
                    one_case(s, hash, call, i, k < TM_COUNT(fails) ? fails[k] : lies[k - TM_COUNT(fails)], sticky,
                             (i + k) % 12);
    }
}

static void a_failing_call_is_survived_or_said(void **state) {
    (void)state;
    scene s = scene_open();
    run_result r = train(&s, NULL, 0);
    RUN_OK(&r);
    run_free(&r);
    const char *hash = run_format("%s", train_log_read(s.output).hash), *all = getenv("TIDEMILL_FAULT_CALL");
    start_over(&s);
    if (all)
        every_case(&s, hash, all);
    else
        drawn_cases(&s, hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_failing_call_is_survived_or_said, run_clean),
    };
    return cmocka_run_group_tests_name("train_faults", tests, NULL, NULL);
}
