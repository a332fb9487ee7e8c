/* The principal part of a matrix: block Lanczos to convergence, or a few power iterations. */
#include "adapter/principal_internal.h"

#include <math.h>
#include <string.h>

enum { LEAST_BLOCK = 8, MOST_BLOCK = 64, BASIS_BLOCKS = 16, MOST_READINGS = 150 };
#define BASIS_BYTES (32 * TM_MIB)
/* The principal part's error is about that of its space: residual / distance of the next singular value's square. */
#define CLOSE_ENOUGH 1e-8
/* Of the largest square: vectors below are rounding errors. */
#define NOTHING 1e-14

typedef struct lanczos {
    principal_matrix m;
    uint64_t length; /* of a vector */
    uint32_t rank, block, room;
    uint32_t k;     /* vectors of the basis */
    uint32_t fresh; /* the last of them, whose products are the next to be made */
    double *basis;  /* [room + block][length] */
    double *h;      /* [room][room]: basis W^T W basis^T */
    double *tail;   /* [block][block]: what is left of the last products, on the next block */
    double *value, *vector, *scratch, *square; /* [room], [room][room], [3 room], [room][room] */
    double *kept;                              /* [rank + block][length], of a restart; of the end [rank][length] */
} lanczos;

static tm_status not_numbers(const tm_principal_opts *o) {
    return tm_fail(TM_EINPUT, "'%s' holds values that are no numbers: it has no singular values", o->name);
}

static void choose_sizes(lanczos *s, uint64_t n, uint32_t rank) {
    uint64_t room = BASIS_BYTES / (n * sizeof(double));
    s->length = n;
    s->rank = rank;
    s->block = (uint32_t)tm_min_u64(tm_max_u64(rank / 4, LEAST_BLOCK), MOST_BLOCK);
    room = tm_max_u64(tm_min_u64(room, rank + BASIS_BLOCKS * s->block), rank + 4 * s->block);
    s->block = (uint32_t)tm_min_u64(s->block, n);
    s->room = (uint32_t)tm_min_u64(room, n);
}

/* Vectors that combine makes: of a restart, or of the end. */
static uint64_t kept_vectors(const lanczos *s) {
    return tm_min_u64(s->rank + s->block, s->room);
}

static tm_status lanczos_open(lanczos *s, const tm_matrix_rows *w, const tm_principal_opts *o) {
    uint64_t n = w->columns;
    choose_sizes(s, n, o->rank);
    TM_TRY(principal_matrix_open(&s->m, w, o->threads, (uint32_t)tm_max_u64(s->block, s->rank)));
    size_t square = (size_t)s->room * s->room;
    s->basis = tm_malloc((s->room + s->block) * n * sizeof(double));
    s->kept = tm_malloc(kept_vectors(s) * n * sizeof(double));
    s->h = tm_calloc(square, sizeof(double));
    s->square = tm_malloc(square * sizeof(double));
    s->vector = tm_malloc(square * sizeof(double));
    s->tail = tm_malloc((size_t)s->block * s->block * sizeof(double));
    s->value = tm_malloc(s->room * sizeof(double));
    s->scratch = tm_malloc(3 * (size_t)s->room * sizeof(double));
    bool all = s->basis && s->kept && s->h && s->square && s->vector && s->tail && s->value && s->scratch;
    return all ? TM_OK : tm_nomem(2 * s->room * n * sizeof(double));
}

static void lanczos_close(lanczos *s) {
    principal_matrix_close(&s->m);
    TM_FREE_ALL(s->basis, s->kept, s->h, s->square, s->vector, s->tail, s->value, s->scratch);
}

/* The products of the newest vectors: their rows of h, and the next block, which lies behind the basis. Its size. */
static tm_status extend(lanczos *s, uint32_t *next) {
    uint64_t n = s->length;
    uint32_t from = s->k - s->fresh, fresh = s->fresh;
    double *z = s->basis + s->k * n;
    TM_TRY(principal_products(&s->m, fresh, s->basis + from * n, NULL, z));
    for (uint32_t i = 0; i < s->k; i++)
        for (uint32_t j = 0; j < fresh; j++) {
            double c = principal_dot(s->basis + i * n, z + j * n, n);
            s->h[(size_t)i * s->room + from + j] = s->h[(size_t)(from + j) * s->room + i] = c;
        }
    double largest = 0;
    for (uint32_t i = 0; i < s->k; i++) largest = fmax(largest, fabs(s->h[(size_t)i * s->room + i]));
    *next = principal_orthonormal(s->basis, s->k, z, fresh, n, NOTHING * largest, s->tail);
    *next = (uint32_t)tm_min_u64(*next, n - s->k);
    return TM_OK;
}

