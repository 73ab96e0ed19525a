/* The C library's string functions on strings of all lengths and places, for ever.
 * Which instructions they use is chosen by GLIBC_TUNABLES=glibc.cpu.hwcaps=... */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static volatile uintptr_t sink;
static char a[4096], b[4096], c[4096];

static uint32_t next(void) {
    static uint32_t x = 1;
    x ^= x << 13; x ^= x >> 17; x ^= x << 5;
    return x;
}

int main(void) {
    for (;;) {
        uint32_t at = next() % 200, to = next() % 200, n = next() % (next() % 8 ? 130 : 2000);
        for (uint32_t i = 0; i < n; i += 7) { a[at + i] = "abcdefgh,; X"[next() % 12]; b[to + i] = a[at + i]; }
        for (uint32_t i = 0; i < n; i++) if (!a[at + i]) a[at + i] = 'q';
        memcpy(b + to, a + at, n);
        a[at + n] = b[to + n] = 0;
        if (n && next() % 2) b[to + next() % n] ^= 1;
        sink += strlen(a + at) + strnlen(b + to, n / 2) + (strchr(a + at, 'X') != 0) + (strrchr(a + at, ';') != 0);
        sink += (memchr(a + at, 'g', n) != 0) + (memrchr(a + at, 'h', n) != 0) + (rawmemchr(a + at, 0) != 0);
        sink += strcmp(a + at, b + to) + strncmp(a + at, b + to, n / 2) + memcmp(a + at, b + to, n);
        sink += strcasecmp(a + at, b + to) + strncasecmp(a + at, b + to, 33);
        sink += strcspn(a + at, ",;X") + strspn(a + at, "abcdefghq") + (strpbrk(a + at, ";") != 0);
        sink += (strstr(a + at, "ab") != 0) + (strchrnul(a + at, ',') != 0) + (memmem(a + at, n, "gh", 2) != 0);
        strcpy(c + to, a + at); strncpy(c + at, b + to, n); stpcpy(c, a + at); strcat(c, "end");
        memmove(c + 3, c, n); memset(c + to, (int)at, n);
        sink += (uintptr_t)c[n];
        memset(a + at, 0, 8);
    }
}
