#!/usr/bin/env bash
# binutils 2.40 and LLVM 14 (Debian 12): two unwind table entries (FDEs) with one start address, a short one and one of the whole function,
# as hand-written tables have them. GNU ld refuses to make a search table ("overlapping FDEs"). gold says nothing and lists both. lld says
# nothing and lists the first of them alone. So libgcc's unwinder, which trusts the search table, finds no entry for the rest of the
# function in lld's program (an exception ends there), while whoever walks .eh_frame itself finds one.
set -euo pipefail

packages=(
    binutils-x86-64-linux-gnu=2.40-2 libbinutils=2.40-2 libbsd0=0.11.7-2 libctf-nobfd0=2.40-2 libctf0=2.40-2
    libedit2=3.1-20221030-2 libffi8=3.4.4-1 libicu72=72.1-3+deb12u1 libjansson4=2.14-2 libllvm14=1:14.0.6-12
    libmd0=1.0.4-2 libxml2=2.9.14+dfsg-1.3~deb12u6 libz3-4=4.8.12-3.1 lld-14=1:14.0.6-12
)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -q "${packages[@]}" >download 2>&1 || { cat download >&2; exit 2; }
for package in *.deb; do dpkg -x "$package" .; done
libraries=$folder/usr/lib/x86_64-linux-gnu
mkdir linkers
linker() { # name for gcc, program
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%s exec -a ld.%s %s "$@"\n' "$libraries" "$1" "$2" >"linkers/ld.$1"
    chmod +x "linkers/ld.$1"
    "linkers/ld.$1" --version | head -n 1
}
linker bfd "$folder/usr/bin/x86_64-linux-gnu-ld.bfd"
linker gold "$folder/usr/bin/x86_64-linux-gnu-ld.gold"
linker lld "$folder/usr/lib/llvm-14/bin/lld"

cat >twice.s <<'END'
.globl twice, part
.type twice, @function
twice: mov %edi, %eax
part: add $1, %eax
ret
twice_end:
.section .eh_frame, "a", @unwind
.p2align 3
cie: .long cie_end - cie_id
cie_id: .long 0
.byte 1
.asciz "zR"
.uleb128 1
.sleb128 -8
.uleb128 16
.uleb128 1
.byte 0x1b, 0xc, 7, 8, 0x90, 1
.p2align 3
cie_end:
.macro FDE to
.long 2f - 1f
1: .long 1b - cie
.long twice - .
.long \to - twice
.uleb128 0
.p2align 3
2:
.endm
FDE part
FDE twice_end
.section .note.GNU-stack, "", @progbits
END
cat >main.c <<'END'
#include <stdio.h>
struct bases { void *text, *data, *function; };
const void *_Unwind_Find_FDE(void *, struct bases *);
extern char twice[], part[];
int main(void) {
    struct bases bases;
    printf("twice: %s, part: %s\n", _Unwind_Find_FDE(twice, &bases) ? "found" : "none", _Unwind_Find_FDE(part, &bases) ? "found" : "none");
    return 0;
}
END
seen() { # linker: how it ends, and what its program prints
    gcc -O1 -B "$folder/linkers" -fuse-ld="$1" main.c twice.s -o "$1" >"$1.said" 2>&1 || { grep -o 'overlapping FDEs' "$1.said"; return; }
    [[ -s $1.said ]] && { echo warned; return; }
    "./$1"
}
for linker in bfd gold lld; do echo "$linker: $(seen $linker)"; done | tee found
[[ $(cat found) == "bfd: overlapping FDEs
gold: twice: found, part: found
lld: twice: found, part: none" ]] || { echo 'not as described' >&2; exit 1; }