/* Values and vectors of what the basis spans. */
static bool solve(lanczos *s) {
    for (uint32_t i = 0; i < s->k; i++)
        memcpy(s->square + (size_t)i * s->k, s->h + (size_t)i * s->room, s->k * sizeof(double));
    return principal_eigen(s->square, s->k, s->value, s->vector, s->scratch);
}

/* How far vector i is from being one of the matrix: what of its product lies outside the basis. */
static double residual(const lanczos *s, uint32_t i, uint32_t next) {
    const double *last = s->vector + (size_t)i * s->k + s->k - s->fresh;
    double sum = 0;
    for (uint32_t a = 0; a < next; a++) {
        double c = principal_dot(s->tail + (size_t)a * s->fresh, last, s->fresh);
        sum += c * c;
    }
    return sqrt(sum);
}

static bool converged(const lanczos *s, uint32_t next) {
    if (next == 0) return true; /* nothing else is there */
    if (s->k <= s->rank) return false;
    double gap = s->value[s->rank - 1] - s->value[s->rank], most = 0;
    for (uint32_t i = 0; i < s->rank; i++) most = fmax(most, residual(s, i, next));
    return most <= fmax(CLOSE_ENOUGH * gap, NOTHING * s->value[0]);
}

/* The first n vectors of the solution, in full length, into `kept`. */
static void combine(lanczos *s, uint32_t n) {
    uint64_t length = s->length;
    memset(s->kept, 0, n * length * sizeof(double));
#pragma omp parallel for schedule(static) num_threads(s->m.threads) if (s->m.threads > 1)
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < s->k; j++)
            principal_axpy(s->vector[(size_t)i * s->k + j], s->basis + j * length, s->kept + i * length, length);
}

/* The best vectors become the basis, the next block stays the next (Wu and Simon 2000, "Thick-restart Lanczos method").
 */
static void restart(lanczos *s, uint32_t next) {
    uint64_t n = s->length;
    uint32_t keep = (uint32_t)tm_min_u64(s->rank + s->block, s->room - 2 * s->block);
    combine(s, keep);
    memcpy(s->basis, s->kept, keep * n * sizeof(double));
    memmove(s->basis + keep * n, s->basis + s->k * n, next * n * sizeof(double));
    memset(s->h, 0, (size_t)s->room * s->room * sizeof(double));
    for (uint32_t i = 0; i < keep; i++) s->h[(size_t)i * s->room + i] = s->value[i];
    s->k = keep;
}

static tm_status begin(lanczos *s, const tm_principal_opts *o) {
    principal_draw(o->seed, s->basis, s->block * s->length);
    s->k = s->fresh = principal_orthonormal(NULL, 0, s->basis, s->block, s->length, 0, NULL);
    return s->k ? TM_OK : tm_fail(TM_EBUG, "'%s': nothing to begin with", o->name);
}

static tm_status iterate(lanczos *s, const tm_principal_opts *o) {
    TM_TRY(begin(s, o));
    for (uint32_t reading = 1;; reading++) {
        uint32_t next;
        TM_TRY(extend(s, &next));
        bool full = s->k + next > s->room;
        if (next == 0 || full || reading % 4 == 0) {
            if (!solve(s)) return not_numbers(o);
            if (converged(s, next) || reading >= MOST_READINGS) return TM_OK;
        }
        if (full) restart(s, next);
        s->k += next;
        s->fresh = next;
    }
}

/* ---- a and b ---- */

/* Row i of `rows` and of `columns`, each of length 1, belongs to singular value size[i]. */
typedef struct singular {
    uint32_t rank;
    uint64_t n_rows, n_columns;
    const double *rows, *columns, *size;
} singular;

