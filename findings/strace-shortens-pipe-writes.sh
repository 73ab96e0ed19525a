#!/usr/bin/env bash
# strace 6.1 (Debian 12) on Linux: attaching to a process that is in a blocking write() of 1 MiB to a pipe makes that write() return
# early, with what the reader had taken by then. POSIX has blocking writes to pipes come back whole unless a signal handler
# interrupts them, no handler runs here, and strace only looks. The kernel does not restart a write that has moved some bytes, and a
# tracer's stop interrupts it as a signal does. Programs that take a short write for an error, or do not look, lose output for
# having been looked at; so every tool that stops threads (ptrace, a debugger) has to expect it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# (apt-get download wants a folder that its own user may write to; the warning about that means nothing here.)
apt-get download -q strace=6.1-0.1 libunwind8=1.6.2-3 >download 2>&1 || { cat download >&2; exit 2; }
for package in *.deb; do dpkg -x "$package" .; done
libraries=$folder/usr/lib/x86_64-linux-gnu
LD_LIBRARY_PATH=$libraries "$folder/usr/bin/strace" --version | head -n 1
uname -sr

cat >writer.c <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
/* A child reads 1 MiB within some two seconds; prints what one write() of it has returned. */
int main(void) {
    enum { ALL = 1 << 20, STEP = 8192 };
    int ends[2];
    char *bytes = calloc(1, ALL);
    if (!bytes || pipe(ends)) return 2;
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    if (fork() == 0) {
        close(ends[1]);
        while (read(ends[0], bytes, STEP) > 0) usleep(15000);
        return 0;
    }
    close(ends[0]);
    printf("%zd\n", write(ends[1], bytes, ALL));
    return 0;
}
END
gcc -O1 writer.c -o writer

./writer >alone
./writer >looked_at &
pid=$!
sleep 0.7
timeout 0.5 env LD_LIBRARY_PATH="$libraries" "$folder/usr/bin/strace" -o trace -p $pid 2>/dev/null || true
wait $pid
printf 'write() of 1048576 bytes alone: %s\nwith strace attached meanwhile: %s\n' "$(cat alone)" "$(cat looked_at)"
[[ $(cat alone) == 1048576 && $(cat looked_at) -gt 0 && $(cat looked_at) -lt 1048576 ]] || { echo 'not as described' >&2; exit 1; }
