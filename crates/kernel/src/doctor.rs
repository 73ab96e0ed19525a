//! What a kernel allows, and the commands that would allow more.

use crate::error::{KernelError, WITH_MEMORY};
use crate::source::Source;
use crate::symbols::Symbols;
use serde::Serialize;
use std::io::ErrorKind;
use std::path::Path;

/// Version of the JSON forms of this crate.
pub const KERNEL_SCHEMA_VERSION: u32 = 1;

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelCheck {
    /// What.
    pub name: &'static str,
    /// Whether restitch can use it.
    pub available: bool,
    /// What is there, or why not.
    pub state: String,
    /// What it is for, and what is done without it.
    pub meaning: &'static str,
    /// The command that would allow more, if there is one.
    pub remedy: Option<String>,
}

/// All facts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KernelDoctor {
    /// [`KERNEL_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The kernel's release, as `uname -r` says it.
    pub release: String,
    /// In order of importance.
    pub checks: Vec<KernelCheck>,
    /// Whether `restitch kernel analyze` works.
    pub can_analyze: bool,
    /// Whether the code of this kernel could be led to copies: modules, the tracer, its direct calls.
    pub can_redirect: bool,
}

/// Without these no code can be understood.
const ANALYSIS: [&str; 3] = ["symbols", "names of tables", "memory"];
/// Without these, besides, nothing can be put in force.
const REDIRECTION: [&str; 5] =
    ["function tracer", "direct calls", "modules", "unsigned modules", "control module"];

/// Looks at a kernel.
pub fn kernel_doctor(source: &Source) -> KernelDoctor {
    let look = Look::new(source);
    let checks = vec![
        look.symbols(),
        look.names(),
        look.memory(),
        look.types(),
        look.tracer(),
        look.direct_calls(),
        look.modules(),
        look.signatures(),
        look.lockdown(),
        look.branch_targets(),
        look.live_patches(),
        look.headers(),
        look.control_module(),
    ];
    let all = |names: &[&str]| {
        checks.iter().filter(|check| names.contains(&check.name)).all(|check| check.available)
    };
    let can_analyze = all(&ANALYSIS);
    let can_redirect = can_analyze && all(&REDIRECTION);
    let schema_version = KERNEL_SCHEMA_VERSION;
    KernelDoctor { schema_version, release: look.release, checks, can_analyze, can_redirect }
}

/// The release of a kernel; empty if it is not said.
pub fn release(source: &Source) -> String {
    text(source, "proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).unwrap_or_default()
}

struct Look<'a> {
    source: &'a Source,
    release: String,
    symbols: Result<Symbols, KernelError>,
    config: Option<String>,
}

fn text(source: &Source, name: &str) -> Option<String> {
    source.text(name).ok()
}

impl<'a> Look<'a> {
    fn new(source: &'a Source) -> Self {
        let release = release(source);
        let list = "proc/kallsyms";
        let symbols = source.text(list).and_then(|text| Symbols::parse(&text, &source.path(list)));
        let places = [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
            format!("usr/lib/modules/{release}/config"),
        ];
        let config = places.iter().find_map(|place| text(source, place));
        Self { source, release, symbols, config }
    }

    fn text(&self, name: &str) -> Option<String> {
        text(self.source, name)
    }

    fn symbol(&self, name: &str) -> bool {
        self.symbols.as_ref().is_ok_and(|symbols| symbols.address(name).is_some())
    }

