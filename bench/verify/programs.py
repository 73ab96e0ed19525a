#!/usr/bin/env python3
"""Proves that ordinary programs of a distribution do the same when they are recorded and when they run from an optimized
file: for each of the commands below that is installed, standard output and exit code of the original, of the recorded run,
of the optimized file, and of a file that was optimized a second time (from the optimized one) are equal."""

import hashlib

from common import *  # noqa: F403

# Run in a folder with text, numbers, tree/, prog.c, prog.pl, prog.py. The first word is the program.
COMMANDS = """
perl prog.pl
python3.11 -I -S prog.py
gawk {n[$1%100]+=$2;s=s^$3}END{for(i=0;i<100;i++)print(i,n[i])} numbers
mawk {n[$1%100]+=$2}END{for(i=0;i<100;i++)print(i,n[i])} numbers
sed -E s/([a-z]+)([0-9]+)/\\2\\1/g;s/^(.*)l/\\1L/ text
grep -nE (line|file).*[13579]$ text
sort -k2,2n -k1r numbers
bash prog.sh
dash prog.sh
gzip -9c text
bzip2 -kc text
xz -6kc text
zstd -12 -c text
tar cf - --sort=name --mtime=@0 --owner=0 --group=0 tree
find tree -name *7* -printf %p:%s\\n
openssl dgst -sha256 text
sqlite3 :memory: create/**/table/**/t(a,b);with/**/recursive/**/n(i)as(select/**/1/**/union/**/all/**/select/**/i+1/**/from/**/n/**/where/**/i<40000)insert/**/into/**/t/**/select/**/i%97,i*i%1009/**/from/**/n;select/**/a,sum(b),group_concat(distinct(b%7))from/**/t/**/group/**/by/**/a/**/order/**/by/**/2
git hash-object text
diff text numbers
bc -q prog.bc
m4 prog.m4
xmllint --c14n prog.xml
jq -c map({k:.k,l:(.v|length)})|group_by(.l) prog.json
objdump -d --no-show-raw-insn prog.o
nm -S --size-sort prog.o
md5sum text
file -b prog.o
php -r echo(crc32(str_repeat("abc",99999)));
ruby -e p((1..300).reduce(:*).to_s.chars.tally)
lua5.3 prog.lua
node -e console.log([...Array(9999).keys()].map(x=>x*x%7).join(""))
""".strip().splitlines()
ONLY = os.environ.get("ONLY", "").split()


def main(machine):
    folder = machine.path("work")
    prepare(machine, folder)
    good, bad, refused, absent = [], [], [], []
    for line in COMMANDS:
        name, *arguments = line.split(" ")
        if ONLY and name not in ONLY:
            continue
        try:
            path = find(f"/usr/bin/{name}", f"/bin/{name}")
        except Missing:
            absent.append(name)
            continue
        arguments = [a.replace("/**/", " ") for a in arguments]
        try:
            (refused if one(machine, folder, path, name, arguments) else good).append(name)
        except Failed as problem:
            bad.append(name)
            log(f"  {name}: {problem}")
    log(f"  equal: {len(good)} ({' '.join(good)}); refused: {' '.join(refused) or 'none'}; not installed: {' '.join(absent) or 'none'}")
    if bad:
        raise Failed(f"different or failed: {' '.join(bad)}")


def one(machine, folder, path, name, arguments):
    """Whether restitch refused the program by one of its documented exit codes; raises Failed if anything differs."""
    plain = run(folder, [path, *arguments])
    profile, fast, again = (machine.path(f"{name}.{kind}") for kind in ("profile", "fast", "again"))
    state = dict(os.environ, RESTITCH_STATE_DIR=machine.path("state"))
    recorded = run(folder, [RESTITCH, "record", "-o", profile, "--", path, *arguments], state)
    if recorded[0] == 6 and plain[0] != 6:
        return True
    if recorded[:2] != plain[:2]:
        raise Failed(f"recorded: {show(recorded)}, original: {show(plain)}")
    restitch(machine, "optimize", path, "--profile", profile, "-o", fast)
    restitch(machine, "optimize", fast, "--profile", profile, "-o", again)
    for kind, program in (("optimized", fast), ("optimized twice", again)):
        moved = run(folder, [path, *arguments], executable=program)
        if moved[:2] != plain[:2]:
            raise Failed(f"{kind}: {show(moved)}, original: {show(plain)}")
    return False


