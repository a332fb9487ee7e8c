/* Where AWQ's scales go: columns of matrices are multiplied by them, and what makes their input is divided: a norm's
 * weight and bias, or rows of the matrix before, where nothing but products with elements lies between. */
#include "quantise/awq_internal.h"

#include <string.h>

/* Pairs of matrices without anything else between: values are only averaged by attention; up is only multiplied by the
 * gate. The first is the last `of`-th of its rows. */
static const struct pair {
    const char *before, *after;
    uint64_t of;
} pairs[] = {{".v_proj.weight", ".o_proj.weight", 1},
             {".qkv_proj.weight", ".o_proj.weight", 3},
             {".up_proj.weight", ".down_proj.weight", 1},
             {".gate_up_proj.weight", ".down_proj.weight", 2}};

static const char *name_of(const walk *w, const walk_matrix *x) {
    return tm_model_tensor(w->m, x->tensor)->name;
}

/* The matrix whose output is the input, element by element. */
static bool find_before(const walk *w, const walk_matrix *after, uint32_t *before) {
    for (size_t k = 0; k < TM_COUNT(pairs); k++) {
        if (!tm_ends_with(name_of(w, after), pairs[k].after)) continue;
        for (uint32_t i = 0; i < w->n_matrices; i++) {
            const walk_matrix *x = &w->matrix[i];
            if (!tm_ends_with(name_of(w, x), pairs[k].before) || x->rows != pairs[k].of * after->width) continue;
            *before = i;
            return true;
        }
    }
    return false;
}

awq_fold awq_find_fold(const walk *w, uint32_t input) {
    awq_fold f = {0};
    uint32_t n = 0, one = 0;
    f.norm = tm_stage_input_norm(w->m, w->unit, w->input[input].stage, &f.of);
    for (uint32_t i = 0; i < w->n_matrices; i++)
        if (w->matrix[i].input == input) n++, one = i;
    if (!f.norm && n == 1) f.linear = find_before(w, &w->matrix[one], &f.matrix);
    return f;
}

void awq_scale_rows(const walk *w, const awq_fold *fold, uint32_t matrix, uint64_t row, uint64_t rows, float *x) {
    const walk_matrix *m = &w->matrix[matrix];
    const float *columns = fold[m->input].scale, *by = NULL;
    uint64_t first = 0;
    for (uint32_t i = 0; i < w->n_inputs; i++)
        if (fold[i].scale && fold[i].linear && fold[i].matrix == matrix)
            by = fold[i].scale, first = m->rows - w->input[i].width;
    for (uint64_t r = 0; r < rows; r++) {
        float out = by && row + r >= first ? 1 / by[row + r - first] : 1;
        for (uint64_t k = 0; k < m->width; k++) x[r * m->width + k] *= (columns ? columns[k] : 1) * out;
    }
}

/* ---- vectors ---- */

static const char *vector_name(const walk *w, uint32_t tensor) {
    return tensor == UINT32_MAX ? "" : tm_model_tensor(w->m, tensor)->name;
}

/* "X.bias" of "X.weight" */
static bool is_bias_of(const char *name, const char *weight) {
    size_t stem = strlen(weight) - strlen("weight");
    return strncmp(name, weight, stem) == 0 && strcmp(name + stem, "bias") == 0;
}

bool awq_divide(const walk *w, const awq_fold *fold, const char *name, float *values, uint64_t n) {
    for (uint32_t i = 0; i < w->n_inputs; i++) {
        const awq_fold *f = &fold[i];
        uint64_t width = w->input[i].width;
        bool weight = f->norm && strcmp(vector_name(w, f->of.weight), name) == 0,
             bias = f->norm ? strcmp(vector_name(w, f->of.bias), name) == 0
                            : f->linear && is_bias_of(name, name_of(w, &w->matrix[f->matrix]));
        if (!f->scale || (!weight && !bias)) continue;
        float one = weight && f->of.plus_one ? 1 : 0;
        TM_ASSERT(n >= width);
        for (uint64_t k = 0; k < width; k++) {
            float *v = &values[n - width + k];
            *v = (*v + one) / f->scale[k] - one;
        }
        return true;
    }
    return false;
}

tm_status awq_put_vectors(const quantise_job *q, const awq_fold *fold, uint64_t room, float *values) {
    for (uint32_t t = 0; t < tm_source_tensors(q->c->src); t++) {
        const tm_source_tensor *s = tm_source_tensor_get(q->c->src, t);
        if (s->ndim != 1 || s->elements > room) continue;
        TM_TRY(tm_source_read_f32(q->c->src, t, 0, s->elements, values));
        if (awq_divide(&q->w, fold, s->name, values, s->elements)) TM_TRY(tm_codes_put_plain(q->c->to, t, values));
    }
    return TM_OK;
}
