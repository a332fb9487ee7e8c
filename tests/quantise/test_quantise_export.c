/* Calibrated exports of small models: folds leave the model as it was, files, budgets, refusals. */
#include "tests/format/world.h"

#include "format/peft.h"
#include "io/file/file.h"
#include "kernels/kernels.h"
#include "quantise/awq_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, SEQ = 45 };

/* Rows of ids below 200, which all the fixtures have. */
static void write_ids(const char *path) {
    int64_t ids[ROWS * SEQ];
    uint64_t x = 7;
    tm_st_writer *w;
    uint32_t t, labels;
    for (size_t i = 0; i < TM_COUNT(ids); i++) {
        x = x * UINT64_C(6364136223846793005) + 1;
        ids[i] = (int64_t)(i % 3 ? (uint64_t)ids[i - 1] * 5 % 197 : x >> 40) % 200;
    }
    OK(tm_st_writer_create(&w, path));
    OK(tm_st_writer_add(w, "input_ids", TM_FMT_I64, 2, (uint64_t[]){ROWS, SEQ}, &t));
    OK(tm_st_writer_add(w, "labels", TM_FMT_I64, 2, (uint64_t[]){ROWS, SEQ}, &labels));
    OK(tm_st_writer_write(w, t, 0, ids, sizeof ids));
    OK(tm_st_writer_write(w, labels, 0, ids, sizeof ids));
    OK(tm_st_writer_commit(w));
}

/* ---- folding ---- */

typedef struct folded {
    const tm_source *src;
    walk *w; /* in the block that is folded */
    awq_fold fold[WALK_INPUTS];
} folded;

static tm_status folded_values(void *ctx, uint32_t t, uint64_t first, uint64_t n, float *out) {
    const folded *f = ctx;
    const tm_source_tensor *s = tm_source_tensor_get(f->src, t);
    float *all = malloc(s->elements * sizeof *all);
    tm_status rc = tm_source_read_f32(f->src, t, 0, s->elements, all);
    for (uint32_t i = 0; i < f->w->n_matrices; i++)
        if (f->w->matrix[i].source == t) awq_scale_rows(f->w, f->fold, i, 0, f->w->matrix[i].rows, all);
    if (s->ndim == 1) (void)awq_divide(f->w, f->fold, s->name, all, s->elements);
    memcpy(out, all + first, n * sizeof *out);
    free(all);
    return rc;
}

static tm_source *make_folded(const char *path, folded *f) {
    uint32_t n = tm_source_tensors(f->src);
    tm_hf_tensor *list = calloc(n, sizeof *list);
    tm_source *made;
    for (uint32_t i = 0; i < n; i++) {
        const tm_source_tensor *s = tm_source_tensor_get(f->src, i);
        list[i] = (tm_hf_tensor){.name = s->name, .ndim = s->ndim};
        memcpy(list[i].shape, s->shape, sizeof list[i].shape);
    }
    OK(tm_source_open_bare(&made, path));
    OK(tm_source_make(made, &(tm_made_tensors){.tensor = list, .n = n, .values = folded_values, .ctx = f}));
    free(list);
    return made;
}

static void open_walk(walk *w, const tm_source *src, const id_rows *rows) {
    OK(walk_open(
        w, &(walk_opts){.src = src, .rows = rows, .compute = TM_F32, .products = true, .room_bytes = UINT64_MAX / 2},
        0));
}

/* The last block's outputs. */
static void all_blocks(walk *w) {
    for (uint32_t b = 0; b < walk_blocks(w); b++) {
        OK(walk_enter(w, b));
        OK(walk_pass(w, false, true));
    }
}

static float *scales_of(uint64_t n, uint32_t seed) {
    float *s = malloc(n * sizeof *s);
    for (uint64_t i = 0; i < n; i++)
        s[i] = 0.5F + fabsf(pattern(i * 7 + seed * 31)) - floorf(fabsf(pattern(i * 7 + seed * 31)));
    return s;
}

