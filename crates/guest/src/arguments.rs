//! The command line of `restitch-guest`.

use std::path::PathBuf;
use std::time::Duration;

use restitch_guest::{Error, FileIn, Result, Source};

/// What `--help` prints.
pub(crate) const HELP: &str = "\
restitch-guest run [OPTIONS] (--script FILE | -- COMMAND...)
restitch-guest view [OPTIONS] --to FOLDER
restitch-guest module [--kernel LINE]
restitch-guest trials [--kernel LINE]
restitch-guest fetch [--kernel LINE]

run    boots a kernel of the distribution under QEMU and runs a script or a command in it
view   copies what the kernel says of itself into a folder (kallsyms, kcore, BTF, ...), for analysis
module builds the control module of kernel/module for the kernel, and prints where it is
trials builds the modules of kernel/trials for the kernel, and prints in which folder they are
fetch  fetches QEMU and the kernel, and prints where they are

  --kernel LINE         6.1 (default), 6.12 or 7.3; or the folder of one that was built here, with a /
  --exact               the same instructions in each run: time is what was executed
  --processors N        more than one run truly at once
  --memory MIB          1024 by default
  --append WORDS        more for the kernel's command line
  --packages A,B        a root image with these packages of the distribution
  --modules A,B         modules of the kernel to insert, behind those that they depend on
  --in HOST:GUEST       a file for the guest, executable if it is here; may be repeated
  --out PATH            a file or folder of the guest to bring back; may be repeated
  --to FOLDER           where they go, and what was counted (window-N/instructions and branches)
  --count               counts kernel execution between `window begin` and `window end`
  --time-limit SECONDS  1800 by default
  --allow-complaints    an oops or a warning of the kernel is no failure
  --console             prints what the kernel printed

Exit status: that of the script; 125 if the guest did not come to its end, 2 for wrong arguments.
The cache is in the folder that RESTITCH_GUEST_CACHE names, else ~/.cache/restitch/guest.
";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Run,
    View,
    Module,
    Trials,
    Fetch,
    Help,
}

/// The arguments.
pub(crate) struct Options {
    pub(crate) action: Action,
    pub(crate) kernel: String,
    pub(crate) exact: bool,
    pub(crate) processors: u32,
    pub(crate) memory: Option<u32>,
    pub(crate) append: String,
    pub(crate) packages: Vec<String>,
    pub(crate) modules: Vec<String>,
    pub(crate) files_in: Vec<FileIn>,
    pub(crate) files_out: Vec<String>,
    pub(crate) to: Option<PathBuf>,
    pub(crate) count: bool,
    pub(crate) limit: Duration,
    pub(crate) allow_complaints: bool,
    pub(crate) console: bool,
    script_file: Option<PathBuf>,
    command: Vec<String>,
}

impl Options {
    /// Reads the arguments behind the program's name.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut arguments = arguments;
        let action = match arguments.next().as_deref() {
            Some("run") => Action::Run,
            Some("view") => Action::View,
            Some("module") => Action::Module,
            Some("trials") => Action::Trials,
            Some("fetch") => Action::Fetch,
            Some("--help" | "-h" | "help") => Action::Help,
            _ => return Err(usage("say run, view, module, trials or fetch; --help says more")),
        };
        let mut options = Self::defaults(action);
        while let Some(name) = arguments.next() {
            if name == "--" {
                options.command = arguments.by_ref().collect();
            } else if !options.switch(&name) {
                let value = arguments.next().ok_or_else(|| usage(&format!("{name} needs a value")))?;
                options.set(&name, value)?;
            }
        }
        Ok(options)
    }

    fn defaults(action: Action) -> Self {
        Self {
            action,
            kernel: "6.1".into(),
            exact: false,
            processors: 1,
            memory: None,
            append: String::new(),
            packages: Vec::new(),
            modules: Vec::new(),
            files_in: Vec::new(),
            files_out: Vec::new(),
            to: None,
            count: false,
            limit: Duration::from_secs(1800),
            allow_complaints: false,
            console: false,
            script_file: None,
            command: Vec::new(),
        }
    }

    /// Sets a switch; whether there is one of that name.
    fn switch(&mut self, name: &str) -> bool {
        let switch = match name {
            "--exact" => &mut self.exact,
            "--count" => &mut self.count,
            "--allow-complaints" => &mut self.allow_complaints,
            "--console" => &mut self.console,
            _ => return false,
        };
        *switch = true;
        true
    }

    fn set(&mut self, name: &str, value: String) -> Result<()> {
        match name {
            "--kernel" => self.kernel = value,
            "--processors" => self.processors = number(name, &value)?,
            "--memory" => self.memory = Some(number(name, &value)?),
            "--append" => self.append = value,
            "--packages" => self.packages = value.split(',').map(String::from).collect(),
            "--modules" => self.modules = value.split(',').map(String::from).collect(),
            "--in" => self.files_in.push(file_in(&value)?),
            "--out" => self.files_out.push(value),
            "--to" => self.to = Some(value.into()),
            "--time-limit" => self.limit = Duration::from_secs(number(name, &value)?.into()),
            "--script" => self.script_file = Some(value.into()),
            _ => return Err(usage(&format!("there is no option {name}; --help has all"))),
        }
        Ok(())
    }

    /// The script to run.
    pub(crate) fn script(&self) -> Result<String> {
        match &self.script_file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                read.map_err(|source| Error::File { what: "read", path: path.clone(), source })
            }
            None if self.command.is_empty() => Err(usage("say --script FILE or -- COMMAND")),
            None => Ok(self.command.iter().map(|word| quoted(word) + " ").collect()),
        }
    }
}

fn usage(what: &str) -> Error {
    Error::Usage(what.into())
}

fn number(name: &str, value: &str) -> Result<u32> {
    let number = value.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| usage(&format!("{name} needs a number above 0, not {value:?}")))
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn file_in(value: &str) -> Result<FileIn> {
    use std::os::unix::fs::PermissionsExt;
    let (host, guest) = value.rsplit_once(':').ok_or_else(|| usage("--in needs HOST:GUEST"))?;
    let metadata = std::fs::metadata(host);
    let metadata = metadata.map_err(|source| Error::File { what: "read", path: host.into(), source })?;
    let executable = metadata.permissions().mode() & 0o111 != 0;
    Ok(FileIn { guest: guest.into(), source: Source::Path(host.into()), executable })
}
