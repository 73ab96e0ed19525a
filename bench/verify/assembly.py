#!/usr/bin/env python3
"""Proves that libraries with much hand-written assembly compute the same when they are recorded, when they run from an optimized file, and while
their process is attached to and reverted again and again: OpenSSL's libcrypto, libgcrypt (with its own self tests), x264, dav1d, FFmpeg's libavcodec and the
C library's string functions. What they compute is compared with a plain run, and with what Python computes by itself where that is possible."""

import glob
import hashlib

from common import *  # noqa: F403

LAPS = os.environ.get("LAPS", "6")

OPENSSL = """
import ctypes, hashlib, random, sys
lib = ctypes.CDLL("libcrypto.so.3")
for name in ("EVP_CIPHER_fetch", "EVP_CIPHER_CTX_new", "BN_new", "BN_CTX_new", "BN_bin2bn", "BN_bn2hex"):
    getattr(lib, name).restype = ctypes.c_void_p
P = ctypes.c_void_p
CIPHERS = [f"AES-{bits}-{mode}" for bits in (128, 192, 256) for mode in ("ECB", "CBC", "CTR", "CFB", "OFB", "GCM", "XTS", "OCB")]
CIPHERS += ["CHACHA20", "CHACHA20-POLY1305", "CAMELLIA-128-CBC", "CAMELLIA-256-CTR", "ARIA-128-CBC", "SM4-CBC", "DES-EDE3-CBC"]
random.seed(7)
DATA = random.randbytes(5000)

def cipher(name, data):
    kind = lib.EVP_CIPHER_fetch(None, name.encode(), None)
    if not kind:
        return b""
    context, out, length, at = lib.EVP_CIPHER_CTX_new(), ctypes.create_string_buffer(len(data) + 64), ctypes.c_int(), 0
    if lib.EVP_EncryptInit_ex(P(context), P(kind), None, DATA[:64], DATA[64:96]) != 1:
        return b""
    pieces = [data] if "XTS" in name else [data[:17], data[17:]]
    for piece in pieces:
        if lib.EVP_EncryptUpdate(P(context), ctypes.byref(out, at), ctypes.byref(length), piece, len(piece)) == 1:
            at += length.value
    if lib.EVP_EncryptFinal_ex(P(context), ctypes.byref(out, at), ctypes.byref(length)) == 1:
        at += length.value
    lib.EVP_CIPHER_CTX_free(P(context))
    lib.EVP_CIPHER_free(P(kind))
    return out.raw[:at]

def number(n):
    raw = n.to_bytes((n.bit_length() + 7) // 8 or 1, "big")
    return P(lib.BN_bin2bn(raw, len(raw), None))

def power(base, exponent, modulus):
    result, context = P(lib.BN_new()), P(lib.BN_CTX_new())
    numbers = [number(n) for n in (base, exponent, modulus)]
    assert lib.BN_mod_exp(result, *numbers, context) == 1
    text = lib.BN_bn2hex(result)
    value = int(ctypes.string_at(text), 16)
    for n in [result, *numbers]:
        lib.BN_free(n)
    lib.BN_CTX_free(context)
    lib.CRYPTO_free(P(text), b"", 0)
    return value

def lap():
    total = hashlib.blake2b()
    for name in sorted(hashlib.algorithms_available):
        for length in (0, 1, 55, 56, 63, 64, 65, 127, 128, 1000, 4999):
            try:
                digest = hashlib.new(name, DATA[:length])
                total.update(digest.digest(32) if "shake" in name else digest.digest())
            except ValueError:
                pass
    for name in CIPHERS:
        for length in (16, 31, 32, 64, 128, 255, 256, 1024, 4096, 5000):
            total.update(cipher(name, DATA[:length]))
    numbers = random.Random(3)
    for bits in (64, 256, 512, 521, 1024, 2048):
        for _ in range(3):
            base, exponent, modulus = numbers.getrandbits(bits), numbers.getrandbits(bits), numbers.getrandbits(bits) | 1 << bits - 1 | 1
            assert power(base, exponent, modulus) == pow(base, exponent, modulus), bits
    return total.hexdigest()
"""