static void folds_leave_the_model(void **state) {
    (void)state;
    static const struct {
        const char *model;
        unsigned folds; /* inputs that are scaled */
    } cases[] = {{"peft_base", 3}, {"arch_qwen2", 3}, {"arch_gemma2", 3}, {"arch_olmo2", 1}, {"arch_phi3", 3}};
    const tm_calibration_args args = {.model = "fixture", .data = scratch("ids.safetensors")};
    for (size_t c = 0; c < TM_COUNT(cases); c++) {
        tm_source *src;
        id_rows rows;
        walk plain, scaled, at;
        unsigned folds = 0;
        folded f = {.w = &at};
        OK(tm_source_open(&src, fixture(cases[c].model)));
        OK(id_rows_read(&rows, src, 200, &args));
        assert_true(rows.n == ROWS && rows.longest == SEQ);
        open_walk(&at, src, &rows);
        OK(walk_enter(&at, 1));
        f.src = src;
        for (uint32_t i = 0; i < at.n_inputs; i++) {
            f.fold[i] = awq_find_fold(&at, i);
            if (!f.fold[i].norm && !f.fold[i].linear) continue;
            f.fold[i].scale = scales_of(at.input[i].width, i);
            folds++;
        }
        if (folds != cases[c].folds) fail_msg("%s: %u folds", cases[c].model, folds);
        tm_source *made = make_folded(fixture(cases[c].model), &f);
        open_walk(&plain, src, &rows);
        open_walk(&scaled, made, &rows);
        all_blocks(&plain);
        all_blocks(&scaled);
        const float *x = (const float *)(const void *)plain.x.memory, *y = (const float *)(const void *)scaled.x.memory;
        uint64_t n = plain.x.tokens * plain.x.token_bytes / sizeof *x;
        double most = 0, apart = 0;
        for (uint64_t i = 0; i < n; i++)
            most = fmax(most, fabs((double)x[i])), apart = fmax(apart, fabs((double)(x[i] - y[i])));
        if (!(apart <= 3e-6 * most) || !(most > 0)) fail_msg("%s: %g apart of %g", cases[c].model, apart, most);
        for (uint32_t i = 0; i < at.n_inputs; i++) free(f.fold[i].scale);
        walk_close(&plain);
        walk_close(&scaled);
        walk_close(&at);
        tm_source_close(made);
        tm_source_close(src);
        id_rows_free(&rows);
    }
}

/* ---- sums ---- */

/* Of the first block's input: beside the norm of the embeddings, by hand. */
static void sums_are_of_what_is_multiplied(void **state) {
    (void)state;
    tm_source *src;
    id_rows rows;
    walk w;
    uint64_t n, m;
    const tm_calibration_args args = {.model = "fixture", .data = scratch("ids.safetensors"), .rows = 7, .seq_len = 40};
    OK(tm_source_open(&src, fixture("peft_base")));
    OK(id_rows_read(&rows, src, 256, &args));
    assert_true(rows.n == 7 && rows.longest == 40);
    open_walk(&w, src, &rows);
    OK(walk_enter(&w, 0));
    OK(walk_pass(&w, true, false));
    assert_true(w.n_inputs == 4 && w.n_matrices == 7 && w.matrix[0].input == w.matrix[2].input);
    float *embed = values_of(src, "model.embed_tokens.weight", &n),
          *norm = values_of(src, "model.layers.0.input_layernorm.weight", &m);
    double square[64] = {0}, magnitude[64] = {0}, product = 0;
    for (uint64_t t = 0; t < 280; t++) {
        const float *x = embed + (uint64_t)rows.ids[t] * m;
        double mean = 0;
        for (uint64_t i = 0; i < m; i++) mean += (double)x[i] * (double)x[i];
        double by = 1 / sqrt(mean / (double)m + 1e-5);
        for (uint64_t i = 0; i < m; i++) {
            double v = (double)x[i] * by * (double)norm[i];
            square[i] += v * v, magnitude[i] += fabs(v);
        }
        product += (double)x[3] * by * (double)norm[3] * (double)x[9] * by * (double)norm[9];
    }
    for (uint64_t i = 0; i < m; i++) {
        assert_true(fabs(square[i] - w.input[0].square[i]) <= 1e-4 * square[i]);
        assert_true(fabs(square[i] - (double)w.input[0].products[i * m + i]) <= 1e-4 * square[i]);
        assert_true(fabs(magnitude[i] - w.input[0].magnitude[i]) <= 1e-4 * magnitude[i]);
    }
    assert_true(fabs(product - (double)w.input[0].products[3 * m + 9]) <= 1e-3 * square[3]);
    free(embed);
    free(norm);
    walk_close(&w);
    id_rows_free(&rows);
    tm_source_close(src);
}

