/* Any bytes as a data file, by the reader. What must hold: within the limits; it ends; numbers rise; what is not wrong is
 * text of the length that is said, no longer than a record may be (as JSON it may take six times that). */
#ifndef TIDEMILL_FUZZ_RECORDS_H
#define TIDEMILL_FUZZ_RECORDS_H

#include "fuzz.h"

#include "tests/support/mem_file.h"

enum { FUZZ_MOST_RECORD = 512 };

static void fuzz_records(const char *name, const uint8_t *data, size_t size, tm_reader_opts opts) {
    mem_file f = {data, size};
    const tm_data_source source = mem_file_source(&f, name);
    tm_reader *r;
    tm_record record = {.text = ""};
    uint64_t before = 0;
    fuzz_begin(size);
    opts.max_record_bytes = FUZZ_MOST_RECORD;
    opts.window_bytes = 4 * TM_MIB;
    tm_status rc = tm_reader_open(&r, &source, &opts);
    while (rc == TM_OK && record.text) {
        rc = tm_reader_next(r, &record);
        if (rc != TM_OK || !record.text) break;
        CHECK(record.number > before && strlen(record.text) <= record.len && record.text[record.len] == 0);
        CHECK(record.wrong || record.len <= 8 * FUZZ_MOST_RECORD + 16);
        CHECK(tm_reader_bytes(r) <= size);
        before = record.number;
    }
    CHECK((rc == TM_OK) == (tm_error_get()->code == TM_OK));
    CHECK(rc == TM_OK || rc == TM_EINPUT);
    tm_error_clear();
    tm_reader_close(r);
    fuzz_end();
}

#endif
