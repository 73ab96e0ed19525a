#!/bin/busybox sh
# The first process of a guest: makes the system that a script needs, runs it, and gives the results to the host.
#
# Beside it, below /restitch: `order` and `modules` (what to insert, in turn), `script`, `shell` (what executes it),
# `out` (files to give back, one a line). With a root image there is `image`, and files of the job are below /in.
/bin/busybox mkdir -p /bin /sbin /usr/bin /usr/sbin /proc /sys /dev /tmp /run /image
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/ TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tracefs trace /sys/kernel/tracing
mount -t debugfs debug /sys/kernel/debug
mount -t securityfs security /sys/kernel/security 2>/dev/null
for name in $(cat /restitch/order); do
    insmod "/restitch/modules/$name.ko" || echo "restitch: module $name cannot be inserted" >/dev/console
done
ip link set lo up

# port NAME: the device of a channel to the host.
port() {
    for each in /sys/class/virtio-ports/*; do
        [ "$(cat "$each/name")" = "restitch.$1" ] && echo "/dev/${each##*/}"
    done
}
output=$(port output) files=$(port files) ending=$(port status)

base=/
if [ -e /restitch/image ]; then
    base=/image
    mount -t ext4 /dev/vda /image || echo 'restitch: the root image cannot be mounted' >/dev/console
    for each in proc sys dev tmp; do
        mkdir -p "/image/$each"
        mount --rbind "/$each" "/image/$each"
    done
    cp -a /in/. /image/
    mkdir -p /image/restitch
    cp /restitch/script /image/restitch/script
fi

chroot "$base" "$(cat /restitch/shell)" /restitch/script >"$output" 2>&1 </dev/null
status=$?

cd "$base" || exit
set --
while read -r name; do
    [ -e ".$name" ] && set -- "$@" ".$name"
done </restitch/out
[ $# -eq 0 ] || tar -cf "$files" "$@" || status='the files cannot be given back'
# Written last: what has a status is whole.
echo "$status" >"$ending"
sync
poweroff -f
