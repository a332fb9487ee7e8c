/* Adapters: PEFT's folders read, merged, written; what of a folder is refused. */
#include "world.h"
#include "format/peft.h"
#include "io/file/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tm_status export_as(const char *in, const char *out, const char *base, bool merge, const char *dtype) {
    return tm_export(&(tm_export_request){
        .in = in, .out = out, .base = base, .merge = merge, .dtype_of_config = true, .convert = {.dtype = dtype}});
}

static float *part_of(const tm_adapter_folder *f, const char *module, const char *ending, uint64_t *n) {
    char name[256];
    snprintf(name, sizeof name, "%s%s", module, ending);
    int64_t t = tm_adapter_folder_find(f, name);
    assert_true(t >= 0);
    *n = tm_adapter_folder_get(f, (uint32_t)t)->elements;
    float *v = malloc(*n * sizeof *v);
    OK(tm_adapter_folder_read_f32(f, (uint32_t)t, 0, *n, v));
    return v;
}

static tm_adapter_config *config_of(const char *keys) {
    tm_adapter_config *a;
    tm_buf text = {0};
    OK(tm_buf_printf(&text, "{\"peft_type\": \"LORA\", %s}", keys));
    OK(tm_adapter_create(&a));
    OK(tm_adapter_read(a, text.data, text.len, "test"));
    OK(tm_adapter_complete(a));
    tm_buf_free(&text);
    return a;
}

/* ---- against PEFT ------------------------------------------------------------------------------------------------ */

/* Same tensors, and values to within `bound`. */
static void same_values(const char *a_path, const char *b_path, float bound) {
    tm_source *a, *b;
    OK(tm_source_open(&a, a_path));
    OK(tm_source_open(&b, b_path));
    assert_int_equal(tm_source_tensors(a), tm_source_tensors(b));
    for (uint32_t i = 0; i < tm_source_tensors(a); i++) same_tensor(a, b, tm_source_tensor_get(a, i)->name, bound, 0);
    tm_source_close(a);
    tm_source_close(b);
}

/* merged/ of the fixtures is PEFT's merge_and_unload; golden.json's merged_weight_max_abs is 2e-6. */
static const struct {
    const char *name;
    float bound;
} merged[] = {{"peft_lora", 1e-7F},     {"peft_rslora", 1e-7F},    {"peft_dora", 2e-7F},
              {"peft_patterns", 2e-7F}, {"peft_embedding", 1e-7F}, {"peft_modules_to_save", 1e-7F},
              {"peft_pissa", 2e-6F}};

static void test_merged(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(merged); i++) {
        char out[64], wanted[128];
        snprintf(out, sizeof out, "merged-%s", merged[i].name);
        snprintf(wanted, sizeof wanted, "%s/merged", merged[i].name);
        OK(export_as(fixture(merged[i].name), scratch(out), NULL, true, NULL));
        same_values(scratch(out), fixture(wanted), merged[i].bound);
        tm_json_doc *ours = json_in(scratch(out), "config.json");
        assert_true(tm_json_is(tm_json_get(tm_json_root(ours), "dtype"), "float32"));
        tm_json_free(ours);
    }
    assert_int_equal(leftovers(scratch("")), 0);
}

/* A merged source gives the same values for any range, and from its GGUF. */
static void test_ranges(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(merged); k++) {
        tm_adapter_folder *f;
        tm_source *base, *src;
        tm_buf path = {0};
        OK(tm_adapter_folder_open(&f, fixture(merged[k].name)));
        OK(tm_adapter_folder_base(f, NULL, &path));
        OK(tm_source_open(&base, path.data));
        OK(tm_source_merge(&src, base, f));
        for (uint32_t i = 0; i < tm_source_tensors(src); i++) {
            uint64_t n, seed = i + 1;
            const char *name = tm_source_tensor_get(src, i)->name;
            float *whole = values_of(src, name, &n), some[4096];
            for (int turn = 0; turn < 20; turn++) {
                seed = tm_hash64(&seed, sizeof seed, 7);
                uint64_t first = seed % n, take = tm_min_u64((seed >> 32) % 300, n - first);
                OK(tm_source_read_f32(src, i, first, take, some));
                assert_memory_equal(some, whole + first, take * sizeof *some);
                OK(tm_source_read_native(src, i, first, take, some));
                assert_memory_equal(some, whole + first, take * sizeof *some);
            }
            expect_error(tm_source_read_f32(src, i, n, 1, some), TM_EINPUT, "are not there");
            free(whole);
        }
        tm_source_close(src);
        tm_source_close(base);
        tm_adapter_folder_close(f);
        tm_buf_free(&path);
    }
}

