//! Addresses that bytes of code would make, were they operands relative to the program counter: for code of
//! which it is not known where instructions begin.

use restitch_address::Svma;
use restitch_image::Image;
use restitch_x86::patch::DISPLACEMENT;
use restitch_x86::possible::possible_operand;

/// How many bytes of a number may stand behind a displacement, from whose end it counts.
const NUMBERS: [u64; 4] = [0, 1, 2, 4];

/// Calls `see` with each place of four bytes in executable segments that could be a displacement, and with
/// the addresses that it could lead to.
pub(crate) fn possible_operands(image: &Image, mut see: impl FnMut(Svma, [Svma; NUMBERS.len()])) {
    for segment in image.segments().iter().filter(|segment| segment.executable) {
        let backed = segment.file_backed();
        let bytes = image.read(backed.start, backed.len() as usize).unwrap_or_default();
        for (i, window) in bytes.windows(1 + DISPLACEMENT).enumerate() {
            let Some(displacement) = window.first_chunk().and_then(possible_operand) else { continue };
            let field = backed.start + (i as u64 + 1);
            let end = field + DISPLACEMENT as u64;
            see(field, NUMBERS.map(|number| (end + number).offset(displacement.into())));
        }
    }
}
