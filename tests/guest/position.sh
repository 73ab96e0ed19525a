# Runs in a guest: `restitch kernel` with the kernel that runs, under a load that knows every result. The files:
# /program, /loads, /control.ko.
# Prints a line for each thing that held; the last is `all held`. Whatever does not hold ends it.
DEVICE=/dev/restitch-kernel
GROUP=restitch_do_sys_poll
ENABLED=/sys/kernel/tracing/enabled_functions
INSTANCES=/sys/kernel/tracing/instances

failed() {
    echo "FAILED: $*"
    cat /said /said.begun $DEVICE 2>/dev/null
    exit 1
}

held() { echo "held: $* ($(cut -d ' ' -f 1 /proc/uptime) s)"; }

# said WORDS: whether the last command said them.
said() { tr '\n' ' ' </said | tr -s ' ' | grep -q "$1" || failed "it did not say: $1"; }

# ends CODE COMMAND...: runs it; it has to end with that.
ends() {
    expected=$1
    shift
    "$@" >/said 2>&1
    code=$?
    [ $code = "$expected" ] || failed "$* ended with $code, not $expected"
}

# state STATE: whether the control module says that the group is in it.
state() { grep -q "^$GROUP $1 " $DEVICE; }

# begin WORDS...: a restitch that goes on, until its group is in force.
begin() {
    /program kernel position do_sys_poll "$@" >/said.begun 2>&1 &
    owner=$!
    within 300 state enabled || failed "the group does not come into force"
}

# over CODE: the restitch that was begun ends with that.
over() {
    wait $owner
    code=$?
    [ $code = "$1" ] || failed "it ended with $code, not $1"
}

# is_out: nothing of a group is in the kernel.
is_out() {
    [ -z "$(cat $DEVICE)" ] || failed "the control module has a group"
    grep -q "^$GROUP " /proc/modules && failed "the module is loaded"
    [ -z "$(cat $ENABLED)" ] || failed "calls are led elsewhere"
}

# hits FUNCTION LOAD...: how often the copy of that was called by a load.
hits() {
    echo "p:copy $GROUP:$1.restitch" >/sys/kernel/tracing/kprobe_events || failed "no probe on the copy of $1"
    echo 1 >/sys/kernel/tracing/events/kprobes/enable
    shift
    /loads "$@" >/loaded || failed "the load $* found a wrong result"
    sed -n 's/^ *copy  *\([0-9]*\) .*/\1/p' /sys/kernel/tracing/kprobe_profile
    echo 0 >/sys/kernel/tracing/events/kprobes/enable
    echo >/sys/kernel/tracing/kprobe_events
}

ends 6 /program kernel position do_sys_poll
said 'modprobe restitch-kernel'
insmod /control.ko || failed "the control module is not taken"
held "without the control module there is a refusal with the next step"

ends 0 /program kernel doctor
said 'copies of functions can be put in force'
ends 0 /program kernel status
said 'No group'
# Each takes half a minute in an emulated machine: two at once where they can.
/program kernel analyze do_sys_poll >/said.analysis 2>&1 &
analysis=$!
begin --callees 30 --order reversed --for 8
wait $analysis || failed "the kernel cannot be analysed: $(cat /said.analysis)"
grep -q 'movable *yes' /said.analysis || failed "do_sys_poll cannot be moved: $(cat /said.analysis)"
[ "$(hits do_sys_poll polls 100)" = 100 ] || failed "the copy is not what is called"
/loads poll 3 >/said || failed "the load found a wrong result"
ends 6 /program kernel position do_sys_poll
said 'in force already, held by another process'
over 0
is_out
held "copies of all callees are what is called, and are given back after their time"

/program kernel find -- sh -c '/loads poll 3; touch /sampled' >/said.find 2>&1 &
finder=$!
within 100 [ -e /sampled ] || failed "nothing was sampled: $(cat /said.find)"
/program kernel count do_sys_poll --callees 1 --for 600 -o /counts --json /counts.json >/said 2>&1 &
owner=$!
within 300 state enabled || failed "nothing is counted"
/loads sleep poll &
sleeper=$!
within 10 grep -q 'do_sys_poll.restitch+' /proc/$sleeper/stack || failed "nobody sleeps in the copy"
/loads polls 1000
kill -TERM $owner
over 143
# The call of the sleeper is counted as its block in front, if that has a counter.
tr -d ' \n' </counts.json | grep -q '"name":"do_sys_poll","address":"0x[0-9a-f]*","is_root":true,"calls":100[01],' ||
    failed "not 1000 calls were counted: $(head -c 2000 /counts.json)"
said 'do_sys_poll 1,00[01] '
said '1 task slept in the copies'
said "restitch kernel revert $GROUP takes it out"
wait $finder || failed "it does not find where the time goes: $(cat /said.find)"
tr '\n' ' ' </said.find | tr -s ' ' | grep -q 'samples* of the kernel in .*do_sys_poll .*% *yes' ||
    failed "it is not found that the time is spent in do_sys_poll: $(cat /said.find)"
