//! Static probes (USDT) in a version.
//!
//! A tracer sets its breakpoint on the places that the file's notes name. Where such a place was copied, the
//! copy is executed in its stead, so the version names it, too.

use crate::model::{AddressMap, PieceKind};
use crate::request::Request;
use restitch_address::{Svma, SvmaRange};
use restitch_image::{Image, StaticProbe};

/// The copies of the static probes of `image`: with their addresses, sorted.
pub fn copied_probes<'a>(image: &'a Image, map: &AddressMap) -> Vec<(Svma, &'a StaticProbe)> {
    if image.static_probes().is_empty() {
        return Vec::new();
    }
    let linear = map.pieces.iter().filter(|piece| piece.kind == PieceKind::Linear);
    let copies = linear.flat_map(|piece| {
        let probes = image.static_probes_in(SvmaRange::new(piece.original, piece.len.into()));
        probes.iter().map(|probe| (piece.version + (probe.at.offset_from(piece.original) as u64), probe))
    });
    copies.collect()
}

/// Their notes for the version's own file.
pub(crate) fn notes(request: &Request<'_>, map: &AddressMap) -> Vec<u8> {
    let copies = copied_probes(request.image, map);
    copies.iter().flat_map(|(at, probe)| probe.note_elsewhere(at.offset_from(request.start) as u64)).collect()
}
