//! Calls of clients to the operator's backend, and its answers. A shard gives a call to [`Io::ask_backend`](crate::io::Io::ask_backend), and the answer
//! comes back as an [`Input`](crate::io::Input). The server sends the call over HTTP.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use crate::base::access::{CountedBytes, Grants, QuestionBytes};
pub use crate::base::call_kind::{CallKind, CallKinds};
use crate::budget::admission::{Admission, Party};
use crate::budget::in_flight::PartyCharge;

/// A call for a client of Centrifugo's protocol.
pub struct BackendCall {
    /// A number that the answer repeats.
    pub number: u32,
    /// The subject of the call.
    pub subject: CallSubject<Box<str>, Box<[u8]>>,
    /// The number of the party that calls: the user, the address of a client without a name, or the connection if the address is unknown.
    pub asker: u64,
    /// The id of the client.
    pub client: String,
    /// The name of the user; empty for an anonymous client.
    pub user: String,
    /// The JSON that the connection token or the backend has given for the connection; empty if there is none.
    pub meta: Box<[u8]>,
    /// The client's transport: `websocket`, `sse` or `http_stream`.
    pub transport: &'static str,
    /// Whether the client speaks protobuf, so that its data and the answer may be any bytes.
    pub is_protobuf: bool,
    _counted: CountedBytes,
    _charge: PartyCharge,
}

/// The subject of a call. Data is empty if there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSubject<T, D> {
    /// A connect command.
    Connect {
        /// Data of the client.
        data: D,
        /// The name of the client's program or library.
        name: T,
        /// Its version.
        version: T,
    },
    /// The end of a connection that a backend has granted.
    Refresh,
    /// A subscribe command.
    Subscribe {
        /// The channel.
        channel: T,
        /// Data of the client.
        data: D,
    },
    /// The end of a subscription that a backend has granted.
    SubRefresh {
        /// The channel.
        channel: T,
    },
    /// A publish command.
    Publish {
        /// The channel.
        channel: T,
        /// The message.
        data: D,
    },
    /// A method call.
    Rpc {
        /// The method.
        method: T,
        /// The argument.
        data: D,
    },
}

impl<T, D> CallSubject<T, D> {
    /// The kind of the call.
    pub fn kind(&self) -> CallKind {
        match self {
            CallSubject::Connect { .. } => CallKind::Connect,
            CallSubject::Refresh => CallKind::Refresh,
            CallSubject::Subscribe { .. } => CallKind::Subscribe,
            CallSubject::SubRefresh { .. } => CallKind::SubRefresh,
            CallSubject::Publish { .. } => CallKind::Publish,
            CallSubject::Rpc { .. } => CallKind::Rpc,
        }
    }

    /// The data of the client, if the kind has any.
    pub fn data(&self) -> Option<&D> {
        match self {
            CallSubject::Connect { data, .. }
            | CallSubject::Subscribe { data, .. }
            | CallSubject::Publish { data, .. }
            | CallSubject::Rpc { data, .. } => Some(data),
            CallSubject::Refresh | CallSubject::SubRefresh { .. } => None,
        }
    }

    /// Converts the texts and the data.
    fn map<U, E>(&self, text: impl Fn(&T) -> U, bytes: impl Fn(&D) -> E) -> CallSubject<U, E> {
        match self {
            CallSubject::Connect {
                data,
                name,
                version,
            } => CallSubject::Connect {
                data: bytes(data),
                name: text(name),
                version: text(version),
            },
            CallSubject::Refresh => CallSubject::Refresh,
            CallSubject::Subscribe { channel, data } => CallSubject::Subscribe {
                channel: text(channel),
                data: bytes(data),
            },
            CallSubject::SubRefresh { channel } => CallSubject::SubRefresh {
                channel: text(channel),
            },
            CallSubject::Publish { channel, data } => CallSubject::Publish {
                channel: text(channel),
                data: bytes(data),
            },
            CallSubject::Rpc { method, data } => CallSubject::Rpc {
                method: text(method),
                data: bytes(data),
            },
        }
    }
}

impl CallSubject<Box<str>, Box<[u8]>> {
    /// The bytes of the data; 0 without data.
    pub fn data_bytes(&self) -> usize {
        self.data().map_or(0, |data| data.len())
    }
}

/// A call's subject as slices of the command.
pub type BorrowedSubject<'a> = CallSubject<&'a str, &'a [u8]>;

impl<'a> BorrowedSubject<'a> {
    /// The channel, if the kind has any.
    pub fn channel(&self) -> Option<&'a str> {
        match self {
            CallSubject::Subscribe { channel, .. }
            | CallSubject::SubRefresh { channel }
            | CallSubject::Publish { channel, .. } => Some(channel),
            CallSubject::Connect { .. } | CallSubject::Refresh | CallSubject::Rpc { .. } => None,
        }
    }

    /// The same with another channel, of a kind that has one.
    pub fn with_channel(self, channel: &'a str) -> BorrowedSubject<'a> {
        match self {
            CallSubject::Subscribe { data, .. } => CallSubject::Subscribe { channel, data },
            CallSubject::SubRefresh { .. } => CallSubject::SubRefresh { channel },
            CallSubject::Publish { data, .. } => CallSubject::Publish { channel, data },
            CallSubject::Connect { .. } | CallSubject::Refresh | CallSubject::Rpc { .. } => self,
        }
    }

    /// The bytes that a call with this subject takes in memory, without the fields of its client.
    pub fn call_bytes(&self) -> usize {
        let texts = match self {
            CallSubject::Connect { name, version, .. } => name.len() + version.len(),
            CallSubject::Refresh => 0,
            CallSubject::Subscribe { channel, .. }
            | CallSubject::SubRefresh { channel }
            | CallSubject::Publish { channel, .. } => channel.len(),
            CallSubject::Rpc { method, .. } => method.len(),
        };
        size_of::<BackendCall>() + texts + self.data().map_or(0, |data| data.len())
    }
}

