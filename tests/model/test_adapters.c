/* Adapters: against PEFT's (fixtures/peft_*), against slopes of the loss in odd sizes, and what the contract promises. */
#include "adapter/adapter.h"
#include "fixture.h"
#include "kernels/kernels.h"
#include "model/model_internal.h"
#include "slopes.h"
#include "tests/support/families.h"
#include "tests/support/support.h"
#include "world.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- PEFT ---- */

static bool config_learns(void *ctx, const char *tensor) {
    return tm_adapter_learns(ctx, tensor);
}
static bool config_adapts(void *ctx, const char *module, tm_adapter_spec *out) {
    return tm_adapter_module(ctx, module, out);
}

static void add_module(const char **names, size_t *n, const tm_tensor *x) {
    static char text[256][96];
    size_t len = strlen(x->name) - strlen(".weight");
    if (x->ndim != 2) return;
    snprintf(text[*n], sizeof text[*n], "%.*s", (int)len, x->name);
    names[*n] = text[*n];
    ++*n;
}

/* Complete, and seen to be of that model. */
static tm_adapter_config *read_adapter(const fixture *f) {
    tm_adapter_config *a;
    size_t len, n = 0;
    tm_model *m;
    const char *names[256];
    char *text = read_text(fixture_path(f->folder, "adapter_config.json"), &len);
    OK(tm_adapter_create(&a));
    OK(tm_adapter_read(a, text, len, f->folder));
    OK(tm_adapter_complete(a));
    tm_free(text);
    OK(tm_model_create(&m, &f->config, TM_F32));
    for (uint32_t t = 0; t < tm_model_tensors(m); t++) add_module(names, &n, tm_model_tensor(m, t));
    OK(tm_adapter_check(a, names, n));
    tm_model_free(m);
    return a;
}

static const struct peft {
    const char *folder, *base;
} pefts[] = {{"peft_lora", "peft_base"},
             {"peft_rslora", "peft_base"},
             {"peft_dora", "peft_base"},
             {"peft_patterns", "peft_qwen3_base"},
             {"peft_modules_to_save", "peft_qwen3_base"},
             {"peft_embedding", "peft_qwen3_base"}};

static void peft(void **state) {
    const struct peft *p = *state;
    fixture f = fixture_open_adapter(p->folder, p->base);
    tm_adapter_config *config = read_adapter(&f);
    const tm_model_roles roles = {.learns = config_learns, .adapts = config_adapts, .ctx = config};
    tm_model *m;
    OK(tm_model_create_roles(&m, &f.config, TM_F32, &roles));
    tm_micro_batch batch = fixture_batch(&f);
    run r;
    uint64_t labels;
    run_open(&r, m, 1, &batch);
    fixture_load(&r, &f);
    run_forward(&r, BATCH_OUTER);
    check_logits(&r, &f, "logits", fixture_number(&f, "tolerances", "logits_max_abs"));
    check_token_nll(&r, &f, 5e-5);
    check_loss(&r, &f, "loss", fixture_number(&f, "tolerances", "loss_abs"), &labels);
    mean_of_labels(&r, labels);
    run_backward(&r, BATCH_OUTER);
    double norm = check_gradients(&r, &f, fixture_number(&f, "tolerances", "grad_rel_l2"));
    double want = fixture_number(&f, "scalars", "grad_norm");
    assert_true(fabs(norm - want) / want <= fixture_number(&f, "tolerances", "grad_norm_rel"));
    run_close(&r);
    tm_model_free(m);
    tm_adapter_free(config);
    fixture_close(&f);
}

/* ---- families ---- */

