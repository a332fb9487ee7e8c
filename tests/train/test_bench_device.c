/* `tidemill bench device` and `tidemill-bench kernels`: what their JSON promises, on the arena of the CPU and on a driver that
 * pretends, and what it refuses. A rate is judged only where a clock keeps it from being more. */
#include "run.h"
#include "tests/support/skip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static const char *const fake_env[] = {"LD_LIBRARY_PATH=" TM_TEST_FAKE_CUDA, NULL};
static const run_opts fake = {.env = fake_env};
static const run_opts developers = {.program = "tidemill-bench"};
static const run_opts fake_developers = {.env = fake_env, .program = "tidemill-bench"};

static double number(const tm_json *object, const char *key) {
    const tm_json *node = tm_json_get(object, key);
    if (!node || node->type != TM_JSON_NUMBER) fail_msg("no number \"%s\"", key);
    return node->number;
}

/* `most`: bytes a second that nothing may exceed, each way. */
static void check_rates(const tm_json *row, double most) {
    static const char *const keys[] = {"in_bytes_per_second", "out_bytes_per_second", "both_in_bytes_per_second",
                                       "both_out_bytes_per_second"};
    for (size_t i = 0; i < TM_COUNT(keys); i++) {
        double rate = number(row, keys[i]);
        if (!(rate > 0 && rate <= most)) fail_msg("%g bytes: %s is %g", number(row, "bytes"), keys[i], rate);
    }
}

static double both(const tm_json *row) {
    return number(row, "both_in_bytes_per_second") + number(row, "both_out_bytes_per_second");
}

static void check_share(double share, double part, double whole) {
    if (fabs(share - part / whole) > 1e-9 * share) fail_msg("%g is not %g of %g", share, part, whole);
}

/* Of an arena of 32 MiB: the large copy is half of it, and four of 64 MiB have no room in that. */
static void check_output(const run_result *r, const char *device, double most) {
    static const uint64_t sizes[] = {64 * KIB, MIB, 4 * MIB};
    tm_json_doc *doc;
    RUN_OK(r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r->out, r->out_len, "output", 0, 0));
    const tm_json *root = tm_json_root(doc), *limit = tm_json_get(root, "limit");
    assert_true(tm_json_is(tm_json_get(root, "device"), device));
    assert_true(number(root, "arena_bytes") == 32.0 * MIB && number(limit, "bytes") == 16.0 * MIB);
    assert_true(number(root, "copies_under_way") == 4);
    check_rates(limit, most);
    check_share(number(limit, "both_over_apart"), both(limit),
                number(limit, "in_bytes_per_second") + number(limit, "out_bytes_per_second"));
    const tm_json *results = tm_json_get(root, "results"), *row = results->child;
    assert_int_equal(results->count, TM_COUNT(sizes));
    for (size_t i = 0; i < TM_COUNT(sizes); i++, row = row->next) {
        assert_true(number(row, "bytes") == (double)sizes[i]);
        check_rates(row, most);
        check_share(number(row, "in_of_limit"), number(row, "in_bytes_per_second"),
                    number(limit, "in_bytes_per_second"));
        check_share(number(row, "out_of_limit"), number(row, "out_bytes_per_second"),
                    number(limit, "out_bytes_per_second"));
        check_share(number(row, "both_of_limit"), both(row), both(limit));
    }
    tm_json_free(doc);
}

/* Seconds of a GiB, in the profile, by the rate of the largest copies of a step. */
static void check_kept(const run_result *r, const char *profile) {
    static const char *const keys[][2] = {{"1 GiB to the device", "in_bytes_per_second"},
                                          {"1 GiB from the device", "out_bytes_per_second"}};
    tm_json_doc *doc, *kept;
    size_t len;
    char *text = run_read(profile, &len);
    RUN_EXPECT_STATUS(tm_json_parse(&kept, text, len, profile, 0, 0));
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r->out, r->out_len, "output", 0, 0));
    const tm_json *row = tm_json_get(tm_json_root(doc), "results")->child->next->next;
    const tm_json *device = tm_json_get(tm_json_root(kept), "seconds")->child;
    if (strncmp(device->key, "device fake device", 18) != 0) fail_msg("%s", text);
    for (int i = 0; i < 2; i++) check_share(number(device, keys[i][0]), (double)(1024 * MIB), number(row, keys[i][1]));
    tm_json_free(doc);
    tm_json_free(kept);
    free(text);
}

/* No piece of a copy ends before its bytes could have passed: a count that is too high shows. */
static void test_arena(void **state) {
    (void)state;
    run_result r = run((run_opts){0}, "bench", "device", "--device", "cpu-arena", "--device-budget", "32MiB",
                       "--device-bandwidth", "800MB", "--milliseconds", "0", "--json", NULL);
    check_output(&r, "cpu-arena", 800e6);
    run_free(&r);
}

