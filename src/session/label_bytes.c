/* How much text labels stand for. */
#include "session/session.h"

typedef struct counting {
    tm_dataset *ds;
    uint16_t *bytes_of; /* [n] a token; special ones stand for none */
    uint32_t n;
    tm_batch_arrays arrays;
    uint64_t bytes;
} counting;

static tm_status learn_tokens(counting *c, const tm_tokenizer *t) {
    tm_buf text = {0};
    tm_status rc = TM_OK;
    c->n = tm_tokenizer_vocab_size(t);
    c->bytes_of = tm_calloc(c->n + 1, sizeof *c->bytes_of);
    if (!c->bytes_of) return tm_nomem(c->n * sizeof *c->bytes_of);
    for (uint32_t id = 0; id < c->n && rc == TM_OK; id++) {
        text.len = 0;
        if (!tm_tokenizer_is_special(t, (int32_t)id)) rc = tm_tokenizer_token_bytes(t, (int32_t)id, &text);
        c->bytes_of[id] = (uint16_t)tm_min_u64(text.len, UINT16_MAX);
    }
    tm_buf_free(&text);
    return rc;
}

static tm_status make_room(counting *c) {
    tm_batch_limits most;
    tm_dataset_limits(c->ds, 0, tm_dataset_steps_per_epoch(c->ds), &most);
    c->arrays = (tm_batch_arrays){.capacity = most.tokens,
                                  .ids = tm_malloc(most.tokens * sizeof *c->arrays.ids),
                                  .labels = tm_malloc(most.tokens * sizeof *c->arrays.labels)};
    return c->arrays.ids && c->arrays.labels ? TM_OK : tm_nomem(most.tokens * sizeof *c->arrays.ids);
}

static tm_status count_batch(counting *c, uint64_t step, uint32_t mb, uint32_t rank) {
    tm_batch_shape shape;
    TM_TRY(tm_dataset_batch(c->ds, step, mb, rank, &c->arrays, &shape));
    for (uint32_t t = 0; t < shape.tokens; t++) {
        int32_t label = c->arrays.labels[t];
        if (label >= 0 && (uint32_t)label < c->n) c->bytes += c->bytes_of[label];
    }
    return TM_OK;
}

tm_status session_label_bytes(const session *s, uint64_t *bytes) {
    counting c = {.ds = data_set(s->eval)};
    uint32_t ranks = s->ranks.ranks ? s->ranks.ranks : 1;
    tm_status rc;
    *bytes = 0;
    if (!s->text.tokenizer || tm_objective_of(s->cfg->objective.type)->by_sample) return TM_OK;
    TM_GO(learn_tokens(&c, s->text.tokenizer));
    TM_GO(make_room(&c));
    for (uint64_t step = 0; step < tm_dataset_steps_per_epoch(c.ds); step++)
        for (uint32_t mb = 0; mb < s->cfg->accumulation_steps; mb++)
            for (uint32_t rank = 0; rank < ranks; rank++) TM_GO(count_batch(&c, step, mb, rank));
    *bytes = c.bytes;
done:
    TM_FREE_ALL(c.bytes_of, c.arrays.ids, c.arrays.labels);
    return rc;
}
