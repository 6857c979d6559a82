//! Reads one cookie of a request (RFC 6265 section 4.2.1). Nothing is decoded, because a cookie can contain all characters of an access
//! token.

/// The value of the first cookie with this name in the `Cookie` fields, without quotes around it.
pub fn value<'b>(mut fields: impl Iterator<Item = &'b [u8]>, name: &[u8]) -> Option<&'b [u8]> {
    fields.find_map(|field| {
        field.split(|b| *b == b';').find_map(|pair| {
            let pair = pair.trim_ascii();
            let equals = memchr::memchr(b'=', pair)?;
            let (key, value) = (&pair[..equals], &pair[equals + 1..]);
            let unquoted = value
                .strip_prefix(b"\"")
                .and_then(|v| v.strip_suffix(b"\""));
            (key.trim_ascii_end() == name).then(|| unquoted.unwrap_or(value).trim_ascii())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        type Row = (&'static [&'static [u8]], Option<&'static [u8]>);
        let table: &[Row] = &[
            (&[], None),
            (&[b"t=1"], Some(b"1")),
            (&[b"at=0; t=1; t=2"], Some(b"1")),
            (&[b"tt=0", b"a; t=\"x=y\""], Some(b"x=y")),
            (&[b"T=0; t"], None),
            (&[b"t="], Some(b"")),
        ];
        for (fields, expected) in table {
            assert_eq!(value(fields.iter().copied(), b"t"), *expected, "{fields:?}");
        }
    }
}