/* golden.safetensors of peft_pissa: scale * B A of the first A and B for each module. */
static void test_pissa_of_golden(void **state) {
    (void)state;
    tm_adapter_folder *f;
    tm_source *base;
    tm_st *golden;
    OK(tm_adapter_folder_open(&f, fixture("peft_pissa")));
    OK(tm_source_open(&base, fixture("peft_qwen3_base")));
    OK(tm_st_open(&golden, fixture("peft_pissa/golden.safetensors")));
    tm_source *merged_src;
    OK(tm_source_merge(&merged_src, base, f));
    unsigned seen = 0;
    for (uint32_t i = 0; i < tm_adapter_folder_tensors(f); i++) {
        const tm_adapter_tensor *t = tm_adapter_folder_get(f, i);
        char name[256];
        if (t->role != TM_ADAPTER_LORA_A) continue;
        snprintf(name, sizeof name, "residual.%s.weight", t->module);
        int64_t residual = tm_st_find(golden, name);
        assert_true(residual >= 0);
        snprintf(name, sizeof name, "product.%s.weight", t->module);
        int64_t product = tm_st_find(golden, name);
        uint64_t n;
        float *v = values_of(merged_src, name + strlen("product."), &n);
        for (uint64_t e = 0; e < n; e++) {
            float r, p;
            OK(tm_st_read_f32(golden, (uint32_t)residual, e, 1, &r));
            OK(tm_st_read_f32(golden, (uint32_t)product, e, 1, &p));
            if (fabsf(v[e] - (r + p)) > 1e-5F) fail_msg("%s[%llu]", name, (unsigned long long)e);
        }
        free(v);
        seen++;
    }
    assert_int_equal(seen, 6);
    tm_source_close(merged_src);
    tm_source_close(base);
    tm_st_close(golden);
    tm_adapter_folder_close(f);
}

/* ---- other forms -------------------------------------------------------------------------------------------------- */

static double number_in(const char *dir, const char *key) {
    tm_json_doc *doc = json_in(dir, "adapter_config.json");
    const tm_json *v = tm_json_get(tm_json_root(doc), key);
    assert_non_null(v);
    double number = v->number;
    tm_json_free(doc);
    return number;
}

/* A plain folder of PiSSA has twice the rank, and makes of the base what the adapter made of it. */
static void test_pissa_as_lora(void **state) {
    (void)state;
    OK(export_as(fixture("peft_pissa"), scratch("plain"), NULL, false, NULL));
    assert_true(number_in(scratch("plain"), "r") == 6);
    assert_true(number_in(scratch("plain"), "lora_alpha") == 14);
    OK(export_as(scratch("plain"), scratch("plain-merged"), fixture("peft_qwen3_base"), true, NULL));
    OK(export_as(fixture("peft_pissa"), scratch("pissa-merged"), NULL, true, NULL));
    same_values(scratch("plain-merged"), scratch("pissa-merged"), 1e-6F);
}

static void copy_file(const char *from, const char *to) {
    tm_buf text = {0};
    slurp(from, &text);
    write_file(to, text.data, text.len);
    tm_buf_free(&text);
}

/* A folder with its first A and B (those of PEFT, as the fixture's are the first) does not ask the base. */
static void test_pissa_with_its_first(void **state) {
    (void)state;
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    OK(tm_make_dirs(scratch("first/" TM_PISSA_FIRST)));
    for (size_t i = 0; i < 2; i++) {
        char name[128], to[128];
        snprintf(name, sizeof name, "peft_pissa/%s", files[i]);
        for (int inner = 0; inner < 2; inner++) {
            snprintf(to, sizeof to, "first/%s%s", inner ? TM_PISSA_FIRST "/" : "", files[i]);
            copy_file(fixture(name), scratch(to));
        }
    }
    OK(export_as(scratch("first"), scratch("first-merged"), fixture("peft_qwen3_base"), true, NULL));
    same_values(scratch("first-merged"), fixture("peft_qwen3_base"), 1e-7F);
    copy_file(fixture("peft_patterns/adapter_config.json"), scratch("first/" TM_PISSA_FIRST "/adapter_config.json"));
    copy_file(fixture("peft_patterns/adapter_model.safetensors"),
              scratch("first/" TM_PISSA_FIRST "/adapter_model.safetensors"));
    expect_error(export_as(scratch("first"), scratch("none"), fixture("peft_qwen3_base"), true, NULL), TM_EINPUT,
                 "they do not belong together");
}

/* The first A and B as training begins with them: those of PEFT, up to signs; power iterations come near. */
static void test_pissa_begins(void **state) {
    (void)state;
    static const struct {
        const char *init;
        float bound;
    } rows[] = {{"pissa", 2e-6F}, {"pissa_niter_200", 1e-3F}};
    tm_source *base;
    tm_st *golden;
    OK(tm_source_open(&base, fixture("peft_qwen3_base")));
    OK(tm_st_open(&golden, fixture("peft_pissa/golden.safetensors")));
    for (size_t k = 0; k < TM_COUNT(rows); k++) {
        char keys[256];
        tm_adapter_folder *f;
        snprintf(keys, sizeof keys,
                 "\"r\": 3, \"lora_alpha\": 7, \"init_lora_weights\": \"%s\", \"target_modules\": "
                 "[\"q_proj\", \"o_proj\", \"up_proj\", \"embed_tokens\"]",
                 rows[k].init);
        tm_adapter_config *a = config_of(keys);
        OK(tm_make_dirs(scratch("begun")));
        OK(tm_pissa_begin(a, base, scratch("begun"), 5, NULL));
        OK(tm_adapter_folder_open(&f, scratch("begun")));
        assert_int_equal(tm_adapter_folder_config(f)->init, TM_ADAPTER_INIT_DEFAULT);
        assert_int_equal(tm_adapter_folder_tensors(f), 12);
        for (uint32_t i = 0; i < 12; i++) {
            const tm_adapter_tensor *t = tm_adapter_folder_get(f, i);
            char name[256];
            uint64_t n_a, n_b;
            if (t->role != TM_ADAPTER_LORA_A) continue;
            snprintf(name, sizeof name, "product.%s.weight", t->module);
            int64_t product = tm_st_find(golden, name);
            assert_true(product >= 0);
            float *x = part_of(f, t->module, ".lora_A.weight", &n_a),
                  *y = part_of(f, t->module, ".lora_B.weight", &n_b);
            uint64_t in = n_a / 3;
            for (uint64_t e = 0; e < in * n_b / 3; e++) {
                float p;
                double sum = 0;
                OK(tm_st_read_f32(golden, (uint32_t)product, e, 1, &p));
                for (uint32_t r = 0; r < 3; r++) sum += (double)y[e / in * 3 + r] * (double)x[r * in + e % in];
                if (fabs(7.0 / 3 * sum - (double)p) > (double)rows[k].bound)
                    fail_msg("%s, %s[%llu]: %g, %g", rows[k].init, name, (unsigned long long)e, 7.0 / 3 * sum,
                             (double)p);
            }
            free(x), free(y);
        }
        tm_adapter_folder_close(f);
        tm_adapter_free(a);
    }
    tm_source_close(base);
    tm_st_close(golden);
}

