/* A sign of life of what takes long: how far it is, how fast, and how long it will take. */
#include "base/base_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Before anything is shown, from then on, and from where on its end is told. */
static const double LIVE_AFTER = 0.5, LIVE_EVERY = 0.2, TOLD_FROM = 2;
static const double PLAIN_AFTER = 10, PLAIN_EVERY = 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool silent;

void tm_phase_silence(bool on) {
    atomic_store(&silent, on);
}

static double since(uint64_t ns) {
    return (double)(tm_now_ns() - ns) * 1e-9;
}

const char *tm_format_left(double seconds, char *buf, size_t cap) {
    double s = seconds > 0 ? seconds : 0;
    uint64_t n = s < 1e9 ? (uint64_t)s : 1000000000;
    unsigned long long hours = n / 3600, minutes = n / 60 % 60, rest = n % 60;
    if (hours >= 100)
        snprintf(buf, cap, "%llud%02lluh", hours / 24, hours % 24);
    else
        snprintf(buf, cap, "%llu:%02llu:%02llu", hours, minutes, rest);
    return buf;
}

static void amount(const tm_phase *p, uint64_t n, char *buf, size_t cap) {
    if (p->unit)
        snprintf(buf, cap, "%llu %s", (unsigned long long)n, p->unit);
    else if (n >= 1000000000)
        snprintf(buf, cap, "%.2f GB", (double)n * 1e-9);
    else
        snprintf(buf, cap, "%.1f MB", (double)n * 1e-6);
}

typedef struct phase_text {
    char what[160], share[16], rate[64], left[48];
} phase_text;

static void describe(const tm_phase *p, double took, phase_text *x) {
    char done[48];
    double each = took > 0 ? (double)p->done / took : 0, rest = p->total > p->done ? (double)(p->total - p->done) : 0;
    *x = (phase_text){.what = ""};
    amount(p, p->done, done, sizeof done);
    snprintf(x->what, sizeof x->what, "%s: %s", p->what, done);
    if (p->total) snprintf(x->share, sizeof x->share, "%.0f%%", 100 * (double)p->done / (double)p->total);
    if (p->unit)
        snprintf(x->rate, sizeof x->rate, "%.3g %s/s", each, p->unit);
    else
        snprintf(x->rate, sizeof x->rate, "%.3g GB/s", each * 1e-9);
    if (!p->total || p->done == 0) return;
    char time[24];
    snprintf(x->left, sizeof x->left, "left %s", tm_format_left(rest / each, time, sizeof time));
}

static void show(tm_phase *p, double took) {
    phase_text x;
    describe(p, took, &x);
    tm_live_part part[] = {{x.what, 0}, {x.share, 2}, {x.rate, 3}, {x.left, 1}};
    if (tm_live_possible())
        tm_live(part, TM_COUNT(part));
    else
        tm_say("%s%s%s  %s  %s\n", x.what, *x.share ? "  " : "", x.share, x.rate, x.left);
    p->said_ns = tm_now_ns();
}

void tm_phase_begin(tm_phase *p, const char *what, const char *unit, uint64_t total) {
    *p = (tm_phase){.what = what, .unit = unit, .total = total, .began_ns = tm_now_ns()};
}

void tm_phase_at(tm_phase *p, uint64_t done) {
    pthread_mutex_lock(&lock);
    double took = since(p->began_ns), quiet = p->said_ns ? since(p->said_ns) : took;
    p->done = done;
    bool live = tm_live_possible();
    bool due = quiet >= (p->said_ns ? live ? LIVE_EVERY : PLAIN_EVERY : live ? LIVE_AFTER : PLAIN_AFTER);
    if (due && !atomic_load(&silent)) show(p, took);
    pthread_mutex_unlock(&lock);
}

void tm_phase_step(tm_phase *p) {
    pthread_mutex_lock(&lock);
    uint64_t next = p->done + 1;
    pthread_mutex_unlock(&lock);
    tm_phase_at(p, next);
}

void tm_phase_end(tm_phase *p) {
    phase_text x;
    char took_text[48];
    if (!p->began_ns || !p->said_ns) return;
    double took = since(p->began_ns);
    describe(p, took, &x);
    snprintf(took_text, sizeof took_text, "in %.1f s", took);
    if (took >= TOLD_FROM && p->done > 0)
        tm_say("%s  %s  %s\n", x.what, took_text, x.rate);
    else
        tm_live_end();
    p->said_ns = 0;
}
