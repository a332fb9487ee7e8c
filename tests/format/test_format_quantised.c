/* What a quantised export promises beside its bits: bounded memory, errors that are those of the file, one line about what
 * cannot be written, and nothing under the final name when it is killed. */
#include "format/peft.h"
#include "io/file/file.h"
#include "world.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A llama of one block, made in memory. */
enum { WIDTH = 256, TENSORS = 11 };
static tm_hf_tensor list[TENSORS];
static char names[9][64];

typedef struct maker {
    uint64_t vocabulary;
    int calls, killed_at; /* 0: never */
    float odd;            /* not 0: a value of the last matrix */
} maker;

static void make_list(uint64_t vocabulary) {
    static const char *const stems[] = {
        "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj"};
    list[0] = (tm_hf_tensor){.name = "model.norm.weight", .ndim = 1, .shape = {WIDTH}};
    list[1] = (tm_hf_tensor){.name = "model.embed_tokens.weight", .ndim = 2, .shape = {vocabulary, WIDTH}};
    for (int i = 0; i < 9; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.0.%s.weight", stems[i]);
        list[2 + i] = (tm_hf_tensor){.name = names[i], .ndim = i < 2 ? 1 : 2, .shape = {WIDTH, i < 2 ? 0 : WIDTH}};
    }
}

static tm_status make_values(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *out) {
    maker *m = ctx;
    if (++m->calls == m->killed_at) (void)raise(SIGKILL);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = (first + i + 1) * UINT64_C(0x9e3779b97f4a7c15) + t;
        x ^= x >> 29;
        out[i] = (float)(int32_t)(x * UINT64_C(0xbf58476d1ce4e5b9) >> 32) * 0x1p-36f;
    }
    if (t == TENSORS - 1 && first == 0 && m->odd != 0) out[0] = m->odd;
    return TM_OK;
}

static tm_source *open_made(maker *m) {
    static const char config[] =
        "{\"model_type\":\"llama\",\"hidden_size\":256,\"intermediate_size\":256,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":4,\"vocab_size\":%llu,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
        "\"max_position_embeddings\":64,\"tie_word_embeddings\":true,\"torch_dtype\":\"float32\"}";
    char text[512];
    tm_source *src;
    OK(tm_make_dirs(scratch("made")));
    int n = snprintf(text, sizeof text, config, (unsigned long long)m->vocabulary);
    write_file(scratch("made/config.json"), text, (size_t)n);
    OK(tm_source_open_bare(&src, scratch("made")));
    make_list(m->vocabulary);
    OK(tm_source_make(src, &(tm_made_tensors){list, TENSORS, make_values, m}));
    return src;
}

static tm_status export_made(maker *m, const char *out, const char *dtype, tm_wrote wrote, void *ctx) {
    tm_source *src = open_made(m);
    tm_status rc = tm_export(
        &(tm_export_request){.source = src, .out = out, .convert = {.dtype = dtype, .wrote = wrote, .ctx = ctx}});
    tm_source_close(src);
    return rc;
}

/* ---- memory ---- */

static void memory_is_bounded(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"large.gguf", "q4_k_m"}, {"large4", "int4"}, {"large8", "nf4"}};
    maker m = {.vocabulary = 150000};
    uint64_t before = tm_mem_peak_bytes();
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        OK(export_made(&m, scratch(cases[i][0]), cases[i][1], NULL, NULL));
        OK(tm_remove_tree(scratch(cases[i][0])));
    }
    uint64_t peak = tm_mem_peak_bytes();
    assert_true(peak > before || peak < 16 * TM_MIB);
    if (peak >= 32 * TM_MIB) fail_msg("%llu bytes, of a model of 150 MiB", (unsigned long long)peak);
}

/* ---- errors ---- */

typedef struct noted {
    unsigned tensors;
    double error[TENSORS];
    char name[TENSORS][64], type[TENSORS][16];
} noted;

static void note(void *ctx, const tm_wrote_tensor *t) {
    noted *n = ctx;
    assert_true(n->tensors < TENSORS);
    snprintf(n->name[n->tensors], sizeof n->name[0], "%s", t->name);
    snprintf(n->type[n->tensors], sizeof n->type[0], "%s", t->type);
    n->error[n->tensors++] = t->error;
}

