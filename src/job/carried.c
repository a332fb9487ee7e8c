/* What a source holds beside the model. */
#include "job/job.h"

#include <string.h>

/* "lm_head.weight" of a tied model: the embedding once more. */
static bool is_head(const tm_model_config *c, const char *name) {
    size_t head = strlen(c->head_names);
    return strncmp(name, c->head_names, head) == 0 && strcmp(name + head, "lm_head.weight") == 0;
}

/* "layers.3.rotary_emb.inv_freq" of a text model is a buffer of it, whatever parts there are beside. */
static bool is_of_text(const tm_model_config *c, const char *name) {
    size_t body = strlen(c->body_names);
    return !c->composite || !c->named ||
           (strncmp(name, c->body_names, body) == 0 && !strncmp(name + body, "layers.", 7));
}

static void sort_out(tm_job *job, const bool *taken) {
    const tm_model_config *c = tm_model_get_config(job->model);
    job_carried *k = &job->carried;
    for (uint32_t i = 0; i < tm_source_tensors(job->source); i++) {
        const char *name = tm_source_tensor_get(job->source, i)->name;
        if (taken[i] || is_head(c, name)) continue;
        if (!is_of_text(c, name))
            k->foreign[k->n_foreign++] = i;
        else if (k->dropped++ == 0)
            k->first_dropped = i;
    }
}

tm_status job_list_carried(tm_job *job) {
    uint32_t n = job->source ? tm_source_tensors(job->source) : 0;
    bool *taken = tm_calloc(n + 1, sizeof *taken);
    job->carried.foreign = tm_calloc(n + 1, sizeof *job->carried.foreign);
    tm_status rc = taken && job->carried.foreign ? TM_OK : tm_nomem(n * sizeof *job->carried.foreign);
    for (uint32_t t = 0; n > 0 && rc == TM_OK && t < tm_model_tensors(job->model); t++)
        if (job->source_tensor[t] != UINT32_MAX) taken[job->source_tensor[t]] = true;
    if (rc == TM_OK && n > 0) sort_out(job, taken);
    tm_free(taken);
    return rc;
}
