/* `plan --hardware`, held against figures by hand. It counts the optimizer that is configured: bytes that its state
 * moves, seconds of the update, where a GPU can run it (bytes a parameter, from what each keeps: optim/optimizer.h);
 * and a gather into memory that the ranks of a node share takes what memory does. Exchanges are hidden behind
 * compute. And a file made of what was measured here says what was measured. */
#include "io/file/file.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double CPU_RATE = 1e10;

/* bf16: a parameter's master is 2 + 2 bytes, its gradient 2. Moments: fp32, or a code and 4 bytes for each 256. An
 * update reads and writes master and moments, and reads the gradient. */
static const struct {
    const char *block;
    double exp_avg, exp_avg_sq;
    bool on_device; /* src/device/cuda has it */
} optimizers[] = {
    {"{\"type\": \"AdamW\"}", 4, 4, true},
    {"{\"type\": \"Adam\", \"params\": {\"adam_w_mode\": false}}", 4, 4, true},
    {"{\"type\": \"AdamW8bit\"}", 1 + 4 / 256.0, 1 + 4 / 256.0, false},
    {"{\"type\": \"Adam8bit\"}", 1 + 4 / 256.0, 1 + 4 / 256.0, false},
    {"{\"type\": \"Lion\"}", 4, 0, false},
    {"{\"type\": \"Adagrad\"}", 4, 0, false},
    {"{\"type\": \"SGD\", \"params\": {\"momentum\": 0.9}}", 4, 0, false},
    {"{\"type\": \"SGD\"}", 0, 0, false},
};

typedef struct scene {
    const char *dir, *config, *hardware;
} scene;

static scene open_scene(void) {
    scene s = {.dir = run_dir()};
    run_imagined_model(run_path(s.dir, "model"), 2);
    s.config = run_path(s.dir, "config.json");
    s.hardware = run_path(s.dir, "hardware.json");
    return s;
}

/* A GPU of so much memory, 1 GiB of which is its driver's. */
static void imagine_gpu(const scene *s, const char *memory) {
    run_write(s->hardware,
              run_format("{\"name\": \"imagined\", \"host_memory\": \"16GiB\",\n"
                         " \"cpu\": {\"cores\": 8, \"flops_fp32\": 1e12, \"memory_bytes_per_second\": %g},\n"
                         " \"disk\": {\"read_bytes_per_second\": 3e9, \"write_bytes_per_second\": 2e9},\n"
                         " \"gpu\": {\"count\": 1, \"name\": \"g\", \"memory\": \"%s\", \"flops_fp32\": 1e13, "
                         "\"flops_bf16\": 1e13,\n"
                         "  \"memory_bytes_per_second\": 5e11, \"h2d_bytes_per_second\": 2e10}}\n",
                         CPU_RATE, memory));
}

/* `place`: of weights and optimizer. In files and host memory nothing is to stay from step to step. */
static const tm_json *plan(const scene *s, unsigned optimizer, const char *place, bool advise, tm_json_doc **doc) {
    const char *cache = strcmp(place, "nvme") && strcmp(place, "cpu") ? "auto" : "none";
    run_write(s->config,
              run_format("{\"model\": \"%s/model\", \"init\": \"random\", \"precision\": \"bf16\", \"max_steps\": 3,\n"
                         " \"data\": {\"seq_len\": 128}, \"output_dir\": \"%s/out\",\n"
                         " \"memory\": {\"cache\": \"%s\", \"update\": \"U\"}, \"optimizer\": %s,\n"
                         " \"offload_param_device\": \"%s\", \"offload_optimizer_device\": \"%s\"}\n",
                         s->dir, s->dir, cache, optimizers[optimizer].block, place, place));
    const char *arguments[] = {"plan", s->config, "--json", "--hardware", s->hardware, advise ? "--advise" : NULL,
                               NULL};
    run_result r = run_argv(&(run_opts){.timeout_s = 60}, arguments);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(doc, r.out, r.out_len, "plan --json", 0, 0));
    run_free(&r);
    return tm_json_root(*doc);
}

