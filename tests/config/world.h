/* What the tests of the configuration share: loading from text, with files that exist only here. */
#ifndef CONFIG_TEST_H
#define CONFIG_TEST_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"

/* The adapter that lies in "lora". */
static const char test_adapter[] =
    "{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 7, \"lora_dropout\": 0.25, \"use_rslora\": true, "
    "\"target_modules\": [\"q_proj\", \"v_proj\"], \"init_lora_weights\": \"eva\", \"inference_mode\": true}";

/* The text of "ds.json", and the adapter's; any other name is not there. */
static inline tm_status test_read(void *ctx, const char *path, tm_buf *out) {
    const char *text = ctx;
    if (!strcmp(path, "lora/adapter_config.json")) return tm_buf_append(out, test_adapter, sizeof test_adapter - 1);
    if (!text || strcmp(path, "ds.json")) return tm_fail(TM_EINPUT, "%s: no such file", path);
    return tm_buf_append(out, text, strlen(text));
}

enum { MAX_SET = 8 };
static inline tm_status test_load(tm_config **out, const char *json, const char *ds, const char *const *set) {
    size_t n = 0;
    while (set && set[n]) n++;
    tm_config_opts o = {
        .name = "cfg.json", .set = set, .n_set = n, .read_file = test_read, .read_ctx = (void *)(uintptr_t)ds};
    tm_error_clear();
    return tm_config_load(out, json, strlen(json), &o);
}

/* Loads what must load; BASE is put in front of the keys. */
#define BASE "\"model\": \"m\", \"data\": {\"train\": \"t.jsonl\"}"
static inline tm_config *test_ok_set(const char *json, const char *ds, const char *const *set) {
    tm_config *c = NULL;
    tm_status rc = test_load(&c, json, ds, set);
    if (rc != TM_OK) fail_msg("%s\n  for %s", tm_error_get()->text, json);
    return c;
}
static inline tm_config *test_ok(const char *json) {
    return test_ok_set(json, NULL, NULL);
}

#endif
