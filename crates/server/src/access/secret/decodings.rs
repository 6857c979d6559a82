//! Decodes a text in all encodings that it may have: escapes, base64, base32, hex and lists of numbers.

/// All possible decodings of this text. The flag is true if the decoding begins with the first encoded byte, and false if it may begin
/// later.
pub fn decodings(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, bool)> {
    let begins = |at: &usize| {
        base64_digit(text[*at]).is_some() && (*at == 0 || base64_digit(text[*at - 1]).is_none())
    };
    let runs = (0..text.len()).filter(begins);
    let runs = runs.flat_map(|at| [decode_base64(&text[at..]), decode_hex(&text[at..])]);
    let plain = unescape(text).into_iter().chain(runs);
    plain
        .map(|read| (read, true))
        .chain(decodings_of_all_digits(text))
}

/// Decodes all digits of the text, whatever separates them: escaped line ends, quotes, `<br>`, the addresses of a dump. Letters of words
/// count as digits too, so each alignment of digits to bytes is tried.
fn decodings_of_all_digits(text: &[u8]) -> impl Iterator<Item = (Vec<u8>, bool)> {
    let of = |digit: fn(u8) -> Option<u32>| text.iter().filter_map(move |byte| digit(*byte));
    let digits64: Vec<u32> = of(base64_digit).collect();
    let digits32: Vec<u32> = of(base32_digit).collect();
    let digits16: Vec<u32> = without_number_prefixes(text)
        .filter_map(hex_digit)
        .collect();
    let from =
        |digits: &[u32], at: usize, bits: u32| join_digits(digits.iter().skip(at).copied(), bits);
    let mut all = vec![(decimal_numbers(text), true)];
    all.extend((0..4).map(|at| (from(&digits64, at, 6), at == 0)));
    all.extend((0..8).map(|at| (from(&digits32, at, 5), at == 0)));
    all.extend((0..2).map(|at| (from(&digits16, at, 4), at == 0)));
    // `hexdump` and `od -x` write little-endian numbers of two bytes.
    all.extend((0..4).map(|at| {
        let mut bytes = from(&digits16, at, 4);
        bytes
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .for_each(|pair| pair.swap(0, 1));
        (bytes, false)
    }));
    all.into_iter()
}

/// The bytes of a text that has only hex digits and separators.
pub fn decode_hex_only(text: &[u8]) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = without_number_prefixes(text)
        .filter(|byte| !is_between_pairs(*byte))
        .map(hex_digit)
        .collect();
    Some(join_digits(digits?.into_iter(), 4))
}

/// Escapes of JSON, string literals and HTML.
const ESCAPES: &[(&str, &str)] = &[
    ("&quot;", "\""),
    ("&#34;", "\""),
    ("&amp;", "&"),
    ("\\r", "\r"),
    ("\\n", "\n"),
    ("\\t", "\t"),
    ("\\\"", "\""),
    ("\\'", "'"),
    ("\\/", "/"),
    ("\\\\", "\\"),
];

/// The text with its escapes decoded; `None` if the text has no escape.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let escape = ESCAPES
            .iter()
            .find(|(escape, _)| rest.starts_with(escape.as_bytes()));
        if let Some((escape, character)) = escape {
            out.extend_from_slice(character.as_bytes());
            rest = &rest[escape.len()..];
        } else if let Some((code, length)) = numeric_escape(rest) {
            // The text of a key has no character that needs more than one byte.
            out.push(u8::try_from(code).unwrap_or(b'?'));
            rest = &rest[length..];
        } else {
            out.push(first);
            rest = behind;
        }
    }
    (out.len() < text.len()).then_some(out)
}

/// The character code and the length of a numeric escape such as `%41`, `\x41` or `\u0041` at the start of the text.
fn numeric_escape(text: &[u8]) -> Option<(u32, usize)> {
    let (begin, count) = [(&b"%"[..], 2), (b"\\x", 2), (b"\\u", 4)]
        .into_iter()
        .find(|(begin, _)| text.starts_with(begin))?;
    let length = begin.len() + count;
    let digits: Option<Vec<u32>> = text
        .get(begin.len()..length)?
        .iter()
        .map(|byte| hex_digit(*byte))
        .collect();
    Some((
        digits?.iter().fold(0, |sum, digit| sum << 4 | digit),
        length,
    ))
}

/// The decimal numbers of the text that fit a byte, such as in `[48, 42, 48]`.
fn decimal_numbers(text: &[u8]) -> Vec<u8> {
    let numbers = text.split(|byte| !byte.is_ascii_digit());
    let numbers = numbers.filter_map(|digits| std::str::from_utf8(digits).ok());
    numbers.filter_map(|digits| digits.parse().ok()).collect()
}

/// The value of a base64 digit of either alphabet.
fn base64_digit(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

/// The value of a base32 digit (RFC 4648 section 6).
fn base32_digit(digit: u8) -> Option<u32> {
    Some(u32::from(match digit.to_ascii_uppercase() {
        upper @ b'A'..=b'Z' => upper - b'A',
        b'2'..=b'7' => digit - b'2' + 26,
        _ => return None,
    }))
}

fn hex_digit(digit: u8) -> Option<u32> {
    char::from(digit).to_digit(16)
}

/// The base64 at the start of the text, decoded; spaces and line ends are skipped.
fn decode_base64(text: &[u8]) -> Vec<u8> {
    let digits = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    join_digits(digits.map_while(|digit| base64_digit(*digit)), 6)
}

/// The hex at the start of the text, decoded; separators between pairs are skipped, also those of a list or a C string.
fn decode_hex(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"x").unwrap_or(text);
    let digits = without_number_prefixes(text).filter(|byte| !is_between_pairs(*byte));
    join_digits(digits.map_while(hex_digit), 4)
}

fn is_between_pairs(byte: u8) -> bool {
    b"\t\r\n:,- ".contains(&byte)
}

/// The text without the prefixes `0x` and `\x` of numbers.
fn without_number_prefixes(text: &[u8]) -> impl Iterator<Item = u8> {
    let is_x = |at: usize| text.get(at) == Some(&b'x');
    let is_prefix = move |at: usize| match text[at] {
        b'0' | b'\\' => is_x(at + 1),
        b'x' => at > 0 && matches!(text[at - 1], b'0' | b'\\'),
        _ => false,
    };
    (0..text.len())
        .filter(move |at| !is_prefix(*at))
        .map(|at| text[at])
}

/// Joins digits of `bits` bits each into whole bytes.
fn join_digits(digits: impl Iterator<Item = u32>, bits: u32) -> Vec<u8> {
    let (mut bytes, mut held, mut count) = (Vec::new(), 0, 0);
    for digit in digits {
        held = (held << bits | digit) & 0xffff;
        count += bits;
        if count >= 8 {
            count -= 8;
            bytes.push((held >> count) as u8);
        }
    }
    bytes
}