/* What PEFT wrote, read and written again: the same names, shapes and bits. */
static void test_written_again(void **state) {
    (void)state;
    for (size_t k = 0; k < TM_COUNT(merged) - 1; k++) { /* but for PiSSA, which becomes plain */
        char to[64], file[128];
        tm_st *a, *b;
        snprintf(to, sizeof to, "again-%s", merged[k].name);
        OK(export_as(fixture(merged[k].name), scratch(to), NULL, false, NULL));
        snprintf(file, sizeof file, "%s/adapter_model.safetensors", merged[k].name);
        OK(tm_st_open(&a, fixture(file)));
        snprintf(file, sizeof file, "%s/adapter_model.safetensors", to);
        OK(tm_st_open(&b, scratch(file)));
        assert_int_equal(tm_st_count(a), tm_st_count(b));
        for (uint32_t i = 0; i < tm_st_count(a); i++) {
            const tm_st_info *x = tm_st_get(a, i);
            int64_t j = tm_st_find(b, x->name);
            if (j < 0) fail_msg("%s: '%s' is missing", to, x->name);
            const tm_st_info *y = tm_st_get(b, (uint32_t)j);
            assert_int_equal(x->bytes, y->bytes);
            assert_memory_equal(x->shape, y->shape, sizeof x->shape);
            uint8_t *p = malloc(2 * x->bytes);
            OK(tm_st_read_raw(a, i, 0, x->bytes, p));
            OK(tm_st_read_raw(b, (uint32_t)j, 0, x->bytes, p + x->bytes));
            assert_memory_equal(p, p + x->bytes, x->bytes);
            free(p);
        }
        tm_st_close(a);
        tm_st_close(b);
    }
}

/* ---- llama.cpp's form --------------------------------------------------------------------------------------------- */

typedef struct gguf_tensor {
    float *v;
    uint64_t rows, columns;
} gguf_tensor;

static gguf_tensor gguf_values(const tm_gguf *g, const char *name) {
    int64_t t = tm_gguf_tensor_find(g, name);
    if (t < 0) return (gguf_tensor){0};
    const tm_gguf_tensor *info = tm_gguf_tensor_get(g, (uint32_t)t);
    gguf_tensor r = {malloc(info->elements * sizeof(float)), info->shape[0], info->ndim > 1 ? info->shape[1] : 1};
    OK(tm_gguf_read_f32(g, (uint32_t)t, 0, info->elements, r.v));
    return r;
}

/* W + alpha / rank * b a, as llama.cpp computes; of the embedding a is [vocabulary, rank] and b [width, rank]. */
static void add_lora(gguf_tensor w, gguf_tensor a, gguf_tensor b, double alpha, bool embedding) {
    uint64_t rank = b.columns;
    assert_int_equal(a.rows, embedding ? w.rows : rank);
    assert_int_equal(a.columns, embedding ? rank : w.columns);
    assert_int_equal(b.rows, embedding ? w.columns : w.rows);
    for (uint64_t i = 0; i < w.rows; i++)
        for (uint64_t j = 0; j < w.columns; j++) {
            double sum = 0;
            for (uint64_t r = 0; r < rank; r++)
                sum += embedding ? (double)a.v[i * rank + r] * (double)b.v[j * rank + r]
                                 : (double)a.v[r * a.columns + j] * (double)b.v[i * rank + r];
            w.v[i * w.columns + j] += (float)(alpha / (double)rank * sum);
        }
}

/* The base's file with the adapter's is the file of the fixture's merged/. */
static void check_gguf(const char *name, const char *base, unsigned modules) {
    char path[128];
    double alpha = 0;
    tm_gguf *of_base, *of_lora, *of_merged;
    unsigned seen = 0;
    snprintf(path, sizeof path, "%s.base.gguf", name);
    convert(fixture(base), scratch(path), "f32");
    OK(tm_gguf_open(&of_base, scratch(path)));
    snprintf(path, sizeof path, "%s.gguf", name);
    OK(export_as(fixture(name), scratch(path), NULL, false, NULL));
    OK(tm_gguf_open(&of_lora, scratch(path)));
    OK(tm_gguf_float(of_lora, "adapter.lora.alpha", &alpha, NULL));
    char merged_folder[64];
    snprintf(merged_folder, sizeof merged_folder, "%s/merged", name);
    snprintf(path, sizeof path, "%s.merged.gguf", name);
    convert(fixture(merged_folder), scratch(path), "f32");
    OK(tm_gguf_open(&of_merged, scratch(path)));
    for (uint32_t i = 0; i < tm_gguf_tensors(of_base); i++) {
        const char *tensor = tm_gguf_tensor_get(of_base, i)->name;
        gguf_tensor w = gguf_values(of_base, tensor), wanted = gguf_values(of_merged, tensor);
        snprintf(path, sizeof path, "%s.lora_a", tensor);
        gguf_tensor a = gguf_values(of_lora, path);
        snprintf(path, sizeof path, "%s.lora_b", tensor);
        gguf_tensor b = gguf_values(of_lora, path);
        if (a.v) add_lora(w, a, b, alpha, strcmp(tensor, "token_embd.weight") == 0);
        seen += a.v != NULL;
        for (uint64_t e = 0; e < w.rows * w.columns; e++)
            if (fabsf(w.v[e] - wanted.v[e]) > 2e-6F) fail_msg("%s: %s[%llu]", name, tensor, (unsigned long long)e);
        free(w.v), free(wanted.v), free(a.v), free(b.v);
    }
    assert_int_equal(seen, modules);
    assert_int_equal(tm_gguf_tensors(of_lora), 2 * modules);
    tm_gguf_close(of_base);
    tm_gguf_close(of_lora);
    tm_gguf_close(of_merged);
}

