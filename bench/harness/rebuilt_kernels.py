"""A kernel that clang builds, and the same with AutoFDO: what `bench/bench kernel --rebuilt` puts beside copies in force.

The distribution's source and its configuration, without what a guest of QEMU has no use for (TRIMMED), so that a build takes half an hour of processor time
and not hours. Both builds have the flags of the kernel's own Makefile.autofdo (6.13 and later; 6.1 has none yet), and its order of text sections, so that clang may
part functions into hot and cold.
"""

import glob
import os
import re
import shutil
import subprocess

from .machine import Failed, find

# clang's major version: that of the study which the issue names.
CLANG = 19
# The package of the source. Its newest version is taken; the table says which.
SOURCE = "linux-source-6.1"
# Needed at boot, so part of the image.
BUILT_IN = "VIRTIO VIRTIO_PCI VIRTIO_PCI_LIB VIRTIO_BLK VIRTIO_CONSOLE EXT4_FS JBD2 FS_MBCACHE CRC16 CRYPTO_CRC32C LIBCRC32C HW_RANDOM HW_RANDOM_VIRTIO".split()
# Besides all modules. None of it is met by a server that is asked over loopback.
TRIMMED = """MODULE_SIG MODULE_SIG_FORCE SECURITY_LOCKDOWN_LSM LOCALVERSION_AUTO KVM DRM SOUND USB_SUPPORT WLAN ETHERNET WIRELESS SCSI ATA INPUT_MISC HYPERV XEN MD
INFINIBAND XFS_FS BTRFS_FS NFS_FS CIFS SECURITY_SELINUX SECURITY_TOMOYO SECURITY_APPARMOR IMA EVM INTEGRITY HIBERNATION SUSPEND CPU_FREQ ACPI_APEI MEDIA_SUPPORT HID
FB VT NETFILTER KEXEC KEXEC_FILE CRASH_DUMP PCIEPORTBUS HOTPLUG_PCI THERMAL POWERCAP MEMORY_FAILURE MPTCP IPV6 NET_SCHED XFRM_USER DEVFREQ WATCHDOG RTC_CLASS
GPIOLIB I2C SPI HWMON MFD_CORE EDAC IOMMU_SUPPORT DMADEVICES""".split()
# As Makefile.autofdo has them.
FLAGS = ["-fdebug-info-for-profiling", "-mllvm", "-enable-fs-discriminator=true", "-mllvm", "-improved-fs-discriminator=true"]
WITH_PROFILE = ["-ffunction-sections", "-fsplit-machine-functions"]
# 6.1 has sections of single functions only with the linker's optimizations, and cold parts nowhere; the order is that of newer kernels.
SECTIONS = [
    (r"#define TEXT_MAIN \.text\n", "#define TEXT_MAIN .text .text.[0-9a-zA-Z_]*\n"),
    (
        r"\t\t\*\(\.text\.hot \.text\.hot\.\*\)\t*\\\n\t\t\*\(TEXT_MAIN \.text\.fixup\)\t*\\\n\t\t\*\(\.text\.unlikely \.text\.unlikely\.\*\)\t*\\\n"
        r"\t\t\*\(\.text\.unknown \.text\.unknown\.\*\)\t*\\\n",
        "\t\t*(.text.asan.* .text.tsan.*) \\\n\t\t*(.text.unknown .text.unknown.*) \\\n\t\t*(.text.split .text.split.[0-9a-zA-Z_]*) \\\n"
        "\t\t*(.text.unlikely .text.unlikely.*) \\\n\t\t. = ALIGN(PAGE_SIZE); \\\n\t\t*(.text.hot .text.hot.*) \\\n\t\t*(TEXT_MAIN .text.fixup) \\\n",
    ),
]


def run(command, **more):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if result.returncode:
        raise Failed(f"{' '.join(command[:4])} ...: {result.stdout[-3000:]}")
    return result.stdout


def source(folder):
    """The kernel's source below the folder, made once, with text sections in the order of newer kernels."""
    trees = lambda: [path for path in glob.glob(os.path.join(folder, "linux-source-*")) if os.path.isdir(path)]
    if trees():
        return trees()[0]
    for tool in (f"clang-{CLANG}", f"ld.lld-{CLANG}", f"llvm-profgen-{CLANG}", "make", "flex", "bison", "bc", "pahole"):
        find(tool)
    fetched = os.path.join(folder, "fetched")
    os.makedirs(fetched, exist_ok=True)
    run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", SOURCE], cwd=fetched)
    run(["dpkg-deb", "-x", *glob.glob(os.path.join(fetched, "*.deb")), fetched])
    run(["tar", "-C", fetched, "-xf", *glob.glob(os.path.join(fetched, "usr/src/*.tar.xz"))])
    (tree,) = glob.glob(os.path.join(fetched, "linux-source-*/"))
    part_text(os.path.join(tree, "include/asm-generic/vmlinux.lds.h"))
    os.rename(tree, os.path.join(folder, os.path.basename(tree.rstrip("/"))))
    shutil.rmtree(fetched)
    return trees()[0]


