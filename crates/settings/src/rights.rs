//! The rights of clients on topics.
//!
//! A new right needs more than a variant here, and the compiler finds the places: its two reasons in the broker's `base/reason.rs`
//! (`needs`, `lacks`), and its list of filters in the server's `settings/access.rs`, which is also a flag of `crore token mint`. The
//! code of an action checks the right (the broker's `client/rights.rs`).

use alloc::vec::Vec;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// One kind of action on topics. Each right is granted separately.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Right {
    /// Publish messages.
    Publish,
    /// Receive messages, and read what the log has.
    Subscribe,
    /// Create, delete and purge topics.
    Manage,
    /// Read about a topic: its position, and how many messages and subscribers it has.
    Info,
    /// Follow which topics have subscribers.
    Interest,
    /// Read and watch who subscribes to a topic.
    Presence,
}

impl Right {
    /// All rights.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Its name in claims and settings.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Right>", into = "Vec<Right>")]
pub struct Rights(u8);

impl Rights {
    /// Whether the set has this right.
    pub fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    /// The set with this right added.
    #[must_use]
    pub fn with(self, right: Right) -> Rights {
        Rights(self.0 | 1 << right as u8)
    }

    /// The set as a byte.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The set from [`Rights::bits`].
    pub fn from_bits(bits: u8) -> Rights {
        Rights(bits)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The rights in this set.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        let all = Right::ALL.iter().copied();
        all.filter(move |right| self.has(*right))
    }
}

impl From<Right> for Rights {
    fn from(right: Right) -> Rights {
        Rights::default().with(right)
    }
}

impl From<Vec<Right>> for Rights {
    fn from(rights: Vec<Right>) -> Rights {
        rights.into_iter().fold(Rights::default(), Rights::with)
    }
}

impl From<Rights> for Vec<Right> {
    fn from(rights: Rights) -> Vec<Right> {
        rights.iter().collect()
    }
}
