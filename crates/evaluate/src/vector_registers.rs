//! Vector and mask registers.
//!
//! They are not known at first: reading them from a stopped thread costs as much as a stop's other requests
//! together, and what decides branches is mostly loaded after that.

use crate::value::Value;
use crate::wide::Wide;
use restitch_x86::Lanes;

/// Vector registers 0 to 31 and mask registers 0 to 7.
#[derive(Debug, Clone)]
pub(crate) struct Vectors {
    wide: [Wide; 32],
    masks: [Value; 8],
}

impl Vectors {
    pub const UNKNOWN: Self = Self { wide: [Wide::UNKNOWN; 32], masks: [Value::UNKNOWN; 8] };

    pub fn get(&self, register: u8) -> &Wide {
        &self.wide[usize::from(register & 31)]
    }

    /// Writes the lanes; what lies above is cleared or kept.
    pub fn set(&mut self, lanes: Lanes, value: Wide) {
        let slot = &mut self.wide[usize::from(lanes.number & 31)];
        let rest = if lanes.clears { Wide::ZERO } else { *slot };
        *slot = value.over(usize::from(lanes.width), &rest);
    }

    pub fn mask(&self, register: u8) -> Value {
        self.masks[usize::from(register & 7)]
    }

    pub fn set_mask(&mut self, register: u8, value: Value) {
        self.masks[usize::from(register & 7)] = value;
    }

    /// Keeps the lowest `kept` bytes of registers 0 to 15 and clears the rest.
    pub fn clear_upper(&mut self, kept: u8) {
        for register in self.wide.iter_mut().take(16) {
            *register = register.cut(kept.into());
        }
    }

    /// Makes sets of registers (by number) unknown.
    pub fn forget(&mut self, wide: u32, masks: u8) {
        for (_, register) in self.wide.iter_mut().enumerate().filter(|(i, _)| wide >> i & 1 != 0) {
            *register = Wide::UNKNOWN;
        }
        for (_, register) in self.masks.iter_mut().enumerate().filter(|(i, _)| masks >> i & 1 != 0) {
            *register = Value::UNKNOWN;
        }
    }
}