/// The fields of a [`BackendCall`] about its client.
pub struct BackendCaller<'a> {
    /// The party that calls, whose number is [`BackendCall::asker`].
    pub asker: Party,
    /// The party that is charged for the bytes.
    pub payer: Party,
    /// As [`BackendCall::client`].
    pub client: String,
    /// As [`BackendCall::user`].
    pub user: &'a str,
    /// As [`BackendCall::meta`].
    pub meta: &'a [u8],
    /// As [`BackendCall::transport`].
    pub transport: &'static str,
    /// As [`BackendCall::is_protobuf`].
    pub is_protobuf: bool,
}

impl BackendCall {
    /// A call about `subject`. Until it is dropped, its bytes are added to `held`, and are charged to the caller's payer.
    pub fn new(
        number: u32,
        caller: BackendCaller<'_>,
        subject: &BorrowedSubject<'_>,
        held: &QuestionBytes,
        admission: &Admission,
    ) -> BackendCall {
        let of_caller = caller.client.len() + caller.user.len() + caller.meta.len();
        let bytes = subject.call_bytes() + of_caller;
        BackendCall {
            number,
            subject: subject.map(|text| (*text).into(), |data| (*data).into()),
            asker: caller.asker.number(),
            client: caller.client,
            user: caller.user.into(),
            meta: caller.meta.into(),
            transport: caller.transport,
            is_protobuf: caller.is_protobuf,
            _counted: CountedBytes::new(held, bytes),
            _charge: PartyCharge::new(admission, caller.payer, bytes),
        }
    }
}

/// Why a call is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendRefusal {
    /// No backend is configured for calls of this kind.
    Absent,
    /// Too many calls wait for the backend.
    Busy,
}

/// The answer of a backend to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendAnswer {
    /// The kind of the call.
    pub kind: CallKind,
    /// The number of the call.
    pub number: u32,
    /// The result. A grant is of the call's kind.
    pub result: BackendResult,
}

/// The result of a call. Data for a client of JSON is one JSON value ([`crore_wire::json::is_json`]), or empty.
#[derive(Clone, Debug, PartialEq)]
pub enum BackendResult {
    /// The result of a method.
    Data(Box<[u8]>),
    /// The client may connect.
    Connect(Box<ConnectGrant>),
    /// The client may subscribe.
    Subscribe(SubscribeGrant),
    /// The client may publish.
    Publish(PublishGrant),
    /// The connection or subscription continues until this Unix second (`u32::MAX`: without an end); `None`: it ends now.
    Extension(Option<u32>),
    /// The backend refuses the call, or has failed.
    Error(BackendError),
    /// The backend ends the connection.
    Disconnect {
        /// The code, from 4000 to 4999. Clients do not reconnect after 4500 and above.
        code: u16,
        /// The text for humans.
        reason: Box<str>,
    },
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendError {
    /// The code: 400 to 1999 are the backend's own, 100 is a failure of the backend.
    pub code: u32,
    /// The text for humans.
    pub message: Box<str>,
    /// Whether a retry may help.
    pub is_temporary: bool,
}

/// The permission to connect, and who the client is.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectGrant {
    /// The user's name, and the info that other clients see. The rights are empty.
    pub grants: Grants,
    /// The Unix second in which the grant ends; `u32::MAX` for never.
    pub until_unix_s: u32,
    /// Data for the client.
    pub data: Box<[u8]>,
    /// JSON that later calls of the connection repeat ([`BackendCall::meta`]).
    pub meta: Box<[u8]>,
    /// The channels to which the server subscribes the client, each once.
    pub subs: Vec<(Box<str>, SubscribeGrant)>,
}

/// The permission to subscribe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribeGrant {
    /// The Unix second in which the grant ends; `u32::MAX` for never.
    pub until_unix_s: u32,
    /// Data for the client.
    pub data: Box<[u8]>,
}

/// A message that is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishGrant {
    /// The message in place of the client's.
    pub data: Option<Box<[u8]>>,
    /// The message is not kept.
    pub skips_history: bool,
}

impl BackendResult {
    /// The grant of a connection, if it is one.
    pub(crate) fn into_connect(self) -> Option<ConnectGrant> {
        match self {
            BackendResult::Connect(grant) => Some(*grant),
            _ => None,
        }
    }

    /// The grant of a subscription, if it is one.
    pub(crate) fn into_subscribe(self) -> Option<SubscribeGrant> {
        match self {
            BackendResult::Subscribe(grant) => Some(grant),
            _ => None,
        }
    }

    /// The grant of a message, if it is one.
    pub(crate) fn into_publish(self) -> Option<PublishGrant> {
        match self {
            BackendResult::Publish(grant) => Some(grant),
            _ => None,
        }
    }

    /// The bytes on the heap that such a result can have many of.
    pub fn bytes(&self) -> usize {
        match self {
            BackendResult::Data(data) => data.len(),
            BackendResult::Connect(grant) => {
                let subs = grant.subs.iter();
                let subs: usize = subs.map(|(name, sub)| name.len() + sub.data.len()).sum();
                let rows = grant.subs.capacity() * size_of::<(Box<str>, SubscribeGrant)>();
                grant.data.len() + grant.meta.len() + grant.grants.bytes() + subs + rows
            }
            BackendResult::Subscribe(grant) => grant.data.len(),
            BackendResult::Publish(grant) => grant.data.as_ref().map_or(0, |data| data.len()),
            BackendResult::Extension(_) => 0,
            BackendResult::Error(error) => error.message.len(),
            BackendResult::Disconnect { reason, .. } => reason.len(),
        }
    }
}
