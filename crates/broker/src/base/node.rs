//! How other nodes of a cluster name and reach this one.

use alloc::string::String;

/// A node's name and the address of its admin API; either may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The address of its admin API.
    pub link: String,
}
