//! The sessions on their way home: those of connections that have ended while homes owe them answers.
//!
//! Invariant: a session waits here until each answer that was due when its connection ended has come.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::base::ids::ConnId;
use crate::mail::ClosingSession;

/// A session on its way home.
pub(super) struct Leaving {
    /// The last message to its home.
    pub farewell: Box<ClosingSession>,
    /// The unanswered publishes, by the numbers that homes answer with, and fences.
    pub due: Vec<u32>,
}

/// Sessions that are given back when the publishes of their connections are answered.
#[derive(Default)]
pub(crate) struct Farewells {
    leaving: BTreeMap<ConnId, Leaving>,
}

/// An answer that no request is waiting for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotDue;

impl Farewells {
    /// Sessions that wait.
    pub(crate) fn len(&self) -> usize {
        self.leaving.len()
    }

    /// The session of this connection waits for its answers. Returns one that waited for the same connection already.
    pub(super) fn wait(&mut self, from: ConnId, leaving: Leaving) -> Option<Leaving> {
        self.leaving.insert(from, leaving)
    }

    /// An answer has come for a connection that has ended; `None` when its session does not wait here.
    pub(super) fn answered(
        &mut self,
        from: ConnId,
        number: u32,
    ) -> Option<Result<&mut ClosingSession, NotDue>> {
        let leaving = self.leaving.get_mut(&from)?;
        let Some(at) = leaving.due.iter().position(|due| *due == number) else {
            return Some(Err(NotDue));
        };
        leaving.due.swap_remove(at);
        Some(Ok(&mut leaving.farewell))
    }

    /// Takes the session of this connection, if all its answers have come.
    pub(super) fn take_answered(&mut self, from: ConnId) -> Option<Leaving> {
        if !self.leaving.get(&from)?.due.is_empty() {
            return None;
        }
        self.leaving.remove(&from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::admission::Client;
    use crate::mail::session::SessionId;

    #[test]
    fn a_session_leaves_with_the_last_answer() {
        let from = ConnId {
            slot: 3,
            generation: 1,
        };
        let leaving = |due: &[u32]| Leaving {
            farewell: Box::new(ClosingSession {
                id: SessionId::none(2),
                owner: Client::NOBODY,
                kept: None,
                will: None,
                charge: Default::default(),
            }),
            due: due.into(),
        };
        let mut all = Farewells::default();
        assert!(all.wait(from, leaving(&[7, 0, 7])).is_none());
        for number in [7, 7] {
            assert!(all.answered(from, number).is_some_and(|it| it.is_ok()));
            assert!(all.take_answered(from).is_none());
        }
        let again = all.answered(from, 7).expect("it waits");
        assert_eq!(again.err(), Some(NotDue));
        assert!(all.answered(from, 0).is_some_and(|it| it.is_ok()));
        assert!(all.take_answered(from).is_some_and(|it| it.due.is_empty()));
        assert!(all.answered(from, 0).is_none() && all.len() == 0);
        // Should a connection end twice, neither session is lost.
        all.wait(from, leaving(&[1]));
        assert!(
            all.wait(from, leaving(&[2]))
                .is_some_and(|it| it.due == [1])
        );
    }
}
