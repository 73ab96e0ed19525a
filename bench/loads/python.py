"""The Python interpreter as a file: the script that it was profiled with, and another one."""

from harness.machine import Failed, find
from harness.rounds import interleave, run_and_count

# Only what needs no library: the interpreter's own loop, objects and containers.
TRAINED = """
class Account:
    def __init__(self, name): self.name, self.total, self.log = name, 0, []
    def add(self, n):
        if n % 7 == 3: raise ValueError(n)
        self.total += n; self.log.append((n, str(n)))
accounts = {}
for i in range(COUNT):
    a = accounts.setdefault('a%d' % (i % 97), Account(i))
    try: a.add(i)
    except ValueError as e: a.total -= e.args[0]
words = sorted((len(a.log), k, ' '.join(t for _, t in a.log[:9])) for k, a in accounts.items())
print(sum(hash(w[0]) for w in words), {k: v for k, v in zip('abc', words)}['b'][1].upper())
"""
UNSEEN = """
def queens(n, row=0, cols=0, d1=0, d2=0):
    if row == n: return 1
    found, free = 0, ~(cols | d1 | d2) & ((1 << n) - 1)
    while free:
        bit = free & -free; free ^= bit
        found += queens(n, row + 1, cols | bit, (d1 | bit) << 1, (d2 | bit) >> 1)
    return found
def primes():
    seen, n = {}, 2
    while True:
        p = seen.pop(n, None)
        if p: seen.setdefault(n + p, p) if n + p not in seen else [seen.__setitem__(k, p) for k in [next(k for k in range(n + p, 1 << 30, p) if k not in seen)]]
        else: seen[n * n] = n; yield n
        n += 1
g = primes()
print([queens(7) for _ in range(COUNT // 1500)], [next(g) for _ in range(COUNT // 12)][-1], b'%d' % 3, f'{1.5:.2f}')
"""


def run(context):
    machine, program = context.machine, find("/usr/bin/python3")
    # Names of one length: a longer one moves the stack, and with it what misses the data cache.
    programs = {side: machine.path(f"python3-{side[:8]}") for side in ("original", "optimized")}
    scripts = {}
    for name, text in (("trained", TRAINED), ("unseen", UNSEEN)):
        scripts[name] = machine.path(f"{name}.py")
        with open(scripts[name], "w") as f:
            f.write(text.replace("COUNT", str(context.amount(600_000) // 2)))
    # The profile is of a longer run of the same script.
    with open(machine.path("long.py"), "w") as f:
        f.write(TRAINED.replace("COUNT", str(context.amount(600_000))))
    training = [program, "-I", "-S", machine.path("long.py")]
    made = context.restitch.optimize(machine, program, training, programs, cwd=machine.folder)
    rows = []
    for name, script in scripts.items():
        # A fixed hash seed: the same work every time. PYTHONHOME: a copy elsewhere finds its library.
        environment = {"PYTHONHASHSEED": "1", "PYTHONHOME": "/usr"}
        commands = {side: [programs[side], "-S", "-B", script] for side in programs}
        outputs = {machine.run(c, env=environment) for c in commands.values()}
        if len(outputs) != 1:
            raise Failed(f"the optimized python3 prints something else for the {name} script")

        def measure(side):
            return run_and_count(context.events, [commands[side]], env=environment, stdout=-3)

        rounds = interleave(context.short_rounds(), measure, context.log)
        rows.append({"title": f"python3 as a file, {name} script", "unit": "run", "rounds": rounds, "attach": None, "optimize": made})
    return rows
