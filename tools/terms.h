/* tidemill help terms: the words of docs/GLOSSARY.md, which is where they are explained. */
#ifndef TIDEMILL_TOOLS_TERMS_H
#define TIDEMILL_TOOLS_TERMS_H

#include "base/base.h"

/* Prints the terms in which `word` is a whole word (NULL: all, by section). False: there is none. */
bool tm_terms_print(const char *word);

#endif
