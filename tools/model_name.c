/* Models by their names on a hub. */
#include "format/format.h"
#include "format/peft.h"
#include "io/file/file.h"
#include "tools/tools.h"

#include <string.h>

const char *tm_cmd_model(const char *name) {
    static char at[4][4096]; /* a model, an adapter, a base and another of them, as long as the command runs */
    static size_t n;
    if (!name || n == TM_COUNT(at)) return name;
    const char *found = tm_hub_find(name, at[n]);
    n += found == at[n];
    return found;
}

/* An adapter that a whole model lies beside stays one of two: the model is meant. */
static bool is_adapter_alone(const char *path) {
    tm_buf config = {0};
    bool alone = tm_is_adapter_folder(path) && tm_buf_printf(&config, "%s/config.json", path) == TM_OK &&
                 !tm_path_exists(config.data);
    tm_buf_free(&config);
    return alone;
}

static tm_status base_of(const char *folder, const char **base) {
    static tm_buf at; /* as long as the command runs */
    tm_adapter_folder *f;
    TM_TRY(tm_adapter_folder_open(&f, folder));
    tm_status rc = tm_adapter_folder_base(f, NULL, &at);
    tm_adapter_folder_close(f);
    *base = at.data;
    if (rc != TM_EINPUT) return rc;
    tm_error_clear();
    return tm_fail(TM_EINPUT, "%s is an adapter, and its base is not here; name both: --model BASE --adapter %s",
                   folder, folder);
}

tm_status tm_cmd_models(const char **model, const char **adapter) {
    *model = tm_cmd_model(*model);
    *adapter = tm_cmd_model(*adapter);
    if (!*model || !is_adapter_alone(*model)) return TM_OK;
    if (*adapter && strcmp(*adapter, *model) != 0)
        return tm_fail(TM_EINPUT, "--model %s is an adapter, and --adapter %s another: a model takes one", *model,
                       *adapter);
    *adapter = *model;
    return base_of(*adapter, model);
}
