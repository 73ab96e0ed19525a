#!/usr/bin/env bash
# perf 6.1 (Debian 12): a recording that is compressed while it is written (`perf record -z`) ends with a table of build ids that are all
# empty, also for the program that was recorded and has one. The same recording without -z, or with --buildid-mmap (which puts the
# ids into the mapping events), names it. So a reader must not take the table's entry of a compressed file for "has no build id", let
# alone for a build id of length zero: samples then match no program, or any.
set -euo pipefail

packages=(
    linux-perf=6.1.192-2 libbabeltrace1=1.5.11-1+b2 libdw1=0.188-2.1 libelf1=0.188-2.1 libnuma1=2.0.16-1 libopencsd1=1.3.3-1
    libslang2=2.3.3-3 libunwind8=1.6.2-3 libzstd1=1.5.4+dfsg2-5
)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# (apt-get download wants a folder that its own user may write to; the warning about that means nothing here.)
apt-get download -q "${packages[@]}" >download 2>&1 || { cat download >&2; exit 2; }
for package in *.deb; do dpkg -x "$package" .; done
perf() { LD_LIBRARY_PATH=$folder/usr/lib/x86_64-linux-gnu:$folder/lib/x86_64-linux-gnu "$folder/usr/bin/perf" "$@"; }
perf --version

printf 'int main(void) { volatile unsigned long s = 0; for (unsigned long i = 0; i < 200000000; i++) s += i; return 0; }\n' >work.c
gcc -O1 -Wl,--build-id work.c -o work
wanted=$(readelf -n work | sed -n 's/.*Build ID: //p')

id_of() { # options of perf record: what the table says of the program
    perf record -q "$@" -e cpu-clock:u -o data ./work >/dev/null 2>&1
    perf buildid-list -i data | awk -v path="$folder/work" '$NF == path { print (NF > 1 ? $1 : "empty") }'
}
plain=$(id_of) compressed=$(id_of -z) mapped=$(id_of -z --buildid-mmap)
printf 'build id: %s\nplain: %s\n-z: %s\n-z --buildid-mmap: %s\n' "$wanted" "$plain" "$compressed" "$mapped"
[[ $plain == "$wanted" && $compressed == empty && $mapped == "$wanted" ]] || { echo 'not as described' >&2; exit 1; }
