/* Descriptors of plain files, for those that copy them (clone.c). */
#ifndef TIDEMILL_IO_FILE_INTERNAL_H
#define TIDEMILL_IO_FILE_INTERNAL_H

#include "io/file/file.h"
#include "io/io_internal.h"

int io_file_fd(const tm_file *f);
int io_out_fd(const tm_out *o); /* nothing may have been appended yet */

#endif
