/* Any bytes as a JSONL data file, read whole and in small pieces, lenient and strict. What must hold: within the
 * limits; counts add up; strict refuses exactly what lenient counts as bad, and names the same first line; every batch
 * of two epochs can be drawn; a sample comes once an epoch. */
#include "fuzz_data.h"

#include <stdio.h>

enum { SEQ = 64, MOST_SAMPLES = 256 };

static tm_status open_data(tm_dataset **ds, mem_file *f, unsigned how, bool strict) {
    const tm_data_source source = mem_file_source(f, "f");
    return tm_dataset_open_jsonl(ds, &source,
                                 &(tm_dataset_opts){.format = (tm_data_format)(how % 6),
                                                    .overlong = (tm_overlong)(how / 6 % 4),
                                                    .concatenate = how % 7 == 0,
                                                    .packing = how % 5 == 0,
                                                    .group_by_length = how % 5 == 1,
                                                    .seq_len = how & 64 ? 8 : SEQ,
                                                    .vocab_size = 8,
                                                    .tokenizer = tokenizer,
                                                    .chat = chat,
                                                    .eos_id = 6,
                                                    .strict = strict,
                                                    .shuffle = how & 128,
                                                    .seed = how,
                                                    .max_line_bytes = 2048});
}

static void draw(tm_dataset *ds, uint64_t step, uint64_t *tokens) {
    int32_t ids[256], labels[256];
    uint8_t mask[256];
    uint32_t begin[256];
    tm_batch_shape s;
    const tm_batch_arrays to = {.capacity = 256, .ids = ids, .labels = labels, .key_mask = mask, .begin = begin};
    for (uint32_t k = 0; k < 2; k++) {
        CHECK(tm_dataset_batch(ds, step, k, 0, &to, &s) == TM_OK);
        for (uint32_t i = 0; i < s.tokens; i++) CHECK(ids[i] >= 0 && ids[i] < 8 && labels[i] < 8 && mask[i] <= 1);
        for (uint32_t i = 0; i < s.rows * s.seq; i++) /* documents lie side by side, and each begins with itself */
            CHECK(begin[i] == i % s.seq || (i % s.seq && begin[i] == begin[i - 1]));
        *tokens += s.mask_tokens;
    }
}

static void use(tm_dataset *ds, unsigned how) {
    const tm_dataset_counts *n = tm_dataset_get_counts(ds);
    uint8_t seen[MOST_SAMPLES] = {0};
    uint64_t tokens[2] = {0};
    bool divided = how % 7 == 0 || how / 6 % 4 == TM_OVERLONG_SPLIT;
    CHECK(n->samples > 0 && (divided || n->samples + n->bad + n->dropped + n->no_labels == n->lines));
    CHECK(n->longest <= SEQ && n->label_tokens <= n->tokens);
    CHECK(tm_dataset_set_batches(ds, 2, 2, 1) == TM_OK);
    uint64_t steps = tm_dataset_steps_per_epoch(ds), all = tm_dataset_steps(ds, 2);
    CHECK(how % 5 == 0 ? steps <= (n->samples + 3) / 4 : steps == (n->samples + 3) / 4 && all == 2 * steps);
    for (uint64_t i = 0; i < n->samples && n->samples <= MOST_SAMPLES; i++) {
        uint64_t at = tm_dataset_order(ds, 1, i);
        CHECK(at < n->samples && !seen[at]++);
    }
    for (uint64_t s = 0; s < all; s++) draw(ds, s, &tokens[s >= steps]);
    CHECK(tokens[0] == n->tokens && tokens[1] == n->tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tm_dataset *ds = NULL;
    open_once();
    fuzz_begin(size);
    if (size == 0) return 0;
    mem_file f = {data, size - 1}; /* the last byte chooses, so that a seed stays a text */
    if (is_packed(&f)) return 0;
    uint64_t bad = 0, first = 0;
    bool usable = open_data(&ds, &f, data[size - 1], false) == TM_OK;
    if (usable) {
        bad = tm_dataset_get_counts(ds)->bad;
        first = tm_dataset_get_counts(ds)->first_bad_line;
        use(ds, data[size - 1]);
        tm_dataset_close(ds);
        ds = NULL;
        tm_status strict = open_data(&ds, &f, data[size - 1], true);
        char at[32];
        snprintf(at, sizeof at, "f:%llu:", (unsigned long long)first);
        CHECK((strict == TM_OK) == (bad == 0));
        CHECK(bad == 0 || strncmp(tm_error_get()->text, at, strlen(at)) == 0);
    } else {
        CHECK(tm_error_get()->text[0] != 0);
    }
    tm_error_clear();
    tm_dataset_close(ds);
    fuzz_end();
    return 0;
}
