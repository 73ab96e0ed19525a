#!/usr/bin/env bash
# libgcc 12 (Debian 12): the unwind rows of `__morestack` begin with a canonical frame address of rsp+16, not rsp+8 as at the entry of any
# other function, though nothing has been pushed. So an unwinder that stands there takes the word above the return address for the return
# address: the function that called (whose prologue has run out of stack) is left out, and its caller comes next. The call is
# `call __morestack; ret`, and `__morestack` comes back behind the `ret`; a tool that trusts the rows alone finds no sign that the
# function's own return address is read and counted up.
set -euo pipefail

packages=(libgcc-12-dev=12.2.0-14+deb12u1 binutils-x86-64-linux-gnu=2.40-2 libbinutils=2.40-2 libctf-nobfd0=2.40-2)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -q "${packages[@]}" >download 2>&1 || { cat download >&2; exit 2; }
for package in *.deb; do dpkg -x "$package" .; done
tool() { LD_LIBRARY_PATH=$folder/usr/lib/x86_64-linux-gnu "$folder/usr/bin/x86_64-linux-gnu-$1" "${@:2}"; }

tool ar x usr/lib/gcc/x86_64-linux-gnu/12/libgcc.a morestack.o
entry=$(tool readelf -sW morestack.o | awk '$8 == "__morestack" { print $2 }')
echo "__morestack is at $entry"
# The first row of the table entry that begins there.
row=$(tool readelf --debug-dump=frames-interp morestack.o 2>/dev/null |
    awk -v entry="$entry" '/ FDE / { inside = index($0, "pc=" entry) } inside && $1 == entry { print $2; exit }')
echo "its first row: the frame is at $row"
tool objdump -d --start-address=0x"$entry" morestack.o | grep -m 1 -A 3 '<__morestack>:' || true
[[ $row == rsp+16 ]] || { echo 'not as described' >&2; exit 1; }
