//! Charges for bytes in flight between two shards. No shard's account has these bytes, so they are charged to the process, like large messages.

use crate::budget::admission::Admission;

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
}