static void test_table(void **state) {
    (void)state;
    run_result r = run((run_opts){0}, "bench", "device", "--device", "cpu-arena", "--device-budget", "64MiB",
                       "--milliseconds", "0", NULL);
    RUN_OK(&r);
    static const char *const said[] = {"32.00 MiB", "64.00 KiB",           "1.00 MiB",
                                       "4.00 MiB",  "left out: 64.00 MiB", "--device-budget 512.00 MiB"};
    for (size_t i = 0; i < TM_COUNT(said); i++)
        if (!strstr(r.out, said[i])) fail_msg("no \"%s\" in:\n%s", said[i], r.out);
    run_free(&r);
}

static void test_cuda(void **state) {
    (void)state;
    if (!*TM_TEST_FAKE_CUDA) TEST_SKIP("the module of CUDA devices is not in this build");
    const char *profile = run_path(run_dir(), "profile.json");
    const char *env[] = {fake.env[0], run_format("TIDEMILL_PROFILE=%s", profile), NULL};
    run_result r = run((run_opts){.env = env}, "bench", "device", "--device-budget", "32MiB", "--milliseconds", "0",
                       "--json", NULL);
    check_output(&r, "cuda:0", 1e15);
    check_kept(&r, profile);
    run_free(&r);
}

/* Exit status 2, one line. */
static void refused(const run_opts *opts, const char *text, const char *const *more) {
    const char *words[16] = {"bench", "device"}, *first;
    for (unsigned n = 2; *more; more++) words[n++] = *more;
    run_result r = run_argv(opts, words);
    if (r.status != 2 || run_error_lines(r.err, &first) != 1 || !strstr(first, text) || r.out_len)
        fail_msg("\"%s\" was expected, exit status %d: %s%s", text, r.status, r.err, r.out);
    run_free(&r);
}
#define REFUSED(opts, text, ...) refused(opts, text, (const char *const[]){__VA_ARGS__, NULL})

static void test_refusals(void **state) {
    (void)state;
    const run_opts none = {0};
    REFUSED(&none, "there is no device \"gpu\"", "--device", "gpu");
    REFUSED(&none, "nothing is copied", "--device", "cpu");
    REFUSED(&none, "device \"cuda:77\": ", "--device", "cuda:77"); /* of a kind, or of that number */
    REFUSED(&none, "take 32.00 MiB", "--device", "cpu-arena", "--device-budget", "31MiB");
    REFUSED(&none, "more than device \"cpu-arena\" has", "--device", "cpu-arena", "--device-budget", "1000TB");
    REFUSED(&none, "a rate of its own", "--device", "cuda:0", "--device-bandwidth", "1GB");
    REFUSED(&none, "--milliseconds takes", "--milliseconds", "-1");
    if (!*TM_TEST_FAKE_CUDA) return;
    REFUSED(&fake, "this machine has 1 of its kind", "--device", "cuda:1");
    REFUSED(&fake, "more than device \"cuda:0\" has: 4.00 GiB are free", "--device-budget", "4GiB"); /* and what is
                                                                                                        beside */
}

/* ---- bench kernels ---- */

#define SHAPE                                                                                                          \
    "--hidden", "64", "--inner", "96", "--heads", "2", "--kv-heads", "1", "--head-dim", "32", "--seq", "32", "--rows", \
        "2", "--vocab", "500", "--milliseconds", "0"

/* 64 tokens of 16 bits; what a kernel moves and multiplies, by hand. */
static const struct {
    const char *name;
    double bytes, flops;
} by_hand[] = {
    {"product: queries, keys, values", 2.0 * (64 * 64 + 64 * 128 + 64 * 128), 2.0 * 64 * 64 * 128},
    {"product: gradient of a weight", 2.0 * (64 * 192 + 64 * 64) + 4.0 * 192 * 64, 2.0 * 64 * 64 * 192},
    {"norm", 2.0 * 2 * 64 * 64, 0},
    {"gated unit", 2.0 * 3 * 64 * 96, 0},
    {"attention", 2.0 * 64 * (128 + 64), 2 * 2 * (2 * 32.0 * 33 / 2) * 64},
    {"embedding", 2.0 * 2 * 64 * 64, 0},
    {"head: logits' gradient", (4.0 + 2) * 64 * 500, 0},
};

static const tm_json *kernel_named(const tm_json *root, const char *name) {
    for (const tm_json *row = tm_json_get(root, "results")->child; row; row = row->next)
        if (tm_json_is(tm_json_get(row, "kernel"), name)) return row;
    fail_msg("no kernel \"%s\"", name);
    return NULL;
}

