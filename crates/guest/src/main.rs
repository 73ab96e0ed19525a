//! `restitch-guest`: runs a script in a distribution's kernel, from the command line of developers. The user
//! names a kernel and a script or a command; its output and exit status are the guest's.

mod arguments;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use arguments::{Action, HELP, Options};
use restitch_guest::{
    Counts, Edge, Error, Executed, Guest, Job, Kernel, Lab, Output, Plugin, Result, Window,
    build_control_module, build_trial_modules, root_image, take_view,
};

/// Exit status where a guest could not be made or did not come to its end. Those of scripts are below.
const FAILED: u8 = 125;
/// Exit status where the arguments make no sense.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("restitch-guest: {error}");
            return ExitCode::from(USAGE);
        }
    };
    match act(&options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("restitch-guest: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { USAGE } else { FAILED })
        }
    }
}

fn act(options: &Options) -> Result<u8> {
    match options.action {
        Action::Help => {
            print!("{HELP}");
            return Ok(0);
        }
        Action::Fetch | Action::Module | Action::Trials | Action::Run | Action::View => {}
    }
    let lab = Lab::open()?;
    let kernel = lab.kernel(&options.kernel)?;
    if kernel.stands_in() {
        eprintln!("restitch-guest: the pinned kernel is gone from the archive; this is {}", kernel.release());
    }
    match &options.action {
        Action::Fetch => {
            println!("{}\n{}", lab.qemu()?.display(), kernel.image()?.display());
            Ok(0)
        }
        Action::Module => {
            println!("{}", build_control_module(&lab, &kernel)?.display());
            Ok(0)
        }
        Action::Trials => {
            println!("{}", build_trial_modules(&lab, &kernel)?.display());
            Ok(0)
        }
        Action::View => {
            let folder =
                options.to.as_deref().ok_or_else(|| Error::Usage("view needs --to FOLDER".into()))?;
            take_view(&guest(options, &lab, &kernel)?, &kernel, folder)?;
            Ok(0)
        }
        _ => run(options, &lab, &kernel),
    }
}

fn guest<'a>(options: &Options, lab: &'a Lab, kernel: &'a Kernel) -> Result<Guest<'a>> {
    let mut guest = Guest::new(lab, kernel).time_limit(options.limit).append(&options.append);
    let modules: Vec<&str> = options.modules.iter().map(String::as_str).collect();
    guest = guest.modules(&modules);
    if options.exact {
        guest = guest.exact();
    }
    if options.processors > 1 {
        guest = guest.processors(options.processors);
    }
    if let Some(memory) = options.memory {
        guest = guest.memory(memory);
    }
    if !options.packages.is_empty() {
        let packages: Vec<&str> = options.packages.iter().map(String::as_str).collect();
        guest = guest.image(&root_image(lab, &packages)?);
    }
    if options.count {
        guest = guest.plugin(Plugin::build(lab)?);
    }
    Ok(if options.allow_complaints { guest.allow_complaints() } else { guest })
}

fn run(options: &Options, lab: &Lab, kernel: &Kernel) -> Result<u8> {
    let script = options.script()?;
    let job = Job { script, files_in: options.files_in.clone(), files_out: options.files_out.clone() };
    let output = guest(options, lab, kernel)?.run(&job)?;
    show(options, &output);
    if let Some(folder) = &options.to {
        write_files(folder, &output)?;
    }
    Ok(u8::try_from(output.status).unwrap_or(FAILED))
}

fn show(options: &Options, output: &Output) {
    if options.console {
        eprint!("{}", output.console);
    }
    // Who closed the pipe does not want it.
    let _ = std::io::stdout().write_all(output.text.as_bytes());
    for complaint in &output.complaints {
        eprintln!("restitch-guest: the kernel complained: {complaint}");
    }
    for window in &output.windows {
        eprint!("{}", table(window));
    }
}

/// The figures of a window.
fn table(window: &Window) -> String {
    let (counts, summary) = (&window.counts, window.counts.summary());
    let place = |name: &str, of: restitch_guest::Concentration| {
        format!(
            "  {name} for 90, 99, 99.9 %  {:>7} {:>7} {:>7}  of {}\n",
            of.at_90, of.at_99, of.at_99_9, of.all
        )
    };
    let line = |name: &str, count: u64| format!("  {name:<30} {count:>15}\n");
    [
        format!("window {}, kernel code:\n", window.number),
        line("instructions", summary.instructions),
        line("(of programs)", counts.user_instructions),
        line("taken branches", summary.taken_branches),
        place("lines", summary.lines),
        place("pages", summary.pages),
        line("lines fetched (model)", counts.line_fetches),
        line("L1i misses (model)", counts.line_misses),
        line("iTLB misses (model)", counts.page_misses),
        line("interruptions", counts.interruptions),
        line("steps without explanation", counts.unexplained),
    ]
    .concat()
}

/// The files that came back, and what was counted.
fn write_files(folder: &Path, output: &Output) -> Result<()> {
    for (name, bytes) in &output.files {
        write(&folder.join(name), bytes)?;
    }
    for window in &output.windows {
        let folder = folder.join(format!("window-{}", window.number));
        write(&folder.join("instructions"), instructions(&window.counts).as_bytes())?;
        write(&folder.join("branches"), branches(&window.counts).as_bytes())?;
    }
    Ok(())
}

/// Address, size and count of each instruction, one a line.
fn instructions(counts: &Counts) -> String {
    let line = |of: &Executed| format!("{:x}\t{}\t{}\n", of.address, of.size, of.count);
    counts.executed.iter().map(line).collect()
}

/// Address, target, count and kind of each way of a branch, one a line.
fn branches(counts: &Counts) -> String {
    let line = |edge: &Edge| format!("{:x}\t{:x}\t{}\t{:?}\n", edge.from, edge.to, edge.count, edge.kind);
    counts.edges.iter().map(line).collect()
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = made.and_then(|()| std::fs::write(path, bytes));
    written.map_err(|source| Error::File { what: "write", path: path.into(), source })
}
