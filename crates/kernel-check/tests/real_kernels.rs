//! Copies of functions of real kernels, as `kernel-group`'s example `copy` makes them, are proved.
//!
//! `RESTITCH_KERNEL_VIEWS` names a folder with views of kernels, in folders `6.1`, `6.12` and
//! `7.3` (`cargo run -p restitch-guest -- view`). Without it there is nothing to test.

use restitch_address::Svma;
use restitch_kernel_check::{Kernel, KernelFacts, ModuleForm, Symbols, WarningForm, check};
use restitch_testkit::skip_unsupported;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What a kernel has said of itself.
struct View {
    core: Vec<u8>,
    areas: Vec<Area>,
    symbols: Symbols,
}

/// A part of the core file.
struct Area {
    at: u64,
    len: u64,
    offset: u64,
}

impl View {
    fn read(folder: &Path) -> Self {
        let core = fs::read(folder.join("proc/kcore")).unwrap();
        let word = |at: usize| u64::from_le_bytes(*core[at..].first_chunk().unwrap());
        let headers = u16::from_le_bytes([core[56], core[57]]);
        let headers = (0..usize::from(headers)).map(|i| word(32) as usize + 56 * i);
        let area = |at: usize| Area { at: word(at + 16), len: word(at + 32), offset: word(at + 8) };
        let areas = headers.filter(|at| core[*at] == 1).map(area).collect();
        let text = fs::read_to_string(folder.join("proc/kallsyms")).unwrap();
        // Those of modules have one word more.
        let symbol = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [at, _, name] => Some((Svma::new(u64::from_str_radix(at, 16).unwrap()), name.to_owned())),
            _ => None,
        };
        let symbols = text.lines().filter_map(symbol).collect();
        Self { core, areas, symbols }
    }
}

impl Kernel for View {
    fn read(&self, at: Svma, into: &mut [u8]) -> bool {
        let (at, len) = (at.get(), into.len() as u64);
        let holds = |area: &&Area| area.at <= at && at - area.at <= area.len.saturating_sub(len);
        let Some(area) = self.areas.iter().find(holds) else { return false };
        let from = (area.offset + at - area.at) as usize;
        let bytes = self.core.get(from..from + into.len());
        bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }
    fn symbols(&self) -> &Symbols {
        &self.symbols
    }
}

/// A kernel, and where its modules come from.
struct Subject {
    folder: PathBuf,
    view: View,
    facts: KernelFacts,
    /// A module that knows the checksums of the control module.
    control: PathBuf,
}

impl Subject {
    /// Of the kernel whose view is in a folder. Files go to `to`.
    fn new(folder: PathBuf, to: &Path) -> Self {
        // What the form of records is learnt from in the product, the types of the kernel, is not read here.
        let is_old = folder.ends_with("6.1") || folder.ends_with("6.12");
        let (has_sums, warning) = match is_old {
            true => (true, WarningForm { len: 12, flags_at: 10, pointers: vec![4] }),
            false => (false, WarningForm { len: 16, flags_at: 14, pointers: vec![4, 8] }),
        };
        let modules = fs::read_dir(folder.join("lib/modules")).unwrap().next().unwrap().unwrap().path();
        let example = modules.join("virtio_blk.ko");
        let control = to.join("control.ko");
        let sums = ["restitch_kernel_register", "restitch_kernel_unregister", "_printk", "stop_machine"];
        let sums = sums.map(|name| format!("--add-symbol=__crc_{name}=0x1234,global"));
        let mut copy = Command::new("objcopy");
        if has_sums {
            copy.args(sums);
        }
        assert!(copy.arg(&example).arg(&control).status().unwrap().success());
        let facts = KernelFacts {
            module: ModuleForm::read(&fs::read(&example).unwrap()).unwrap(),
            warning,
            traces: None,
        };
        let view = View::read(&folder);
        Self { folder, view, facts, control }
    }

    fn copy(&self, to: &Path, order: &str, functions: &[&str]) -> Vec<u8> {
        let file = to.join("group.ko");
        let example = ["run", "-q", "-p", "restitch-kernel-group", "--example", "copy", "--"];
        let mut command = Command::new(env!("CARGO"));
        command.args(example).args([&self.folder, &self.control, &file]).args(["group", order]);
        let output = command.args(functions).output().unwrap();
        assert!(output.status.success(), "{functions:?}: {}", String::from_utf8_lossy(&output.stderr));
        fs::read(file).unwrap()
    }

    /// Instructions that were proved.
    fn proved(&self, file: Vec<u8>, root: &str) -> Result<u64, String> {
        let asked = BTreeSet::from([self.view.symbols.address(root).unwrap()]);
        let checked = check(file, &self.view, &self.facts, &asked);
        checked.map(|checked| checked.report().instructions).map_err(|error| {
            let findings: Vec<String> = error.findings.iter().map(ToString::to_string).collect();
            findings.join("\n")
        })
    }
}

#[test]
fn copies_of_real_functions_are_proved() {
    let Some(views) = env::var_os("RESTITCH_KERNEL_VIEWS").map(PathBuf::from) else {
        skip_unsupported!("RESTITCH_KERNEL_VIEWS names no folder with views of kernels");
    };
    let to = env::temp_dir().join(format!("restitch-kernel-check-{}", std::process::id()));
    fs::create_dir_all(&to).unwrap();
    let groups: [&[&str]; 10] = [
        &["do_sys_poll"],
        &["vfs_read"],
        &["pipe_write"],
        &["tcp_v4_do_rcv", "tcp_rcv_established"],
        &["__fput"],
        &["tcp_ack"],
        &["tcp_sendmsg_locked"],
        &["tcp_v4_rcv"],
        &["__alloc_skb"],
        &["ext4_file_read_iter"],
    ];
    let mut wrong = Vec::new();
    for kernel in ["6.1", "6.12", "7.3"] {
        let subject = Subject::new(views.join(kernel), &to);
        // The example knows warnings of the older kernels only.
        let groups = if kernel == "7.3" { &groups[..1] } else { &groups[..] };
        for functions in groups {
            for order in ["kept", "reversed"] {
                let file = subject.copy(&to, order, functions);
                match subject.proved(file, functions[0]) {
                    Ok(count) => println!("{kernel} {functions:?} {order}: {count} instructions"),
                    Err(error) => {
                        println!("{kernel} {functions:?} {order}: {error}");
                        wrong.push(error);
                    }
                }
            }
        }
    }
    fs::remove_dir_all(&to).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
