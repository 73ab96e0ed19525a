//! From what a file says to another format.

use super::code::{Code, Known};
use super::counts::counts;
use super::load::{choose, resolve};
use super::loaded::{Loaded, LoadedModule};
use super::options::WriteOptions;
use super::synth;
use crate::error::PipelineError;
use restitch_apply::Why;
use restitch_layout::LayoutChoice;
use restitch_profile::Profile;
use restitch_profile_formats::{
    Format, FormatError, Holds, Records, autofdo, bolt_yaml, fdata, order, preaggregated, propeller,
};
use restitch_program::BlockId;

/// The bytes of `loaded` in `format`.
pub(super) fn encode(
    loaded: &Loaded,
    code: &mut Code,
    format: Format,
    options: &WriteOptions,
    notes: &mut Vec<String>,
) -> Result<Vec<u8>, PipelineError> {
    if loaded.format.holds() == Holds::Order {
        return encode_order(loaded, format);
    }
    match format {
        Format::Store => return Ok(counts(loaded, code, notes)?.write()),
        Format::PerfData => return synth::perf_data(loaded, code, options, notes),
        Format::Fdata
        | Format::FdataNoLbr
        | Format::BoltYaml
        | Format::PreAggregated
        | Format::AutoFdo
        | Format::PropellerClusters
        | Format::SymbolOrder => {}
    }
    let bad = |why: Why| PipelineError::BadFile { path: loaded.path.clone(), why };
    let module = choose(loaded, code)
        .ok_or_else(|| bad("it has no counts of the program that was named with --program".into()))?;
    if loaded.modules.len() > 1 {
        notes.push(format!(
            "{format} holds one module: {} is written, {} others are not (choose with --program)",
            module.path.display(),
            loaded.modules.len() - 1
        ));
    }
    let known = code.of(module, &loaded.path)?;
    let text = encode_text(module, known, format, notes)?;
    text.map(String::into_bytes).map_err(|e| bad(e.into()))
}

/// An order can become another order, and no counts.
fn encode_order(loaded: &Loaded, format: Format) -> Result<Vec<u8>, PipelineError> {
    if format == Format::SymbolOrder {
        return Ok(order::write(loaded.order.iter().map(String::as_str)).into_bytes());
    }
    let why = FormatError::Direction {
        format: loaded.format.describe(),
        direction: "converted into this",
        why: "it says in which order code stands, and not how often it runs".into(),
        instead: "convert it into a symbol order, or start from a profile with counts",
    };
    Err(PipelineError::BadFile { path: loaded.path.clone(), why: why.into() })
}

fn encode_text(
    module: &LoadedModule,
    known: &Known,
    format: Format,
    notes: &mut Vec<String>,
) -> Result<Result<String, FormatError>, PipelineError> {
    let program = &known.analyzed.program;
    let mut profile = || -> Result<Profile, PipelineError> {
        let (profile, more) = resolve(module, known)?;
        notes.extend(more);
        Ok(profile)
    };
    let text = match format {
        Format::FdataNoLbr => {
            let records = module.records(&known.analyzed.image).filter(|r| !r.ips.is_empty());
            let (samples, event) = match records {
                Some(records) => (records.ips, "cycles"),
                None => (fdata::block_samples(program, &profile()?, &known.blocks), "blocks"),
            };
            Ok(fdata::write_no_lbr(&samples, event, program, &known.names))
        }
        Format::Fdata | Format::PreAggregated => {
            let records = match module.records(&known.analyzed.image).filter(Records::has_branches) {
                Some(records) => records,
                None => Records::of_profile(program, &profile()?),
            };
            Ok(if format == Format::Fdata {
                fdata::write(&records, program, &known.names, &known.blocks)
            } else {
                preaggregated::write(&records)
            })
        }
        Format::BoltYaml => {
            let id = known.analyzed.image.build_id().map(|b| b.to_string());
            let file = known.path.display().to_string();
            let about = bolt_yaml::About { file: &file, build_id: id.as_deref() };
            Ok(bolt_yaml::write(&about, program, &profile()?, &known.names, &known.blocks))
        }
        Format::AutoFdo => {
            let profile = profile()?;
            notes.push(autofdo::NOTE.into());
            Ok(autofdo::write(program, &profile, &known.names))
        }
        Format::SymbolOrder => {
            let order = hot_order(known, &profile()?);
            Ok(order::write_functions(program, &order, &known.names))
        }
        Format::PropellerClusters => {
            let order = hot_order(known, &profile()?);
            propeller::write(&known.analyzed.image, program, &order, &known.names)
        }
        Format::Store | Format::PerfData => Ok(String::new()),
    };
    Ok(text)
}

/// The hot blocks in the order that restitch itself would give them.
fn hot_order(known: &Known, profile: &Profile) -> Vec<BlockId> {
    let layout = LayoutChoice::default().layout(&known.analyzed.program, profile);
    layout.blocks().filter(|b| profile.block(*b) > 0).collect()
}