static void test_gguf(void **state) {
    (void)state;
    check_gguf("peft_lora", "peft_base", 14);
    check_gguf("peft_rslora", "peft_base", 14);
    check_gguf("peft_patterns", "peft_qwen3_base", 8);
    check_gguf("peft_embedding", "peft_qwen3_base", 4);
    check_gguf("peft_pissa", "peft_qwen3_base", 6);
    expect_error(export_as(fixture("peft_dora"), scratch("no.gguf"), NULL, false, NULL), TM_EUNSUPPORTED,
                 "is of DoRA, which llama.cpp's adapters cannot say");
    expect_error(export_as(fixture("peft_modules_to_save"), scratch("no.gguf"), NULL, false, NULL), TM_EUNSUPPORTED,
                 "'lm_head.weight' is trained whole");
    assert_false(tm_path_exists(scratch("no.gguf")));
}

/* ---- folders made here --------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *name; /* "" ends a list */
    uint64_t shape[2];
} part;

static float value_of(uint32_t t, uint64_t i) {
    return pattern(i * 7 + t * 1000) * 0.25F;
}

static void write_adapter(const char *dir, const char *keys, const part *parts) {
    tm_adapter_config *a = config_of(keys);
    tm_adapter_writer *w;
    uint32_t n = 0, index;
    OK(tm_remove_tree(dir));
    OK(tm_make_dirs(dir));
    OK(tm_adapter_writer_create(&w, dir, a, &(tm_adapter_json_opts){0}, TM_FMT_F32));
    for (; parts[n].name; n++) {
        OK(tm_adapter_writer_add(w, parts[n].name, parts[n].shape[1] ? 2 : 1, parts[n].shape, &index));
        assert_int_equal(index, n);
    }
    assert_false(tm_is_adapter_folder(dir));
    for (uint32_t t = 0; t < n; t++)
        for (uint64_t i = 0; i < parts[t].shape[0] * (parts[t].shape[1] ? parts[t].shape[1] : 1); i++)
            OK(tm_adapter_writer_put_f32(w, t, i, 1, &(float){value_of(t, i)}));
    OK(tm_adapter_writer_commit(w));
    assert_true(tm_is_adapter_folder(dir));
    tm_adapter_free(a);
}

/* W + scale B A of a tensor, A and B being tensors a and a + 1 of write_adapter, in double; DoRA: a + 2. */
typedef struct formula {
    const char *tensor, *out; /* of the base, of the result (NULL: the same) */
    uint32_t a, rank;
    double scale;
    bool turned, dora;
} formula;

static double delta(const formula *f, uint64_t in, uint64_t i, uint64_t o) {
    double sum = 0;
    for (uint32_t r = 0; r < f->rank; r++)
        sum += (double)value_of(f->a, r * in + i) * (double)value_of(f->a + 1, o * f->rank + r);
    return f->scale * sum;
}

static void check_formula(const tm_source *base, const tm_source *result, const formula *f) {
    uint64_t n, m, columns;
    float *w = values_of(base, f->tensor, &n), *got = values_of(result, f->out ? f->out : f->tensor, &m);
    columns = tm_source_tensor_get(base, (uint32_t)tm_source_find(base, f->tensor))->shape[1];
    assert_int_equal(n, m);
    uint64_t rows = n / columns, in = f->turned ? rows : columns, out = f->turned ? columns : rows;
    for (uint64_t o = 0; o < out; o++) {
        double square = 0;
        for (uint64_t i = 0; i < in; i++) {
            double v = (double)w[f->turned ? i * out + o : o * in + i] + (f->rank ? delta(f, in, i, o) : 0);
            square += v * v;
        }
        double factor = f->dora ? (double)value_of(f->a + 2, o) / sqrt(square) : 1;
        for (uint64_t i = 0; i < in; i++) {
            uint64_t e = f->turned ? i * out + o : o * in + i;
            double v = factor * ((double)w[e] + (f->rank ? delta(f, in, i, o) : 0));
            if (fabs(v - (double)got[e]) > 2e-6 * (1 + fabs(v)))
                fail_msg("%s[%llu]: %g, %g", f->tensor, (unsigned long long)e, v, got[e]);
        }
    }
    free(w), free(got);
}

