/* Any bytes as a configuration in YAML. What must hold: within the limits, whatever aliases refer to; refused with a
 * message, or a tree that JSON can say. */
#include "fuzz.h"

#include "config/config.h"
#include "config/config_internal.h"

#include <string.h>

static void parse(const char *text, size_t n) {
    tm_json_doc *doc = NULL, *again = NULL;
    tm_buf out = {0};
    tm_json_writer w;
    if (cfg_parse_yaml(&doc, text, n, "f.yaml") == TM_OK) {
        tm_jw_init(&w, &out, 0);
        tm_jw_node(&w, tm_json_root(doc));
        CHECK(tm_jw_end(&w) == TM_OK);
        CHECK(tm_json_parse(&again, out.data, out.len, "again", 0, 0) == TM_OK);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_json_free(doc);
    tm_json_free(again);
    tm_buf_free(&out);
}

static void load(const char *text, size_t n) {
    static const char *const set[] = {"model=m", "output_dir=o"};
    tm_config *c = NULL;
    tm_buf dump = {0};
    tm_config_opts o = {.name = "f.yaml", .set = set, .n_set = 2, .data_optional = true};
    if (tm_config_load(&c, text, n, &o) == TM_OK)
        CHECK(tm_config_dump_json(c, &dump, 0) == TM_OK);
    else
        CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    tm_buf_free(&dump);
    tm_config_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_begin(size);
    parse((const char *)data, size);
    load((const char *)data, size);
    fuzz_end();
    return 0;
}
