#!/usr/bin/env bash
# perf 6.1 (Debian 12): a program that is replaced (renamed over, as package managers do) while it is recorded. The table of build ids that
# perf writes at the end has one entry for the path, that of the file which is there by then; samples of the file that ran before are
# attributed to it. Only `--buildid-mmap`, which puts the id of each mapped file into its mapping event, tells the two apart.
set -euo pipefail

packages=(
    linux-perf=6.1.192-2 libbabeltrace1=1.5.11-1+b2 libdw1=0.188-2.1 libelf1=0.188-2.1 libnuma1=2.0.16-1 libopencsd1=1.3.3-1
    libslang2=2.3.3-3 libunwind8=1.6.2-3 libzstd1=1.5.4+dfsg2-5
)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -q "${packages[@]}" >download 2>&1 || { cat download >&2; exit 2; }
for package in *.deb; do dpkg -x "$package" .; done
perf() { LD_LIBRARY_PATH=$folder/usr/lib/x86_64-linux-gnu:$folder/lib/x86_64-linux-gnu "$folder/usr/bin/perf" "$@"; }
perf --version

printf 'int main(void) { volatile unsigned long s = 0; for (unsigned long i = 0; i < 200000000; i++) s += STEP; return 0; }\n' >tool.c
gcc -O1 -DSTEP=1 -Wl,--build-id tool.c -o first
gcc -O1 -DSTEP=i -Wl,--build-id tool.c -o second
id() { readelf -n "$1" | sed -n 's/.*Build ID: //p'; }

# What the table of a recording of `first`, which is replaced by `second` before the recording ends, says of the path.
recorded() { # options of perf record
    cp first tool
    perf record -q "$@" -e cpu-clock:u -o data sh -c './tool; cp second new; mv new tool' >/dev/null 2>&1
    perf buildid-list -i data | awk -v path="$folder/tool" '$NF == path { print $1 }'
}
plain=$(recorded) samples=$(perf script -i data -F dso,ip 2>/dev/null | grep -c '/tool)')
mapped=$(recorded --buildid-mmap)
printf 'ran: %s\nreplaced by, never run: %s\ntable: %s, with %s samples\ntable with --buildid-mmap: %s\n' \
    "$(id first)" "$(id second)" "$plain" "$samples" "$mapped"
[[ $plain == "$(id second)" && $mapped == "$(id first)" && $samples -gt 0 ]] || { echo 'not as described' >&2; exit 1; }