static double moved(const tm_json *o, const char *kind, const char *way) {
    const tm_json *n = tm_json_get(tm_json_get(tm_json_get(o, "bytes_by_kind"), kind), way);
    return n ? n->number : 0;
}

static void near(const char *what, unsigned optimizer, double got, double want, double tolerance) {
    if (fabs(got - want) > tolerance * want)
        fail_msg("%s, %s: %g, by hand %g", optimizers[optimizer].block, what, got, want);
}

/* All of it in files, since the device has no room: each moment read and written once a step; tiles are padded to whole
 * pages. */
static void bytes_moved(void **state) {
    (void)state;
    scene s = open_scene();
    imagine_gpu(&s, "1152MiB");
    for (unsigned i = 0; i < TM_COUNT(optimizers); i++) {
        tm_json_doc *doc;
        const tm_json *o = plan(&s, i, "nvme", false, &doc);
        double psi = tm_json_get(o, "parameters")->number;
        for (unsigned w = 0; w < 2; w++) {
            const char *way = w ? "write" : "read";
            near("exp_avg", i, moved(o, "exp_avg", way) / psi, optimizers[i].exp_avg, 0.01);
            near("exp_avg_sq", i, moved(o, "exp_avg_sq", way) / psi, optimizers[i].exp_avg_sq, 0.01);
            near("weight_lo", i, moved(o, "weight_lo", way) / psi, 2, 0.01);
        }
        tm_json_free(doc);
    }
}

/* As `train` runs it there: the update in passes on the CPU, over state on the host. */
static void adafactor_is_planned(void **state) {
    (void)state;
    scene s = open_scene();
    imagine_gpu(&s, "1152MiB");
    tm_json_doc *doc;
    (void)plan(&s, 0, "cpu", false, &doc);
    tm_json_free(doc);
    run_result r = run((run_opts){.timeout_s = 60}, "plan", s.config, "--json", "--hardware", s.hardware, "--set",
                       "optimizer={\"type\": \"Adafactor\"}", NULL);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    const tm_json *o = tm_json_root(doc);
    double psi = tm_json_get(o, "parameters")->number;
    /* masters are read and written, gradients read by each pass: more than SGD's update */
    assert_true(tm_json_get(tm_json_get(o, "busy_seconds"), "cpu")->number > psi * (2 * 4 + 2) / CPU_RATE);
    assert_string_equal(tm_json_get(o, "placement")->text, "state on the host");
    tm_json_free(doc);
    run_free(&r);
}

/* On the CPU nothing else takes time. */
static void seconds_of_the_update(void **state) {
    (void)state;
    scene s = open_scene();
    imagine_gpu(&s, "1152MiB");
    for (unsigned i = 0; i < TM_COUNT(optimizers); i++) {
        tm_json_doc *doc;
        const tm_json *o = plan(&s, i, "cpu", false, &doc);
        double psi = tm_json_get(o, "parameters")->number, bytes = optimizers[i].exp_avg + optimizers[i].exp_avg_sq + 4;
        double busy = tm_json_get(tm_json_get(o, "busy_seconds"), "cpu")->number;
        near("seconds", i, busy, psi * (2 * bytes + 2) / CPU_RATE, 0.01);
        tm_json_free(doc);
    }
}

/* State on the device where the device can run the update; its bytes are then the device's. Else on the host, and
 * --advise has no row that says otherwise. */
