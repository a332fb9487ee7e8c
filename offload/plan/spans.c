/* Spans of addresses: two treaps over the same items. */
#include "offload/plan/spans_internal.h"

void spans_close(spans *s) {
    tm_free(s->item);
    *s = (spans){0};
}

static uint32_t priority(uint32_t i) {
    uint32_t x = i * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

static uint64_t size_of(const span *x) {
    return x->end - x->begin;
}

static bool is_before(const spans *s, span_order by, uint32_t a, uint32_t b) {
    const span *x = &s->item[a], *y = &s->item[b];
    if (by == SPAN_BY_SIZE && size_of(x) != size_of(y)) return size_of(x) < size_of(y);
    return x->begin < y->begin;
}

/* After a change below `i`. */
static void settle_node(spans *s, span_order by, uint32_t i) {
    span *x = &s->item[i];
    if (!s->ranked || by != SPAN_BY_ADDRESS) return;
    x->most = size_of(x);
    for (int side = 0; side < 2; side++) {
        uint32_t c = x->child[SPAN_BY_ADDRESS][side];
        if (c) x->most = tm_max_u64(x->most, s->item[c].most);
    }
}

/* Divides the tree below `at` into what comes before `i` and what comes behind it. */
static void split_tree(spans *s, span_order by, uint32_t at, uint32_t i, uint32_t *less, uint32_t *more) {
    if (at == 0) {
        *less = *more = 0;
        return;
    }
    uint32_t *child = s->item[at].child[by], part;
    if (is_before(s, by, at, i)) {
        split_tree(s, by, child[1], i, &part, more);
        child[1] = part;
        *less = at;
    } else {
        split_tree(s, by, child[0], i, less, &part);
        child[0] = part;
        *more = at;
    }
    settle_node(s, by, at);
}

static uint32_t insert_span(spans *s, span_order by, uint32_t at, uint32_t i) {
    if (at == 0 || priority(i) > priority(at)) {
        uint32_t less, more;
        split_tree(s, by, at, i, &less, &more);
        s->item[i].child[by][0] = less;
        s->item[i].child[by][1] = more;
        settle_node(s, by, i);
        return i;
    }
    uint32_t *child = &s->item[at].child[by][is_before(s, by, at, i)];
    *child = insert_span(s, by, *child, i);
    settle_node(s, by, at);
    return at;
}

static uint32_t join_trees(spans *s, span_order by, uint32_t less, uint32_t more) {
    if (less == 0 || more == 0) return less + more;
    bool first = priority(less) > priority(more);
    uint32_t top = first ? less : more, *child = s->item[top].child[by];
    if (first)
        child[1] = join_trees(s, by, child[1], more);
    else
        child[0] = join_trees(s, by, less, child[0]);
    settle_node(s, by, top);
    return top;
}

static uint32_t take_out(spans *s, span_order by, uint32_t at, uint32_t i) {
    TM_ASSERT(at != 0);
    uint32_t *child = s->item[at].child[by];
    if (at == i) return join_trees(s, by, child[0], child[1]);
    uint32_t *side = &child[is_before(s, by, at, i)];
    *side = take_out(s, by, *side, i);
    settle_node(s, by, at);
    return at;
}

static span_order last_order(const spans *s) {
    return s->sized ? SPAN_BY_SIZE : SPAN_BY_ADDRESS;
}

bool spans_put(spans *s, uint64_t begin, uint64_t end, uint32_t owner) {
    TM_ASSERT(begin < end);
    uint32_t i = s->free;
    if (s->n == 0) s->n = 1;
    if (i) {
        s->free = s->item[i].child[0][0];
    } else {
        if (tm_grow(&s->item, &s->cap, s->n + 1, sizeof *s->item) != TM_OK) return false;
        i = s->n++;
    }
    s->item[i] = (span){.begin = begin, .end = end, .owner = owner};
    for (span_order by = SPAN_BY_ADDRESS; by <= last_order(s); by++) s->root[by] = insert_span(s, by, s->root[by], i);
    return true;
}

void spans_drop(spans *s, uint32_t i) {
    TM_ASSERT(i > 0 && i < s->n);
    for (span_order by = SPAN_BY_ADDRESS; by <= last_order(s); by++) s->root[by] = take_out(s, by, s->root[by], i);
    s->item[i].child[0][0] = s->free;
    s->free = i;
}

static void settle_down_to(spans *s, uint32_t at, uint32_t i) {
    if (at != i) settle_down_to(s, s->item[at].child[SPAN_BY_ADDRESS][is_before(s, SPAN_BY_ADDRESS, at, i)], i);
    settle_node(s, SPAN_BY_ADDRESS, at);
}

void spans_resize(spans *s, uint32_t i, uint64_t begin, uint64_t end) {
    TM_ASSERT(i > 0 && i < s->n && begin < end);
    if (s->sized) s->root[SPAN_BY_SIZE] = take_out(s, SPAN_BY_SIZE, s->root[SPAN_BY_SIZE], i);
    s->item[i].begin = begin;
    s->item[i].end = end;
    if (s->ranked) settle_down_to(s, s->root[SPAN_BY_ADDRESS], i);
    if (s->sized) s->root[SPAN_BY_SIZE] = insert_span(s, SPAN_BY_SIZE, s->root[SPAN_BY_SIZE], i);
}

uint32_t spans_after(const spans *s, uint64_t address) {
    uint32_t found = 0;
    for (uint32_t at = s->root[SPAN_BY_ADDRESS]; at;) {
        bool ends = s->item[at].end > address;
        if (ends) found = at;
        at = s->item[at].child[SPAN_BY_ADDRESS][!ends];
    }
    return found;
}

uint32_t spans_ending(const spans *s, uint64_t address) {
    uint32_t i = address ? spans_after(s, address - 1) : 0;
    return i && s->item[i].end == address ? i : 0;
}

uint32_t spans_beginning(const spans *s, uint64_t address) {
    uint32_t i = spans_after(s, address);
    return i && s->item[i].begin == address ? i : 0;
}

uint32_t spans_tightest(const spans *s, uint64_t bytes) {
    uint32_t found = 0;
    for (uint32_t at = s->root[SPAN_BY_SIZE]; at;) {
        bool enough = size_of(&s->item[at]) >= bytes;
        if (enough) found = at;
        at = s->item[at].child[SPAN_BY_SIZE][!enough];
    }
    return found;
}

/* At each step down: whether there is one on the far side is known from its largest. */
static uint32_t highest(const spans *s, uint32_t at, uint64_t bytes, uint64_t top) {
    if (at == 0 || s->item[at].most < bytes) return 0;
    const span *x = &s->item[at];
    if (x->begin < top) {
        uint32_t found = highest(s, x->child[SPAN_BY_ADDRESS][1], bytes, top);
        if (found || size_of(x) >= bytes) return found ? found : at;
    }
    return highest(s, x->child[SPAN_BY_ADDRESS][0], bytes, top);
}

uint32_t spans_highest(const spans *s, uint64_t bytes, uint64_t top) {
    return highest(s, s->root[SPAN_BY_ADDRESS], bytes, top);
}
