/* Bytes in use by program position, for density.c (what may stay) and place.c (how far one may read ahead). */
#ifndef TIDEMILL_LOAD_INTERNAL_H
#define TIDEMILL_LOAD_INTERNAL_H

#include "offload/offload_internal.h"

typedef struct load_tree {
    int64_t *top, *add; /* heap-shaped: most below a node, its own addition included; added to all of it */
    uint32_t leaves;
} load_tree;

tm_status load_open(load_tree *l, uint32_t positions);
void load_close(load_tree *l);
void load_clear(load_tree *l);
/* The first of it, in the tree as it was opened or cleared: any number of additions, then load_begin, in less time than
 * by load_add. */
void load_first(load_tree *l, uint32_t from, uint32_t to, int64_t bytes); /* positions [from, to] */
void load_begin(load_tree *l);
void load_add(load_tree *l, uint32_t from, uint32_t to, int64_t bytes);
int64_t load_most(const load_tree *l, uint32_t from, uint32_t to);
/* The first position from `from` on that has more than `limit`; at least the number of positions where none has. */
uint32_t load_first_above(const load_tree *l, uint32_t from, int64_t limit);

#endif