static void put_vectors(const double *v, const double *factor, uint32_t rank, uint64_t n, bool turned, float *out) {
    for (uint32_t i = 0; i < rank; i++)
        for (uint64_t j = 0; j < n; j++) out[turned ? j * rank + i : i * n + j] = (float)(factor[i] * v[i * n + j]);
}

static tm_status put(const singular *s, const tm_principal_opts *o, float *a, float *b) {
    double *root = tm_malloc(s->rank * sizeof *root);
    if (!root) return tm_nomem(s->rank * sizeof *root);
    for (uint32_t i = 0; i < s->rank; i++) root[i] = sqrt(s->size[i] / o->scale);
    const double *in = o->turned ? s->rows : s->columns, *out = o->turned ? s->columns : s->rows;
    put_vectors(in, root, s->rank, o->turned ? s->n_rows : s->n_columns, false, a);
    put_vectors(out, root, s->rank, o->turned ? s->n_columns : s->n_rows, true, b);
    tm_free(root);
    return TM_OK;
}

/* Vectors become of length 1; those of length 0 stay. */
static void lengths(double *v, uint32_t n, uint64_t length, double *size) {
    for (uint32_t i = 0; i < n; i++) {
        size[i] = sqrt(principal_dot(v + i * length, v + i * length, length));
        for (uint64_t j = 0; j < length && size[i] > 0; j++) v[i * length + j] /= size[i];
    }
}

/* Columns that are there in full: what they make of the matrix are rows, as long as their singular values. */
static tm_status finish(lanczos *s, const tm_principal_opts *o, float *a, float *b) {
    uint64_t rows = s->m.w->rows;
    uint32_t n = (uint32_t)tm_min_u64(s->rank, s->k);
    double *y = tm_calloc(s->rank, rows * sizeof *y), *size = tm_calloc(s->rank, sizeof *size);
    tm_status rc = y && size ? TM_OK : tm_nomem(s->rank * rows * sizeof *y);
    if (rc != TM_OK) goto done;
    combine(s, n);
    if (n < s->rank) memset(s->kept + n * s->length, 0, (s->rank - n) * s->length * sizeof(double));
    TM_GO(principal_products(&s->m, n, s->kept, y, NULL));
    lengths(y, n, rows, size);
    rc = put(&(singular){s->rank, rows, s->length, y, s->kept, size}, o, a, b);
done:
    TM_FREE_ALL(y, size);
    return rc;
}

static tm_status to_convergence(const tm_matrix_rows *w, const tm_principal_opts *o, float *a, float *b) {
    lanczos s = {0};
    tm_status rc;
    TM_GO(lanczos_open(&s, w, o));
    TM_GO(iterate(&s, o));
    rc = finish(&s, o, a, b);
done:
    lanczos_close(&s);
    return rc;
}

/* ---- a few iterations ---- */

/* Vectors on both sides; `tall` says that the longer side is that of the rows. */
typedef struct power {
    principal_matrix m;
    bool tall;
    uint32_t rank;
    uint64_t longer, shorter;
    double *high, *low; /* [rank][longer], [rank][shorter] */
} power;

/* From the shorter side to the longer, and back. */
static tm_status raise(power *p) {
    return p->tall ? principal_products(&p->m, p->rank, p->low, p->high, NULL)
                   : principal_products(&p->m, p->rank, NULL, p->low, p->high);
}
static tm_status lower(power *p) {
    return p->tall ? principal_products(&p->m, p->rank, NULL, p->high, p->low)
                   : principal_products(&p->m, p->rank, p->high, p->low, NULL);
}

/* Orthonormal; what is nothing becomes zero. */
static void straighten(double *v, uint32_t n, uint64_t length) {
    uint32_t left = principal_orthonormal(NULL, 0, v, n, length, 0, NULL);
    memset(v + left * length, 0, (n - left) * length * sizeof *v);
}