enum { DORA = 1, NO_VOCABULARY = 2, BASE_TOO = 4, PISSA = 8 };
static bool base_learns(void *ctx, const char *tensor) {
    return (void)tensor, *(const unsigned *)ctx & BASE_TOO;
}
static bool is_vocabulary(const char *module) {
    return strstr(module, "embed") || strstr(module, "wte") || strstr(module, "lm_head");
}
/* Other tables than that of the vocabulary have none. */
static bool is_refused(const char *module) {
    return strstr(module, "wpe") || strstr(module, "embed_tokens_per_layer");
}
/* Every module but one in four, each with a rank and a scale of its own. */
static bool most_adapt(void *ctx, const char *module, tm_adapter_spec *out) {
    const unsigned *how = ctx;
    uint64_t hash = tm_hash64(module, strlen(module), 5);
    if (hash % 4 == 0 || is_refused(module) || ((*how & NO_VOCABULARY) && is_vocabulary(module))) return false;
    *out = (tm_adapter_spec){.rank = 1 + (uint32_t)(hash / 4 % 5), .scale = 0.2 + 0.1 * (double)(hash % 3)};
    out->dora = (*how & DORA) && !is_vocabulary(module);
    out->pissa = (*how & PISSA) && !is_vocabulary(module);
    return true;
}

static tm_model *adapted(const char *json, tm_dtype compute, unsigned how, double dropout) {
    tm_model_config c;
    tm_model *m;
    const tm_model_roles roles = {
        .learns = base_learns, .adapts = most_adapt, .ctx = &how, .dropout = dropout, .seed = 11};
    OK(tm_model_config_parse(&c, json, strlen(json), "adapted"));
    OK(tm_model_create_roles(&m, &c, compute, &roles));
    return m;
}

/* Some of the input drops: always the same. */
static void lora(void **state) {
    const struct family *f = *state;
    tm_model *m = adapted(f->json, TM_F32, 0, 0.25);
    tokens t = make_tokens(3, 23, tm_model_get_config(m)->vocab_size, 4);
    run r;
    t.batch.training = true, t.batch.draw = 8;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 9);
    whole_step(&r, BATCH_OUTER);
    printf("%s: slopes differ by %.2g of what is allowed\n", f->name, check_slopes(&r, 9, f->name));
    run_close(&r);
    free_tokens(&t);
    tm_model_free(m);
}

static float *values_of(const tm_model *m, uint32_t t) {
    float *v = malloc(tm_model_tensor(m, t)->elements * sizeof *v);
    lively_values(tm_model_tensor(m, t), 9, v);
    return v;
}

/* Of output i of matrix t [out, in], or [in, out], with tensors t + .. of its adapter. */
typedef struct dora_case {
    const tm_model *m;
    uint32_t w, a, b, magnitude;
    double scale;
    uint64_t out, in, rank;
    float *v[4]; /* of W, A, B, m */
    double *gain;
} dora_case;

static uint64_t weight_at(const dora_case *c, uint64_t o, uint64_t i) {
    return tm_model_tensor(c->m, c->w)->shape[0] == c->out && !c->m->transposed ? o * c->in + i : i * c->out + o;
}

static dora_case open_case(const tm_model *m, uint32_t magnitude) {
    tm_adapter_spec spec;
    char module[96];
    unsigned how = DORA;
    dora_case c = {.m = m, .w = tm_model_tensor(m, magnitude)->of, .magnitude = magnitude};
    c.a = magnitude - 2, c.b = magnitude - 1; /* as they were described */
    snprintf(module, sizeof module, "%s", tm_model_tensor(m, c.w)->name);
    *strrchr(module, '.') = 0;
    assert_true(most_adapt(&how, module, &spec));
    c.scale = spec.scale, c.rank = spec.rank;
    c.out = tm_model_tensor(m, c.b)->shape[0], c.in = tm_model_tensor(m, c.a)->shape[1];
    c.v[0] = values_of(m, c.w), c.v[1] = values_of(m, c.a), c.v[2] = values_of(m, c.b),
    c.v[3] = values_of(m, magnitude);
    c.gain = calloc(c.out, sizeof *c.gain);
    for (uint64_t o = 0; o < c.out; o++) {
        for (uint64_t i = 0; i < c.in; i++) {
            double w = (double)c.v[0][weight_at(&c, o, i)];
            for (uint64_t k = 0; k < c.rank; k++)
                w += c.scale * (double)c.v[2][o * c.rank + k] * (double)c.v[1][k * c.in + i];
            c.gain[o] += w * w;
        }
        c.gain[o] = (double)c.v[3][o] / sqrt(c.gain[o]);
    }
    return c;
}

static void close_case(dora_case *c) {
    for (unsigned i = 0; i < 4; i++) free(c->v[i]);
    free(c->gain);
}