static void check_formulas(const char *base_path, const char *result_path, const formula *f) {
    tm_source *base, *result;
    OK(tm_source_open(&base, base_path));
    OK(tm_source_open(&result, result_path));
    for (; f->tensor; f++) check_formula(base, result, f);
    tm_source_close(base);
    tm_source_close(result);
}

static bool is_tied(const char *dir) {
    tm_json_doc *doc = json_in(dir, "config.json");
    const tm_json *t = tm_json_get(tm_json_root(doc), "tie_word_embeddings");
    bool tied = !t || t->boolean;
    tm_json_free(doc);
    return tied;
}

/* Of what is one tensor in the base an adapter changes one place, or both: the output becomes a tensor of its own. */
static void test_tied(void **state) {
    (void)state;
    const part embedding[] = {{"model.embed_tokens.lora_embedding_A", {3, 40}},
                              {"model.embed_tokens.lora_embedding_B", {32, 3}},
                              {NULL, {0}}};
    const part head[] = {{"lm_head.lora_A.weight", {3, 32}}, {"lm_head.lora_B.weight", {40, 3}}, {NULL, {0}}};
    const part whole[] = {{"lm_head.weight", {40, 32}}, {NULL, {0}}};
    const part neither[] = {{"model.layers.0.mlp.up_proj.lora_A.weight", {3, 32}},
                            {"model.layers.0.mlp.up_proj.lora_B.weight", {32, 3}},
                            {NULL, {0}}};
    make_folder(scratch("tied"), NULL, 40);
    char base[1024], lora[1024];
    snprintf(base, sizeof base, "%s", scratch("tied"));
    snprintf(lora, sizeof lora, "%s", scratch("lora"));
    write_adapter(lora, "\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"embed_tokens\"]", embedding);
    OK(export_as(lora, scratch("tied-1"), base, true, NULL));
    check_formulas(base, scratch("tied-1"),
                   (formula[]){{"model.embed_tokens.weight", NULL, 0, 3, 2, true, false},
                               {"model.embed_tokens.weight", "lm_head.weight", 0, 0, 0, false, false},
                               {0}});
    assert_false(is_tied(scratch("tied-1")));
    write_adapter(lora, "\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"lm_head\"]", head);
    OK(export_as(lora, scratch("tied-2"), base, true, NULL));
    check_formulas(base, scratch("tied-2"),
                   (formula[]){{"model.embed_tokens.weight", NULL, 0, 0, 0, false, false},
                               {"model.embed_tokens.weight", "lm_head.weight", 0, 3, 2, false, false},
                               {0}});
    assert_false(is_tied(scratch("tied-2")));
    expect_error(export_as(lora, scratch("tied.gguf"), base, false, NULL), TM_EUNSUPPORTED, "which are tied");
    OK(export_as(lora, scratch("untied.gguf"), base, true, NULL));
    same_values(scratch("untied.gguf"), scratch("tied-2"), 0);
    write_adapter(lora, "\"modules_to_save\": [\"lm_head\"], \"target_modules\": [\"q_proj\"]", whole);
    OK(export_as(lora, scratch("tied-3"), base, true, NULL));
    assert_false(is_tied(scratch("tied-3")));
    tm_source *src;
    uint64_t n;
    OK(tm_source_open(&src, scratch("tied-3")));
    float *v = values_of(src, "lm_head.weight", &n);
    for (uint64_t i = 0; i < n; i++) assert_true(v[i] == value_of(0, i));
    free(v);
    tm_source_close(src);
    write_adapter(lora, "\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"up_proj\"]", neither);
    OK(export_as(lora, scratch("tied-4"), base, true, NULL));
    assert_true(is_tied(scratch("tied-4")));
    check_formulas(base, scratch("tied-4"),
                   (formula[]){{"model.layers.0.mlp.up_proj.weight", NULL, 0, 3, 2, false, false}, {0}});
}

/* DoRA of every layout. */
static void test_dora(void **state) {
    (void)state;
    const part parts[] = {{"model.embed_tokens.lora_embedding_A", {2, 40}},
                          {"model.embed_tokens.lora_embedding_B", {32, 2}},
                          {"model.embed_tokens.lora_magnitude_vector", {32, 0}},
                          {"model.layers.0.self_attn.q_proj.lora_A.weight", {2, 32}},
                          {"model.layers.0.self_attn.q_proj.lora_B.weight", {32, 2}},
                          {"model.layers.0.self_attn.q_proj.lora_magnitude_vector", {32, 0}},
                          {NULL, {0}}};
    make_folder(scratch("tied"), NULL, 40);
    write_adapter(scratch("dora"),
                  "\"r\": 2, \"lora_alpha\": 4, \"use_rslora\": true, \"use_dora\": true, \"target_modules\": "
                  "[\"embed_tokens\", \"q_proj\"]",
                  parts);
    OK(export_as(scratch("dora"), scratch("dora-1"), scratch("tied"), true, NULL));
    check_formulas(scratch("tied"), scratch("dora-1"),
                   (formula[]){{"model.embed_tokens.weight", NULL, 0, 2, 4 / sqrt(2), true, true},
                               {"model.layers.0.self_attn.q_proj.weight", NULL, 3, 2, 4 / sqrt(2), false, true},
                               {0}});
}