/* high^T W is [rank, shorter]: its singular vectors, through its small square. */
static tm_status small_part(power *p, const tm_principal_opts *o, double *size) {
    uint32_t r = p->rank;
    size_t square = (size_t)r * r;
    double *g = tm_malloc((2 * square + 4 * (size_t)r) * sizeof *g), *vector = g + square, *value = vector + square;
    double *turned = tm_calloc(r, p->longer * sizeof *turned), *low = tm_calloc(r, p->shorter * sizeof *low);
    tm_status rc = g && turned && low ? TM_OK : tm_nomem(r * p->longer * sizeof *turned);
    if (rc != TM_OK) goto done;
    for (uint32_t i = 0; i < r; i++)
        for (uint32_t j = 0; j < r; j++)
            g[(size_t)i * r + j] = principal_dot(p->low + i * p->shorter, p->low + j * p->shorter, p->shorter);
    if (!principal_eigen(g, r, value, vector, value + r)) {
        rc = not_numbers(o);
        goto done;
    }
    for (uint32_t i = 0; i < r; i++)
        for (uint32_t j = 0; j < r; j++) {
            principal_axpy(vector[(size_t)i * r + j], p->high + j * p->longer, turned + i * p->longer, p->longer);
            principal_axpy(vector[(size_t)i * r + j], p->low + j * p->shorter, low + i * p->shorter, p->shorter);
        }
    lengths(low, r, p->shorter, size);
    memcpy(p->high, turned, r * p->longer * sizeof *turned);
    memcpy(p->low, low, r * p->shorter * sizeof *low);
done:
    TM_FREE_ALL(g, turned, low);
    return rc;
}

static tm_status power_steps(power *p, const tm_principal_opts *o) {
    principal_draw(o->seed, p->low, p->rank * p->shorter);
    TM_TRY(raise(p));
    straighten(p->high, p->rank, p->longer);
    for (uint32_t i = 1; i < o->iterations; i++) {
        TM_TRY(lower(p));
        straighten(p->low, p->rank, p->shorter);
        TM_TRY(raise(p));
        straighten(p->high, p->rank, p->longer);
    }
    return lower(p);
}

static tm_status by_power(const tm_matrix_rows *w, const tm_principal_opts *o, float *a, float *b) {
    bool tall = w->rows >= w->columns;
    power p = {.tall = tall, .rank = o->rank, .longer = tall ? w->rows : w->columns};
    p.shorter = tall ? w->columns : w->rows;
    double *size = tm_malloc(o->rank * sizeof *size);
    tm_status rc = size ? TM_OK : tm_nomem(o->rank * sizeof *size);
    if (rc != TM_OK) goto done;
    p.high = tm_malloc(o->rank * p.longer * sizeof *p.high);
    p.low = tm_malloc(o->rank * p.shorter * sizeof *p.low);
    if (!p.high || !p.low) {
        rc = tm_nomem(o->rank * p.longer * sizeof *p.high);
        goto done;
    }
    TM_GO(principal_matrix_open(&p.m, w, o->threads, o->rank));
    TM_GO(power_steps(&p, o));
    TM_GO(small_part(&p, o, size));
    rc = put(&(singular){o->rank, w->rows, w->columns, tall ? p.high : p.low, tall ? p.low : p.high, size}, o, a, b);
done:
    principal_matrix_close(&p.m);
    TM_FREE_ALL(size, p.high, p.low);
    return rc;
}

tm_status tm_principal(const tm_matrix_rows *w, const tm_principal_opts *o, float *a, float *b) {
    TM_ASSERT(o->rank > 0 && o->scale > 0);
    if (o->rank > w->rows || o->rank > w->columns)
        return tm_fail(TM_EINPUT, "'%s' [%llu, %llu] has fewer than %u singular values; name a smaller rank", o->name,
                       (unsigned long long)w->rows, (unsigned long long)w->columns, o->rank);
    return o->iterations ? by_power(w, o, a, b) : to_convergence(w, o, a, b);
}

uint64_t tm_principal_bytes(uint64_t rows, uint64_t columns, const tm_principal_opts *o) {
    lanczos s = {0};
    uint64_t of_rows = PRINCIPAL_ROWS * (columns * sizeof(float) + tm_max_u64(o->rank, MOST_BLOCK) * sizeof(double));
    if (o->iterations) return of_rows + 2 * o->rank * (rows + columns + 2 * o->rank) * sizeof(double);
    choose_sizes(&s, columns, o->rank);
    uint64_t vectors = s.room + s.block + kept_vectors(&s), squares = 3 * (uint64_t)s.room * (s.room + 2);
    return of_rows + (vectors * columns + squares + o->rank * rows) * sizeof(double);
}
