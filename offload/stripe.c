#include "offload/stripe_internal.h"
#include "offload/machine.h"

#include <string.h>

/* Training reads about as much as it writes. */
static double rate_of(const tm_disk *d) {
    return d->read_bps > 0 && d->write_bps > 0 ? 2 / (1 / d->read_bps + 1 / d->write_bps) : 0;
}

void stripe_of_runs(stripe *s, tm_io_run *const *runs, unsigned n) {
    bool known = n > 1;
    *s = (stripe){.n = n};
    for (unsigned i = 0; i < n; i++) {
        tm_disk disk;
        uint64_t free_bytes = tm_io_run_free_bytes(runs[i]);
        s->room[i] = free_bytes - free_bytes / 128; /* the file system wants some for itself */
        s->weight[i] = known && tm_profile_get_disk(tm_io_run_path(runs[i]), &disk) ? rate_of(&disk) : 0;
        known = known && s->weight[i] > 0;
    }
    for (unsigned i = 0; i < n && !known; i++) s->weight[i] = 1;
}

static double ready_at(const stripe *s, unsigned i, uint64_t bytes) {
    return ((double)s->given[i] + (double)bytes) / s->weight[i];
}

unsigned stripe_take(stripe *s, uint64_t bytes) {
    unsigned best = 0;
    bool fits = false;
    for (unsigned i = 0; i < s->n; i++) {
        bool room = s->room[i] >= bytes;
        if (room && !fits) {
            best = i;
        } else if (room ? ready_at(s, i, bytes) < ready_at(s, best, bytes) : !fits && s->room[i] > s->room[best]) {
            best = i;
        }
        fits = fits || room;
    }
    s->given[best] += bytes;
    s->room[best] -= tm_min_u64(bytes, s->room[best]);
    return best;
}

void stripe_round(stripe *s, uint64_t bytes, uint8_t round[STRIPE_ROUND]) {
    stripe turns = {.n = s->n};
    for (unsigned i = 0; i < s->n; i++) {
        turns.weight[i] = s->weight[i];
        turns.room[i] = s->room[i] >= bytes ? STRIPE_ROUND : 0;
    }
    for (unsigned k = 0; k < STRIPE_ROUND; k++) {
        round[k] = (uint8_t)stripe_take(&turns, 1);
        turns.room[round[k]]++; /* one turn takes no room from the next */
    }
    for (unsigned i = 0; i < s->n; i++)
        if (memchr(round, (int)i, STRIPE_ROUND)) s->room[i] -= tm_min_u64(bytes, s->room[i]);
}
