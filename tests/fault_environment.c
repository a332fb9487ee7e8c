/* What makes a program the test build: TIDEMILL_FAULT and TIDEMILL_CHECKSUMS count in it. Before main, so that the
 * first allocation is counted. Linked into build/tests/tidemill, never into what is installed. */
#include "base/base.h"

__attribute__((constructor)) static void take_environment(void) {
    tm_fault_use_environment();
}