/* ---- exports ---- */

typedef struct seen {
    unsigned known; /* tensors whose products' error was told */
    double error, output_error;
} seen;

static void saw(void *ctx, const tm_wrote_tensor *t) {
    seen *s = ctx;
    s->known += t->output_error > 0;
    s->error += t->error;
    s->output_error += t->output_error;
}

static tm_status export_by(const char *model, const char *out, const char *dtype, uint64_t bytes, seen *s) {
    tm_calibration *c;
    const tm_calibration_args args = {.model = model, .data = scratch("ids.safetensors"), .host_bytes = bytes};
    OK(tm_calibration_open(&c, &args));
    tm_status rc = tm_export(&(tm_export_request){
        .in = model,
        .out = out,
        .convert = {.dtype = dtype, .calibrated = tm_calibration_asked(c), .wrote = s ? saw : NULL, .ctx = s}});
    tm_calibration_close(c);
    return rc;
}

static void same_bytes(const char *a, const char *b) {
    tm_buf x = {0}, y = {0};
    slurp(a, &x);
    slurp(b, &y);
    assert_true(x.len == y.len && memcmp(x.data, y.data, x.len) == 0);
    tm_buf_free(&x);
    tm_buf_free(&y);
}

static void folders_are_packed_and_products_known(void **state) {
    (void)state;
    static const char *const types[] = {"gptq", "awq"};
    for (size_t i = 0; i < 2; i++) {
        seen s = {0};
        char file[64];
        OK(export_by(fixture("peft_base"), scratch(types[i]), types[i], UINT64_MAX, &s));
        assert_true(s.known == 14);
        assert_true(s.output_error < s.error); /* what is lost is lost where it costs little */
        tm_json_doc *config = json_in(scratch(types[i]), "config.json");
        const tm_json *q = tm_json_get(tm_json_root(config), "quantization_config");
        assert_true(tm_json_is(tm_json_get(q, "format"), "pack-quantized"));
        tm_json_free(config);
        snprintf(file, sizeof file, "%s/model.safetensors", types[i]);
        tm_st *st;
        OK(tm_st_open(&st, scratch(file)));
        assert_true(tm_st_find(st, "model.layers.1.mlp.down_proj.weight_packed") >= 0);
        tm_st_close(st);
        assert_int_equal(leftovers(scratch("")), 0);
    }
}

/* A budget with which activations go through a file. */
static uint64_t least_budget(const char *out, const char *dtype) {
    char least[32] = "";
    assert_int_equal(export_by(fixture("peft_base"), out, dtype, 1 << 20, NULL), TM_EBUDGET);
    const char *at = strstr(tm_error_get()->text, "host budget of ");
    assert_non_null(at);
    sscanf(at + strlen("host budget of "), "%31[0-9]", least);
    tm_error_clear();
    return strtoull(least, NULL, 10) + 4096;
}

/* Between the least budget and what holds all rows codes are the same. */
static void a_budget_changes_no_code(void **state) {
    (void)state;
    OK(export_by(fixture("peft_base"), scratch("whole"), "gptq", UINT64_MAX, NULL));
    uint64_t bytes =
        least_budget(scratch("none"), "gptq"); /* what the process has had counts, and that export was in it */
    assert_false(tm_path_exists(scratch("none")));
    OK(export_by(fixture("peft_base"), scratch("spilled"), "gptq", bytes, NULL));
    same_bytes(scratch("whole/model.safetensors"), scratch("spilled/model.safetensors"));
    assert_int_equal(leftovers(scratch("")), 0); /* the file was called after the temporary folder */
}

