//! Functions of real kernels are copied and proved: a sample of all that can be moved, one by one, and whole
//! closures of callees.
//!
//! `RESTITCH_KERNEL_VIEWS` names a folder with folders of views of kernels (`restitch-guest view` makes
//! some); without it there is nothing to test. With `RESTITCH_KERNEL_ALL` set, all functions are looked at,
//! and what is not proved is told by kind: that takes a release build, and some minutes a kernel.

mod walks;

use restitch_kernel::{FunctionId, Kernel, Source};
use restitch_kernel_check::ModuleForm;
use restitch_kernel_group::ModuleFacts;
use restitch_kernel_position::{
    Order, PositionError, Positioned, Positioner, Request, Subject, Why, callees,
};
use restitch_testkit::skip_unsupported;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// A kernel of a view, and what its modules look like.
struct View {
    name: String,
    kernel: Kernel,
    facts: ModuleFacts,
    form: ModuleForm,
}

impl View {
    fn read(folder: &Path) -> Self {
        let kernel = Kernel::read(&Source::folder(folder)).unwrap();
        let modules = fs::read_dir(folder.join("lib/modules")).unwrap().next().unwrap().unwrap().path();
        let example = fs::read(modules.join("virtio_blk.ko")).unwrap();
        let mut facts = ModuleFacts::read("virtio_blk.ko", &example).unwrap();
        if facts.has_versions() {
            // Of the control module, which is not in the view, and of an anchor.
            let names = ["restitch_kernel_register", "restitch_kernel_unregister", "_printk"];
            facts.versions.extend(names.map(|name| (name.to_owned(), 0x1234)));
        }
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        Self { name, kernel, facts, form: ModuleForm::read(&example).unwrap() }
    }

    fn subject(&self) -> Subject<'_> {
        Subject::of(&self.kernel, self.facts.clone(), self.form.clone()).unwrap()
    }

    /// Functions that nothing keeps in place.
    fn movable(&self) -> Vec<FunctionId> {
        let is_movable = |id: &FunctionId| self.kernel.reasons(*id, &self.kernel.code(*id)).is_empty();
        self.kernel.functions.ids().filter(is_movable).collect()
    }

    fn name(&self, id: FunctionId) -> &str {
        &self.kernel.functions.get(id).name
    }
}

fn views() -> Option<Vec<View>> {
    let folder = env::var_os("RESTITCH_KERNEL_VIEWS").map(PathBuf::from)?;
    let mut folders: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|folder| folder.unwrap().path()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    Some(folders.iter().map(|folder| View::read(folder)).collect())
}

fn request(roots: &[FunctionId], callees: &[FunctionId], order: Order) -> Request {
    let (roots, callees) = (roots.to_vec(), callees.to_vec());
    let name = "group".into();
    Request {
        name,
        roots,
        callees,
        indirect: Vec::new(),
        order,
        needs_trace_sites: false,
        counts: false,
        inlines: true,
    }
}

/// The kind of what stands in the way, without names and places.
fn kind(error: &PositionError) -> String {
    match error {
        PositionError::Refused(refused) => match &refused[0].why {
            Why::Obstacle { obstacle, .. } => obstacle.to_string(),
            why => why.to_string(),
        },
        PositionError::Unproved(error) => format!("unproved: {}", error.findings[0].problem),
        error => error.to_string(),
    }
}

/// What was proved, and what not, by kind.
#[derive(Default)]
struct Tally {
    proved: u64,
    instructions: u64,
    /// Of functions with counters: these, blocks, and edges that do not follow from them.
    counters: u64,
    blocks: u64,
    undetermined: u64,
    kinds: BTreeMap<String, Vec<String>>,
}

impl Tally {
    fn add(&mut self, name: &str, positioner: &Positioner<'_>, request: &Request) -> Option<Positioned> {
        match positioner.position(request) {
            Ok(positioned) => {
                self.proved += 1;
                self.instructions += positioned.module.report().instructions;
                if let Some(counting) = &positioned.counting {
                    self.counters += counting.counters() as u64;
                    self.blocks += counting.blocks() as u64;
                    self.undetermined += counting.undetermined() as u64;
                }
                Some(positioned)
            }
            Err(error) => {
                self.kinds.entry(kind(&error)).or_default().push(format!("{name}: {error}"));
                None
            }
        }
    }

    fn failed(&self) -> u64 {
        self.kinds.values().map(|texts| texts.len() as u64).sum()
    }

    fn tell(&self, what: &str) {
        let Self { proved, instructions, kinds, .. } = self;
        println!("{what}: {proved} proved with {instructions} instructions, {} not", self.failed());
        println!(
            "  {} counters for {} blocks, {} edges undetermined",
            self.counters, self.blocks, self.undetermined
        );
        for (kind, texts) in kinds {
            println!("  {:6} {kind}", texts.len());
            texts.iter().take(8).for_each(|text| println!("           {text}"));
        }
    }
}

/// Whether all of a kernel is looked at, and not a sample.
fn is_whole() -> bool {
    env::var_os("RESTITCH_KERNEL_ALL").is_some()
}