GCRYPT = """
import ctypes, hashlib, random, sys
lib = ctypes.CDLL("libgcrypt.so.20")
lib.gcry_check_version(None)
P = ctypes.c_void_p
random.seed(7)
DATA = random.randbytes(5000)
SELF_TEST, INITIALIZED = 57, 38
lib.gcry_control(INITIALIZED, 0)

def lap():
    assert lib.gcry_control(SELF_TEST) == 0
    total, out = hashlib.blake2b(), ctypes.create_string_buffer(8192)
    for algorithm in range(400):
        length = lib.gcry_md_get_algo_dlen(algorithm)
        if length and lib.gcry_md_test_algo(algorithm) == 0 if hasattr(lib, "gcry_md_test_algo") else length:
            for n in (0, 1, 63, 64, 65, 127, 128, 129, 1000, 4999):
                lib.gcry_md_hash_buffer(algorithm, out, DATA, n)
                total.update(out.raw[:length])
    for algorithm in list(range(1, 12)) + list(range(301, 320)):
        key, block = lib.gcry_cipher_get_algo_keylen(algorithm), lib.gcry_cipher_get_algo_blklen(algorithm)
        for mode in (1, 2, 3, 5, 6, 9, 11, 13, 14):
            handle = P()
            if not key or lib.gcry_cipher_open(ctypes.byref(handle), algorithm, mode, 0):
                continue
            for n in (16, 32, 128, 240, 512, 4096):
                if lib.gcry_cipher_setkey(handle, DATA, key * (2 if mode == 13 else 1)) or lib.gcry_cipher_setiv(handle, DATA[100:], 12 if mode == 11 else block):
                    continue
                if lib.gcry_cipher_encrypt(handle, out, 8192, DATA, n) == 0:
                    total.update(out.raw[:n])
            lib.gcry_cipher_close(handle)
    return total.hexdigest()
"""

STRINGS = """
import ctypes, hashlib, random, sys
lib = ctypes.CDLL("libc.so.6")
for name in ("memchr", "memrchr", "strchr", "strrchr", "strstr", "memmem", "strpbrk", "strchrnul", "rawmemchr"):
    getattr(lib, name).restype = ctypes.c_void_p
for name in ("strlen", "strnlen", "strspn", "strcspn"):
    getattr(lib, name).restype = ctypes.c_size_t
P, Z = ctypes.c_void_p, ctypes.c_size_t

def sign(n):
    return (n > 0) - (n < 0)

def lap():
    numbers = random.Random(5)
    for _ in range(3000):
        length, at = numbers.choice((0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 255, 300, 1000, 5000)), numbers.randrange(64)
        data = bytes(numbers.choice(b"abcdefgh") for _ in range(length))
        space = ctypes.create_string_buffer(at + length + 200)
        start = ctypes.addressof(space) + at
        lib.memcpy(P(start), data, Z(length))
        assert space.raw[at:at + length + 1] == data + b"\\0"
        assert lib.strlen(P(start)) == length and lib.strnlen(P(start), Z(50)) == min(length, 50)
        found = lib.memchr(P(start), ord("a"), Z(length))
        assert (found or start - 1) - start == data.find(b"a")
        assert (lib.memrchr(P(start), ord("b"), Z(length)) or start - 1) - start == data.rfind(b"b")
        assert (lib.strchr(P(start), ord("c")) or start - 1) - start == data.find(b"c")
        assert (lib.strrchr(P(start), ord("d")) or start - 1) - start == data.rfind(b"d")
        part = bytes(numbers.choice(b"abcdefgh") for _ in range(numbers.randrange(1, 5)))
        assert (lib.strstr(P(start), part) or start - 1) - start == data.find(part)
        assert lib.strspn(P(start), b"abcd") == length - len(data.lstrip(b"abcd"))
        other = bytearray(data)
        if other and numbers.random() < 0.7:
            other[numbers.randrange(length)] ^= 3
        other = bytes(other)
        order = (data > other) - (data < other)
        assert sign(lib.memcmp(P(start), other, Z(length))) == order == sign(lib.strcmp(P(start), other))
        assert sign(lib.strncmp(P(start), other, Z(20))) == (data[:20] > other[:20]) - (data[:20] < other[:20])
        assert lib.strcasecmp(P(start), data.upper()) == 0
        shift = numbers.randrange(50)
        lib.memmove(P(start + shift), P(start), Z(length))
        assert space.raw[at + shift:at + shift + length] == data
        lib.memset(P(start), 0x5a, Z(length))
        assert space.raw[at:at + length] == b"Z" * length
    return "all as Python has it"
"""

LOOP = """
first = lap()
for _ in range(int(sys.argv[1])):
    assert lap() == first
print(first)
"""

# What is computed: a Python program that computes laps, the libraries.
COMPUTED = {
    "openssl": (OPENSSL, ["libcrypto.so.3"]),
    "libgcrypt": (GCRYPT, ["libgcrypt.so.20"]),
    "glibc": (STRINGS, ["libc.so.6"]),
}
# Picture sources, and what is done with them: command, libraries, how many times the long film repeats the short one for each lap.
FILM = "testsrc2=size=320x180:rate=25:duration=2"
CODED = {
    "x264": ("x264 --quiet --threads 1 --preset medium --demuxer y4m -o /dev/stdout --muxer raw film.y4m", ["libx264.so.*"], 12),
    "dav1d": ("dav1d -q --threads 1 -i film.obu -o - --muxer md5", ["libdav1d.so.*"], 60),
    "ffmpeg": (
        "ffmpeg -v error -threads 1 -i film.y4m -an -c:v mpeg4 -q:v 4 -mbd 2 -trellis 2 -flags +bitexact -f framemd5 -",
        ["libavcodec.so.*", "libswscale.so.*"],
        12,
    ),
    "ffmpeg-h264": ("ffmpeg -v error -threads 1 -i film.264 -flags +bitexact -f framemd5 -", ["libavcodec.so.*"], 60),
}