static uint32_t same_name(const tm_model *m, const char *name) {
    uint32_t t = 0;
    while (strcmp(tm_model_tensor(m, t)->name, name)) t++;
    return t;
}

/* Into LoRA's model: W and B times the factors. */
static void set_factored(const dora_case *c, run *plain) {
    for (uint64_t o = 0; o < c->out; o++) {
        for (uint64_t i = 0; i < c->in; i++)
            c->v[0][weight_at(c, o, i)] = (float)(c->gain[o] * (double)c->v[0][weight_at(c, o, i)]);
        for (uint64_t k = 0; k < c->rank; k++)
            c->v[2][o * c->rank + k] = (float)(c->gain[o] * (double)c->v[2][o * c->rank + k]);
    }
    run_set_tensor(plain, same_name(plain->m, tm_model_tensor(c->m, c->w)->name), c->v[0]);
    run_set_tensor(plain, same_name(plain->m, tm_model_tensor(c->m, c->b)->name), c->v[2]);
}

/* dB = factors dB of the factored one, dA is the same. */
static void check_case(const dora_case *c, const run *r, const run *plain) {
    const uint32_t t[2] = {c->a, c->b};
    for (unsigned which = 0; which < 2; which++) {
        const tm_tensor *x = tm_model_tensor(c->m, t[which]);
        float *got = malloc(x->elements * sizeof *got), *want = malloc(x->elements * sizeof *want);
        double difference = 0, size = 0;
        run_tensor_grad(r, t[which], got);
        run_tensor_grad(plain, same_name(plain->m, x->name), want);
        for (uint64_t i = 0; i < x->elements; i++) {
            double w = (double)want[i] * (which ? c->gain[i / c->rank] : 1);
            difference += ((double)got[i] - w) * ((double)got[i] - w), size += w * w;
        }
        if (!(sqrt(difference) <= 2e-5 * steepness(c->m) * sqrt(size)))
            fail_msg("%s: %g of %g", x->name, sqrt(difference), sqrt(size));
        free(got), free(want);
    }
}

/* With its factors as constants DoRA is LoRA beside a matrix times the factors; the loss's slopes show what only the
 * magnitudes' gradients say. */
static void dora(void **state) {
    const struct family *f = *state;
    tm_model *m = adapted(f->json, TM_F32, DORA, 0.25), *lora_model = adapted(f->json, TM_F32, 0, 0.25);
    tokens t = make_tokens(3, 23, tm_model_get_config(m)->vocab_size, 4);
    run r, plain;
    uint64_t labels;
    t.batch.training = true, t.batch.draw = 8;
    run_open(&r, m, 1, &t.batch), run_open(&plain, lora_model, 1, &t.batch);
    lively_weights(&r, 9), lively_weights(&plain, 9);
    for (uint32_t x = 0; x < tm_model_tensors(m); x++) {
        if (tm_model_tensor(m, x)->role != TM_TENSOR_MAGNITUDE) continue;
        dora_case c = open_case(m, x);
        set_factored(&c, &plain);
        close_case(&c);
    }
    whole_step(&r, BATCH_OUTER), whole_step(&plain, BATCH_OUTER);
    assert_true(fabs(run_loss(&r, NULL, &labels) - run_loss(&plain, NULL, &labels)) < 1e-5);
    for (uint32_t x = 0; x < tm_model_tensors(m); x++) {
        if (tm_model_tensor(m, x)->role != TM_TENSOR_MAGNITUDE) continue;
        dora_case c = open_case(m, x);
        check_case(&c, &r, &plain);
        close_case(&c);
        assert_true(check_tensor_slopes(&r, 9, x) <= 1);
    }
    run_close(&r), run_close(&plain);
    free_tokens(&t);
    tm_model_free(m), tm_model_free(lora_model);
}

