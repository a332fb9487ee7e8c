/* Which modules are adapted and which tensors learn, against PEFT itself (fixtures: peft_match.json, peft_written.json)
 * and ms-swift (swift_freeze.json; torch_order.json: transformers). */
#include "world.h"

#include "adapter/adapter.h"

#include <math.h>
#include <stdlib.h>

enum { MOST = 400 };

static tm_adapter_config *config_of(const tm_json *keys, tm_status *rc) {
    tm_adapter_config *a;
    assert_int_equal(tm_adapter_create(&a), TM_OK);
    *rc = TM_OK;
    for (const tm_json *k = keys->child; k && *rc == TM_OK; k = k->next) *rc = tm_adapter_set(a, k->key, k);
    if (*rc == TM_OK) *rc = tm_adapter_complete(a);
    return a;
}

static void same_modules(const tm_adapter_config *a, const tm_json *model, const tm_json *wanted) {
    const char *module[MOST];
    size_t n = strings_of(tm_json_get(model, "modules"), module, MOST), adapted = 0;
    for (size_t i = 0; i < n; i++) {
        tm_adapter_spec spec, again;
        char full[256];
        snprintf(full, sizeof full, "base_model.model.%s", module[i]);
        const tm_json *w = tm_json_get(wanted, module[i]);
        bool yes = tm_adapter_module(a, module[i], &spec);
        if (yes != (w != NULL)) fail_msg("%s: %d", module[i], yes);
        assert_int_equal(tm_adapter_module(a, full, &again), yes);
        adapted += yes;
        if (!w) continue;
        assert_int_equal(spec.rank, w->child->integer);
        assert_true(fabs(spec.scale - w->child->next->number) < 1e-12);
        assert_int_equal(spec.dora, w->child->next->next->boolean);
        assert_true(spec.init_std == (a->init == TM_ADAPTER_INIT_GAUSSIAN ? 1.0 / spec.rank : 0));
    }
    assert_int_equal(adapted, wanted->count);
}

static void same_learning(const tm_adapter_config *a, const tm_json *model, const tm_json *wanted) {
    const char *tensor[MOST];
    size_t n = strings_of(tm_json_get(model, "tensors"), tensor, MOST), learn = 0;
    for (size_t i = 0; i < n; i++) {
        bool yes = tm_adapter_learns(a, tensor[i]);
        if (yes != is_in_list(wanted, tensor[i])) fail_msg("%s: %d", tensor[i], yes);
        learn += yes;
    }
    assert_int_equal(learn, wanted->count);
}

static tm_status check(const tm_adapter_config *a, const tm_json *model) {
    const char *module[MOST];
    size_t n = strings_of(tm_json_get(model, "modules"), module, MOST);
    return tm_adapter_check(a, module, n);
}

/* A name that is of nothing is an error here, beside others that are of something; PEFT then says nothing. */
static bool is_stricter(const tm_json *config) {
    const tm_json *t = tm_json_get(config, "target_modules");
    return t->type == TM_JSON_ARRAY && t->count == 2 && is_in_list(t, "nothing");
}

static void one_case(const tm_json *models, const tm_json *c) {
    const tm_json *model = tm_json_get(models, text_of(c, "model")), *config = tm_json_get(c, "config");
    tm_status rc;
    tm_adapter_config *a = config_of(config, &rc);
    if (rc == TM_OK) rc = check(a, model);
    if (tm_json_get(c, "refused") || is_stricter(config)) {
        fails_with(rc, TM_EINPUT, "\"");
    } else {
        if (rc != TM_OK) fail_msg("%s", tm_error_get()->text);
        same_modules(a, model, tm_json_get(c, "modules"));
        same_learning(a, model, tm_json_get(c, "learns"));
    }
    tm_adapter_free(a);
}

static void as_peft_does(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("peft_match.json");
    const tm_json *models = tm_json_get(tm_json_root(doc), "models"), *cases = tm_json_get(tm_json_root(doc), "cases");
    assert_true(cases->count > 40);
    for (const tm_json *c = cases->child; c; c = c->next) one_case(models, c);
    tm_json_free(doc);
}

/* ---- adapter_config.json ---------------------------------------------------------------------------------------- */

