/* The timeline's data: timeline.c fills it from a plan and its spans, timeline_svg.c draws it. */
#ifndef TIDEMILL_TIMELINE_INTERNAL_H
#define TIDEMILL_TIMELINE_INTERNAL_H

#include "offload/sim/sim.h"

enum { TIMELINE_BINS = 1240, TIMELINE_CLASSES = 12, TIMELINE_LANES = TM_ENGINES + TM_TIERS };

/* A kind of work or of object. */
typedef struct timeline_class {
    char name[32];
    const char *colour;
    double total; /* of a step: seconds or bytes */
} timeline_class;

/* One picture over the time of a step: a sum of classes, stacked. */
typedef struct timeline_lane {
    char name[32], note[64];
    enum { LANE_BUSY, LANE_RATE, LANE_BYTES } unit; /* share of the time, bytes a second, bytes */
    double top;                                     /* of the scale */
    double limit;                                   /* a line: the rate of the disk, the bytes of the slab; 0: none */
    uint32_t classes;
    timeline_class class[TIMELINE_CLASSES];
    float value[TIMELINE_CLASSES][TIMELINE_BINS];
} timeline_lane;

typedef struct timeline {
    double seconds;
    uint32_t lanes;
    timeline_lane lane[TIMELINE_LANES];
} timeline;

/* `out` is large: allocated by the caller. */
TM_MUST_USE tm_status timeline_fill(timeline *out, const tm_timeline *t);

#endif
