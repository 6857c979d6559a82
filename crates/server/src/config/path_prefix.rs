//! Checks path prefixes in settings, such as `http.publish_paths`.

/// Checks a prefix: segments of characters that need no escape in a request line.
pub fn path_prefix(path: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@".contains(c);
    let segment = |s: &str| !s.is_empty() && s != "." && s != ".." && s.chars().all(plain);
    match path.strip_prefix('/') {
        Some(rest) if rest.split('/').all(segment) => Ok(()),
        _ => Err(format!(
            "`{path}` is not a path prefix; write one that begins with / and does not end with it, such as \"/pub\""
        )),
    }
}

/// Whether one prefix contains the other, so that a path can match both.
pub fn overlap(a: &str, b: &str) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    long.strip_prefix(short)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for path in ["/pub", "/msgq/post", "/a.b/~c"] {
            assert!(path_prefix(path).is_ok(), "{path}");
        }
        for path in [
            "", "/", "pub", "/pub/", "/a//b", "/a?b", "/a b", "/../a", "/\u{fc}", "/a%20",
        ] {
            assert!(path_prefix(path).is_err(), "{path}");
        }
        assert!(overlap("/a", "/a/b") && overlap("/a/b", "/a") && overlap("/a", "/a"));
        assert!(!overlap("/pub", "/pubsub") && !overlap("/a/b", "/a/c"));
    }
}
