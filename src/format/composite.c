/* Models with other parts than text: which tensors are whose. */
#include "format/source_internal.h"

#include <string.h>

bool tm_source_is_composite(const tm_source *src) {
    size_t len;
    tm_json_doc *doc;
    const char *json = tm_source_config(src, &len);
    if (tm_json_parse(&doc, json, len, "config.json", 0, 0) != TM_OK) return tm_error_clear(), false;
    const tm_json *text = tm_json_get(tm_json_root(doc), "text_config"),
                  *vision = tm_json_get(tm_json_root(doc), "vision_config");
    bool composite = (text && text->type == TM_JSON_OBJECT) || (vision && vision->type == TM_JSON_OBJECT);
    tm_json_free(doc);
    return composite;
}

static bool starts(const char *s, const char *with) {
    return strncmp(s, with, strlen(with)) == 0;
}

bool tm_composite_is_text(const char *name) {
    /* of transformers 5, of 4, of the flat form */
    static const char *const roots[] = {"model.language_model.", "language_model.model.", "model."};
    static const char *const parts[] = {"embed_tokens.", "layers.", "norm."};
    if (starts(name, "lm_head.") || starts(name, "language_model.lm_head.")) return true;
    for (size_t i = 0; i < TM_COUNT(roots); i++)
        for (size_t k = 0; starts(name, roots[i]) && k < TM_COUNT(parts); k++)
            if (starts(name + strlen(roots[i]), parts[k])) return true;
    return false;
}
