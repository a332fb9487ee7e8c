/* Who is where: nodes, groups, and the order in which sums are made. */
#include "comm/comm_internal.h"

#include <string.h>

void comm_group_free(comm_group *g) {
    tm_free(g->world);
    tm_free(g->tree);
    tm_free(g->first);
    *g = (comm_group){0};
}

/* Fills tree and first: nodes in the order of their lowest member, members in rank order. */
static void plant(comm_group *g, const uint32_t *node_of) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->size; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++) seen = node_of[g->world[k]] == node_of[g->world[i]];
        if (seen) continue;
        g->first[g->nodes++] = n;
        for (uint32_t k = i; k < g->size; k++)
            if (node_of[g->world[k]] == node_of[g->world[i]]) g->tree[n++] = k;
    }
    g->first[g->nodes] = n;
}

static void find_me(comm_group *g) {
    for (uint32_t k = 0; k < g->nodes; k++)
        for (uint32_t i = g->first[k]; i < g->first[k + 1]; i++)
            if (g->tree[i] == g->me) g->my_node = k, g->my_place = i - g->first[k];
}

tm_status comm_group_make(comm_group *g, uint32_t *world, uint32_t size, uint32_t my_rank, const uint32_t *node_of) {
    *g = (comm_group){.size = size, .world = world, .grid = true};
    g->tree = tm_malloc(size * sizeof *g->tree);
    g->first = tm_malloc((size + 1) * sizeof *g->first);
    if (!world || !g->tree || !g->first) {
        comm_group_free(g);
        return tm_nomem(size * sizeof *world);
    }
    for (uint32_t i = 0; i < size; i++)
        if (world[i] == my_rank) g->me = i;
    plant(g, node_of);
    find_me(g);
    g->per_node = size / g->nodes;
    for (uint32_t k = 0; k < g->nodes; k++) g->grid &= g->first[k + 1] - g->first[k] == g->per_node;
    g->grid &= g->nodes > 1 && g->per_node > 1;
    return TM_OK;
}

tm_status comm_group_add(tm_comm *c, uint32_t *world, uint32_t size, uint32_t *group) {
    if (c->n_groups == TM_COMM_MAX_GROUPS) {
        tm_free(world);
        return tm_fail(TM_EBUG, "more than %d groups of ranks", TM_COMM_MAX_GROUPS);
    }
    TM_TRY(comm_group_make(&c->groups[c->n_groups], world, size, c->rank, c->node_of));
    *group = c->n_groups++;
    return TM_OK;
}

/* Nodes get numbers in the order of their lowest rank, whatever numbers came in. */
static void renumber(tm_comm *c) {
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t old = c->node_of[r];
        if (old < c->nodes) continue; /* done already: new numbers are below, old ones are moved above first */
        for (uint32_t k = r; k < c->size; k++)
            if (c->node_of[k] == old) c->node_of[k] = c->nodes;
        c->nodes++;
    }
}

static uint32_t place_on_node(const tm_comm *c, uint32_t rank) {
    uint32_t place = 0;
    for (uint32_t r = 0; r < rank; r++) place += c->node_of[r] == c->node_of[rank];
    return place;
}

typedef bool chosen_fn(const tm_comm *c, uint32_t rank);

static bool in_world(const tm_comm *c, uint32_t rank) {
    (void)c, (void)rank;
    return true;
}

static bool on_my_node(const tm_comm *c, uint32_t rank) {
    return c->node_of[rank] == c->node;
}

static bool at_my_place(const tm_comm *c, uint32_t rank) {
    return place_on_node(c, rank) == c->node_rank;
}

static tm_status add_chosen(tm_comm *c, chosen_fn *chosen) {
    uint32_t *world = tm_malloc(c->size * sizeof *world), n = 0, group;
    for (uint32_t r = 0; world && r < c->size; r++)
        if (chosen(c, r)) world[n++] = r;
    return comm_group_add(c, world, n, &group);
}

tm_status comm_topology(tm_comm *c) {
    for (uint32_t r = 0; r < c->size; r++) c->node_of[r] += c->size; /* out of the way of the new numbers */
    renumber(c);
    c->node = c->node_of[c->rank];
    c->node_rank = place_on_node(c, c->rank);
    c->node_size = 0;
    for (uint32_t r = 0; r < c->size; r++) c->node_size += on_my_node(c, r);
    TM_TRY(add_chosen(c, in_world));
    TM_TRY(add_chosen(c, on_my_node));
    TM_TRY(add_chosen(c, at_my_place));
    c->uniform = c->nodes == 1 || c->groups[TM_COMM_WORLD].grid || c->nodes == c->size;
    c->tree_hash = tm_hash64(c->node_of, c->size * sizeof *c->node_of, 0);
    return TM_OK;
}

#define GETTER(type, what)                                                                                             \
    type tm_comm_##what(const tm_comm *c) {                                                                            \
        return c->what;                                                                                                \
    }
GETTER(uint32_t, rank)
GETTER(uint32_t, size)
GETTER(uint32_t, node)
GETTER(uint32_t, nodes)
GETTER(uint32_t, node_rank)
GETTER(uint32_t, node_size)
GETTER(bool, uniform)
GETTER(uint64_t, tree_hash)

uint32_t tm_comm_node_of(const tm_comm *c, uint32_t rank) {
    TM_ASSERT(rank < c->size);
    return c->node_of[rank];
}

const char *tm_comm_host(const tm_comm *c, uint32_t rank) {
    TM_ASSERT(rank < c->size);
    return c->host[rank];
}

uint32_t tm_comm_group_size(const tm_comm *c, uint32_t group) {
    TM_ASSERT(group < c->n_groups);
    return c->groups[group].size;
}

uint32_t tm_comm_group_rank(const tm_comm *c, uint32_t group) {
    TM_ASSERT(group < c->n_groups);
    return c->groups[group].me;
}

uint32_t tm_comm_group_world(const tm_comm *c, uint32_t group, uint32_t position) {
    TM_ASSERT(group < c->n_groups && position < c->groups[group].size);
    return c->groups[group].world[position];
}
