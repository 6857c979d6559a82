//! Calls of clients to the operator's backend, and its answers. A shard gives a call to [`Io::ask_backend`](crate::io::Io::ask_backend), and the answer
//! comes back as an [`Input`](crate::io::Input). The server sends the call over HTTP.

use alloc::boxed::Box;
use alloc::string::String;

use crate::base::access::{CountedBytes, QuestionBytes};
use crate::budget::admission::{Admission, Party};
use crate::budget::in_flight::PartyCharge;

/// A call of a method by a client of Centrifugo's protocol.
pub struct BackendCall {
    /// The id of the client's command, repeated in the answer.
    pub command: u32,
    /// The number of the party that calls: the user, the address of a client without a name, or the connection if the address is unknown.
    pub asker: u64,
    /// The id of the client.
    pub client: String,
    /// The name of the user; empty for an anonymous client.
    pub user: String,
    /// The client's transport: `websocket`, `sse` or `http_stream`.
    pub transport: &'static str,
    /// Whether the client speaks protobuf, so that its data and the answer may be any bytes.
    pub is_protobuf: bool,
    /// The name of the method.
    pub method: Box<str>,
    /// The argument.
    pub data: Box<[u8]>,
    _counted: CountedBytes,
    _charge: PartyCharge,
}

/// The parts of a [`BackendCall`] that the client determines.
pub struct BackendCaller<'a> {
    /// The party that calls, whose number is [`BackendCall::asker`].
    pub asker: Party,
    /// Who is charged for the bytes.
    pub payer: Party,
    /// As [`BackendCall::client`].
    pub client: String,
    /// As [`BackendCall::user`].
    pub user: &'a str,
    /// As [`BackendCall::transport`].
    pub transport: &'static str,
    /// As [`BackendCall::is_protobuf`].
    pub is_protobuf: bool,
}

impl BackendCall {
    /// A call of `method` with `data`. Until the call is dropped, its bytes are added to `held`, and are charged to the caller's payer.
    pub fn new(
        command: u32,
        caller: BackendCaller<'_>,
        method: &str,
        data: &[u8],
        held: &QuestionBytes,
        admission: &Admission,
    ) -> BackendCall {
        let bytes = Self::bytes(method, data) + caller.client.len() + caller.user.len();
        BackendCall {
            command,
            asker: caller.asker.number(),
            client: caller.client,
            user: caller.user.into(),
            transport: caller.transport,
            is_protobuf: caller.is_protobuf,
            method: method.into(),
            data: data.into(),
            _counted: CountedBytes::new(held, bytes),
            _charge: PartyCharge::new(admission, caller.payer, bytes),
        }
    }

    /// The bytes that such a call takes in memory, without the names of its client.
    pub fn bytes(method: &str, data: &[u8]) -> usize {
        size_of::<BackendCall>() + method.len() + data.len()
    }
}

/// Why a call is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendRefusal {
    /// No backend takes calls.
    Absent,
    /// Too many calls wait for it.
    Busy,
}

/// The answer of a backend to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendAnswer {
    /// The id of the client's command.
    pub command: u32,
    /// The result.
    pub result: BackendResult,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendResult {
    /// The data of the result. For a client of JSON it is one JSON value ([`crore_wire::json::is_json`]), or empty.
    Data(Box<[u8]>),
    /// The backend refuses the call, or has failed.
    Error {
        /// The code: 400 to 1999 are the backend's own, 100 is a failure of the backend.
        code: u32,
        /// The text for humans.
        message: Box<str>,
        /// Whether a retry may help.
        is_temporary: bool,
    },
    /// The backend ends the connection.
    Disconnect {
        /// The code, from 4000 to 4999. Clients do not reconnect after 4500 and above.
        code: u16,
        /// The text for humans.
        reason: Box<str>,
    },
}
