//! Where a kernel's time goes, in words and as JSON: what `restitch kernel find` says.

use crate::doctor::KERNEL_SCHEMA_VERSION;
use crate::functions::{FunctionId, Functions};
use crate::kernel::Kernel;
use crate::report::percent;
use crate::sampled::{Sampled, SampledFunction};
use restitch_report::{count, counted, paragraph, visible_line};
use serde::Serialize;
use std::collections::HashMap;

/// Columns that a function's name gets in the text.
const NAME: usize = 34;
/// Functions that are listed at most, of each kind.
const LISTED: usize = 20;
/// Functions are listed until they hold this share of the samples.
const HOTTEST: f64 = 0.95;
/// Below so many samples nothing is proposed.
const LEAST_SAMPLES: u64 = 50;

/// How it was sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// The kernel's release.
    pub release: String,
    /// What was sampled, in words: `the whole machine`.
    pub subject: String,
    /// What triggered samples, in words: `cycles`.
    pub event: &'static str,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Samples that came too fast.
    pub lost: u64,
}

/// What is known of the functions that were sampled.
#[derive(Debug, Clone, Copy)]
pub enum Knowledge<'k> {
    /// All.
    Kernel(&'k Kernel),
    /// Where they are, and in words why no more.
    Names(&'k Functions, &'k str),
}

/// Where the time goes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimeReport {
    /// [`KERNEL_SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The kernel's release.
    pub release: String,
    /// What was sampled, in words.
    pub subject: String,
    /// What triggered samples.
    pub event: &'static str,
    /// For how long it was sampled, in seconds.
    pub seconds: f64,
    /// Samples of the kernel.
    pub samples: u64,
    /// Of these, those in modules and in code that is made at run time.
    pub elsewhere: u64,
    /// Samples that came too fast to be kept.
    pub lost: u64,
    /// Functions in or below which much of the time is spent, those with the most first.
    pub roots: Vec<TimedFunction>,
    /// Functions in which the most time is spent, the hottest first.
    pub hottest: Vec<TimedFunction>,
    /// What the user should know, in words.
    pub notes: Vec<String>,
}

/// A function and the time in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TimedFunction {
    /// Its name; where others have the same, its address.
    pub name: String,
    /// Where it starts, hexadecimal.
    pub address: String,
    /// The share of the samples in its own code.
    pub own: f64,
    /// The share in its code and in what it calls.
    pub inclusive: f64,
    /// Whether it can be the root of a group; none if that is not known.
    pub can_be_root: Option<bool>,
    /// Why not, in words.
    pub reasons: Vec<String>,
}

