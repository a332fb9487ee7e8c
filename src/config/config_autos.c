/* What "auto" became. */
#include "config/config_internal.h"

tm_status config_note_autos(cfg_state *s) {
    cfg_impl *c = s->cfg;
    TM_TRY(cfg_alloc(c, schema_row_count * sizeof *c->autos, (void **)&c->autos));
    for (size_t i = 0; i < schema_row_count; i++)
        if (s->value[i].node && schema_rows[i].types & T_AUTO &&
            (s->value[i].over_auto || tm_json_is(s->value[i].node, "auto")))
            c->autos[c->n_autos++] = (uint16_t)i;
    return TM_OK;
}

/* What the planner decides, and steps that follow data which are not known yet, are null. */
static void write_value(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    bool early = row->form == F_STEPS && c->total_steps == 0;
    double number = field_is_number(row) && !early ? field_number(c, row) : -1;
    if (row->form == F_PAIR || row->form == F_SHAPE || row->form == F_BF16 || row->form == F_F16)
        field_write(w, c, row);
    else if (number >= 0 && number < 1e18)
        tm_jw_double(w, number);
    else
        tm_jw_null(w);
}

tm_status tm_config_autos(const tm_config *c, tm_buf *out, bool *any) {
    const cfg_impl *impl = (const cfg_impl *)c;
    tm_json_writer w;
    *any = impl->n_autos > 0;
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    for (uint32_t i = 0; i < impl->n_autos; i++) {
        tm_jw_key(&w, schema_rows[impl->autos[i]].path);
        write_value(&w, c, &schema_rows[impl->autos[i]]);
    }
    tm_jw_object_end(&w);
    return tm_jw_end(&w);
}
