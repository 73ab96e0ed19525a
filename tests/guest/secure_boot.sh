# Runs in a guest that was started by Secure Boot: `restitch kernel` where the kernel takes signed modules only. The
# files: /program, /control.ko (signed), /unsigned.ko, /key, /certificate, openssl.
# Prints a line for each thing that held; the last is `all held`. Whatever does not hold ends it.
DEVICE=/dev/restitch-kernel

failed() {
    echo "FAILED: $*"
    cat /said $DEVICE 2>/dev/null
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

# is_in_force: whether the control module says that a group is.
is_in_force() { grep -q ' enabled ' $DEVICE; }

grep -q '\[integrity\]' /sys/kernel/security/lockdown || failed "no lockdown: $(cat /sys/kernel/security/lockdown)"
insmod /unsigned.ko 2>/said && failed "a module without a signature is taken"
insmod /control.ko || failed "the control module is not taken"
held "the kernel is locked down and takes modules that are signed with the test's key"

ends 0 /program kernel doctor
said 'unsigned modules'
said 'are refused: module.sig_enforce is on'
said 'integrity (Secure Boot'
held "the doctor says so"

ends 5 /program kernel position do_sys_poll --callees 3 --order reversed --for 1
said 'does not know its signature'
said 'RESTITCH_MODULE_KEY'
[ -z "$(cat $DEVICE)" ] || failed "a group is left"
held "without a key there is a refusal with the next step"

export RESTITCH_MODULE_KEY=/absent RESTITCH_MODULE_CERTIFICATE=/certificate
ends 6 /program kernel position do_sys_poll --callees 3 --order reversed --for 1
said '/absent'
held "a key that is not there is named"

export RESTITCH_MODULE_KEY=/key
/program kernel position do_sys_poll --callees 3 --order reversed --for 5 >/said 2>&1 &
owner=$!
within 300 is_in_force || failed "the group does not come into force"
held "a group that is signed with the key comes into force"
wait $owner || failed "it ended with $?"
[ -z "$(cat $DEVICE)" ] || failed "the group is not out"
held "and goes out"
echo "all held"
