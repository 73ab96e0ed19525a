//! Functions of a kernel as a proved group module: from their names to the file.

use restitch_address::Svma;
use restitch_kernel::{FunctionId, Kernel, KernelError, Source, module_files, read_module, release};
use restitch_kernel_position::{
    Counts, Hot, Hottest, HowMany, IndirectCall, ModuleFile, Order, PositionError, Positioned, Positioner,
    Request, Subject, callees as all_callees, hot_above,
};
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use std::path::PathBuf;

/// What is to be copied, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupWanted {
    /// Functions whose calls are to be led to copies: names, or addresses in them with 0x in front.
    pub functions: Vec<String>,
    /// In place of functions: the hottest ones by the order's counts; those of them are led to that others
    /// call.
    pub hottest: Option<HowMany>,
    /// So many calls deep, what they call directly is copied as well.
    pub callees: usize,
    /// The order of blocks.
    pub order: Order,
    /// Whether the copies count.
    pub counts: bool,
    /// Whether callees may stand in place of hot calls.
    pub inlines: bool,
}

/// A kernel that was read.
pub(crate) struct ReadKernel<'s> {
    source: &'s Source,
    pub(crate) kernel: Kernel,
}

/// Functions of a group, and what is done with them.
#[derive(Debug, Clone)]
pub(crate) struct Members {
    /// Those whose calls are led to copies.
    pub(crate) roots: Vec<FunctionId>,
    /// Those that are copied for them.
    pub(crate) callees: Vec<FunctionId>,
    /// Calls through pointers and static calls, which are led to copies of callees as well.
    pub(crate) indirect: Vec<IndirectCall>,
    pub(crate) order: Order,
    pub(crate) counts: bool,
    /// Whether callees may stand in place of hot calls.
    pub(crate) inlines: bool,
}

/// Makes the module of a group, and proves it. Nothing is loaded.
///
/// # Errors
/// If the kernel cannot be read, has no such functions, or they cannot be copied.
pub fn make_group(
    source: &Source,
    wanted: &GroupWanted,
    watcher: &mut dyn Watcher,
) -> Result<Positioned, SessionError> {
    watcher.phase("analysing", None);
    let read = ReadKernel::read(source)?;
    let members = read.members(wanted)?;
    watcher.phase("proving", None);
    let subject = read.subject()?;
    let name = read.group_name(&members.roots);
    Ok(Positioner::new(&subject)?.position(&members.request(name))?)
}

impl<'s> ReadKernel<'s> {
    /// Reads the kernel.
    pub(crate) fn read(source: &'s Source) -> Result<Self, SessionError> {
        // Without them, all that follows is in vain.
        module_files(source, &release(source))?;
        Ok(Self { source, kernel: Kernel::read(source)? })
    }

    /// Functions by names, or by addresses in them.
    pub(crate) fn functions(&self, names: &[String]) -> Result<Vec<FunctionId>, SessionError> {
        let found = names.iter().map(|name| self.kernel.find(name));
        Ok(found.collect::<Result<Vec<FunctionId>, _>>()?)
    }

    /// The functions that are wanted.
    pub(crate) fn members(&self, wanted: &GroupWanted) -> Result<Members, SessionError> {
        if let (Some(how_many), Order::Counted { counts, .. }) = (wanted.hottest, &wanted.order) {
            return self.hottest(counts, how_many, wanted);
        }
        let roots = self.functions(&wanted.functions)?;
        let callees = all_callees(&self.kernel, &roots, wanted.callees);
        let (indirect, order) = (Vec::new(), wanted.order.clone());
        let (counts, inlines) = (wanted.counts, wanted.inlines);
        Ok(Members { roots, callees, indirect, order, counts, inlines })
    }

    fn hottest(
        &self,
        counts: &Counts,
        how_many: HowMany,
        wanted: &GroupWanted,
    ) -> Result<Members, SessionError> {
        let Hottest { roots, callees } = Hottest::counted(&self.kernel, counts, how_many);
        if roots.is_empty() {
            return Err(PositionError::NeverCalled("a function that can be moved".into()).into());
        }
        let functions: Vec<FunctionId> = roots.iter().chain(&callees).copied().collect();
        let hot = Hot::Above(hot_above(&self.kernel, &functions, counts));
        Ok(Members {
            roots,
            callees,
            indirect: Vec::new(),
            order: Order::Counted { counts: counts.clone(), hot },
            counts: wanted.counts,
            inlines: wanted.inlines,
        })
    }

    /// The name that a group has if nothing is in the way: that of its first function, behind the product's.
    pub(crate) fn group_name(&self, roots: &[FunctionId]) -> String {
        let first = roots.first().map(|id| self.kernel.functions.get(*id).name.as_str());
        Request::name_for(first.unwrap_or_default())
    }

    /// What its modules look like.
    pub(crate) fn subject(&self) -> Result<Subject<'_>, SessionError> {
        let files = module_files(self.source, &release(self.source))?;
        let module = |path: &PathBuf| -> Result<ModuleFile, KernelError> {
            Ok(ModuleFile { name: path.display().to_string(), bytes: read_module(path)? })
        };
        let control = files.control.as_ref().map(module).transpose()?;
        let examples = files.all.iter().filter_map(|path| module(path).ok());
        Ok(Subject::learn(&self.kernel, examples, control.as_ref())?)
    }

    /// Names of functions of the group whose originals are others by now than those that were copied.
    pub(crate) fn changed(&self, positioned: &Positioned) -> Result<Vec<String>, SessionError> {
        let functions = &self.kernel.functions;
        let copied = positioned.functions.iter().filter_map(|copied| functions.at(copied.address));
        let changed = self.kernel.changed(self.source, &copied.collect::<Vec<_>>())?;
        Ok(changed.into_iter().map(|id| functions.get(id).name.clone()).collect())
    }

    /// Whether calls of a function can be led to a copy.
    pub(crate) fn can_be_led(&self, id: FunctionId) -> bool {
        let code = self.kernel.code(id);
        self.kernel.reasons(id, &code).is_empty() && self.kernel.is_traceable(id, &code)
    }

    /// The start of a function.
    pub(crate) fn start(&self, id: FunctionId) -> Svma {
        self.kernel.functions.get(id).start()
    }
}

impl Members {
    /// As a request for a group of that name.
    pub(crate) fn request(&self, name: String) -> Request {
        Request {
            name,
            callees: self.callees.clone(),
            roots: self.roots.clone(),
            indirect: self.indirect.clone(),
            order: self.order.clone(),
            needs_trace_sites: true,
            counts: self.counts,
            inlines: self.inlines,
        }
    }
}