/* GPT-2's matrices are [in, out]; A and B are as everywhere. */
static void test_gpt2(void **state) {
    (void)state;
    tm_source *src;
    OK(tm_source_open(&src, fixture("arch_gpt2")));
    const char *names[] = {"transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_proj.weight"};
    uint64_t shape[2][2];
    for (int i = 0; i < 2; i++)
        memcpy(shape[i], tm_source_tensor_get(src, (uint32_t)tm_source_find(src, names[i]))->shape, sizeof shape[i]);
    tm_source_close(src);
    const part parts[] = {{"transformer.h.0.attn.c_attn.lora_A.weight", {2, shape[0][0]}},
                          {"transformer.h.0.attn.c_attn.lora_B.weight", {shape[0][1], 2}},
                          {"transformer.h.0.attn.c_attn.lora_magnitude_vector", {shape[0][1], 0}},
                          {"transformer.h.1.mlp.c_proj.lora_A.weight", {2, shape[1][0]}},
                          {"transformer.h.1.mlp.c_proj.lora_B.weight", {shape[1][1], 2}},
                          {"transformer.h.1.mlp.c_proj.lora_magnitude_vector", {shape[1][1], 0}},
                          {NULL, {0}}};
    part plain[5] = {parts[0], parts[1], parts[3], parts[4], {NULL, {0}}};
    const char *keys = "\"r\": 2, \"lora_alpha\": 3, \"fan_in_fan_out\": true, \"target_modules\": [\"c_attn\", "
                       "\"mlp.c_proj\"], \"use_dora\": ";
    char text[256];
    snprintf(text, sizeof text, "%strue", keys);
    write_adapter(scratch("gpt2"), text, parts);
    OK(export_as(scratch("gpt2"), scratch("gpt2-dora"), fixture("arch_gpt2"), true, NULL));
    check_formulas(fixture("arch_gpt2"), scratch("gpt2-dora"),
                   (formula[]){{names[0], NULL, 0, 2, 1.5, true, true}, {names[1], NULL, 3, 2, 1.5, true, true}, {0}});
    snprintf(text, sizeof text, "%sfalse", keys);
    write_adapter(scratch("gpt2"), text, plain);
    OK(export_as(scratch("gpt2"), scratch("gpt2-lora"), fixture("arch_gpt2"), true, NULL));
    check_formulas(
        fixture("arch_gpt2"), scratch("gpt2-lora"),
        (formula[]){{names[0], NULL, 0, 2, 1.5, true, false}, {names[1], NULL, 2, 2, 1.5, true, false}, {0}});
    OK(export_as(scratch("gpt2"), scratch("gpt2.gguf"), fixture("arch_gpt2"), true, NULL));
    same_values(scratch("gpt2.gguf"), scratch("gpt2-lora"), 0);
}

/* Quantised bases are merged from what they are worth; other types of the result round once. */
static void test_bases_and_types(void **state) {
    (void)state;
    const formula lora[] = {{"model.layers.0.mlp.up_proj.weight", NULL, 0, 3, 2, false, false}, {0}};
    const part parts[] = {{"model.layers.0.mlp.up_proj.lora_A.weight", {3, 32}},
                          {"model.layers.0.mlp.up_proj.lora_B.weight", {32, 3}},
                          {NULL, {0}}};
    make_folder(scratch("plain-base"), "tok_llama3", 1000);
    convert(scratch("plain-base"), scratch("base.gguf"), "q8_0");
    write_adapter(scratch("lora"), "\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"up_proj\"]", parts);
    OK(export_as(scratch("lora"), scratch("from-gguf"), scratch("base.gguf"), true, NULL));
    check_formulas(scratch("base.gguf"), scratch("from-gguf"), lora);
    OK(export_as(scratch("lora"), scratch("to.gguf"), scratch("base.gguf"), true, "f32"));
    same_values(scratch("to.gguf"), scratch("from-gguf"), 0);
    OK(export_as(scratch("lora"), scratch("bf16"), scratch("base.gguf"), true, "bf16"));
    convert(scratch("from-gguf"), scratch("bf16-later"), "bf16");
    same_values(scratch("bf16"), scratch("bf16-later"), 0);
    OK(export_as(scratch("bf16"), scratch("bf16-again"), NULL, false,
                 NULL)); /* a model: in the type of its config.json */
    same_values(scratch("bf16-again"), scratch("bf16"), 0);
    tm_source *src;
    OK(tm_source_open(&src, scratch("bf16-again")));
    assert_int_equal(tm_source_tensor_get(src, 0)->fmt, TM_FMT_BF16);
    tm_source_close(src);
    OK(export_as(scratch("lora"), scratch("lora-f16"), NULL, false, "f16"));
    expect_error(export_as(scratch("lora"), scratch("no"), NULL, false, "q8_0"), TM_EINPUT, "not q8_0");
    expect_error(export_as(scratch("bf16"), scratch("no"), NULL, true, NULL), TM_EINPUT, "nothing to merge");
    expect_error(export_as(scratch("lora"), scratch("bf16"), scratch("base.gguf"), true, NULL), TM_EINPUT,
                 "is there already");
    assert_int_equal(leftovers(scratch("")), 0);
}

