"""torch_step.py as a process that takes turns with ours."""
import atexit
import pathlib
import signal
import subprocess
import sys


class Peer:
    """PyTorch, stopped between its steps so that it takes no time from the other."""

    def __init__(self, folder, precision, batch, tokens, recompute, *more):
        script = pathlib.Path(__file__).with_name("torch_step.py")
        self.process = subprocess.Popen([sys.executable, script, folder, precision, str(batch), str(tokens), str(recompute), *map(str, more)],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        atexit.register(lambda: self.process.returncode is None and self.process.kill())
        self.version = self.process.stdout.readline().split()[-1]

    def step(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, _, peak, self.cpu_seconds = map(float, self.process.stdout.readline().split())
        self.peak_bytes = int(peak)
        self.process.send_signal(signal.SIGSTOP)
        return seconds

    def close(self):
        self.process.kill()
        self.process.wait()
