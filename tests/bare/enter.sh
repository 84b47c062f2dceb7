#!/bin/sh
# enter.sh ROOT USER COMMAND [FILE ...]: run a command by bash in the root, as that user (a number), with this
# environment, processes of its own and the machine's network; the files and folders are there, at their own paths.
set -eu
exec unshare --mount --pid --ipc --fork --kill-child sh -c '
set -eu
root=$1 user=$2 command=$3
shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
for path in /etc/resolv.conf /etc/hosts "$@"; do
  [ -e "$path" ] || continue
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$root${path%/*}"; [ -e "$root$path" ] || : >"$root$path"; fi
  mount --bind "$path" "$root$path"
done
cd "$root"
mkdir -p .machine
# No chroot: in one, nobody may have user namespaces, which the walls around users'"'"' code are made of.
pivot_root . .machine
umount -l /.machine
# Not by exec: who takes another user loses the signal by which --kill-child ends all these processes.
setpriv --reuid="$user" --regid="$user" --clear-groups bash -c "$command"
' sh "$@"