def main(machine):
    each([*COMPUTED, *CODED], lambda name: one(machine, name))


def one(machine, name):
    folder = machine.path(name)
    os.makedirs(folder)
    command, libraries, long = computed(folder, name) if name in COMPUTED else coded(machine, folder, name)
    wanted = output(folder, command)
    # Only what is loaded at the start is counted.
    preload = {"LD_PRELOAD": " ".join(libraries)} if name in COMPUTED else {}
    recorded = output(folder, [RESTITCH, "record", "-o", f"{folder}/profile", "--", *command], **preload)
    same(wanted, recorded, "recorded")
    fast = f"{folder}/fast"
    os.makedirs(fast)
    for path in libraries:
        restitch(machine, "optimize", path, "--profile", f"{folder}/profile", "-o", f"{fast}/{soname_of(path)}")
    if "libc.so.6" not in {os.path.basename(path) for path in libraries}:
        same(wanted, output(folder, command, LD_LIBRARY_PATH=fast), "with optimized libraries")
    wanted = output(folder, long)
    with open(f"{folder}/out", "wb") as out, subprocess.Popen(long, cwd=folder, stdout=out, stderr=subprocess.PIPE) as process:
        try:
            with Toggling(machine, process.pid, renewed=True, seconds=1, pause=0.3):
                process.wait(timeout=900)
            if process.returncode:
                raise Failed(f"attached to: ended with {process.returncode}: {process.stderr.read()[-500:]}")
        finally:
            process.kill()
    with open(f"{folder}/out", "rb") as out:
        same(wanted, hashlib.sha256(out.read()).hexdigest(), "attached to and reverted")
    log(f"  {name}: equal")


def computed(folder, name):
    source, sonames = COMPUTED[name]
    python = find("/usr/bin/python3")
    with open(f"{folder}/work.py", "w") as f:
        f.write(source + LOOP)
    command = [python, "-B", "-I", f"{folder}/work.py"]
    return [*command, "1"], [library(soname) for soname in sonames], [*command, str(40 * int(LAPS))]


def coded(machine, folder, name):
    line, sonames, times = CODED[name]
    program, *arguments = line.split(" ")
    command = [find(f"/usr/bin/{program}"), *arguments]
    film = next(word for word in command if word.startswith("film."))
    encode = {"film.obu": ["-c:v", "libaom-av1", "-cpu-used", "8", "-b:v", "400k"], "film.264": ["-c:v", "libx264", "-preset", "fast"]}
    for place in ("short", "long"):
        os.makedirs(f"{folder}/{place}")
    make = [find("/usr/bin/ffmpeg"), "-v", "error", "-f", "lavfi", "-i", FILM, "-pix_fmt", "yuv420p"]
    machine.run([*make, *encode.get(film, []), f"{folder}/short/{film}"])
    with open(f"{folder}/short/{film}", "rb") as short, open(f"{folder}/long/{film}", "wb") as long:
        # Frames of all three formats may follow one another in a file; one of them begins with a line of its own.
        if film.endswith(".y4m"):
            long.write(short.readline())
        frames = short.read()
        for _ in range(times * int(LAPS)):
            long.write(frames)
    at = {place: [word.replace("film.", f"{place}/film.") for word in command] for place in ("short", "long")}
    return at["short"], [library(soname) for soname in sonames], at["long"]


def library(soname):
    for path in sorted(glob.glob(f"/usr/lib/x86_64-linux-gnu/{soname}")):
        return os.path.realpath(path)
    raise Missing(soname)


def soname_of(path):
    """The name by which the loader looks for a library: what its file is called up to the first number."""
    name, number = os.path.basename(path).split(".so.")
    return f"{name}.so.{number.split('.')[0]}"


def output(folder, command, **environment):
    env = dict(os.environ, **environment, RESTITCH_STATE_DIR=f"{folder}/state")
    done = subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, env=env, timeout=900)
    if done.returncode:
        raise Failed(f"{' '.join(command)[:200]} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")
    return hashlib.sha256(done.stdout).hexdigest()


def same(wanted, got, how):
    if wanted != got:
        raise Failed(f"{how}: other output")


program(main)
