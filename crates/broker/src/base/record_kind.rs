//! The table of the kinds of log records.
//!
//! A record begins with the byte of its kind. A kind that was released keeps its byte and its name for ever. A byte that is not in the table is of
//! a later version.

/// If the byte of a kind has this bit, a reader that does not know the kind may skip the record.
pub(crate) const OPTIONAL: u8 = 0x80;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// A message, or a change of a topic.
    Fact,
    /// The partition, its writers or what identifies a retry.
    Control,
    /// An MQTT session.
    Session,
}

/// Defines the table. A row is one line: variant, byte, family, name for operators.
macro_rules! kinds {
    ($($kind:ident, $byte:literal, $family:ident, $name:literal;)*) => {
        /// The kind of a record of the log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum RecordKind {
            $(#[doc = concat!("`", $name, "`")] $kind = $byte,)*
        }

        /// The number of kinds.
        pub(crate) const KINDS: usize = [$($byte),*].len();

        impl RecordKind {
            /// The row of this kind in the table, which is not its byte.
            pub(crate) fn row(self) -> usize {
                let rows = [$(RecordKind::$kind),*];
                rows.iter().position(|row| *row == self).unwrap_or(KINDS)
            }

            /// The kind of a record; `None` if this version does not know it.
            pub(crate) fn read(record: &[u8]) -> Option<RecordKind> {
                match *record.first()? {
                    $($byte => Some(RecordKind::$kind),)*
                    _ => None,
                }
            }

            /// What a record of this kind is about.
            pub(crate) fn family(self) -> Family {
                match self {
                    $(RecordKind::$kind => Family::$family,)*
                }
            }

            /// The name for operators.
            pub fn name(self) -> &'static str {
                match self {
                    $(RecordKind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    Publish, 1, Fact, "publish";
    Create, 2, Fact, "create";
    Delete, 3, Fact, "delete";
    Purge, 4, Fact, "purge";
    PurgeSome, 5, Fact, "purge_some";
    ForgetLatest, 6, Fact, "forget_latest";
    Mark, 7, Control, "mark";
    Heartbeat, 8, Control, "beat";
    Dead, 9, Control, "dead";
    Steward, 10, Control, "steward";
    SessionClaim, 11, Session, "session_claim";
    SessionState, 12, Session, "session_state";
    SessionEnd, 13, Session, "session_end";
    Release, 14, Control, "release";
    Group, 15, Control, "group";
    SessionParts, 16, Session, "session_parts";
    Start, 0x91, Control, "start";
}
