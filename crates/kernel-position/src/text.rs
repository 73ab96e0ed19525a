//! What was made, in words, in a terminal of 80 columns.

use crate::position::{Copied, Positioned};
use restitch_report::{bytes, count, counted, paragraph};

/// The most functions of one kind that are told by name.
const MOST: usize = 20;

impl Positioned {
    /// What is in the module, and what stays.
    pub fn to_text(&self) -> String {
        let report = self.module.report();
        let sum = |of: fn(&Copied) -> usize| self.functions.iter().map(of).sum::<usize>() as u64;
        let led = self.functions.iter().filter(|function| function.is_led);
        let led: Vec<&str> = led.map(|function| function.name.as_str()).collect();
        let mut text = String::new();
        let mut line = |head: &str, what: String| text += &paragraph(&format!("{head:<16}"), &what);
        line("group", format!("{}, {} of module", report.group, bytes(self.module.file().len() as u64)));
        line("functions", count(self.functions.len() as u64));
        line("led to copies", led.join(", "));
        let (hot, cold, chains) = (sum(|f| f.hot_blocks), sum(|f| f.cold_blocks), sum(|f| f.chains));
        let chains = counted(chains, "chain");
        line("blocks", format!("{} hot in {chains}, {} cold", count(hot), count(cold)));
        line("code", format!("{} hot, {} cold", bytes(self.hot_bytes), bytes(self.cold_bytes)));
        let inlined = sum(|function| function.inlined);
        if inlined > 0 {
            let callees = self.functions.iter().filter(|function| function.inlined > 0).count() as u64;
            let calls = counted(inlined, "call");
            line("inlined", format!("{} in place of {calls}", counted(callees, "function")));
        }
        line("proved", format!("{} instructions, each beside the original", count(report.instructions)));
        line("stays", format!("{} of the callees", count(self.stays.len() as u64)));
        for stays in self.stays.iter().take(MOST) {
            text += &paragraph("  ", &stays.to_string());
        }
        if self.stays.len() > MOST {
            text += &paragraph("  ", &format!("and {} more", count((self.stays.len() - MOST) as u64)));
        }
        text
    }
}
