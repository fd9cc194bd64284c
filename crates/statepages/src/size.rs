//! Sizes with units, as flags take them and tables show them.

use std::str::FromStr;

use statepages_page::Bytes;

/// A number of bytes as a flag writes it: `80GiB`, `512MiB`, `1.5GB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) Bytes);

const UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a size such as 80GiB, 512MB or 4096, got `{text}`");
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number, *unit)))
            .unwrap_or((text, 1));
        let number = number.trim();
        // Whole numbers stay exact; only a fraction goes through a float.
        let bytes = if let Ok(whole) = number.parse::<u64>() {
            whole.checked_mul(unit).ok_or_else(wrong)?
        } else {
            let value: f64 = number.parse().map_err(|_| wrong())?;
            let bytes = value * unit as f64;
            if !(bytes.is_finite() && (0.0..=9e18).contains(&bytes)) {
                return Err(wrong());
            }
            bytes as u64
        };
        Ok(Self(Bytes::new(bytes)))
    }
}

/// Bytes for a reader, in the largest binary unit that leaves at least 1.
pub(crate) fn shown(bytes: Bytes) -> String {
    let value = bytes.get() as f64;
    for (name, unit) in &UNITS[..4] {
        if bytes.get() >= *unit {
            return format!("{:.2} {name}", value / *unit as f64);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_exactly_or_refused_by_name() {
        for (text, bytes) in [
            ("80GiB", 80 << 30),
            ("1.5GB", 1_500_000_000),
            ("4096", 4096),
            ("7 KiB", 7 << 10),
            ("12B", 12),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(Bytes::new(bytes))), "{text}");
        }
        for text in ["", "GiB", "-1GiB", "80Gib", "NaN", "99999999999TiB", "1e99GB"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
        assert_eq!(shown(Bytes::new(1_521_920)), "1.45 MiB");
        assert_eq!(shown(Bytes::new(80 << 30)), "80.00 GiB");
    }

    proptest! {
        /// Whatever a flag says: a size, or a refusal that shows it.
        #[test]
        fn fuzz_any_text_is_a_size_or_refused(text in prop_oneof![".*", "[0-9.eE+-]{0,24} ?[KMGT]?i?B?"]) {
            if let Err(error) = text.parse::<ByteSize>() {
                prop_assert!(error.contains(&text));
            }
        }
    }
}