/* W - s B0 A0 of the module whose first A is tensor x, into the model that has an adapter of that. */
static void set_rest(const tm_model *m, uint32_t x, run *rest) {
    tm_adapter_spec spec;
    char module[96];
    unsigned how = PISSA;
    const tm_tensor *a = tm_model_tensor(m, x), *b = tm_model_tensor(m, x + 1);
    dora_case c = {.m = m, .w = a->of, .out = b->shape[0], .in = a->shape[1]};
    snprintf(module, sizeof module, "%s", tm_model_tensor(m, c.w)->name);
    *strrchr(module, '.') = 0;
    assert_true(most_adapt(&how, module, &spec) && spec.pissa && b->role == TM_TENSOR_FIRST_B && !a->learns &&
                !b->learns);
    float *w = values_of(m, c.w), *first_a = values_of(m, x), *first_b = values_of(m, x + 1);
    for (uint64_t o = 0; o < c.out; o++)
        for (uint64_t i = 0; i < c.in; i++) {
            double sum = 0;
            for (uint32_t k = 0; k < spec.rank; k++)
                sum += (double)first_b[o * spec.rank + k] * (double)first_a[k * c.in + i];
            w[weight_at(&c, o, i)] -= (float)(spec.scale * sum);
        }
    run_set_tensor(rest, same_name(rest->m, tm_model_tensor(m, c.w)->name), w);
    free(w), free(first_a), free(first_b);
}

static void same_learned(const run *r, const run *rest) {
    for (uint32_t x = 0; x < tm_model_tensors(r->m); x++) {
        const tm_tensor *t = tm_model_tensor(r->m, x);
        if (!t->learns) continue;
        float *got = malloc(t->elements * sizeof *got), *want = malloc(t->elements * sizeof *want);
        double difference = 0, size = 0;
        run_tensor_grad(r, x, got);
        run_tensor_grad(rest, same_name(rest->m, t->name), want);
        for (uint64_t i = 0; i < t->elements; i++) {
            double d = (double)got[i] - (double)want[i];
            difference += d * d, size += (double)want[i] * (double)want[i];
        }
        if (!(sqrt(difference) <= 2e-5 * steepness(r->m) * sqrt(size)))
            fail_msg("%s: %g of %g", t->name, sqrt(difference), sqrt(size));
        free(got), free(want);
    }
}

/* PiSSA is LoRA, or DoRA, of what is left of the matrix. */
static void pissa(void **state) {
    const struct family *f = *state;
    for (unsigned how = 0; how <= DORA; how += DORA) {
        tm_model *m = adapted(f->json, TM_F32, PISSA | how, 0.25), *other = adapted(f->json, TM_F32, how, 0.25);
        tokens t = make_tokens(3, 23, tm_model_get_config(m)->vocab_size, 4);
        run r, rest;
        uint64_t labels;
        t.batch.training = true, t.batch.draw = 8;
        run_open(&r, m, 1, &t.batch), run_open(&rest, other, 1, &t.batch);
        lively_weights(&r, 9), lively_weights(&rest, 9);
        for (uint32_t x = 0; x < tm_model_tensors(m); x++)
            if (tm_model_tensor(m, x)->role == TM_TENSOR_FIRST_A) set_rest(m, x, &rest);
        whole_step(&r, BATCH_OUTER), whole_step(&rest, BATCH_OUTER);
        assert_true(fabs(run_loss(&r, NULL, &labels) - run_loss(&rest, NULL, &labels)) < 1e-5);
        same_learned(&r, &rest);
        run_close(&r), run_close(&rest);
        free_tokens(&t);
        tm_model_free(m), tm_model_free(other);
    }
}

static void same_bits(const tm_model *m, const tm_model *also) {
    uint32_t v = tm_model_get_config(m)->vocab_size;
    tokens t[3] = {make_tokens(2, 9, v, 1), make_tokens(1, 67, v, 2), make_tokens(3, 1, v, 3)};
    tm_micro_batch batches[3];
    run r[4];
    for (unsigned i = 0; i < 3; i++) {
        batches[i] = t[i].batch;
        batches[i].training = true, batches[i].draw = i;
    }
    for (unsigned i = 0; i < 4; i++) {
        run_open(&r[i], i < 3 ? m : also, 3, batches);
        r[i].recompute = i == 2;
        r[i].keep_logits = i == 1;
        lively_weights(&r[i], 3);
        whole_step(&r[i], i % 2 ? STAGE_OUTER : BATCH_OUTER);
    }
    for (uint32_t p = 0; p < tm_model_parts(m); p++) {
        size_t bytes = tm_model_part(m, p)->elements * sizeof(float);
        if (!tm_model_part(m, p)->learns) continue;
        for (unsigned i = 1; i < 4; i++)
            if (memcmp(r[0].grad[p], r[i].grad[p], bytes))
                fail_msg("the gradient of %s is another in run %u", tm_model_part(m, p)->name, i);
        for (uint64_t i = 0; i < bytes / sizeof(float); i++) assert_true(isfinite(r[0].grad[p][i]));
    }
    for (unsigned i = 0; i < 4; i++) run_close(&r[i]);
    for (unsigned i = 0; i < 3; i++) free_tokens(&t[i]);
}

