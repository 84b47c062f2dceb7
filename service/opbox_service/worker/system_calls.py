"""The system calls that a process for code is refused, and their numbers on both kinds of processors.

A call is refused where no operator needs it and it leads to other processes, to kernel code that is seldom used, or to
memory that nobody counts. `tests/service/test_seccomp.py` compares the numbers with those of the machine's own headers.
"""

from __future__ import annotations

__all__ = ["LAST", "NUMBERS", "REFUSED"]

LAST = 462
"""The newest call that has been looked at (mseal, Linux 6.10). Later ones do not exist for the process: its programs do
without, as on an older kernel. From 424 on, calls have one number on all processors."""

REFUSED: dict[str, str] = {
    "other processes": """
        ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_open pidfd_getfd
        migrate_pages move_pages
    """,
    "what others do in folders": "inotify_init inotify_init1 inotify_add_watch fanotify_init fanotify_mark",
    "namespaces and mounts": """
        unshare setns chroot pivot_root mount umount2 move_mount mount_setattr open_tree fsopen fsconfig fsmount fspick
        statmount listmount
    """,
    "programs for the kernel and its counters": "bpf perf_event_open userfaultfd seccomp lsm_set_self_attr",
    "kernel and machine": """
        kexec_load kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct syslog settimeofday
        clock_settime adjtimex clock_adjtime sethostname setdomainname vhangup iopl ioperm modify_ldt quotactl
        quotactl_fd
    """,
    "files past their folders": "open_by_handle_at name_to_handle_at",
    "keys": "add_key request_key keyctl",
    "memory shared by a number": """
        shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
        mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    """,
    "queues that do other calls' work": "io_uring_setup io_uring_enter io_uring_register io_setup io_submit",
    "memory that no figure shows": "memfd_secret vmsplice tee remap_file_pages",
}
"""Names by what they lead to."""

_TEXT = """
    ptrace 101 117 process_vm_readv 310 270 process_vm_writev 311 271 process_madvise 440 440 process_mrelease 448 448
    kcmp 312 272 pidfd_open 434 434 pidfd_getfd 438 438 migrate_pages 256 238 move_pages 279 239
    unshare 272 97 setns 308 268 chroot 161 51 pivot_root 155 41 mount 165 40 umount2 166 39 move_mount 429 429
    mount_setattr 442 442 open_tree 428 428 fsopen 430 430 fsconfig 431 431 fsmount 432 432 fspick 433 433
    statmount 457 457 listmount 458 458
    bpf 321 280 perf_event_open 298 241 userfaultfd 323 282 seccomp 317 277 lsm_set_self_attr 460 460
    kexec_load 246 104 kexec_file_load 320 294 init_module 175 105 finit_module 313 273 delete_module 176 106
    reboot 169 142 swapon 167 224 swapoff 168 225 acct 163 89 syslog 103 116 settimeofday 164 170 clock_settime 227 112
    adjtimex 159 171 clock_adjtime 305 266 sethostname 170 161 setdomainname 171 162 vhangup 153 58 iopl 172 -
    ioperm 173 - modify_ldt 154 - quotactl 179 60 quotactl_fd 443 443
    open_by_handle_at 304 265 name_to_handle_at 303 264 fanotify_init 300 262 fanotify_mark 301 263
    inotify_init 253 - inotify_init1 294 26 inotify_add_watch 254 27
    add_key 248 217 request_key 249 218 keyctl 250 219
    shmget 29 194 shmat 30 196 shmctl 31 195 shmdt 67 197 semget 64 190 semop 65 193 semtimedop 220 192 semctl 66 191
    msgget 68 186 msgsnd 69 189 msgrcv 70 188 msgctl 71 187 mq_open 240 180 mq_unlink 241 181 mq_timedsend 242 182
    mq_timedreceive 243 183 mq_notify 244 184 mq_getsetattr 245 185
    io_uring_setup 425 425 io_uring_enter 426 426 io_uring_register 427 427 io_setup 206 0 io_submit 209 2
    memfd_secret 447 447 vmsplice 278 75 tee 276 77 remap_file_pages 216 234
    clone 56 220 clone3 435 435 personality 135 92 prlimit64 302 261 ioctl 16 29
    fcntl 72 25 setpriority 141 140 ioprio_set 251 30 sched_setparam 142 118 sched_setscheduler 144 119
    sched_setattr 314 274
    socket 41 198 socketpair 53 199 bind 49 200 listen 50 201 accept 43 202 accept4 288 242 connect 42 203
    sendto 44 206 setsockopt 54 208 sendmsg 46 211 sendmmsg 307 269
"""


def _numbers() -> dict[str, dict[str, int]]:
    words = _TEXT.split()
    numbers: dict[str, dict[str, int]] = {"x86_64": {}, "aarch64": {}}
    for name, *columns in zip(words[::3], words[1::3], words[2::3], strict=True):
        for machine, number in zip(numbers, columns, strict=True):
            if number != "-":
                numbers[machine][name] = int(number)
    return numbers


NUMBERS = _numbers()
"""Numbers of the calls above, and of those that are refused by their arguments, by `platform.machine()`."""
