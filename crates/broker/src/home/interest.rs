//! The followers of a home's topics (`follow.rs`), and the topics with interest at other nodes. A home is the part of a shard that keeps
//! topics, and a follower is a client that is told which topics have interest. A topic with *interest* has subscribers, or had some until a
//! short time ago.

use super::followers::Followers;
use super::remote_interest::RemoteInterest;

/// Followers, and topics with interest at other nodes.
pub(crate) struct TopicInterest {
    pub(super) followers: Followers,
    pub(super) remote: RemoteInterest,
}

impl TopicInterest {
    pub(super) fn new(debounce_s: u32) -> TopicInterest {
        TopicInterest {
            followers: Followers::new(debounce_s),
            remote: RemoteInterest::default(),
        }
    }

    /// Whether followers may have unsent news.
    pub(crate) fn has_news(&self) -> bool {
        self.followers.has_news()
    }
}