static bool same_tree(const tm_json *a, const tm_json *b) {
    if (a->type != b->type || a->count != b->count) return false;
    if (a->type == TM_JSON_STRING) return !strcmp(a->text, b->text);
    if (a->type == TM_JSON_NUMBER) return a->number == b->number;
    if (a->type == TM_JSON_BOOL) return a->boolean == b->boolean;
    const tm_json *x = a->child, *y = b->child;
    for (; x && y; x = x->next, y = y->next)
        if ((x->key && strcmp(x->key, y->key) != 0) || !same_tree(x, y)) return false;
    return true;
}

static tm_json_doc *written(const tm_adapter_config *a, const tm_adapter_json_opts *opts) {
    tm_buf out = {0};
    tm_json_doc *doc;
    assert_int_equal(tm_adapter_write_json(a, opts, &out), TM_OK);
    if (tm_json_parse(&doc, out.data, out.len, "written", 0, 0) != TM_OK) fail_msg("%s", out.data);
    tm_buf_free(&out);
    return doc;
}

/* Read, and written: every key, in PEFT's order, with PEFT's values. */
static void reads_and_writes(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("peft_written.json");
    for (const tm_json *file = tm_json_root(doc)->child; file; file = file->next) {
        tm_buf text = {0};
        tm_json_writer w;
        tm_adapter_config *a;
        tm_jw_init(&w, &text, 1);
        tm_jw_node(&w, file);
        assert_int_equal(tm_jw_end(&w), TM_OK);
        assert_int_equal(tm_adapter_create(&a), TM_OK);
        if (tm_adapter_read(a, text.data, text.len, "a.json") != TM_OK || tm_adapter_complete(a) != TM_OK)
            fail_msg("%s", tm_error_get()->text);
        tm_json_doc *again = written(a, &(tm_adapter_json_opts){0});
        if (!same_tree(file, tm_json_root(again))) fail_msg("not the same: %s", text.data);
        tm_json_free(again);
        tm_buf_free(&text);
        tm_adapter_free(a);
    }
    tm_json_free(doc);
}

/* "all-linear" is written as the names that it stands for. */
static void writes_names(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("peft_match.json"), *keys;
    static const char text[] =
        "{\"targets\": \"all-linear\", \"exclude_modules\": [\"layers.0.mlp.up_proj\", \"k_proj\"],"
        "\"modules_to_save\": [\"all-norm\", \"lm_head\"]}";
    const char *module[MOST];
    tm_status rc;
    const tm_json *model = tm_json_get(tm_json_get(tm_json_root(doc), "models"), "qwen2");
    size_t n = strings_of(tm_json_get(model, "modules"), module, MOST);
    assert_int_equal(tm_json_parse(&keys, text, sizeof text - 1, "keys", 0, 0), TM_OK);
    tm_adapter_config *a = config_of(tm_json_root(keys), &rc);
    assert_int_equal(rc, TM_OK);
    tm_json_doc *again = written(a, &(tm_adapter_json_opts){.module = module, .n_modules = n, .base_model = "b"});
    const tm_json *targets = tm_json_get(tm_json_root(again), "target_modules");
    assert_int_equal(targets->count, 2 * 6 - 1); /* up_proj is one in one layer alone */
    assert_true(is_in_list(targets, "model.layers.1.mlp.up_proj"));
    assert_false(is_in_list(targets, "model.layers.0.mlp.up_proj"));
    const tm_json *saved = tm_json_get(tm_json_root(again), "modules_to_save");
    assert_int_equal(saved->count, 4);
    assert_true(is_in_list(saved, "norm") && is_in_list(saved, "input_layernorm") && is_in_list(saved, "lm_head"));
    assert_string_equal(text_of(tm_json_root(again), "base_model_name_or_path"), "b");
    tm_json_free(again);
    tm_json_free(keys);
    tm_json_free(doc);
    tm_adapter_free(a);
}