impl TimeReport {
    /// Of samples: functions in or below which at least `share` of them are, and the hottest ones.
    pub fn of(sampling: Sampling, sampled: &Sampled, knowledge: Knowledge<'_>, share: f64) -> Self {
        let mut teller = Teller { knowledge, all: sampled.all.max(1) as f64, told: HashMap::new() };
        let mut roots = Vec::new();
        let mut notes = Vec::new();
        if sampled.all >= LEAST_SAMPLES {
            // Those that can, and those that would be if they could.
            let proposed =
                sampled.roots(share, |id| knowledge.obstacles(id).is_none_or(|why| why.is_empty()));
            let others =
                sampled.roots(share, |id| knowledge.obstacles(id).is_some_and(|why| !why.is_empty()));
            roots = proposed.iter().chain(&others).take(LISTED).map(|own| teller.tell(own)).collect();
        } else {
            notes.push(format!(
                "{} are too few to tell anything: sample for longer, or under load",
                counted(sampled.all, "sample")
            ));
        }
        if let Knowledge::Names(_, why) = knowledge {
            notes.push(format!("which functions can be moved is not known: {why}"));
        }
        let hottest = sampled.hottest(HOTTEST);
        Self {
            schema_version: KERNEL_SCHEMA_VERSION,
            release: sampling.release,
            subject: sampling.subject,
            event: sampling.event,
            seconds: sampling.seconds,
            samples: sampled.all,
            elsewhere: sampled.elsewhere,
            lost: sampling.lost,
            roots,
            hottest: hottest.iter().map(|own| teller.tell(own)).collect(),
            notes,
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// None in practice: all numbers are finite.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// For a terminal: at most 80 columns.
    pub fn to_text(&self) -> String {
        let elsewhere = percent(self.elsewhere as f64 / self.samples.max(1) as f64);
        let words = format!(
            "Linux {}, {}: {} of the kernel in {:.1} s, by {}; {elsewhere} in modules and in code that is \
             made at run time",
            self.release,
            self.subject,
            counted(self.samples, "sample"),
            self.seconds,
            self.event,
        );
        let mut text = paragraph("sampled     ", &words);
        if self.lost > 0 {
            text += &paragraph("lost        ", &format!("{} came too fast", counted(self.lost, "sample")));
        }
        self.notes.iter().for_each(|note| text += &paragraph("note        ", note));
        if !self.roots.is_empty() {
            text += "\n";
            text += &table("below which the time is spent", &self.roots);
        }
        if !self.hottest.is_empty() {
            text += "\n";
            text += &table("in which it is spent", &self.hottest);
        }
        text + &self.next_step()
    }

    /// What the user may do with it.
    fn next_step(&self) -> String {
        let root = self.roots.iter().find(|root| root.can_be_root == Some(true));
        root.map_or_else(String::new, |root| {
            let command = format!("restitch kernel position {}", visible_line(&root.name));
            // It is to be copied: whole, on one line.
            format!("\nnext: sudo {command}\n")
        })
    }
}

fn table(title: &str, functions: &[TimedFunction]) -> String {
    let mut text = format!("{title:NAME$} {:>8} {:>8}  can be led to a copy\n", "all", "own");
    for function in functions.iter().take(LISTED) {
        let name: String = visible_line(&function.name).chars().take(NAME).collect();
        let [all, own] = [function.inclusive, function.own].map(percent);
        let head = format!("{name:NAME$} {all:>8} {own:>8}  ");
        let words = match function.can_be_root {
            None => "?".to_owned(),
            Some(true) => "yes".to_owned(),
            Some(false) => format!("no: {}", function.reasons.join("; ")),
        };
        text += &paragraph(&head, &words);
    }
    if let Some(more) = functions.len().checked_sub(LISTED).filter(|more| *more > 0) {
        text += &format!("and {} more\n", count(more as u64));
    }
    text
}

impl Knowledge<'_> {
    fn functions(&self) -> &Functions {
        match self {
            Self::Kernel(kernel) => &kernel.functions,
            Self::Names(functions, _) => functions,
        }
    }

    /// Why a function can be no root; none if that is not known.
    fn obstacles(&self, id: FunctionId) -> Option<Vec<String>> {
        let Self::Kernel(kernel) = self else { return None };
        let code = kernel.code(id);
        let reasons = kernel.reasons(id, &code);
        let mut words: Vec<String> = reasons.iter().map(|reason| reason.words().to_owned()).collect();
        if words.is_empty() && !kernel.is_traceable(id, &code) {
            words.push("it has no place of the function tracer; its callers may have one".into());
        }
        Some(words)
    }
}

/// Says what there is to say of functions.
struct Teller<'k> {
    knowledge: Knowledge<'k>,
    all: f64,
    told: HashMap<FunctionId, Option<Vec<String>>>,
}

impl Teller<'_> {
    fn tell(&mut self, sampled: &SampledFunction) -> TimedFunction {
        let knowledge = self.knowledge;
        let obstacles = self.told.entry(sampled.id).or_insert_with(|| knowledge.obstacles(sampled.id));
        let function = knowledge.functions().get(sampled.id);
        let address = format!("{:#x}", function.start().get());
        TimedFunction {
            name: if function.is_ambiguous { address.clone() } else { function.name.clone() },
            address,
            own: sampled.own as f64 / self.all,
            inclusive: sampled.inclusive as f64 / self.all,
            can_be_root: obstacles.as_ref().map(Vec::is_empty),
            reasons: obstacles.clone().unwrap_or_default(),
        }
    }
}
