# Runs in a guest: takes group modules in force under loads that check their own results, and looks at all that
# others see of it. The files: /control.ko, /groups/NAME.ko, /loads, /groups/programs; /roots has a line for each group:
#
#	NAME ROOT LOAD
#
# (one is of do_sys_poll; LOAD is - if no load is its) and /memory one for each function that they copy:
#
#	ADDRESS LENGTH SHA256 NAME
#
# SECONDS, KILLS: how long the groups are toggled, how many holders are killed; CONTROL: options of the control module.
# TRIALS: with groups of sysfs_create_file_ns and cmdline_proc_show, the modules of kernel/trials in /trials, and nft:
# the kernel warns in a copy, functions are patched, rules of the packet filter come and go.
# Prints a line for each thing that held; the last is `all held`. Whatever does not hold ends it.
TRACING=/sys/kernel/tracing
DEVICE=/dev/restitch-kernel
NAMES=$(cut -d ' ' -f 1 /roots)
POLL=$(sed -n 's/^\([^ ]*\) do_sys_poll .*/\1/p' /roots)
LOADS=$(cut -d ' ' -f 3 /roots | grep -v '^-$' | sort -u)
PATCH=/sys/kernel/livepatch/trial_patch
FILE=/work.data

failed() {
    echo "FAILED: $*"
    cat $DEVICE
    exit 1
}

held() { echo "held: $*"; }

# state NAME STATE: whether the control module says that a group is in it.
state() { grep -q "^$1 $2 " $DEVICE; }

# run_loads SECONDS: all of them at once.
run_loads() {
    pids=
    for load in $LOADS; do
        /loads "$load" "$1" "$FILE" &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || failed "a load found a wrong result"; done
}

# hits PROBE: how often a probe was hit.
hits() { sed -n "s/^ *$1  *\([0-9]*\) .*/\1/p" $TRACING/kprobe_profile; }

# counted ORIGINAL COPY: of 100 calls of poll, that many arrive at the original and at its copy.
counted() {
    before=$(hits original) before_copy=$(hits copy)
    /loads polls 100
    now=$(($(hits original) - before)) now_copy=$(($(hits copy) - before_copy))
    [ "$now $now_copy" = "$1 $2" ] || failed "100 calls: $now at the original, $now_copy at the copy, not $1 and $2"
}

# trace_events 1|0: those of the paths that groups copy, on or off.
trace_events() {
    for each in ext4 filemap kmem net sched signal skb sock tcp; do
        [ ! -d $TRACING/events/$each ] || echo "$1" >$TRACING/events/$each/enable
    done
}

# traced FUNCTION: how often the function tracer names it in 100 calls of poll.
traced() {
    echo >$TRACING/trace
    /loads polls 100
    grep -c " $1 *<-" $TRACING/trace
}

# warning FUNCTION: has sysfs_create_file_ns warn, and sets `place` to the place in the source that is named, if the
# kernel says that it was FUNCTION; its caller has to be found on the stack.
warning() {
    insmod /trials/trial_warning.ko && rmmod trial_warning || failed "the kernel has not gone on after a warning"
    dd if=/dev/kmsg bs=8192 iflag=nonblock 2>/dev/null | tac | sed '/WARNING: /q' >/warned
    grep -q '; *trial_begin+0x' /warned || failed "the caller is not on the stack: $(cat /warned)"
    place=$(sed -n "s/.*WARNING: .*\(fs\/sysfs\/file\.c:[0-9]*\)\( at\)* $1+0x.*/\1/p" /warned)
    [ -n "$place" ] || failed "the warning is not one of $1: $(cat /warned)"
}

# is_patched: whether the live patch is in force.
is_patched() { [ "$(cat /proc/cmdline)" = patched ]; }

# unpatch: takes it out of force, and its module out.
unpatch() {
    echo 0 >$PATCH/enabled || failed "the live patch cannot be undone"
    within 120 [ ! -e $PATCH ] || failed "the live patch does not come to its end"
    is_patched && failed "the live patch is in force for ever"
    rmmod trial_patch || failed "the module of the live patch stays"
}

# filter: rules that count packets where they come in and go out, which switches static keys on the way.
filter() {
    nft add table ip trial
    for hook in prerouting input output; do
        nft "add chain ip trial $hook { type filter hook $hook priority 0; }" &&
            nft add rule ip trial $hook counter || failed "no rule at $hook"
    done
}

