//! The errors for request heads.

/// The maximum number of fields in a head. A head with more fields gets the response 431. Browsers send about 15 fields, and proxies add a
/// few.
pub const MAX_HEADERS: usize = 64;

/// Why a head was refused. The connection is closed after the response, because it is unknown where the next request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.reason())]
pub enum HeadError {
    /// The head is longer than the limit, or has more than [`MAX_HEADERS`] fields (431).
    TooLarge,
    /// The head is not HTTP, or two servers could read it in different ways (400).
    Malformed(&'static str),
    /// A major version other than 1 (505).
    Version,
    /// A transfer coding other than `chunked` (501).
    UnknownTransferCoding,
    /// An expectation other than `100-continue` (417).
    Expectation,
}

impl HeadError {
    /// The status code of the response.
    pub const fn status(&self) -> u16 {
        match self {
            Self::TooLarge => 431,
            Self::Malformed(_) => 400,
            Self::Version => 505,
            Self::UnknownTransferCoding => 501,
            Self::Expectation => 417,
        }
    }

    /// A message for the peer.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge => "the request head is too large",
            Self::Malformed(why) => why,
            Self::Version => "only HTTP/1.0 and HTTP/1.1 are spoken here",
            Self::UnknownTransferCoding => "no transfer coding but chunked is understood",
            Self::Expectation => "no expectation but 100-continue is understood",
        }
    }
}

impl core::error::Error for HeadError {}
