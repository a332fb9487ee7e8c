/* Resuming: what its files offer each other. trainer_leftovers.c knows the run before, trainer_resume.c the choice of
 * one rank, trainer_resume_ranks.c that of several. */
#ifndef TIDEMILL_RESUME_INTERNAL_H
#define TIDEMILL_RESUME_INTERNAL_H

#include "train/trainer_internal.h"

/* ---- trainer_leftovers.c --------------------------------------------------------------------------------------- */

const char *earlier_directory(const earlier *e); /* the first of its run directories; NULL: it names none */
tm_status earlier_refuse_finished(const trainer *t, const earlier *e);
/* The log shows commits, `lost` is gone; `state`: a directory to go on from, or NULL. */
tm_status earlier_refuse_lost(const trainer *t, const char *lost, const char *state);
/* No commit was found where run.json said. Refuses if the log shows that there was one. */
tm_status earlier_refuse_if_lost(trainer *t, const earlier *e);
/* Refuses while a process works in one of them, after so long. */
tm_status earlier_none_alive(const trainer *t, const earlier *e, unsigned wait_ms);
tm_status earlier_drop(const trainer *t, const earlier *e); /* those of its run directories that hold no commit */
tm_status earlier_drop_nameless(trainer *t);                /* those that no run.json names */

/* ---- trainer_resume.c, trainer_resume_ranks.c -------------------------------------------------------------------- */

bool resume_holds_commit(const char *dir);
/* Collective (of one rank too, where the run before had several). `resume`: auto, never or a folder. */
tm_status resume_together(trainer *t, const char *resume);
tm_status resume_directory_together(trainer *t, const char *dir); /* a full checkpoint, or an output folder */

#endif