/* The same product: scale alpha / r as before. */
static void twice_the_rank(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"r\": 3, \"alpha\": 7, \"init_lora_weights\": \"pissa\", \"rank_pattern\": {\"q_proj\": 5}, "
        "\"alpha_pattern\": {\"v_proj\": 4}}",
        "{\"r\": 3, \"alpha\": 7, \"init_lora_weights\": \"pissa\", \"use_rslora\": true, \"rank_pattern\": "
        "{\"q_proj\": 5},"
        "\"alpha_pattern\": {\"v_proj\": 4}}"};
    for (size_t i = 0; i < TM_COUNT(texts); i++) {
        tm_json_doc *keys;
        tm_status rc;
        tm_adapter_config *b;
        tm_buf out = {0};
        assert_int_equal(tm_json_parse(&keys, texts[i], strlen(texts[i]), "keys", 0, 0), TM_OK);
        tm_adapter_config *a = config_of(tm_json_root(keys), &rc);
        assert_int_equal(tm_adapter_write_json(a, &(tm_adapter_json_opts){.twice_the_rank = true}, &out), TM_OK);
        assert_int_equal(tm_adapter_create(&b), TM_OK);
        assert_int_equal(tm_adapter_read(b, out.data, out.len, "a.json"), TM_OK);
        assert_int_equal(tm_adapter_complete(b), TM_OK);
        assert_int_equal(b->init, TM_ADAPTER_INIT_DEFAULT);
        static const char *const modules[] = {"model.layers.0.self_attn.q_proj", "x.v_proj", "x.up_proj"};
        for (size_t j = 0; j < TM_COUNT(modules); j++) {
            tm_adapter_spec x, y;
            assert_true(tm_adapter_module(a, modules[j], &x) && tm_adapter_module(b, modules[j], &y));
            assert_int_equal(y.rank, 2 * x.rank);
            assert_true(fabs(y.scale - x.scale) < 1e-12);
        }
        tm_buf_free(&out);
        tm_json_free(keys);
        tm_adapter_free(a);
        tm_adapter_free(b);
    }
}

/* ---- freezing --------------------------------------------------------------------------------------------------- */

static tm_adapter_names prefixes_of(const tm_json *said, const char *key, const char **room) {
    const tm_json *list = tm_json_get(said, key);
    return (tm_adapter_names){room, list ? (uint32_t)strings_of(list, room, 8) : 0};
}

static tm_freeze *freeze_of(const tm_json *said) {
    static const char *a[8], *b[8];
    const tm_json *regex = tm_json_get(said, "freeze_parameters_regex");
    const tm_json *named = tm_json_get(said, "trainable_parameters_regex");
    const tm_json *ratio = tm_json_get(said, "freeze_parameters_ratio");
    tm_freeze *f;
    tm_freeze_opts opts = {.freeze_parameters = prefixes_of(said, "freeze_parameters", a),
                           .trainable_parameters = prefixes_of(said, "trainable_parameters", b),
                           .freeze_parameters_regex = regex ? regex->text : NULL,
                           .trainable_parameters_regex = named ? named->text : NULL,
                           .freeze_parameters_ratio = ratio ? ratio->number : 0};
    assert_int_equal(tm_freeze_create(&f, &opts), TM_OK);
    return f;
}

static size_t tensors_of(const tm_json *models, tm_freeze_tensor *out) {
    size_t n = 0;
    const tm_json *list = tm_json_get(tm_json_get(models, "llama"), "tensors");
    for (const tm_json *t = list->child; t; t = t->next)
        out[n++] = (tm_freeze_tensor){t->child->text, (uint64_t)t->child->next->integer};
    return n;
}

static void as_swift_does(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("swift_freeze.json"), *peft = answers_of("peft_match.json");
    tm_freeze_tensor tensor[MOST];
    bool learns[MOST];
    size_t n = tensors_of(tm_json_get(tm_json_root(peft), "models"), tensor);
    for (const tm_json *c = tm_json_root(doc)->child; c; c = c->next) {
        tm_freeze *f = freeze_of(tm_json_get(c, "said"));
        if (tm_freeze_apply(f, tensor, n, 12, learns) != TM_OK) fail_msg("%s", tm_error_get()->text);
        size_t count = 0;
        for (size_t i = 0; i < n; i++) {
            if (learns[i] != is_in_list(tm_json_get(c, "learns"), tensor[i].name)) fail_msg("%s", tensor[i].name);
            count += learns[i];
        }
        assert_int_equal(count, tm_json_get(c, "learns")->count);
        tm_freeze_free(f);
    }
    tm_json_free(doc);
    tm_json_free(peft);
}