/* `updates`: the device's kernels have those of an update. */
static void check_kernels(const run_result *r, const char *device, bool updates) {
    tm_json_doc *doc;
    RUN_OK(r);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, r->out, r->out_len, "output", 0, 0));
    const tm_json *root = tm_json_root(doc), *results = tm_json_get(root, "results");
    double moved = number(root, "memory_bytes_per_second"), multiplied = number(root, "product_flops_per_second");
    assert_true(tm_json_is(tm_json_get(root, "device"), device) && number(root, "tokens") == 64);
    assert_int_equal(results->count, updates ? 23 : 21);
    for (const tm_json *row = results->child; row; row = row->next) {
        double seconds = number(row, "seconds"), memory = number(row, "bytes") / moved;
        double products = number(row, "flops") / multiplied;
        assert_true(seconds > 0 && number(row, "bytes") > 0);
        check_share(number(row, "of_limit"), fmax(memory, products), seconds);
        assert_true(number(row, "flops") / seconds <= multiplied * (1 + 1e-12));
    }
    for (size_t i = 0; i < TM_COUNT(by_hand); i++) {
        const tm_json *row = kernel_named(root, by_hand[i].name);
        if (number(row, "bytes") != by_hand[i].bytes || number(row, "flops") != by_hand[i].flops)
            fail_msg("%s: %g bytes, %g operations", by_hand[i].name, number(row, "bytes"), number(row, "flops"));
    }
    if (updates) assert_true(number(kernel_named(root, "AdamW"), "bytes") == 26.0 * (16 << 20));
    tm_json_free(doc);
}

static void test_kernels(void **state) {
    (void)state;
    static const char *const host[] = {"cpu", "cpu-arena"};
    for (size_t i = 0; i < TM_COUNT(host); i++) {
        run_result r = run(developers, "kernels", "--device", host[i], SHAPE, "--json", NULL);
        check_kernels(&r, host[i], false);
        run_free(&r);
    }
    if (!*TM_TEST_FAKE_CUDA) return;
    run_result r = run(fake_developers, "kernels", SHAPE, "--json", NULL);
    check_kernels(&r, "cuda:0", true);
    run_free(&r);
}

static void test_kernels_refusals(void **state) {
    (void)state;
    static const struct {
        const char *key, *value, *text;
    } wrong[] = {{"--device", "gpu", "there is no device \"gpu\""},
                 {"--kv-heads", "3", "a multiple of --kv-heads"},
                 {"--head-dim", "7", "an even number from 2 to 256"},
                 {"--rows", "0", "sizes are 1 to"},
                 {"--seq", "1000000", "2097152 at most"},
                 {"--precision", "fp8", "bf16 or fp32, not 'fp8'"},
                 {"--milliseconds", "-1", "--milliseconds takes"}};
    for (size_t i = 0; i < TM_COUNT(wrong); i++) {
        const char *words[] = {"kernels", "--rows", "5", wrong[i].key, wrong[i].value, NULL}, *first;
        run_result r = run_argv(&developers, words);
        if (r.status != 2 || run_error_lines(r.err, &first) != 1 || !strstr(first, wrong[i].text))
            fail_msg("\"%s\" was expected, exit status %d: %s", wrong[i].text, r.status, r.err);
        run_free(&r);
    }
    if (!*TM_TEST_FAKE_CUDA) return;
    run_result r = run(fake_developers, "kernels", "--rows", "128", NULL);
    if (r.status != 2 || !strstr(r.err, "and 4.00 GiB are free; use fewer --rows")) fail_msg("%d: %s", r.status, r.err);
    run_free(&r);
}

/* A copy that fails ends it, whatever is under way then. */
static void test_copy_fails(void **state) {
    (void)state;
#ifdef TIDEMILL_FAULTS
    static const char *const at[] = {"2", "11", "40"};
    for (size_t i = 0; i < TM_COUNT(at); i++) {
        const char *env[] = {run_format("TIDEMILL_FAULT=protect:%s:fail:sticky", at[i]), NULL}, *first;
        run_result r = run((run_opts){.env = env}, "bench", "device", "--device", "cpu-arena", "--device-budget",
                           "32MiB", "--milliseconds", "0", NULL);
        assert_int_equal(r.status, 1);
        assert_int_equal(run_error_lines(r.err, &first), 1);
        if (!strstr(first, "of the device's arena")) fail_msg("%s", first);
        run_free(&r);
    }
#else
    TEST_SKIP("this build makes no failures");
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),           cmocka_unit_test(test_table),      cmocka_unit_test(test_cuda),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_copy_fails), cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_kernels_refusals)};
    return cmocka_run_group_tests_name("bench_device", tests, NULL, run_clean);
}
