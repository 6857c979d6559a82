//! Bytes in flight between two shards, which are in no shard's account. They are charged to the process, with the large messages.

use crate::budget::admission::Admission;

/// A charge for bytes in flight, released on drop.
#[derive(Debug, Default)]
pub struct Passage(Option<(Admission, usize)>);

impl Passage {
    /// Charges `bytes`.
    pub fn new(admission: &Admission, bytes: usize) -> Passage {
        admission.account.hold_message(bytes);
        Passage(Some((admission.clone(), bytes)))
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        if let Some((admission, bytes)) = &self.0 {
            admission.account.let_message_go(*bytes);
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
        let passages = [7, 13].map(|bytes| Passage::new(&admission, bytes));
        assert_eq!(admission.account.messages_bytes(), 20);
        drop(passages);
        drop(Passage::default());
        assert_eq!(admission.account.messages_bytes(), 0);
    }
}
