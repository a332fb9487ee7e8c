/* What a start finds: an interrupted run whose run.json, manifests or folders are changed behind its back, with their
 * sums made right again, so that nothing but the look at what they say can notice it. Each start is a process of its
 * own, forked (so that coverage counts it). What is refused is left as it lies; what goes on comes to known bits. */
#ifndef TIDEMILL_TEST_FOUND_H
#define TIDEMILL_TEST_FOUND_H

#include "run.h"

enum { FOUND_STEPS = 4 };

typedef struct found_start {
    const char *resume, *set[3], *fault;
    bool numerics; /* may change */
} found_start;

typedef struct found_report {
    tm_status status;
    uint64_t calls; /* of the fault's name */
    char text[4096];
} found_report;

typedef struct found_scene {
    const char *dir, *config, *output, *offload, *saved;
    char hash[40];        /* of what goes on well */
    char run[2][4096];    /* the interrupted one's directories, first of each rank */
    found_report *report; /* of the last start */
    int err;
} found_scene;
extern found_scene found;

typedef struct found_row {
    const char *commit, *run_json, *value; /* one of the two is set to `value` (NULL: goes) */
    void (*damage)(void);
    found_start with;
    tm_status status;
    const char *says; /* the error, or, where it goes on, a line on stderr; NULL: nothing */
    unsigned left;    /* entries of the offload path where it goes on to its end */
    bool gone;        /* it is refused, and what cannot be used any more is removed */
} found_row;

/* A folder, a configuration of FOUND_STEPS steps with a commit each; the caller runs and interrupts it. */
void found_open(void);
/* Interrupts a run of two ranks: both have published two commits, and a full checkpoint of step 2; rank 1 died when it
 * had prepared the third. Needs mpirun. Then as found_save. */
void found_two_ranks(void);
void found_save(void); /* as it lies now: what each row begins with */
int found_close(void **state);
int found_run(const found_start *o); /* the signal that ended it; 0: none */
const char *found_said(void);        /* on stderr */
void found_put_back(void);
void found_edit_commit(const char *directory, const char *key, const char *value); /* value: JSON; NULL: it goes */
void found_edit_run_json(const char *key, const char *value);
/* Damage to what two ranks left. */
void found_no_second_manifest(void);
void found_no_manifests(void);
void found_bad_manifests(void);
const char *found_hash(void); /* state_hash of the log; "": none */
void found_check(const found_row *rows, size_t n);
#define FOUND_CHECK(rows) found_check(rows, TM_COUNT(rows))
/* Each of these calls fails in turn while such a start (after `damage`, or NULL) goes on: it ends well or with one
 * error, and the start after it comes to the known bits. Some places of each (tests/walk.h: walk_points). */
void found_walk(const found_start *with, void (*damage)(void));

#endif
