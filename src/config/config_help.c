/* `tidemill train --keys`: every row of the table, by kind. */
#include "config/config_internal.h"

static const char *const titles[] = {
    [K_OURS] = "Keys of tidemill (names of ms-swift and HF Trainer):",
    [K_DS] = "\nKeys of DeepSpeed:",
    [K_IGNORED] = "\nAccepted, without effect:",
    [K_LATER] = "\nNot in this version; refused unless switched off:",
    [K_REFUSED] = "\nRefused:",
};

static tm_status help_row(tm_buf *out, const schema_row *row) {
    char expects[512];
    if (row->alias_of) return tm_buf_printf(out, "  %s\n      the same as %s\n", row->path, row->alias_of);
    if (row->kind >= K_IGNORED) return tm_buf_printf(out, "  %s: %s\n", row->path, row->help);
    TM_TRY(tm_buf_printf(out, "  %s\n      %s", row->path, row->help));
    schema_expects(row, expects, sizeof expects);
    if (!(row->types & T_OBJ) && *expects) TM_TRY(tm_buf_printf(out, "; %s", expects));
    if (row->def) TM_TRY(tm_buf_printf(out, "; default %s", row->def));
    return tm_buf_printf(out, "\n");
}

tm_status tm_config_help(tm_buf *out) {
    static const schema_kind order[] = {K_OURS, K_DS, K_IGNORED, K_LATER, K_REFUSED};
    for (size_t k = 0; k < TM_COUNT(order); k++) {
        TM_TRY(tm_buf_printf(out, "%s\n", titles[order[k]]));
        for (size_t i = 0; i < schema_row_count; i++) {
            schema_kind kind = schema_rows[i].kind == K_BOTH ? K_OURS : schema_rows[i].kind;
            if (kind == order[k]) TM_TRY(help_row(out, &schema_rows[i]));
        }
    }
    return TM_OK;
}

bool tm_config_key_at(size_t i, tm_config_key *out) {
    if (i >= schema_row_count) return false;
    const schema_row *row = &schema_rows[i];
    *out = (tm_config_key){.path = row->path,
                           .help = row->help,
                           .alias_of = row->alias_of,
                           .choices = row->choices,
                           .def = row->def,
                           .counts = row->kind < K_IGNORED};
    return true;
}
