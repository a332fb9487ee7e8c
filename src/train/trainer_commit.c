/* Commits, and what a run goes on from. */
#include "train/trainer_internal.h"

bool trainer_commits(const trainer *t) {
    (void)t;
    return false;
}
