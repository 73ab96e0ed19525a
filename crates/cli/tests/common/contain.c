/* Starts a program as a container or a hardened service would: contain FOLDER PROGRAM ARGUMENTS... runs it in namespaces of its own (mounts, where
 * something else is at FOLDER, process numbers, IPC, network, host name), and under three system call filters: a list of what is forbidden (as the
 * profiles of container engines), no memory that is written and executed (as systemd's MemoryDenyWriteExecute=, but deadly), and one that asks
 * about the addresses of calls. Its exit status is the program's; 77 if this machine does not permit that. */
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIELD(name) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, name))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)
#define EQUALS(k, jt, jf) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf)
#define AND(k) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, k)
#define EPERM_ (SECCOMP_RET_ERRNO | 1)
#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const unsigned forbidden[] = {
    SYS_acct, SYS_add_key, SYS_bpf, SYS_chroot, SYS_delete_module, SYS_finit_module, SYS_init_module, SYS_kcmp, SYS_kexec_load, SYS_keyctl, SYS_mount,
    SYS_move_pages, SYS_open_by_handle_at, SYS_perf_event_open, SYS_personality, SYS_pivot_root, SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace,
    SYS_quotactl, SYS_reboot, SYS_request_key, SYS_setns, SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_vhangup,
};

static int install(struct sock_filter *filter, size_t len) {
    struct sock_fprog program = {len, filter};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
static int list(void) {
    struct sock_filter filter[2 * LENGTH(forbidden) + 5] = {FIELD(arch), EQUALS(AUDIT_ARCH_X86_64, 1, 0), RETURN(SECCOMP_RET_KILL_PROCESS), FIELD(nr)};
    size_t len = 4;
    for (size_t i = 0; i < LENGTH(forbidden); i++) {
        filter[len++] = (struct sock_filter)EQUALS(forbidden[i], 0, 1);
        filter[len++] = (struct sock_filter)RETURN(EPERM_);
    }
    filter[len++] = (struct sock_filter)RETURN(SECCOMP_RET_ALLOW);
    return install(filter, len);
}
static int no_writable_code(void) {
    struct sock_filter filter[] = {
        FIELD(nr), EQUALS(SYS_mmap, 0, 3), FIELD(args[2]), AND(PROT_WRITE | PROT_EXEC), EQUALS(PROT_WRITE | PROT_EXEC, 4, 5),
        EQUALS(SYS_mprotect, 0, 4), FIELD(args[2]), AND(PROT_EXEC), EQUALS(PROT_EXEC, 0, 1), RETURN(SECCOMP_RET_KILL_PROCESS), RETURN(SECCOMP_RET_ALLOW),
    };
    return install(filter, LENGTH(filter));
}
/* Calls from addresses below 4 GiB, and any number of x32. */
static int from_where(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4), EQUALS(0, 2, 0), FIELD(nr),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1), RETURN(SECCOMP_RET_KILL_PROCESS), RETURN(SECCOMP_RET_ALLOW),
    };
    return install(filter, LENGTH(filter));
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS) != 0) return 77;
    if (mount(0, "/", 0, MS_REC | MS_PRIVATE, 0) != 0 || mount("none", argv[1], "tmpfs", 0, 0) != 0) return 77;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || list() != 0 || no_writable_code() != 0 || from_where() != 0) _exit(77);
        execv(argv[2], argv + 2);
        _exit(3);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return 3;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
