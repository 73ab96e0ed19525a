//! What one round of `attach` reads, and what it has in hand while it works.

use crate::attach_options::AttachOptions;
use crate::given_profile::GivenProfile;
use crate::left_out::LeftOut;
use crate::module_churn::ModuleChurn;

use restitch_pipeline::Watcher;
use restitch_pipeline::imports::read_store;
use restitch_pipeline::timings::Timings;
use restitch_processes::SessionError;
use restitch_processes::process_set::ProcessSet;
use restitch_processes::source::SourceChoice;
use restitch_processes::verdict::{Metric, Windows};
use restitch_profile::ProfileFile;
use restitch_report::RunResult;

/// Which part of a session a round is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Round<'a> {
    /// All of it.
    Only,
    /// One of several. The layout that is in force stays until the process counts or is recorded, so what is
    /// measured before is that of the process in it; what was counted of other work is added.
    Of(&'a [&'a ProfileFile]),
}

/// What is known before a process is touched.
pub(crate) struct Inputs<'a> {
    pub options: &'a AttachOptions,
    pub round: Round<'a>,
    /// The profile that was given in place of one that is taken.
    pub given: Option<GivenProfile>,
    /// Where else the profile comes from.
    pub source: SourceChoice,
    /// What indirect calls call, as another profile has it.
    pub known: Option<ProfileFile>,
}

impl<'a> Inputs<'a> {
    /// Reads all files.
    ///
    /// # Errors
    /// If one cannot be read, a metric gives no number, or there is no such source of profiles here.
    pub fn read(options: &'a AttachOptions, round: Round<'a>) -> Result<Self, SessionError> {
        options.metric.as_ref().map(Metric::read).transpose()?;
        let given = options.profile.as_deref().map(GivenProfile::read).transpose()?;
        let source = options.source.choose()?;
        let known = options.call_targets.as_deref().map(read_store).transpose()?;
        Ok(Self { options, round, given, source, known })
    }

    /// Whether indirect calls vote for their usual targets while the process is profiled.
    pub fn votes(&self) -> bool {
        self.options.version.promote_calls && self.known.is_none()
    }
}

/// The processes, and what has come of the round so far.
pub(crate) struct Job<'a> {
    pub options: &'a AttachOptions,
    pub churn: &'a ModuleChurn,
    pub set: &'a mut ProcessSet,
    pub windows: Windows,
    pub left_out: LeftOut,
    pub timings: Timings,
    pub result: RunResult,
    pub watcher: &'a mut dyn Watcher,
}

impl Job<'_> {
    /// Adds a line to the result that the user also sees now.
    pub fn warn(&mut self, text: &str) {
        self.watcher.note(text);
        self.result.warnings.push(text.into());
    }

    /// Gives the processes their original code back.
    pub fn take_back(&mut self) -> Result<(), SessionError> {
        self.set.take_back(self.watcher)?;
        self.set.reclaim_patiently().iter().for_each(|kept| self.watcher.note(&kept.to_string()));
        Ok(())
    }
}