    /// What the configuration says of an option; none if it cannot be read.
    fn option(&self, name: &str) -> Option<bool> {
        let config = self.config.as_deref()?;
        Some(config.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))))
    }

    fn symbols(&self) -> KernelCheck {
        KernelCheck {
            name: "symbols",
            available: self.symbols.is_ok(),
            state: match &self.symbols {
                Ok(symbols) => format!("/proc/kallsyms has {} names with addresses", symbols.all().len()),
                Err(error) => error.to_string(),
            },
            meaning: "where functions are; needed",
            remedy: self.symbols.as_ref().err().map(|error| match error {
                KernelError::Hidden { .. } => {
                    "sudo sysctl kernel.kptr_restrict=1, and run restitch as root".into()
                }
                _ => "run restitch as root".into(),
            }),
        }
    }

    fn names(&self) -> KernelCheck {
        let available = self.symbol("__start___ex_table") && self.symbol("_stext") && self.symbol("_etext");
        let state = match (&self.symbols, available) {
            (_, true) => "/proc/kallsyms names the kernel's tables of faults, keys, calls and traps",
            (Err(_), _) => "not known without symbols",
            _ => "/proc/kallsyms names code only: the kernel is built without CONFIG_KALLSYMS_ALL",
        };
        let meaning = "what the kernel rewrites in its code, and which faults it expects; needed";
        KernelCheck { name: "names of tables", available, state: state.into(), meaning, remedy: None }
    }

    fn memory(&self) -> KernelCheck {
        let state =
            self.source.open("proc/kcore").and_then(|file| first_byte(file, &self.source.path("proc/kcore")));
        let is_locked = self.lockdown_level().as_deref() == Some("confidentiality");
        KernelCheck {
            name: "memory",
            available: state.is_ok(),
            state: match &state {
                Ok(()) => "/proc/kcore can be read".into(),
                Err(_) if is_locked => "lockdown (confidentiality) closes /proc/kcore".into(),
                Err(error) => error.to_string(),
            },
            meaning: "the bytes of the code as it runs; needed",
            remedy: state.err().map(|error| match error {
                _ if is_locked => "reboot without lockdown=confidentiality".into(),
                KernelError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
                    WITH_MEMORY.into()
                }
                _ => "run restitch as root, outside of the container".into(),
            }),
        }
    }

    fn types(&self) -> KernelCheck {
        let available = self.source.open("sys/kernel/btf/vmlinux").is_ok();
        let (yes, no) = ("/sys/kernel/btf/vmlinux", "this kernel has none, or does not show them");
        KernelCheck {
            name: "types",
            available,
            state: if available { yes } else { no }.into(),
            meaning: "how tables are built (BTF); else they are taken to be built as usual",
            remedy: None,
        }
    }

    fn tracer(&self) -> KernelCheck {
        let places = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];
        let list = |place: &&str| self.source.open(&format!("{place}/available_filter_functions")).is_ok();
        let is_listed = places.iter().any(list);
        let is_on = self.text("proc/sys/kernel/ftrace_enabled").is_none_or(|text| text.trim() != "0");
        KernelCheck {
            name: "function tracer",
            available: is_listed && is_on,
            state: match (is_listed, is_on) {
                (true, true) => "its list of functions can be read".into(),
                (true, false) => "it is switched off: kernel.ftrace_enabled is 0".into(),
                (false, _) => "its list cannot be read: it is not mounted, or closed to this user".into(),
            },
            meaning: "calls of functions are led elsewhere by it; for the analysis, who else uses it",
            remedy: match (is_listed, is_on) {
                (true, true) => None,
                (true, false) => Some("sudo sysctl kernel.ftrace_enabled=1".into()),
                (false, _) => {
                    Some("sudo mount -t tracefs tracefs /sys/kernel/tracing, and run as root".into())
                }
            },
        }
    }

    fn direct_calls(&self) -> KernelCheck {
        let available = self.symbol("register_ftrace_direct");
        let by_jump = self.option("CONFIG_DYNAMIC_FTRACE_WITH_JMP");
        let state = match (available, by_jump) {
            (true, Some(true)) => "a function leads to its copy by a jump, at no instruction more",
            (true, Some(false)) => "a function leads to its copy by a call, at 3 instructions more",
            (true, None) => {
                "there are some; the kernel's configuration is not here to say by a jump or a call"
            }
            (false, _) => "this kernel has none, or its symbols cannot be read",
        };
        KernelCheck {
            name: "direct calls",
            available,
            state: state.into(),
            meaning: "leading a function to its copy (CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS)",
            remedy: None,
        }
    }

    fn modules(&self) -> KernelCheck {
        let has_modules = self.source.open("proc/modules").is_ok();
        let is_closed = self.text("proc/sys/kernel/modules_disabled").is_some_and(|text| text.trim() == "1");
        KernelCheck {
            name: "modules",
            available: has_modules && !is_closed,
            state: match (has_modules, is_closed) {
                (true, false) => "can be loaded".into(),
                (true, true) => "none can be loaded any more: kernel.modules_disabled is 1".into(),
                (false, _) => "this kernel has none, or /proc/modules is not shown".into(),
            },
            meaning: "copies of code come into the kernel as modules",
            remedy: is_closed.then(|| "reboot without kernel.modules_disabled=1".into()),
        }
    }

    /// The level that lockdown is at, of those in the list.
    fn lockdown_level(&self) -> Option<String> {
        let text = self.text("sys/kernel/security/lockdown")?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    }

    fn lockdown(&self) -> KernelCheck {
        let level = self.lockdown_level();
        let available = level.as_deref().is_none_or(|level| level == "none");
        KernelCheck {
            name: "lockdown",
            available,
            state: match level.as_deref() {
                None => "not in this kernel, or not shown".into(),
                Some("none") => "off".into(),
                Some(level) => format!("{level} (Secure Boot sets it, or the boot parameter lockdown=)"),
            },
            meaning: "integrity refuses modules without a trusted signature; confidentiality also /proc/kcore and tracing",
            remedy: (!available)
                .then(|| "enrol a key for modules, or switch Secure Boot off in the firmware".into()),
        }
    }

    fn signatures(&self) -> KernelCheck {
        let enforced = self.text("sys/module/module/parameters/sig_enforce");
        let enforced = enforced.is_some_and(|text| text.trim() == "Y");
        let level = self.lockdown_level();
        let is_locked = level.as_deref().is_some_and(|level| level != "none");
        let available = !enforced && !is_locked;
        KernelCheck {
            name: "unsigned modules",
            available,
            state: match (enforced, is_locked) {
                (false, false) => "are taken (they taint the kernel)".into(),
                (true, _) => "are refused: module.sig_enforce is on".into(),
                (false, true) => "are refused by lockdown".into(),
            },
            meaning: "else each has to be signed with a key that the machine's owner has enrolled: that of DKMS, or the one that RESTITCH_MODULE_KEY names",
            remedy: (!available).then(|| "sudo mokutil --import /var/lib/dkms/mok.pub, and reboot".into()),
        }
    }

    fn branch_targets(&self) -> KernelCheck {
        let has_types = self.option("CONFIG_CFI").or(self.option("CONFIG_CFI_CLANG"));
        let has_types = has_types == Some(true) || self.option("CONFIG_CFI_CLANG") == Some(true);
        let has_flag = self.text("proc/cpuinfo").is_some_and(|text| {
            text.lines()
                .find(|line| line.starts_with("flags"))
                .is_some_and(|line| line.split(' ').any(|flag| flag == "ibt"))
        });
        let is_off = self
            .text("proc/cmdline")
            .is_some_and(|text| text.split_whitespace().any(|word| word == "ibt=off"));
        let tracks = match (has_flag && !is_off, self.config.is_some()) {
            (true, _) => {
                "the processor looks that indirect branches lead to markers (IBT); copies keep theirs"
            }
            (false, true) => "indirect branches are not checked",
            (false, false) => {
                "indirect branches are not checked, as far as can be seen without the configuration"
            }
        };
        KernelCheck {
            name: "branch targets",
            available: !has_types,
            state: if has_types { "calls check types (CFI, FineIBT)" } else { tracks }.into(),
            meaning: "checks of types (kernels built by clang with CFI) are not understood: nothing is led elsewhere there",
            remedy: has_types.then(|| "boot with cfi=off".into()),
        }
    }

    fn live_patches(&self) -> KernelCheck {
        const LIVE_PATCH: u64 = 1 << 15;
        let tainted = self.text("proc/sys/kernel/tainted").and_then(|text| text.trim().parse::<u64>().ok());
        let is_patched = tainted.is_some_and(|bits| bits & LIVE_PATCH != 0);
        KernelCheck {
            name: "live patches",
            available: !is_patched,
            state: if is_patched { "the kernel has been patched while it runs" } else { "none" }.into(),
            meaning: "functions that a live patch has replaced stay as they are",
            remedy: None,
        }
    }

    fn headers(&self) -> KernelCheck {
        let build = format!("lib/modules/{}/build", self.release);
        let available = !self.release.is_empty() && self.source.path(&build).join("Makefile").exists();
        KernelCheck {
            name: "headers",
            available,
            state: if available { format!("/{build}") } else { format!("none in /{build}") },
            meaning: "the control module is built with them, once; copies of code need none",
            remedy: (!available).then(|| format!("sudo apt install linux-headers-{}", self.release)),
        }
    }

    fn control_module(&self) -> KernelCheck {
        let list = self.text("proc/modules").unwrap_or_default();
        let is_loaded = list.lines().any(|line| line.starts_with("restitch_kernel "));
        let folder = format!("lib/modules/{}/updates/dkms", self.release);
        let is_built = ["", ".xz", ".zst", ".gz"]
            .iter()
            .any(|end| self.source.path(&format!("{folder}/restitch-kernel.ko{end}")).exists());
        KernelCheck {
            name: "control module",
            available: is_loaded,
            state: match (is_loaded, is_built) {
                (true, _) => "loaded".into(),
                (false, true) => "built, not loaded".into(),
                (false, false) => "not there".into(),
            },
            meaning: "leads functions to copies, and back when restitch ends, however it ends",
            remedy: match (is_loaded, is_built) {
                (true, _) => None,
                (false, true) => Some("sudo modprobe restitch-kernel".into()),
                (false, false) => Some(restitch_report::CONTROL_MODULE.into()),
            },
        }
    }
}

/// Whether a file can be read, not only opened.
fn first_byte(file: std::fs::File, path: &Path) -> Result<(), KernelError> {
    use std::io::Read;
    let mut byte = [0];
    let read = (&file).read_exact(&mut byte);
    read.map_err(|source| KernelError::Read { path: path.into(), source })
}