def run(folder, command, env=None, executable=None):
    env = dict(env or os.environ, LC_ALL="C", PYTHONHASHSEED="1", PYTHONHOME="/usr", PERL_HASH_SEED="0", XZ_DEFAULTS="-T1")
    done = subprocess.run(command, executable=executable, capture_output=True, stdin=subprocess.DEVNULL, cwd=folder, env=env, timeout=300)
    return done.returncode, hashlib.sha256(done.stdout).hexdigest(), done.stdout[-200:], done.stderr[-600:]


def show(result):
    return f"exit code {result[0]}, output {result[1][:12]} ...{result[2][-80:]!r}, {result[3].decode(errors='replace').strip()}"


def prepare(machine, folder):
    os.makedirs(f"{folder}/tree")
    files = {
        "text": "".join(f"line{n} of file{n * 7919 % 1000} {'abcdefghij'[n % 10] * (n % 13)}\n" for n in range(60000)),
        "numbers": "".join(f"{n * 48271 % 99991} {n * 16807 % 1009} {n % 7}\n" for n in range(40000)),
        "prog.pl": 'my %h; for my $i (1..60000) { my $k = "k".($i*7919%997); $h{$k} .= chr(65+$i%26); if ($h{$k} =~ /(A.*?B)+(?=C|$)/) { $n += length $1 } eval { die { code => $i } if $i % 501 == 0 }; $n += $@->{code} if ref $@; } print join(",", map { "$_=" . length $h{$_} } sort { $h{$a} cmp $h{$b} || $a cmp $b } keys %h), " $n\\n"; printf "%s %.5f\\n", join("", sort { $b <=> $a } map { $_ ** 2 % 11 } 1..200), sqrt(2);\n',
        "prog.py": "import sys\nd = {}\nfor i in range(60000):\n    try:\n        d.setdefault(i * 7919 % 997, []).append(str(i))\n        if i % 13 == 5: raise KeyError(i)\n    except KeyError as e: d[e.args[0] % 997].pop()\nprint(sorted((len(v), k, '-'.join(v[:3])) for k, v in d.items()), sum(x ** 3 for x in range(2000)), f'{2**0.5:.9f}')\n",
        "prog.sh": "f() { case $1 in *7) echo \"${1%7}-$2\";; *[02468]) return 1;; *) echo $(($1 * 3 % 101));; esac; }\ni=0\nwhile [ $i -lt 3000 ]; do i=$((i + 1)); f $i a || x=\"$x.\"; done\necho ${#x} \"$(f 17 b)\"; for w in $(echo a b c); do printf '%s,%05d\\n' $w 42; done; trap 'echo end' EXIT; (exit 3); echo $?\n",
        "prog.bc": "scale=60\nfor (i = 1; i < 120; i++) { sqrt(i) * i ^ 5 / 7 }\n",
        "prog.m4": "define(`f', `ifelse($1, 0, 0, `eval($1 + f(decr($1)))')')f(300) define(`g', `ifelse(eval($1 > 900), 1, , `$1 g(incr($1))')')g(1)\n",
        "prog.xml": "<a>" + "".join(f"<b c='{n}' a='x{n % 7}'>t{n}&amp;<d/></b>" for n in range(5000)) + "</a>\n",
        "prog.json": "[" + ",".join(f'{{"k":{n},"v":"{"x" * (n % 17)}"}}' for n in range(8000)) + "]\n",
        "prog.lua": "local t = {} for i = 1, 60000 do t[i % 997] = (t[i % 997] or '') .. string.char(65 + i % 26) end local n = 0 for k, v in pairs(t) do n = n + #v:gsub('A.-B', '') end print(n, pcall(error, 'x'))\n",
        "prog.c": "".join(f"int f{n}(int x) {{ switch (x) {{ case 0: return {n}; case 1: return x * {n}; case 2: return x ^ {n}; case 3: return 7; case 4: return f{max(n - 1, 0)}(x - 1); default: return x; }} }}\n" for n in range(600)),
    }
    for name, text in files.items():
        with open(f"{folder}/{name}", "w") as f:
            f.write(text)
    for n in range(500):
        with open(f"{folder}/tree/file{n}", "w") as f:
            f.write("x" * n)
    compiler = find("gcc")
    machine.run([compiler, "-O2", "-S", f"{folder}/prog.c", "-o", f"{folder}/prog.s"])
    machine.run([compiler, "-O2", "-c", f"{folder}/prog.c", "-o", f"{folder}/prog.o"])


program(main)
