//! Each changed byte of a module is refused, or is of a kind that is named here.

#[path = "../../kernel-group/tests/loader/mod.rs"]
#[allow(dead_code)]
mod loader;
#[allow(dead_code)]
mod synthetic;

use object::read::{Object as _, ObjectSection as _};
use restitch_kernel_check::check;
use restitch_kernel_group::{CounterMemory, Group};
use std::collections::BTreeMap;
use std::ops::Range;
use synthetic::{LIVE, Synthetic, asked, at, counting, facts, file, group};

/// Why a changed byte changes nothing that copies do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Harmless {
    /// What the module says of itself to people.
    Description,
    /// The loader compares it with the kernel's own checksum.
    Checksum,
    /// It stands between pieces of code, and is other filler now.
    Filler,
    /// A jump leads behind the `nop` that it led to.
    NopLeftOut,
    /// The loader makes the same of the file.
    SameWhenLoaded,
    /// A symbol of a copy reaches over filler behind it.
    NamedFiller,
    /// A place between pieces of code from which the unwinder finds nothing.
    NoRow,
}

/// A module, and where in its file what is.
struct Module {
    file: Vec<u8>,
    sections: BTreeMap<String, Range<usize>>,
    loaded: Sections,
}

type Sections = BTreeMap<String, (u64, Vec<u8>)>;

fn loaded(file: &[u8]) -> Option<Sections> {
    let control = loader::BASE + 0x10_0000;
    let exported = [
        ("restitch_kernel_register", control),
        ("restitch_kernel_unregister", control + 0x40),
        ("_printk", at(0xa000).get()),
    ];
    Some(loader::load(file, &exported.into()).ok()?.sections)
}

impl Module {
    fn new(group: &Group) -> Self {
        let file = file(group);
        let object = object::File::parse(&*file).unwrap();
        let sections = object.sections().filter_map(|section| {
            let (start, len) = section.file_range()?;
            Some((section.name().ok()?.to_owned(), start as usize..(start + len) as usize))
        });
        let sections = sections.collect();
        let loaded = loaded(&file).unwrap();
        Self { file, sections, loaded }
    }

    fn described(&self, place: usize, change: u8) -> String {
        let holds = |section: &(&String, &Range<usize>)| section.1.contains(&place);
        let (name, range) = self.sections.iter().find(holds).unwrap();
        format!("{name}+{:#x} {:#x} ^ {change:#x}", place - range.start, self.file[place])
    }

    /// Why the change at `place` may be harmless; none if there is no reason.
    fn why(&self, place: usize, changed: &[u8]) -> Option<Harmless> {
        let (name, range) = self.sections.iter().find(|(_, range)| range.contains(&place))?;
        let offset = place - range.start;
        let own = loaded(changed);
        if own.as_ref() == Some(&self.loaded) {
            return Some(Harmless::SameWhenLoaded);
        }
        match name.as_str() {
            ".modinfo" => {
                let text = String::from_utf8_lossy(&self.file[range.clone()]).into_owned();
                let start = text.find("description=")? + "description=".len();
                let end = start + text[start..].find('\0')?;
                (start..end).contains(&offset).then_some(Harmless::Description)
            }
            "__versions" => (offset % 64 < 8).then_some(Harmless::Checksum),
            ".text" | ".text.unlikely" if self.file[place] == 0xcc => Some(Harmless::Filler),
            ".text" => {
                let to = (place + 1).checked_add_signed((self.file[place] as i8).into())?;
                let is_next = changed[place] == self.file[place] + 1 && self.file[place - 1] == 0xeb;
                (is_next && self.file[to] == 0x90).then_some(Harmless::NopLeftOut)
            }
            ".symtab" => (16..24).contains(&(offset % 24)).then_some(Harmless::NamedFiller),
            ".rela.orc_unwind_ip" => {
                // The row of that place is one of nothing, so only filler has got another one.
                let row = offset / 24 * 6;
                let rows = &self.loaded[".orc_unwind"].1;
                (rows[row..row + 6] == [0; 6]).then_some(Harmless::NoRow)
            }
            _ => None,
        }
    }
}

#[test]
fn each_changed_byte_is_refused_or_harmless_for_a_reason() {
    each_changed_byte(&group());
}

#[test]
fn each_changed_byte_of_a_module_that_counts_is_refused_or_harmless_for_a_reason() {
    each_changed_byte(&counting(CounterMemory::PerProcessor));
    each_changed_byte(&counting(CounterMemory::Shared));
}

fn each_changed_byte(own: &Group) {
    let (kernel, facts, module) = (Synthetic::of(&group(), LIVE), facts(), Module::new(own));
    let (mut refused, mut accepted) = (0, BTreeMap::<Harmless, usize>::new());
    let mut unexplained = Vec::new();
    for place in module.sections.values().flat_map(|range| range.clone()) {
        for change in [1, 0x80, module.file[place] ^ 0x90] {
            if change == 0 {
                continue;
            }
            let mut changed = module.file.clone();
            changed[place] ^= change;
            if check(changed.clone(), &kernel, &facts, &asked()).is_err() {
                refused += 1;
                continue;
            }
            let why = module.why(place, &changed);
            match why {
                Some(why) => *accepted.entry(why).or_default() += 1,
                None => unexplained.push(module.described(place, change)),
            }
        }
    }
    assert!(unexplained.is_empty(), "accepted without a reason: {unexplained:#?}");
    println!("refused {refused}, accepted {accepted:?}");
    assert!(refused > 10_000);
}
