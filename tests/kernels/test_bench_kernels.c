/* `tidemill bench gemm` and `tidemill-bench attention`: what their JSON promises. */
#include "base/base.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tm_json_doc *output(const char *arguments) {
    static char text[1 << 17];
    char command[1024];
    snprintf(command, sizeof command, "%s/%s", TM_TEST_PROGRAMS, arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    assert_int_equal(pclose(f), 0);
    tm_json_doc *doc;
    assert_int_equal(tm_json_parse(&doc, text, n, "output", 0, 0), TM_OK);
    return doc;
}

static double number(const tm_json *object, const char *key) {
    double x = 0;
    const tm_json *node = tm_json_get(object, key);
    if (!node) fail_msg("no \"%s\"", key);
    x = node->number;
    return x;
}

/* Every product has its rate; one back-end is the one that training uses. */
static void gemm(void **state) {
    (void)state;
    tm_json_doc *doc = output("tidemill bench gemm --json --milliseconds 0");
    const tm_json *root = tm_json_root(doc), *results = tm_json_get(root, "results");
    assert_true(number(root, "peak_flops_per_second") > 1e8);
    assert_non_null(results);
    unsigned used = 0, count = 0;
    for (const tm_json *r = results->child; r; r = r->next, count++) {
        assert_true(number(r, "m") > 0 && number(r, "n") > 0 && number(r, "k") > 0);
        assert_true(number(r, "flops_per_second") > 1e6);
        assert_true(tm_json_is(tm_json_get(r, "type"), "fp32") || tm_json_is(tm_json_get(r, "type"), "bf16"));
        used += tm_json_get(r, "used")->boolean;
    }
    assert_true(count >= 16 && used == 16);
    tm_json_free(doc);
}

/* Rates of three answers side by side, and of memory. */
static void generation(void **state) {
    (void)state;
    tm_json_doc *doc = output("tidemill bench generate --json --model " TM_TEST_FIXTURES
                              "/peft_base --sequences 3 --tokens 4 --prompt 8");
    const tm_json *root = tm_json_root(doc);
    assert_true(number(root, "sequences") == 3 && number(root, "prompt_tokens") == 8);
    assert_true(number(root, "tokens_per_second") > 0 && number(root, "first_token_seconds") > 0);
    assert_true(number(root, "cold_first_token_seconds") >= number(root, "open_seconds"));
    assert_true(number(root, "weight_bytes") > 0 && number(root, "memory_bytes_per_second") > 1e8);
    tm_json_free(doc);
}

/* Twice the positions, at most twice the scratch and the memory that was touched. */
static void attention(void **state) {
    (void)state;
    tm_json_doc *doc = output(
        "tidemill-bench attention --json --milliseconds 0 --positions 1024 --heads 2 --kv-heads 1 --head-dim 32");
    const tm_json *results = tm_json_get(tm_json_root(doc), "results");
    assert_non_null(results);
    double bytes[4] = {0}, resident[4] = {0}, count = 0;
    for (const tm_json *r = results->child; r; r = r->next) {
        assert_true(number(r, "forward_flops_per_second") > 1e6 && number(r, "backward_flops_per_second") > 1e6);
        resident[(int)count] = number(r, "resident_bytes");
        bytes[(int)count++] = number(r, "workspace_bytes");
    }
    assert_true(resident[0] >= bytes[0] / 2 && resident[1] < 2.5 * resident[0]);
    assert_true(count == 4 && bytes[1] < 2 * bytes[0] && bytes[1] > bytes[0]);
    tm_json_free(doc);
}

/* Each type of the model and the three lines of our own form, to three types, in two sizes. */
static void decode(void **state) {
    (void)state;
    tm_json_doc *doc =
        output("tidemill-bench decode --json --milliseconds 0 --model " TM_TEST_FIXTURES "/peft_qlora/base_nf4");
    unsigned count = 0, coded = 0;
    for (const tm_json *r = tm_json_get(tm_json_root(doc), "results")->child; r; r = r->next, count++) {
        assert_true(number(r, "elements_per_second") > 1e6 && number(r, "elements") > 0);
        coded += tm_json_is(tm_json_get(r, "what"), "NF4");
    }
    assert_int_equal(count, (2 + 3) * 6);
    assert_int_equal(coded, 6);
    tm_json_free(doc);
}

static void json(void **state) {
    (void)state;
    tm_json_doc *doc = output("tidemill-bench json --json " TM_TEST_FIXTURES "/../../examples/skill/train.jsonl");
    const tm_json *root = tm_json_root(doc);
    assert_true(number(root, "records") > 100 && number(root, "bytes") > 10000);
    assert_true(number(root, "cut_seconds") > 0 && number(root, "tree_seconds") > number(root, "cut_seconds"));
    tm_json_free(doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gemm), cmocka_unit_test(attention), cmocka_unit_test(decode),
                                       cmocka_unit_test(generation), cmocka_unit_test(json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
