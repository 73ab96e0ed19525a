//! What the running kernel calls, for a moment: by its function tracer, in an instance of that of our own, so
//! that whoever traces meanwhile is not disturbed.
//!
//! Samples do not say it: without hardware counters they see nothing of code that interrupts are closed in.
//! All functions are slower while they are traced. Should this process be killed meanwhile, a shell that
//! waits for its end takes the instance out.

use restitch_kernel::{Called, KernelError};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where the tracer's files are: on their own, or below those for debugging.
const TRACERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// KiB for each processor, of which a call takes some 30 bytes: the last ones are kept.
const BUFFER: &str = "2048";
/// Takes the instance `$1` out when nobody writes to it any more.
const KEEPER: &str = "trap '' INT TERM HUP; read -r line; echo 0 >\"$1/tracing_on\"; \
                      echo nop >\"$1/current_tracer\"; rmdir \"$1\"";

/// The tracer at work.
#[derive(Debug)]
pub(crate) struct CallTracing {
    folder: PathBuf,
    keeper: Child,
}

impl CallTracing {
    /// Begins to trace: all that runs, or a process and what it starts.
    ///
    /// # Errors
    /// If there is no tracer, or the kernel refuses.
    pub(crate) fn begin(pid: Option<i32>) -> Result<Self, KernelError> {
        let own = |tracer: &&str| Path::new(tracer).join("current_tracer").exists();
        let tracer = Path::new(TRACERS.into_iter().find(own).unwrap_or(TRACERS[0]));
        let folder = tracer.join("instances").join(format!("restitch_{}", std::process::id()));
        fs::create_dir(&folder).map_err(of(&folder))?;
        let mut keeper = Command::new("/bin/sh");
        keeper.args(["-c", KEEPER, "sh"]).arg(&folder).process_group(0);
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = keeper.spawn().inspect_err(|_| drop(fs::remove_dir(&folder))).map_err(of(&folder))?;
        let tracing = Self { folder, keeper };
        tracing.set("buffer_size_kb", BUFFER)?;
        tracing.set("trace_options", "raw")?;
        tracing.set("trace_options", "nocontext-info")?;
        if let Some(pid) = pid {
            tracing.set("trace_options", "function-fork")?;
            tracing.set("set_ftrace_pid", &threads(pid))?;
        }
        tracing.set("current_tracer", "function")?;
        Ok(tracing)
    }

    /// What was called since the last time, as far as there is room for it; and goes on.
    ///
    /// # Errors
    /// If the kernel does not give it.
    pub(crate) fn take(&self) -> Result<Called, KernelError> {
        self.set("tracing_on", "0")?;
        let path = self.folder.join("trace");
        let called = Called::parse(&fs::read_to_string(&path).map_err(of(&path))?);
        // Whoever truncates it, empties the buffers.
        self.set("trace", "")?;
        self.set("tracing_on", "1")?;
        Ok(called)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), KernelError> {
        let path = self.folder.join(name);
        fs::write(&path, value).map_err(of(&path))
    }
}

impl Drop for CallTracing {
    fn drop(&mut self) {
        // Its end of the pipe is what the keeper waits for.
        drop(self.keeper.stdin.take());
        // It has ended before if somebody has killed it, and then the instance is there still.
        let _ = self.keeper.wait();
        let _ = fs::remove_dir(&self.folder);
    }
}

fn of(path: &Path) -> impl FnOnce(io::Error) -> KernelError {
    let path = path.to_owned();
    move |source| KernelError::Tracer { path, source }
}

/// The threads of a process, as words.
fn threads(pid: i32) -> String {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names: Vec<String> = names.collect();
    if names.is_empty() { pid.to_string() } else { names.join(" ") }
}
