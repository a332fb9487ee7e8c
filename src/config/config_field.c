/* A row's field in tm_config: filled from the row's value or default, and written down again. This file is the only one
 * that knows how each form of field is held. */
#include "config/config_internal.h"

#include <math.h>
#include <string.h>

static const tm_dtype dtypes[] = {TM_BF16, TM_F32, TM_F16}; /* in the order of the choices */
static const char *const dtype_names[] = {[TM_F32] = "fp32", [TM_BF16] = "bf16", [TM_F16] = "fp16"};
static const tm_place places[] = {TM_PLACE_NONE, TM_PLACE_CPU, TM_PLACE_NVME, TM_PLACE_AUTO};
static const char *const place_names[] = {"auto", "none", "cpu", "nvme"};
static const char *const shapes[] = {[TM_SHAPE_LINEAR] = "linear",
                                     [TM_SHAPE_COSINE] = "cosine",
                                     [TM_SHAPE_ONE_MINUS_SQRT] = "1-sqrt",
                                     [TM_SHAPE_LOG] = "log"};

tm_dtype cfg_dtype(const cfg_state *s, const char *path) {
    return dtypes[cfg_choice(s, path)];
}

tm_place cfg_place(const cfg_state *s, const char *path) {
    return places[cfg_choice(s, path)];
}

static void store_integer(void *at, size_t bytes, int64_t value) {
    TM_ASSERT(bytes == 8 || bytes == 4 || bytes == 1);
    if (bytes == 8)
        *(int64_t *)at = value;
    else if (bytes == 4)
        *(int32_t *)at = (int32_t)value;
    else
        *(bool *)at = value != 0;
}

static int64_t load_integer(const void *at, size_t bytes) {
    return bytes == 8 ? *(const int64_t *)at : bytes == 4 ? *(const int32_t *)at : *(const bool *)at;
}

static void fill_number(const cfg_state *s, const schema_row *row, void *at) {
    const char *path = row->path;
    bool given = cfg_given(s, path) != NULL;
    if (row->form == F_INT || row->form == F_STEPS)
        store_integer(at, row->bytes, row->types & T_SIZE ? (int64_t)cfg_size(s, path) : cfg_integer(s, path));
    else if (row->form == F_ELEMENTS || row->form == F_BUCKET)
        *(uint64_t *)at = given ? (uint64_t)cfg_integer(s, path) : TM_AUTO_ELEMENTS;
    else
        *(double *)at = given || row->form != F_RATIO ? cfg_number(s, path) : -1;
}

static tm_lr_shape shape_of(const schema_row *row, int choice) {
    char name[32];
    unsigned shape = 0;
    schema_choice_name(row, choice, name, sizeof name);
    while (shape + 1 < TM_COUNT(shapes) && strcmp(shapes[shape], name) != 0) shape++;
    return (tm_lr_shape)shape;
}

static tm_status fill_choice(cfg_state *s, const schema_row *row, void *at) {
    char name[64];
    int choice = cfg_choice(s, row->path);
    if (choice < 0) return TM_OK;
    if (row->form == F_WORD) {
        schema_choice_name(row, choice, name, sizeof name);
        *(const char **)at = cfg_strndup(s->cfg, name, strlen(name));
        return *(const char **)at ? TM_OK : TM_ENOMEM;
    }
    int value = choice;
    if (row->form == F_SIGN && choice == 2) value = -1;
    if (row->form == F_DTYPE) value = (int)dtypes[choice];
    if (row->form == F_PLACE) value = (int)places[choice];
    if (row->form == F_SHAPE) value = (int)shape_of(row, choice);
    store_integer(at, row->bytes, value);
    return TM_OK;
}

tm_status cfg_fill(cfg_state *s, const schema_row *row) {
    void *at = (char *)&s->cfg->pub + row->at;
    TM_ASSERT(row->form != F_NONE && row->form != F_PAIR && !row->alias_of);
    if (row->form == F_TEXT) return cfg_string(s, row->path, at);
    if (row->form == F_LIST) return cfg_strings(s, row->path, at);
    if (row->types & T_ENUM) return fill_choice(s, row, at);
    if (row->form == F_DENIED)
        *(bool *)at |= cfg_given(s, row->path) && !cfg_bool(s, row->path);
    else if (row->form == F_BOOL)
        *(bool *)at = cfg_bool(s, row->path);
    else
        fill_number(s, row, at);
    if (row->form == F_BUCKET)
        *(uint64_t *)((char *)&s->cfg->pub + row->resolved_at) =
            cfg_is_auto(s, row->path) ? TM_AUTO_ELEMENTS : (uint64_t)cfg_integer(s, row->path);
    return TM_OK;
}

