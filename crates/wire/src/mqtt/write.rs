//! Writes the fixed header and the data types of MQTT 5.0 section 1.5, and computes their lengths.

use super::base::{FIELD_MAX, PacketType, REMAINING_LENGTH_MAX, Version};
use super::property_set::Properties;
use alloc::vec::Vec;

/// Writes the fixed header of any packet except PUBLISH.
pub(super) fn write_head(out: &mut Vec<u8>, kind: PacketType, len: usize) {
    out.push((kind as u8) << 4 | kind.flags());
    write_remaining_length(out, len);
}

pub(super) fn write_remaining_length(out: &mut Vec<u8>, len: usize) {
    assert!(len <= REMAINING_LENGTH_MAX, "the packet has a length");
    write_variable(out, len);
}

/// Writes a Variable Byte Integer (section 1.5.5).
pub(super) fn write_variable(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) const fn variable_len(value: usize) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

pub(super) fn write_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) const fn field_len(text: &str) -> usize {
    2 + text.len()
}

pub(super) fn write_field(out: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() <= FIELD_MAX, "a field's length has two bytes");
    write_u16(out, bytes.len() as u16);
    out.extend_from_slice(bytes);
}

pub(super) fn properties_len(version: Version, set: &Properties<'_>) -> usize {
    match version {
        Version::V311 => 0,
        Version::V5 => variable_len(set.bytes.len()) + set.bytes.len(),
    }
}

pub(super) fn write_properties(
    out: &mut Vec<u8>,
    version: Version,
    set: &Properties<'_>,
    allowed: u64,
) {
    if version == Version::V311 {
        return;
    }
    debug_assert_eq!(set.present & !allowed, 0, "properties of this packet");
    write_variable(out, set.bytes.len());
    out.extend_from_slice(set.bytes);
}
