/* tidemill-bench json: how fast a data file becomes records, and these their trees, on one thread and from memory. */
#include "bench/bench.h"
#include "data/reader.h"
#include "io/file/file.h"

#include <stdio.h>
#include <string.h>

enum { ROUNDS = 3 };

typedef struct bench {
    const char *name;
    tm_buf bytes;
    uint64_t records;
    double seconds[2]; /* of the fastest round: records cut; and their trees made */
} bench;

static tm_status read_at(void *ctx, uint64_t offset, void *buf, size_t len) {
    const bench *b = ctx;
    memcpy(buf, b->bytes.data + offset, len);
    return TM_OK;
}

static tm_status make_tree(const tm_record *record) {
    tm_json_doc *doc;
    if (record->wrong) return tm_fail(TM_EINPUT, "record %llu: %s", (unsigned long long)record->number, record->wrong);
    TM_TRY(tm_json_parse(&doc, record->text, record->len, "json", 0, 0));
    tm_json_free(doc);
    return TM_OK;
}

static tm_status read_all(bench *b, bool trees) {
    const tm_data_source source = {b, read_at, b->bytes.len, b->name};
    tm_reader *reader;
    tm_record record;
    TM_TRY(tm_reader_open(&reader, &source, &(tm_reader_opts){.form = TM_READ_AUTO}));
    tm_status rc = tm_reader_next(reader, &record);
    for (b->records = 0; rc == TM_OK && record.text; b->records++) {
        if (trees) rc = make_tree(&record);
        if (rc == TM_OK) rc = tm_reader_next(reader, &record);
    }
    tm_reader_close(reader);
    return rc;
}

static tm_status measure(bench *b) {
    TM_TRY(tm_file_slurp(b->name, TM_GIB, &b->bytes));
    for (int i = 0; i < 2 * ROUNDS; i++) {
        uint64_t begin = tm_now_ns();
        TM_TRY(read_all(b, i % 2));
        double seconds = (double)(tm_now_ns() - begin) * 1e-9;
        if (i < 2 || seconds < b->seconds[i % 2]) b->seconds[i % 2] = seconds;
    }
    return TM_OK;
}

static tm_status print(const bench *b, bool json) {
    double bytes = (double)b->bytes.len;
    if (!json) {
        printf("%llu records of %.1f bytes: cut %.1f MB/s, cut and made trees of %.1f MB/s\n",
               (unsigned long long)b->records, bytes / (double)b->records, bytes * 1e-6 / b->seconds[0],
               bytes * 1e-6 / b->seconds[1]);
        return TM_OK;
    }
    tm_json_writer w;
    tm_cli_json(&w, 0);
    tm_jw_field_uint(&w, "records", b->records);
    tm_jw_field_uint(&w, "bytes", b->bytes.len);
    tm_jw_field_double(&w, "cut_seconds", b->seconds[0]);
    tm_jw_field_double(&w, "tree_seconds", b->seconds[1]);
    return tm_cli_print_json(&w);
}

int bench_json(int argc, char **argv) {
    const char *path[1];
    bool json = false;
    const tm_opt opts[] = {TM_FLAG("json", &json, "print one JSON object")};
    const tm_cli cli = {
        .usage = "json FILE [--json]",
        .about = "Measures how fast a data file of up to 1 GiB is cut into records, and these are parsed, on "
                 "one thread and from memory.",
        .example = "tidemill-bench json train.jsonl",
        TM_CLI_OPTIONS(opts),
        TM_CLI_WORDS(path, 1, 1)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    bench b = {.name = path[0]};
    tm_status status = measure(&b);
    if (status == TM_OK) status = print(&b, json);
    tm_buf_free(&b.bytes);
    return status == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