def part_text(path):
    """Rewrites the order of text sections in the header that all linker scripts include."""
    with open(path) as f:
        text = f.read()
    for old, new in SECTIONS:
        text, count = re.subn(old, lambda _: new, text)
        if count != 1:
            raise Failed(f"{path} has {count} places for {new.splitlines()[0].strip()}, not 1")
    with open(path, "w") as f:
        f.write(text)


def make(tree, to, *words):
    cpus = len(os.sched_getaffinity(0))
    return run(["make", "-s", "-C", tree, f"O={to}", f"LLVM=-{CLANG}", f"-j{cpus}", *words])


def configure(tree, to, config, name):
    """The distribution's configuration, trimmed."""
    os.makedirs(to, exist_ok=True)
    with open(config) as f:
        text = f.read()
    text = re.sub(rf"(?m)^(CONFIG_(?:{'|'.join(BUILT_IN)}))=m$", r"\1=y", text)
    text = re.sub(r"(?m)^(CONFIG_\w+)=m$", r"# \1 is not set", text)
    with open(os.path.join(to, ".config"), "w") as f:
        f.write(text)
    off = [word for option in TRIMMED for word in ("-d", option)]
    run([os.path.join(tree, "scripts/config"), "--file", os.path.join(to, ".config"), *off, "--set-str", "SYSTEM_TRUSTED_KEYS", "", "--set-str", "LOCALVERSION", f"-{name}"])
    make(tree, to, "olddefconfig")


def build(tree, folder, config, name, profile=None):
    """The kernel of that name below the folder, as `restitch-guest --kernel FOLDER` takes it; built if it is not there."""
    place = os.path.join(folder, name)
    if os.path.exists(os.path.join(place, "release")):
        return place
    to = os.path.join(place, "build")
    configure(tree, to, config, name)
    flags = FLAGS + ([f"-fprofile-sample-use={profile}", *WITH_PROFILE] if profile else [])
    make(tree, to, f"KCFLAGS={' '.join(flags)}", "bzImage", "modules")
    with open(os.path.join(to, "include/config/kernel.release")) as f:
        release = f.read().strip()
    for made, there in (("arch/x86/boot/bzImage", "vmlinuz"), (".config", "config"), ("System.map", "System.map")):
        os.makedirs(os.path.join(place, "boot"), exist_ok=True)
        shutil.copy(os.path.join(to, made), os.path.join(place, "boot", f"{there}-{release}"))
    os.makedirs(os.path.join(place, "lib/modules", release), exist_ok=True)
    # Last: what has it is whole.
    with open(os.path.join(place, "release"), "w") as f:
        f.write(release)
    return place


def autofdo_profile(window, vmlinux, to):
    """What was executed in a window, as a profile for clang: straight runs of instructions, and branches taken."""
    with open(os.path.join(window, "instructions")) as f:
        executed = [(int(address, 16), int(size), int(count)) for address, size, count in map(str.split, f)]
    with open(os.path.join(window, "branches")) as f:
        branches = [(int(begin, 16), int(target, 16), int(count)) for begin, target, count, kind in map(str.split, f) if kind != "Fault"]
    with open(to + ".raw", "w") as f:
        for lines in (straight_runs(executed, {begin for begin, _, _ in branches}), branches):
            arrow = "->" if lines is branches else "-"
            f.write(f"{len(lines)}\n" + "".join(f"{begin:x}{arrow}{end:x}:{count}\n" for begin, end, count in lines))
    run([f"llvm-profgen-{CLANG}", f"--unsymbolized-profile={to}.raw", "--use-offset=0", f"--binary={vmlinux}", "--format=extbinary", f"--output={to}"])
    return to


def straight_runs(executed, branches):
    """[(first, last, count)] of instructions that stand behind each other and were executed equally often, up to a branch."""
    runs = []
    ended = True
    for address, size, count in sorted(executed):
        if ended or address != behind or count != runs[-1][2]:
            runs.append((address, address, count))
        else:
            runs[-1] = (runs[-1][0], address, count)
        behind, ended = address + size, address in branches
    return runs