/* Orders, recomputation, kept logits, and a base that learns too. */
static void schedules(void **state) {
    static const tm_dtype types[] = {TM_F32, TM_BF16, TM_F16};
    const struct family *f = *state;
    for (size_t i = 0; i < TM_COUNT(types); i++) {
        unsigned how = i == 1 ? DORA : 0;
        tm_model *m = adapted(f->json, types[i], how, 0.1), *also = adapted(f->json, types[i], how | BASE_TOO, 0.1);
        same_bits(m, also);
        tm_model_free(m), tm_model_free(also);
    }
}

static void cache(void **state) {
    const struct family *f = *state;
    tm_model *m = adapted(f->json, TM_F32, DORA, 0.5);
    assert_true(cache_difference(m) <= 4e-5);
    tm_model_free(m);
}

/* ---- what is particular ---- */

#define LLAMA                                                                                                          \
    "{\"model_type\":\"llama\",\"vocab_size\":20000,\"hidden_size\":12,\"intermediate_size\":20,"                      \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1"

/* Parts of the vocabulary add to the gradient of one A. */
static void large_vocabularies(void **state) {
    (void)state;
    static const char *const json[] = {LLAMA "}", LLAMA ",\"tie_word_embeddings\":true}"};
    for (size_t i = 0; i < TM_COUNT(json); i++) {
        tm_model *m = adapted(json[i], TM_F32, 0, 0.1), *also = adapted(json[i], TM_F32, BASE_TOO, 0.1);
        assert_int_equal(tm_model_unit(m, tm_model_units(m) - 1)->n_stages, 4);
        same_bits(m, also);
        tm_model_free(m), tm_model_free(also);
    }
}

static double loss_of(const tm_model *m, bool training, uint64_t draw) {
    tokens t = make_tokens(3, 23, tm_model_get_config(m)->vocab_size, 4);
    uint64_t labels;
    run r;
    t.batch.training = training, t.batch.draw = draw;
    run_open(&r, m, 1, &t.batch);
    lively_weights(&r, 9);
    run_forward(&r, BATCH_OUTER);
    double loss = run_loss(&r, NULL, &labels);
    run_close(&r);
    free_tokens(&t);
    return loss;
}

/* In training alone, by the draw. */
static void dropping(void **state) {
    (void)state;
    tm_model *drops = adapted(LLAMA "}", TM_F32, 0, 0.3), *never = adapted(LLAMA "}", TM_F32, 0, 0);
    double whole = loss_of(never, false, 0);
    assert_true(loss_of(never, true, 1) == whole && loss_of(drops, false, 1) == whole);
    assert_true(loss_of(drops, true, 1) != whole && loss_of(drops, true, 1) != loss_of(drops, true, 2));
    assert_true(loss_of(drops, true, 1) == loss_of(drops, true, 1));
    assert_int_equal(tm_model_needs(drops) >> TM_KERNEL_ADAPTERS & 1, 1);
    tm_model_free(drops), tm_model_free(never);
    never = adapted(LLAMA "}", TM_F32, NO_VOCABULARY, 0);
    assert_int_equal(tm_model_needs(never), 0);
    tm_model_free(never);
}

static const tm_tensor *named(const tm_model *m, const char *name, uint32_t *t) {
    for (*t = 0; *t < tm_model_tensors(m); ++*t)
        if (!strcmp(tm_model_tensor(m, *t)->name, name)) return tm_model_tensor(m, *t);
    fail_msg("no tensor %s", name);
    return NULL;
}

static bool all_adapt(void *ctx, const char *module, tm_adapter_spec *out) {
    const tm_adapter_spec *spec = ctx;
    *out = *spec;
    out->dora &= !is_vocabulary(module);
    return !strstr(module, "wpe");
}

