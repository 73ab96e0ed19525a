//! Where the targets begin: small, valid inputs with much in them.

use crate::batch_files;
use crate::foreign_profiles::Setting;
use crate::kernels;
use crate::programs::files;
use crate::targets::{HEADER, tables_of};
use restitch_apply_elf::{place, plan_output};
use restitch_check::check;
use restitch_emit::{Request, emit};
use restitch_image::Image;
use restitch_layout::{HotChains, LayoutAlgorithm};
use restitch_profile::{ModuleProfile, ProfileFile, testing};
use restitch_profile_formats::{Records, autofdo, bolt_yaml, fdata, preaggregated};
use restitch_program::analyze;

/// Two modules, a fork, an exec, branch stacks.
const PERF_DATA: &[u8] = include_bytes!("../seeds/example.perf.data");

/// The seeds of the target with this name. Empty for an unknown one.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "image" => files(),
        "program_file" => files(),
        "program_code" => vec![vec![0x55; 4], vec![0xff; 16]],
        "unwind_tables" => tables().into_iter().map(|(frames, _)| frames).collect(),
        "exception_tables" => tables().into_iter().flat_map(|(_, tables)| tables).collect(),
        "output_file" => files().iter().filter_map(|file| output(file)).collect(),
        "profile_store" => vec![stored()],
        "journal" => vec![restitch_apply_process::testing::seeds()[0].clone()],
        "record" => vec![restitch_apply_process::testing::seeds()[1].clone()],
        "map_file" => vec![restitch_apply_process::testing::seeds()[2].clone()],
        "perf_data" => vec![PERF_DATA.to_vec(), perf_data(false), perf_data(true)],
        "fdata" => vec![
            foreign(|s, records| fdata::write(records, &s.program, &s.names, &s.blocks)),
            NO_LBR.to_vec(),
        ],
        "preaggregated" => vec![foreign(|_, records| preaggregated::write(records))],
        "bolt_yaml" => vec![foreign(|s, _| {
            let about = bolt_yaml::About { file: "a.out", build_id: Some("0123") };
            bolt_yaml::write(&about, &s.program, &s.profile, &s.names, &s.blocks)
        })],
        "autofdo" => vec![
            foreign(|s, _| autofdo::write(&s.program, &s.profile, &s.names)),
            b"main:184019:0\n 4: 534\n".to_vec(),
        ],
        "orders" => {
            vec![b"main\n_ZN1aC2Ev/2\n# a comment\n".to_vec(), b"!main/other\n!!0 2 1\n!!3\n!f\n".to_vec()]
        }
        "overlay" => batch_files::overlays(),
        "known_file" => vec![batch_files::KNOWN.encode().to_vec()],
        "batch_notes" => restitch_batch::testing::notes(),
        "batch_counts" => vec![batch_files::counts()],
        "group_module" => vec![crate::group_modules::seed()],
        "program_text" => vec![testing::RandomProgram::new(3).program.to_text().into_bytes()],
        "layout_and_profile_text" => texts(),
        "kernel_core" => kernels::cores(),
        "kernel_symbols" => kernels::symbols(),
        "kernel_lists" => kernels::lists(),
        _ => Vec::new(),
    }
}

/// [`PERF_DATA`] as piped output, its records compressed or not.
fn perf_data(compressed: bool) -> Vec<u8> {
    let number = |at: usize| u64::from_le_bytes(PERF_DATA[at..at + 8].try_into().expect("8 bytes")) as usize;
    let part = |at: usize| &PERF_DATA[number(at)..][..number(at + 8)];
    // The attribute without the section of its identifiers; then the records.
    let (attr, records) = (&part(24)[..number(16) - 16], part(40));
    let record = |kind: u32, body: &[u8]| {
        let header = u64::from(kind) | (body.len() as u64 + 8) << 48;
        [&header.to_le_bytes()[..], body].concat()
    };
    let records = match compressed {
        false => records.to_vec(),
        // A zstd frame with a window of 128 KiB and one raw block.
        true => {
            let block = &(records.len() as u32 * 8).to_le_bytes()[..3];
            let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 0x38], block, records].concat();
            frame.chunks(300).flat_map(|part| record(81, part)).collect()
        }
    };
    [b"PERFILE2", &16u64.to_le_bytes()[..], &record(64, attr), &records].concat()
}

fn tables() -> Vec<(Vec<u8>, Vec<Vec<u8>>)> {
    files().into_iter().filter_map(|file| tables_of(&Image::parse(file).ok()?)).collect()
}

/// The file that restitch makes of one.
fn output(file: &[u8]) -> Option<Vec<u8>> {
    let image = Image::parse(file.to_vec()).ok()?;
    let at = image.eh_frame()?;
    let unwind = restitch_cfi::UnwindInfo::parse(image.read(at.start, at.len() as usize)?, at.start).ok()?;
    let program = analyze(&image, &unwind).ok()?;
    let layout = HotChains::default().layout(&program, &testing::walk(&program, 5, 20, 0.0));
    let start = place(&image, 64 * file.len() as u64, &Default::default()).ok()?;
    let (bias, program, layout) = (Some(Default::default()), &program, &layout);
    let version = emit(&Request {
        image: &image,
        program,
        unwind: &unwind,
        layout,
        start,
        bias,
        number: 1,
        bound_slots: &[],
        by_slots: true,
        promote: &[],
        pointers: None,
        large_pages: false,
        counters: None,
    })
    .ok()?;
    let version = check(&image, program, layout, version, bias).ok()?;
    Some(plan_output(&image, &version, &Default::default()).ok()?.write())
}

const NO_LBR: &[u8] = b"no_lbr cycles\n1 f\\ 0\\\\/1 0 10\n";

/// A profile of the foreign readers' program in another tool's format.
fn foreign(write: impl Fn(&Setting, &Records) -> String) -> Vec<u8> {
    let setting = Setting::new();
    let records = Records::of_profile(&setting.program, &setting.profile);
    write(&setting, &records).into_bytes()
}

fn stored() -> Vec<u8> {
    let program = testing::RandomProgram::new(3).program;
    let profile = testing::walk(&program, 5, 20, 0.0);
    let module = ModuleProfile::of(&program, &profile, &[1, 2, 3, 4], "/usr/bin/example");
    ProfileFile { modules: vec![module] }.write()[HEADER..].to_vec()
}

fn texts() -> Vec<Vec<u8>> {
    let program = testing::RandomProgram::new(3).program;
    let profile = testing::walk(&program, 5, 20, 0.0);
    let layout = HotChains::default().layout(&program, &profile);
    vec![layout.to_text(&program).into_bytes(), profile.to_text(&program).into_bytes()]
}
