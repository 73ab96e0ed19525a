#!/usr/bin/env python3
"""Proves that ordinary programs of a distribution do the same while they are moved between layouts: each of the programs below
that is installed runs once by itself, and once while restitch attaches to it again and again, with one set of options after the
other, and reverts it in between. Standard output and exit code have to be equal, and after each revert all code has to be what
its file says. ONLY names some of the programs."""

import glob
import hashlib
import re
import shlex
import signal

from common import *  # noqa: F403

GCC = "/usr/lib/gcc/x86_64-linux-gnu/12"
# They run in a folder with FILES, beside which `big` is a text of some megabytes. Each takes some ten seconds on one core.
PROGRAMS = {
    "perl": "perl prog.perl",
    "python3": "/usr/bin/python3.11 -I -S prog.py",
    "php": "php prog.php",
    "ruby": "ruby --disable-gems prog.rb",
    "node": "node prog.js",
    "java": "java -XX:+UseSerialGC -Xmx400m Prog.java 90",
    "java, interpreted": "java -Xint -Xmx400m Prog.java 3",
    "lua": "lua5.3 prog.lua 40",
    "luajit": "luajit prog.lua 200",
    "guile": "guile --no-auto-compile prog.scm",
    "racket": "racket prog.rkt",
    "sbcl": "sbcl --script prog.lisp",
    "clisp": "clisp -q -q small.lisp",
    "ocaml": "ocaml prog.ml",
    "erlang": "escript prog.erl",
    "R": "R --vanilla --slave -f prog.R",
    "octave": "octave-cli --norc --quiet prog.m",
    "tclsh": "tclsh prog.tcl",
    "swipl": "swipl -q -g main -t halt prog.swi",
    "gp": "gp -q -f prog.gp",
    "gawk": "gawk -f prog.awk",
    "mawk": "mawk -f prog.awk",
    "bc": "bc -q prog.bc",
    "m4": "m4 -L 99999 prog.m4",
    "jq": "jq -c -n -f prog.jq",
    "bash": "bash prog.sh 60000",
    "dash": "dash prog.sh 600000",
    "busybox": "/bin/busybox sh prog.sh 300000",
    "cc1": f"{GCC}/cc1 -quiet -O2 prog.c -o -",
    "cc1plus": f"{GCC}/cc1plus -quiet -D_GNU_SOURCE -w -O2 -std=c++17 -imultiarch x86_64-linux-gnu prog.cc -o -",
    "f951": f"{GCC}/f951 -quiet -O3 prog.f90 -o -",
    "gnat1": f"{GCC}/gnat1 -quiet -O2 prog.adb -o -",
    "clang": "clang-19 -cc1 -triple x86_64-pc-linux-gnu -O2 -S -o - prog.c",
    "rustc": "rustc -Copt-level=3 -Ccodegen-units=1 --crate-type=lib --emit=asm -o - prog.rs",
    "go's compiler": "{go}/compile -p prog -c 1 -o /dev/stdout prog.go",
    "objdump": f"objdump -dr --no-show-raw-insn {GCC}/cc1plus",
    "sqlite3": "sqlite3 -batch -init prog.sql :memory: .quit",
    "git": "git -c core.pager=cat -C repository log -p --stat -M -C --find-copies-harder",
    "xz, threads": "xz -T2 --block-size=1MiB -7 -c big",
    "zstd, threads": "zstd -q -T2 --ultra -20 -c big",
    "bzip2": "bzip2 -c big big big big big big big big big big big big big big big big",
    "gzip": "gzip -9nc big big big big big big big big big big big big big big big big",
    "brotli": "brotli -q 11 -c big",
    "sort, threads": "sort --parallel=2 -S 9M -k2,2n -k1r big big big big big big big big big big big big big big big big big big big big big big big big",
    "grep": "grep -cE (line|file).*[13579]{2}(a|b)*.*(x.*7|[0-9]+1).*c*$ big big big big big big",
    "rg": r"rg -j2 -c (\w+)\d+[a-f]{1,}\s.*\w*[a-z]+$|ab\p{L}+z big big big big big big big big",
    "ffmpeg": "ffmpeg -v error -f lavfi -i testsrc2=size=640x360:rate=25:duration=14 -threads 1 -c:v libx264 -preset medium -f h264 -",
    "ffmpeg, threads": "ffmpeg -v error -f lavfi -i mandelbrot=size=480x270:rate=25 -frames:v 1200 -threads 2 -c:v mpeg4 -f m4v -",
    "convert": "convert -limit thread 2 -size 4000x4000 gradient:red-blue -wave 9x70 -blur 0x9 -swirl 90 -colors 64 -depth 8 rgb:-",
    "gs": "gs -q -dNOPAUSE -dBATCH -dNOSAFER -sDEVICE=ppmraw -r200 -sOutputFile=- prog.ps",
    "dot": "dot -Tsvg prog.dot",
    "qemu-user": "qemu-x86_64-static /usr/bin/bc -q small.bc",
    "cadical": "cadical -q prog.cnf",
    "stockfish": "stockfish bench 16 1 14",
    "gnugo": "gnugo --seed 3 --mode gtp --gtp-input prog.gtp",
    "vvp": "vvp prog.vvp",
    "ngspice": "ngspice -b prog.cir",
    "nasm": "nasm -O9 -f elf64 -o /dev/stdout prog.asm",
    "pandoc": "pandoc -f markdown -t html prog.md",
    "openssl": "openssl speed -elapsed",
}
# What another run prints differently by itself is left out of the comparison.
TIMES = {"stockfish": rb"(?m)^(Total time|Nodes/second|info depth|info string|Stockfish|info).*$", "ngspice": rb"(?m)^.*(time|Date|emory|usage|size|cache|pages|Stack|MB).*$"}
del PROGRAMS["openssl"]
# Other exit codes than 0 of those that go well.
ENDS = {"cadical": 20}
# One after the other, each program beginning with another one.
OPTIONS = [
    [],
    ["--source", "trace", "--overhead", "10%"],
    ["--slots", "on", "--promote-calls", "on", "--duplicate", "on", "--prefetch", "on"],
    ["--source", "burst", "--overhead", "10%"],
    ["--layout", "codestitcher", "--huge-pages", "on", "--keep-in-place", "off"],
]
ALLOWED = {0: "active", 4: "ended", 6: "refused", 7: "too little to do"}
FILES = {
    "prog.perl": "my %h; for my $i (1..2500000) { my $k = 'k'.($i*7919%997); $h{$k} = substr($h{$k}, -40) . chr(65+$i%26); if ($h{$k} =~ /(A.*?B)+(?=C|$)/) { $n += length $1 } eval { die { code => $i } if $i % 501 == 0 }; $n += $@->{code} if ref $@; } print join(',', map { \"$_=\" . length $h{$_} } sort { $h{$a} cmp $h{$b} || $a cmp $b } keys %h), \" $n\\n\"; printf \"%s %.5f\\n\", join('', sort { $b <=> $a } map { $_ ** 2 % 11 } 1..200), sqrt(2);\n",
    "prog.py": "import sys, re, json\nclass A:\n    def __init__(self, n): self.n = n\n    def __lt__(self, o): return (self.n * 31 % 17, self.n) < (o.n * 31 % 17, o.n)\ndef g(n):\n    for i in range(n):\n        try:\n            yield i\n            if i % 13 == 5: raise KeyError(i)\n        except KeyError as e: yield -e.args[0]\nout = []\nfor r in range(100):\n    d = {}\n    for i in g(9000): d.setdefault(i * 7919 % 997, []).append(str(i))\n    out.append(sum(a.n for a in sorted(map(A, range(900)))[:50]) + len(re.sub(r'(\\d+)-\\d', r'\\1', '-'.join('-'.join(v) for v in d.values()))) + len(json.dumps(d)))\nprint(out, sum(x ** 3 for x in range(2000)), f'{2**0.5:.9f}')\n",
    "prog.php": "<?php class A { public $n = 0; function f($x) { if ($x % 7 == 3) throw new Exception((string)$x); $this->n += $x; return fn($y) => $x + $y; } } $a = new A; $t = []; for ($i = 0; $i < 9000000; $i++) { try { $t[$i % 997] = ($a->f($i))($i) ; } catch (Exception $e) { $t[$i % 991] = strlen($e->getMessage()); } if ($i % 100 == 0) $s = md5($i . preg_replace('/(\\d)(\\d)/', '$2$1', (string)($i * 17)) . ($s ?? '')); } echo $s, ' ', array_sum($t), ' ', $a->n, \"\\n\";",
    "prog.rb": "class A; def f(x); raise x.to_s if x % 97 == 3; yield x; end; end\na = A.new; h = Hash.new(0); s = 0\n2_600_000.times { |i| begin; a.f(i) { |y| h[y % 997] += y; s ^= y.to_s.sub(/(\\d)(\\d)/, '\\2\\1').to_i } rescue (s += $!.message.size) end }\nputs s, h.values.sum, (1..900).reduce(:*).to_s.chars.tally.sort.inspect\n",
    "prog.js": "class A { constructor(n) { this.n = n } f(x) { if (x % 97 == 3) throw new Error('e' + x); return [x, this.n].map(y => y * 3 % 1009) } }\nlet m = new Map(), s = 0, t = ''\nfor (let i = 0; i < 9000000; i++) { try { let [p, q] = new A(i).f(i % 5003); m.set(p, (m.get(p) || 0) + q) } catch (e) { s += e.message.length } if (i % 50 == 0) t = (t + i).replace(/(\\d)(\\d)7/g, '$2$1').slice(-300) }\nconsole.log(s, t, [...m].map(([a, b]) => a ^ b).reduce((a, b) => a + b), JSON.stringify(Object.fromEntries(m)).length)\n",
    "Prog.java": "import java.util.*; import java.util.concurrent.*;\npublic class Prog { interface S { int f(int x) throws Exception; }\n static int work(int k) { S[] s = { x -> x * 3, x -> { if (x % 97 == 3) throw new Exception(\"e\" + x); return x ^ k; }, x -> Integer.toString(x).hashCode() }; Map<Integer, String> m = new TreeMap<>(); int n = 0; for (int i = 0; i < 300000; i++) { try { n += s[i % 3].f(i); m.merge(i % 997, \"a\" + i % 10, (a, b) -> a.length() > 40 ? b : a + b); } catch (Exception e) { n += e.getMessage().length(); } } int[] none = null; try { n += none.length; } catch (NullPointerException e) { n++; } return n + m.hashCode(); }\n public static void main(String[] a) throws Exception { ExecutorService p = Executors.newFixedThreadPool(2); List<Future<Integer>> l = new ArrayList<>(); for (int i = 0; i < Integer.parseInt(a[0]); i++) { int k = i; l.add(p.submit(() -> work(k))); } long t = 0; for (Future<Integer> f : l) t = t * 31 + f.get(); p.shutdown(); System.out.println(t); } }\n",
    "prog.lua": "local m = {} local s = 0 for r = 1, tonumber(arg[1]) do local t = {} for i = 1, 60000 do local k = (i * 7919 + r) % 997 t[k] = string.sub((t[k] or '') .. string.char(65 + i % 26), -30) end for k, v in pairs(t) do s = s + #string.gsub(v, 'A.-B', '') + k end local c = coroutine.wrap(function() for i = 1, 9000 do coroutine.yield(i) end end) for i = 1, 9000 do s = s + c() % 7 end for i = 1, 3000 do local ok, e = pcall(error, {i}) s = s + e[1] end end print(s)",
    "prog.scm": "(define (f n) (call/cc (lambda (k) (if (= 0 (modulo n 7)) (k (string-length (number->string n))) (* n 3)))))\n(define (loop i s) (if (= i 0) s (loop (- i 1) (modulo (+ s (f i) (vector-length (make-vector (modulo i 17) 0)) (catch 'x (lambda () (if (= 0 (modulo i 97)) (throw 'x i) i)) (lambda (k v) v))) 1000003))))\n(display (loop 600000 0)) (newline)\n",
    "prog.rkt": "#lang racket/base\n(require racket/list)\n(define (f n) (let/ec k (if (zero? (modulo n 7)) (k (string-length (number->string n))) (* n 3))))\n(define h (make-hash))\n(for ([i (in-range 6000000)]) (with-handlers ([exn:fail? (lambda (e) (hash-update! h 'e add1 0))]) (when (zero? (modulo i 977)) (error 'x)) (hash-update! h (modulo (* i 7919) 997) (lambda (v) (modulo (+ v (f i)) 1000003)) 0)))\n(displayln (apply + (hash-values h)))\n",
    "prog.lisp": "(defun f (n) (handler-case (if (zerop (mod n 97)) (error \"x\") (length (format nil \"~D-~A\" n (mod n 7)))) (error () 3)))\n(let ((h (make-hash-table :test 'equal)) (s 0)) (dotimes (i 3000000) (incf (gethash (mod (* i 7919) 997) h 0) (f i)) (when (zerop (mod i 100)) (setf s (logxor s (sxhash (format nil \"~R\" i)))))) (maphash (lambda (k v) (setf s (mod (+ (* 31 s) k v) 1000003))) h) (print (list s (mod (reduce #'* (loop for i from 1 to 3000 collect i)) 1000003))))\n",
    "small.lisp": "(defun f (n) (handler-case (if (zerop (mod n 97)) (error \"x\") (length (format nil \"~D-~A\" n (mod n 7)))) (error () 3)))\n(let ((h (make-hash-table :test 'equal)) (s 0)) (dotimes (i 20000) (incf (gethash (mod (* i 7919) 997) h 0) (f i))) (maphash (lambda (k v) (setf s (mod (+ (* 31 s) k v) 1000003))) h) (print (list s (mod (reduce #'* (loop for i from 1 to 3000 collect i)) 1000003))))\n",
    "prog.ml": "exception E of int\nlet h = Hashtbl.create 997\nlet f n = if n mod 97 = 3 then raise (E n) else String.length (Printf.sprintf \"%d-%x\" n n)\nlet () = for i = 1 to 5000000 do let v = (try f i with E k -> k mod 7) in let k = i * 7919 mod 997 in Hashtbl.replace h k (v + try Hashtbl.find h k with Not_found -> 0) done; Printf.printf \"%d\\n\" (Hashtbl.fold (fun k v s -> (s * 31 + k lxor v) mod 1000003) (let g = Hashtbl.create 997 in List.iter (fun (k, v) -> Hashtbl.replace g k v) (List.sort compare (Hashtbl.fold (fun k v l -> (k, v) :: l) h [])); g) 0)\n",
    "prog.erl": "#!/usr/bin/env escript\nf(N) when N rem 97 == 3 -> throw({e, N}); f(N) -> length(integer_to_list(N)).\nloop(0, M) -> M; loop(I, M) -> V = try f(I) catch throw:{e, K} -> K rem 7 end, loop(I - 1, maps:update_with((I * 7919) rem 997, fun(X) -> (X * 31 + V) rem 1000003 end, V, M)).\nmain(_) -> Self = self(), [spawn(fun() -> Self ! {K, lists:sum(maps:values(loop(90000 + K, #{})))} end) || K <- lists:seq(1, 6)], io:format(\"~p~n\", [lists:sort([receive X -> X end || _ <- lists:seq(1, 6)])]).\n",
    "prog.R": "f <- function(n) if (n %% 97 == 3) stop(\"x\") else nchar(sprintf(\"%d-%x\", n, n))\ns <- 0; for (i in 1:300000) s <- (s * 31 + tryCatch(f(i), error = function(e) 7)) %% 1000003\nx <- matrix(sin(1:90000), 300); for (k in 1:12) { m <- crossprod(x); s <- s + sum(sort(m)[1:9]) }\nd <- data.frame(a = (1:200000) %% 97, b = sqrt(1:200000)); for (k in 1:6) print(head(aggregate(b ~ a, d, mean), 3))\nprint(s); print(summary(lm(b ~ a, d))$coefficients)\n",
    "prog.m": "s = 0; for i = 1:20000 try if mod(i, 97) == 3 error('x'); end; s = mod(s * 31 + numel(num2str(mod(i, 7))), 1000003); catch s = s + 1; end; end\nprintf('%d\\n', s); a = reshape(sin(1:160000), 400, 400); for k = 1:10 printf('%.6f\\n', sum(sum(a * a')) + sum(sort(a(:))(1:5))); end; printf('%s\\n', regexprep(repmat('a1b22', 1, 9), '(\\d)', '<$1>'));\n",
    "prog.tcl": "proc f n { if {$n % 97 == 3} { error e$n }; return [string length [format %d-%x $n $n]] }\nset s 0; for {set i 0} {$i < 2500000} {incr i} { if {[catch { set v [f $i] } e]} { set v [string length $e] }; dict incr d [expr {$i * 7919 % 997}] $v; if {$i % 10 == 0} { set s [expr {($s * 31 + [llength [regexp -all -inline {\\d+} $i-$v]]) % 1000003}] } }\nputs \"$s [tcl::mathop::+ {*}[dict values $d]]\"\n",
    "prog.swi": "f(N, V) :- ( N mod 97 =:= 3 -> throw(e(N)) ; atom_length(N, V) ).\nloop(0, S, S) :- !.\nloop(I, S, R) :- catch(f(I, V), e(K), V is K mod 7), ( member(X, [1,2,3,4,5]), X * X > I mod 20 -> true ; X = 0 ), T is (S * 31 + V + X) mod 1000003, J is I - 1, loop(J, T, R).\nmain :- loop(3500000, 0, R), numlist(1, 9, L), findall(P, permutation(L, P), Ps), length(Ps, N), writeln(R-N).\n",
    "prog.gp": "print(vecsum([bigomega(2^n-1) | n <- [1..150]])); print(#[1 | p <- [1..9*10^5], isprime(p^2+p+41)]); print(polcoeff(prod(k=1,700,1+x^k,1+O(x^900)),600)); print(lindep([sqrt(2),sqrt(3),Pi,exp(1),1])); forprime(p=2,4000,ellap(ellinit([1,2]),p)); print(ellrank(ellinit([0,0,0,-157^2,0]))[1]); print(factor(10^59+1));\n",
    "prog.awk": "function f(n) { return n % 97 == 3 ? length(n \"e\") : length(sprintf(\"%d-%x\", n, n)) }\nBEGIN { for (i = 0; i < 4000000; i++) { k = i * 7919 % 997; h[k] = (h[k] * 31 + f(i)) % 1000003; if (i % 10 == 0) { t = \"a\" i \"b\" k; gsub(/[13579]+/, \"<&>\", t); s += length(t) } } for (k = 0; k < 997; k++) s = (s * 31 + h[k]) % 1000003; print s }\n",
    "prog.bc": "scale=90\nfor (i = 1; i < 24000; i++) { x = sqrt(i) * i ^ 5 / 7; if (i % 1000 == 0) x }\ndefine f(n) { if (n < 2) return (n); return (f(n - 1) + f(n - 2)) }\nf(26)\n",
    "small.bc": "scale=60\nfor (i = 1; i < 9000; i++) { x = sqrt(i) * i ^ 5 / 7; if (i % 1000 == 0) x }\ndefine f(n) { if (n < 2) return (n); return (f(n - 1) + f(n - 2)) }\nf(24)\n",
    "prog.m4": "define(`f', `ifelse($1, 0, 0, `eval($1 % 7 + f(decr($1)))')')define(`r', `ifelse($1, 0, , `f(400)translit(substr(`abcdefghij', eval($1 % 5)), `a-e', `A-E')r(decr($1))')')r(900)\n",
    "prog.jq": "def f(n): try (if n % 97 == 3 then error(\"e\\(n)\") else (\"\\(n)-\" | length) end) catch (. | length); reduce range(900000) as $i ({}; .[($i * 7919 % 97 | tostring)] += f($i)) | [to_entries[] | select(.key | test(\"[13579]$\"))] | map(.value) | add\n",
    "prog.sh": "f() { case $1 in *7) echo \"${1%7}-$2\";; *[02468]) return 1;; *) y=$(( $1 * 3 % 101 ));; esac; }\ni=0\nwhile [ $i -lt $1 ]; do i=$((i + 1)); case $i in *7) z=${i%7};; *) f $i a || x=$(( (x + i) % 1009 ));; esac; done\necho $x $y $z; for w in $(echo a b c); do printf '%s,%05d\\n' $w 42; done; trap 'echo end' EXIT; (exit 3); echo $?\n",
    "prog.c": "".join(f"int f{n}(int x, int *p) {{ int s = 0; for (int i = 0; i < x; i++) {{ switch ((x ^ i) & 7) {{ case 0: s += {n}; case 1: s ^= x * {n}; break; case 2: p[i & 15] += s; case 3: return s + f{max(n - 1, 0)}(x - 1, p); default: s -= p[(s + i) & 15]; }} if (s % {n + 3} == 1) p[3] = s / (x | 1); }} return s; }}\n" for n in range(1100)),
    "prog.cc": "#include <map>\n#include <string>\n#include <vector>\n#include <algorithm>\n#include <regex>\n#include <sstream>\n#include <functional>\n" + "".join(f"struct T{n} {{ std::map<std::string, std::vector<long (*)[{n + 1}]>> m; template <class F> long g(F f) {{ try {{ return f(m.size()); }} catch (const std::exception &e) {{ return e.what()[{n}]; }} }} }}; long h{n}(T{n} &t, std::vector<std::string> v) {{ std::sort(v.begin(), v.end(), [](auto &a, auto &b) {{ return a.size() * {n} < b.size(); }}); return t.g([&](long k) {{ std::ostringstream o; for (auto &s : v) o << s << k; return std::stol(o.str()); }}); }}\n" for n in range(50)),
    "prog.f90": "".join(f"subroutine s{n}(a, b, n)\n  integer :: n, i, j, k\n  real :: a(n,n), b(n,n)\n  do k = 1, n\n    do j = 1, n\n      do i = 1, n\n        if (a(i,k) > {n}.0) then\n          b(i,j) = b(i,j) + a(i,k) * a(k,j) / {n + 1}.0\n        else\n          b(i,j) = max(b(i,j), sqrt(abs(a(k,j))))\n        end if\n      end do\n    end do\n  end do\nend subroutine\n" for n in range(700)),
    "prog.adb": "procedure Prog is\n   type V is array (1 .. 64) of Integer;\n   X : V := (others => 3);\n" + "".join(f"   procedure P{n} (A : in out V; K : Integer) is\n      E : exception;\n   begin\n      for I in A'Range loop\n         case (I + K) mod 5 is\n            when 0 => A (I) := A (65 - I) * {n};\n            when 1 | 2 => if A (I) > K then raise E; end if;\n            when others => A (I) := A (I) / (K + 1);\n         end case;\n      end loop;\n   exception\n      when E => A (1) := {n};\n   end P{n};\n" for n in range(800)) + "begin\n" + "".join(f"   P{n} (X, {n});\n" for n in range(800)) + "end Prog;\n",
    "prog.rs": "#![crate_type = \"lib\"]\nuse std::collections::BTreeMap;\n" + "".join(f"pub enum E{n} {{ A(String), B(Vec<u{8 << n % 4}>), C }}\npub fn f{n}(m: &mut BTreeMap<String, E{n}>, k: &str) -> Result<usize, std::num::ParseIntError> {{ let n: usize = k.parse()?; for (i, e) in m.values_mut().enumerate() {{ match e {{ E{n}::A(s) if s.len() > n => s.push_str(k), E{n}::A(s) => *e = E{n}::B(s.bytes().map(|b| b as _).collect()), E{n}::B(v) => v.sort(), E{n}::C => return Ok(i) }} }} m.insert(format!(\"{{k}}{{n:x}}\"), E{n}::C); Ok(m.len()) }}\n" for n in range(75)),
    "prog.go": "package prog\nimport (\"fmt\"; \"sort\"; \"strings\")\n" + "".join(f"type T{n} struct {{ m map[string][]int; k [{n + 1}]string }}\nfunc (t *T{n}) F(x int, ch chan int) (r string, err error) {{ defer func() {{ if e := recover(); e != nil {{ err = fmt.Errorf(\"%v\", e) }} }}(); for i, s := range t.k {{ switch {{ case strings.HasPrefix(s, \"a\"): t.m[s] = append(t.m[s], i * x); case i % 3 == 1: select {{ case v := <-ch: r += fmt.Sprint(v); default: sort.Ints(t.m[s]) }}; default: panic(s) }} }}; go func() {{ ch <- x }}(); return }}\n" for n in range(3000)),
    "prog.sql": "create table t(a,b,c);with recursive n(i) as(select 1 union all select i+1 from n where i<900000) insert into t select i%9973,i*i%1009,'x'||i from n;create index k on t(a);select b%10,count(*),sum(a),max(c) from t group by 1;select count(*) from t x join t y on x.a=y.b where x.c like '%77' and y.a<300;select a,sum(b) over (partition by a%7 order by a),group_concat(distinct b%7) from t where a<90 group by a;update t set c=replace(c,'7','sieben') where b%3=1;select sum(length(c)) from t;\n",
    "prog.ps": "%!\n/r 12345 def /rnd { /r r 16807 mul 2147483647 mod cvi def r 1000 mod } def\n1 1 24 { pop newpath 1 1 2500 { pop rnd 2 div rnd 3 div moveto rnd 2 div rnd rnd 2 div rnd rnd 2 div rnd curveto rnd 1000 div setgray rnd 200 div setlinewidth stroke } for /Times-Roman findfont 14 scalefont setfont 1 1 400 { rnd 2 div rnd moveto 10 string cvs show } for showpage } for\n",
    "prog.dot": "digraph g { " + "".join(f"n{n} -> n{n * 7919 % 467}; n{n} -> n{n * n % 389} [label=\"e{n}\"]; " for n in range(330)) + "}\n",
    "prog.cnf": "",
    "prog.gtp": "boardsize 19\nlevel 10\n" + "genmove black\ngenmove white\n" * 14 + "showboard\nquit\n",
    "prog.v": "module main; reg [31:0] r, s; reg [7:0] m[0:255]; integer i; function [31:0] f(input [31:0] x); f = (x ^ (x << 13)) + (x >> 7); endfunction always @(r) begin if (r[3:0] == 5) s <= s + m[r[15:8]]; else case (r[6:5]) 0: s <= s ^ r; 1: s <= f(s); default: m[r[7:0]] <= s[7:0]; endcase end initial begin s = 1; r = 7; for (i = 0; i < 256; i = i + 1) m[i] = i * 7; for (i = 0; i < 1700000; i = i + 1) begin #1 r = f(r + i); end $display(\"%h %h\", r, s); $finish; end endmodule\n",
    "prog.cir": "ring\n.model n nmos(level=1 vto=0.7 kp=100u)\n.model p pmos(level=1 vto=-0.7 kp=40u)\nvdd v 0 3\n" + "".join(f"mp{n} o{n} o{(n - 1) % 21} v v p w=4u l=1u\nmn{n} o{n} o{(n - 1) % 21} 0 0 n w=2u l=1u\nc{n} o{n} 0 {20 + n}f\n" for n in range(21)) + ".ic v(o0)=3\n.tran 20p 400n uic\n.print tran v(o3) v(o9)\n.end\n",
    "prog.asm": "bits 64\n" + "".join(f"l{n}: mov rax, [rel l{n * 7919 % 30000}]\n jz l{max(n - n % 40, 0)}\n jmp l{min(n + n % 47, 29999)}\n%if {n} % 3\n add eax, {n}\n%else\n lea rcx, [rax + rbx * 4 + {n}]\n%endif\n" for n in range(30000)),
    "prog.md": "".join(f"# Title {n}\n\nText *with* **some** `code{n}` and [a link](http://x/{n}) and a list:\n\n- one\n- two\n    1. deep {n}\n\n| a | b |\n|---|---|\n| {n} | c |\n\n> quoted \\<b\\> text & more\n\n" for n in range(1100)),
}