static tm_model *all_adapted(const char *json, tm_adapter_spec spec) {
    tm_model_config c;
    tm_model *m;
    OK(tm_model_config_parse(&c, json, strlen(json), "all"));
    OK(tm_model_create_roles(&m, &c, TM_F32, &(tm_model_roles){.adapts = all_adapt, .ctx = &spec}));
    return m;
}

static void check_tensor(const tm_model *m, const char *name, tm_tensor_role role, const char *of, uint64_t rows,
                         uint64_t columns) {
    uint32_t t;
    const tm_tensor *x = named(m, name, &t);
    assert_int_equal(x->role, role);
    assert_string_equal(tm_model_tensor(m, x->of)->name, of);
    assert_true(x->shape[0] == rows && x->shape[1] == columns && x->ndim == (columns ? 2U : 1U));
    assert_true(x->learns && !x->is_norm_or_bias);
}

static void tensors(void **state) {
    (void)state;
    tm_model *m = all_adapted(LLAMA ",\"tie_word_embeddings\":true}", (tm_adapter_spec){.rank = 3, .dora = true});
    check_tensor(m, "model.layers.1.self_attn.k_proj.lora_A.weight", TM_TENSOR_LORA_A,
                 "model.layers.1.self_attn.k_proj.weight", 3, 12);
    check_tensor(m, "model.layers.1.self_attn.k_proj.lora_B.weight", TM_TENSOR_LORA_B,
                 "model.layers.1.self_attn.k_proj.weight", 6, 3);
    check_tensor(m, "model.layers.0.mlp.down_proj.lora_magnitude_vector", TM_TENSOR_MAGNITUDE,
                 "model.layers.0.mlp.down_proj.weight", 12, 0);
    check_tensor(m, "model.embed_tokens.lora_embedding_A", TM_TENSOR_EMBEDDING_A, "model.embed_tokens.weight", 3,
                 20000);
    check_tensor(m, "model.embed_tokens.lora_embedding_B", TM_TENSOR_EMBEDDING_B, "model.embed_tokens.weight", 12, 3);
    check_tensor(m, "lm_head.lora_A.weight", TM_TENSOR_LORA_A, "model.embed_tokens.weight", 3, 12);
    check_tensor(m, "lm_head.lora_B.weight", TM_TENSOR_LORA_B, "model.embed_tokens.weight", 20000, 3);
    uint64_t of_adapters = 0;
    assert_int_equal(tm_model_needs(m), 1U << TM_KERNEL_ADAPTERS);
    for (uint32_t p = 0; p < tm_model_parts(m); p++) {
        const tm_part *part = tm_model_part(m, p);
        bool adapter = strstr(part->name, ".adapter") != NULL;
        assert_int_equal(part->learns, adapter);
        of_adapters += adapter ? part->elements : 0;
    }
    assert_int_equal(tm_model_learning_parameters(m), of_adapters);
    tm_model_free(m);
}

/* Values as PEFT begins with, the same in pieces. */
static void initial_values(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double std, bound;
    } gaussian[] = {{"lm_head.lora_A.weight", 0.25, 9},
                    {"lm_head.lora_B.weight", 0, 0},
                    {"model.embed_tokens.lora_embedding_A", 0, 0},
                    {"model.embed_tokens.lora_embedding_B", 1, 9}},
      uniform[] = {{"model.layers.0.mlp.down_proj.lora_A.weight", 0.129, 0.2237}};
    tm_model *m[2] = {all_adapted(LLAMA "}", (tm_adapter_spec){.rank = 4, .init_std = 0.25}),
                      all_adapted(LLAMA "}", (tm_adapter_spec){.rank = 400})};
    for (size_t i = 0; i < TM_COUNT(gaussian) + TM_COUNT(uniform); i++) {
        bool first = i < TM_COUNT(gaussian);
        const tm_model *of = m[!first];
        uint32_t t;
        const tm_tensor *x = named(of, first ? gaussian[i].name : uniform[0].name, &t);
        double std = first ? gaussian[i].std : uniform[0].std, bound = first ? gaussian[i].bound : uniform[0].bound;
        float *v = malloc(x->elements * sizeof *v), piece[7];
        double squares = 0, most = 0;
        tm_model_init_values(of, t, 3, 0, x->elements, v);
        for (uint64_t k = 0; k < x->elements; k++) {
            squares += (double)v[k] * (double)v[k];
            most = fmax(most, fabs((double)v[k]));
        }
        assert_true(fabs(sqrt(squares / (double)x->elements) - std) <= 0.25 * std);
        assert_true(most <= bound && (first || most > 0.95 * bound));
        tm_model_init_values(of, t, 3, 5, 7, piece);
        assert_memory_equal(piece, v + 5, sizeof piece);
        free(v);
    }
    tm_model_free(m[0]), tm_model_free(m[1]);
}

