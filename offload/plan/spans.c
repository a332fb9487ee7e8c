/* Spans of addresses: a treap. */
#include "offload/plan/spans_internal.h"

void spans_close(spans *s) {
    tm_free(s->item);
    *s = (spans){0};
}

static bool is_before(const spans *s, uint32_t a, uint32_t b) {
    return s->item[a].begin < s->item[b].begin;
}

static uint32_t priority(uint32_t i) {
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

/* Divides the tree below `at` into what comes before `i` and what comes behind it. */
static void split_tree(spans *s, uint32_t at, uint32_t i, uint32_t *less, uint32_t *more) {
    if (at == 0) {
        *less = *more = 0;
        return;
    }
    uint32_t *child = s->item[at].child, part;
    if (is_before(s, at, i)) {
        split_tree(s, child[1], i, &part, more);
        child[1] = part;
        *less = at;
    } else {
        split_tree(s, child[0], i, less, &part);
        child[0] = part;
        *more = at;
    }
}

static uint32_t insert_span(spans *s, uint32_t at, uint32_t i) {
    if (at == 0 || priority(i) > priority(at)) {
        uint32_t less, more;
        split_tree(s, at, i, &less, &more);
        s->item[i].child[0] = less;
        s->item[i].child[1] = more;
        return i;
    }
    uint32_t *child = &s->item[at].child[is_before(s, at, i)];
    *child = insert_span(s, *child, i);
    return at;
}

static uint32_t join_trees(spans *s, uint32_t less, uint32_t more) {
    if (less == 0 || more == 0) return less + more;
    bool first = priority(less) > priority(more);
    uint32_t top = first ? less : more, *child = s->item[top].child;
    if (first)
        child[1] = join_trees(s, child[1], more);
    else
        child[0] = join_trees(s, less, child[0]);
    return top;
}

static uint32_t take_out(spans *s, uint32_t at, uint32_t i) {
    TM_ASSERT(at != 0);
    uint32_t *child = s->item[at].child;
    if (at == i) return join_trees(s, child[0], child[1]);
    uint32_t *side = &child[is_before(s, at, i)];
    *side = take_out(s, *side, i);
    return at;
}

bool spans_put(spans *s, uint64_t begin, uint64_t end, uint32_t owner) {
    TM_ASSERT(begin < end);
    uint32_t i = s->free;
    if (s->n == 0) s->n = 1;
    if (i) {
        s->free = s->item[i].child[0];
    } else {
        if (tm_grow(&s->item, &s->cap, s->n + 1, sizeof *s->item) != TM_OK) return false;
        i = s->n++;
    }
    s->item[i] = (span){.begin = begin, .end = end, .owner = owner};
    s->root = insert_span(s, s->root, i);
    return true;
}

void spans_drop(spans *s, uint32_t i) {
    TM_ASSERT(i > 0 && i < s->n);
    s->root = take_out(s, s->root, i);
    s->item[i].child[0] = s->free;
    s->free = i;
}

uint32_t spans_after(const spans *s, uint64_t address) {
    uint32_t found = 0;
    for (uint32_t at = s->root; at;) {
        bool ends = s->item[at].end > address;
        if (ends) found = at;
        at = s->item[at].child[!ends];
    }
    return found;
}