def main(machine):
    folder = machine.path("work")
    prepare(machine, folder)
    absent, equal, left = [], [], []
    chosen = [name.strip() for name in os.environ.get("ONLY", "").split(";") if name.strip()]
    bad = {}
    for name, line in PROGRAMS.items():
        if chosen and name not in chosen:
            continue
        try:
            command = words(line)
        except Missing:
            absent.append(name)
            continue
        try:
            codes = one(machine, folder, name, command)
            (equal if codes.get(0) else left).append(name)
        except Failed as problem:
            bad[name] = problem
            log(f"  {name}: {problem}")
    log(f"  equal while attached to: {len(equal)}; never attached to: {', '.join(left) or 'none'}; not installed: {', '.join(absent) or 'none'}")
    if bad:
        raise Failed(f"different or failed: {', '.join(bad)}")


def words(line):
    """The words of a command, its program by path."""
    places = {"{go}": glob.glob("/usr/lib/go-*/pkg/tool/linux_amd64")}
    for name, found in places.items():
        if name in line:
            if not found:
                raise Missing(name)
            line = line.replace(name, found[-1])
    program, *arguments = line.split(" ")
    for shell in SHELL_WORDS:
        if line.startswith(shell):
            program, *arguments = shlex.split(line)
    return [find(program if "/" in program else f"/usr/bin/{program}", f"/usr/games/{program}"), *arguments]