/* DoRA begins as the base: the magnitudes are the norms, however they are added up. */
static void first_magnitudes(void **state) {
    (void)state;
    static const char *const json[] = {LLAMA "}",
                                       "{\"model_type\":\"gpt2\",\"vocab_size\":90,\"n_embd\":12,\"n_head\":2,"
                                       "\"n_inner\":20,\"n_layer\":2,\"n_positions\":70}"};
    for (size_t i = 0; i < TM_COUNT(json); i++) {
        tm_model *m = all_adapted(json[i], (tm_adapter_spec){.rank = 3, .scale = 2, .dora = true}), *base;
        OK(tm_model_create(&base, tm_model_get_config(m), TM_F32));
        tokens t = make_tokens(2, 30, tm_model_get_config(m)->vocab_size, 1);
        uint64_t labels;
        run r, plain;
        run_open(&r, m, 1, &t.batch), run_open(&plain, base, 1, &t.batch);
        lively_weights(&plain, 5);
        for (uint32_t x = 0; x < tm_model_tensors(m); x++) {
            const tm_tensor *tensor = tm_model_tensor(m, x);
            float *v = malloc(tensor->elements * sizeof *v);
            if (tensor->role == TM_TENSOR_BASE)
                lively_values(tensor, 5, v);
            else
                tm_model_init_values(m, x, 1, 0, tensor->elements, v);
            if (tensor->role == TM_TENSOR_MAGNITUDE) {
                const tm_tensor *of = tm_model_tensor(m, tensor->of);
                float *w = malloc(of->elements * sizeof *w);
                double *sums = calloc(tensor->elements, sizeof *sums);
                lively_values(of, 5, w);
                for (uint64_t k = 0; k < of->elements; k += 7)
                    tm_model_add_squares(m, tensor->of, k, tm_min_u64(7, of->elements - k), w + k, sums);
                for (uint64_t k = 0; k < tensor->elements; k++) v[k] = (float)sqrt(sums[k]);
                free(w), free(sums);
            }
            run_set_tensor(&r, x, v);
            free(v);
        }
        run_forward(&r, BATCH_OUTER), run_forward(&plain, BATCH_OUTER);
        assert_true(fabs(run_loss(&r, NULL, &labels) - run_loss(&plain, NULL, &labels)) < 1e-5);
        run_close(&r), run_close(&plain);
        free_tokens(&t);
        tm_model_free(m), tm_model_free(base);
    }
}

static bool every_module(void *ctx, const char *module, tm_adapter_spec *out) {
    *out = (tm_adapter_spec){.rank = 2, .scale = 1, .dora = strstr(module, ctx)};
    return strstr(module, ctx);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *json, *module, *says;
    } cases[] = {{LLAMA "}", "embed_tokens", "DoRA of model.embed_tokens is not supported"},
                 {LLAMA "}", "lm_head", "DoRA of lm_head is not supported"},
                 {"{\"model_type\":\"gpt2\",\"vocab_size\":90,\"n_embd\":12,\"n_head\":2,\"n_layer\":1}", "wpe",
                  "an adapter of transformer.wpe is not supported"},
                 {"{\"model_type\":\"gemma4_text\",\"vocab_size\":90,\"hidden_size\":12,\"intermediate_size\":9,"
                  "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"num_hidden_layers\":1,\"rope_parameters\":{}}",
                  "per_layer", "an adapter of model.embed_tokens_per_layer is not supported"}};
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        tm_model_config c;
        tm_model *m;
        OK(tm_model_config_parse(&c, cases[i].json, strlen(cases[i].json), "c"));
        const tm_model_roles roles = {.adapts = every_module, .ctx = (void *)(uintptr_t)cases[i].module};
        assert_int_equal(tm_model_create_roles(&m, &c, TM_F32, &roles), TM_EUNSUPPORTED);
        if (!strstr(tm_error_get()->text, cases[i].says)) fail_msg("%s", tm_error_get()->text);
        tm_error_clear();
    }
}