static void where_it_runs(void **state) {
    (void)state;
    scene s = open_scene();
    imagine_gpu(&s, "8GiB");
    for (unsigned i = 0; i < TM_COUNT(optimizers); i++) {
        tm_json_doc *doc;
        const tm_json *o = plan(&s, i, "none", false, &doc);
        bool there = strstr(tm_json_get(o, "placement")->text, "all state on the device") != NULL;
        if (there != optimizers[i].on_device)
            fail_msg("%s: %s", optimizers[i].block, tm_json_get(o, "placement")->text);
        if (there) assert_true(tm_json_get(o, "device_peak_bytes")->number > 12 * tm_json_get(o, "parameters")->number);
        tm_json_free(doc);
    }
    tm_json_doc *adamw;
    (void)plan(&s, 0, "none", false, &adamw);
    tm_json_free(adamw);
    run_result half = run((run_opts){.timeout_s = 60}, "plan", s.config, "--json", "--hardware", s.hardware, "--set",
                          "precision=fp16", NULL); /* whose update is the host's */
    RUN_OK(&half);
    if (strstr(half.out, "all state on the device")) fail_msg("%s", half.out);
    run_free(&half);
    for (unsigned i = 0; i < TM_COUNT(optimizers); i += 4) { /* AdamW, Lion */
        tm_json_doc *doc;
        unsigned none = 0;
        const tm_json *o = plan(&s, i, "auto", true, &doc);
        for (const tm_json *r = tm_json_get(o, "rows")->child; r; r = r->next)
            none += tm_json_is(tm_json_get(r, "offload_optimizer"), "none");
        assert_int_equal(none, optimizers[i].on_device);
        assert_true(strlen(tm_json_get(tm_json_get(o, "recommended"), "reason")->text) > 20);
        tm_json_free(doc);
    }
}

static double peak(const scene *s, const char *memory, const char *budget, double *seconds) {
    tm_json_doc *doc;
    imagine_gpu(s, memory);
    run_result r = run((run_opts){.timeout_s = 60}, "plan", s->config, "--json", "--hardware", s->hardware, "--set",
                       "memory.device=cuda:0", "--set", run_format("memory.device_budget=%s", budget), NULL);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    double bytes = tm_json_get(tm_json_root(doc), "device_peak_bytes")->number;
    *seconds = tm_json_get(tm_json_root(doc), "seconds_per_step")->number;
    tm_json_free(doc);
    run_free(&r);
    return bytes;
}

/* A budget on a large GPU is a small GPU; it does not make a small one large; too little is refused. */
static void a_budget_holds_there_too(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    double seconds[4];
    imagine_gpu(&s, "8GiB");
    (void)plan(&s, 0, "auto", false, &doc); /* writes the configuration */
    tm_json_free(doc);
    double all = peak(&s, "8GiB", "unlimited", &seconds[0]), small = peak(&s, "1152MiB", "unlimited", &seconds[1]);
    double capped = peak(&s, "8GiB", "128MiB", &seconds[2]), no_more = peak(&s, "1152MiB", "6GiB", &seconds[3]);
    assert_true(small < all && seconds[1] > seconds[0]);
    if (capped != small || seconds[2] != seconds[1])
        fail_msg("%g bytes, %g s: not %g, %g", capped, seconds[2], small, seconds[1]);
    if (no_more != small || seconds[3] != seconds[1])
        fail_msg("%g bytes, %g s: not %g, %g", no_more, seconds[3], small, seconds[1]);
    imagine_gpu(&s, "8GiB");
    run_result r = run((run_opts){.timeout_s = 60}, "plan", s.config, "--hardware", s.hardware, "--set",
                       "memory.device=cuda:0", "--set", "memory.device_budget=1MiB", NULL);
    if (r.status != 2 || !strstr(r.err, "may use 1.00 GiB, 1.00 GiB of that for its driver"))
        fail_msg("%d: %s", r.status, r.err);
    run_free(&r);
}

/* One node of four ranks whose memory is slow and whose links are not. All matrices are gathered twice, the embedding
 * once; each rank copies a quarter of them, reading and writing, with a quarter of the memory's rate. */
