//! The name of a node of a cluster and the address of its admin API, as the other nodes see them.

use alloc::string::String;

/// A node's name and the address of its admin API; either may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// The address of the node's admin API.
    pub admin_address: String,
}
