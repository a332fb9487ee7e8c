/* The timeline as JSON of some kilobytes, for pages that draw it themselves. */
#include "offload/sim/timeline_internal.h"

#include "offload/offload_internal.h"

#include <math.h>

enum { EACH = TIMELINE_BINS / TM_TIMELINE_COLUMNS };
_Static_assert(EACH *TM_TIMELINE_COLUMNS == TIMELINE_BINS, "columns are whole bins");
static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/* The stack up to class `last`: what is rounded is its height, so that a full lane looks full. */
static void put_levels(tm_json_writer *w, const timeline_lane *lane, uint32_t last) {
    char text[TM_TIMELINE_COLUMNS];
    for (int column = 0; column < TM_TIMELINE_COLUMNS; column++) {
        double sum = 0;
        for (uint32_t c = 0; c <= last; c++)
            for (int i = 0; i < EACH; i++) sum += lane->value[c][column * EACH + i];
        text[column] = digit[(int)lround(63 * fmin(1, fmax(0, sum / EACH / lane->top)))];
    }
    tm_jw_field_strn(w, "levels", text, sizeof text);
}

static void put_class(tm_json_writer *w, const timeline_lane *lane, uint32_t c) {
    tm_jw_object(w);
    tm_jw_field_str(w, "name", lane->class[c].name);
    tm_jw_field_str(w, "colour", lane->class[c].colour);
    tm_jw_field_double(w, "total", lane->class[c].total);
    put_levels(w, lane, c);
    tm_jw_object_end(w);
}

static void put_lane(tm_json_writer *w, const timeline_lane *lane) {
    static const char *const unit[] = {"busy", "rate", "bytes"};
    tm_jw_object(w);
    tm_jw_field_str(w, "name", lane->name);
    tm_jw_field_str(w, "note", lane->note);
    tm_jw_field_str(w, "unit", unit[lane->unit]);
    tm_jw_field_double(w, "top", lane->top);
    if (lane->limit > 0) tm_jw_field_double(w, "limit", lane->limit);
    tm_jw_field_array(w, "classes");
    for (uint32_t c = 0; c < lane->classes; c++)
        if (lane->class[c].total > 0) put_class(w, lane, c);
    tm_jw_array_end(w);
    tm_jw_object_end(w);
}

tm_status tm_timeline_json(tm_json_writer *w, const tm_timeline *t) {
    timeline *data = tm_malloc(sizeof *data);
    if (!data) return tm_nomem(sizeof *data);
    tm_status rc = timeline_fill(data, t);
    if (rc == TM_OK) {
        tm_jw_object(w);
        tm_jw_field_str(w, "title", t->title ? t->title : t->plan->name);
        tm_jw_field_double(w, "seconds", data->seconds);
        tm_jw_field_array(w, "lanes");
        for (uint32_t i = 0; i < data->lanes; i++) put_lane(w, &data->lane[i]);
        tm_jw_array_end(w);
        tm_jw_object_end(w);
        rc = w->status;
    }
    tm_free(data);
    return rc;
}
