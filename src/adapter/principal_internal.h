/* What the files of the principal part share. Not for others. */
#ifndef TIDEMILL_PRINCIPAL_INTERNAL_H
#define TIDEMILL_PRINCIPAL_INTERNAL_H

#include "adapter/principal.h"

/* Products with the matrix; vectors are rows of double. */
typedef struct principal_matrix {
    const tm_matrix_rows *w;
    unsigned threads;
    uint64_t at_once; /* rows of a read */
    float *rows;      /* [at_once][columns] */
    double *some;     /* [vectors][at_once] */
} principal_matrix;
enum { PRINCIPAL_ROWS = 64 };
TM_MUST_USE tm_status principal_matrix_open(principal_matrix *m, const tm_matrix_rows *w, unsigned threads,
                                            uint32_t most_vectors);
void principal_matrix_close(principal_matrix *m);
/* One reading of the matrix. x [n][columns] in; y [n][rows]: W x, z [n][columns]: W^T y. With y NULL: z = W^T W x; with x
 * NULL: y is given; with z NULL: y is made. */
TM_MUST_USE tm_status principal_products(principal_matrix *m, uint32_t n, const double *x, double *y, double *z);

double principal_dot(const double *a, const double *b, uint64_t n);
void principal_axpy(double s, const double *x, double *y, uint64_t n);
/* Makes the n vectors of v orthonormal, and orthogonal to the k orthonormal ones of q; what is below `least` of length
 * after that is dropped: the number left. r [n][n], may be NULL: the old vectors are r^T times the new ones, row by
 * row of the new. */
uint32_t principal_orthonormal(const double *q, uint32_t k, double *v, uint32_t n, uint64_t length, double least,
                               double *r);
void principal_draw(uint64_t seed, double *v, uint64_t n); /* standard normals */

/* Eigenvalues, largest first, of the symmetric a [n][n], which is overwritten, and eigenvectors, a row each. Scratch:
 * 3 n doubles. Householder's reduction and implicit QL (Golub and Van Loan, 4th edition, 8.3). False: not a number is in
 * it. */
bool principal_eigen(double *a, uint32_t n, double *value, double *vector, double *scratch);

#endif
