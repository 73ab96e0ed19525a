//! Groups that count, made of a view.

use std::path::Path;

use restitch_kernel::Kernel;
use restitch_kernel_check::ModuleForm;
use restitch_kernel_group::ModuleFacts;
use restitch_kernel_position::{Order, Positioned, Positioner, Request, Subject, callees};

/// A kernel of which groups are made.
pub(crate) struct Model {
    pub(crate) kernel: Kernel,
    example: Vec<u8>,
    control: Vec<u8>,
}

impl Model {
    /// Of a view, and with the control module that groups will find.
    pub(crate) fn read(view: &Path, release: &str, control: &Path) -> Self {
        Self {
            kernel: Kernel::read(&restitch_kernel::Source::folder(view)).unwrap(),
            example: std::fs::read(view.join("lib/modules").join(release).join("virtio_blk.ko")).unwrap(),
            control: std::fs::read(control).unwrap(),
        }
    }

    /// A module for each of these functions and for what it calls, so many calls deep, with counters.
    pub(crate) fn counting(&self, roots: &[&str], depth: usize) -> Vec<Positioned> {
        let facts = ModuleFacts::read("virtio_blk.ko", &self.example).unwrap();
        let control = ModuleFacts::read("restitch-kernel.ko", &self.control).unwrap();
        let form = ModuleForm::read(&self.example).unwrap();
        let subject = Subject::of(&self.kernel, facts.with_versions_of(&control), form).unwrap();
        let positioner = Positioner::new(&subject).unwrap();
        let made = roots.iter().map(|name| {
            let root = self.kernel.find(name).unwrap();
            let request = Request {
                name: Request::name_for(name),
                roots: vec![root],
                callees: callees(&self.kernel, &[root], depth),
                indirect: Vec::new(),
                order: Order::Kept,
                needs_trace_sites: true,
                inlines: false,
                counts: true,
            };
            positioner.position(&request).unwrap_or_else(|error| panic!("{name}: {error}"))
        });
        made.collect()
    }
}
