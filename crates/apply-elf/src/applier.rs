//! The contract of `restitch-apply`, kept for a file in memory.

use crate::error::ElfError;
use crate::mismatch::Mismatch;
use crate::note::{is_restitch_output, original_bytes};
use crate::options::OutputOptions;
use crate::plan::{ElfPlan, plan_output};
use crate::verify;
use restitch_apply::{Applier, CheckedVersion};
use restitch_image::Image;

/// An ELF file in memory, to which one version can be applied.
#[derive(Debug, Clone)]
pub struct ElfFile {
    image: Image,
    options: OutputOptions,
}

impl ElfFile {
    /// The file `image`.
    pub fn new(image: Image, options: OutputOptions) -> Self {
        Self { image, options }
    }
    /// The file as it is now.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

impl Applier for ElfFile {
    type Plan = ElfPlan;
    type Applied = ElfPlan;
    type Error = ElfError;

    fn plan(&self, versions: &[&CheckedVersion]) -> Result<ElfPlan, ElfError> {
        match versions {
            [version] => plan_output(&self.image, version, &self.options),
            _ => Err(ElfError::VersionCount(versions.len())),
        }
    }

    fn can_apply(&self, plan: &ElfPlan) -> Result<(), ElfError> {
        if let Some(note) = is_restitch_output(&self.image) {
            return Err(ElfError::AlreadyRestitched { number: note.number });
        }
        if self.image.data() == plan.original.data() {
            Ok(())
        } else {
            Err(Mismatch::Headers("the plan was made for another file").into())
        }
    }

    fn apply(&mut self, plan: ElfPlan) -> Result<ElfPlan, ElfError> {
        self.can_apply(&plan)?;
        self.image = Image::parse(plan.write())?;
        Ok(plan)
    }

    fn verify(&self, applied: &ElfPlan) -> Result<(), ElfError> {
        Ok(verify(applied, &self.image)?)
    }

    fn revert(&mut self, _applied: ElfPlan) -> Result<(), ElfError> {
        self.image = Image::parse(original_bytes(&self.image)?)?;
        Ok(())
    }

    fn describe(&self, plan: &ElfPlan) -> String {
        let added = plan.added();
        let headers = if plan.moves_program_headers() { "a moved table" } else { "the existing table" };
        format!(
            "version {} at {added} ({} KiB), {} functions and blocks redirected, segment header in {headers}; \
             file grows from {} to {} KiB",
            plan.note().number,
            added.len() / 1024,
            plan.redirects().len(),
            plan.original.data().len() / 1024,
            plan.len() / 1024,
        )
    }
}
