/* The examples of tokenizer.h, chat.h, template.h, reader.h, dataset.h, score.h and task.h. */
#include "data/dataset.h"
#include "data/reader.h"
#include "task/task.h"
#include "text/chat/chat.h"
#include "text/chat/template.h"
#include "text/tokenizer/tokenizer.h"

#include <string.h>

tm_status tokenizer_example(tm_mem_source source, const char *text) {
    tm_status rc;
    //@ src/text/tokenizer/tokenizer.h tm_tokenizer *t;
    return rc;
}

tm_status chat_example(tm_buf config, const tm_tokenizer *tokenizer, const char *jinja, size_t jinja_len,
                       const tm_json *root, tm_buf text, tm_ids ids, tm_buf loss_mask) {
    tm_status rc;
    //@ src/text/chat/chat.h tm_chat *chat;
    return rc;
}

tm_status template_example(const tm_json *row, tm_buf text) {
    tm_template *t;
    tm_status rc;
    //@ src/text/chat/template.h TM_TRY(tm_template_open
    return rc;
}

tm_status score_example(tm_pattern *pattern, const char *answer, size_t n, const char *target, tm_compare compare) {
    tm_buf taken = {0};
    bool same;
    //@ src/task/score.h tm_extract last
    return TM_OK;
}

static void ask(const tm_task *t, const tm_task_sample *s, tm_task_answer *a) {
    (void)t, (void)s, (void)a;
}

tm_status task_example(tm_status (*slurp)(void *ctx, const char *path, tm_buf *out), double *values, uint32_t m) {
    tm_task *t;
    tm_task_answer answer;
    double mean;
    size_t i;
    //@ src/task/task.h TM_TRY(tm_task_open
    return mean > 0 ? TM_OK : TM_EINPUT;
}

static tm_status use(const char *text, size_t len) {
    return len && text ? TM_OK : TM_EINPUT;
}

tm_status reader_example(tm_data_source source) {
    tm_status rc;
    //@ src/data/reader.h tm_reader *r;
    return rc;
}

tm_status dataset_example(tm_tokenizer *tok, tm_chat *chat, tm_data_source source, uint64_t epochs, int32_t *ids,
                          int32_t *labels, uint8_t *mask) {
    uint64_t steps, s;
    uint32_t k;
    tm_batch_limits limits;
    tm_batch_shape shape;
    //@ src/data/dataset.h tm_dataset *ds;
    return TM_OK;
}
