# Copies what the kernel says of itself below /view, under its own names, and the parts of its memory that are
# mapped as kernel text and data into /view/parts, each named after its address.
mkdir -p /view/parts
# Addresses in /proc/vmallocinfo are shown to those who may, and hidden from all by the value 0.
before=$(cat /proc/sys/kernel/kptr_restrict)
echo 1 >/proc/sys/kernel/kptr_restrict

take() {
    [ -f "$1" ] || return
    mkdir -p "/view${1%/*}"
    cat "$1" >"/view$1" 2>/dev/null || rm -f "/view$1"
}
for each in cmdline cpuinfo iomem kallsyms modules version vmallocinfo sys/kernel/ftrace_enabled \
    sys/kernel/osrelease sys/kernel/tainted; do
    take "/proc/$each"
done
for each in kernel/btf/vmlinux kernel/debug/kprobes/blacklist kernel/debug/kprobes/list kernel/notes \
    kernel/security/lockdown kernel/tracing/available_filter_functions \
    kernel/tracing/available_filter_functions_addrs kernel/tracing/enabled_functions \
    kernel/tracing/touched_functions; do
    take "/sys/$each"
done
for each in /sys/module/*/sections/.* /sys/module/*/notes/* /sys/devices/system/cpu/vulnerabilities/*; do
    take "$each"
done

# hex FILE OFFSET BYTES: those bytes as words of eight bytes.
hex() { od -A n -v -t x8 -j "$2" -N "$3" "$1"; }
# part OFFSET ADDRESS SIZE: pages of the file at OFFSET, which are memory at ADDRESS; hexadecimal.
part() {
    dd if=/proc/kcore of="/view/parts/$2" bs=4096 skip=$((0x$1 / 4096)) count=$((0x$3 / 4096)) 2>/dev/null ||
        echo "cannot read $3 bytes at $2 from /proc/kcore" >&2
}
dd if=/proc/kcore of=/view/head bs=4096 count=16 2>/dev/null
count=$((0x$(od -A n -t x2 -j 56 -N 2 /view/head | tr -d ' ')))
at=64
while [ "$count" -gt 0 ]; do
    # Flags and type, offset, address, physical address, size in the file, size in memory, alignment.
    set -- $(hex /view/head $at 56)
    at=$((at + 56))
    count=$((count - 1))
    [ "${1#????????}" = 00000001 ] || continue
    case $3 in
    ffffffffa0000000 | ffffffffc0000000)
        # The range of modules: far larger than what is mapped in it.
        offset=$2 base=$3
        grep -E '^0xffffffff[ac]' /proc/vmallocinfo | while read -r range rest; do
            begin=${range%-*} end=${range#*-}
            part "$(printf %x $((0x$offset + (begin - 0x$base))))" "${begin#0x}" "$(printf %x $((end - begin)))"
        done
        ;;
    ffffffff[89ab]*) part "$2" "$3" "$5" ;;
    esac
done
echo "$before" >/proc/sys/kernel/kptr_restrict
