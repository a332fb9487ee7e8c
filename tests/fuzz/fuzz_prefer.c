/* Any bytes as a JSONL file of preferences, pairs and labelled rows. What must hold: within the limits; counts add up; strict
 * refuses exactly what lenient counts as bad; each sample comes once an epoch, its rows side by side with the prompt in
 * common; columns agree with the shapes that the index foretells; of mismatched rows likewise. */
#include "fuzz_data.h"

#include <stdio.h>

enum { SEQ = 48, ROOM = 1024, ROWS = 8, MOST_SAMPLES = 256 };

typedef struct batch {
    int32_t ids[ROOM], labels[ROOM];
    uint8_t mask[ROOM], completion[ROOM], desirable[ROWS];
    uint64_t sample[ROWS];
    tm_batch_shape shape;
} batch;

static tm_status open_data(tm_dataset **ds, mem_file *f, unsigned how, bool strict) {
    bool pairs = how & 1;
    const tm_data_source source = mem_file_source(f, "f");
    return tm_dataset_open_jsonl(ds, &source,
                                 &(tm_dataset_opts){.rows = pairs ? TM_ROWS_PAIRS : TM_ROWS_LABELLED,
                                                    .labels_of_prompt = pairs && how & 2,
                                                    .overlong = (tm_overlong)(how / 4 % 3),
                                                    .seq_len = how & 64 ? 4 : SEQ,
                                                    .vocab_size = 8,
                                                    .tokenizer = tokenizer,
                                                    .chat = chat,
                                                    .eos_id = how & 32 ? 6 : -1,
                                                    .strict = strict,
                                                    .shuffle = how & 128,
                                                    .seed = how,
                                                    .max_line_bytes = 2048});
}

static uint64_t check_row(const batch *b, uint32_t r, uint64_t *tokens, uint64_t *labels) {
    uint32_t seq = b->shape.seq;
    uint64_t of_completion = 0;
    for (uint32_t t = 0; t < seq; t++) {
        size_t i = (size_t)r * seq + t;
        bool next = t + 1 < seq && b->mask[i + 1];
        CHECK(b->ids[i] >= 0 && b->ids[i] < 8 && b->mask[i] <= 1 && b->completion[i] <= 1);
        CHECK(b->mask[i] || (!b->ids[i] && b->labels[i] == TM_LABEL_IGNORE));
        CHECK(b->labels[i] == TM_LABEL_IGNORE || (next && b->labels[i] == b->ids[i + 1]));
        CHECK(!b->completion[i] || b->labels[i] != TM_LABEL_IGNORE);
        *tokens += b->mask[i];
        *labels += b->labels[i] != TM_LABEL_IGNORE;
        of_completion += b->completion[i];
    }
    return of_completion;
}

/* Both rows are the same until the completion of either begins. */
static void check_prompt(const batch *b, uint32_t r) {
    const int32_t *chosen = b->ids + (size_t)r * b->shape.seq, *rejected = chosen + b->shape.seq;
    const uint8_t *border = b->completion + (size_t)r * b->shape.seq;
    for (uint32_t t = 0; t < b->shape.seq; t++) {
        CHECK(border[t] == border[b->shape.seq + t] || t > 0);
        if (border[t]) return;
        CHECK(chosen[t] == rejected[t]);
    }
}

static void check_batch(const batch *b, bool pairs, bool mismatched, const tm_batch_limits *limits) {
    uint64_t tokens = 0, labels = 0;
    CHECK(b->shape.rows <= limits->rows && b->shape.seq <= limits->seq && b->shape.tokens <= limits->tokens);
    for (uint32_t r = 0; r < b->shape.rows; r++) {
        uint64_t completion = check_row(b, r, &tokens, &labels);
        CHECK(completion > 0 || mismatched); /* a token after no prompt is not predicted */
        CHECK(!pairs || !b->desirable[r]);
        if (pairs && r % 2 == 0) CHECK(b->sample[r] == b->sample[r + 1]);
        if (pairs && r % 2 == 0) check_prompt(b, r);
    }
    CHECK(tokens == b->shape.mask_tokens && labels == b->shape.label_tokens);
}

typedef tm_status draw_fn(tm_dataset *ds, uint64_t step, uint32_t k, uint32_t rank, const tm_batch_arrays *to,
                          tm_batch_shape *shape);

static void draw(tm_dataset *ds, draw_fn *from, uint64_t step, uint32_t k, batch *b) {
    const tm_batch_arrays to = {.capacity = ROOM,
                                .ids = b->ids,
                                .labels = b->labels,
                                .key_mask = b->mask,
                                .completion = b->completion,
                                .desirable = b->desirable,
                                .sample = b->sample};
    CHECK(from(ds, step, k, 0, &to, &b->shape) == TM_OK);
}

static void use_step(tm_dataset *ds, uint64_t step, bool pairs, uint8_t *seen) {
    static batch b, other;
    tm_batch_limits limits;
    for (uint32_t k = 0; k < 2; k++) {
        tm_dataset_limits(ds, step, 1, &limits);
        draw(ds, tm_dataset_batch, step, k, &b);
        check_batch(&b, pairs, false, &limits);
        for (uint32_t r = 0; r < b.shape.rows; r += pairs ? 2 : 1)
            if (b.sample[r] < MOST_SAMPLES) CHECK(!seen[b.sample[r]]++);
        if (pairs) continue;
        tm_dataset_limits_mismatched(ds, step, 1, &limits);
        draw(ds, tm_dataset_batch_mismatched, step, k, &other);
        check_batch(&other, pairs, true, &limits);
        CHECK(other.shape.rows == b.shape.rows);
        CHECK(memcmp(other.sample, b.sample, b.shape.rows * sizeof *b.sample) == 0);
        CHECK(memcmp(other.desirable, b.desirable, b.shape.rows) == 0);
    }
}

static void use(tm_dataset *ds, bool pairs) {
    const tm_dataset_counts *n = tm_dataset_get_counts(ds);
    uint8_t seen[MOST_SAMPLES] = {0};
    uint64_t of = n->samples + n->dropped + n->no_labels + n->bad;
    CHECK(n->samples > 0 && of >= n->lines && (pairs ? of == n->lines : of <= 2 * n->lines));
    CHECK(n->longest <= SEQ && n->label_tokens <= n->tokens && n->desirable <= n->samples);
    CHECK(tm_dataset_set_batches(ds, 2, 2, 1) == TM_OK);
    for (uint64_t s = 0, steps = tm_dataset_steps_per_epoch(ds); s < steps; s++) use_step(ds, s, pairs, seen);
    for (uint64_t i = 0; i < n->samples && i < MOST_SAMPLES; i++) CHECK(seen[i] == 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tm_dataset *ds = NULL;
    open_once();
    fuzz_begin(size);
    if (size == 0) return 0;
    mem_file f = {data, size - 1}; /* the last byte chooses, so that a seed stays a text */
    if (is_packed(&f)) return 0;
    unsigned how = data[size - 1];
    if (open_data(&ds, &f, how, false) == TM_OK) {
        uint64_t bad = tm_dataset_get_counts(ds)->bad;
        use(ds, how & 1);
        tm_dataset_close(ds);
        ds = NULL;
        CHECK((open_data(&ds, &f, how, true) == TM_OK) == (bad == 0));
    }
    CHECK(ds || tm_error_get()->text[0] != 0);
    tm_error_clear();
    tm_dataset_close(ds);
    fuzz_end();
    return 0;
}
