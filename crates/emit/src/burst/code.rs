//! Code in the making: bytes, labels and displacements to be filled in. The instructions are those of
//! [`restitch_x86::record`].

use restitch_address::Svma;
use restitch_x86::{Condition, encode};

/// Where a 4-byte displacement leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dest {
    /// A label that is placed sooner or later.
    Label(u32),
    /// An address.
    At(Svma),
}

/// A displacement to be filled in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fix {
    /// Offset of the displacement.
    pub field: usize,
    /// Offset from which it counts.
    pub end: usize,
    pub dest: Dest,
}

/// Code in the making.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub bytes: Vec<u8>,
    pub fixes: Vec<Fix>,
    /// Offset of each label; `None` until it is placed.
    pub labels: Vec<Option<usize>>,
}

impl Code {
    pub fn label(&mut self) -> u32 {
        self.labels.push(None);
        self.labels.len() as u32 - 1
    }
    pub fn place(&mut self, label: u32) {
        self.labels[label as usize] = Some(self.bytes.len());
    }
    pub fn here(&self) -> usize {
        self.bytes.len()
    }
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    /// `opcode` and a 4-byte displacement to `dest`, with `behind` as the instruction's last bytes.
    pub fn to(&mut self, opcode: &[u8], dest: Dest, behind: &[u8]) {
        self.raw(opcode);
        let field = self.bytes.len();
        self.raw(&[0; 4]);
        self.raw(behind);
        self.fixes.push(Fix { field, end: self.bytes.len(), dest });
    }
    pub fn jmp(&mut self, dest: Dest) {
        self.to(&encode::JMP_NEAR_OPCODE, dest, &[]);
    }
    pub fn jcc(&mut self, condition: Condition, dest: Dest) {
        self.to(&encode::jcc_near_opcode(condition), dest, &[]);
    }
}
