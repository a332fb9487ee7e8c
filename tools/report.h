/* report.html, with what only the commands have together: a run's history and the models that answer. */
#ifndef TIDEMILL_TOOLS_REPORT_H
#define TIDEMILL_TOOLS_REPORT_H

/* A run of this process is over, its memory is free: its held-out prompts are answered where that takes at most 1% of the
 * run's time, and the page is written again. A failure is a warning. */
void tm_report_ended(const char *dir);

#endif
