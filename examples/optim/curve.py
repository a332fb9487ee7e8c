"""Fits y = sin(3x) with a small network (1 -> 16 tanh -> 1) by optimizers of libtidemill_optim.so, through ctypes. Needs no
package; arrays of torch or numpy would be passed by their addresses in the same way (tensor.data_ptr(), array.ctypes.data).

    python3 curve.py [path of libtidemill_optim.so]
"""
import ctypes
import math
import sys

STATES = 4
HIDDEN, POINTS, STEPS = 16, 32, 200
COUNT = 3 * HIDDEN + 1


class Opts(ctypes.Structure):
    _fields_ = [("beta1", ctypes.c_double), ("beta2", ctypes.c_double), ("eps", ctypes.c_double), ("weight_decay", ctypes.c_double),
                ("adam_w_mode", ctypes.c_bool), ("bias_correction", ctypes.c_bool),
                ("momentum", ctypes.c_double), ("dampening", ctypes.c_double), ("nesterov", ctypes.c_bool),
                ("initial_accumulator_value", ctypes.c_double), ("lr_decay", ctypes.c_double), ("eps_scale", ctypes.c_double),
                ("clip_threshold", ctypes.c_double), ("decay_rate", ctypes.c_double),
                ("scale_parameter", ctypes.c_bool), ("relative_step", ctypes.c_bool), ("warmup_init", ctypes.c_bool)]


class Shape(ctypes.Structure):
    _fields_ = [("matrices", ctypes.c_uint64), ("rows", ctypes.c_uint64), ("columns", ctypes.c_uint64)]


class Span(ctypes.Structure):
    _fields_ = [("weight", ctypes.c_void_p), ("weight_hi", ctypes.c_void_p), ("weight_lo", ctypes.c_void_p),
                ("grad", ctypes.c_void_p), ("state", ctypes.c_void_p * STATES), ("first", ctypes.c_uint64),
                ("n", ctypes.c_size_t), ("grad_type", ctypes.c_int)]


def load(path):
    lib = ctypes.CDLL(path)
    pointer = ctypes.c_void_p
    for name, result, arguments in (
            ("tm_optim_isa", ctypes.c_char_p, []),
            ("tm_optimizer_find", pointer, [ctypes.c_char_p]),
            ("tm_optim_sizeof", ctypes.c_size_t, [ctypes.c_char_p]),
            ("tm_optim_defaults", None, [pointer, ctypes.POINTER(Opts)]),
            ("tm_optim_set", ctypes.c_bool, [pointer, ctypes.POINTER(Opts), ctypes.c_char_p, ctypes.c_double]),
            ("tm_optim_check", ctypes.c_char_p, [pointer, ctypes.POINTER(Opts)]),
            ("tm_optim_state_bytes", ctypes.c_size_t, [pointer, ctypes.POINTER(Opts), ctypes.c_uint32, ctypes.POINTER(Shape)]),
            ("tm_optim_step_init", None, [pointer, pointer, ctypes.POINTER(Opts), ctypes.c_double, ctypes.c_int64, ctypes.c_double]),
            ("tm_optim_run", ctypes.c_uint64, [pointer, ctypes.POINTER(Span)])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    for structure, name in ((Opts, b"tm_optim_opts"), (Span, b"tm_optim_span"), (Shape, b"tm_optim_shape")):
        if ctypes.sizeof(structure) != lib.tm_optim_sizeof(name):
            raise RuntimeError(f"{name.decode()} is laid out differently in {path}")
    return lib


class Optimizer:
    """One optimizer for a ctypes array of floats, with its states."""

    def __init__(self, lib, name, weights, **options):
        self.lib, self.weights, self.t = lib, weights, 0
        self.row = lib.tm_optimizer_find(name.encode())
        self.opts, self.constants = Opts(), ctypes.create_string_buffer(lib.tm_optim_sizeof(b"tm_optim_step"))
        lib.tm_optim_defaults(self.row, self.opts)
        for key, value in options.items():
            if not lib.tm_optim_set(self.row, self.opts, key.encode(), value):
                raise KeyError(f"{name} has no option {key}")
        wrong = lib.tm_optim_check(self.row, self.opts)
        if wrong:
            raise ValueError(f"{name}: {wrong.decode()}")
        shape = Shape(1, 0, len(weights))
        sizes = [lib.tm_optim_state_bytes(self.row, self.opts, k, shape) for k in range(STATES)]
        self.states = [ctypes.create_string_buffer(size) if size else None for size in sizes]

    def step(self, gradient, rate, grad_scale=1.0):
        self.t += 1
        self.lib.tm_optim_step_init(self.constants, self.row, self.opts, rate, self.t, grad_scale)
        span = Span(weight=ctypes.addressof(self.weights), grad=ctypes.addressof(gradient), n=len(self.weights))
        for k, state in enumerate(self.states):
            span.state[k] = ctypes.addressof(state) if state else None
        if self.lib.tm_optim_run(self.constants, span):
            raise FloatingPointError("a weight or state is not finite")


def loss(w, gradient):
    total = 0.0
    for i in range(COUNT):
        gradient[i] = 0
    for p in range(POINTS):
        x = 2 * p / (POINTS - 1) - 1
        h = [math.tanh(w[i] * x + w[HIDDEN + i]) for i in range(HIDDEN)]
        error = sum(w[2 * HIDDEN + i] * h[i] for i in range(HIDDEN)) + w[3 * HIDDEN] - math.sin(3 * x)
        total += error * error / POINTS
        d = 2 * error / POINTS
        gradient[3 * HIDDEN] += d
        for i in range(HIDDEN):
            inner = d * w[2 * HIDDEN + i] * (1 - h[i] * h[i])
            gradient[i] += inner * x
            gradient[HIDDEN + i] += inner
            gradient[2 * HIDDEN + i] += d * h[i]
    return total


def fit(lib, name, rate, **options):
    w = (ctypes.c_float * COUNT)(*(0.5 * math.sin(12.9898 * (i + 1)) for i in range(COUNT)))
    gradient = (ctypes.c_float * COUNT)()
    optimizer = Optimizer(lib, name, w, **options)
    first = loss(w, gradient)
    for step in range(STEPS):
        loss(w, gradient)
        optimizer.step(gradient, rate * (1 - step / STEPS))
    last = loss(w, gradient)
    print(f"{name:<12} {first:.4f} -> {last:.6f}")
    return last < first / 10


def main():
    lib = load(sys.argv[1] if len(sys.argv) > 1 else "libtidemill_optim.so")
    print("instruction set:", lib.tm_optim_isa().decode())
    learned = [fit(lib, "adamw", 0.02, weight_decay=0.001), fit(lib, "adamw_8bit", 0.02), fit(lib, "lion", 0.005),
               fit(lib, "sgd", 0.05, momentum=0.9)]
    sys.exit(0 if all(learned) else 1)


if __name__ == "__main__":
    main()