/* A file that somebody, or another export, has beside OUT stays as it is. */
static void activations_take_no_ones_name(void **state) {
    (void)state;
    tm_buf there = {0};
    uint64_t bytes = least_budget(scratch("out.gguf"), "q4_0");
    OK(tm_file_write(scratch("out.gguf.activations"), "mine", 4));
    OK(export_by(fixture("peft_base"), scratch("out.gguf"), "q4_0", bytes, NULL));
    slurp(scratch("out.gguf.activations"), &there);
    assert_true(there.len == 4 && memcmp(there.data, "mine", 4) == 0);
    tm_buf_free(&there);
}

static void importance_has_a_say_in_gguf(void **state) {
    (void)state;
    seen s = {0};
    OK(export_by(fixture("peft_base"), scratch("weighed.gguf"), "q4_0", UINT64_MAX, &s));
    convert(fixture("peft_base"), scratch("plain.gguf"), "q4_0");
    tm_gguf *a, *b;
    OK(tm_gguf_open(&a, scratch("weighed.gguf")));
    OK(tm_gguf_open(&b, scratch("plain.gguf")));
    int64_t down = tm_gguf_tensor_find(a, "blk.0.ffn_down.weight"), embed = tm_gguf_tensor_find(a, "token_embd.weight");
    uint8_t x[1 << 16], y[1 << 16];
    uint64_t n = tm_gguf_tensor_get(a, (uint32_t)down)->bytes;
    assert_true(n <= sizeof x);
    OK(tm_gguf_read_raw(a, (uint32_t)down, 0, n, x));
    OK(tm_gguf_read_raw(b, (uint32_t)down, 0, n, y));
    assert_true(memcmp(x, y, n) != 0);
    n = tm_gguf_tensor_get(a, (uint32_t)embed)->bytes;
    assert_true(n <= sizeof x && n == tm_gguf_tensor_get(b, (uint32_t)embed)->bytes);
    OK(tm_gguf_read_raw(a, (uint32_t)embed, 0, n, x));
    OK(tm_gguf_read_raw(b, (uint32_t)embed, 0, n, y));
    assert_true(memcmp(x, y, n) == 0); /* what is looked up is not multiplied */
    tm_gguf_close(a);
    tm_gguf_close(b);
}

static void what_has_no_use_for_a_text_is_refused(void **state) {
    (void)state;
    const char *base = fixture("peft_base");
    expect_error(export_by(base, scratch("no"), "int8", UINT64_MAX, NULL), TM_EINPUT, "not for int8");
    expect_error(export_by(base, scratch("no"), "bf16", UINT64_MAX, NULL), TM_EINPUT, "not for bf16");
    expect_error(export_by(base, scratch("no.gguf"), "q8_0", UINT64_MAX, NULL), TM_EINPUT, "not for q8_0");
    expect_error(export_by(base, scratch("no.gguf"), "gptq", UINT64_MAX, NULL), TM_EINPUT, "GGUF has no gptq");
    expect_error(tm_export(&(tm_export_request){.in = base, .out = scratch("no"), .convert.dtype = "awq"}), TM_EINPUT,
                 "--calibrate FILE");
    expect_error(export_by(fixture("peft_lora"), scratch("no"), NULL, UINT64_MAX, NULL), TM_EINPUT, "--merge-adapter");
    assert_false(tm_path_exists(scratch("no")));
    assert_false(tm_path_exists(scratch("no.gguf")));
}

static int start(void **state) {
    if (make_scratch(state) != 0 || tm_kernels_init(0, TM_ELEM_F32) != TM_OK) return -1;
    write_ids(scratch("ids.safetensors"));
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(folds_leave_the_model),
                                       cmocka_unit_test(sums_are_of_what_is_multiplied),
                                       cmocka_unit_test(folders_are_packed_and_products_known),
                                       cmocka_unit_test(a_budget_changes_no_code),
                                       cmocka_unit_test(activations_take_no_ones_name),
                                       cmocka_unit_test(importance_has_a_say_in_gguf),
                                       cmocka_unit_test(what_has_no_use_for_a_text_is_refused)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, start, remove_scratch);
}
