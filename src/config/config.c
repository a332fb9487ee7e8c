/* Loading: the layers in their order, then resolution, then one report of everything that is wrong. */
#include "config/config_internal.h"

#include <stdio.h>
#include <string.h>

static cfg_owned *own(cfg_impl *c, size_t bytes) {
    cfg_owned *o = tm_calloc(1, sizeof *o + bytes);
    if (!o) return NULL;
    o->next = c->owned;
    c->owned = o;
    return o;
}

char *cfg_strndup(cfg_impl *c, const char *text, size_t n) {
    cfg_owned *o = own(c, n + 1);
    if (!o) {
        (void)tm_nomem(n + 1);
        return NULL;
    }
    memcpy(o->bytes, text, n);
    return o->bytes;
}

tm_status cfg_alloc(cfg_impl *c, size_t bytes, void **out) {
    cfg_owned *o = own(c, bytes + 15);
    if (!o) return tm_nomem(bytes);
    *out = (void *)(((uintptr_t)o->bytes + 15) & ~(uintptr_t)15);
    return TM_OK;
}

tm_status cfg_keep_doc(cfg_impl *c, tm_json_doc *doc) {
    cfg_owned *o = own(c, 0);
    if (!o) {
        tm_json_free(doc);
        return tm_nomem(sizeof *o);
    }
    o->doc = doc;
    return TM_OK;
}

void tm_config_free(tm_config *c) {
    cfg_impl *impl = (cfg_impl *)c;
    if (!impl) return;
    tm_adapter_free((tm_adapter_config *)(uintptr_t)c->adapter);
    tm_freeze_free((tm_freeze *)(uintptr_t)c->freeze);
    for (cfg_owned *o = impl->owned, *next; o; o = next) {
        next = o->next;
        tm_json_free(o->doc);
        tm_free(o);
    }
    tm_free(impl);
}

static tm_status parse(cfg_state *s, const char *text, size_t len, const char *name, const tm_json **root) {
    tm_json_doc *doc;
    bool yaml = cfg_is_yaml(name);
    TM_TRY(yaml ? cfg_parse_yaml(&doc, text, len, name) : tm_json_parse(&doc, text, len, name, TM_JSON_RELAXED, 0));
    TM_TRY(cfg_keep_doc(s->cfg, doc));
    *root = tm_json_root(doc);
    if ((*root)->type != TM_JSON_OBJECT)
        return tm_fail(TM_EINPUT, "%s:%u:%u: a configuration is %s", name, (*root)->line, (*root)->column,
                       yaml ? "a mapping, a line each: key: value" : "a JSON object: { ... }");
    return TM_OK;
}

static tm_status merge_file(cfg_state *s, const cfg_value *at) {
    const char *path = at->node->text, *word = config_deepspeed_of_word(path);
    char w[256];
    if (!s->opts->read_file && !word)
        return tm_fail(TM_EINPUT, "%s: \"deepspeed\" names a file, which cannot be read here",
                       cfg_where(at, w, sizeof w));
    tm_buf text = {0};
    const tm_json *root;
    char *name = cfg_strndup(s->cfg, path, at->node->len);
    tm_status rc = !name  ? TM_ENOMEM
                   : word ? tm_buf_printf(&text, "%s", word)
                          : s->opts->read_file(s->opts->read_ctx, path, &text);
    if (rc == TM_OK) rc = parse(s, text.data ? text.data : "", text.len, name, &root);
    if (rc == TM_OK) rc = cfg_merge(s, root, "", name, SOURCE_DEEPSPEED);
    tm_buf_free(&text);
    return rc;
}

/* The last --set deepspeed=... decides which file is read; it is applied here and again, harmlessly, in its turn. */
static tm_status merge_deepspeed(cfg_state *s) {
    for (size_t i = 0; i < s->opts->n_set; i++)
        if (cfg_set_value(s->opts->set[i], "deepspeed")) TM_TRY(cfg_apply_set(s, s->opts->set[i]));
    const cfg_value *v = cfg_raw(s, "deepspeed");
    if (!v) return TM_OK;
    if (v->node->type == TM_JSON_STRING) return merge_file(s, v);
    if (v->node->type == TM_JSON_OBJECT) return cfg_merge(s, v->node, "", v->file, SOURCE_DEEPSPEED);
    cfg_wrong(s, v, "\"deepspeed\" must be a path or an object");
    return TM_OK;
}

static tm_status merge_all(cfg_state *s, const char *text, size_t len) {
    const tm_json *root;
    TM_TRY(cfg_lift(s));
    TM_TRY(parse(s, text, len, s->opts->name, &root));
    TM_TRY(cfg_merge(s, root, "", s->opts->name, SOURCE_MAIN));
    TM_TRY(merge_deepspeed(s));
    for (size_t i = 0; i < s->opts->n_set; i++) TM_TRY(cfg_apply_set(s, s->opts->set[i]));
    return TM_OK;
}

tm_status cfg_find_model(cfg_state *s, const char **name) {
    char buf[4096];
    const char *at = *name && s->opts->find_model ? s->opts->find_model(*name, buf) : *name;
    if (at == *name) return TM_OK;
    *name = cfg_strndup(s->cfg, at, strlen(at));
    return *name ? TM_OK : TM_ENOMEM;
}

/* Names of a hub become paths. */
static tm_status find_models(cfg_state *s) {
    tm_config *c = &s->cfg->pub;
    TM_TRY(cfg_find_model(s, &c->model));
    TM_TRY(cfg_find_model(s, &c->tokenizer));
    return cfg_find_model(s, &c->reference);
}

/* Contradictions only make sense where every value is well-formed, so what the layers hold is reported first; a
 * mismatch between two files, found while merging, waits for the others. */
static tm_status resolve(cfg_state *s) {
    if (s->n_input > s->n_mismatches) return cfg_report(s);
    TM_TRY(config_take_theirs(s));
    tm_config *c = &s->cfg->pub;
    c->world_size = s->opts->world_size ? s->opts->world_size : 1;
    TM_TRY(cfg_fill_all(s));
    TM_TRY(config_resolve_run(s));
    TM_TRY(config_resolve_objective(s));
    TM_TRY(find_models(s));
    config_resolve_quantization(s);
    TM_TRY(config_resolve_adapter(s));
    TM_TRY(config_resolve_freezing(s));
    TM_TRY(config_resolve_batch(s));
    TM_TRY(config_resolve_storage(s));
    TM_TRY(config_resolve_optimizer(s));
    TM_TRY(config_resolve_schedule(s));
    TM_TRY(config_note_autos(s));
    TM_TRY(cfg_report(s));
    config_warn_effects(s);
    return TM_OK;
}

tm_status tm_config_load(tm_config **out, const char *text, size_t len, const tm_config_opts *opts) {
    tm_config_opts o = *opts;
    if (!o.name) o.name = "configuration";
    *out = NULL;
    cfg_state s = {.opts = &o, .whole = {.file = o.name, .source = SOURCE_SET}};
    tm_status rc;
    s.cfg = tm_calloc(1, sizeof *s.cfg);
    s.value = tm_calloc(schema_row_count, sizeof *s.value);
    rc = s.cfg && s.value ? merge_all(&s, text, len) : tm_nomem(schema_row_count * sizeof *s.value);
    if (rc == TM_OK) rc = resolve(&s);
    tm_buf_free(&s.problems);
    tm_free(s.value);
    if (rc == TM_OK)
        *out = &s.cfg->pub;
    else
        tm_config_free((tm_config *)s.cfg);
    return rc;
}
