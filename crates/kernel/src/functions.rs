//! Which functions there are, by the kernel's list of symbols.
//!
//! A function begins at a symbol of code and ends at the next symbol of any kind. Symbols of padding and of
//! boundaries are none; others at the same address are aliases. What compilers part off as rarely executed
//! (`NAME.cold`) is a part of the function that it came from: control goes there and back by jumps.

use crate::places::Places;
use crate::symbols::{Symbol, Symbols};
use restitch_address::{Svma, SvmaRange};
use std::collections::HashMap;

/// A function, by its place in [`Functions::all`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

impl FunctionId {
    /// The place.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// Where its code is: the entry's part first.
    pub parts: Vec<SvmaRange>,
    /// Whether other functions have the same name.
    pub is_ambiguous: bool,
}

impl Function {
    /// Where it starts.
    pub fn start(&self) -> Svma {
        self.parts[0].start
    }

    /// Whether an address is in it.
    pub fn contains(&self, at: Svma) -> bool {
        self.parts.iter().any(|part| part.contains(at))
    }

    /// Bytes from its symbols to the next ones, with what fills the gap.
    pub fn room(&self) -> u64 {
        self.parts.iter().map(SvmaRange::len).sum()
    }
}

/// All functions of the kernel's own text.
#[derive(Debug, Clone, Default)]
pub struct Functions {
    all: Vec<Function>,
    spans: Vec<Span>,
    by_name: HashMap<String, Vec<FunctionId>>,
}

/// A part and whose it is.
#[derive(Debug, Clone, Copy)]
struct Span {
    range: SvmaRange,
    function: FunctionId,
}

impl Functions {
    /// Finds them. `leads_to` says whether code in the first range branches into the second: it decides
    /// between functions of the same name.
    pub fn find(symbols: &Symbols, places: &Places, leads_to: impl Fn(SvmaRange, SvmaRange) -> bool) -> Self {
        let mut pieces = pieces(symbols, places.text);
        let cold: Vec<Piece> = pieces.extract_if(.., |piece| hot_name(&piece.name).is_some()).collect();
        let all = pieces.into_iter().map(Piece::function).collect();
        let mut functions = Self { all, ..Self::default() };
        let mut owners: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, function) in functions.all.iter().enumerate() {
            for name in function.aliases.iter().chain([&function.name]) {
                owners.entry(name.clone()).or_default().push(index);
            }
        }
        for piece in cold {
            let owners =
                hot_name(&piece.name).and_then(|name| owners.get(name)).map_or(&[][..], Vec::as_slice);
            let owner = match owners {
                [owner] => Some(*owner),
                several => {
                    several.iter().copied().find(|i| leads_to(functions.all[*i].parts[0], piece.range))
                }
            };
            match owner {
                Some(owner) => functions.all[owner].parts.push(piece.range),
                None => functions.all.push(piece.function()),
            }
        }
        functions.all.sort_by_key(Function::start);
        functions.index();
        functions
    }

    fn index(&mut self) {
        for (index, function) in self.all.iter().enumerate() {
            let id = FunctionId(index as u32);
            self.spans.extend(function.parts.iter().map(|range| Span { range: *range, function: id }));
            for name in function.aliases.iter().chain([&function.name]) {
                self.by_name.entry(name.clone()).or_default().push(id);
            }
        }
        self.spans.sort_by_key(|span| span.range.start);
        for function in &mut self.all {
            function.is_ambiguous = self.by_name[&function.name].len() > 1;
        }
    }

    /// All of them, by address.
    pub fn all(&self) -> &[Function] {
        &self.all
    }

    /// Their numbers.
    pub fn ids(&self) -> impl Iterator<Item = FunctionId> + use<> {
        (0..self.all.len() as u32).map(FunctionId)
    }

    /// One of them.
    pub fn get(&self, id: FunctionId) -> &Function {
        &self.all[id.index()]
    }

    /// Those of that name.
    pub fn named(&self, name: &str) -> &[FunctionId] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// The one that an address is in.
    pub fn at(&self, at: Svma) -> Option<FunctionId> {
        let behind = self.spans.partition_point(|span| span.range.start <= at);
        self.spans[..behind].last().filter(|span| span.range.contains(at)).map(|span| span.function)
    }

    /// The one that starts at an address.
    pub fn starting_at(&self, at: Svma) -> Option<FunctionId> {
        self.at(at).filter(|id| self.get(*id).start() == at)
    }

    /// Up to five names that hold `text`, for who has mistyped one.
    pub fn similar(&self, text: &str) -> Vec<String> {
        let names = self.all.iter().filter(|function| !text.is_empty() && function.name.contains(text));
        let mut names: Vec<&str> = names.map(|function| function.name.as_str()).collect();
        names.sort_by_key(|name| name.len());
        names.into_iter().take(5).map(Into::into).collect()
    }
}

