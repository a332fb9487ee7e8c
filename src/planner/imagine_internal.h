/* A training step of one rank of an imagined machine: what imagine.c chooses from and imagine_program.c writes down. */
#ifndef TIDEMILL_IMAGINE_INTERNAL_H
#define TIDEMILL_IMAGINE_INTERNAL_H

#include "planner/plan_internal.h"

enum { IMAGINE_LEAST_SHARD = 4096 };

/* Where the rank's share of the state is. */
typedef enum imagine_place {
    IMAGINE_ON_HOST,    /* all of it; weights are copied to the device for each use */
    IMAGINE_WEIGHTS_ON, /* compute weights stay on the device beside the masters on the host; updates on the CPU */
    IMAGINE_ALL_ON      /* on the device; updates there, where it can run the optimizer */
} imagine_place;
typedef enum imagine_act { IMAGINE_KEEP, IMAGINE_RECOMPUTE, IMAGINE_OFFLOAD } imagine_act;

typedef struct imagine_way {
    imagine_place place;
    imagine_act act;
    bool fold;       /* updates in the next forward pass (F), else after backward (U) */
    bool each_batch; /* each micro-batch over all units, with the weights gathered anew; else each unit over all */
    bool ahead;      /* the next unit's weights come while a unit computes, and gradients leave while the next does */
} imagine_way;

/* What a unit is to this rank. */
typedef struct imagine_unit {
    uint32_t owner;             /* of its matrices: another unit where they are tied */
    uint64_t elements, shard;   /* owned here: of all ranks, and this rank's share of masters and moments */
    uint64_t boundary, kept;    /* bytes a micro-batch: output; what backward reads of forward inside */
    uint64_t forward, backward; /* bytes of device workspace */
    double seconds[2];          /* on the device, forward and backward, one micro-batch */
    uint32_t hi, stride, tiles; /* first state object; the tile's others follow it */
} imagine_unit;

typedef struct imagine {
    const planning *g;
    const tm_model *m;
    tm_device_traits gpu; /* a GPU as src/device has it */
    job_shape shape;
    job_load load; /* of the micro-batches: means */
    tm_dtype dtype;
    tm_machine rank;      /* this rank's share of a node */
    const char *strategy; /* "zero3", ...; "" on one rank */
    uint32_t ranks, per_node;
    uint32_t weight_ranks, state_ranks; /* that share a unit's compute weights, its masters and moments */
    uint32_t second_ranks;              /* hpZ: that share a second copy for backward; 0: there is none */
    double sent[2];                     /* bytes of this rank a step: in its node, to other nodes */
    uint64_t grain;                     /* elements of a tile */
    uint32_t states;                    /* objects of a tile beside its gradient */
    imagine_unit *unit;
    uint32_t units;
    imagine_way way;
    tm_layout *layout;
    double *seconds; /* of operation arg[0] of the program */
    uint32_t ops, ops_cap;
} imagine;

/* Operations of such a program; arg: index of its seconds, unit, tile or micro-batch. */
enum {
    IMAGINE_HOLD = 1,
    IMAGINE_COPY_IN,
    IMAGINE_COPY_OUT,
    IMAGINE_GATHER,
    IMAGINE_REDUCE,
    IMAGINE_FORWARD,
    IMAGINE_BACKWARD,
    IMAGINE_HEAD,
    IMAGINE_UPDATE,
    IMAGINE_NORM,
    IMAGINE_STASH,
};
/* Bytes of n elements' masters and moments beside their compute weights: of one kind, and of all. */
uint64_t imagine_state_bytes(const imagine *x, tm_kind kind, uint64_t n);
uint64_t imagine_master_bytes(const imagine *x, uint64_t n);
/* Layout and program of x->way. */
tm_status imagine_build(imagine *x, tm_program **out);
double imagine_cost(void *ctx, const tm_op *op); /* a tm_cost_fn; ctx: imagine */
void imagine_op_name(void *ctx, const tm_op *op, char *buf, size_t cap);

#endif
