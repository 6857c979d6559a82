//! Charges for bytes that are not in the tables of a shard: those in flight between two shards, which are charged to the process like large messages, and those
//! that a party (address or user) makes others hold.

use crate::budget::admission::{Admission, Party};

/// A charge for bytes in flight. Drop releases it.
#[derive(Debug, Default)]
pub struct InFlightCharge(Option<(Admission, usize)>);

impl InFlightCharge {
    /// Charges `bytes`.
    pub fn new(admission: &Admission, bytes: usize) -> InFlightCharge {
        admission.account.charge_unowned(bytes);
        InFlightCharge(Some((admission.clone(), bytes)))
    }
}

impl Drop for InFlightCharge {
    fn drop(&mut self) {
        if let Some((admission, bytes)) = &self.0 {
            admission.account.release_unowned(*bytes);
        }
    }
}

/// A charge to a party for bytes that may outlive its connections. They count with those of its absent sessions, so a party that holds much gets no more
/// while memory is short. Drop releases the charge, on any thread.
#[derive(Debug)]
pub struct PartyCharge {
    admission: Admission,
    party: Party,
    bytes: usize,
}

impl PartyCharge {
    /// Charges `bytes` to this party.
    pub fn new(admission: &Admission, party: Party, bytes: usize) -> PartyCharge {
        admission.change_absent(party, 0, bytes);
        PartyCharge {
            admission: admission.clone(),
            party,
            bytes,
        }
    }
}

impl Drop for PartyCharge {
    fn drop(&mut self) {
        self.admission.change_absent(self.party, self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;

    #[test]
    fn bytes_are_charged_while_they_are_on_their_way() {
        let admission = Admission::new(&Settings::default(), 7);
        let charges = [7, 13].map(|bytes| InFlightCharge::new(&admission, bytes));
        assert_eq!(admission.account.unowned_bytes(), 20);
        drop(charges);
        drop(InFlightCharge::default());
        assert_eq!(admission.account.unowned_bytes(), 0);
    }

    #[test]
    fn party_is_charged_until_others_hold_nothing_for_it() {
        let admission = Admission::new(&Settings::default(), 7);
        let [ann, bob] = ["ann", "bob"].map(|name| Party::user(name, 7));
        let charges = [7, 13].map(|bytes| PartyCharge::new(&admission, ann, bytes));
        assert_eq!(
            (admission.absent_bytes(ann), admission.absent_bytes(bob)),
            (20, 0)
        );
        drop(charges);
        assert!(admission.has_no_absent());
    }
}
