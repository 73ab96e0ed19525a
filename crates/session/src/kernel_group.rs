//! Functions of a kernel as a proved group module: from their names to the file.

use restitch_kernel::{FunctionId, Kernel, KernelError, Source, module_files, read_module, release};
use restitch_kernel_position::{
    ModuleFile, Order, Positioned, Positioner, Request, Subject, callees as all_callees,
};
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use std::path::PathBuf;

/// What is to be copied, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupWanted {
    /// Functions whose calls are to be led to copies: names, or addresses in them with 0x in front.
    pub functions: Vec<String>,
    /// So many calls deep, what they call directly is copied as well.
    pub callees: usize,
    /// The order of blocks.
    pub order: Order,
    /// Whether the copies count.
    pub counts: bool,
}

/// A kernel that was read, and the functions of it that are wanted.
pub(crate) struct Chosen<'w> {
    source: &'w Source,
    wanted: &'w GroupWanted,
    kernel: Kernel,
    roots: Vec<FunctionId>,
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
    let chosen = Chosen::read(source, wanted)?;
    watcher.phase("proving", None);
    chosen.position(chosen.group_name())
}

impl<'w> Chosen<'w> {
    /// Reads the kernel and finds the functions.
    pub(crate) fn read(source: &'w Source, wanted: &'w GroupWanted) -> Result<Self, SessionError> {
        // Without them, all that follows is in vain.
        module_files(source, &release(source))?;
        let kernel = Kernel::read(source)?;
        let roots = wanted.functions.iter().map(|name| kernel.find(name));
        let roots = roots.collect::<Result<Vec<FunctionId>, _>>()?;
        Ok(Self { source, wanted, kernel, roots })
    }

    /// The name that the group has if nothing is in the way: that of its first function, behind the
    /// product's.
    pub(crate) fn group_name(&self) -> String {
        let first = self.roots.first().map(|id| self.kernel.functions.get(*id).name.as_str());
        Request::name_for(first.unwrap_or_default())
    }

    /// Writes and proves the module, under that name.
    pub(crate) fn position(&self, name: String) -> Result<Positioned, SessionError> {
        let files = module_files(self.source, &release(self.source))?;
        let module = |path: &PathBuf| -> Result<ModuleFile, KernelError> {
            Ok(ModuleFile { name: path.display().to_string(), bytes: read_module(path)? })
        };
        let control = files.control.as_ref().map(module).transpose()?;
        let examples = files.all.iter().filter_map(|path| module(path).ok());
        let subject = Subject::learn(&self.kernel, examples, control.as_ref())?;
        let request = Request {
            name,
            callees: all_callees(&self.kernel, &self.roots, self.wanted.callees),
            roots: self.roots.clone(),
            order: self.wanted.order.clone(),
            needs_trace_sites: true,
            counts: self.wanted.counts,
        };
        Ok(Positioner::new(&subject)?.position(&request)?)
    }

    /// Names of functions of the group whose originals are others by now than those that were copied.
    pub(crate) fn changed(&self, positioned: &Positioned) -> Result<Vec<String>, SessionError> {
        let functions = &self.kernel.functions;
        let copied = positioned.functions.iter().filter_map(|copied| functions.at(copied.address));
        let changed = self.kernel.changed(self.source, &copied.collect::<Vec<_>>())?;
        Ok(changed.into_iter().map(|id| functions.get(id).name.clone()).collect())
    }
}
