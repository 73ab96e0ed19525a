//! `/proc/PID/auxv`, parsed (getauxval(3)).

use restitch_address::Avma;

/// The auxiliary vector that the kernel gave to the program when it started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuxVector {
    entries: Vec<(u64, u64)>,
}

impl AuxVector {
    /// Parses the 64-bit form: pairs of native words up to a pair of type 0. A cut-off tail is ignored.
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        let pairs = bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
        Self { entries: pairs.take_while(|&(kind, _)| kind != libc::AT_NULL).collect() }
    }

    /// Whether there are no entries (a kernel thread or a process that has ended).
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of the first entry of this type (an `AT_` constant).
    pub fn get(&self, kind: u64) -> Option<u64> {
        self.entries.iter().find(|entry| entry.0 == kind).map(|entry| entry.1)
    }

    fn address(&self, kind: u64) -> Option<Avma> {
        self.get(kind).filter(|&value| value != 0).map(Avma::new)
    }

    /// `AT_PHDR`: where the program's own program headers are. The sure way to its image.
    pub fn program_headers(&self) -> Option<Avma> {
        self.address(libc::AT_PHDR)
    }

    /// `AT_PHNUM`: how many program headers there are.
    pub fn program_header_count(&self) -> Option<u64> {
        self.get(libc::AT_PHNUM)
    }

    /// `AT_ENTRY`: the program's entry point.
    pub fn entry(&self) -> Option<Avma> {
        self.address(libc::AT_ENTRY)
    }

    /// `AT_BASE`: where the dynamic loader is; `None` in static programs.
    pub fn interpreter_base(&self) -> Option<Avma> {
        self.address(libc::AT_BASE)
    }

    /// `AT_SYSINFO_EHDR`: where the vDSO is.
    pub fn vdso(&self) -> Option<Avma> {
        self.address(libc::AT_SYSINFO_EHDR)
    }

    /// `AT_RANDOM`: where the program's 16 random bytes are; differs from one `exec` to the next.
    pub fn random_bytes(&self) -> Option<Avma> {
        self.address(libc::AT_RANDOM)
    }
}