static void a_shared_gather_takes_memory(void **state) {
    (void)state;
    enum { HIDDEN = 512, INNER = 1408, VOCAB = 8192, BLOCKS = 2, RANKS = 4 };
    const double rate = 4e8, embed = (double)VOCAB * HIDDEN, blocks = BLOCKS * (4.0 * HIDDEN + 3.0 * INNER) * HIDDEN;
    scene s = open_scene();
    run_write(s.hardware,
              run_format("{\"name\": \"imagined\", \"host_memory\": \"16GiB\", \"ranks_per_node\": %d,\n"
                         " \"cpu\": {\"cores\": 8, \"flops_fp32\": 1e13, \"memory_bytes_per_second\": %g},\n"
                         " \"link\": {\"bytes_per_second\": 1e13}}\n",
                         RANKS, rate));
    run_write(s.config,
              run_format("{\"model\": \"%s/model\", \"init\": \"random\", \"precision\": \"bf16\", \"max_steps\": 3,\n"
                         " \"data\": {\"seq_len\": 128}, \"output_dir\": \"%s/out\",\n"
                         " \"strategy\": \"zero3\", \"memory\": {\"activations\": \"keep\"}}\n",
                         s.dir, s.dir));
    const double bytes = 2 * (2 * (2 * embed + blocks) - embed), want = 2 * bytes / RANKS / (rate / RANKS);
    const char *const window[] = {"memory.shared_window=on", "memory.shared_window=off"};
    for (unsigned i = 0; i < TM_COUNT(window); i++) {
        tm_json_doc *doc;
        const char *arguments[] = {"plan", s.config, "--json", "--hardware", s.hardware, "--set", window[i], NULL};
        run_result r = run_argv(&(run_opts){.timeout_s = 60}, arguments);
        RUN_OK(&r);
        RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
        run_free(&r);
        double busy = tm_json_get(tm_json_get(tm_json_root(doc), "busy_seconds"), "comm")->number;
        if (i == 0 ? fabs(busy - want) > 0.03 * want : busy > 0.05 * want)
            fail_msg("%s: %g s of communication, the copies are %g", window[i], busy, want);
        tm_json_free(doc);
    }
}

static tm_json_doc *planned(const scene *s, const char *a, const char *b) {
    tm_json_doc *doc;
    run_result r = run_argv(&(run_opts){.timeout_s = 60}, (const char *[]){"plan", s->config, "--json", "--hardware",
                                                                           s->hardware, "--set", a, "--set", b, NULL});
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    run_free(&r);
    return doc;
}

/* Two nodes of two ranks, between which is next to nothing. MPI's sums go round a ring, over the network too whichever
 * rank is asked: gradients in fp32 twice, but for a quarter; one rank of a node sends there. */
static void a_ring_is_as_slow_as_its_slowest_link(void **state) {
    (void)state;
    enum { HIDDEN = 512, INNER = 1408, VOCAB = 8192, BLOCKS = 2, RANKS = 4 };
    const double rate = 1e8, parameters = 2.0 * VOCAB * HIDDEN + BLOCKS * (4.0 * HIDDEN + 3.0 * INNER) * HIDDEN;
    const double want = 2 * sizeof(float) * parameters * (RANKS - 1) / RANKS / rate;
    scene s = open_scene();
    run_write(s.hardware,
              run_format("{\"name\": \"imagined\", \"host_memory\": \"16GiB\", \"ranks_per_node\": 2, \"nodes\": 2,\n"
                         " \"cpu\": {\"cores\": 8, \"flops_fp32\": 1e13, \"memory_bytes_per_second\": 1e11},\n"
                         " \"link\": {\"bytes_per_second\": 1e13}, \"network\": {\"bytes_per_second\": %g}}\n",
                         rate));
    run_write(s.config,
              run_format("{\"model\": \"%s/model\", \"init\": \"random\", \"precision\": \"bf16\", \"max_steps\": 3,\n"
                         " \"data\": {\"seq_len\": 128}, \"output_dir\": \"%s/out\",\n"
                         " \"strategy\": \"ddp\", \"all_reduce\": \"mpi\"}\n",
                         s.dir, s.dir));
    tm_json_doc *doc = planned(&s, "max_steps=3", "max_steps=3");
    double busy = tm_json_get(tm_json_get(tm_json_root(doc), "busy_seconds"), "comm")->number;
    if (fabs(busy - want) > 0.03 * want) fail_msg("%g s of communication, the ring takes %g", busy, want);
    tm_json_free(doc);
}

