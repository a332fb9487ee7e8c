/* Resuming: what its files offer each other. trainer_leftovers.c knows the run before, trainer_resume.c the choice of
 * one rank, trainer_resume_ranks.c that of several. */
#ifndef TIDEMILL_RESUME_INTERNAL_H
#define TIDEMILL_RESUME_INTERNAL_H

#include "train/trainer_internal.h"

/* ---- trainer_leftovers.c --------------------------------------------------------------------------------------- */

const char *earlier_directory(const earlier *e); /* the first of its run directories; NULL: it names none */
tm_status earlier_refuse_finished(const trainer *t, const earlier *e);
tm_status earlier_refuse_lost(const trainer *t, const char *dir); /* NULL: it made no commits */
/* Refuses while a process works in one of them, after so long. */
tm_status earlier_none_alive(const earlier *e, unsigned wait_ms);
tm_status earlier_drop(const earlier *e);    /* its run directories hold no commit: removed */
tm_status earlier_drop_nameless(trainer *t); /* those that no run.json names */

/* ---- trainer_resume.c, trainer_resume_ranks.c -------------------------------------------------------------------- */

bool resume_holds_commit(const char *dir);
/* Collective (of one rank too, where the run before had several). `resume`: auto, never or a folder. */
tm_status resume_together(trainer *t, const char *resume);
tm_status resume_directory_together(trainer *t, const char *dir); /* a full checkpoint, or an output folder */

#endif
