//! The lists in SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK. A list is checked when it is read, so its iteration cannot fail.

use super::base::{FILTERS_MAX, PacketType, Version};
use super::error::Error;
use super::filter::Filter;
use super::options::SubscribeOptions;
use super::read::Reader;
use super::reason::ReasonCode;

/// The filters of a SUBSCRIBE with their options (section 3.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeFilters<'a> {
    bytes: &'a [u8],
    count: usize,
    version: Version,
}

impl<'a> SubscribeFilters<'a> {
    pub(super) fn read(version: Version, bytes: &'a [u8]) -> Result<Self, Error> {
        let mut rest = Reader(bytes);
        let count = read_all(&mut rest, |rest| {
            let filter = Filter::parse(rest.text()?).map_err(Error::Filter)?;
            let options = SubscribeOptions::from_bits(version, rest.byte()?)?;
            match filter.share.is_some() && options.no_local {
                true => Err(Error::NoLocalShared),
                false => Ok(()),
            }
        })?;
        Ok(Self {
            bytes,
            count,
            version,
        })
    }

    /// The number of filters, at least one.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub const fn len(&self) -> usize {
        self.count
    }

    /// The filters with their options, in order. [`Filter::parse`] accepts all of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, SubscribeOptions)> + Clone + use<'a> {
        let (mut rest, version) = (Reader(self.bytes), self.version);
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let filter = rest.text().ok()?;
            let options = SubscribeOptions::from_bits(version, rest.byte().ok()?).ok()?;
            Some((filter, options))
        })
    }
}

/// The filters of an UNSUBSCRIBE (section 3.10.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubscribeFilters<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> UnsubscribeFilters<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut rest = Reader(bytes);
        let count = read_all(&mut rest, |rest| match Filter::parse(rest.text()?) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::Filter(error)),
        })?;
        Ok(Self { bytes, count })
    }

    /// The number of filters, at least one.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub const fn len(&self) -> usize {
        self.count
    }

    /// The filters in order. [`Filter::parse`] accepts all of them.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + Clone + use<'a> {
        let mut rest = Reader(self.bytes);
        core::iter::from_fn(move || match rest.is_empty() {
            true => None,
            false => rest.text().ok(),
        })
    }
}

/// Reads filters with `read_one` until no bytes are left. Returns their number, which must be at least one.
fn read_all<'a>(
    rest: &mut Reader<'a>,
    mut read_one: impl FnMut(&mut Reader<'a>) -> Result<(), Error>,
) -> Result<usize, Error> {
    let mut count = 0;
    while !rest.is_empty() {
        if count == FILTERS_MAX {
            return Err(Error::TooManyFilters);
        }
        read_one(rest)?;
        count += 1;
    }
    match count {
        0 => Err(Error::NoFilters),
        count => Ok(count),
    }
}

/// The reason codes of a SUBACK or UNSUBACK (sections 3.9.3 and 3.11.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReasonCodes<'a>(&'a [u8]);

impl<'a> ReasonCodes<'a> {
    /// No codes, as in the UNSUBACK of 3.1.1.
    pub(super) const NONE: ReasonCodes<'static> = ReasonCodes(&[]);

    pub(super) fn read(version: Version, kind: PacketType, bytes: &'a [u8]) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Err(Error::NoFilters);
        }
        if bytes.len() > FILTERS_MAX {
            return Err(Error::TooManyFilters);
        }
        let is_listed = |code| match version {
            Version::V311 => matches!(code, 0..=2 | 0x80), // [MQTT-3.9.3-2 of 3.1.1]
            Version::V5 => ReasonCode::for_packet(code, kind).is_some(),
        };
        match bytes.iter().find(|&&code| !is_listed(code)) {
            Some(&code) => Err(Error::ReasonCode(code)),
            None => Ok(Self(bytes)),
        }
    }

    /// The number of codes.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no codes.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The codes in order.
    pub fn iter(&self) -> impl Iterator<Item = ReasonCode> + Clone + use<'a> {
        self.0.iter().map(|&code| ReasonCode(code))
    }
}
