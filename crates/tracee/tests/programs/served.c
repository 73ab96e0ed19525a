/* A file of a FUSE file system whose server answers for its first page only, mapped. The first argument is a folder.
 * Says where the first page is, which was touched if there is a second argument; the one behind it would be waited
 * for. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEN (64 * 4096)

static void answer(int fuse, unsigned long unique, int error, const void *body, size_t len) {
    static char out[1 << 17];
    struct fuse_out_header *header = (struct fuse_out_header *)out;
    header->len = sizeof *header + len;
    header->error = error;
    header->unique = unique;
    if (len) memcpy(out + sizeof *header, body, len);
    if (write(fuse, out, header->len) < 0 && errno != ENOENT) _exit(4);
}

static struct fuse_attr attributes(unsigned long node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096};
    attr.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
    attr.size = node == FUSE_ROOT_ID ? 0 : LEN;
    return attr;
}

static void serve(int fuse) {
    static char in[1 << 17], page[4096];
    memset(page, 7, sizeof page);
    for (;;) {
        ssize_t len = read(fuse, in, sizeof in);
        if (len < 0 && errno == ENOENT) continue;
        if (len < (ssize_t)sizeof(struct fuse_in_header)) _exit(0);
        struct fuse_in_header *asked = (struct fuse_in_header *)in;
        const void *body = in + sizeof *asked;
        if (asked->opcode == FUSE_INIT) {
            const struct fuse_init_in *theirs = body;
            struct fuse_init_out ours = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 4096};
            if (theirs->minor < ours.minor) ours.minor = theirs->minor;
            answer(fuse, asked->unique, 0, &ours, sizeof ours);
        } else if (asked->opcode == FUSE_LOOKUP) {
            struct fuse_entry_out entry = {.nodeid = 2, .attr_valid = 1000, .entry_valid = 1000, .attr = attributes(2)};
            answer(fuse, asked->unique, 0, &entry, sizeof entry);
        } else if (asked->opcode == FUSE_GETATTR) {
            struct fuse_attr_out attr = {.attr_valid = 1000, .attr = attributes(asked->nodeid)};
            answer(fuse, asked->unique, 0, &attr, sizeof attr);
        } else if (asked->opcode == FUSE_OPEN) {
            struct fuse_open_out open = {.fh = 1};
            answer(fuse, asked->unique, 0, &open, sizeof open);
        } else if (asked->opcode == FUSE_READ) {
            const struct fuse_read_in *wanted = body;
            if (wanted->offset == 0) answer(fuse, asked->unique, 0, page, sizeof page);
        } else if (asked->opcode != FUSE_FORGET && asked->opcode != FUSE_BATCH_FORGET && asked->opcode != FUSE_INTERRUPT) {
            answer(fuse, asked->unique, -ENOSYS, 0, 0);
        }
    }
}

static void skip(void) {
    printf("skipped\n");
    exit(0);
}

int main(int argc, char **argv) {
    char options[128], byte;
    int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (argc < 2 || fuse < 0 || unshare(CLONE_NEWNS) || mount(0, "/", 0, MS_REC | MS_PRIVATE, 0)) skip();
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    if (mount("served", argv[1], "fuse", 0, options)) skip();
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(fuse);
    }
    close(fuse);
    if (chdir(argv[1])) return 3;
    int file = open("file", O_RDONLY);
    /* No page is read ahead of those that are asked for. */
    if (file < 0 || posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM)) return 3;
    char *mapped = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED || madvise(mapped, LEN, MADV_RANDOM)) return 3;
    if (argc > 2 && *(volatile char *)mapped != 7) return 3;
    printf("ready %p\n", (void *)mapped);
    fflush(stdout);
    if (read(0, &byte, 1) != 0) return 1;
    printf("ok\n");
    return 0;
}
