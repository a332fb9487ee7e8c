/* TensorBoard's event files. Field numbers are those of tensorboard/compat/proto/event.proto and summary.proto. */
#include "io/file/file.h"
#include "report/report_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 }; /* protocol buffers' */

struct tm_events {
    tm_append *file;
    tm_buf event, summary, value; /* being written */
};

/* ---- CRC-32C (Castagnoli), reflected ------------------------------------------------------------------------------- */

static uint32_t crc32c(const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint32_t crc = 0xffffffffU;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0);
    }
    return ~crc;
}

/* As TFRecord stores it: a sum of bytes that hold a sum of themselves would say little. */
static uint32_t masked(const void *bytes, size_t n) {
    uint32_t crc = crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

/* ---- protocol buffers ---------------------------------------------------------------------------------------------- */

static tm_status put_varint(tm_buf *b, uint64_t v) {
    unsigned char bytes[10];
    size_t n = 0;
    do bytes[n++] = (unsigned char)((v & 127) | (v > 127 ? 128 : 0));
    while (v >>= 7);
    return tm_buf_append(b, bytes, n);
}

static tm_status put_tag(tm_buf *b, unsigned field, unsigned wire) {
    return put_varint(b, field << 3 | wire);
}

static tm_status put_fixed(tm_buf *b, unsigned field, unsigned wire, const void *v, size_t n) {
    TM_TRY(put_tag(b, field, wire));
    return tm_buf_append(b, v, n); /* little-endian, as every machine that this program runs on */
}

static tm_status put_bytes(tm_buf *b, unsigned field, const void *bytes, size_t n) {
    TM_TRY(put_tag(b, field, WIRE_BYTES));
    TM_TRY(put_varint(b, n));
    return tm_buf_append(b, bytes, n);
}

/* ---- records ------------------------------------------------------------------------------------------------------- */

static tm_status begin_event(tm_events *e) {
    struct timeval now;
    gettimeofday(&now, NULL);
    double seconds = (double)now.tv_sec + (double)now.tv_usec * 1e-6;
    tm_buf_clear(&e->event);
    return put_fixed(&e->event, EVENT_WALL_TIME, WIRE_64, &seconds, sizeof seconds);
}

static tm_status end_event(tm_events *e) {
    uint64_t n = e->event.len;
    uint32_t of_length = masked(&n, sizeof n), of_bytes = masked(e->event.data, e->event.len);
    tm_buf_clear(&e->value);
    TM_TRY(tm_buf_append(&e->value, &n, sizeof n));
    TM_TRY(tm_buf_append(&e->value, &of_length, sizeof of_length));
    TM_TRY(tm_buf_append(&e->value, e->event.data, e->event.len));
    TM_TRY(tm_buf_append(&e->value, &of_bytes, sizeof of_bytes));
    return tm_append_bytes(e->file, e->value.data, e->value.len);
}

static tm_status add_scalar(tm_events *e, const char *tag, double v) {
    float simple = (float)v;
    tm_buf_clear(&e->value);
    TM_TRY(put_bytes(&e->value, VALUE_TAG, tag, strlen(tag)));
    TM_TRY(put_fixed(&e->value, VALUE_SIMPLE, WIRE_32, &simple, sizeof simple));
    return put_bytes(&e->summary, SUMMARY_VALUE, e->value.data, e->value.len);
}

tm_status tm_events_open(tm_events **out, const char *dir) {
    static const char version[] = "brain.Event:2";
    char path[4600], host[128] = "host";
    struct timeval now;
    tm_status rc;
    *out = NULL;
    gettimeofday(&now, NULL);
    (void)gethostname(host, sizeof host - 1);
    TM_TRY(tm_make_dirs(dir));
    snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.%s.%d.0", dir, (long long)now.tv_sec, host, getpid());
    tm_events *e = tm_calloc(1, sizeof *e);
    if (!e) return tm_nomem(sizeof *e);
    TM_GO(tm_append_open(&e->file, path, false));
    TM_GO(begin_event(e));
    TM_GO(put_bytes(&e->event, EVENT_VERSION, version, sizeof version - 1));
    TM_GO(end_event(e));
    *out = e;
    return TM_OK;
done:
    tm_events_close(e);
    return rc;
}

static tm_status put_line(tm_events *e, const tm_json *line) {
    char name[TM_SERIES_NAME], tag[TM_SERIES_NAME + 8];
    int64_t step = report_step(line);
    tm_buf_clear(&e->summary);
    for (const tm_json *at = NULL; step > 0 && report_next_number(line, &at, name);) {
        snprintf(tag, sizeof tag, "%s%s", report_is_evaluation(line) ? "" : "train/", name);
        TM_TRY(add_scalar(e, tag, at->number));
    }
    if (e->summary.len == 0) return TM_OK;
    TM_TRY(begin_event(e));
    TM_TRY(put_tag(&e->event, EVENT_STEP, WIRE_VARINT));
    TM_TRY(put_varint(&e->event, (uint64_t)step));
    TM_TRY(put_bytes(&e->event, EVENT_SUMMARY, e->summary.data, e->summary.len));
    return end_event(e);
}

tm_status tm_events_line(tm_events *e, const char *line, size_t n) {
    tm_json_doc *doc;
    TM_TRY(tm_json_parse(&doc, line, n, "log.jsonl", 0, 0));
    tm_status rc = put_line(e, tm_json_root(doc));
    tm_json_free(doc);
    return rc;
}

void tm_events_close(tm_events *e) {
    if (!e) return;
    tm_append_close(e->file);
    tm_buf_free(&e->event);
    tm_buf_free(&e->summary);
    tm_buf_free(&e->value);
    tm_free(e);
}
