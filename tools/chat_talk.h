/* A conversation on a terminal: `tidemill chat` where stdin is one. */
#ifndef TIDEMILL_CHAT_TALK_H
#define TIDEMILL_CHAT_TALK_H

#include "infer/engine.h"

typedef struct chat_talk_opts {
    tm_engine_opts engine; /* model, precision, positions, tiers */
    tm_sampling sampling;
    uint32_t max_new_tokens; /* of an answer */
    const char *system;      /* first message; NULL: none */
} chat_talk_opts;
/* Until /quit or the end of input. Returns the exit status. */
int chat_talk(const chat_talk_opts *opts);

#endif
