/* A base and an adapter as one tm_source: the base's, with some tensors that are read through the adapter.
 *
 * A tensor that a module adapts is read as W[i][j] + scale * sum_k left[i][k] * right[k][j]:
 *
 *                               left [rows, k]          right [k, columns]     DoRA's factor
 *   W [out, in]                 B                       A                      of each row
 *   W [in, out] (turned)        A^T                     B^T                    of each column
 *   PiSSA, twice as many k      ... and minus the first ... and the first
 *
 * `right` (and PiSSA's first, and the factors) of one module at a time are held, `left` is read by rows. */
#include "format/peft_internal.h"
#include "format/source_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 65536 }; /* elements of left, and of rows of W while norms are taken */

typedef struct merge_part {
    const peft_module *module;
    peft_place at;
    int64_t stored; /* W lies in the folder: PEFT stored it beside the adapter; -1: in the base */
} merge_part;

typedef struct merge {
    const tm_source *base;
    const tm_adapter_folder *folder;
    merge_part *part;
    char *head; /* name of a head that the base does not have */
    /* of the module that was read last: */
    pthread_mutex_t lock;
    const merge_part *held;
    float *right, *factor; /* [k][columns], [out] or NULL */
    float *first;          /* PiSSA's, as left needs it: [rows][rank] or NULL */
    float *left, *some;    /* AT_ONCE or a row, whichever is more */
} merge;

/* ---- one module ---- */

static uint64_t rows_of(const merge_part *p) {
    return p->at.turned ? p->at.in : p->at.out;
}
static uint64_t columns_of(const merge_part *p) {
    return p->at.turned ? p->at.out : p->at.in;
}

static tm_status read_base(const merge *m, const merge_part *p, uint64_t first, uint64_t n, float *dst) {
    return p->stored >= 0 ? tm_adapter_folder_read_f32(m->folder, (uint32_t)p->stored, first, n, dst)
                          : tm_source_read_f32(m->base, p->at.tensor, first, n, dst);
}

static void let_go(merge *m) {
    TM_FREE_ALL(m->right, m->factor, m->first, m->left, m->some);
    m->right = m->factor = m->first = m->left = m->some = NULL;
    m->held = NULL;
}

static float *allocate(uint64_t a, uint64_t b) {
    uint64_t n;
    return tm_mul_u64(a, b, &n) && tm_mul_u64(n, sizeof(float), &n) ? tm_malloc(n) : NULL;
}

