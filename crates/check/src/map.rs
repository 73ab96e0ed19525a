//! The address map, asked in version order.

use restitch_address::Svma;
use restitch_emit::{AddressMap, MapPiece, PieceKind, Place};

/// What an instruction boundary of the version is equivalent to, and how the map has to say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// A copy of the instruction at this original address, byte for byte or with another displacement.
    Copied(Svma),
    /// As [`Boundary::Copied`], but between the load of an entry of a table's copy and its jump: having no
    /// equivalent is right too.
    InTableWindow(Svma),
    /// The original branch at the first address, written anew; standing before it may also equal standing at
    /// the second.
    Branch(Svma, Option<Svma>),
    /// An added branch: equivalent to its target.
    Added(Svma),
    /// The first instruction of a counter in front of the first original address; of an original jump to it,
    /// if there is a second one.
    Inserted(Svma, Option<Svma>),
    /// The direct call of a promoted one: being at its start equals being at the original call, of this
    /// length, and its last byte has to be that of the original, so that return addresses are equal.
    Called(Svma, u32),
    /// Inside a counter or a comparison: no equivalent.
    Inside,
}

/// A reader that goes through the pieces in order, mostly.
pub(crate) struct MapCursor<'a> {
    map: &'a AddressMap,
    base: Svma,
    next: usize,
}

impl<'a> MapCursor<'a> {
    pub fn new(map: &'a AddressMap, base: Svma) -> Self {
        Self { map, base, next: 0 }
    }

    fn piece_at(&mut self, at: Svma) -> Option<&'a MapPiece> {
        let holds = |p: &MapPiece| (at.offset_from(p.version) as u64) < u64::from(p.len);
        for i in [self.next, self.next + 1] {
            if let Some(p) = self.map.pieces.get(i).filter(|p| holds(p)) {
                self.next = i;
                return Some(p);
            }
        }
        let key = |a: Svma| a.offset_from(self.base) as u64;
        let i = self.map.pieces.partition_point(|p| key(p.version) <= key(at)).checked_sub(1)?;
        self.next = i;
        self.map.pieces.get(i).filter(|p| holds(p))
    }

    /// What is wrong with the map for the instruction of `len` bytes at `at`, if anything.
    pub fn check(&mut self, at: Svma, len: u32, boundary: Boundary) -> Result<(), MapProblem> {
        let piece = self.piece_at(at).ok_or(MapProblem::Missing)?;
        let delta = at.offset_from(piece.version) as u64;
        let says = match piece.kind {
            PieceKind::Opaque => None,
            PieceKind::Linear => Some(piece.original + delta),
            _ => (delta == 0).then_some(piece.original),
        };
        let whole = delta + u64::from(len) <= u64::from(piece.len);
        let exact = delta == 0 && len == piece.len;
        if let Boundary::Called(o, old) = boundary {
            let inserted = piece.kind == PieceKind::Inserted && delta == 0 && piece.len == len - 1;
            return self.ends_call(at + u64::from(len) - 1, o + u64::from(old) - 1).and_then(
                |()| match says {
                    Some(says) if says == o && inserted => Ok(()),
                    Some(says) if says == o => Err(MapProblem::Form),
                    says => Err(MapProblem::Wrong(says)),
                },
            );
        }
        let (equal, form) = match boundary {
            Boundary::Copied(o) => (says == Some(o), linear_or_exact(piece, whole, exact)),
            Boundary::InTableWindow(o) => (
                says.is_none_or(|says| says == o),
                piece.kind == PieceKind::Opaque && whole || linear_or_exact(piece, whole, exact),
            ),
            Boundary::Branch(o, target) => {
                let added = piece.kind == PieceKind::Added && exact && target.is_some() && says == target;
                (says == Some(o) || added, added || linear_or_exact(piece, whole, exact))
            }
            Boundary::Added(o) => {
                (says == Some(o), exact && matches!(piece.kind, PieceKind::Added | PieceKind::Branch))
            }
            Boundary::Inserted(o, jump) => (
                says == Some(o) || says.is_some() && says == jump,
                whole && piece.kind == PieceKind::Inserted,
            ),
            Boundary::Called(..) => (false, false),
            Boundary::Inside => {
                (says.is_none(), whole && matches!(piece.kind, PieceKind::Opaque | PieceKind::Inserted))
            }
        };
        match (equal, form) {
            (false, _) => Err(MapProblem::Wrong(says)),
            (true, false) => Err(MapProblem::Form),
            (true, true) => Ok(()),
        }
    }

    /// The byte at `at` is the last one of a call, the copy of the byte at `original`.
    fn ends_call(&mut self, at: Svma, original: Svma) -> Result<(), MapProblem> {
        let piece = self.piece_at(at).ok_or(MapProblem::Missing)?;
        let says = piece.original + at.offset_from(piece.version) as u64;
        match piece.kind {
            PieceKind::Linear if says == original => Ok(()),
            _ => Err(MapProblem::Wrong(Some(says))),
        }
    }
}

fn linear_or_exact(piece: &MapPiece, whole: bool, exact: bool) -> bool {
    piece.kind == PieceKind::Linear && whole || piece.kind == PieceKind::Branch && exact
}

/// How the map fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapProblem {
    /// No piece holds the instruction.
    Missing,
    /// It gives this instead.
    Wrong(Option<Svma>),
    /// The right address, by a piece of the wrong kind or length.
    Form,
}

/// The way back, asked in the order of original addresses, mostly.
pub(crate) struct PlaceCursor<'a> {
    places: &'a [Place],
    next: usize,
}

impl<'a> PlaceCursor<'a> {
    pub fn new(map: &'a AddressMap) -> Self {
        Self { places: &map.places, next: 0 }
    }

    /// Where the map sends a thread that stands at the original address: the first of the places that start
    /// there, else the place that holds it. And the second place that starts there, if there is one.
    pub fn version_of(&mut self, original: Svma) -> (Option<Svma>, Option<Svma>) {
        let places = self.places;
        let before = |i: usize| i.checked_sub(1).is_none_or(|i| places[i].original < original);
        let at_or_behind = |i: usize| places.get(i).is_none_or(|p| p.original >= original);
        let mut i = self.next;
        for _ in 0..3 {
            if before(i) && at_or_behind(i) {
                break;
            }
            i = (i + 1).min(places.len());
        }
        if !(before(i) && at_or_behind(i)) {
            i = places.partition_point(|p| p.original < original);
        }
        self.next = i;
        let starts = |i: usize| places.get(i).filter(|p| p.original == original);
        let Some(place) = starts(i).or_else(|| places.get(i.checked_sub(1)?)) else { return (None, None) };
        let delta = original.offset_from(place.original) as u64;
        let first = (delta < u64::from(place.len)).then(|| place.version + delta);
        (first, starts(i).and(starts(i + 1)).map(|second| second.version))
    }
}
