//! The ASCII form of a label of a host name (RFC 3492, RFC 5890): `xn--` and its letters. Browsers send names in this form only.
//!
//! Deliberately absent: decoding, and all of the mapping of names but lower case. A name that was typed with letters and marks
//! apart stays so.

use alloc::string::String;
use alloc::vec::Vec;

/// The parameters of RFC 3492 section 5.
const BASE: u32 = 36;
const T_MIN: u32 = 1;
const T_MAX: u32 = 26;
const SKEW: u32 = 38;
const DAMP: u32 = 700;
const INITIAL_BIAS: u32 = 72;
const INITIAL_N: u32 = 0x80;
/// Letters of a label: DNS has room for fewer (RFC 1035 section 2.3.4). It bounds the work, which grows with their square.
const LETTERS_MAX: usize = 63;

/// Appends a label in lower case and in ASCII; `None` when it is longer than a label may be.
pub(super) fn write_label(label: &str, out: &mut String) -> Option<()> {
    if label.is_ascii() {
        out.extend(label.chars().map(|c| c.to_ascii_lowercase()));
        return Some(());
    }
    let letters: Vec<u32> = label
        .chars()
        .flat_map(char::to_lowercase)
        .map(u32::from)
        .take(LETTERS_MAX + 1)
        .collect();
    if letters.len() > LETTERS_MAX {
        return None;
    }
    let basic = letters.iter().filter(|c| **c < INITIAL_N);
    let count = basic.clone().count();
    // Some letters are ASCII in lower case, such as the sign for kelvin.
    let is_ascii = count == letters.len();
    out.push_str(if is_ascii { "" } else { "xn--" });
    out.extend(basic.filter_map(|c| char::from_u32(*c)));
    if count > 0 && !is_ascii {
        out.push('-');
    }
    let basic = count as u32;
    let (mut n, mut delta, mut bias, mut done) = (INITIAL_N, 0, INITIAL_BIAS, basic);
    while (done as usize) < letters.len() {
        let next = *letters.iter().filter(|c| **c >= n).min()?;
        delta += (next - n) * (done + 1);
        n = next;
        for letter in &letters {
            if *letter < n {
                delta += 1;
            }
            if *letter == n {
                write_number(delta, bias, out);
                bias = adapt(delta, done + 1, done == basic);
                delta = 0;
                done += 1;
            }
        }
        delta += 1;
        n += 1;
    }
    Some(())
}

/// A generalized integer of variable length (RFC 3492 section 3.3).
fn write_number(mut value: u32, bias: u32, out: &mut String) {
    let digit = |d: u32| char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[d as usize]);
    let mut k = BASE;
    loop {
        let t = k.saturating_sub(bias).clamp(T_MIN, T_MAX);
        if value < t {
            return out.push(digit(value));
        }
        out.push(digit(t + (value - t) % (BASE - t)));
        value = (value - t) / (BASE - t);
        k += BASE;
    }
}

/// The next bias (RFC 3492 section 6.1).
fn adapt(delta: u32, count: u32, first: bool) -> u32 {
    let mut delta = delta / if first { DAMP } else { 2 };
    delta += delta / count;
    let mut k = 0;
    while delta > (BASE - T_MIN) * T_MAX / 2 {
        delta /= BASE - T_MIN;
        k += BASE;
    }
    k + (BASE - T_MIN + 1) * delta / (delta + SKEW)
}