/* Each adapted matrix of the result is what the base's is worth + scale B A. */
static void check_sum(const char *base_path, const char *adapter, const char *result_path, uint32_t rank,
                      double scale) {
    tm_source *base, *result;
    tm_adapter_folder *f;
    OK(tm_source_open(&base, base_path));
    OK(tm_source_open(&result, result_path));
    OK(tm_adapter_folder_open(&f, adapter));
    for (uint32_t i = 0; i < tm_adapter_folder_tensors(f); i++) {
        const tm_adapter_tensor *t = tm_adapter_folder_get(f, i);
        char name[256];
        if (t->role != TM_ADAPTER_LORA_A) continue;
        snprintf(name, sizeof name, "%s.weight", t->module);
        uint64_t n, n_a, n_b;
        float *w = values_of(base, name, &n), *got = values_of(result, name, &n);
        float *a = part_of(f, t->module, ".lora_A.weight", &n_a), *b = part_of(f, t->module, ".lora_B.weight", &n_b);
        uint64_t in = n_a / rank;
        for (uint64_t e = 0; e < n; e++) {
            double sum = 0;
            for (uint32_t r = 0; r < rank; r++) sum += (double)b[e / in * rank + r] * (double)a[r * in + e % in];
            if (fabs((double)w[e] + scale * sum - (double)got[e]) > 1e-6)
                fail_msg("%s[%llu]", name, (unsigned long long)e);
        }
        free(w), free(got), free(a), free(b);
    }
    tm_source_close(base);
    tm_source_close(result);
    tm_adapter_folder_close(f);
}

/* An adapter of a 4-bit base: merged into its dequantised values, or into a base of full precision. */
static void test_qlora(void **state) {
    (void)state;
    char adapter[1024];
    snprintf(adapter, sizeof adapter, "%s", fixture("peft_qlora"));
    OK(export_as(adapter, scratch("qlora"), NULL, true, NULL));
    check_sum(fixture("peft_qlora/base_nf4"), adapter, scratch("qlora"), 8, 2);
    tm_json_doc *config = json_in(scratch("qlora"), "config.json");
    assert_null(tm_json_get(tm_json_root(config), "quantization_config"));
    tm_json_free(config);
    tm_source *src;
    OK(tm_source_open(&src, scratch("qlora")));
    for (uint32_t i = 0; i < tm_source_tensors(src); i++)
        assert_int_equal(tm_source_tensor_get(src, i)->fmt, TM_FMT_F32);
    tm_source_close(src);
    OK(export_as(adapter, scratch("qlora-full"), fixture("peft_base"), true, NULL));
    check_sum(fixture("peft_base"), adapter, scratch("qlora-full"), 8, 2);
    OK(export_as(adapter, scratch("qlora.gguf"), NULL, true, "f32"));
    check_sum(fixture("peft_qlora/base_nf4"), adapter, scratch("qlora.gguf"), 8, 2);
    OK(export_as(adapter, scratch("qlora-lora.gguf"), NULL, false, NULL));
}

/* ---- what is refused ------------------------------------------------------------------------------------------------ */

