//! The kinds of calls to the operator's backend (`[[backend]]`).

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// May a client connect, and who is it?
    Connect,
    /// May a connection go on that a backend has granted?
    Refresh,
    /// May a client subscribe?
    Subscribe,
    /// May a subscription go on that a backend has granted?
    SubRefresh,
    /// May a client publish, and what?
    Publish,
    /// A method that a client calls.
    Rpc,
}

impl CallKind {
    /// All kinds.
    pub const ALL: [CallKind; 6] = [
        CallKind::Connect,
        CallKind::Refresh,
        CallKind::Subscribe,
        CallKind::SubRefresh,
        CallKind::Publish,
        CallKind::Rpc,
    ];

    /// The name in settings and requests.
    pub fn name(self) -> &'static str {
        match self {
            CallKind::Connect => "connect",
            CallKind::Refresh => "refresh",
            CallKind::Subscribe => "subscribe",
            CallKind::SubRefresh => "sub_refresh",
            CallKind::Publish => "publish",
            CallKind::Rpc => "rpc",
        }
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallKinds(u8);

impl CallKinds {
    /// Whether the set has no kind.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set has this kind.
    pub fn has(self, kind: CallKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

impl FromIterator<CallKind> for CallKinds {
    fn from_iter<T: IntoIterator<Item = CallKind>>(kinds: T) -> CallKinds {
        let bits = kinds.into_iter().map(|kind| 1 << kind as u8);
        CallKinds(bits.fold(0, |all, bit| all | bit))
    }
}