SHELL_WORDS = ("java ",)


def one(machine, folder, name, command):
    """{exit code of attach: how often}; raises Failed if anything differs."""
    plain = started(folder, command)
    start = time.monotonic()
    expected = ended(name, plain)
    took = time.monotonic() - start
    if expected[0] not in (0, ENDS.get(name)):
        raise Failed(f"the program itself ended so: {show(expected)}")
    child = started(folder, command)
    codes = {}
    try:
        turn = list(PROGRAMS).index(name)
        time.sleep(min(0.5, took / 8))
        while child[0].poll() is None:
            options = OPTIONS[turn % len(OPTIONS)]
            code, text = attached(machine, child[0].pid, options)
            codes[code] = codes.get(code, 0) + 1
            if VERBOSE or code == 6:
                log(f"    {' '.join(options)}: {text}")
            if code == 4:
                break
            time.sleep(0.3)
            # Every other time one version follows another.
            if turn % 2 and child[0].poll() is None:
                revert(machine, child[0].pid, allowed=(0, 4, 6, 7))
            turn += 1
        actual = ended(name, child)
    finally:
        if child[0].poll() is None:
            child[0].kill()
            child[0].wait()
    if actual[:2] != expected[:2]:
        raise Failed(f"attached: {show(actual)}; by itself: {show(expected)}")
    log(f"  {name}: equal; {took:.1f} s; " + ", ".join(f"{ALLOWED[code]} {count}" for code, count in sorted(codes.items())))
    return codes


