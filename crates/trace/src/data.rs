//! The target's memory during one stop of a thread.

use restitch_address::Avma;
use restitch_evaluate::Memory as Reader;
use restitch_tracee::Memory;
use rustc_hash::FxHashMap;

const PAGE: usize = restitch_address::PAGE as usize;

/// Whole pages are read once and forgotten when the thread runs on.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    /// `None`: cannot be read.
    pages: FxHashMap<u64, Option<Box<[u8; PAGE]>>>,
    spare: Vec<Box<[u8; PAGE]>>,
}

impl Pages {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.spare.extend(self.pages.drain().filter_map(|(_, page)| page));
    }

    fn page(&mut self, at: u64, memory: &Memory) -> Option<&[u8; PAGE]> {
        let spare = &mut self.spare;
        let page = self.pages.entry(at).or_insert_with(|| {
            let mut page = spare.pop().unwrap_or_else(|| Box::new([0; PAGE]));
            memory.read(Avma::new(at), &mut page[..]).ok().map(|()| page)
        });
        page.as_deref()
    }
}

/// The pages together with where they come from.
pub(crate) struct Data<'a> {
    pub pages: &'a mut Pages,
    pub memory: &'a Memory,
}

impl Reader for Data<'_> {
    fn read(&mut self, at: Avma, buffer: &mut [u8]) -> bool {
        let mut done = 0;
        while done < buffer.len() {
            let place = at + done as u64;
            let within = (place.get() % PAGE as u64) as usize;
            let piece = (buffer.len() - done).min(PAGE - within);
            let Some(page) = self.pages.page(place.align_down(PAGE as u64).get(), self.memory) else {
                return false;
            };
            buffer[done..done + piece].copy_from_slice(&page[within..within + piece]);
            done += piece;
        }
        true
    }
}
