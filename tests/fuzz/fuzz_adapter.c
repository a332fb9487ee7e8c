/* Any bytes as an adapter_config.json, and as a regular expression over names. What must hold: within the limits; refused
 * with a message, or an adapter that answers for every name and whose text is read again as the same. */
#include "fuzz.h"

#include "adapter/adapter.h"

#include <string.h>

static const char *const modules[] = {"model.embed_tokens", "model.layers.0.self_attn.q_proj",
                                      "model.layers.11.mlp.up_proj", "model.norm", "lm_head"};

static void same_again(const tm_buf *written) {
    tm_adapter_config *a;
    tm_buf again = {0};
    CHECK(tm_adapter_create(&a) == TM_OK);
    CHECK(tm_adapter_read(a, written->data, written->len, "w") == TM_OK && tm_adapter_complete(a) == TM_OK);
    CHECK(tm_adapter_write_json(a, &(tm_adapter_json_opts){0}, &again) == TM_OK);
    CHECK(again.len == written->len && memcmp(again.data, written->data, again.len) == 0);
    tm_buf_free(&again);
    tm_adapter_free(a);
}

static void ask(const tm_adapter_config *a) {
    tm_adapter_spec spec;
    tm_buf out = {0};
    if (tm_adapter_check(a, modules, TM_COUNT(modules)) != TM_OK) CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    for (size_t i = 0; i < TM_COUNT(modules); i++) {
        if (tm_adapter_module(a, modules[i], &spec)) CHECK(spec.rank > 0 && spec.rank <= 65536 && spec.scale > 0);
        (void)tm_adapter_learns(a, modules[i]);
    }
    CHECK(tm_error_get()->code == TM_OK);
    CHECK(tm_adapter_write_json(a, &(tm_adapter_json_opts){0}, &out) == TM_OK);
    same_again(&out);
    tm_buf_clear(&out);
    CHECK(tm_adapter_write_json(a, &(tm_adapter_json_opts){.module = modules, .n_modules = 5, .twice_the_rank = true},
                                &out) == TM_OK);
    tm_buf_free(&out);
}

static void read_it(const char *text, size_t n) {
    tm_adapter_config *a = NULL;
    CHECK(tm_adapter_create(&a) == TM_OK);
    if (tm_adapter_read(a, text, n, "f") == TM_OK && tm_adapter_complete(a) == TM_OK)
        ask(a);
    else
        CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    tm_adapter_free(a);
}

/* The bytes are the expression of both keys. */
static void freeze(const char *text, size_t n) {
    static const tm_freeze_tensor tensor[] = {{"model.layers.0.mlp.up_proj.weight", 8}, {"lm_head.weight", 4}};
    tm_freeze *f;
    bool learns[2];
    char *regex = tm_strndup(text, n);
    CHECK(regex);
    tm_freeze_opts opts = {.freeze_parameters_regex = regex, .trainable_parameters_regex = regex};
    if (tm_freeze_create(&f, &opts) == TM_OK) {
        if (tm_freeze_apply(f, tensor, 2, 1, learns) != TM_OK) CHECK(tm_error_get()->text[0] != 0);
        tm_freeze_free(f);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_free(regex);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_begin(size);
    read_it((const char *)data, size);
    freeze((const char *)data, size);
    fuzz_end();
    return 0;
}
