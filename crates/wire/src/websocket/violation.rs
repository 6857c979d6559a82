//! The violations of RFC 6455, with their close codes.

/// How a peer violated the protocol. The receiver closes the connection with [`code`](Violation::code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A reserved bit that belongs to no negotiated extension (§5.2; RFC 7692 §6 for RSV1).
    ReservedBits,
    /// An opcode that does not exist (§5.2).
    ReservedOpcode,
    /// A client's frame without a mask (§5.1).
    Unmasked,
    /// A server's frame with a mask (§5.1).
    Masked,
    /// A control frame of more than 125 bytes (§5.5).
    ControlTooLong,
    /// A control frame without FIN (§5.5).
    ControlFragmented,
    /// A length that is not in its shortest form (§5.2).
    LengthNotMinimal,
    /// A 64-bit length with its top bit set (§5.2).
    LengthTopBit,
    /// A continuation frame outside a fragmented message (§5.4).
    NothingToContinue,
    /// A new message inside a fragmented message (§5.4).
    MessageInMessage,
    /// A close frame with a single byte (§5.5.1).
    CloseTooShort,
    /// A close code that is not allowed on the wire (§7.4).
    CloseCode,
    /// Text or a close reason that is not UTF-8 (§8.1).
    BadUtf8,
    /// A compressed message that does not inflate (RFC 7692 §7.2.2).
    BadDeflate,
    /// A message over the limit, by its announced or inflated length.
    TooBig,
}

impl Violation {
    /// The close code (RFC 6455 §7.4.1). RFC 7692 names no code for data that does not inflate; the nearest is 1007, data inconsistent with
    /// the type of the message.
    pub const fn code(&self) -> u16 {
        match self {
            Violation::BadUtf8 | Violation::BadDeflate => 1007,
            Violation::TooBig => 1009,
            _ => 1002,
        }
    }

    /// A text for the close frame and the log.
    pub const fn reason(&self) -> &'static str {
        match self {
            Violation::ReservedBits => "reserved bits are set",
            Violation::ReservedOpcode => "reserved opcode",
            Violation::Unmasked => "frame is not masked",
            Violation::Masked => "frame is masked",
            Violation::ControlTooLong => "control frame is too long",
            Violation::ControlFragmented => "control frame is fragmented",
            Violation::LengthNotMinimal => "length is not minimal",
            Violation::LengthTopBit => "length has its top bit set",
            Violation::NothingToContinue => "continuation without a message",
            Violation::MessageInMessage => "message within a fragmented message",
            Violation::CloseTooShort => "close frame of one byte",
            Violation::CloseCode => "close code must not be sent",
            Violation::BadUtf8 => "text is not UTF-8",
            Violation::BadDeflate => "compressed data is malformed",
            Violation::TooBig => "message is too big",
        }
    }
}