/* to [columns, rows] from [rows, columns] */
static void transpose(const float *from, uint64_t rows, uint64_t columns, float *to) {
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

/* The part of A or B whose first index runs over ranks: A as it is, or B's transpose. */
static tm_status read_right(const merge *m, const merge_part *p, float *right) {
    const tm_adapter_tensor *b = &m->folder->tensor[p->module->b];
    uint32_t rank = p->module->spec.rank;
    if (!p->at.turned) return tm_adapter_folder_read_f32(m->folder, (uint32_t)p->module->a, 0, rank * p->at.in, right);
    float *whole = allocate(rank, p->at.out);
    if (!whole) return tm_nomem(b->elements * sizeof(float));
    tm_status rc = tm_adapter_folder_read_f32(m->folder, (uint32_t)p->module->b, 0, b->elements, whole);
    if (rc == TM_OK) transpose(whole, p->at.out, rank, right);
    tm_free(whole);
    return rc;
}

/* Right's second half and first's [rows][rank] from PiSSA's A [rank, in] and B [out, rank]. */
static tm_status hold_first(merge *m, const merge_part *p) {
    uint32_t rank = p->module->spec.rank;
    float *a = allocate(rank, p->at.in), *b = allocate(rank, p->at.out), *second = m->right + rank * columns_of(p);
    m->first = allocate(rank, rows_of(p));
    tm_status rc = a && b && m->first ? TM_OK : tm_nomem(rank * (p->at.in + p->at.out) * sizeof(float));
    if (rc == TM_OK) rc = peft_first(m->folder, p->module, m->base, &p->at, a, b);
    if (rc == TM_OK && !p->at.turned) {
        memcpy(second, a, rank * p->at.in * sizeof *a);
        memcpy(m->first, b, rank * p->at.out * sizeof *b);
    } else if (rc == TM_OK) {
        transpose(a, rank, p->at.in, m->first);
        transpose(b, p->at.out, rank, second);
    }
    TM_FREE_ALL(a, b);
    return rc;
}

/* left [n][k] of rows from `row` on. */
static tm_status read_left(const merge *m, const merge_part *p, uint64_t row, uint64_t n, float *left) {
    uint32_t rank = p->module->spec.rank, k = m->first ? 2 * rank : rank;
    float *tight = left + n * (k - rank); /* read at the end, spread from there */
    if (!p->at.turned)
        TM_TRY(tm_adapter_folder_read_f32(m->folder, (uint32_t)p->module->b, row * rank, n * rank, tight));
    for (uint64_t i = 0; i < n && !p->at.turned; i++) memmove(left + i * k, tight + i * rank, rank * sizeof *left);
    for (uint32_t r = 0; r < rank && p->at.turned; r++) {
        TM_TRY(tm_adapter_folder_read_f32(m->folder, (uint32_t)p->module->a, r * p->at.in + row, n, m->some));
        for (uint64_t i = 0; i < n; i++) left[i * k + r] = m->some[i];
    }
    for (uint64_t i = 0; i < n && m->first; i++)
        for (uint32_t r = 0; r < rank; r++) left[i * k + rank + r] = -m->first[(row + i) * rank + r];
    return TM_OK;
}

/* w += scale * left right, of columns [column, column + n) of one row. */
static void add_row(const merge *m, const merge_part *p, const float *left, uint64_t column, uint64_t n, float *w) {
    uint32_t rank = p->module->spec.rank, k = m->first ? 2 * rank : rank;
    uint64_t width = columns_of(p);
    float scale = (float)p->module->spec.scale, sum[256];
    for (uint64_t at = 0, take; at < n; at += take) {
        take = tm_min_u64(n - at, TM_COUNT(sum));
        memset(sum, 0, take * sizeof *sum);
        for (uint32_t r = 0; r < k; r++) {
            const float *right = m->right + r * width + column + at;
            for (uint64_t j = 0; j < take; j++) sum[j] += left[r] * right[j];
        }
        for (uint64_t j = 0; j < take; j++) w[at + j] += scale * sum[j];
    }
}

/* ---- DoRA: magnitudes over norms ---- */

static void add_squares(const merge_part *p, uint64_t row, const float *w, double *square) {
    uint64_t columns = columns_of(p);
    for (uint64_t j = 0; j < columns; j++) square[p->at.turned ? j : row] += (double)w[j] * (double)w[j];
}

static uint64_t rows_at_once(const merge_part *p) {
    uint64_t wide = tm_max_u64(columns_of(p), 2 * (uint64_t)p->module->spec.rank);
    return tm_max_u64(AT_ONCE / wide, 1);
}

static tm_status take_squares(merge *m, const merge_part *p, double *square) {
    uint32_t k = p->module->spec.rank * (m->first ? 2 : 1);
    uint64_t columns = columns_of(p), rows = rows_of(p);
    float *w = allocate(rows_at_once(p), columns);
    tm_status rc = w ? TM_OK : tm_nomem(columns * sizeof *w);
    for (uint64_t row = 0, n; row < rows && rc == TM_OK; row += n) {
        n = tm_min_u64(rows_at_once(p), rows - row);
        rc = read_base(m, p, row * columns, n * columns, w);
        if (rc == TM_OK) rc = read_left(m, p, row, n, m->left);
        for (uint64_t i = 0; i < n && rc == TM_OK; i++) {
            add_row(m, p, m->left + i * k, 0, columns, w + i * columns);
            add_squares(p, row + i, w + i * columns, square);
        }
    }
    tm_free(w);
    return rc;
}

static tm_status hold_factors(merge *m, const merge_part *p) {
    uint64_t out = p->at.out;
    double *square = tm_calloc(out, sizeof *square);
    m->factor = allocate(out, 1);
    tm_status rc = square && m->factor ? TM_OK : tm_nomem(out * sizeof *square);
    if (rc == TM_OK) rc = take_squares(m, p, square);
    if (rc == TM_OK) rc = tm_adapter_folder_read_f32(m->folder, (uint32_t)p->module->magnitude, 0, out, m->factor);
    for (uint64_t i = 0; i < out && rc == TM_OK; i++) m->factor[i] = (float)((double)m->factor[i] / sqrt(square[i]));
    tm_free(square);
    return rc;
}

/* A row of zeros has no direction: it stays. */
static void scale_row(const merge *m, const merge_part *p, uint64_t row, uint64_t column, uint64_t n, float *w) {
    for (uint64_t j = 0; j < n; j++)
        if (w[j] != 0) w[j] *= m->factor[p->at.turned ? column + j : row];
}

/* ---- reading ---- */

static tm_status hold(merge *m, const merge_part *p) {
    if (m->held == p) return TM_OK;
    let_go(m);
    uint32_t k = p->module->spec.rank * (peft_is_pissa(m->folder, p->module) ? 2 : 1);
    uint64_t most = tm_max_u64(AT_ONCE, tm_max_u64(columns_of(p), k));
    m->right = allocate(k, columns_of(p));
    m->left = allocate(most, 1);
    m->some = allocate(most, 1);
    if (!m->right || !m->left || !m->some) return tm_nomem(k * columns_of(p) * sizeof(float));
    TM_TRY(read_right(m, p, m->right));
    if (peft_is_pissa(m->folder, p->module)) TM_TRY(hold_first(m, p));
    if (p->module->spec.dora) TM_TRY(hold_factors(m, p));
    m->held = p;
    return TM_OK;
}

/* The rows that [first, first + n) touches, some at a time. */
static tm_status add_all(const merge *m, const merge_part *p, uint64_t first, uint64_t n, float *dst) {
    uint32_t k = p->module->spec.rank * (m->first ? 2 : 1);
    uint64_t width = columns_of(p), end = first + n, at_once = tm_max_u64(AT_ONCE / k, 1);
    for (uint64_t row = first / width, rows; row * width < end; row += rows) {
        rows = tm_min_u64(at_once, (end + width - 1) / width - row);
        TM_TRY(read_left(m, p, row, rows, m->left));
        for (uint64_t i = 0; i < rows; i++) {
            uint64_t from = tm_max_u64(first, (row + i) * width), to = tm_min_u64(end, (row + i + 1) * width);
            add_row(m, p, m->left + i * k, from % width, to - from, dst + (from - first));
            if (m->factor) scale_row(m, p, row + i, from % width, to - from, dst + (from - first));
        }
    }
    return TM_OK;
}

tm_status tm_source_read_merged(const tm_source *src, const merge_part *part, uint64_t first, uint64_t n, float *dst) {
    merge *m = src->merge;
    TM_TRY(read_base(m, part, first, n, dst)); /* checks the range, too */
    if (n == 0) return TM_OK;
    pthread_mutex_lock(&m->lock);
    tm_status rc = hold(m, part);
    if (rc == TM_OK)
        rc = add_all(m, part, first, n, dst);
    else
        let_go(m);
    pthread_mutex_unlock(&m->lock);
    return rc;
}

/* ---- making it ---- */

void tm_source_close_merged(tm_source *src) {
    merge *m = src->merge;
    let_go(m);
    pthread_mutex_destroy(&m->lock);
    tm_buf_free(&src->config);
    TM_FREE_ALL(m->part, m->head, m, src->entry, src->path);
    tm_free(src);
}

static source_entry *entry_of(tm_source *src, const char *name) {
    int64_t i = tm_source_find(src, name);
    TM_ASSERT(i >= 0);
    return &src->entry[i];
}

/* ---- a tied output that is so no longer ---- */

/* Which of the two ends does something of the adapter change? */
static void changed_ends(const merge *m, const peft_ends *ends, bool *embedding, bool *head) {
    const tm_adapter_folder *f = m->folder;
    *embedding = *head = false;
    for (uint32_t i = 0; i < f->n; i++) {
        const tm_adapter_tensor *t = &f->tensor[i];
        bool is_head = tm_ends_with(t->module, "lm_head");
        char name[4200];
        snprintf(name, sizeof name, "%s.weight", t->module);
        if (t->role == TM_ADAPTER_WHOLE && (t->frozen || !tm_ends_with(t->name, ".weight"))) continue;
        *head |= is_head;
        *embedding |= !is_head && ends->embedding >= 0 && peft_find_tensor(m->base, name) == ends->embedding;
    }
}

/* Members of an object, in text_config (of a composite model) as well. True: it said whether they are tied. */
static bool put_untied(tm_json_writer *j, const tm_json *object) {
    bool seen = false;
    for (const tm_json *k = object->child; k; k = k->next) {
        bool tie = strcmp(k->key, "tie_word_embeddings") == 0;
        bool text = strcmp(k->key, "text_config") == 0 && k->type == TM_JSON_OBJECT;
        tm_jw_key(j, k->key);
        if (tie)
            tm_jw_bool(j, false);
        else if (text) {
            tm_jw_object(j);
            if (!put_untied(j, k)) tm_jw_field_bool(j, "tie_word_embeddings", false);
            tm_jw_object_end(j);
        } else
            tm_jw_node(j, k);
        seen |= tie;
    }
    return seen;
}

static tm_status untie_config(tm_source *src) {
    tm_json_doc *doc;
    tm_json_writer j;
    tm_buf out = {0};
    TM_TRY(tm_json_parse(&doc, src->config.data, src->config.len, "config.json", 0, 0));
    tm_jw_init(&j, &out, 2);
    tm_jw_object(&j);
    if (!put_untied(&j, tm_json_root(doc))) tm_jw_field_bool(&j, "tie_word_embeddings", false);
    tm_jw_object_end(&j);
    tm_json_free(doc);
    tm_buf_free(&src->config);
    src->config = out;
    return tm_jw_end(&j);
}

/* An entry of that name, in order; what it holds is the caller's. */
static source_entry *insert_entry(tm_source *src, const char *name) {
    uint32_t at = 0;
    while (at < src->n && strcmp(src->entry[at].info.name, name) < 0) at++;
    memmove(src->entry + at + 1, src->entry + at, (src->n - at) * sizeof *src->entry);
    src->n++;
    return &src->entry[at];
}

/* The head becomes a copy of the embedding, and what the adapter changes of either comes later. */
static tm_status untie(tm_source *src, const peft_ends *ends) {
    merge *m = src->merge;
    const source_entry embedding = m->base->entry[ends->embedding];
    const char *name = ends->head >= 0 ? m->base->entry[ends->head].info.name : m->head;
    source_entry *head = ends->head >= 0 ? entry_of(src, name) : insert_entry(src, name);
    *head = embedding;
    head->info.name = name;
    tm_log(
        TM_LOG_INFO,
        "%s: the adapter changes the embedding and the output, which are one in the base, differently: the output gets "
        "a tensor of its own, '%s', and config.json says tie_word_embeddings: false",
        m->folder->path, name);
    return untie_config(src);
}

static tm_status untie_if_needed(tm_source *src) {
    peft_ends ends;
    bool embedding, head;
    merge *m = src->merge;
    TM_TRY(peft_ends_of(m->base, &ends));
    if (!ends.tied || ends.embedding < 0) return TM_OK;
    changed_ends(m, &ends, &embedding, &head);
    if (!embedding && !head) return TM_OK;
    m->head = peft_head_name(m->base->entry[ends.embedding].info.name);
    return m->head ? untie(src, &ends) : tm_nomem(64);
}

/* ---- what the adapter changes ---- */

/* The entry that a tensor of the folder, or a module's weight, is about. Heads are found by their name alone: that of a
 * tied base is there by now, or is its embedding's. */
static source_entry *target(tm_source *src, const char *name) {
    int64_t t = peft_find_tensor(src, name);
    TM_ASSERT(t >= 0); /* tm_adapter_folder_check */
    return &src->entry[t];
}

static void replace(tm_source *src, uint32_t i) {
    const tm_adapter_folder *f = src->merge->folder;
    const tm_st_info *s = tm_st_get(f->file, f->in_file[i]);
    source_entry *e = target(src, f->tensor[i].name);
    const char *name = e->info.name;
    *e = (source_entry){.info = {.name = name,
                                 .fmt = s->fmt,
                                 .ndim = s->ndim,
                                 .elements = s->elements,
                                 .file = tm_st_path(f->file),
                                 .offset = s->offset,
                                 .bytes = s->bytes},
                        .handle = f->file->file};
    memcpy(e->info.shape, s->shape, sizeof s->shape);
}

static tm_status adapt(tm_source *src, uint32_t k) {
    merge *m = src->merge;
    merge_part *p = &m->part[k];
    char name[4200];
    p->module = &m->folder->module[k];
    snprintf(name, sizeof name, "%s.weight", p->module->name);
    p->stored = tm_adapter_folder_find(m->folder, name);
    TM_TRY(peft_place_of(m->folder, p->module, m->base, &p->at));
    target(src, name)->merge = p;
    return TM_OK;
}

static tm_status make_merged(tm_source *src, const tm_source *base, const tm_adapter_folder *f) {
    src->path = tm_strdup(base->path);
    src->entry = tm_malloc((base->n + 2) * sizeof *src->entry);
    src->merge->part = tm_calloc(f->n_modules + 1, sizeof *src->merge->part);
    if (!src->path || !src->entry || !src->merge->part) return tm_nomem(base->n * sizeof *src->entry);
    memcpy(src->entry, base->entry, base->n * sizeof *src->entry);
    TM_TRY(tm_buf_append(&src->config, base->config.data, base->config.len));
    TM_TRY(untie_if_needed(src));
    for (uint32_t i = 0; i < f->n; i++)
        if (f->tensor[i].role == TM_ADAPTER_WHOLE) replace(src, i);
    for (uint32_t k = 0; k < f->n_modules; k++) TM_TRY(adapt(src, k));
    return TM_OK;
}

tm_status tm_source_merge(tm_source **out, const tm_source *base, const tm_adapter_folder *f) {
    *out = NULL;
    TM_TRY(tm_adapter_folder_check(f, base));
    tm_source *src = tm_malloc(sizeof *src);
    merge *m = tm_calloc(1, sizeof *m);
    if (!src || !m) {
        TM_FREE_ALL(src, m);
        return tm_nomem(sizeof *src);
    }
    *src = *base;
    src->path = NULL, src->entry = NULL, src->config = (tm_buf){0}, src->merge = m;
    m->base = base, m->folder = f;
    pthread_mutex_init(&m->lock, NULL);
    tm_status rc = make_merged(src, base, f);
    if (rc == TM_OK)
        *out = src;
    else
        tm_source_close_merged(src);
    return rc;
}
