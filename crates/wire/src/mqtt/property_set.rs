//! A checked view of a set of properties (MQTT 5.0 section 2.2.2).
//!
//! Invariant: a [`Properties`] contains only properties that passed the checks for their packet, so its getters cannot fail. Bits record
//! which properties are present, so the getter of an absent property reads no bytes.

use super::base::USER_PROPERTIES_MAX;
use super::error::Error;
use super::property_table::ValueType::{Binary, Byte, Four, Pair, Text, Two, Variable};
use super::property_table::{Property, Property as P};
use super::read::Reader;
use crate::topic::has_wildcard;

/// A checked set of properties. In 3.1.1, which has no properties, it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    pub(super) bytes: &'a [u8],
    /// The properties that are present, one bit for each identifier.
    pub(super) present: u64,
}

impl<'a> Properties<'a> {
    /// The empty set.
    pub const NONE: Properties<'static> = Properties {
        bytes: &[],
        present: 0,
    };

    /// Reads the property length and checks the properties.
    pub(super) fn read(
        reader: &mut Reader<'a>,
        allowed: u64,
        repeatable: u64,
    ) -> Result<Self, Error> {
        let len = reader.variable()?;
        Self::check(reader.take(len as usize)?, allowed, repeatable)
    }

    /// Checks the properties of a stored message, which another process may have written. Only properties that a server forwards unaltered
    /// are allowed ([`PropertyWriter::forward`](super::PropertyWriter::forward)).
    ///
    /// # Errors
    /// The first fault.
    pub fn of_message(bytes: &'a [u8]) -> Result<Self, Error> {
        let forwarded = [
            P::PayloadFormatIndicator,
            P::ResponseTopic,
            P::CorrelationData,
            P::ContentType,
            P::UserProperty,
        ];
        let allowed = forwarded
            .iter()
            .fold(0, |bits, property| bits | property.bit());
        Self::check(bytes, allowed, P::UserProperty.bit())
    }

    /// Checks the properties in `bytes`, which have no length before them.
    fn check(bytes: &'a [u8], allowed: u64, repeatable: u64) -> Result<Self, Error> {
        let mut present = 0;
        let mut user_property_count = 0;
        let mut rest = Reader(bytes);
        while !rest.is_empty() {
            let id = rest.byte()?;
            let property = match Property::from_id(id) {
                Some(property) if allowed & property.bit() != 0 => property,
                _ => return Err(Error::Property(id)),
            };
            if present & property.bit() & !repeatable != 0 {
                return Err(Error::DuplicateProperty(id));
            }
            present |= property.bit();
            check_value(property, &mut rest)?;
            user_property_count += usize::from(property == P::UserProperty);
            if user_property_count > USER_PROPERTIES_MAX {
                return Err(Error::TooManyUserProperties);
            }
        }
        let [method, data] = [P::AuthenticationMethod.bit(), P::AuthenticationData.bit()];
        if present & (method | data) == data {
            return Err(Error::AuthenticationMethod);
        }
        Ok(Properties { bytes, present })
    }

    /// The set of the properties in `bytes`, which must be items of [`Properties::iter`] and so were checked before.
    pub fn stored(bytes: &'a [u8]) -> Self {
        let mut set = Properties { bytes, present: 0 };
        set.present = set
            .iter()
            .fold(0, |present, (property, _)| present | property.bit());
        set
    }

    /// Whether the set is empty.
    pub const fn is_empty(&self) -> bool {
        self.present == 0
    }

    /// Whether this property is present.
    pub const fn has(&self, property: Property) -> bool {
        self.present & property.bit() != 0
    }

    /// The properties in order, each with its bytes, including the identifier.
    pub fn iter(&self) -> impl Iterator<Item = (Property, &'a [u8])> + Clone + use<'a> {
        let mut rest = self.bytes;
        core::iter::from_fn(move || {
            let &id = rest.first()?;
            let property = Property::from_id(id)?;
            let (encoded, after) = rest.split_at_checked(1 + value_bytes(property, &rest[1..]))?;
            rest = after;
            Some((property, encoded))
        })
    }

    /// Finds the value of the first `property`.
    fn find(&self, property: Property) -> Option<Reader<'a>> {
        if !self.has(property) {
            return None;
        }
        { *self }.advance(property)
    }

    /// Returns the value of the next `property`, and leaves in the set only the properties after it.
    pub(super) fn advance(&mut self, property: Property) -> Option<Reader<'a>> {
        loop {
            let &id = self.bytes.first()?;
            let next = Property::from_id(id)?;
            let len = 1 + value_bytes(next, &self.bytes[1..]);
            let (encoded, rest) = self.bytes.split_at_checked(len)?;
            self.bytes = rest;
            if next == property {
                return Some(Reader(&encoded[1..]));
            }
        }
    }

    pub(super) fn byte(&self, property: Property) -> Option<u8> {
        self.find(property)?.byte().ok()
    }

    pub(super) fn u16(&self, property: Property) -> Option<u16> {
        self.find(property)?.u16().ok()
    }

    pub(super) fn u32(&self, property: Property) -> Option<u32> {
        self.find(property)?.u32().ok()
    }

    pub(super) fn text(&self, property: Property) -> Option<&'a str> {
        self.find(property)?.text().ok()
    }

    pub(super) fn binary(&self, property: Property) -> Option<&'a [u8]> {
        self.find(property)?.binary().ok()
    }
}

/// Reads a value and checks it.
fn check_value(property: Property, rest: &mut Reader<'_>) -> Result<(), Error> {
    let value = match property.value_type() {
        Byte => rest.byte()?.into(),
        Two => rest.u16()?.into(),
        Four => rest.u32()?,
        Variable => rest.variable()?,
        Text => {
            let text = rest.text()?;
            if property == P::ResponseTopic && has_wildcard(text.as_bytes()) {
                return Err(Error::TopicName);
            }
            text.len() as u32
        }
        Binary => rest.binary()?.len() as u32,
        Pair => rest.text()?.len().max(rest.text()?.len()) as u32,
    };
    match property.bounds().contains(&value) {
        true => Ok(()),
        false if property == P::TopicAlias => Err(Error::TopicAlias),
        false => Err(Error::PropertyValue(property.id())),
    }
}

/// The length in bytes of the checked value at the beginning of `rest`.
fn value_bytes(property: Property, rest: &[u8]) -> usize {
    let len = |rest: &[u8]| rest.first_chunk().map_or(0, |len| u16::from_be_bytes(*len));
    let field = |rest: &[u8]| 2 + usize::from(len(rest));
    match property.value_type() {
        Byte => 1,
        Two => 2,
        Four => 4,
        Variable => 1 + rest.iter().take_while(|&byte| byte & 0x80 != 0).count(),
        Text | Binary => field(rest),
        Pair => {
            let name = field(rest);
            name + field(rest.get(name..).unwrap_or_default())
        }
    }
}

/// Whether the text is a topic name (section 4.7): not empty, and without wildcards.
pub(super) fn is_topic_name(text: &str) -> bool {
    !text.is_empty() && !has_wildcard(text.as_bytes())
}
