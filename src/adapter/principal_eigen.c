/* The symmetric eigenproblem of small matrices. */
#include "adapter/principal_internal.h"

#include <math.h>
#include <string.h>

enum { MOST_TURNS = 60 };

/* a -= v w^T + w v^T on the lower right corner of `size`, from row and column `from` on. */
static void update(double *a, uint32_t n, uint32_t from, const double *v, const double *w) {
    for (uint32_t i = from; i < n; i++) {
        double *row = a + (size_t)i * n;
        for (uint32_t j = from; j < n; j++) row[j] -= v[i] * w[j] + w[i] * v[j];
    }
}

/* The reflection I - beta v v^T from row `from` on, applied to the rows of z. `sum`: n doubles. */
static void reflect_rows(double *z, uint32_t n, uint32_t from, const double *v, double beta, double *sum) {
    memset(sum, 0, n * sizeof *sum);
    for (uint32_t i = from; i < n; i++) principal_axpy(v[i], z + (size_t)i * n, sum, n);
    for (uint32_t i = from; i < n; i++) principal_axpy(-beta * v[i], sum, z + (size_t)i * n, n);
}

/* Column k below the diagonal becomes one element, which is returned. */
static double reduce_column(double *a, double *z, uint32_t n, uint32_t k, double *v, double *w) {
    double square = 0;
    for (uint32_t i = k + 1; i < n; i++) {
        v[i] = a[(size_t)i * n + k];
        square += v[i] * v[i];
    }
    double tail = square - v[k + 1] * v[k + 1];
    if (tail <= 0) return v[k + 1];
    double alpha = v[k + 1] > 0 ? -sqrt(square) : sqrt(square);
    v[k + 1] -= alpha;
    double beta = 2 / (tail + v[k + 1] * v[k + 1]), half = 0;
    for (uint32_t i = k + 1; i < n; i++) {
        w[i] = beta * principal_dot(a + (size_t)i * n + k + 1, v + k + 1, n - k - 1);
        half += w[i] * v[i];
    }
    principal_axpy(-beta * half / 2, v + k + 1, w + k + 1, n - k - 1);
    update(a, n, k + 1, v, w);
    reflect_rows(z, n, k + 1, v, beta, w);
    return alpha;
}

/* a becomes tridiagonal: d its diagonal, e what lies beside it; z its rotation, by rows. */
static void tridiagonal(double *a, uint32_t n, double *d, double *z, double *scratch) {
    double *e = scratch, *v = scratch + n, *w = scratch + 2 * (size_t)n;
    memset(z, 0, (size_t)n * n * sizeof *z);
    for (uint32_t i = 0; i < n; i++) z[(size_t)i * n + i] = 1;
    for (uint32_t k = 0; k + 1 < n; k++) e[k] = reduce_column(a, z, n, k, v, w);
    for (uint32_t k = 0; k < n; k++) d[k] = a[(size_t)k * n + k];
    e[n - 1] = 0;
}

static void rotate_rows(double *low, double *high, uint32_t n, double c, double s) {
    for (uint32_t k = 0; k < n; k++) {
        double f = high[k];
        high[k] = s * low[k] + c * f;
        low[k] = c * low[k] - s * f;
    }
}

/* One implicit QL step on rows l to m. */
static void ql_step(double *d, double *e, double *z, uint32_t n, uint32_t l, uint32_t m) {
    double g = (d[l + 1] - d[l]) / (2 * e[l]), s = 1, c = 1, p = 0;
    g = d[m] - d[l] + e[l] / (g + copysign(hypot(g, 1), g));
    for (uint32_t i = m; i-- > l;) {
        double f = s * e[i], b = c * e[i], r = hypot(f, g);
        e[i + 1] = r;
        if (r == 0) {
            d[i + 1] -= p;
            e[m] = 0;
            return;
        }
        s = f / r, c = g / r;
        g = d[i + 1] - p;
        r = (d[i] - g) * s + 2 * c * b;
        p = s * r;
        d[i + 1] = g + p;
        g = c * r - b;
        rotate_rows(z + (size_t)i * n, z + ((size_t)i + 1) * n, n, c, s);
    }
    d[l] -= p;
    e[l] = g;
    e[m] = 0;
}

/* The first row from l on that has nothing beside its diagonal. */
static uint32_t split(const double *d, const double *e, uint32_t n, uint32_t l) {
    uint32_t m = l;
    while (m + 1 < n && fabs(e[m]) > 1e-16 * (fabs(d[m]) + fabs(d[m + 1]))) m++;
    return m;
}

static void largest_first(double *d, double *z, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t best = i;
        for (uint32_t j = i + 1; j < n; j++)
            if (d[j] > d[best]) best = j;
        if (best == i) continue;
        double t = d[i];
        d[i] = d[best], d[best] = t;
        for (uint32_t k = 0; k < n; k++) {
            t = z[(size_t)i * n + k];
            z[(size_t)i * n + k] = z[(size_t)best * n + k], z[(size_t)best * n + k] = t;
        }
    }
}

bool principal_eigen(double *a, uint32_t n, double *value, double *vector, double *scratch) {
    tridiagonal(a, n, value, vector, scratch);
    for (uint32_t l = 0; l < n; l++) {
        uint32_t turns = 0;
        for (uint32_t m; (m = split(value, scratch, n, l)) != l; turns++) {
            if (turns == MOST_TURNS) return false;
            ql_step(value, scratch, vector, n, l, m);
        }
        if (!isfinite(value[l])) return false;
    }
    largest_first(value, vector, n);
    return true;
}
