//! Just enough of Rust's lexical rules to tell code from comments and literals.

/// The text, with spaces in place of comments, strings and character literals. Line breaks stay, so line numbers do, too.
pub fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !continues_word(bytes, at) => raw_string_end(bytes, at).unwrap_or(at),
            b'\'' => char_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        if end == at {
            out.push(if bytes[at].is_ascii() {
                char::from(bytes[at])
            } else {
                '_'
            });
            at += 1;
        } else {
            out.extend(
                bytes[at..end]
                    .iter()
                    .map(|&byte| if byte == b'\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

/// Whether `code` contains `word` as a whole identifier or path.
pub fn has_word(code: &str, word: &str) -> bool {
    line_of_word(code, word).is_some()
}

/// The first line, counted from 1, that contains `word` as a whole identifier or path.
pub fn line_of_word(code: &str, word: &str) -> Option<usize> {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let found = code.match_indices(word).find(|(at, _)| {
        !part(code[..*at].chars().next_back()) && !part(code[at + word.len()..].chars().next())
    });
    found.map(|(at, _)| code[..at].matches('\n').count() + 1)
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at.min(bytes.len())
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a raw string that begins with the `r` at `at`. A `b` or `c` before it stays in the code as a letter.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..]
        .iter()
        .take_while(|&&byte| byte == b'#')
        .count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"')
        .chain(std::iter::repeat_n(b'#', hashes))
        .collect();
    let length = bytes[open + 1..]
        .windows(close.len())
        .position(|window| window == close)?;
    Some(open + 1 + length + close.len())
}

/// The end of a character literal; `None` if the quote begins a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        // The escaped character itself may be a quote.
        let length = bytes
            .get(at + 3..)?
            .iter()
            .position(|&byte| byte == b'\'')?;
        return Some(at + 3 + length + 1);
    }
    let width = match *bytes.get(at + 1)? {
        0..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + width + 2)
}

/// Whether the letter at `at` is not the first of its word. The `r` of `br` and `cr` counts as the first, because it may begin a literal.
fn continues_word(bytes: &[u8], at: usize) -> bool {
    let word = |back: usize| {
        at.checked_sub(back)
            .is_some_and(|at| bytes[at].is_ascii_alphanumeric() || bytes[at] == b'_')
    };
    word(1) && (word(2) || !matches!(bytes[at - 1], b'b' | b'c'))
}

/// A word, `::`, or any other single character, with its line counted from 1.
pub struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

/// The tokens of a text that [`code`] has returned.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < code.len() {
        let rest = &code[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        let length = match word.unwrap_or(rest.len()) {
            0 if rest.starts_with("::") => 2,
            0 => 1,
            length => length,
        };
        let text = &rest[..length];
        match text {
            "\n" => line += 1,
            _ if text.trim().is_empty() => {}
            _ => found.push(Token { text, line }),
        }
        at += length;
    }
    found
}

/// The index of the token that closes the bracket at `open`; the last token if none does.
pub fn closing(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

/// The index of the `{` or `;` that ends the head of the item at `at`.
pub fn head_end(tokens: &[Token<'_>], mut at: usize) -> usize {
    while at + 1 < tokens.len() && !matches!(tokens[at].text, "{" | ";") {
        if matches!(tokens[at].text, "(" | "[") {
            at = closing(tokens, at);
        }
        at += 1;
    }
    at.min(tokens.len() - 1)
}
