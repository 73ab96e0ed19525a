//! Numbers for people: a unit on each, three digits where more would be noise.

/// `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 block`, `2,000 blocks`, `2 patches`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), ending(n, noun))
}

/// What `noun` gets where there are `n` of it.
pub fn ending(n: u64, noun: &str) -> &'static str {
    match n {
        1 => "",
        _ if noun.ends_with('s') || noun.ends_with("ch") => "es",
        _ => "s",
    }
}

/// `512 B`, `1.50 MiB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1023.5 {
            return if unit == "B" { format!("{n} B") } else { format!("{} {unit}", digits(value)) };
        }
        value /= 1024.0;
    }
    format!("{} TiB", digits(value))
}

/// Three significant digits, thousands written out.
pub(crate) fn digits(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "unknown".to_owned(),
        _ if size >= 1e15 => format!("{value:.2e}"),
        _ if size >= 99.95 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", count(size.round() as u64))
        }
        _ if size >= 9.995 => format!("{value:.1}"),
        _ if size >= 0.9995 || value == 0.0 => format!("{value:.2}"),
        _ if size >= 0.0005 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// A time, from `micros` microseconds: `12.3 us`, `4.56 ms`, `7.89 s`, `2 min 5 s`.
pub(crate) fn micros(micros: f64) -> String {
    match micros {
        m if !m.is_finite() => "unknown".to_owned(),
        m if m < 999.5 => format!("{} us", digits(m)),
        m if m < 999_500.0 => format!("{} ms", digits(m / 1e3)),
        m if m < 99_950_000.0 => format!("{} s", digits(m / 1e6)),
        m => {
            let seconds = (m / 1e6).round() as u64;
            format!("{} min {} s", count(seconds / 60), seconds % 60)
        }
    }
}

/// `43.2 %`.
pub(crate) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { "unknown".to_owned() }
}

/// `99.63 %`, `0.00012 %`: for shares that are close to 0 or 1.
pub(crate) fn precise(share: f64) -> String {
    match share * 100.0 {
        p if !p.is_finite() => "unknown".to_owned(),
        p if p == 0.0 || p >= 0.005 => format!("{p:.2} %"),
        p => format!("{p:.1e} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples() {
        assert_eq!([count(0), count(999), count(1000), count(1234567)], ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([counted(1, "block"), counted(0, "block")], ["1 block", "0 blocks"]);
        assert_eq!(
            [bytes(0), bytes(1023), bytes(1024), bytes(1536 << 10)],
            ["0 B", "1023 B", "1.00 KiB", "1.50 MiB"]
        );
        assert_eq!([bytes((1 << 20) - 1), bytes(1 << 40)], ["1.00 MiB", "1.00 TiB"]);
        assert_eq!(
            [digits(0.0), digits(0.123456), digits(1.5), digits(12.34)],
            ["0.00", "0.123", "1.50", "12.3"]
        );
        assert_eq!([digits(99.99), digits(123456.7), digits(-2000.0)], ["100", "123,457", "-2,000"]);
        assert_eq!([digits(f64::NAN), digits(1e-9), digits(1e20)], ["unknown", "1.00e-9", "1.00e20"]);
        assert_eq!(
            [micros(58.0), micros(1500.0), micros(2.5e6), micros(125e6)],
            ["58.0 us", "1.50 ms", "2.50 s", "2 min 5 s"]
        );
        assert_eq!([precise(0.0), precise(0.99634), precise(0.0000012)], ["0.00 %", "99.63 %", "1.2e-4 %"]);
        assert_eq!([percent(0.0), percent(0.4321), percent(f64::INFINITY)], ["0.0 %", "43.2 %", "unknown"]);
    }
}
