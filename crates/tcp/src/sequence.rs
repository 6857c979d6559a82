//! Arithmetic of sequence numbers and of other numbers that wrap (RFC 9293 §3.4).

/// Whether `a` is after `b`.
pub fn is_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Whether `a` is `b` or after it.
pub fn is_from(a: u32, b: u32) -> bool {
    !is_after(b, a)
}

/// The later one of two numbers.
pub fn later(a: u32, b: u32) -> u32 {
    if is_after(a, b) { a } else { b }
}

/// The earlier one of two numbers.
pub fn earlier(a: u32, b: u32) -> u32 {
    if is_after(a, b) { b } else { a }
}
