#!/bin/sh
# Runs as PID 1 of one lab host, in its fresh mount, uts, pid and ipc namespaces (and the
# host's network namespace), builds the host's root file system and becomes its sshd.
# Not covered: the network and the files of /etc, which the operator's side lays out before.
#
# $1 the host's folder (holds upper, work and root)     $2 the host's name
# $3 a folder shared by all hosts as /home, or ""       $4 folders to bind, one a line
# the rest: options of prlimit (the host's ulimits)
set -eu
dir=$1 name=$2 home=$3 binds=$4
shift 4

# Still the operator's /proc here, so this line holds PID and start time as the operator sees them.
read -r stat </proc/self/stat
printf '%s\n' "$stat" >"$dir/stat.new"
mv "$dir/stat.new" "$dir/stat"

root=$dir/root
hostname "$name"
mount -t overlay overlay -o "index=off,lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root"
mount -t proc proc "$root/proc"
# A sysfs of our own, so that /sys/class/net shows this host's network cards.
mount -t sysfs sysfs "$root/sys"
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"; fi
mount --rbind /dev "$root/dev"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mkdir -m 0755 "$root/run/sshd" "$root/run/lock"
if [ -n "$home" ]; then mount --bind "$home" "$root/home"; fi
# After the above, which may cover them: a checkout may lie in /tmp or in a home.
printf '%s' "$binds" | while IFS= read -r bind; do
    mkdir -p "$root$bind"
    mount --rbind "$bind" "$root$bind"
done

cd "$root"
mkdir -p .operator
pivot_root . .operator
umount -l /.operator
exec prlimit "$@" -- /usr/sbin/sshd -D -e -f /etc/ssh/lab_sshd_config </dev/null