def attached(machine, pid, options):
    """Attaches; exit code, and what restitch said last."""
    command = [RESTITCH, "attach", str(pid), "--duration", "1", "--measure", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=dict(os.environ, RESTITCH_STATE_DIR=machine.path("state")))
    if done.returncode not in ALLOWED:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def started(folder, command):
    """A running program and its output's files."""
    env = {"PATH": os.environ["PATH"], "HOME": folder, "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1", "PERL_HASH_SEED": "0", "RUBYOPT": "", "TERM": "dumb"}
    out, errors = open(f"{folder}/out", "w+b"), open(f"{folder}/errors", "w+b")
    return subprocess.Popen(command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, cwd=folder, env=env), out, errors


def ended(name, child):
    """Exit code, a hash of the output, the ends of output and errors."""
    process, out, errors = child
    try:
        process.wait(timeout=400)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise Failed("it does not end") from None
    texts = []
    for file in (out, errors):
        file.seek(0)
        texts.append(file.read())
        file.close()
    if name in TIMES:
        texts[0] = re.sub(TIMES[name], b"", texts[0])
    return process.returncode, hashlib.sha256(texts[0]).hexdigest(), texts[0][-200:], texts[1][-600:]


def show(result):
    return f"exit code {result[0]}, output {result[1][:12]} ...{result[2][-80:]!r}, {result[3].decode(errors='replace').strip()}"


