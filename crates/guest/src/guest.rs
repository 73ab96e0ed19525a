//! A guest, what it is to do, and what came of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::command::tail;
use crate::complaints::{complaints, from_first_complaint};
use crate::error::Error;
use crate::initramfs::{Ingredients, initramfs};
use crate::job::{FileIn, Job, Source};
use crate::kernel::Kernel;
use crate::lab::Lab;
use crate::plugin::{Plugin, Window, windows};
use crate::qemu::{Ended, Machine, SecureBoot, run};
use crate::{Result, tar};

/// Characters of a console that an error shows.
const CONSOLE_SHOWN: usize = 4000;
/// Lines of a console that are shown from a complaint on.
const COMPLAINT_SHOWN: usize = 60;

/// What came of a job.
#[derive(Debug, Clone)]
pub struct Output {
    /// The script's exit status.
    pub status: i32,
    /// What the script printed.
    pub text: String,
    /// What the kernel printed.
    pub console: String,
    /// The files that came back, by their paths in the guest without the first `/`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Lines of the console by which the kernel complained; empty unless complaints are allowed.
    pub complaints: Vec<String>,
    /// What the plugin counted in each window that the guest marked.
    pub windows: Vec<Window>,
}

/// A machine that does not run yet.
#[derive(Debug, Clone)]
pub struct Guest<'a> {
    lab: &'a Lab,
    kernel: &'a Kernel,
    machine: Machine,
    modules: Vec<String>,
    limit: Duration,
    allow_complaints: bool,
}

impl<'a> Guest<'a> {
    /// A guest with one processor and 1 GiB of memory, emulated, and ended after half an hour.
    pub fn new(lab: &'a Lab, kernel: &'a Kernel) -> Self {
        let limit = Duration::from_secs(1800);
        let (machine, modules) = (Machine::default(), Vec::new());
        Self { lab, kernel, machine, modules, limit, allow_complaints: false }
    }

    /// Executes the same instructions in each run: time is the number of instructions that were executed, in
    /// nanoseconds.
    pub fn exact(mut self) -> Self {
        self.machine.exact = true;
        self
    }

    /// The number of processors. More than one are emulated by threads that truly run at once.
    pub fn processors(mut self, count: u32) -> Self {
        self.machine.processors = count;
        self
    }

    /// The memory, in MiB.
    pub fn memory(mut self, mebibytes: u32) -> Self {
        self.machine.memory = mebibytes;
        self
    }

    /// More for the kernel's command line.
    pub fn append(mut self, words: &str) -> Self {
        self.machine.append = format!("{} {words}", self.machine.append).trim().into();
        self
    }

    /// A processor as QEMU names it, in place of one with all features but five-level page tables.
    pub fn processor(mut self, model: &str) -> Self {
        self.machine.processor = model.into();
        self
    }

    /// A root image in which the script runs; it is not changed.
    pub fn image(mut self, image: &Path) -> Self {
        self.machine.image = Some(image.into());
        self
    }

    /// More modules of the kernel that are inserted, with those that they depend on.
    pub fn modules(mut self, names: &[&str]) -> Self {
        self.modules.extend(names.iter().map(|name| (*name).into()));
        self
    }

    /// Starts by a firmware that takes signed kernels only.
    pub fn secure_boot(mut self, secure_boot: SecureBoot) -> Self {
        self.machine.secure_boot = Some(secure_boot);
        self
    }

    /// Counts what is executed in windows that the guest marks by `window begin` and `window end`.
    pub fn plugin(mut self, plugin: Plugin) -> Self {
        self.machine.plugin = Some(plugin);
        self
    }

    /// The wall time after which the guest is ended.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Complaints of the kernel are expected: they are in the output, and no error.
    pub fn allow_complaints(mut self) -> Self {
        self.allow_complaints = true;
        self
    }

    /// Boots, runs the job, and waits for its end. An exit status other than 0 is no error.
    pub fn run(&self, job: &Job) -> Result<Output> {
        job.check()?;
        let qemu = self.lab.qemu()?;
        let busybox = self.lab.busybox()?;
        let modules = self.kernel.needed_modules(&self.modules)?;
        let more = self.marker()?;
        let in_image = self.machine.image.is_some();
        let ingredients = Ingredients { busybox: &busybox, modules: &modules, job, more: &more, in_image };
        let first_root = initramfs(&ingredients)?;
        let folder = tempfile::tempdir().map_err(Error::file("make a folder in", &std::env::temp_dir()))?;
        // One at a time: a guest keeps a processor busy, and others' time limits would end them.
        let _turn = self.lab.cache().lock("guest")?;
        let ended = run(&qemu, &self.kernel.image()?, &first_root, &self.machine, folder.path(), self.limit)?;
        self.output(folder.path(), &ended)
    }

    /// The program by which the guest marks windows, if somebody counts.
    fn marker(&self) -> Result<Vec<FileIn>> {
        if self.machine.plugin.is_none() {
            return Ok(Vec::new());
        }
        let source = Source::Path(crate::plugin::build_marker(self.lab)?);
        Ok(vec![FileIn { guest: "/usr/bin/window".into(), source, executable: true }])
    }

    fn output(&self, folder: &Path, ended: &Ended) -> Result<Output> {
        let read = |name: &str| fs::read(folder.join(name)).unwrap_or_default();
        let text = |name: &str| String::from_utf8_lossy(&read(name)).into_owned();
        let console = text("console");
        let complaints = complaints(&console);
        if !complaints.is_empty() && !self.allow_complaints {
            return Err(Error::Complained {
                complaints,
                console: from_first_complaint(&console, COMPLAINT_SHOWN),
            });
        }
        let Ok(status) = text("status").trim().parse() else {
            // What is there is no number if the first process failed at its part.
            let why =
                died(ended, text("status").trim(), &text("stderr"), &tail(&text("output"), CONSOLE_SHOWN));
            return Err(Error::Died { why, console: tail(&console, CONSOLE_SHOWN) });
        };
        let archive = read("files");
        let files = if archive.is_empty() { BTreeMap::new() } else { tar::files(&archive)? };
        let windows = if self.machine.plugin.is_some() { windows(folder)? } else { Vec::new() };
        Ok(Output { status, text: text("output"), console, files, complaints, windows })
    }
}

/// Why there is no status.
fn died(ended: &Ended, status: &str, stderr: &str, printed: &str) -> String {
    let mut why = match ended {
        Ended::Itself(status) => format!("QEMU ended with {status}"),
        Ended::ByLimit(limit) => format!("its time limit of {} s is over", limit.as_secs()),
    };
    for (name, text) in [("it said", status), ("QEMU said", stderr), ("the script printed", printed)] {
        if !text.trim().is_empty() {
            why.push_str(&format!("; {name}: {}", text.trim()));
        }
    }
    why
}