tm_status cfg_fill_path(cfg_state *s, const char *path) {
    return cfg_fill(s, &schema_rows[schema_index(path)]);
}

tm_status cfg_fill_all(cfg_state *s) {
    for (size_t i = 0; i < schema_row_count; i++)
        if (schema_rows[i].filled) TM_TRY(cfg_fill(s, &schema_rows[i]));
    return TM_OK;
}

static const void *field_of(const tm_config *c, const schema_row *row) {
    TM_ASSERT(row->form != F_NONE && row->at + row->bytes <= sizeof *c);
    return (const char *)c + row->at;
}

bool field_is_number(const schema_row *row) {
    return (row->form >= F_INT && row->form <= F_DOUBLE) || row->form == F_BUCKET;
}

double field_number(const tm_config *c, const schema_row *row) {
    const void *at = field_of(c, row);
    if (row->form == F_DOUBLE || row->form == F_RATIO) return *(const double *)at;
    if (row->form == F_BUCKET) return (double)*(const uint64_t *)((const char *)c + row->resolved_at);
    return (double)load_integer(at, row->bytes);
}

bool field_is_set(const tm_config *c, const schema_row *row) {
    const void *at = field_of(c, row);
    if (row->form == F_TEXT) return *(const char *const *)at != NULL;
    if (row->form == F_LIST) return ((const tm_strings *)at)->n > 0;
    if (row->form == F_ELEMENTS || row->form == F_BUCKET) return *(const uint64_t *)at != TM_AUTO_ELEMENTS;
    if (row->form == F_DENIED) return *(const bool *)at;
    if (row->form == F_RATIO) return *(const double *)at >= 0;
    return !field_is_number(row) || field_number(c, row) >= row->min;
}

/* The word that a field stands for, or NULL. */
static const char *word_of(const tm_config *c, const schema_row *row, char *buf, size_t cap) {
    const void *at = field_of(c, row);
    if (row->form == F_TEXT || row->form == F_WORD) return *(const char *const *)at;
    if (row->form < F_ENUM || row->form > F_SHAPE) return NULL;
    int64_t value = load_integer(at, row->bytes);
    if (row->form == F_DTYPE) return dtype_names[value];
    if (row->form == F_PLACE) return place_names[value];
    if (row->form == F_SHAPE) return shapes[value];
    return schema_choice_name(row, value < 0 ? 2 : (int)value, buf, cap);
}

static void write_list(tm_json_writer *w, const tm_strings *list) {
    tm_jw_array(w);
    for (uint32_t i = 0; i < list->n; i++) tm_jw_str(w, list->item[i]);
    tm_jw_array_end(w);
}

static void write_pair(tm_json_writer *w, const double *pair) {
    tm_jw_array(w);
    tm_jw_double(w, pair[0]);
    tm_jw_double(w, pair[1]);
    tm_jw_array_end(w);
}

static bool truth_of(const tm_config *c, const schema_row *row) {
    if (row->form == F_BF16) return *(const tm_dtype *)field_of(c, row) == TM_BF16;
    if (row->form == F_F16) return *(const tm_dtype *)field_of(c, row) == TM_F16;
    return *(const bool *)field_of(c, row) != (row->form == F_DENIED);
}

void field_write(tm_json_writer *w, const tm_config *c, const schema_row *row) {
    char buf[64];
    const void *at = field_of(c, row);
    const char *word = word_of(c, row, buf, sizeof buf);
    if (word)
        tm_jw_str(w, word);
    else if (row->form == F_LIST)
        write_list(w, at);
    else if (row->form == F_PAIR)
        write_pair(w, at);
    else if (row->form == F_BOOL || row->form == F_BF16 || row->form == F_F16 || row->form == F_DENIED)
        tm_jw_bool(w, truth_of(c, row));
    else if (row->form == F_DOUBLE || row->form == F_RATIO)
        tm_jw_double(w, field_number(c, row));
    else
        tm_jw_int(w, load_integer(at, row->bytes));
}
