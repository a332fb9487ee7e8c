/* A config's life: memory, expressions, and what contradicts once all keys are said. */
#include "adapter/adapter_internal.h"

#include <string.h>

void *adapter_alloc(tm_adapter_config *a, size_t bytes) {
    adapter_text *t = tm_calloc(1, sizeof *t + bytes);
    if (!t) {
        (void)tm_nomem(bytes);
        return NULL;
    }
    t->next = a->own->texts;
    a->own->texts = t;
    return t->bytes;
}

const char *adapter_keep(tm_adapter_config *a, const char *text, size_t n) {
    char *copy = adapter_alloc(a, n + 1);
    if (copy) memcpy(copy, text, n);
    return copy;
}

tm_status tm_adapter_create(tm_adapter_config **out) {
    *out = NULL;
    tm_adapter_config *a = tm_calloc(1, sizeof *a);
    if (!a) return tm_nomem(sizeof *a);
    *a = (tm_adapter_config){
        .r = 8, .alpha = 8, .pissa_iterations = -1, .init_word = "true", .lr_ratio = 1, .embedding_lr = 1e-6};
    a->own = tm_calloc(1, sizeof *a->own);
    if (!a->own) {
        tm_free(a);
        return tm_nomem(sizeof *a->own);
    }
    *out = a;
    return TM_OK;
}

void adapter_rules_free(adapter_rules *rules) {
    for (uint32_t i = 0; i < rules->n; i++) tm_pattern_close(rules->item[i]);
    tm_free(rules->item);
    *rules = (adapter_rules){0};
}

static void free_rules(struct adapter_own *own) {
    adapter_rules *const all[] = {&own->target, &own->exclude, &own->saved, &own->rank, &own->alpha, &own->layers};
    for (size_t i = 0; i < TM_COUNT(all); i++) adapter_rules_free(all[i]);
    own->pattern_bytes = 0;
}

void tm_adapter_free(tm_adapter_config *a) {
    if (!a) return;
    free_rules(a->own);
    for (adapter_text *t = a->own->texts, *next; t; t = next) {
        next = t->next;
        tm_free(t);
    }
    tm_free(a->own);
    tm_free(a);
}

/* ---- expressions ------------------------------------------------------------------------------------------------ */

tm_status adapter_compile(tm_adapter_config *a, adapter_rules *rules, const char *text, adapter_frame frame) {
    tm_buf whole = {0};
    tm_pattern *p = NULL;
    tm_pattern **item = tm_realloc(rules->item, (rules->n + 1) * sizeof *item);
    if (!item) return tm_nomem((rules->n + 1) * sizeof *item);
    rules->item = item;
    tm_status rc = tm_buf_printf(&whole, "%s%s%s", frame.before, text, frame.after);
    if (rc == TM_OK) rc = tm_pattern_open(&p, whole.data, whole.len, frame.how);
    tm_buf_free(&whole);
    TM_TRY(rc);
    rules->item[rules->n++] = p;
    a->own->pattern_bytes += tm_pattern_bytes(p);
    if (a->own->pattern_bytes > ADAPTER_MOST_PATTERN_BYTES)
        return tm_fail(TM_EUNSUPPORTED, "the regular expressions take more than %d MiB; write fewer or simpler ones",
                       ADAPTER_MOST_PATTERN_BYTES >> 20);
    return TM_OK;
}

static const adapter_frame whole_name = {"", "", TM_PATTERN_FULL};

static tm_status compile_choice(tm_adapter_config *a, adapter_rules *rules, const tm_adapter_choice *c) {
    return c->regex ? adapter_compile(a, rules, c->regex, whole_name) : TM_OK;
}

static tm_status compile_names(tm_adapter_config *a, adapter_rules *rules, tm_adapter_names names,
                               adapter_frame frame) {
    for (uint32_t i = 0; i < names.n; i++) TM_TRY(adapter_compile(a, rules, names.item[i], frame));
    return TM_OK;
}

static tm_status compile_patterns(tm_adapter_config *a, adapter_rules *rules, tm_adapter_patterns patterns) {
    static const adapter_frame end_of_name = {"(.*\\.)?(", ")$", TM_PATTERN_MATCH};
    for (uint32_t i = 0; i < patterns.n; i++) TM_TRY(adapter_compile(a, rules, patterns.item[i].key, end_of_name));
    return TM_OK;
}

static tm_status compile_layers(tm_adapter_config *a) {
    static const adapter_frame around = {"(?:^|.*?\\.)", "\\.(?P<idx>\\d+)\\.", TM_PATTERN_MATCH};
    static const adapter_frame any = {"", ".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", TM_PATTERN_MATCH};
    if (a->n_layers == 0) return TM_OK;
    if (a->layers_pattern.n == 0) return adapter_compile(a, &a->own->layers, "", any);
    return compile_names(a, &a->own->layers, a->layers_pattern, around);
}

static tm_status compile_all(tm_adapter_config *a) {
    static const adapter_frame in_name = {"(^|.*\\.)", "($|\\..*)", TM_PATTERN_MATCH};
    struct adapter_own *own = a->own;
    free_rules(own);
    TM_TRY(compile_choice(a, &own->target, &a->target_modules));
    TM_TRY(compile_choice(a, &own->exclude, &a->exclude_modules));
    TM_TRY(compile_names(a, &own->saved, a->modules_to_save.names, in_name));
    TM_TRY(compile_patterns(a, &own->rank, a->rank_pattern));
    TM_TRY(compile_patterns(a, &own->alpha, a->alpha_pattern));
    return compile_layers(a);
}

/* ---- contradictions --------------------------------------------------------------------------------------------- */

/* What a folder's tensors are is not for a configuration to say otherwise. */
static tm_status check_stored(const tm_adapter_config *a) {
    const struct adapter_own *own = a->own;
    if (!own->file) return TM_OK;
    if (a->r != own->stored_rank)
        return tm_fail(TM_EINPUT,
                       "\"r\" is %u, but the adapter of %s has r %u; leave \"r\" out, or start a new adapter", a->r,
                       own->file, own->stored_rank);
    if (a->use_dora != own->stored_dora)
        return tm_fail(TM_EINPUT,
                       "\"use_dora\" is %s, but the adapter of %s is %s; leave it out, or start a new adapter",
                       a->use_dora ? "true" : "false", own->file, own->stored_dora ? "DoRA" : "not DoRA");
    return TM_OK;
}

static tm_status check_layers(const tm_adapter_config *a) {
    const tm_adapter_choice *t = &a->target_modules;
    bool by_end = t->names.n > 0 && !t->regex;
    if (a->n_layers && (!by_end || t->all_linear))
        return tm_fail(TM_EINPUT,
                       "\"layers_to_transform\" chooses layers of a list of \"target_modules\"; give the list, "
                       "such as [\"q_proj\", \"v_proj\"], or name the layers in the regular expression");
    if (a->layers_pattern.n && !a->n_layers)
        return tm_fail(TM_EINPUT,
                       "\"layers_pattern\" says where the numbers of \"layers_to_transform\" stand; give both");
    return TM_OK;
}

tm_status tm_adapter_complete(tm_adapter_config *a) {
    tm_adapter_choice *t = &a->target_modules;
    if (!t->names.n && !t->regex && !t->all_embedding) t->all_linear = true;
    a->use_dora |= a->own->type_dora;
    a->use_rslora |= a->own->type_rslora;
    TM_TRY(check_stored(a));
    TM_TRY(check_layers(a));
    return compile_all(a);
}