def prepare(machine, folder):
    os.makedirs(f"{folder}/repository")
    for name, text in FILES.items():
        with open(f"{folder}/{name}", "w") as f:
            f.write(text)
    state = 7
    clauses = []
    for _ in range(1080):
        clause = []
        for _ in range(3):
            state = state * 48271 % 2147483647
            clause.append((state // 7 % 250 + 1) * (1 if state & 64 else -1))
        clauses.append(" ".join(map(str, clause)) + " 0\n")
    with open(f"{folder}/prog.cnf", "w") as f:
        f.write(f"p cnf 250 {len(clauses)}\n" + "".join(clauses))
    with open(f"{folder}/big", "w") as f:
        for n in range(160000):
            state = state * 48271 % 2147483647
            f.write(f"line{n} {state % 99991} of file{n * 7919 % 1000} {state * 77:x} {'abcdefghij'[n % 10] * (n % 13)}\n")
    with contextlib.suppress(Missing):
        git = [find("git"), "-C", f"{folder}/repository", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "gc.auto=0"]
        machine.run([*git, "init", "-q"])
        for n in range(60):
            for k in range(50):
                with open(f"{folder}/repository/f{(k * 7 + n) % 90}", "w") as f:
                    f.write("".join(f"{i * n % 97} {i * k % 89} {'x' * (i % 31)}\n" for i in range(400)))
            machine.run([*git, "add", "-A"])
            machine.run([*git, "commit", "-q", "--date=2020-01-01T00:00:00Z", "-m", f"c{n}"])
    with contextlib.suppress(Missing):
        machine.run([find("iverilog"), "-o", f"{folder}/prog.vvp", f"{folder}/prog.v"])


program(main)