unfilter() { nft delete table ip trial; }

# filtered: with rules, all packets are seen at each place.
filtered() {
    filter
    /loads tcp 1 || failed "a load found a wrong result"
    set -- $(nft list table ip trial | sed -n 's/.*counter packets \([0-9]*\) .*/\1/p')
    [ $# = 3 ] && [ "$1" -gt 100 ] && [ "$1" = "$2" ] && [ "$1" = "$3" ] || failed "rules have seen $*"
    unfilter
    /loads tcp 1 || failed "a load found a wrong result"
}

# number OFFSET: the word of eight bytes there in the file of the kernel's memory, hexadecimal.
number() { od -A n -t x8 -j "$1" -N 8 /proc/kcore | tr -d ' '; }

# Sets `base` and `offset`: where the kernel's image is, in memory and in the file of its memory.
find_image() {
    at=64
    while [ $at -lt 4096 ]; do
        base=$(number $((at + 16))) offset=$(number $((at + 8)))
        case $base in ffffffff[89ab]*) return ;; esac
        at=$((at + 56))
    done
    failed "the kernel's image is not in its memory"
}

# same_memory: whether each function is, byte for byte, as /memory says.
same_memory() {
    while read -r address length sum name; do
        # The first half of both is the same, and too large a number for some shells.
        skip=$((0x$offset + 0x${address#ffffffff} - 0x${base#ffffffff}))
        found=$(dd if=/proc/kcore bs=65536 iflag=skip_bytes,count_bytes skip=$skip count="$length" 2>/dev/null | sha256sum)
        [ "${found%% *}" = "$sum" ] || failed "$name is not as in the view"
    done </memory
}

find_image
same_memory
held "the functions are as in the view that the groups were made from"

insmod /control.ko ${CONTROL-} || failed "the control module is not taken"
for name in $NAMES; do
    insmod "/groups/$name.ko" || failed "$name is not taken"
    state "$name" registered || failed "$name is not registered"
done
run_loads 2
held "loads without groups"

if [ -n "${TRIALS-}" ]; then
    filtered
    warning sysfs_create_file_ns
    warned=$place
    insmod /trials/trial_patch.ko || failed "the live patch is not taken"
    within 60 is_patched || failed "the live patch does nothing"
    exec 3<>$DEVICE
    echo "enable restitch_cmdline_proc_show" >&3 && failed "a function that is patched is led elsewhere"
    is_patched || failed "the live patch is not in force any more"
    exec 3>&-
    unpatch
    held "a live patch that was there before keeps its function"
fi

# Probes on a function stay where they are while its callers are led to the copy.
echo 'p:original do_sys_poll' >$TRACING/kprobe_events || failed "no probe"
echo "p:copy $POLL:do_sys_poll.restitch" >>$TRACING/kprobe_events || failed "no probe on the copy"
echo 1 >$TRACING/events/kprobes/enable
counted 100 0
exec 3<>$DEVICE
for name in $NAMES; do echo "enable $name" >&3 || failed "$name cannot be enabled"; done
counted 100 100
held "a probe that was there before sees all calls, one on the copy too"
echo 0 >$TRACING/events/kprobes/enable
echo >$TRACING/kprobe_events
echo 'p:original do_sys_poll' >$TRACING/kprobe_events || failed "no probe while the group is in force"
echo "p:copy $POLL:do_sys_poll.restitch" >>$TRACING/kprobe_events
echo 1 >$TRACING/events/kprobes/enable
counted 100 100
held "a probe that is set while the group is in force"

echo do_sys_poll >$TRACING/set_ftrace_filter
echo do_sys_poll.restitch >>$TRACING/set_ftrace_filter || failed "the copy cannot be traced"
echo function >$TRACING/current_tracer
[ "$(traced do_sys_poll)" = 100 ] || failed "the tracer names the original $(traced do_sys_poll) times"
[ "$(traced do_sys_poll.restitch)" = 100 ] || failed "the tracer names the copy $(traced do_sys_poll.restitch) times"
held "the function tracer names the original and the copy"
echo nop >$TRACING/current_tracer
echo >$TRACING/set_ftrace_filter

run_loads 3
held "loads with all groups in force"

if [ -n "${TRIALS-}" ]; then
    filtered
    held "rules of the packet filter come and go, and see all packets"
    warning sysfs_create_file_ns.restitch
    [ "$place" = "$warned" ] || failed "a warning in a copy is of $place, not of $warned"
    held "a warning in a copy names the copy, its caller, and the source of the original"
    insmod /trials/trial_patch.ko && failed "a function is patched while its calls are led elsewhere"
    is_patched && failed "a live patch is in force that was refused"
    held "a live patch is refused while its function is led elsewhere"
fi

# Who sleeps in a copy stays there when callers are led back, and the module with them. The graph tracer keeps return
# addresses of what it traces elsewhere than on the stack.
echo 'schedule_hrtimeout_range*' >$TRACING/set_ftrace_filter
echo function_graph >$TRACING/current_tracer || failed "no graph tracer"
sleepers=
while read -r name root load; do
    case $root in
    do_sys_poll | *pipe_read) /loads sleep "$load" & ;;
    *) continue ;;
    esac
    sleepers="$sleepers $name/$!"
    within 10 grep -q "$root.restitch+.*\[$name\]" "/proc/$!/stack" ||
        failed "the stack of who sleeps in $name is: $(cat /proc/$!/stack)"
done </roots
held "a stack names the copy"
for name in $NAMES; do echo "disable $name" >&3 || failed "$name cannot be disabled"; done
for each in $sleepers; do
    name=${each%/*}
    state "$name" draining || failed "$name does not drain"
    rmmod "$name" 2>/dev/null && failed "$name was removed, and somebody stands in it"
done
counted 100 0
for each in $sleepers; do
    name=${each%/*}
    kill -USR1 "${each#*/}"
    wait "${each#*/}" || failed "who slept in $name woke up wrong"
    within 10 state "$name" registered || failed "$name does not come to its end"
done
held "a sleeper keeps the group, and nobody else"
echo nop >$TRACING/current_tracer
echo >$TRACING/set_ftrace_filter
echo 0 >$TRACING/events/kprobes/enable
echo >$TRACING/kprobe_events
exec 3>&-

/groups/programs toggle "$SECONDS" $NAMES &
toggler=$!
run_loads "$SECONDS"
wait $toggler || failed "the groups cannot be toggled"
held "loads with groups toggled every tenth of a second"

# A tracer that comes and goes rewrites static keys, static calls and entries, in copies too.
(
    while [ ! -e /stop ]; do
        trace_events 1
        sleep 0.3
        [ -z "${TRIALS-}" ] || filter
        trace_events 0
        for root in $(cut -d ' ' -f 2 /roots); do echo "$root" >>$TRACING/set_ftrace_filter; done
        echo function >$TRACING/current_tracer
        sleep 0.2
        echo nop >$TRACING/current_tracer
        echo >$TRACING/set_ftrace_filter
        [ -z "${TRIALS-}" ] || unfilter
    done
) &
tracer=$!
/groups/programs toggle "$SECONDS" $NAMES &
toggler=$!
run_loads "$SECONDS"
wait $toggler || failed "the groups cannot be toggled"
touch /stop
wait $tracer || failed "tracing cannot go on and off"
held "the same with tracing on and off"

/groups/programs kill "$KILLS" $NAMES &
killer=$!
while kill -0 $killer 2>/dev/null; do run_loads 2; done >/loads.out
wait $killer || failed "a group is in force whose holder is dead"
held "$KILLS holders killed"

# All is as before.
for name in $NAMES; do
    within 20 state "$name" registered || failed "$name does not come to its end"
done
run_loads 1
if [ -n "${TRIALS-}" ]; then
    filtered
    warning sysfs_create_file_ns
    [ "$place" = "$warned" ] || failed "the warning is of $place, not of $warned"
    insmod /trials/trial_patch.ko || failed "the live patch is not taken afterwards"
    within 60 is_patched || failed "the live patch does nothing afterwards"
    unpatch
    held "warnings, live patches and rules are afterwards as before"
fi
for name in $NAMES; do rmmod "$name" || failed "$name is not given back"; done
rmmod restitch_kernel || failed "the control module is not given back"
same_memory
held "the functions are as they were"
run_loads 1
held "all modules are gone"
echo "all held"