static void test_refused(void **state) {
    (void)state;
#define UP "model.layers.0.mlp.up_proj"
#define KEYS "\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"up_proj\"]"
    static const struct {
        const char *keys;
        part parts[4];
        tm_status status;
        const char *says;
    } rows[] = {
        {KEYS, {{UP ".lora_A.weight", {3, 32}}}, TM_EINPUT, "has an A but no '" UP ".lora_B.weight'"},
        {KEYS, {{UP ".lora_B.weight", {32, 3}}}, TM_EINPUT, "but no '" UP ".lora_A.weight'"},
        {KEYS, {{UP ".lora_A.weight", {4, 32}}, {UP ".lora_B.weight", {32, 4}}}, TM_EINPUT, "has rank 4, but"},
        {KEYS, {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.weight", {32, 2}}}, TM_EINPUT, "lora_B.weight' is not ["},
        {KEYS, {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.weight", {96, 0}}}, TM_EINPUT, "is not a matrix"},
        {KEYS, {{UP ".lora_A.weight", {3, 31}}, {UP ".lora_B.weight", {32, 3}}}, TM_EINPUT, "another base"},
        {KEYS, {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.weight", {33, 3}}}, TM_EINPUT, "another base"},
        {KEYS,
         {{"model.layers.7.mlp.up_proj.lora_A.weight", {3, 32}}, {"model.layers.7.mlp.up_proj.lora_B.weight", {32, 3}}},
         TM_EINPUT,
         "adapts 'model.layers.7.mlp.up_proj', which"},
        {KEYS,
         {{"model.layers.0.mlp.down_proj.lora_A.weight", {3, 32}},
          {"model.layers.0.mlp.down_proj.lora_B.weight", {32, 3}}},
         TM_EINPUT,
         "target_modules of adapter_config.json does not name it"},
        {KEYS,
         {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.weight", {32, 3}}, {UP ".lora_magnitude_vector", {32, 0}}},
         TM_EINPUT,
         "does not say use_dora"},
        {KEYS ", \"use_dora\": true",
         {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.weight", {32, 3}}},
         TM_EINPUT,
         "but no '" UP ".lora_magnitude_vector'"},
        {KEYS ", \"use_dora\": true",
         {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.weight", {32, 3}}, {UP ".lora_magnitude_vector", {31, 0}}},
         TM_EINPUT,
         "is not as long as its B is high, 32"},
        {KEYS, {{UP ".lora_A.weight", {3, 32}}, {UP ".lora_B.bias", {32, 0}}}, TM_EINPUT, "none of a LoRA adapter's"},
        {KEYS, {{UP ".oft_R", {3, 32}}, {"vera_lambda", {3, 0}}}, TM_EINPUT, "2 tensors are none of a LoRA adapter's"},
        {KEYS, {{"lm_head.weight", {41, 32}}}, TM_EUNSUPPORTED, "its vocabulary grew"},
        {KEYS, {{"lm_head.weight", {40, 31}}}, TM_EINPUT, "another base"},
        {KEYS, {{"score.weight", {2, 32}}}, TM_EINPUT, "holds 'score.weight', which"},
        {"\"target_modules\": [\"query\"]",
         {{"model.norm.weight", {32, 0}}},
         TM_EINPUT,
         "chooses no module of this model"}};
    make_folder(scratch("tied"), NULL, 40);
    for (size_t i = 0; i < TM_COUNT(rows); i++) {
        char out[32];
        snprintf(out, sizeof out, "refused-%zu", i);
        write_adapter(scratch("bad"), rows[i].keys, rows[i].parts);
        tm_status rc = export_as(scratch("bad"), scratch(out), scratch("tied"), true, NULL);
        expect_error(rc, rows[i].status, rows[i].says);
        assert_false(tm_path_exists(scratch(out)));
    }
}

static void test_folders_refused(void **state) {
    (void)state;
    char dir[1024];
    tm_adapter_folder *f;
    snprintf(dir, sizeof dir, "%s", scratch("odd"));
    OK(tm_make_dirs(dir));
    expect_error(tm_adapter_folder_open(&f, dir), TM_EINPUT, "has no adapter_config.json");
    copy_file(fixture("peft_lora/adapter_config.json"), scratch("odd/adapter_config.json"));
    expect_error(tm_adapter_folder_open(&f, dir), TM_EINPUT, "but no adapter_model.safetensors");
    write_file(scratch("odd/adapter_model.bin"), "x", 1);
    expect_error(tm_adapter_folder_open(&f, dir), TM_EUNSUPPORTED, "pickled");
    write_file(scratch("odd/adapter_model.safetensors"), "x", 1);
    expect_error(tm_adapter_folder_open(&f, dir), TM_EINPUT, "adapter_model.safetensors");
    copy_file(fixture("peft_rslora/adapter_model.safetensors"), scratch("odd/adapter_model.safetensors"));
    OK(tm_adapter_folder_open(&f, dir));
    tm_buf path = {0};
    expect_error(tm_adapter_folder_base(f, NULL, &path), TM_EINPUT, "the base '../peft_base' is not here");
    tm_buf_free(&path);
    tm_adapter_folder_close(f);
    expect_error(export_as(dir, scratch("odd-merged"), fixture("peft_qwen3_base"), true, NULL), TM_EINPUT,
                 "another base");
    assert_int_equal(leftovers(scratch("")), 0);
}

/* Any byte of a folder's two files may be another: an error or a result, never more. */
static void test_mutants(void **state) {
    (void)state;
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    tm_buf bytes[2] = {{0}, {0}};
    uint64_t seed = 1;
    tm_source *base;
    OK(tm_source_open(&base, fixture("peft_qwen3_base")));
    OK(tm_make_dirs(scratch("mutant")));
    for (int k = 0; k < 2; k++) {
        char name[64];
        snprintf(name, sizeof name, "peft_embedding/%s", files[k]);
        slurp(fixture(name), &bytes[k]);
        snprintf(name, sizeof name, "mutant/%s", files[k]);
        write_file(scratch(name), bytes[k].data, bytes[k].len);
    }
    for (int turn = 0; turn < 1500; turn++) {
        int k = turn % 2;
        char path[64];
        uint64_t range = k ? tm_min_u64(bytes[k].len, 1600) : bytes[k].len;
        seed = tm_hash64(&seed, sizeof seed, 3);
        size_t at = seed % range;
        char was = bytes[k].data[at];
        bytes[k].data[at] = (char)(turn % 3 ? seed >> 40 : (uint64_t)(uint8_t)was ^ (1U << (seed >> 40) % 8));
        snprintf(path, sizeof path, "mutant/%s", files[k]);
        write_file(scratch(path), bytes[k].data, bytes[k].len);
        tm_adapter_folder *f = NULL;
        tm_source *src = NULL;
        float some[64];
        tm_status rc = tm_adapter_folder_open(&f, scratch("mutant"));
        if (rc == TM_OK) rc = tm_source_merge(&src, base, f);
        for (uint32_t i = 0; rc == TM_OK && i < tm_source_tensors(src); i++)
            rc = tm_source_read_f32(src, i, 0, tm_min_u64(64, tm_source_tensor_get(src, i)->elements), some);
        if (rc != TM_OK && rc != TM_EINPUT && rc != TM_EUNSUPPORTED) fail_msg("%s: %s", path, tm_error_get()->text);
        tm_error_clear();
        tm_source_close(src);
        tm_adapter_folder_close(f);
        bytes[k].data[at] = was;
        write_file(scratch(path), bytes[k].data, bytes[k].len);
    }
    tm_buf_free(&bytes[0]);
    tm_buf_free(&bytes[1]);
    tm_source_close(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_merged),
                                       cmocka_unit_test(test_ranges),
                                       cmocka_unit_test(test_pissa_of_golden),
                                       cmocka_unit_test(test_pissa_as_lora),
                                       cmocka_unit_test(test_written_again),
                                       cmocka_unit_test(test_pissa_begins),
                                       cmocka_unit_test(test_pissa_with_its_first),
                                       cmocka_unit_test(test_gguf),
                                       cmocka_unit_test(test_tied),
                                       cmocka_unit_test(test_dora),
                                       cmocka_unit_test(test_gpt2),
                                       cmocka_unit_test(test_bases_and_types),
                                       cmocka_unit_test(test_qlora),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_folders_refused),
                                       cmocka_unit_test(test_mutants)};
    return cmocka_run_group_tests_name("peft", tests, make_scratch, remove_scratch);
}
