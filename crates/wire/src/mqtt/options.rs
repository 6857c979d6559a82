//! The options of a subscription (MQTT 5.0 section 3.8.3.1).

use super::base::{Qos, Version};
use super::error::Error;

/// Whether a new subscription gets the retained messages (section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::FromRepr)]
#[repr(u8)]
pub enum RetainHandling {
    /// 0: send the retained messages. 3.1.1 always does.
    #[default]
    Send = 0,
    /// 1: send the retained messages if the subscription did not exist.
    SendIfNew = 1,
    /// 2: send no retained messages.
    DoNotSend = 2,
}

/// The options of a subscription (section 3.8.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubscribeOptions {
    /// Maximum QoS.
    pub max_qos: Qos,
    /// No Local: do not send messages that the same client published.
    pub no_local: bool,
    /// Retain As Published: keep RETAIN as the publisher set it.
    pub retain_as_published: bool,
    /// Retain Handling.
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    /// The options of a 3.1.1 subscription, in which the client chooses only the QoS.
    pub const fn of(max_qos: Qos) -> Self {
        Self {
            max_qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Send,
        }
    }

    /// The byte on the wire.
    pub const fn bits(self) -> u8 {
        self.max_qos.bits()
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | (self.retain_handling as u8) << 4
    }

    pub(super) fn from_bits(version: Version, bits: u8) -> Result<Self, Error> {
        let reserved = match version {
            Version::V311 => 0b1111_1100,
            Version::V5 => 0b1100_0000,
        };
        if bits & reserved != 0 {
            return Err(Error::SubscribeReserved);
        }
        Ok(Self {
            max_qos: Qos::from_repr(bits & 3).ok_or(Error::SubscribeOptions)?,
            no_local: bits & 0b100 != 0,
            retain_as_published: bits & 0b1000 != 0,
            retain_handling: RetainHandling::from_repr(bits >> 4).ok_or(Error::SubscribeOptions)?,
        })
    }
}
