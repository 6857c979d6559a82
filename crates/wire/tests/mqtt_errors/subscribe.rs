//! Tests errors in SUBSCRIBE and UNSUBSCRIBE, and the length of the lists in packets.

use crore_wire::mqtt::Version::{V5, V311};
use crore_wire::mqtt::{Error, FILTERS_MAX, FilterError, USER_PROPERTIES_MAX};

use crate::{accepted, refused};

#[test]
fn subscribes() {
    use Error::{NoFilters, NoLocalShared, SubscribeOptions, SubscribeReserved};
    refused(V311, 0x82, b"\0\x01", NoFilters, 0x82);
    refused(V5, 0x82, b"\0\x01\0", NoFilters, 0x82);
    refused(V5, 0x82, b"\0\x01\0\0\x01a", Error::Truncated, 0x81);
    let filter =
        |text: &[u8], options| [&b"\0\x01\0\0"[..], &[text.len() as u8], text, &[options]].concat();
    let shared = b"$share/g/a";
    for options in 0..=255_u8 {
        let error = match options {
            _ if options >> 6 != 0 => Some((SubscribeReserved, 0x81)),
            _ if options & 3 == 3 || options >> 4 & 3 == 3 => Some((SubscribeOptions, 0x82)),
            _ => None,
        };
        match error {
            Some((error, reason)) => refused(V5, 0x82, &filter(b"a", options), error, reason),
            None => accepted(V5, 0x82, &filter(b"a", options)),
        }
        match error {
            None if options & 4 != 0 => {
                refused(V5, 0x82, &filter(shared, options), NoLocalShared, 0x82);
            }
            None => accepted(V5, 0x82, &filter(shared, options)),
            _ => {}
        }
        let body = [b"\0\x01\0\x01a", &[options][..]].concat();
        match options {
            0..=2 => accepted(V311, 0x82, &body),
            3 => refused(V311, 0x82, &body, SubscribeOptions, 0x82),
            _ => refused(V311, 0x82, &body, SubscribeReserved, 0x81),
        }
    }
    for (text, error) in [
        (&b""[..], FilterError::Empty),
        (b"a#", FilterError::Wildcard),
        (b"#/a", FilterError::Wildcard),
        (b"$share/g/", FilterError::ShareFilter),
        (b"$share/+/a", FilterError::ShareName),
    ] {
        refused(V5, 0x82, &filter(text, 0), Error::Filter(error), 0x8F);
        let unsubscribe = [&b"\0\x01\0\0"[..], &[text.len() as u8], text].concat();
        refused(V5, 0xA2, &unsubscribe, Error::Filter(error), 0x8F);
    }
}

#[test]
fn unsubscribes() {
    refused(V311, 0xA2, b"\0\x01", Error::NoFilters, 0x82);
    refused(V5, 0xA2, b"\0\x01\0", Error::NoFilters, 0x82);
    refused(V5, 0xA2, b"\0\x01\0\0\x02a", Error::Truncated, 0x81);
}

#[test]
fn lists_are_limited() {
    let subscribe = |count| [&b"\0\x01\0"[..], &b"\0\x01a\0".repeat(count)].concat();
    accepted(V5, 0x82, &subscribe(FILTERS_MAX));
    refused(
        V5,
        0x82,
        &subscribe(FILTERS_MAX + 1),
        Error::TooManyFilters,
        0x97,
    );
    let unsubscribe = |count| [&b"\0\x01\0"[..], &b"\0\x01a".repeat(count)].concat();
    accepted(V5, 0xA2, &unsubscribe(FILTERS_MAX));
    refused(
        V5,
        0xA2,
        &unsubscribe(FILTERS_MAX + 1),
        Error::TooManyFilters,
        0x97,
    );
    let suback = |count| [&b"\0\x01\0"[..], &b"\0".repeat(count)].concat();
    accepted(V5, 0x90, &suback(FILTERS_MAX));
    refused(
        V5,
        0x90,
        &suback(FILTERS_MAX + 1),
        Error::TooManyFilters,
        0x97,
    );
    let users = |count: usize| {
        let len = 5 * count;
        let len = [len as u8 | 0x80, (len >> 7) as u8];
        [&b"\0\x01t"[..], &len, &b"\x26\0\0\0\0".repeat(count)].concat()
    };
    accepted(V5, 0x30, &users(USER_PROPERTIES_MAX));
    let error = Error::TooManyUserProperties;
    refused(V5, 0x30, &users(USER_PROPERTIES_MAX + 1), error, 0x97);
}
