//! Byte-level tokens: ids 0-255 are bytes, 256 ends a text. Any text can be encoded, nothing is downloaded.

use std::fmt::Write as _;

/// Ends a text; `generate` stops on it.
pub(crate) const END_OF_TEXT: u32 = 256;

/// The ids of a text's UTF-8 bytes.
pub(crate) fn encode(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// The text of byte ids; other ids are shown by number, bytes that are no UTF-8 as replacement characters.
pub(crate) fn decode(ids: &[u32]) -> String {
    let mut text = String::new();
    let mut bytes = Vec::new();
    for &id in ids {
        if let Ok(byte) = u8::try_from(id) {
            bytes.push(byte);
        } else {
            text.push_str(&String::from_utf8_lossy(&bytes));
            bytes.clear();
            write!(text, "<{id}>").expect("a string takes any text");
        }
    }
    text.push_str(&String::from_utf8_lossy(&bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_the_round_trip() {
        for text in ["", "plain", "gr\u{fc}n \u{1f600}"] {
            assert_eq!(decode(&encode(text)), text);
        }
        assert_eq!(decode(&[104, 105, END_OF_TEXT, 33]), "hi<256>!");
    }
}
