//! Tests errors in properties: which packets may have them, how often, and with which values.

use crore_wire::mqtt::Error;
use crore_wire::mqtt::Version::V5;

use crate::{Row, accepted, refused};

/// Tries every identifier in every packet, against table 2-4: once, twice, and with forbidden values.
#[test]
fn properties_have_their_places() {
    let users_only: &'static [u8] = &[0x26];
    let acks: &'static [u8] = &[0x1F, 0x26];
    let table: [Row; 12] = [
        (
            0x10,
            b"\0\x04MQTT\x05\x02\0\0",
            b"\0\0",
            &[0x11, 0x15, 0x17, 0x19, 0x21, 0x22, 0x26, 0x27],
        ),
        (
            0x10,
            b"\0\x04MQTT\x05\x06\0\0\0\0\0",
            b"\0\x01w\0\0",
            &[0x01, 0x02, 0x03, 0x08, 0x09, 0x18, 0x26],
        ),
        (
            0x20,
            b"\0\0",
            b"",
            &[
                0x11, 0x12, 0x13, 0x15, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28,
                0x29, 0x2A,
            ],
        ),
        (
            0x30,
            b"\0\x01t",
            b"",
            &[0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26],
        ),
        (0x40, b"\0\x01\0", b"", acks),
        (0x50, b"\0\x01\0", b"", acks),
        (0x62, b"\0\x01\0", b"", acks),
        (0x70, b"\0\x01\0", b"", acks),
        (0x82, b"\0\x01", b"\0\x01a\0", &[0x0B, 0x26]),
        (0x90, b"\0\x01", b"\0", acks),
        (0xA2, b"\0\x01", b"\0\x01a", users_only),
        (0xE0, b"\0", b"", &[0x11, 0x1C, 0x1F, 0x26]),
    ];
    for (first, before, after, listed) in table {
        for id in 0..=255_u8 {
            let value = value(id);
            let property = [&[id][..], value].concat();
            let len = [property.len() as u8];
            let body = [before, &len, &property, after].concat();
            // Authentication data needs a method. Without one it is an error of its own.
            let fits_alone = listed.contains(&id);
            let data = id == 0x16 && listed.contains(&0x15);
            match (fits_alone, data) {
                (true, _) => accepted(V5, first, &body),
                (_, true) => refused(V5, first, &body, Error::AuthenticationMethod, 0x82),
                _ => refused(V5, first, &body, Error::Property(id), 0x81),
            }
            if !fits_alone {
                continue;
            }
            let len = [2 * property.len() as u8];
            let body = [before, &len, &property, &property, after].concat();
            match id == 0x26 || (id == 0x0B && first == 0x30) {
                true => accepted(V5, first, &body),
                false => refused(V5, first, &body, Error::DuplicateProperty(id), 0x82),
            }
            for invalid in forbidden(id) {
                let property = [&[id][..], invalid].concat();
                let len = [property.len() as u8];
                let body = [before, &len, &property, after].concat();
                let (error, reason) = match id {
                    0x23 => (Error::TopicAlias, 0x94),
                    0x08 if invalid != b"\0\0" => (Error::TopicName, 0x90),
                    _ => (Error::PropertyValue(id), 0x82),
                };
                refused(V5, first, &body, error, reason);
            }
            for short in 0..value.len() {
                let body = [before, &[1 + short as u8], &[id], &value[..short]].concat();
                refused(V5, first, &body, Error::Truncated, 0x81);
            }
        }
        let body = [before, b"\x80\x80\x80\x80\x01"].concat();
        refused(V5, first, &body, Error::VariableByteInteger, 0x81);
        let body = [before, b"\x80\0", after].concat();
        refused(V5, first, &body, Error::VariableByteInteger, 0x81);
        let body = [before, b"\x7F", after].concat();
        refused(V5, first, &body, Error::Truncated, 0x81);
    }
    let long = b"\0\x01t\x05\x0B\xFF\xFF\xFF\xFF\x7F";
    refused(V5, 0x30, &long[..9], Error::VariableByteInteger, 0x81);
}

/// A value that the property may have.
fn value(id: u8) -> &'static [u8] {
    match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A | 0x0B => b"\x01",
        0x13 | 0x21 | 0x22 | 0x23 => b"\0\x01",
        0x02 | 0x11 | 0x18 | 0x27 => b"\0\0\0\x01",
        0x26 => b"\0\x01n\0\x01v",
        _ => b"\0\x01x",
    }
}

/// Values that the property may not have.
fn forbidden(id: u8) -> &'static [&'static [u8]] {
    match id {
        0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A => &[b"\x02", b"\xFF"],
        0x0B => &[b"\0"],
        0x21 | 0x23 => &[b"\0\0"],
        0x27 => &[b"\0\0\0\0"],
        0x08 => &[b"\0\0", b"\0\x01+", b"\0\x01#", b"\0\x03a/+"],
        _ => &[],
    }
}
