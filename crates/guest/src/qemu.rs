//! QEMU: its command line, and its life.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::Result;
use crate::error::Error;
use crate::plugin::{Plugin, option_value};

/// The guest's own copy of its firmware's variables.
const VARIABLES: &str = "variables";
/// How often a running guest is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A firmware that starts signed kernels only (UEFI Secure Boot), and a kernel for it.
#[derive(Debug, Clone)]
pub struct SecureBoot {
    /// The firmware's code: OVMF, built for system management mode.
    pub code: PathBuf,
    /// Its variables, with the keys that it trusts. They are not changed.
    pub variables: PathBuf,
    /// The kernel's image, signed with one of the keys.
    pub image: PathBuf,
}

/// What is emulated.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) exact: bool,
    pub(crate) processors: u32,
    /// In MiB.
    pub(crate) memory: u32,
    pub(crate) append: String,
    pub(crate) processor: String,
    pub(crate) image: Option<PathBuf>,
    pub(crate) plugin: Option<Plugin>,
    pub(crate) secure_boot: Option<SecureBoot>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            exact: false,
            processors: 1,
            memory: 1024,
            append: String::new(),
            // Addresses as on most machines: five-level page tables move the kernel's ranges.
            processor: "max,la57=off".into(),
            image: None,
            plugin: None,
            secure_boot: None,
        }
    }
}

/// How a guest ended.
pub(crate) enum Ended {
    /// QEMU ended.
    Itself(ExitStatus),
    /// It took longer than it may.
    ByLimit(Duration),
}

/// Boots the machine and waits for its end. What the guest gives is in files of `folder`: `console`,
/// `output`, `files`, `status`; what QEMU itself says in `stderr`.
pub(crate) fn run(
    qemu: &Path,
    image: &Path,
    first_root: &[u8],
    machine: &Machine,
    folder: &Path,
    limit: Duration,
) -> Result<Ended> {
    if machine.exact && machine.processors != 1 {
        return Err(Error::Usage("an exact guest has one processor".into()));
    }
    let initrd = folder.join("initrd");
    fs::write(&initrd, first_root).map_err(Error::file("write", &initrd))?;
    if let Some(SecureBoot { variables, .. }) = &machine.secure_boot {
        fs::copy(variables, folder.join(VARIABLES)).map_err(Error::file("copy", variables))?;
    }
    let image = machine.secure_boot.as_ref().map_or(image, |secure| &secure.image);
    let stderr = folder.join("stderr");
    let stderr = File::create(&stderr).map_err(Error::file("make", &stderr))?;
    // A guest does not outlive who waits for it, and leaves the machine's processors to others.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "nice", "-n", "5"]);
    command.args(program(qemu)).args(arguments(qemu, machine, folder));
    command
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(&initrd)
        .arg("-append")
        .arg(kernel_arguments(machine));
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
    let child = child.map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::missing("setpriv is not available", "install util-linux"),
        _ => Error::Command {
            program: "QEMU".into(),
            status: "not started".into(),
            output: source.to_string(),
        },
    })?;
    wait(child, limit)
}

/// QEMU with the libraries that it was built for, by their own loader.
fn program(qemu: &Path) -> Vec<OsString> {
    let libraries = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|name| qemu.join(name));
    vec![
        qemu.join("lib64/ld-linux-x86-64.so.2").into(),
        "--library-path".into(),
        libraries.map(|path| path.display().to_string()).join(":").into(),
        qemu.join("usr/bin/qemu-system-x86_64").into(),
    ]
}

fn arguments(qemu: &Path, machine: &Machine, folder: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |more: &[&str]| words.extend(more.iter().map(OsString::from));
    for data in ["usr/share/qemu", "usr/share/seabios"] {
        add(&["-L", &qemu.join(data).display().to_string()]);
    }
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-nic", "none"]);
    let board = if machine.secure_boot.is_some() { "q35,smm=on" } else { "q35" };
    add(&["-machine", board, "-cpu", &machine.processor]);
    add(&["-m", &machine.memory.to_string(), "-smp", &machine.processors.to_string()]);
    let threads = if machine.processors > 1 { "multi" } else { "single" };
    add(&["-accel", &format!("tcg,thread={threads}")]);
    if machine.exact {
        add(&["-icount", "shift=0,sleep=off", "-rtc", "base=2026-01-01T00:00:00,clock=vm", "-seed", "1"]);
    }
    let file = |name: &str| option_value(&folder.join(name));
    if let Some(SecureBoot { code, .. }) = &machine.secure_boot {
        add(&["-global", "driver=cfi.pflash01,property=secure,value=on"]);
        add(&["-drive", &format!("if=pflash,format=raw,unit=0,readonly=on,file={}", option_value(code))]);
        add(&["-drive", &format!("if=pflash,format=raw,unit=1,file={}", file(VARIABLES))]);
    }
    add(&["-serial", &format!("file:{}", folder.join("console").display()), "-device", "virtio-serial-pci"]);
    for port in ["output", "files", "status"] {
        add(&["-chardev", &format!("file,id={port},path={}", file(port))]);
        add(&["-device", &format!("virtserialport,chardev={port},name=restitch.{port}")]);
    }
    if let Some(image) = &machine.image {
        add(&["-drive", &format!("file={},format=raw,if=none,id=root,snapshot=on", option_value(image))]);
        add(&["-device", "virtio-blk-pci,drive=root"]);
    }
    if let Some(plugin) = &machine.plugin {
        add(&["-plugin", &plugin.argument(folder)]);
    }
    words
}

fn kernel_arguments(machine: &Machine) -> String {
    // The generator of random numbers is trusted, else early boot spins for entropy; a panic ends the guest.
    let fixed = "console=ttyS0 random.trust_cpu=1 no_timer_check panic=-1";
    let timeless = if machine.exact { "" } else { TIMELESS };
    format!("{fixed} {timeless} {}", machine.append)
}

/// No watchdogs in guests whose time is that of the host: who gets no processor for a minute is not stuck.
/// What hangs is ended by the time limit.
const TIMELESS: &str = "nowatchdog rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0 \
                        sysctl.kernel.hung_task_timeout_secs=0";

/// Waits for the end, at most that long.
fn wait(mut child: Child, limit: Duration) -> Result<Ended> {
    let start = Instant::now();
    loop {
        let ended = child.try_wait().map_err(Error::file("wait for", Path::new("QEMU")))?;
        if let Some(status) = ended {
            return Ok(Ended::Itself(status));
        }
        if start.elapsed() > limit {
            // It may have ended in between, which is as good.
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Ended::ByLimit(limit));
        }
        std::thread::sleep(LOOK);
    }
}
