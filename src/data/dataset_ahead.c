/* Records are encoded by all threads, some at a time, and taken one by one in the order of the file. */
#include "data/dataset_internal.h"

#include <string.h>

/* Of the text that is held; a longer record is alone. What an encoder may keep for the next record. */
enum { AHEAD_BYTES = 256 * 1024, KEPT_BYTES = 128 * 1024 };

tm_status data_ahead_open(data_ahead *a, const tm_dataset_opts *opts) {
    *a = (data_ahead){0};
    a->slot = tm_calloc(DATA_AHEAD, sizeof *a->slot);
    if (!a->slot) return tm_nomem(DATA_AHEAD * sizeof *a->slot);
    for (uint32_t i = 0; i < DATA_AHEAD; i++) a->slot[i].encoder.opts = opts;
    return TM_OK;
}

void data_ahead_close(data_ahead *a) {
    for (uint32_t i = 0; i < DATA_AHEAD && a->slot; i++) {
        data_encoder_free(&a->slot[i].encoder);
        tm_free(a->slot[i].why);
    }
    tm_free(a->slot);
    tm_buf_free(&a->text);
}

static bool is_large(const data_encoder *e) {
    size_t bytes = e->ids.cap * sizeof *e->ids.id + e->prompt.cap * sizeof *e->prompt.id;
    bytes += e->learn.cap + e->text.cap + e->json.cap + e->spans.cap + e->prefer.beside.cap;
    for (size_t i = 0; i < TM_COUNT(e->prefer.part); i++) bytes += e->prefer.part[i].cap;
    return bytes > KEPT_BYTES;
}

static void give_back(data_ahead *a) {
    for (uint32_t i = 0; i < a->n; i++) {
        data_encoder *e = &a->slot[i].encoder;
        const tm_dataset_opts *opts = e->opts;
        if (!is_large(e)) continue;
        data_encoder_free(e);
        *e = (data_encoder){.opts = opts};
    }
    a->n = 0;
    if (a->text.cap > 4 * AHEAD_BYTES) tm_buf_free(&a->text);
    tm_buf_clear(&a->text);
}

/* Its own words: the error record is a thread's. */
static tm_status set_reason(data_slot *s, tm_status rc, const char *why) {
    tm_free(s->why);
    s->rc = rc;
    s->why = tm_strdup(why);
    return s->why ? TM_OK : tm_nomem(strlen(why) + 1);
}

static tm_status add_record(data_ahead *a, const tm_record *r) {
    data_slot *s = &a->slot[a->n];
    s->number = r->number;
    s->at = a->text.len;
    s->len = r->wrong ? 0 : r->len;
    s->rc = TM_OK;
    if (r->wrong) TM_TRY(set_reason(s, TM_EINPUT, r->wrong));
    TM_TRY(tm_buf_append(&a->text, r->text, s->len));
    a->n++;
    return TM_OK;
}

tm_status data_ahead_read(data_ahead *a, tm_reader *reader, const tm_data_columns *columns) {
    tm_record record = {.text = ""};
    give_back(a);
    while (a->n < DATA_AHEAD && a->text.len < AHEAD_BYTES) {
        TM_TRY(tm_reader_next(reader, &record));
        if (!record.text) break;
        a->slot[a->n].encoder.columns = columns;
        TM_TRY(add_record(a, &record));
    }
    return TM_OK;
}

static void encode(data_ahead *a, data_slot *s) {
    if (s->rc != TM_OK) return;
    tm_status rc = data_encode(&s->encoder, a->text.data + s->at, s->len);
    if (rc == TM_OK) return;
    if (set_reason(s, rc, tm_error_get()->text) != TM_OK) s->rc = TM_ENOMEM;
    tm_error_clear();
}

void data_ahead_encode(data_ahead *a) {
#pragma omp parallel for schedule(dynamic, 1) if (a->n > 1)
    for (uint32_t i = 0; i < a->n; i++) encode(a, &a->slot[i]);
}

tm_status data_slot_result(const data_slot *s) {
    if (s->rc == TM_OK) return TM_OK;
    return tm_fail(s->rc, "%s", s->why ? s->why : "out of memory");
}
