/* Prompts that begin alike are computed once: a sequence takes over what its slot holds, or copies what another does.
 * Nothing of what it answers depends on that: a token of a prompt has the same bits however its prompt was cut. */
#include "infer/engine_internal.h"

/* Fewer tokens are computed again sooner than copied, or waited for. */
enum { WORTH_COPYING = 8, WORTH_WAITING = 32 };

/* The last token is computed in any case, and those that its log-probabilities begin with. */
static size_t most_shared(const engine_sequence *s) {
    const tm_request *r = &s->of->r;
    size_t most = r->n_prompt - 1;
    bool scores = r->score_from > 0 && s->answer == 0;
    return scores && r->score_from - 1 < most ? r->score_from - 1 : most;
}

/* Tokens that the sequence's prompt and the first n of another's have in common. */
static size_t in_common(const engine_sequence *s, const engine_request *q, size_t n) {
    size_t most = most_shared(s), i = 0;
    if (!q || q->r.adapter != s->of->r.adapter) return 0;
    if (n < most) most = n;
    if (q == s->of) return most;
    while (i < most && q->r.prompt[i] == s->of->r.prompt[i]) i++;
    return i;
}

/* A window's keys before a position are there while nothing far behind it was written: in a ring that takes their place. */
static bool windows_reach(const tm_engine *e, size_t position, size_t written) {
    return written <= e->ring || written <= position + e->ring_slack;
}

static size_t held_for(const tm_engine *e, uint32_t slot, const engine_sequence *s) {
    const engine_slot *at = &e->slot[slot];
    size_t n = in_common(s, at->held, at->n_held);
    return windows_reach(e, n, at->written) ? n : 0;
}

uint32_t engine_choose_slot(const tm_engine *e, const engine_sequence *s) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < e->opts.sequences; i++) {
        if (e->slot[i].by) continue;
        if (best == UINT32_MAX) {
            best = i;
            continue;
        }
        size_t have = held_for(e, i, s), had = held_for(e, best, s);
        if (have > had || (have == had && e->slot[i].n_held < e->slot[best].n_held)) best = i;
    }
    return best;
}

static bool is_earlier(const engine_sequence *a, const engine_sequence *b) {
    return a->of->number != b->of->number ? a->of->number < b->of->number : a->answer < b->answer;
}

/* The most that an earlier sequence will have computed of it. */
static size_t on_its_way(const tm_engine *e, const engine_sequence *s) {
    size_t most = 0;
    for (uint32_t i = 0; i < e->opts.sequences; i++) {
        const engine_sequence *other = e->slot[i].by;
        if (!other || other == s || other->computed >= other->of->r.n_prompt || !is_earlier(other, s)) continue;
        size_t n = in_common(s, other->of, other->of->r.n_prompt);
        if (n > most) most = n;
    }
    return most;
}

bool engine_look(const tm_engine *e, const engine_sequence *s, engine_start *out) {
    size_t own = held_for(e, s->slot, s);
    TM_ASSERT(!s->begun && s->computed == 0);
    *out = (engine_start){.computed = own, .from = UINT32_MAX};
    for (uint32_t i = 0; i < e->opts.sequences; i++) {
        size_t n = i == s->slot ? 0 : held_for(e, i, s);
        if (n > out->computed && n - own >= WORTH_COPYING) *out = (engine_start){.computed = n, .from = i};
    }
    return !e->slot[s->slot].lent && on_its_way(e, s) < out->computed + WORTH_WAITING;
}

void engine_begin(tm_engine *e, engine_sequence *s, const engine_start *at) {
    TM_ASSERT(!s->begun && !e->slot[s->slot].lent);
    if (at->from != UINT32_MAX) {
        e->slot[at->from].lent = true;
        e->slot[s->slot].written = e->slot[at->from].written;
    } else if (at->computed == 0)
        e->slot[s->slot].written = 0;
    s->begun = true;
    s->from = at->from;
    s->computed = at->computed;
    e->counts.shared_tokens += at->computed;
    engine_hold(e, s->slot, s->of, at->computed);
}

void engine_hold(tm_engine *e, uint32_t slot, engine_request *q, size_t n) {
    engine_slot *at = &e->slot[slot];
    q->users++;
    engine_drop_request(at->held);
    at->held = q;
    at->n_held = n;
}
