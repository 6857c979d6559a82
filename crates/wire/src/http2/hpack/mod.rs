//! The compression of header fields (RFC 7541), for a server.
//!
//! * [`decode`] reads blocks. Its dynamic table exists only at the start of a connection.
//! * [`encode`] writes blocks with the static table and literals only, so the peer needs no table, and no secret of an answer can be
//!   guessed from the sizes of later ones.
//!
//! Invariants: the work of a block is bounded by its bytes and by the limit of its fields' bytes. A dynamic table never exceeds its limit.

pub mod decode;
pub mod encode;
mod huffman;
mod table;

pub use table::{FIELD_OVERHEAD, STATIC};

/// Why a block was refused. Decoder and encoder no longer agree, so the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The block ends within a field.
    Truncated,
    /// An integer with more than 32 bits, or in more bytes than these need.
    Integer,
    /// An index that no table has.
    UnknownIndex,
    /// A string that is not in the Huffman code.
    Huffman,
    /// A table size over the limit, or not at the start of the block.
    TableSize,
    /// More decoded bytes than the limit.
    TooLong,
}