state draining || failed "the module does not wait for who sleeps in it"
held "calls are counted though a task sleeps in the copy, and what was counted is written when it is asked to end"

GROUP=${GROUP}_2
ends 137 /program kernel run do_sys_poll -- sh -c 'kill -9 $PPID; sleep 1; /loads poll 1 && touch /went_on'
within 10 state registered || failed "it is in force, and its owner is dead"
[ -z "$(cat $ENABLED)" ] || failed "calls are led elsewhere"
within 10 [ -e /went_on ] || failed "the command has ended with restitch"
ends 0 /program kernel status --json -
said '"state": "registered"'
said '"state": "draining"'
GROUP=${GROUP%_2}
kill -USR1 $sleeper && wait $sleeper || failed "who slept in a copy has a wrong result"
within 10 state registered || failed "nobody is in the copies any more, and the group is used"
held "killed, it leaves the kernel's own code in force, and a module that status shows"

# In the background, a shell has programs ignore SIGINT: so what sends it is there.
(
    within 300 state enabled || exit
    /loads sleep poll &
    sleeper=$!
    within 10 grep -q 'do_sys_poll.restitch+' /proc/$sleeper/stack || exit
    kill -INT "$(sed -n "s/^do_sys_poll //p" /owner)"
    within 20 state draining && kill -USR1 $sleeper && wait $sleeper && touch /woken
) &
(
    /program kernel run vfs_read -- sh -c \
        "trap 'exit 9' TERM; grep '^restitch_vfs_read enabled ' $DEVICE && kill -TERM \$PPID; sleep 5 & wait; exit 1"
    echo $? >/code
) >/said.run 2>&1 &
ends 130 sh -c 'echo "do_sys_poll $$" >/owner; exec /program kernel position do_sys_poll --order kept'
said "group $GROUP, which nobody held any more, was taken out"
said "group ${GROUP}_2, which nobody held any more, was taken out"
said 'is out of the kernel'
[ -e /woken ] || failed "who slept in a copy was not waited for"
held "asked to end, it waits for who sleeps in copies; what was left by another one is taken out"
wait
[ "$(cat /code)" = 9 ] || failed "the command ended with $(cat /code): $(cat /said.run)"
is_out
held "a command runs in a group, gets what restitch is asked, and gives its exit code"

# The tracer's instance is there while calls are listed, which comes first.
/program kernel position do_sys_poll --anyway >/said.begun 2>&1 &
owner=$!
within 300 grep -qs function $INSTANCES/restitch_$owner/current_tracer || failed "no calls are listed"
kill -9 $owner
over 137
within 100 [ ! -e $INSTANCES/restitch_$owner ] || failed "the tracer's instance is left by who was killed"
is_out
held "killed while it lists calls, it leaves no instance of the tracer"

# It counts by itself, under a load that calls through pointers: poll and read of pipes.
(while [ ! -e /enough ]; do /loads poll 1 >/loaded 2>&1 || cp /loaded /wrong; done) &
load=$!
/program kernel position do_sys_poll vfs_read --callees 1 --count-for 2 --anyway --json /found.json \
    >/said.begun 2>&1 &
owner=$!
within 600 grep -q '^in force' /said.begun || failed "no group is found by counting"
sleep 2
touch /enough
wait $load
[ ! -e /wrong ] || failed "the load found a wrong result: $(cat /wrong)"
cp /said.begun /said
said 'counted in 2 rounds of 2 s'
said 'called through pointers and static calls: [0-9]* functions, .*pipe_poll'
said 'bottleneck test by a model of the first-level cache'
for each in do_sys_poll:pipe_poll 'vfs_read:[a-z_]*pipe_read'; do
    call="\"caller\":\"${each%:*}\",[^{}]*\"callee\":\"${each#*:}\",\"goes\":\"copy\",\"count\":[1-9]"
    tr -d ' \n' </found.json | grep -q "$call" || failed "${each#*:} is not in the group: $(cat /found.json)"
done
[ ! -e $INSTANCES/restitch_$owner ] || failed "the tracer's instance is still there"
[ "$(hits do_sys_poll polls 100)" = 100 ] || failed "the copy that was found by counting is not what is called"
[ "$(hits pipe_poll poll 1)" -gt 100 ] || failed "the copy of what a pointer leads to is not what is called"
ends 0 /program kernel revert $GROUP
over 7
grep -q 'taken out of force by somebody else' /said.begun || failed "it does not say why it has ended"
is_out
held "a group is found by counting, with what pointers lead to; what somebody else takes out ends it"
rmmod restitch_kernel || failed "the control module is not given back"
echo "all held"
