//! The compression of header fields (RFC 7541), for a server.
//!
//! * [`decode`] reads blocks. Its dynamic table is meant only for the start of a connection.
//! * [`encode`] writes blocks with the static table and literals only. So the peer needs no table, and the sizes of later responses reveal
//!   no secret of an earlier one.
//!
//! Invariants: the work of a block is bounded by its bytes and by the limit of its decoded bytes. A dynamic table never exceeds its limit.

pub mod decode;
pub mod encode;
mod huffman;
mod table;

pub use table::{FIELD_OVERHEAD, STATIC};

/// Why a block was refused. The tables of decoder and encoder may now differ, so the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The block ends inside a field.
    Truncated,
    /// An integer of more than 32 bits, or in too many bytes.
    Integer,
    /// An index that is in neither table.
    UnknownIndex,
    /// A string that is not valid Huffman code.
    Huffman,
    /// A table size over the limit, or a change of the size after the start of the block.
    TableSize,
    /// More decoded bytes than the limit.
    TooLong,
}