#[test]
fn closures_of_real_kernels_are_proved_as_wholes() {
    let Some(views) = views() else {
        skip_unsupported!("RESTITCH_KERNEL_VIEWS names no folder with views of kernels");
    };
    let depth = if is_whole() { usize::MAX } else { 2 };
    for view in &views {
        let subject = view.subject();
        let positioner = Positioner::new(&subject).unwrap();
        for name in ["do_sys_poll", "tcp_v4_rcv", "vfs_read"] {
            let root = view.kernel.find(name).unwrap();
            let callees = callees(&view.kernel, &[root], depth);
            for order in [Order::Kept, Order::Reversed] {
                let positioned = positioner.position(&request(&[root], &callees, order)).unwrap();
                let (copied, stay) = (positioned.functions.len(), positioned.stays.len());
                let proved = positioned.module.report().instructions;
                println!("{} {name}: {copied} functions, {proved} instructions; {stay} stay", view.name);
                // The entry of the scheduler, locks and what is for the tracer stay: that is some.
                assert!(copied > 10 && copied > 2 * stay / 3, "{copied} are copied, {stay} stay");
                let unproved = positioned.stays.iter().find(|stays| matches!(stays.why, Why::Unproved(_)));
                assert!(unproved.is_none(), "{unproved:?}");
            }
        }
    }
}

/// What keeps functions in place that the analysis takes for movable: few, and each for a reason.
const KNOWN: [&str; 2] = [
    // `lea ENTRY(%rip),%edi; jmp`: a compiler has joined the ways behind two warnings.
    "a warning or a fault of the branch at the end of a block",
    // Code of the start, for the processor's mode of 32 bits.
    "unproved: the instruction is none that is known",
];

#[test]
fn functions_of_real_kernels_are_proved_one_by_one() {
    let Some(views) = views() else {
        skip_unsupported!("RESTITCH_KERNEL_VIEWS names no folder with views of kernels");
    };
    let step = if is_whole() { 1 } else { 151 };
    for view in &views {
        let subject = view.subject();
        let positioner = Positioner::new(&subject).unwrap();
        let movable = view.movable();
        for order in [Order::Kept, Order::Reversed] {
            let mut tally = Tally::default();
            for id in movable.iter().step_by(step) {
                tally.add(view.name(*id), &positioner, &request(&[*id], &[], order.clone()));
            }
            tally.tell(&format!("{} of {} {order:?}", movable.len(), view.name));
            let unknown = tally.kinds.keys().find(|kind| !KNOWN.contains(&kind.as_str()));
            assert!(unknown.is_none(), "{unknown:?}");
            assert!(tally.proved > 200 && tally.failed() * 1000 < tally.proved);
        }
    }
}

#[test]
fn functions_of_real_kernels_with_counters_are_proved_and_their_counts_follow() {
    let Some(views) = views() else {
        skip_unsupported!("RESTITCH_KERNEL_VIEWS names no folder with views of kernels");
    };
    let step = if is_whole() { 1 } else { 151 };
    for view in &views {
        let subject = view.subject();
        let positioner = Positioner::new(&subject).unwrap();
        let (movable, mut tally) = (view.movable(), Tally::default());
        for (id, seed) in movable.iter().step_by(step).zip(1..) {
            let request = Request { counts: true, ..request(&[*id], &[], Order::Kept) };
            let positioned = tally.add(view.name(*id), &positioner, &request);
            if let Some(counting) = positioned.and_then(|positioned| positioned.counting) {
                walks::are_counted(&view.kernel, &request.roots, &counting, seed);
            }
        }
        tally.tell(&format!("{} of {} with counters", movable.len(), view.name));
        let unknown = tally.kinds.keys().find(|kind| !KNOWN.contains(&kind.as_str()));
        assert!(unknown.is_none(), "{unknown:?}");
        assert!(tally.proved > 200 && tally.failed() * 1000 < tally.proved);
        assert!(tally.counters < tally.blocks && tally.undetermined == 0);
    }
}

#[test]
fn closures_of_real_kernels_with_counters_are_proved_as_wholes() {
    let Some(views) = views() else {
        skip_unsupported!("RESTITCH_KERNEL_VIEWS names no folder with views of kernels");
    };
    for view in &views {
        let subject = view.subject();
        let positioner = Positioner::new(&subject).unwrap();
        for (name, depth) in [("do_sys_poll", 1), ("tcp_v4_rcv", 2), ("vfs_read", 2)] {
            let root = view.kernel.find(name).unwrap();
            let callees = callees(&view.kernel, &[root], depth);
            let request = Request { counts: true, ..request(&[root], &callees, Order::Kept) };
            let positioned = positioner.position(&request).unwrap();
            let counting = positioned.counting.as_ref().unwrap();
            let (counters, blocks) = (counting.counters(), counting.blocks());
            println!("{} {name}: {counters} counters for {blocks} blocks, {:?}", view.name, counting.memory);
            assert_eq!(positioned.module.report().counters, counters as u64);
            assert!(counters < blocks && counting.undetermined() == 0);
            let unproved = positioned.stays.iter().find(|stays| matches!(stays.why, Why::Unproved(_)));
            assert!(unproved.is_none(), "{unproved:?}");
        }
    }
}
