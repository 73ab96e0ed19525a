//! The packages that guests are made of: the one place that names their versions.
//!
//! An archive drops old versions. Where a pinned version is gone, the newest of the same kernel line stands
//! in, and [`crate::Kernel::stands_in`] says so.

/// A part of Debian's archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suite {
    /// The name in a sources list.
    pub name: &'static str,
    /// Whether it is in the archive of security updates.
    pub security: bool,
}

/// The suites that hold what guests need. The first is the guests' own distribution.
pub const SUITES: [Suite; 5] = [
    Suite { name: "bookworm", security: false },
    Suite { name: "bookworm-security", security: true },
    Suite { name: "bookworm-backports", security: false },
    Suite { name: "trixie-backports", security: false },
    Suite { name: NEWER, security: false },
];

/// A newer distribution than the guests' own, for tools that newer kernels' modules are built by. What others
/// need comes from it last.
pub const NEWER: &str = "trixie";

/// A package with its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    /// The package.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The suite that its dependencies are taken from.
    pub suite: &'static str,
}

/// The emulator. QEMU 7.2 has defects that kill stock kernels with `-icount`, and an older plugin interface.
pub const QEMU: Pinned =
    Pinned { name: "qemu-system-x86", version: "1:10.0.2+ds-2+deb13u1~bpo12+1", suite: "bookworm-backports" };

/// The programs of a guest without a root image.
pub const BUSYBOX: Pinned =
    Pinned { name: "busybox-static", version: "1:1.35.0-4+deb12u1+b1", suite: "bookworm" };

/// A kernel line of the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// What users call it.
    pub name: &'static str,
    /// The release, as `uname -r` says it.
    pub release: &'static str,
    /// The version of its packages.
    pub version: &'static str,
    /// Begins of names of packages, to which the release is appended. The first holds the kernel's image.
    pub packages: &'static [&'static str],
    /// What the releases of this line begin and end with.
    pub family: Family,
    /// The suite that the tools which build its modules are taken from.
    pub tools: &'static str,
}

/// What releases of a line have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The begin.
    pub begin: &'static str,
    /// The end.
    pub end: &'static str,
}

/// The kernels: the distribution's stock ones, in the flavour for virtual machines.
pub const KERNELS: [Line; 3] = [
    Line {
        name: "6.1",
        release: "6.1.0-56-cloud-amd64",
        version: "6.1.192-2",
        packages: &["linux-image-"],
        family: Family { begin: "6.1.0-", end: "-cloud-amd64" },
        tools: "bookworm-security",
    },
    Line {
        name: "6.12",
        release: "6.12.95+deb12-cloud-amd64",
        version: "6.12.95-1~bpo12+1",
        packages: &["linux-image-"],
        family: Family { begin: "6.12.", end: "-cloud-amd64" },
        tools: "bookworm-backports",
    },
    Line {
        name: "7.3",
        release: "7.3.4+deb13-cloud-amd64",
        version: "7.3.4-1~bpo13+1",
        packages: &["linux-binary-", "linux-base-", "linux-modules-"],
        family: Family { begin: "7.3.", end: "-cloud-amd64" },
        tools: NEWER,
    },
];