static bool one_adapts(void *ctx, const char *module, tm_adapter_spec *out) {
    *out = *(const tm_adapter_spec *)ctx;
    return !strcmp(module, "model.layers.0.mlp.down_proj");
}

/* Work of the first module that is adapted: no gradient of its input, nothing of what lies below. */
static void work(void **state) {
    (void)state;
    static const double want[2][2] = {{240 + 32 * 3, 2 * 3 * 20 + 2 * 3 * 12},
                                      {240 + 32 * 3 + 240 * 3 / 64.0, 240 + 12 * 3 + 2 * 3 * 32 + 240 * 3 / 64.0}};
    for (unsigned dora = 0; dora < 2; dora++) {
        tm_adapter_spec spec = {.rank = 3, .scale = 2, .dora = dora};
        tm_model_config c;
        tm_model *m;
        OK(tm_model_config_parse(&c, LLAMA "}", strlen(LLAMA "}"), "c"));
        OK(tm_model_create_roles(&m, &c, TM_F32, &(tm_model_roles){.adapts = one_adapts, .ctx = &spec}));
        const tm_load load = tm_model_load(&c, 1, 64, 64);
        const tm_unit *u = tm_model_unit(m, 1);
        uint32_t last = u->n_stages - 1;
        for (uint32_t s = 0; s < last; s++) assert_false(u->stage[s].has_backward);
        for (unsigned back = 0; back < 2; back++) {
            double flops = tm_stage_work(m, 1, last, back, &load).flops / load.tokens / 2;
            if (fabs(flops - want[dora][back]) > 1e-6)
                fail_msg("%u %u: %g, not %g", dora, back, flops, want[dora][back]);
        }
        assert_int_equal(u->stage[last].part_in_backward[0], dora);
        char text[200];
        tm_stage_signature(&u->stage[last], text, sizeof text);
        assert_non_null(strstr(text, dora ? " rank3 dora" : " rank3"));
        tm_model_free(m);
    }
}

enum { KINDS = 5, FIRST = 7, PEFTS = (int)TM_COUNT(pefts), TESTS = FIRST + PEFTS + KINDS * (int)TM_COUNT(families) };

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        CMUnitTestFunction test;
    } kinds[KINDS] = {{"lora", lora}, {"dora", dora}, {"pissa", pissa}, {"schedules", schedules}, {"cache", cache}};
    static char names[TESTS][64];
    static struct CMUnitTest tests[TESTS] = {
        cmocka_unit_test(large_vocabularies), cmocka_unit_test(dropping), cmocka_unit_test(tensors),
        cmocka_unit_test(initial_values),     cmocka_unit_test(refusals), cmocka_unit_test(work),
        cmocka_unit_test(first_magnitudes)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) return fprintf(stderr, "%s\n", tm_error_get()->text), 1;
    printf("%s\n", tm_kernels_describe());
    for (size_t i = 0; i < PEFTS; i++)
        tests[FIRST + i] = (struct CMUnitTest){
            .name = pefts[i].folder, .test_func = peft, .initial_state = (void *)(uintptr_t)&pefts[i]};
    for (size_t i = 0; i < KINDS * TM_COUNT(families); i++) {
        const struct family *f = &families[i / KINDS];
        snprintf(names[i], sizeof names[i], "%s %s", f->name, kinds[i % KINDS].name);
        tests[FIRST + PEFTS + i] = (struct CMUnitTest){
            .name = names[i], .test_func = kinds[i % KINDS].test, .initial_state = (void *)(uintptr_t)f};
    }
    int failed = _cmocka_run_group_tests("test_adapters", tests, TESTS, NULL, NULL);
    tm_kernels_close();
    return failed;
}
