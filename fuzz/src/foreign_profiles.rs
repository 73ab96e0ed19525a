//! Readers of other tools' profiles. What they accept becomes counts, and is written and read again.

use restitch_address::Svma;
use restitch_profile::{Profile, testing};
use restitch_profile_formats::{
    BoltBlocks, Names, Records, autofdo as autofdo_text, bolt_yaml as yaml, fdata as fdata_text, order,
    preaggregated as aggregated, propeller,
};
use restitch_program::Program;

/// A program with names for its functions, and a profile of it.
pub(crate) struct Setting {
    pub program: Program,
    pub names: Names,
    pub blocks: BoltBlocks,
    pub profile: Profile,
}

impl Setting {
    pub fn new() -> Self {
        let program = testing::RandomProgram::new(3).program;
        let profile = testing::walk(&program, 5, 20, 0.0);
        let named: Vec<(Svma, String)> = program
            .functions
            .iter()
            .enumerate()
            .map(|(i, f)| (f.range.start, format!("f {i}\\/1")))
            .collect();
        let names = Names::of(named.iter().map(|(at, name)| (*at, name.as_str())));
        let blocks = BoltBlocks::of_program(&program);
        Self { program, names, blocks, profile }
    }

    /// Records of any content become counts without overflow, and the share of them, too.
    fn count(&self, records: &Records) {
        let (profile, _) = records.to_profile(&self.program);
        assert_eq!(profile.blocks.len(), self.program.blocks.len());
        let _ = records.scaled(0.5).to_profile(&self.program);
    }
}

fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// BOLT's `fdata`, both modes.
pub fn fdata(data: &[u8]) {
    let (Some(text), setting) = (text(data), Setting::new()) else { return };
    let Setting { program, names, blocks, .. } = &setting;
    let Ok(read) = fdata_text::read(text, names, program, blocks) else { return };
    setting.count(&read.records);
    let written = fdata_text::write(&read.records, program, names, blocks);
    fdata_text::read(&written, names, program, blocks).unwrap_or_else(|error| panic!("{error}: {written}"));
}

/// BOLT's pre-aggregated text: it comes back as it was.
pub fn preaggregated(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(records) = aggregated::read(text) else { return };
    Setting::new().count(&records);
    let written = aggregated::write(&records);
    let again = aggregated::read(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!((&again.branches, &again.ranges), (&records.branches, &records.ranges));
}

/// BOLT's YAML.
pub fn bolt_yaml(data: &[u8]) {
    let (Some(text), setting) = (text(data), Setting::new()) else { return };
    if let Ok(read) = yaml::read(text, &setting.program, &setting.names, &setting.blocks) {
        setting.count(&read.records);
    }
}

/// AutoFDO's text.
pub fn autofdo(data: &[u8]) {
    let (Some(text), setting) = (text(data), Setting::new()) else { return };
    if let Ok(read) = autofdo_text::read(text, &setting.names) {
        setting.count(&read.records);
    }
}

/// Symbol orders and Propeller's clusters: what is read is written and read again.
pub fn orders(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let _ = propeller::read_functions(text);
    let Ok(mut names) = order::read(text) else { return };
    let written = order::write(names.iter().map(String::as_str));
    // A name is written where it stands first.
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    assert_eq!(order::read(&written).unwrap_or_else(|error| panic!("{error}: {written}")), names);
}
