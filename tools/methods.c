#include "tools/methods.h"

#include "config/config.h"

#include <stdio.h>
#include <string.h>

const tm_method *tm_method_find(const char *name, size_t n) {
    for (size_t i = 0; i < tm_method_count; i++)
        if (strlen(tm_methods[i].name) == n && !memcmp(tm_methods[i].name, name, n)) return &tm_methods[i];
    return NULL;
}

/* ---- what of a template is the method ------------------------------------------------------------------------------ */

static tm_status add(tm_method_settings *s, const char *key, const tm_json *value) {
    tm_json_writer w;
    TM_ASSERT(s->n < TM_METHOD_SETTINGS);
    tm_buf *b = &s->set[s->n++];
    TM_TRY(tm_buf_printf(b, "%s=", key));
    tm_jw_init(&w, b, 0);
    tm_jw_node(&w, value);
    return tm_jw_end(&w);
}

/* Where there is no adapter all parameters learn, which is said, so that options that ask for one contradict it. */
static tm_status take(tm_method_settings *s, const tm_json *root) {
    const tm_json *device = tm_json_get(tm_json_get(root, "memory"), "device");
    s->compared = !tm_json_get(root, "strategy") && !tm_json_get(root, "objective");
    s->on_gpu = device != NULL;
    for (const tm_json *m = root->child; m; m = m->next)
        if (tm_config_is_of_method(m->key) || !strcmp(m->key, "strategy")) TM_TRY(add(s, m->key, m));
    if (device) TM_TRY(add(s, "memory.device", device));
    if (tm_json_get(root, "adapter")) return TM_OK;
    TM_ASSERT(s->n < TM_METHOD_SETTINGS);
    return tm_buf_printf(&s->set[s->n++], "tuner_type=full");
}

tm_status tm_method_read(const tm_method *m, tm_method_settings *out) {
    tm_buf text = {0};
    tm_json_doc *doc = NULL;
    tm_status rc;
    *out = (tm_method_settings){.n = 0};
    for (const char *const *line = m->line; *line; line++) TM_GO(tm_buf_printf(&text, "%s\n", *line));
    TM_GO(tm_json_parse(&doc, text.data, text.len, m->name, TM_JSON_RELAXED, 0));
    rc = take(out, tm_json_root(doc));
done:
    tm_json_free(doc);
    tm_buf_free(&text);
    return rc;
}

void tm_method_free(tm_method_settings *s) {
    for (size_t i = 0; i < s->n; i++) tm_buf_free(&s->set[i]);
    s->n = 0;
}

/* ---- options --------------------------------------------------------------------------------------------------------- */

bool tm_method_is_said(const char *const *set, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *at = set[i] + (strncmp(set[i], "--", 2) ? 0 : 2);
        char path[160];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "="), at);
        if (tm_config_is_of_method(path)) return true;
    }
    return false;
}
