/* What stands around the examples of src/adapter/adapter.h and src/text/pattern.h. */
#include "adapter/adapter.h"
#include "text/pattern.h"

tm_status adapt_all(const char *text, size_t len, const char *const *module, size_t n_modules);
tm_status one_name(void);

static void adapt(const char *module, const tm_adapter_spec *spec) {
    (void)module, (void)spec;
}

tm_status adapt_all(const char *text, size_t len, const char *const *module, size_t n_modules) {
    tm_adapter_config *a;
    tm_adapter_spec spec;
    //@ src/adapter/adapter.h TM_TRY(tm_adapter_create
    return TM_OK;
}

tm_status one_name(void) {
    tm_pattern *p;
    bool found;
    //@ src/text/pattern.h TM_TRY(tm_pattern_open
    return TM_OK;
}
