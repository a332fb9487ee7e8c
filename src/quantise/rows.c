/* The ids that go through the model: records of the data side by side, cut into rows. */
#include "quantise/quantise_internal.h"
#include "session/data_open.h"

#include <malloc.h>
#include <string.h>

enum { ROWS = 128, SEQ_LEN = 2048, BYTES_A_TOKEN = 16 /* of a file that are read: more than tokens have */ };

static data_opts opts_of(const tm_data_items *items, uint32_t vocabulary, uint64_t seq, uint64_t rows) {
    bool ids = data_is_rows(items);
    return (data_opts){.dataset = {.format = TM_DATA_AUTO,
                                   .rows = TM_ROWS_PLAIN,
                                   .overlong = ids ? TM_OVERLONG_TRUNCATE : TM_OVERLONG_SPLIT,
                                   .labels.train_on_inputs = true,
                                   .seq_len = (uint32_t)seq,
                                   .vocab_size = vocabulary,
                                   .concatenate = !ids,
                                   .memory_bytes = 2 * rows * seq * BYTES_A_TOKEN + TM_MIB},
                       .most_bytes = ids ? 0 : rows * seq * BYTES_A_TOKEN};
}

static tm_status copy_rows(id_rows *out, tm_dataset *ds, uint32_t rows, uint32_t seq) {
    uint64_t there = tm_dataset_get_counts(ds)->samples, capacity = tm_round_up(seq, 64);
    uint32_t n = (uint32_t)tm_min_u64(rows, there);
    tm_status rc = TM_OK;
    tm_batch_shape shape;
    int32_t *ids = tm_malloc(capacity * sizeof *ids), *labels = tm_malloc(capacity * sizeof *labels);
    out->ids = tm_malloc((uint64_t)n * seq * sizeof *out->ids);
    out->first = tm_calloc(n + 1, sizeof *out->first);
    if (!ids || !labels || !out->ids || !out->first) TM_GO(tm_nomem((uint64_t)n * seq * sizeof *out->ids));
    TM_GO(tm_dataset_set_batches(ds, 1, 1, 1));
    for (uint32_t i = 0; i < n; i++) {
        TM_GO(tm_dataset_batch(
            ds, i, 0, 0, &(tm_batch_arrays){.capacity = (uint32_t)capacity, .ids = ids, .labels = labels}, &shape));
        memcpy(out->ids + out->first[i], ids, shape.seq * sizeof *ids);
        out->first[i + 1] = out->first[i] + shape.seq;
        out->longest = shape.seq > out->longest ? shape.seq : out->longest;
        out->n++;
    }
done:
    TM_FREE_ALL(ids, labels);
    return rc;
}

tm_status id_rows_read(id_rows *out, const tm_source *src, uint32_t vocabulary, const tm_calibration_args *args) {
    uint32_t rows = args->rows ? args->rows : ROWS, seq = args->seq_len ? args->seq_len : SEQ_LEN;
    tm_data_item item = {.path = args->data, .weight = 1};
    tm_data_items items = {&item, 1};
    data_opts o = opts_of(&items, vocabulary, seq, rows);
    text_tools text;
    data_file *file = NULL;
    tm_status rc;
    *out = (id_rows){0};
    TM_TRY(text_open(&text, src, 0));
    TM_GO(data_open(&file, &items, &text, args->model, &o));
    rc = copy_rows(out, data_set(file), rows, seq);
done:
    data_close(file);
    text_close(&text);
    (void)malloc_trim(0); /* a tokenizer's memory is not needed again */
    if (rc != TM_OK) id_rows_free(out);
    return rc;
}

void id_rows_free(id_rows *r) {
    TM_FREE_ALL(r->ids, r->first);
    *r = (id_rows){0};
}
