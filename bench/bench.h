/* bench: what developers of tidemill measure, and users need not: a program of its own, tidemill-bench, which is not
 * installed. A bench is written as a command of tools/ is (tools.h); argv[0] is its name. */
#ifndef TIDEMILL_BENCH_H
#define TIDEMILL_BENCH_H

#include "tools/tools.h"

int bench_attention(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_json(int argc, char **argv);
int bench_kernels(int argc, char **argv);

#endif