/* From the values that went in and those that the file has. */
static double error_of(const tm_source *in, const tm_source *file, const char *name) {
    uint64_t n, same;
    float *a = values_of(in, name, &n), *b = values_of(file, name, &same);
    double square = 0, lost = 0;
    assert_int_equal(n, same);
    for (uint64_t i = 0; i < n; i++) {
        square += (double)a[i] * (double)a[i];
        lost += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    free(a);
    free(b);
    return sqrt(lost / square);
}

static void same_errors(const noted *n, const maker *m, const char *path, bool gguf) {
    static const char *const pair[][2] = {{"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
                                          {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight"},
                                          {"token_embd.weight", "model.embed_tokens.weight"},
                                          {"output_norm.weight", "model.norm.weight"}};
    maker again = {.vocabulary = m->vocabulary};
    tm_source *in = open_made(&again), *file;
    OK(tm_source_open(&file, path));
    for (size_t k = 0; k < TM_COUNT(pair); k++) {
        unsigned i = 0;
        while (i < n->tensors && strcmp(n->name[i], pair[k][gguf ? 0 : 1]) != 0) i++;
        if (i == n->tensors) fail_msg("nothing was said of %s", pair[k][0]);
        double want = error_of(in, file, pair[k][1]);
        if (fabs(n->error[i] - want) > 1e-9 * want) fail_msg("%s: %g, not %g", n->name[i], n->error[i], want);
        if (k < 2) assert_true(want > 0);
        if (k == 3 && gguf) assert_true(want == 0);
    }
    tm_source_close(in);
    tm_source_close(file);
}

static void errors_are_those_of_the_file(void **state) {
    (void)state;
    static const char *const dtypes[] = {"q8_0", "q4_k_m", "q6_k", "bf16", "nf4"};
    for (size_t i = 0; i < TM_COUNT(dtypes); i++)
        for (int gguf = i < 3; gguf < (i == 4 ? 1 : 2); gguf++) {
            maker m = {.vocabulary = 100};
            noted n = {0};
            const char *out = scratch(gguf ? "errors.gguf" : "errors");
            OK(tm_remove_tree(out));
            OK(export_made(&m, out, dtypes[i], note, &n));
            assert_int_equal(n.tensors, TENSORS);
            same_errors(&n, &m, out, gguf);
        }
}

static void what_cannot_be_written_is_named(void **state) {
    (void)state;
    static const struct {
        float odd;
        const char *out, *dtype, *text;
    } cases[] = {{NAN, "odd.gguf", "q4_k_m", "not finite"},  {INFINITY, "odd.gguf", "q4_k_m", "not finite"},
                 {3e38f, "odd.gguf", "q4_k_m", "too large"}, {1e9f, "odd.gguf", "q4_k_m", "too large"},
                 {NAN, "odd", "int4", "not finite"},         {INFINITY, "odd", "int8", "not finite"},
                 {NAN, "odd", "nf4", "not finite"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        maker m = {.vocabulary = 100, .odd = cases[i].odd};
        tm_status rc = export_made(&m, scratch(cases[i].out), cases[i].dtype, NULL, NULL);
        if (!strstr(tm_error_get()->text, "mlp.down_proj.weight")) fail_msg("%s", tm_error_get()->text);
        expect_error(rc, TM_EINPUT, cases[i].text);
        assert_false(tm_path_exists(scratch(cases[i].out)));
        assert_int_equal(leftovers(scratch(".")), 0);
    }
}

/* ---- killed ---- */

static int export_killed_at(int call, const char *out, const char *dtype) {
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        maker m = {.vocabulary = 3000, .killed_at = call};
        _exit(export_made(&m, out, dtype, NULL, NULL) == TM_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void a_kill_leaves_nothing_under_the_name(void **state) {
    (void)state;
    static const struct {
        const char *out, *dtype;
    } cases[] = {{"kills/x.gguf", "q4_k_m"},
                 {"kills/x.gguf", "q8_0"},
                 {"kills/x", "bf16"},
                 {"kills/x", "nf4"},
                 {"kills/x", "int4"}};
    OK(tm_make_dirs(scratch("kills")));
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        const char *out = scratch(cases[i].out);
        int kills = 0, got;
        for (; (got = export_killed_at(1 + kills * kills * 7, out, cases[i].dtype)) != 0; kills++) {
            assert_int_equal(got, SIGKILL);
            assert_false(tm_path_exists(out));
        }
        assert_true(kills > 1 && tm_path_exists(out));
        OK(tm_remove_tree(out));
    }
}

/* The first forks, before there are threads of OpenMP. */
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kill_leaves_nothing_under_the_name), cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(errors_are_those_of_the_file), cmocka_unit_test(what_cannot_be_written_is_named)};
    return cmocka_run_group_tests_name("quantised", tests, make_scratch, remove_scratch);
}