/* Gradients that may not be summed while others are: each waits for the one before. A bucket larger than that is none.
 */
static void check_buckets(const scene *s) {
    static const char *const bucket[] = {"auto", "1000000000", "1"};
    double seconds[TM_COUNT(bucket)];
    for (unsigned i = 0; i < TM_COUNT(bucket); i++) {
        tm_json_doc *doc =
            planned(s, "strategy=zero2", run_format("zero_optimization.reduce_bucket_size=%s", bucket[i]));
        seconds[i] = tm_json_get(tm_json_root(doc), "seconds_per_step")->number;
        tm_json_free(doc);
    }
    if (seconds[1] != seconds[0] || seconds[2] <= seconds[0])
        fail_msg("%g s a step, %g with a large bucket, %g with a small one", seconds[0], seconds[1], seconds[2]);
}

/* 134 M parameters on two ranks whose exchanges take half as long as their compute: a step is at most 1.15 times the
 * longer of the two. */
static void exchanges_are_hidden(void **state) {
    (void)state;
    scene s = open_scene();
    run_write(
        run_path(s.dir, "model/config.json"),
        "{\"model_type\": \"llama\", \"hidden_size\": 768, \"intermediate_size\": 2048, \"num_hidden_layers\": 12,\n"
        " \"num_attention_heads\": 12, \"num_key_value_heads\": 12, \"vocab_size\": 32000,\n"
        " \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
        " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"initializer_range\": 0.02}\n");
    run_write(s.hardware, "{\"name\": \"imagined\", \"host_memory\": \"32GiB\", \"ranks_per_node\": 2,\n"
                          " \"cpu\": {\"cores\": 4, \"flops_fp32\": 3e11, \"memory_bytes_per_second\": 2e10},\n"
                          " \"link\": {\"bytes_per_second\": 1e9, \"latency_seconds\": 3e-5}}\n");
    run_write(s.config,
              run_format("{\"model\": \"%s/model\", \"init\": \"random\", \"precision\": \"bf16\", \"max_steps\": 3,\n"
                         " \"data\": {\"seq_len\": 64}, \"output_dir\": \"%s/out\",\n"
                         " \"offload_param_device\": \"cpu\", \"offload_optimizer_device\": \"cpu\"}\n",
                         s.dir, s.dir));
    const char *const strategy[] = {"strategy=zero3", "strategy=ddp"};
    for (unsigned i = 0; i < TM_COUNT(strategy); i++) {
        tm_json_doc *doc = planned(&s, strategy[i], "max_steps=3");
        const tm_json *o = tm_json_root(doc), *busy = tm_json_get(o, "busy_seconds");
        double compute = tm_json_get(busy, "compute")->number, comm = tm_json_get(busy, "comm")->number;
        double step = tm_json_get(o, "seconds_per_step")->number;
        assert_true(comm > compute / 3 && comm < compute);
        if (step > 1.15 * compute)
            fail_msg("%s: %.3f s a step, %.3f s of compute, %.3f of exchanges", strategy[i], step, compute, comm);
        tm_json_free(doc);
    }
    check_buckets(&s);
}

/* ---- this machine as a file ---- */