/* LLaMA-Factory (model/adapter.py): the last n blocks, or the first -n; nothing that is in no block. */
static void by_blocks(void **state) {
    (void)state;
    static const struct {
        int32_t n;
        uint32_t first, end;
    } cases[] = {{2, 10, 12}, {-3, 0, 3}, {12, 0, 12}, {50, 0, 12}, {-50, 0, 12}, {1, 11, 12}};
    tm_json_doc *peft = answers_of("peft_match.json");
    tm_freeze_tensor tensor[MOST];
    bool learns[MOST];
    size_t n = tensors_of(tm_json_get(tm_json_root(peft), "models"), tensor);
    for (size_t c = 0; c < TM_COUNT(cases); c++) {
        tm_freeze *f;
        assert_int_equal(tm_freeze_create(&f, &(tm_freeze_opts){.freeze_trainable_layers = cases[c].n}), TM_OK);
        assert_int_equal(tm_freeze_apply(f, tensor, n, 12, learns), TM_OK);
        for (size_t i = 0; i < n; i++) {
            unsigned layer = 99;
            (void)!sscanf(tensor[i].name, "model.layers.%u.", &layer);
            assert_int_equal(learns[i], layer >= cases[c].first && layer < cases[c].end);
            tm_freeze_place place = {.layers = 12, .total = 1, .through = 1};
            assert_int_equal(tm_freeze_learns(f, tensor[i].name, &place), learns[i]);
        }
        tm_freeze_free(f);
    }
    tm_json_free(peft);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const tm_freeze_tensor *)a)->name, ((const tm_freeze_tensor *)b)->name);
}

/* The ratio freezes PyTorch's first tensors, in whatever order those of the blocks are given. */
static void first_in_pytorch(void **state) {
    (void)state;
    tm_json_doc *doc = answers_of("torch_order.json");
    for (const tm_json *arch = tm_json_root(doc)->child; arch; arch = arch->next) {
        const char *name[MOST];
        tm_freeze_tensor given[MOST];
        bool learns[MOST];
        size_t n = strings_of(arch, name, MOST), first = n, end = 0;
        for (size_t i = 0; i < n; i++) {
            bool block = strstr(name[i], ".0.") || strstr(name[i], ".1.");
            given[i] = (tm_freeze_tensor){name[i], 1};
            if (block && first == n) first = i;
            if (block) end = i + 1;
        }
        qsort(given + first, end - first, sizeof *given, by_name);
        for (size_t k = 1; k < n; k++) {
            tm_freeze *f;
            tm_freeze_opts opts = {.freeze_parameters_ratio = ((double)k + 0.5) / (double)n};
            assert_int_equal(tm_freeze_create(&f, &opts), TM_OK);
            assert_int_equal(tm_freeze_apply(f, given, n, 2, learns), TM_OK);
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j < n; j++)
                    if (!strcmp(given[i].name, name[j]) && learns[i] != (j >= k))
                        fail_msg("%s: %s, %zu frozen", arch->key, name[j], k);
            tm_freeze_free(f);
        }
    }
    tm_json_free(doc);
}

static void frozen_names_are_checked(void **state) {
    (void)state;
    static const tm_freeze_tensor tensor[] = {{"model.embed_tokens.weight", 8}, {"model.norm.weight", 1}};
    static const char *const wrong = "model.embd", *const all = "model";
    bool learns[2];
    tm_freeze *f;
    assert_int_equal(tm_freeze_create(&f, &(tm_freeze_opts){.freeze_parameters = {&wrong, 1}}), TM_OK);
    fails_with(tm_freeze_apply(f, tensor, 2, 0, learns), TM_EINPUT,
               "\"freeze_parameters\": \"model.embd\" is of no tensor of this model; there are "
               "model.embed_tokens.weight, model.norm.weight");
    tm_freeze_free(f);
    assert_int_equal(tm_freeze_create(&f, &(tm_freeze_opts){.freeze_parameters = {&all, 1}}), TM_OK);
    fails_with(tm_freeze_apply(f, tensor, 2, 0, learns), TM_EINPUT, "every parameter of the model is frozen");
    tm_freeze_free(f);
    assert_int_equal(tm_freeze_create(&f, &(tm_freeze_opts){.trainable_parameters_regex = "head"}), TM_OK);
    fails_with(tm_freeze_apply(f, tensor, 2, 0, learns), TM_EINPUT, "\"trainable_parameters_regex\": \"head\"");
    tm_freeze_free(f);
    fails_with(tm_freeze_create(&f, &(tm_freeze_opts){.freeze_parameters_regex = "("}), TM_EINPUT, "missing");
    assert_null(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_peft_does),     cmocka_unit_test(reads_and_writes),
                                       cmocka_unit_test(writes_names),     cmocka_unit_test(twice_the_rank),
                                       cmocka_unit_test(as_swift_does),    cmocka_unit_test(by_blocks),
                                       cmocka_unit_test(first_in_pytorch), cmocka_unit_test(frozen_names_are_checked)};
    return cmocka_run_group_tests_name("adapter", tests, NULL, NULL);
}