/// Code from one symbol to the next.
struct Piece {
    name: String,
    aliases: Vec<String>,
    range: SvmaRange,
}

impl Piece {
    fn function(self) -> Function {
        Function { name: self.name, aliases: self.aliases, parts: vec![self.range], is_ambiguous: false }
    }
}

fn pieces(symbols: &Symbols, text: SvmaRange) -> Vec<Piece> {
    let symbols = symbols.within(text);
    let groups: Vec<&[Symbol]> = symbols.chunk_by(|a, b| a.address == b.address).collect();
    let ends = groups.iter().skip(1).map(|group| group[0].address).chain([text.end]);
    let piece = |(group, end): (&&[Symbol], Svma)| {
        let is_name = |symbol: &&Symbol| symbol.is_code() && !symbol.is_padding() && !symbol.is_boundary();
        let mut names: Vec<&Symbol> = group.iter().filter(is_name).collect();
        // Names that others use first, and of those the ones without the underscores of an implementation.
        names.sort_by_key(|symbol| (symbol.kind.is_ascii_lowercase(), symbol.name.starts_with("__")));
        let (first, others) = names.split_first()?;
        let aliases = others.iter().map(|symbol| symbol.name.clone()).collect();
        let range = SvmaRange::between(first.address, end);
        (!range.is_empty()).then(|| Piece { name: first.name.clone(), aliases, range })
    };
    groups.iter().zip(ends).filter_map(piece).collect()
}

/// Of a part that was parted off, the name of what it came from.
fn hot_name(name: &str) -> Option<&str> {
    let (hot, behind) = name.split_once(".cold")?;
    let is_number = behind.strip_prefix('.').is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
    (!hot.is_empty() && (behind.is_empty() || is_number)).then_some(hot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn found(list: &str) -> Functions {
        let symbols = Symbols::parse(list, Path::new("list")).expect("a list");
        let places = Places::find(&symbols).expect("a text");
        Functions::find(&symbols, &places, |hot, _| hot.start.get() == 0x1040)
    }

    const LIST: &str = "1000 T _stext\n1000 T _text\n1000 t first\n1000 T __first\n1010 t __pfx_second\n\
        1020 t second\n1030 t same\n1040 t same\n1050 t same.cold\n1060 t second.cold.3\n\
        1070 D datum\n1080 t last\n1080 t __sched_text_end\n1090 T _etext\n";

    #[test]
    fn functions_end_at_the_next_symbol_and_keep_their_aliases() {
        let functions = found(LIST);
        let names: Vec<&str> = functions.all().iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["__first", "second", "same", "same", "last"]);
        assert_eq!(functions.all()[0].aliases, ["first"]);
        assert_eq!(functions.all()[0].room(), 0x10);
        assert_eq!(functions.named("first"), functions.named("__first"));
        assert_eq!(functions.similar("sec"), ["second"]);
    }

    #[test]
    fn parts_that_are_rarely_executed_belong_to_their_functions() {
        let functions = found(LIST);
        let second = functions.named("second")[0];
        assert_eq!(functions.get(second).parts.len(), 2);
        assert_eq!(functions.at(Svma::new(0x1065)), Some(second));
        // Of two with that name, the one that leads there.
        let same = functions.named("same");
        assert!(functions.get(same[0]).is_ambiguous && functions.get(same[0]).parts.len() == 1);
        assert_eq!(functions.get(same[1]).parts[1].start, Svma::new(0x1050));
        assert_eq!(functions.at(Svma::new(0x1015)), None, "padding");
        assert_eq!(functions.starting_at(Svma::new(0x1060)), None);
    }
}