static double compute_of(const scene *s, const char *precision, const char *option, const char *file) {
    tm_json_doc *doc;
    run_result r =
        run((run_opts){.timeout_s = 60}, "plan", s->config, "--json", "--set", precision, option, file, NULL);
    RUN_OK(&r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    double seconds = tm_json_get(tm_json_get(tm_json_root(doc), "busy_seconds"), "compute")->number;
    tm_json_free(doc);
    run_free(&r);
    return seconds;
}

static void refused(const scene *s, const char *says, const char *a, const char *b, const char *c) {
    run_result r = run((run_opts){.timeout_s = 60}, "plan", s->config, "--save-hardware", run_path(s->dir, "not.json"),
                       a, b, c, NULL);
    if (r.status != 2 || !strstr(r.err, says)) fail_msg("%d: %s", r.status, r.err);
    run_free(&r);
    assert_false(tm_path_exists(run_path(s->dir, "not.json")));
}

/* What was measured here, as rates, and planned by these: as much work. Of so few words the head takes next to nothing:
 * whether a plan keeps its logits decides nothing here. */
static void this_machine_as_a_file(void **state) {
    (void)state;
    scene s = open_scene();
    run_write(
        run_path(s.dir, "model/config.json"),
        "{\"model_type\": \"llama\", \"hidden_size\": 512, \"intermediate_size\": 1408, \"num_hidden_layers\": 3,\n"
        " \"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"vocab_size\": 64,\n"
        " \"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,\n"
        " \"hidden_act\": \"silu\", \"tie_word_embeddings\": false, \"initializer_range\": 0.02}\n");
    run_write(s.config,
              run_format("{\"model\": \"%s/model\", \"init\": \"random\", \"max_steps\": 3,\n"
                         " \"data\": {\"seq_len\": 64}, \"output_dir\": \"%s/out\",\n"
                         " \"memory\": {\"update\": \"U\", \"cache\": \"none\", \"activations\": \"keep\"}}\n",
                         s.dir, s.dir));
    refused(&s, "leave out --no-measure", "--no-measure", NULL, NULL);
    static const char *const precision[] = {"precision=bf16", "precision=fp32"};
    for (unsigned i = 0; i < TM_COUNT(precision); i++) {
        (void)compute_of(&s, precision[i], "--timeline", run_path(s.dir, "step.svg")); /* is timed */
        double here = compute_of(&s, precision[i], "--save-hardware", s.hardware);
        double there = compute_of(&s, precision[i], "--hardware", s.hardware);
        if (fabs(there / here - 1) > 0.05)
            fail_msg("%s: %g s of compute measured, %g by the file", precision[i], here, there);
    }
    refused(&s, "not with --advise", "--advise", NULL, NULL);
    refused(&s, "not with --hardware", "--hardware", s.hardware, NULL);
}

/* ---- too many micro-batches ---- */

/* A GPU's machine with little host memory: the number that fits is named, and at once. */
static void micro_batches_are_counted(void **state) {
    (void)state;
    scene s = open_scene();
    tm_json_doc *doc;
    imagine_gpu(&s, "8GiB");
    (void)plan(&s, 0, "auto", false, &doc);
    tm_json_free(doc);
    run_result r = run((run_opts){.timeout_s = 60}, "plan", s.config, "--json", "--hardware", s.hardware, "--set",
                       "gradient_accumulation_steps=16000000", NULL);
    assert_int_equal(r.status, 2);
    if (!strstr(r.err, "--set gradient_accumulation_steps=")) fail_msg("%s", r.err);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r.out, r.out_len, "plan --json", 0, 0));
    const tm_json *fits = tm_json_get(tm_json_get(tm_json_root(doc), "smallest_change"), "gradient_accumulation_steps");
    assert_non_null(fits);
    assert_true(fits->number >= 1 && fits->number < 16e6);
    tm_json_free(doc);
    run_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(bytes_moved, run_clean),
        cmocka_unit_test_teardown(adafactor_is_planned, run_clean),
        cmocka_unit_test_teardown(seconds_of_the_update, run_clean),
        cmocka_unit_test_teardown(where_it_runs, run_clean),
        cmocka_unit_test_teardown(a_budget_holds_there_too, run_clean),
        cmocka_unit_test_teardown(a_shared_gather_takes_memory, run_clean),
        cmocka_unit_test_teardown(a_ring_is_as_slow_as_its_slowest_link, run_clean),
        cmocka_unit_test_teardown(exchanges_are_hidden, run_clean),
        cmocka_unit_test_teardown(this_machine_as_a_file, run_clean),
        cmocka_unit_test_teardown(micro_batches_are_counted, run_clean),
    };
    return cmocka_run_group_tests_name("train_plan_hardware", tests, NULL, NULL);
}
